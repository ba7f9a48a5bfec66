"""Every error millpond raises. Each message says what, where, expected, got, and what to do.

MillpondError
├── SpecMismatch    data does not fit the Spec (also a ValueError)
├── BrokenEpisode   a row's flags contradict the row before it (also a ValueError)
├── BadConfig       a setting that cannot work (also a ValueError)
│   └── NotInstalled  an optional package is missing (also an ImportError)
├── BadState        an imported state does not belong to this ring (also a ValueError)
├── NotEnoughData   nothing valid to sample
├── FaultsFound     bad values were ignored and counted inside jit
├── LakeRefused     not a Lake, another version or another spec (also a ValueError)
├── LakeLocked      another process has this writer group open
├── LakeDamaged     bytes on disk are not what was written
├── LakeFull        the disk is full; nothing committed is lost
├── LakeFailed      the operating system refused an operation
├── RowsGone        the rows are not stored: evicted, or not committed yet (also a LookupError)
├── ChannelBroken   bytes between processes are not what was written, or not shared at all
├── ChannelClosed   the other end of a channel closed it or died, or this end was replaced
├── ChannelFull     a channel had no room within the timeout; nothing was sent
├── WeightsBroken   published parameters are not what was written; none were delivered
├── RunRefused      not a run, a run of another version, or one in use (also a ValueError)
├── RunFailed       a run could not continue, or could not write its files
│   └── LearnerLost   a learner process was killed or hung
├── Paused          the disk is full; the run continues when it is resumed
└── Diverged        a loss, gradient or parameter was not finite; the run stopped
"""


class MillpondError(Exception):
    """Base of every error raised by millpond."""


class SpecMismatch(MillpondError, ValueError):
    """Data does not fit the Spec: the message names the field, what it expects and what it got."""


class BrokenEpisode(MillpondError, ValueError):
    """A row's flags contradict the row before it, such as a missing border row."""


class BadConfig(MillpondError, ValueError):
    """A setting that cannot work, refused before anything is built."""


class NotInstalled(BadConfig, ImportError):
    """An optional package is missing; the message names the extra that installs it."""


class BadState(MillpondError, ValueError):
    """An exported state that does not belong to this ring, or is damaged."""


class NotEnoughData(MillpondError):
    """A sample was requested but no valid start is stored."""


class FaultsFound(MillpondError):
    """Bad values reached a ring inside jit; they were counted and never sampled."""


class LakeRefused(MillpondError, ValueError):
    """A folder that is not a Lake, or one of another version or another spec."""


class LakeLocked(MillpondError):
    """Another process has this writer group open."""


class LakeDamaged(MillpondError):
    """Bytes on disk are not what was written; the message names the file and the range."""

    start: int = 0  # the damaged bytes are start ... stop - 1 of the file
    stop: int = 0
    why: str = ""


class LakeFull(MillpondError):
    """The disk is full. Everything committed is safe; free some space and call again."""


class LakeFailed(MillpondError):
    """The operating system refused an operation on a Lake's file."""


class RowsGone(MillpondError, LookupError):
    """The requested rows are not stored: evicted, or not committed yet."""


class ChannelBroken(MillpondError):
    """Bytes between processes are not what was written, or the memory is not shared at all."""


class ChannelClosed(MillpondError):
    """The other end of a channel has closed it or died, or a newer end has replaced this one."""


class ChannelFull(MillpondError):
    """A channel had no room within the time allowed. Nothing was sent; push again."""


class WeightsBroken(MillpondError):
    """Published parameters do not have the hash they were published with; none were delivered."""


class RunRefused(MillpondError, ValueError):
    """A folder that is not a run, a run of another version, or one that another process uses."""


class RunFailed(MillpondError):
    """A run could not continue, or could not write to its folder. What it saved is untouched."""

    traceback: str = ""  # of the process in which it failed, if it is not this one


class LearnerLost(RunFailed):
    """A learner process was killed or hung. The run can continue from its resume state."""


class Paused(MillpondError):
    """The disk is full. What was saved is untouched; resume the run when there is space."""


class Diverged(MillpondError):
    """A loss, gradient or parameter was not finite. Its evidence was saved, the update was not."""
