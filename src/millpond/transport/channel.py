"""`Channel`: rows from one process to another, whole and in order, or an error.

A ring of slots in shared memory with one writer and one reader. The head is published after the
payload, so a writer that dies while writing leaves nothing that could be read. The tail is
published after the copy, so no slot is written while it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ChannelBroken, SpecMismatch
from ..spec import Spec
from .channel_ends import ChannelReader, ChannelWriter
from .eventfd import EventFd
from .header import HEADER_BYTES, READER, WRITER, Header
from .memory import PAGE, Canary, Memory, Shared
from .slots import Slots

Alive = Callable[[], bool]


class Counters(NamedTuple):
    """What went through a channel so far; both sides see the same numbers.

    `channel.counters().in_flight`.
    """

    pushed: int  # pushes, by the writer
    popped: int  # pushes, by the reader
    rows_pushed: int
    rows_popped: int
    bytes_pushed: int
    writer_waits: int  # pushes that had to wait for room
    reader_waits: int  # pops that had to wait for a push
    torn: int  # damaged pushes, which were not delivered

    @property
    def in_flight(self) -> int:
        """Pushes that are not popped yet."""
        return self.pushed - self.popped


class Channel(Shared):
    """A ring of `slots` pushes of up to `time` steps of `num_envs` envs; pass it to a Process.

        channel = Channel.create(spec, num_envs=64)
        Process(target=act, args=(channel,)).start()    # there: channel.writer(spec).push(rows)
        reader = channel.reader(spec, alive=process.is_alive)
        rows = reader.pop(timeout=1.0)

    One writer, one reader: a newer end replaces the one before it.
    """

    def __init__(self, layout: tuple[Spec, int, int, int], memory: Memory, *bells: EventFd) -> None:
        self.spec, self.num_envs, self.time, self.slots = layout
        self._memory: Memory = memory
        self._bells: tuple[EventFd, ...] = bells
        self._layout = Slots(*layout)

    @staticmethod
    def create(spec: Spec, num_envs: int, time: int = 1, slots: int = 64) -> Channel:
        """A new, empty channel. A new incarnation of either process gets a new one."""
        layout = Slots(spec, num_envs, time, slots)
        memory = Memory.create(HEADER_BYTES + layout.nbytes)
        Header(memory).describe(layout)
        return Channel((spec, num_envs, time, slots), memory, EventFd(), EventFd())

    def writer(self, spec: Spec, alive: Alive | None = None) -> ChannelWriter:
        """The end that pushes, for one process only; `alive()` says whether the reader lives."""
        header = self._check(spec, WRITER)
        slots = self._layout.attach(self._memory, PAGE + HEADER_BYTES)
        return ChannelWriter(header, slots, *self._bells, alive)

    def reader(self, spec: Spec, alive: Alive | None = None) -> ChannelReader:
        """The end that pops, for one process only; `alive()` says whether the writer lives."""
        header = self._check(spec, READER)
        slots = self._layout.attach(self._memory, PAGE + HEADER_BYTES)
        return ChannelReader(header, slots, *reversed(self._bells), alive)

    def _check(self, spec: Spec, side: int) -> Header:
        header = Header(self._memory)
        header.canary = self._memory.prove(side, header.words)
        own, held = spec.fingerprint(), header.fingerprint
        if own != held:
            raise SpecMismatch(
                f"channel: this process has the spec {own}, the channel was made for {held}"
                f"{_difference(spec, self.spec)}; build both from one Spec"
            )
        header.check(self._layout)
        return header

    def confirm(self, canary: Canary) -> None:
        """Raise ChannelBroken unless the `.canary` of an end in another process is seen here.

        It must have come another way, such as through a pipe.
        """
        self._memory.confirm(canary)

    def counters(self) -> Counters:
        """What went through so far."""
        return Counters(*Header(self._memory).counts())

    def whole(self) -> int:
        """Pushes up to the first that is damaged; call it once the writer is gone."""
        counts = self.counters()
        if not 0 <= counts.in_flight <= self.slots:
            return counts.popped  # the header itself is damaged
        slots = self._layout.attach(self._memory, PAGE + HEADER_BYTES)
        for number in range(counts.popped, counts.pushed):
            try:
                slots.get([slots.head(number)])
            except ChannelBroken:
                return number
        return counts.pushed

    def share(self) -> tuple[dict[str, Any], list[int]]:
        plain, fds = self._memory.share()
        layout = [self.num_envs, self.time, self.slots]
        about = {"spec": self.spec.to_json(), "layout": layout, "memory": plain}
        return about, [*fds, *(bell.fd for bell in self._bells)]

    @classmethod
    def attach(cls, plain: Mapping[str, Any], fds: Sequence[int]) -> Channel:
        layout = (Spec.from_json(plain["spec"]), *plain["layout"])
        memory, *bells = fds
        return Channel(layout, Memory.attach(plain["memory"], [memory]), *map(EventFd, bells))

    def close(self) -> None:
        """Release the memory in this process; ends that were made keep theirs."""
        self._memory.close()
        self._bells = ()


def _difference(own: Spec, held: Spec) -> str:
    """The first field that differs, if the held spec is at hand: ` (field 'obs': ...)`."""
    mine, theirs = own.columns, held.columns
    for path in sorted({*mine, *theirs}):
        if mine.get(path) != theirs.get(path):
            here, there = (
                "none" if field is None else field.describe()
                for field in (mine.get(path), theirs.get(path))
            )
            return f" (field '{path}': here {here}, there {there})"
    return ""
