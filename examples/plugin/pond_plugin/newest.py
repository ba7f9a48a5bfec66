"""`Newest`: a share of every batch comes from the newest rows, the rest from all."""

from dataclasses import dataclass

from millpond.samplers import Candidates


@dataclass(frozen=True)
class Newest:
    """`share` of a batch is drawn from the newest tenth of the rows."""

    share: float = 0.25
    tries: int = 4

    def propose(self, random, tries, batch, eligible):
        xp, shape = random.xp, (tries, batch)
        (stream,) = random.integers(shape, eligible.streams)
        # One count for all streams in lockstep, else one per stream.
        count = eligible.count if xp.ndim(eligible.count) == 0 else eligible.count[stream]
        few = xp.maximum(count // 10, 1)
        within = xp.where(random.uniform(shape) < self.share, few, count)
        (back,) = random.integers(shape, within)
        return Candidates(stream, count - 1 - back)
