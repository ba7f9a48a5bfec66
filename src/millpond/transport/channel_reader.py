"""`ChannelReader`: the end of a channel that pops rows."""

from __future__ import annotations

from typing import Any

from ..errors import ChannelBroken, ChannelClosed
from ..rows import Rows
from .channel_end import ChannelEnd
from .header import Header
from .memory import fence
from .slots import Head

_POPS, _ROWS, _TORN, _WAITS, _CLOSED = range(5)
_WRITER_PUSHES, _WRITER_CLOSED = 0, 4


class ChannelReader(ChannelEnd):
    """Pops what was pushed, in order, as copies: `rows = reader.pop(timeout=1)`.

    Once a slot was found broken, every later pop raises the same ChannelBroken.
    """

    def __init__(self, header: Header, *end: Any) -> None:
        super().__init__(header, *end)
        self._pops = header.reader[_POPS]
        self._broken: ChannelBroken | None = None

    def pop(self, timeout: float = 0.0) -> Rows | None:
        """The next push exactly as it was pushed, [env] or [time, env]; None if none came in time.

        Raises ChannelClosed if none is left and none will come.
        """
        found = self._take(1, timeout)
        if found is None:
            return None
        rows, rank = found
        return _first(rows) if rank == 1 else rows

    def pop_block(self, most: int, timeout: float = 0.0) -> Rows | None:
        """Up to `most` pushes that have arrived, one after another, as rows [time, env]; or None.

        It waits for the first one only. One block is added to a ring far faster than its pushes.
        """
        found = self._take(most, timeout)
        return None if found is None else found[0]

    @property
    def ready(self) -> int:
        """Pushes that can be popped at once."""
        return self._header.writer[_WRITER_PUSHES] - self._pops

    def _take(self, most: int, timeout: float) -> tuple[Rows, int] | None:
        if self._broken is not None:
            raise self._broken
        header, mine = self._header, self._header.reader
        if not header.mine():
            raise ChannelClosed("pop: a newer reader has taken this channel over")
        if not self.ready:
            if timeout > 0:
                mine[_WAITS] += 1
            if not self._own.wait(self._may_pop, timeout, header.reader_waiting, self._alive):
                if self._alive is not None and not self._alive() and not self.ready:
                    raise _nobody_writes()
                return None
            if not self.ready:
                raise _nobody_writes()
        try:
            heads = self._heads(most)
            rows, good = self._slots.get(heads)
        except ChannelBroken as error:
            mine[_TORN] += 1
            self._broken = error
            raise
        mine[_ROWS] += sum(head.time for head in heads[:good]) * self._layout.num_envs
        fence()  # all copied before the writer may write there again
        self._pops = mine[_POPS] = self._pops + good
        fence()
        # A waiting writer is woken for a run of pushes, not for one; it looks by itself meanwhile.
        if header.writer_waiting[0] and self.ready <= self._layout.count // 2:
            self._other.ring()
        return rows, heads[0].rank

    def _heads(self, most: int) -> list[Head]:
        """The heads of the next pushes, up to the first that is broken."""
        ready = self.ready
        if not 0 < ready <= self._layout.count:
            raise ChannelBroken(
                f"channel: {ready} pushes are said to be under way in {self._layout.count} slots; "
                "its header was overwritten. Restart the writer with a new channel"
            )
        fence()  # no slot is looked at before the head
        heads: list[Head] = []
        for number in range(self._pops, self._pops + min(most, ready)):
            try:
                heads.append(self._slots.head(number))
            except ChannelBroken:
                if not heads:
                    raise
                break  # the whole ones are delivered first
        return heads

    def _may_pop(self) -> bool:
        return bool(self.ready or self._header.writer[_WRITER_CLOSED])

    def close(self) -> None:
        """Say that nothing more will be popped: pushes raise ChannelClosed from now on."""
        self._header.reader[_CLOSED] = 1
        fence()
        self._other.ring()


def _first(tree: Any) -> Any:
    """The first step of rows [time, env], of a tree or of an array."""
    if isinstance(tree, Rows):
        return Rows(*(_first(value) for value in tree))
    if isinstance(tree, dict):
        return {key: _first(value) for key, value in tree.items()}
    return tree[0]


def _nobody_writes() -> ChannelClosed:
    return ChannelClosed("pop: the writer has closed or died, and everything it sent was popped")
