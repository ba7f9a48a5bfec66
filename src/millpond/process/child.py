"""`Child`: one process of a run, as its parent sees it; `Call`: what it was asked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.team import Failed, Gone
from ..errors import ChannelClosed
from .signals import held_back
from .wire import Message, Wire, pack, unpack


@dataclass(eq=False)
class Call:
    """A call of a child's method; once it is done there is an answer or an error."""

    child: Child
    method: str
    args: tuple[Any, ...]
    done: bool = False
    answer: Any = None
    error: Gone | Failed | None = None

    def ended(self, answer: Any, error: Gone | Failed | None = None) -> None:
        self.done, self.answer, self.error = True, answer, error


class Child:
    """Starts with its first message on the way: `Child("actor", 0, 0, line, values, fds, env)`."""

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
        self.ends: list[Any] = []  # what it shares with us: channels, then weights
        self.early: list[Call] = []  # to be sent when it is ready
        self.end: Gone | Failed | None = None  # once its last words are read
        self._sent: dict[int, Call] = {}  # that it has not answered
        self._number = 0
        self._failure: Failed | None = None  # what it said of its own end

    def tell(self, kind: str, values: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message that has no answer."""
        with contextlib.suppress(ChannelClosed):  # it was killed: its end will be seen
            self.wire.send(kind, values, fds=fds)

    def send(self, call: Call) -> None:
        """Send a call."""
        self._number += 1
        self._sent[self._number] = call
        args, arrays = pack(call.args)
        with contextlib.suppress(ChannelClosed):  # it was killed: its end will be seen
            self.wire.send(call.method, {"call": self._number, "args": args}, arrays)

    def said(self) -> list[Message]:
        """Every message that has come, less answers; also from one that has died since."""
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
        """It has ended and all it said was read: its calls end too."""
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
        """Close what the parent holds of it."""
        self.wire.close()
        os.close(self.pidfd)
