"""Actors and learners in processes of their own: modes `lockstep` and `processes`."""
