"""`ProcessMember`: what actors and learners in processes share: calls, a goal, a heartbeat."""

from __future__ import annotations

import abc
import contextlib
from typing import Any

import jax
import numpy as np

from ..engine.make_agent import make_agent
from ..engine.sequential import rows_of
from ..engine.settings import Settings
from ..engine.stopping import Stopped, heard
from ..rows import Rows
from .heartbeat import Heartbeats, SharedStopwatch
from .wire import Message, Wire, pack, unpack

SLICE_S = 0.2  # seconds that a process waits for others before it looks for messages


class NotYet(Exception):
    """The goal was lowered while waiting for the rows of the next cycle."""


class ProcessMember(abc.ABC):
    """Runs cycles up to a goal, then waits for calls. Subclasses define a cycle by `advance`.

    A call is a message with the name of a method; `run` is answered when the goal is reached.
    """

    def __init__(self, wire: Wire, begin: Message) -> None:
        self.wire = wire
        values = begin.values
        self.settings = Settings.from_json(values["settings"])
        self.index, self.incarnation = int(values["index"]), int(values["incarnation"])
        self.cycle = self.goal = int(values["cycle"])
        self._fds = list(begin.fds)
        board = Heartbeats.attach(values["board"][0], self.take_fds(1))
        self.watch: SharedStopwatch = board.mine(int(values["line"]))
        self.watch.now("working")
        self._run: int | None = None  # the call of `run` that is not answered yet
        self._busy = False  # within a cycle

    def take_fds(self, number: int) -> list[int]:
        """The next of the descriptors that came with the first message."""
        taken, self._fds = self._fds[:number], self._fds[number:]
        return taken

    def run(self) -> None:
        """Work until the parent says stop."""
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
                if self._run is not None:
                    call, self._run = self._run, None
                    self._answer(call, self.where())
                self.watch.now("waiting")
                self.listen(SLICE_S)
                self.watch.now("working")

    @abc.abstractmethod
    def advance(self) -> None:
        """One cycle."""

    def arrived(self) -> None:
        """Publish how far it is."""
        self.watch.reached(self.cycle)

    @abc.abstractmethod
    def where(self) -> tuple[int, Any]:
        """What `run` returns: the cycle, and hashes for the trace."""

    def aim(self, goal: int) -> None:
        """Change the goal."""
        self.goal = goal

    def listen(self, timeout: float) -> None:
        """Handle every message that has arrived, and pass signals on to the parent."""
        self.watch.beat()
        while heard:
            self.wire.send("signal", {"number": heard.pop()})
        while (message := self.wire.receive(timeout)) is not None:
            timeout = 0
            self.take(message)

    def take(self, message: Message) -> None:
        """Handle one message."""
        if message.kind == "stop":
            raise Stopped
        call = int(message.values["call"])
        args = unpack(message.values["args"], message.arrays)
        if message.kind == "run":
            self._run = call
            self.aim(*args)
            return
        starting = self.watch.starting
        if message.kind in ("export", "restore"):
            self.watch.starting = True  # a large state takes as long as starting
            self.watch.now("moving")
        self._answer(call, getattr(self, message.kind)(*args))
        self.watch.starting = starting

    def _answer(self, call: int, answer: Any) -> None:
        plain, arrays = pack(answer)
        self.wire.send("answer", {"call": call, "answer": plain}, arrays)

    @abc.abstractmethod
    def close(self) -> None:
        """Release files, envs and shared memory."""


def params_template(settings: Settings, policies: range) -> Any:
    """Zeros shaped like the parameters of some policies, [policies, ...]."""
    shapes = jax.eval_shape(make_agent(settings).init, jax.random.key(0)).params
    lead = len(policies)
    return jax.tree.map(lambda leaf: np.zeros((lead, *leaf.shape), leaf.dtype), shapes)


def to_block(rows: Rows, policies: range) -> Rows:
    """Rows [time, policies * env] of some policies, out of [time, policies, env] of all.

    In a channel the policies of a learner lie side by side, as if they were more envs.
    """
    mine = rows_of(rows, policies)
    return jax.tree.map(lambda leaf: leaf.reshape(len(leaf), -1, *leaf.shape[3:]), mine)


def from_block(block: Rows, policies: range) -> Rows:
    """The reverse of `to_block`: rows [time, policies, env]."""
    number = len(policies)
    return jax.tree.map(lambda leaf: leaf.reshape(len(leaf), number, -1, *leaf.shape[2:]), block)
