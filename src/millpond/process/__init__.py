"""Actors and learners in their own processes: modes `lockstep` and `processes`."""
