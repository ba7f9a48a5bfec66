"""Every error millpond raises. Each message says what, where, expected, got, and what to do.

MillpondError
├── SpecMismatch    data does not fit the Spec (also a ValueError)
├── BrokenEpisode   a row's flags contradict the row before it (also a ValueError)
├── BadConfig       an impossible capacity, window, sampler or spec (also a ValueError)
├── BadState        an imported state does not belong to this ring (also a ValueError)
├── NotEnoughData   nothing valid to sample
└── FaultsFound     bad values were ignored and counted inside jit
"""


class MillpondError(Exception):
    """Base of every error raised by millpond."""


class SpecMismatch(MillpondError, ValueError):
    """Data does not fit the Spec: the message names the field, what it expects and what it got."""


class BrokenEpisode(MillpondError, ValueError):
    """A row's flags contradict the row before it, such as a missing border row."""


class BadConfig(MillpondError, ValueError):
    """A setting that cannot work, refused before anything is built."""


class BadState(MillpondError, ValueError):
    """An exported state that does not belong to this ring, or is damaged."""


class NotEnoughData(MillpondError):
    """A sample was asked for and no valid start is stored."""


class FaultsFound(MillpondError):
    """Bad values reached a ring inside jit; they were kept out of every sample and counted."""
