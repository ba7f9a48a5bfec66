"""Samplers decide which starts are drawn: `Pond(..., sampler=stratified())`.

A sampler proposes candidates by age; the ring checks their flags and redraws the invalid ones.
Each is written once for NumPy and JAX; `random` supplies random numbers of either. `prioritized`
draws from a sum tree instead, which contains only valid starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from .errors import BadConfig
from .plugins import make_part, part_names
from .rows import Array


class Random(Protocol):
    """A source of random numbers: a key inside jit, a generator on the host."""

    xp: Any  # numpy or jax.numpy
    real: Any  # dtype of `uniform`; float64 on the host, as float32 cannot resolve 2^24 rows
    whole: Any  # dtype of positions

    def integers(self, shape: tuple[int, ...], *below: Array) -> tuple[Array, ...]:
        """One array of whole numbers in [0, b) for each b in `below`."""
        ...

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """`real` numbers in [0, 1)."""
        ...

    def search(self, ends: Array, values: Array) -> Array:
        """For each value, how many of the sorted `ends` are not above it."""
        ...

    def permutation(self, number: int) -> Array:
        """0 ... number - 1 in random order."""
        ...

    def stratum(self, stratum: Array, length: Array) -> Array:
        """Numbers[batch] in [0, length): number i from part stratum[i] of `batch` equal parts.

        `stratum` is a permutation of 0 ... batch - 1. If `batch` is a multiple of `length`, every
        part yields a single number.
        """
        ...


class Eligible(NamedTuple):
    """The starts to draw from: `count` per stream, a scalar when all streams are in lockstep.

    Ages run from 0, the stream's oldest such start, to count - 1, the newest. `interleaved` is the
    number of starts per row of one env: above 1 in layout `shared`, where several envs share a
    stream; below 1 for a `Sequence`, of which one row in `every` is a start.
    """

    count: Array
    streams: int
    interleaved: float = 1


class Candidates(NamedTuple):
    """Proposed starts [tries, batch]; the first valid one of each column is used."""

    stream: Array
    age: Array


@dataclass(frozen=True)
class Uniform:
    """Every valid start is equally likely.

    Inside jit, `tries` candidates are drawn per sample and the first valid one is used, which is
    exactly uniform over the valid starts; if none is valid, the batch's mask is false. The host
    redraws until every draw is valid.
    """

    tries: int = 4  # candidates per sample inside jit; the first valid one is taken

    def __post_init__(self) -> None:
        _at_least_one("uniform", self.tries)

    def propose(self, random: Random, tries: int, batch: int, eligible: Eligible) -> Candidates:
        return Candidates(*_evenly(random, (tries, batch), eligible))


@dataclass(frozen=True)
class Stratified:
    """Spreads every batch evenly over streams and over time, by Latin hypercube sampling.

    A batch of B has B strata of streams and B strata of time, paired at random, and one sample
    from each pair. So with B >= streams, every stream appears floor(B / streams) times or once
    more, and every span of time gets its share to within one sample. An invalid start is redrawn
    from its strata once, then from anywhere, since a stratum may be narrower than one row.
    """

    tries: int = 5  # candidates per sample inside jit; the first valid one is taken

    def __post_init__(self) -> None:
        _at_least_one("stratified", self.tries)

    def propose(self, random: Random, tries: int, batch: int, eligible: Eligible) -> Candidates:
        strata = self.strata(random, batch)
        streams: list[Array] = []
        ages: list[Array] = []
        for _ in range(min(tries, 2)):
            stream, age = self.within(random, strata, eligible)
            streams.append(stream)
            ages.append(age)
        if tries > 2:
            others = _evenly(random, (tries - 2, batch), eligible)
            streams.extend(others[0])
            ages.extend(others[1])
        return Candidates(random.xp.stack(streams), random.xp.stack(ages))

    def strata(self, random: Random, batch: int) -> tuple[Array, Array]:
        """Each sample's stratum of streams and stratum of time."""
        # Both in random order, or batches would be sorted by stream or by time.
        return random.permutation(batch), random.permutation(batch)

    def within(
        self, random: Random, strata: tuple[Array, Array], eligible: Eligible
    ) -> tuple[Array, Array]:
        """Stream and age of one candidate per pair of strata."""
        stream = random.stratum(strata[0], eligible.streams)
        return stream, random.stratum(strata[1], _count_of(eligible, stream))


@dataclass(frozen=True)
class Recent:
    """Favours recent starts: the probability halves with every `half_life` rows of age."""

    half_life: float  # rows of the same env after which a start is half as likely
    tries: int = 4  # candidates per sample inside jit; the first valid one is taken

    def __post_init__(self) -> None:
        _at_least_one("recent", self.tries)
        if not 0 < self.half_life < float("inf"):
            raise BadConfig(f"recent: half_life must be a positive number, got {self.half_life}")

    def propose(self, random: Random, tries: int, batch: int, eligible: Eligible) -> Candidates:
        xp, shape = random.xp, (tries, batch)
        (stream,) = random.integers(shape, eligible.streams)
        count = _count_of(eligible, stream)
        decay = np.log(2.0) / (self.half_life * eligible.interleaved)
        if random.real is np.float64:  # enough resolution for any ring
            return Candidates(stream, count - 1 - _decaying(random, shape, decay, count, 1))
        # A block of rows first, then a row within it: a uniform float32 has only 2^23 values, too
        # few for the rows of a large ring.
        block = _decaying(random, shape, decay, count, _BLOCK)
        rest = xp.minimum(count - block * _BLOCK, _BLOCK)
        back = block * _BLOCK + _decaying(random, shape, decay, rest, 1)
        return Candidates(stream, count - 1 - back)


@dataclass(frozen=True)
class Prioritized:
    """Draws starts in proportion to priority^alpha and returns importance weights.

    A new start gets the highest priority seen so far. `weight` is (P / smallest P in the batch)
    ^-beta, so at most 1; beta goes from `beta` to `beta_end` over `beta_samples` samples (0: it
    stays). After learning, call `update_priorities(draw, priorities)`: rows overwritten in the
    meantime are ignored, the largest of duplicates counts, and a negative priority or NaN is
    refused.
    """

    alpha: float = 0.6  # exponent of priorities; 0 is uniform
    beta: float = 0.4  # initial exponent of the importance weights
    beta_end: float = 1.0  # final exponent of the importance weights
    beta_samples: int = 0  # samples until `beta_end` is reached; 0: `beta` stays constant
    fan: int = 16  # children per node of the sum tree

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "beta_end"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadConfig(
                    f"prioritized: {name} must lie in [0, 1], got {getattr(self, name)}"
                )
        if self.fan < 2:
            raise BadConfig(f"prioritized: fan must be at least 2, got {self.fan}")

    def beta_at(self, samples: Array, xp: Any) -> Array:
        """The exponent of the importance weights after this number of samples."""
        if not self.beta_samples:
            return np.float32(self.beta)
        part = xp.minimum(xp.asarray(samples, np.float32) / self.beta_samples, np.float32(1))
        return self.beta + (self.beta_end - self.beta) * part

    def weights(self, mass: Array, samples: Array, xp: Any) -> Array:
        """Importance weights float32[batch] for the masses drawn; 0 where nothing was drawn."""
        drawn = mass > 0
        least = xp.where(drawn, mass, np.float32(np.inf)).min()
        ratio = xp.maximum(mass / least, 1).astype(np.float32)
        return ratio ** -self.beta_at(samples, xp) * drawn

    def weigh(self, mass: np.ndarray, samples: int, out: np.ndarray) -> None:
        """Host: the same, written to `out` float32[batch]; all masses must be above 0."""
        np.divide(mass, mass.min(), out=out, casting="same_kind")
        np.power(out, -self.beta_at(samples, np), out=out)


class Proposer(Protocol):
    """What your own sampler must provide: a frozen dataclass with `tries` and `propose`."""

    @property
    def tries(self) -> int:
        """Candidates per sample inside jit, where nothing can be redrawn."""
        ...

    def propose(self, random: Random, tries: int, batch: int, eligible: Eligible) -> Candidates:
        """Starts to try, [tries, batch] each; the first valid one of each column is used."""
        ...


Sampler = Proposer | Prioritized

_OURS = {
    "uniform": Uniform,
    "stratified": Stratified,
    "recent": lambda: Recent(20_000.0),
    # Agents apply their own beta, which changes over a run.
    "prioritized": lambda: Prioritized(beta=1.0),
}


def make_sampler(name: str) -> Any:
    """The sampler of that name with its default settings; unknown names raise BadConfig.

    `make_sampler("recent")`, `make_sampler("package.module:Mine")`.
    """
    sampler = make_part("sampler", name, _OURS)
    if not isinstance(sampler, Prioritized) and not hasattr(sampler, "propose"):
        raise BadConfig(
            f"sampler '{name}': expected a dataclass with tries and propose, got {sampler!r}"
        )
    return sampler


def sampler_names() -> list[str]:
    """The names of all known samplers: `"recent" in sampler_names()`."""
    return part_names("sampler", _OURS)


def uniform(tries: int = 4) -> Uniform:
    """Every valid start is equally likely: `Pond(spec, 1000, sampler=uniform())`."""
    return Uniform(tries)


def stratified(tries: int = 5) -> Stratified:
    """Spreads batches evenly over envs and time: `Pond(spec, 1000, sampler=stratified())`."""
    return Stratified(tries)


def recent(half_life: float, tries: int = 4) -> Recent:
    """The probability halves with every `half_life` rows of age: `sampler=recent(100_000)`."""
    return Recent(half_life, tries)


def prioritized(
    alpha: float = 0.6,
    beta: float = 0.4,
    beta_end: float = 1.0,
    beta_samples: int = 0,
    fan: int = 16,
) -> Prioritized:
    """Prioritised replay: `Pond(spec, 2**20, sampler=prioritized())`."""
    return Prioritized(alpha, beta, beta_end, beta_samples, fan)


def _evenly(random: Random, shape: tuple[int, ...], eligible: Eligible) -> tuple[Array, Array]:
    """Stream and age of candidates of this shape, each start equally likely."""
    xp, count = random.xp, eligible.count
    if np.ndim(count) == 0:
        stream, age = random.integers(shape, eligible.streams, count)
        return stream, age
    ends = xp.cumsum(count)
    (flat,) = random.integers(shape, ends[-1])
    stream = xp.minimum(random.search(ends, flat), eligible.streams - 1)
    return stream, flat - (ends[stream] - count[stream])


def _count_of(eligible: Eligible, stream: Array) -> Array:
    """How many starts these streams have."""
    return eligible.count if np.ndim(eligible.count) == 0 else eligible.count[stream]


_BLOCK = 1 << 15


def _decaying(
    random: Random, shape: tuple[int, ...], decay: float, count: Array, width: int
) -> Array:
    """Draw one of `count` rows with weights exp(-decay * row); return row // width."""
    xp, real = random.xp, random.real
    # The inverse of the cumulative sum of the weights.
    reach = -xp.expm1(real(-decay) * xp.asarray(count, real))
    part = -xp.log1p(-random.uniform(shape) * reach) / real(decay * width)
    most = xp.maximum(-(-xp.asarray(count) // width), 1) - 1
    return xp.clip(xp.floor(part).astype(random.whole), 0, most)


def _at_least_one(name: str, tries: int) -> None:
    if not isinstance(tries, int) or tries < 1:
        raise BadConfig(f"{name}: tries must be a whole number >= 1, got {tries!r}")
