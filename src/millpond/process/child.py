"""`Child`: one process of a run, as its parent sees it; `Call`: a call of one of its methods."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.stopping import held_back
from ..engine.team import Failed, Gone
from ..errors import ChannelClosed
from .wire import Message, Wire, pack, unpack


@dataclass(eq=False)
class Call:
    """A call of a child's method; once `done` it has an answer or an error."""

    child: Child
    method: str
    args: tuple[Any, ...]
    done: bool = False
    answer: Any = None
    error: Gone | Failed | None = None

    def ended(self, answer: Any, error: Gone | Failed | None = None) -> None:
        self.done, self.answer, self.error = True, answer, error


class Child:
    """Starts a process and sends it its first message: what it is, and `values`."""

    def __init__(
        self,
        role: str,
        index: int,
        incarnation: int,
        line: int,
        values: Mapping[str, Any],
        fds: Sequence[int],
        environment: Mapping[str, str],
    ) -> None:
        self.role, self.index, self.incarnation, self.line = role, index, incarnation, line
        self.wire, theirs = Wire.pair()
        with theirs, held_back():
            command = [sys.executable, "-m", "millpond.process.worker"]
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
            )
        self.pidfd = os.pidfd_open(self.process.pid)
        self.tell(role, {"index": index, "incarnation": incarnation, **values}, fds)
        self.ready = False
        self.ends: list[Any] = []  # of channels, then of weights, which it shares with us
        self.early: list[Call] = []  # to be sent once it is ready
        self.end: Gone | Failed | None = None  # how it ended, once all its messages were read
        self._sent: dict[int, Call] = {}  # calls that it has not answered
        self._number = 0
        self._failure: Failed | None = None  # the error that ended it, if it reported one

    def tell(self, kind: str, values: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message that needs no answer."""
        with contextlib.suppress(ChannelClosed):  # it was killed, which will be noticed
            self.wire.send(kind, values, fds=fds)

    def send(self, call: Call) -> None:
        """Send a call."""
        self._number += 1
        self._sent[self._number] = call
        args, arrays = pack(call.args)
        with contextlib.suppress(ChannelClosed):  # it was killed, which will be noticed
            self.wire.send(call.method, {"call": self._number, "args": args}, arrays)

    def said(self) -> list[Message]:
        """The messages that have arrived, even if it has died since; answers end their calls."""
        found: list[Message] = []
        with contextlib.suppress(ChannelClosed):
            while (message := self.wire.receive(0)) is not None:
                values = message.values
                if message.kind == "answer":
                    call = self._sent.pop(values["call"])
                    call.ended(unpack(values["answer"], message.arrays))
                elif message.kind == "failed":
                    self._failure = Failed(values["error"], values["traceback"])
                else:
                    found.append(message)
        return found

    @property
    def ended(self) -> bool:
        """Whether it has exited."""
        return self.process.poll() is not None

    def settle(self) -> None:
        """End its calls: it has exited, and all its messages were read."""
        code = self.process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self.end = self._failure or Gone(how)
        for call in (*self.early, *self._sent.values()):
            call.ended(None, self.end)
        self.early, self._sent = [], {}

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(timeout=30)

    def forget(self) -> None:
        """Close the parent's descriptors."""
        self.wire.close()
        os.close(self.pidfd)
