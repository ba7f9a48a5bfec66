"""The mixture: agents that learn separately, and a BigAgent that learns from all their rows."""

from .phases import mix
from .presets import SEED_003, mix_for, mix_from, tiny_mix, with_frames
from .run import MixRun, find_mixtures, is_mixture
from .settings import MixSettings

__all__ = [
    "SEED_003",
    "MixRun",
    "MixSettings",
    "find_mixtures",
    "is_mixture",
    "mix",
    "mix_for",
    "mix_from",
    "tiny_mix",
    "with_frames",
]
