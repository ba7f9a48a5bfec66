"""`Part`: what actor and learner processes share: messages, a goal, a line on the board."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..engine.make_agent import make_agent
from ..engine.settings import Settings
from .heartbeat import STARTING, WAITING, WORKING, Heartbeats
from .signals import Stopped, heard
from .wire import Message, Wire

SLICE_S = 0.2  # how long a process waits for others before it looks for messages


class NotYet(Exception):
    """The goal was set back while the next cycle's rows were waited for."""


class Part(abc.ABC):
    """Runs cycles up to a goal, then waits for messages. Subclasses say what a cycle is."""

    def __init__(self, wire: Wire, begin: Message) -> None:
        self.wire = wire
        values = begin.values
        self.settings = Settings.from_json(values["settings"])
        self.index, self.incarnation = int(values["index"]), int(values["incarnation"])
        self.cycle = self.goal = int(values["cycle"])
        self._fds = list(begin.fds)
        board = Heartbeats.attach(values["board"], self.take_fds(1))
        self.pencil = board.mine(int(values["line"]))
        self.pencil.now(STARTING, "working")
        self._tell = self._busy = False

    def take_fds(self, number: int) -> list[int]:
        """The next descriptors of those that came with the first message."""
        taken, self._fds = self._fds[:number], self._fds[number:]
        return taken

    def run(self) -> None:
        """Until the parent says stop."""
        while True:
            if self.cycle < self.goal:
                self._busy = True
                with contextlib.suppress(NotYet):
                    self.advance()
                    self.cycle += 1
                    self.arrived()
                self._busy = False
                self.listen(0)
            else:
                if self._tell:
                    self._tell = False
                    self.wire.send("at", self.where())
                self.pencil.now(WAITING, "waiting")
                self.listen(SLICE_S)
                self.pencil.now(WORKING, "working")

    @abc.abstractmethod
    def advance(self) -> None:
        """One cycle."""

    def arrived(self) -> None:
        """Write on the board how far we are."""
        self.pencil.reached(self.cycle)

    def where(self) -> dict[str, Any]:
        """What is told when the goal is reached."""
        return {"cycle": self.cycle}

    def listen(self, timeout: float) -> None:
        """Take every message that has come, and pass on signals."""
        self.pencil.beat()
        while heard:
            self.wire.send("signal", {"number": heard.pop()})
        while (message := self.wire.receive(timeout)) is not None:
            timeout = 0
            self.take(message)

    def take(self, message: Message) -> None:
        """Do what a message asks for."""
        if message.kind == "stop":
            raise Stopped
        if message.kind == "goal":
            self.goal, self._tell = int(message.values["cycle"]), bool(message.values["tell"])
        elif message.kind == "pause":
            # Said at once: a cycle that is under way may need others to go on before it can end.
            self.goal, self._tell = self.cycle + self._busy, False
            self.wire.send("at", {"cycle": self.goal})
        elif message.kind == "report":
            self.wire.send("report", *self.report())
        elif message.kind == "export":
            self.pencil.now(STARTING, "moving")  # a large state takes as long as starting
            self.wire.send("export", {}, self.export())
        elif message.kind == "restore":
            self.pencil.now(STARTING, "moving")
            self.cycle = self.goal = int(message.values["cycle"])
            said = self.restore(message.arrays)
            self.arrived()  # first: once it is said to be restored, its line counts
            self.wire.send("restore", said)
        else:
            raise AssertionError(f"unknown message {message.kind}")

    @abc.abstractmethod
    def report(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What happened since the last report."""

    @abc.abstractmethod
    def export(self) -> dict[str, np.ndarray]:
        """The whole state."""

    @abc.abstractmethod
    def restore(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Go on from an exported state."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of what is held."""


def params_template(settings: Settings, policies: range) -> Any:
    """Shapes of the parameters of some policies, without computing any."""
    shapes = jax.eval_shape(make_agent(settings).init, jax.random.key(0)).params
    lead = len(policies)
    return jax.tree.map(lambda leaf: np.zeros((lead, *leaf.shape), leaf.dtype), shapes)
