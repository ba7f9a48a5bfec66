"""`ChannelWriter` and `ChannelReader`: the two ends of a channel, each for one process alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import BadConfig, ChannelBroken, ChannelClosed, ChannelFull, SpecMismatch
from ..intake import Intake, pack_values
from ..rows import Rows
from .eventfd import EventFd
from .header import Header
from .memory import fence
from .slots import Head, SlotMemory

# The words that each end writes in the header.
_PUSHES, _ROWS, _BYTES, _WAITS, _CLOSED = range(5)
_POPS, _TORN = _PUSHES, _BYTES


class ChannelEnd:
    """What both ends have in common. Each waits at its own bell and rings the other's."""

    def __init__(
        self,
        header: Header,
        slots: SlotMemory,
        own: EventFd,
        other: EventFd,
        alive: Callable[[], bool] | None,
    ) -> None:
        self.canary = header.canary
        self._header, self._slots, self._layout = header, slots, slots.layout
        self._own, self._other, self._alive = own, other, alive

    def __reduce__(self) -> Any:
        name = type(self).__name__
        raise BadConfig(
            f"{name}: only one process can have this end of a channel, so it cannot be copied or "
            "pickled; pass the Channel to Process(args=...), and call "
            f"channel.{name.removeprefix('Channel').lower()}(spec) there"
        )


class ChannelWriter(ChannelEnd):
    """Pushes rows [env] or [time, env], whole or not at all: `writer.push(rows, timeout=5)`."""

    def __init__(self, header: Header, *end: Any) -> None:
        super().__init__(header, *end)
        self._intake = Intake(self._layout.spec)
        self._pushes = header.writer[_PUSHES]

    def push(self, rows: Rows, timeout: float = 10.0) -> None:
        """Send a copy of rows [env] or [time, env].

        Raises ChannelFull if there is no room within `timeout` seconds, ChannelClosed if nobody
        will read it, SpecMismatch if it does not fit; in each case nothing is sent.
        """
        lead = np.shape(rows.reward)
        layout = self._layout
        if len(lead) == 1:
            wanted, whose = (layout.num_envs,), "[env]"
        else:
            steps = lead[0] if lead else 1
            if not 1 <= steps <= layout.time:
                raise SpecMismatch(
                    f"push: expected 1 to {layout.time} steps, got {steps}; "
                    "push fewer at once or create the channel with more time"
                )
            wanted, whose = (steps, layout.num_envs), "[time, env]"
        values = self._intake.arrange(rows, wanted, whose)
        self._intake.check_values(values)
        flags = pack_values(values)
        header, number = self._header, self._pushes
        mine = header.writer
        if not header.mine():
            raise ChannelClosed(
                "push: a newer writer has taken this channel over; nothing was sent"
            )
        if header.reader[_CLOSED]:
            raise _nobody_reads()
        if not self._has_room():
            if timeout > 0:
                mine[_WAITS] += 1
            if not self._own.wait(self._may_push, timeout, header.writer_waiting, self._alive):
                raise self._no_room(timeout)
            if header.reader[_CLOSED]:
                raise _nobody_reads()
        used = self._slots.put(number, values, flags)
        mine[_ROWS] += flags.size
        mine[_BYTES] += used
        fence()  # the payload must be there before it is announced
        self._pushes = mine[_PUSHES] = number + 1
        fence()
        if header.reader_waiting[0]:
            self._other.ring()

    def _has_room(self) -> bool:
        return self._pushes - self._header.reader[_POPS] < self._layout.count

    def _may_push(self) -> bool:
        return self._has_room() or bool(self._header.reader[_CLOSED])

    def _no_room(self, timeout: float) -> ChannelClosed | ChannelFull:
        if self._alive is not None and not self._alive():
            return _nobody_reads()
        return ChannelFull(
            f"push: all {self._layout.count} slots stayed full for {timeout:g} s; nothing was "
            "sent. The reader is slower than the writer: wait longer or slow the writer down"
        )

    def close(self) -> None:
        """Announce that no push will follow; what was pushed can still be popped."""
        self._header.writer[_CLOSED] = 1
        fence()
        self._other.ring()


def _nobody_reads() -> ChannelClosed:
    return ChannelClosed("push: the reader has closed or died; nothing was sent")


class ChannelReader(ChannelEnd):
    """Pops what was pushed, in order, as copies: `rows = reader.pop(timeout=1)`.

    Once a push was found damaged, every later pop raises the same ChannelBroken.
    """

    def __init__(self, header: Header, *end: Any) -> None:
        super().__init__(header, *end)
        self._pops = header.reader[_POPS]
        self._broken: ChannelBroken | None = None

    def pop(self, timeout: float = 0.0) -> Rows | None:
        """The next push as it was pushed, [env] or [time, env]; None if none arrived in time.

        Raises ChannelClosed if none is left and none will come.
        """
        found = self._take(1, timeout)
        if found is None:
            return None
        rows, rank = found
        return _first(rows) if rank == 1 else rows

    def pop_block(self, most: int, timeout: float = 0.0) -> Rows | None:
        """Up to `most` pushes that have arrived, joined as rows [time, env]; or None.

        It waits for the first one only. A ring adds one block far faster than its pushes.
        """
        found = self._take(most, timeout)
        return None if found is None else found[0]

    @property
    def ready(self) -> int:
        """Pushes that can be popped at once."""
        return self._header.writer[_PUSHES] - self._pops

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
        fence()  # finish the copy before the writer may write there again
        self._pops = mine[_POPS] = self._pops + good
        fence()
        # Wake a waiting writer for many pushes at once; it also looks by itself now and then.
        if header.writer_waiting[0] and self.ready <= self._layout.count // 2:
            self._other.ring()
        return rows, heads[0].rank

    def _heads(self, most: int) -> list[Head]:
        """The heads of the next pushes, up to the first that is damaged."""
        ready = self.ready
        if not 0 < ready <= self._layout.count:
            raise ChannelBroken(
                f"channel: its header claims {ready} pushes in {self._layout.count} slots, so its "
                "header was overwritten. Restart the writer with a new channel"
            )
        fence()  # read no slot before the number of pushes
        heads: list[Head] = []
        for number in range(self._pops, self._pops + min(most, ready)):
            try:
                heads.append(self._slots.head(number))
            except ChannelBroken:
                if not heads:
                    raise
                break  # deliver the whole ones first
        return heads

    def _may_pop(self) -> bool:
        return bool(self.ready or self._header.writer[_CLOSED])

    def close(self) -> None:
        """Announce that nothing more will be popped: pushes raise ChannelClosed from now on."""
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
