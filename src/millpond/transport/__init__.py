"""Between processes: `Channel` carries rows one way, `Weights` carries parameters the other."""

from .channel import Channel, Counters
from .channel_ends import ChannelReader, ChannelWriter
from .weights import Weights, WeightsReader, WeightsWriter

__all__ = [
    "Channel",
    "ChannelReader",
    "ChannelWriter",
    "Counters",
    "Weights",
    "WeightsReader",
    "WeightsWriter",
]
