"""`Child`: one process of a run, as its parent sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ChannelClosed
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
        with theirs:
            command = [sys.executable, "-m", "millpond.process.worker"]
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
            )
        self.pidfd = os.pidfd_open(self.process.pid)
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


def child_environment(threads: int, on_cpu: bool, compiled: Path) -> dict[str, str]:
    """What a process is started with: few threads, so that processes do not fight for cores.

    What one process has compiled the next one finds in `compiled`.
    """
    environment = dict(os.environ)
    if "JAX_COMPILATION_CACHE_DIR" not in environment:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(compiled)
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
        environment["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    few = str(threads)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"):
        environment[name] = few
    flags = [environment.get("XLA_FLAGS", "")]
    if threads == 1:
        flags.append("--xla_cpu_multi_thread_eigen=false")
    environment["XLA_FLAGS"] = " ".join(flags).strip()
    environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # Every result is waited for at once: handing the work to another thread would only cost.
    environment["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "false"
    if on_cpu:
        environment["JAX_PLATFORMS"] = "cpu"
    return environment
