"""Between Lake and Pond: `drain` (Pond → Lake) and `fill` (Lake → Pond), during training."""

from .drain import Drain, drain
from .fill import Fill, fill
from .row_runs import Choice

__all__ = ["Choice", "Drain", "Fill", "drain", "fill"]
