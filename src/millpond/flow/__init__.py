"""Between Lake and Pond: `drain` (Pond → Lake) and `fill` (Lake → Pond), beside training."""

from .drain import Drain, drain
from .fill import Fill, fill

__all__ = ["Drain", "Fill", "drain", "fill"]
