"""Replay on disk: one worker per library, `python -m workers.lake.NAME GAME FOLDER`.

Each stores the same recorded play, then returns batches of five-frame windows. See `task`.
"""
