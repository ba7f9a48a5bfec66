"""`ChannelWriter`: the end of a channel that pushes rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ChannelClosed, ChannelFull, SpecMismatch
from ..intake import Intake, pack_values
from ..rows import Rows
from .channel_end import ChannelEnd
from .header import Header
from .memory import fence

_PUSHES, _ROWS, _BYTES, _WAITS, _CLOSED = range(5)
_READER_POPS, _READER_CLOSED = 0, 4


class ChannelWriter(ChannelEnd):
    """Pushes rows [env] or [time, env], whole or not at all: `writer.push(rows, timeout=5)`."""

    def __init__(self, header: Header, *end: Any) -> None:
        super().__init__(header, *end)
        self._intake = Intake(self._layout.spec)
        self._pushes = header.writer[_PUSHES]

    def push(self, rows: Rows, timeout: float = 10.0) -> None:
        """Send a copy of rows [env] or [time, env].

        Raises ChannelFull if there is no room within `timeout` seconds, ChannelClosed if no one
        will read it, SpecMismatch if it does not fit; nothing is sent then.
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
        if header.reader[_READER_CLOSED]:
            raise _nobody_reads()
        if not self._has_room():
            if timeout > 0:
                mine[_WAITS] += 1
            if not self._own.wait(self._may_push, timeout, header.writer_waiting, self._alive):
                raise self._no_room(timeout)
            if header.reader[_READER_CLOSED]:
                raise _nobody_reads()
        used = self._slots.put(number, values, flags)
        mine[_ROWS] += flags.size
        mine[_BYTES] += used
        fence()  # the payload is there before it is announced
        self._pushes = mine[_PUSHES] = number + 1
        fence()
        if header.reader_waiting[0]:
            self._other.ring()

    def _has_room(self) -> bool:
        return self._pushes - self._header.reader[_READER_POPS] < self._layout.count

    def _may_push(self) -> bool:
        return self._has_room() or bool(self._header.reader[_READER_CLOSED])

    def _no_room(self, timeout: float) -> ChannelClosed | ChannelFull:
        if self._alive is not None and not self._alive():
            return _nobody_reads()
        return ChannelFull(
            f"push: all {self._layout.count} slots stayed full for {timeout:g} s; nothing was "
            "sent. The reader is slower than the writer: wait longer or slow the writer down"
        )

    def close(self) -> None:
        """Say that no push will follow; what was pushed can still be popped."""
        self._header.writer[_CLOSED] = 1
        fence()
        self._other.ring()


def _nobody_reads() -> ChannelClosed:
    return ChannelClosed("push: the reader has closed or died; nothing was sent")
