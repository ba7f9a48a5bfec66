"""The same actors and learners on more than one machine. Only `cluster.ray` imports Ray."""
