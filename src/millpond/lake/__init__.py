"""Replay on disk: a folder of committed rows, sampled in place."""

from .damage import Damage
from .lake import Lake, Stats, Stream
from .repair import Mended, Repaired, repair_lake
from .shuffle import Shuffle
from .survey import Survey, survey_lake
from .verify import Verified, verify_lake
from .writer import Writer

__all__ = [
    "Damage",
    "Lake",
    "Mended",
    "Repaired",
    "Shuffle",
    "Stats",
    "Stream",
    "Survey",
    "Verified",
    "Writer",
    "repair_lake",
    "survey_lake",
    "verify_lake",
]
