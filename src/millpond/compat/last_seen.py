"""`LastSeen`: detects envs whose next step does not continue from their last observation."""

from __future__ import annotations

import numpy as np


class LastSeen:
    """The newest observations of all envs: `last.note(after)`, arrays [env, ...].

    They are kept as bytes, which are immutable and compare fastest.
    """

    def __init__(self, num_envs: int) -> None:
        self._envs = num_envs
        self._known: list[tuple[bytes, np.dtype, tuple[int, ...]]] = []

    def note(self, after: list[np.ndarray]) -> None:
        """Remember the newest observations."""
        self._known = [(part.tobytes(), part.dtype, part.shape) for part in after]

    def note_packed(self, after: bytes, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        """The same for a single array, given its bytes."""
        self._known = [(after, dtype, shape)]

    def goes_on(self, now: bytes, fresh: list[int]) -> bool:
        """Whether all envs continue from their last observation; for a single array's bytes."""
        return bool(self._known) and self._same(self._known[0][0], now, fresh)

    def forget(self) -> None:
        """Forget all observations; then no env counts as strayed."""
        self._known = []

    def obs(self) -> list[np.ndarray]:
        """The newest observations, read-only."""
        return [np.frombuffer(known, dtype).reshape(shape) for known, dtype, shape in self._known]

    def strayed(self, seen: list[np.ndarray], fresh: list[int]) -> list[int]:
        """Envs that do not continue, except those in `fresh`, which begin an episode."""
        if not self._known or len(fresh) == self._envs:
            return []
        for part, (known, dtype, _) in zip(seen, self._known, strict=True):
            if part.dtype != dtype or not self._same(known, part.tobytes(), fresh):
                break
        else:
            return []
        found = np.zeros(self._envs, bool)
        for part, was in zip(seen, self.obs(), strict=True):
            found |= (part != was).reshape(self._envs, -1).any(1)
        found[fresh] = False
        return np.flatnonzero(found).tolist()

    def _same(self, known: bytes, now: bytes, fresh: list[int]) -> bool:
        """Whether the bytes of all envs not in `fresh` are equal."""
        if now == known or not fresh:
            return now == known
        both, width = bytearray(known), len(known) // self._envs
        for env in fresh:
            both[env * width : (env + 1) * width] = now[env * width : (env + 1) * width]
        return bytes(both) == now
