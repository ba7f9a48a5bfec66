"""`Header`: the words that both ends of a channel share; each word is written by one end only."""

from __future__ import annotations

from ..errors import ChannelBroken
from .memory import PAGE, Canary, Memory
from .slots import Slots

HEADER_BYTES = PAGE
WRITER, READER = 1, 2  # each end's canary word
_BASE = PAGE // 8  # after the canaries
_MAGIC = int.from_bytes(b"pondchn1", "little")
_DESCRIPTION = _BASE  # magic, fingerprint, num_envs, time, slots, stride
# The words of each side lie on cache lines of their own, so that neither slows the other down.
_WRITER, _READER = _BASE + 32, _BASE + 64
_WRITER_WAITS, _READER_WAITS = _BASE + 96, _BASE + 128  # whether it waits now: two writers


class Header:
    """Counters and states of a channel. `writer`: pushes, rows, bytes, waits, closed.

    `reader`: pops, rows, torn, waits, closed. `pushes` is the head, `pops` the tail.
    """

    canary: Canary

    def __init__(self, memory: Memory) -> None:
        self.words = memory.words()
        self.writer = self.words[_WRITER : _WRITER + 5]
        self.reader = self.words[_READER : _READER + 5]
        self.writer_waiting = self.words[_WRITER_WAITS : _WRITER_WAITS + 1]
        self.reader_waiting = self.words[_READER_WAITS : _READER_WAITS + 1]

    def describe(self, layout: Slots) -> None:
        """Write the layout of the channel."""
        for word, value in enumerate(_description(layout), _DESCRIPTION):
            self.words[word] = value

    def check(self, layout: Slots) -> None:
        """Raise ChannelBroken if the memory describes another layout."""
        wanted = _description(layout)
        found = self.words[_DESCRIPTION : _DESCRIPTION + len(wanted)].tolist()
        if found != wanted:
            raise ChannelBroken(
                f"channel: the memory describes {found}, this process expects {wanted} (magic, "
                "spec, envs, time, slots, bytes per slot); create it again with one version"
            )

    def mine(self) -> bool:
        """Whether this is still the newest end of its side."""
        return self.words[self.canary.word] == self.canary.value

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the spec that the channel was made for."""
        return f"{self.words[_DESCRIPTION + 1]:016x}"

    def counts(self) -> tuple[int, int, int, int, int, int, int, int]:
        """In the order of `Counters`. Pops are read first, so they never exceed the pushes."""
        popped, rows_popped, torn, reader_waits, _ = self.reader.tolist()
        pushed, rows_pushed, sent, writer_waits, _ = self.writer.tolist()
        return pushed, popped, rows_pushed, rows_popped, sent, writer_waits, reader_waits, torn


def _description(layout: Slots) -> list[int]:
    sizes = [layout.num_envs, layout.time, layout.count, layout.stride]
    return [_MAGIC, layout.fingerprint, *sizes]
