"""Sequences: one worker per library, `python -m workers.sequences.NAME`.

Each stores the same play and gives 32 sequences of 64 rows with the observation after the last.
See `task`.
"""
