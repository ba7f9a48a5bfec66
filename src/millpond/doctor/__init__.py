"""The doctor: says of a run which of the known causes of trouble it has, with the evidence."""

from .chance import chance
from .evidence import Evidence
from .examine import CHECKS, examine
from .logged_checks import LOGGED_CHECKS, LogEvidence, examine_logged
from .mixture_checks import MIXTURE_CHECKS, MixEvidence, examine_mixture
from .noise import noise_scale
from .verdict import Verdict
from .watch import Watch

__all__ = [
    "CHECKS",
    "LOGGED_CHECKS",
    "MIXTURE_CHECKS",
    "Evidence",
    "LogEvidence",
    "MixEvidence",
    "Verdict",
    "Watch",
    "chance",
    "examine",
    "examine_logged",
    "examine_mixture",
    "noise_scale",
]
