"""The doctor: says of a run which of the known causes of trouble it has, with the evidence."""

from .env_checks import examine_env
from .evidence import Evidence
from .examine import CHECKS, examine
from .examine_replay import examine_replay
from .gradient_noise import noise_scale
from .logged_checks import LOGGED_CHECKS, LogEvidence, examine_logged
from .mixture_checks import MIXTURE_CHECKS, MixEvidence, examine_mixture
from .probe import Probe
from .probe_checks import examine_probe, examined_with
from .random_player import chance
from .verdict import Verdict
from .watch import Watch

__all__ = [
    "CHECKS",
    "LOGGED_CHECKS",
    "MIXTURE_CHECKS",
    "Evidence",
    "LogEvidence",
    "MixEvidence",
    "Probe",
    "Verdict",
    "Watch",
    "chance",
    "examine",
    "examine_env",
    "examine_logged",
    "examine_mixture",
    "examine_probe",
    "examine_replay",
    "examined_with",
    "noise_scale",
]
