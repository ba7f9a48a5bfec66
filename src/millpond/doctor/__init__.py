"""The doctor: says of a run which of the known causes of trouble it has, with the evidence."""

from .chance import chance
from .evidence import Evidence
from .examine import CHECKS, examine
from .mixture_checks import MIXTURE_CHECKS, MixEvidence, examine_mixture
from .noise import noise_scale
from .verdict import Verdict
from .watch import Watch

__all__ = [
    "CHECKS",
    "MIXTURE_CHECKS",
    "Evidence",
    "MixEvidence",
    "Verdict",
    "Watch",
    "chance",
    "examine",
    "examine_mixture",
    "noise_scale",
]
