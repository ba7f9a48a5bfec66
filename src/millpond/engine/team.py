"""`Team`: how the actors and learners of a run are started, called, waited for and killed.

`SupervisedCrew` does everything else. One team uses processes on this machine, another one Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

CALL_S = 120.0  # seconds after which a call counts as lost


class Gone(Exception):
    """A member was lost: it, or its machine, was killed."""


class Failed(Exception):
    """A member raised an exception: `what`, with its traceback."""

    def __init__(self, what: str, traceback: str) -> None:
        super().__init__(what)
        self.traceback = traceback


class StartPoint(NamedTuple):
    """Where an incarnation of an actor begins: up to there the rows before it are safe."""

    cycles: list[int]  # for each learner
    steps: np.ndarray  # uint32[policies]: env steps up to there


@dataclass(eq=False)
class Member:
    """One actor or learner, in one incarnation."""

    role: str
    index: int
    incarnation: int
    start: StartPoint
    handle: Any  # by which the team knows it
    ready: bool = False  # it has answered a beat
    beats: int = -1  # as last reported
    seen: float | None = None  # when it last made progress, or waited
    starting: bool = True  # or compiling its first steps, which may take as long
    call: Any = None  # a beat that it has not answered yet
    hung: str = ""  # why it was killed, if it hung

    @property
    def name(self) -> str:
        """`actor 0`, `actor 0 (incarnation 2)`."""
        again = f" (incarnation {self.incarnation})" if self.incarnation else ""
        return f"{self.role} {self.index}{again}"


@dataclass(eq=False)
class Server:
    """A shard, or the weights: all incarnations together, as it starts again by itself."""

    role: str
    index: int
    handle: Any
    incarnation: int = 0
    there: bool = False  # its last beat was answered
    seen: float | None = None  # when it last answered
    call: Any = None  # a beat that it has not answered yet
    asked: float = 0.0  # when that was
    failures: int = 0  # losses in a row, without a cycle of the run in between
    cycle: int = -1  # of the run when it was last lost

    @property
    def name(self) -> str:
        """`shard 0`."""
        return f"{self.role} {self.index}"


class Asks(Protocol):
    """What a team may ask of its crew, which watches all members while it waits for answers."""

    def ask(self, role: str, method: str, *args: Any) -> list[Any]:
        """Call a method of all members of a role; one that is lost is replaced and asked again."""
        ...

    def result(self, call: Any) -> Any:
        """What a call returned."""
        ...


class Team(Protocol):
    """Calls methods of members and servers by name.

    Actors have `run`, `pause`, `report`, `export` and `restore`; learners `run`, `aim`, `reach`,
    `report`, `params`, `batch`, `export`, `restore` and `cut`; all have `beat`.
    """

    @property
    def servers(self) -> Sequence[Server]:
        """The servers, which start again by themselves."""
        ...

    def start_actor(self, index: int, incarnation: int, start: StartPoint) -> Any:
        """Start a new incarnation of an actor, whose predecessor is gone; returns its handle."""
        ...

    def start_learner(self, index: int) -> Any:
        """Start a learner; returns its handle."""
        ...

    def about(self, member: Any) -> dict[str, Any]:
        """What to note in `events.jsonl` about a member that was started."""
        ...

    def call(self, member: Any, method: str, *args: Any) -> Any:
        """Start a call; pass what this returns to `wait` and `result`."""
        ...

    def wait(self, calls: Sequence[Any], number: int, timeout: float) -> list[Any]:
        """The calls that have ended, once `number` of them have or the time is up."""
        ...

    def result(self, call: Any) -> Any:
        """What a call returned; raises `Gone` if the member was lost, `Failed` if it raised."""
        ...

    def kill(self, member: Any) -> None:
        """Kill a member."""
        ...

    def restart(self, member: Any) -> None:
        """Kill a server; it starts again."""
        ...

    def progress(self, actor: Member, crew: Asks) -> StartPoint:
        """How far the rows of a lost actor are safe."""
        ...

    def pace(self, crew: Asks) -> dict[str, Any]:
        """Lines for `speed.jsonl` that only this kind of team has."""
        ...
