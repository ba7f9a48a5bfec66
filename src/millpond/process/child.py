"""`Child`: one process of a run, as its parent sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ChannelClosed
from .signals import held_back
from .wire import Message, Wire


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
        with contextlib.suppress(ChannelClosed):  # it was killed as it began: its end will be seen
            self.wire.send(role, {"index": index, "incarnation": incarnation, **values}, fds=fds)
        self.ready = False
        self.failure: Message | None = None  # what it said of its own end
        self.beat, self.seen = -1, time.monotonic()

    @property
    def name(self) -> str:
        """`actor 0`, `actor 0 (incarnation 2)`."""
        again = f" (incarnation {self.incarnation})" if self.incarnation else ""
        return f"{self.role} {self.index}{again}"

    def said(self) -> list[Message]:
        """Every message that has come, also from one that has died since."""
        found: list[Message] = []
        with contextlib.suppress(ChannelClosed):
            while (message := self.wire.receive(0)) is not None:
                found.append(message)
        return found

    @property
    def ended(self) -> bool:
        """Whether it has exited."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(timeout=30)

    def how(self) -> str:
        """How it ended."""
        if self.failure is not None:
            return str(self.failure.values["error"])
        code = self.process.returncode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def forget(self) -> None:
        """Close what the parent holds of it."""
        self.wire.close()
        os.close(self.pidfd)
