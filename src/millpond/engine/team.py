"""`Team`: how the actors and learners of a run are started, called, waited for and ended.

`SupervisedCrew` does everything else. Processes of this machine are one team, Ray's another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

CALL_S = 120.0  # a call that takes longer is lost


class Gone(Exception):
    """A member was lost: killed, or its machine was."""


class Failed(Exception):
    """A member raised: what, and its traceback."""

    def __init__(self, what: str, traceback: str) -> None:
        super().__init__(what)
        self.traceback = traceback


class Begun(NamedTuple):
    """Up to where an actor's rows are safe: there its next incarnation begins."""

    cycles: list[int]  # with each learner
    steps: np.ndarray  # env steps of every policy up to there: uint32[policies]


@dataclass(eq=False)
class Member:
    """One actor or learner, in one incarnation."""

    role: str
    index: int
    incarnation: int
    begun: Begun
    handle: Any  # what the team knows it by
    ready: bool = False  # it has answered
    beats: int = -1  # as it said last
    seen: float | None = None  # when it got on last, or waited
    starting: bool = True  # its first steps are compiled: that may take as long as starting
    hung: str = ""  # why it was killed

    @property
    def name(self) -> str:
        """`actor 0`, `actor 0 (incarnation 2)`."""
        again = f" (incarnation {self.incarnation})" if self.incarnation else ""
        return f"{self.role} {self.index}{again}"


@dataclass(eq=False)
class Server:
    """A shard, or the weights, that starts again by itself: all its incarnations together."""

    role: str
    index: int
    handle: Any
    incarnation: int = 0
    there: bool = False  # it answered when it was heard of last
    heard: float | None = None  # when that was
    call: Any = None  # a beat that it has not given yet
    asked: float = 0.0
    failures: int = 0  # in a row, without a cycle of the run in between
    cycle: int = -1  # of the run when it was lost last

    @property
    def name(self) -> str:
        """`shard 0`."""
        return f"{self.role} {self.index}"


class Asks(Protocol):
    """What a team may ask of its crew: answers, with an eye on everybody meanwhile."""

    def ask(self, role: str, method: str, *args: Any) -> list[Any]:
        """Call every member of a role; one that is lost meanwhile is replaced and asked again."""
        ...

    def result(self, call: Any) -> Any:
        """What a call returned."""
        ...


class Team(Protocol):
    """Members are called by the names of their methods, and so are servers.

    Actors have `run`, `pause`, `report`, `export` and `restore`; learners `run`, `aim`, `reach`,
    `report`, `params`, `batch`, `export`, `restore` and `cut`; all have `beat`.
    """

    @property
    def servers(self) -> Sequence[Server]:
        """Those that start again by themselves."""
        ...

    def start_actor(self, index: int, incarnation: int, begun: Begun) -> Any:
        """A new incarnation of an actor; the one before it is gone."""
        ...

    def start_learner(self, index: int) -> Any:
        """A learner."""
        ...

    def about(self, member: Any) -> dict[str, Any]:
        """What is worth noting of a member that was started."""
        ...

    def call(self, member: Any, method: str, *args: Any) -> Any:
        """Begin a call; what it returns is for `wait` and `result`."""
        ...

    def wait(self, calls: Sequence[Any], number: int, timeout: float) -> list[Any]:
        """Those that have ended, once there are `number` of them, or time is up."""
        ...

    def result(self, call: Any) -> Any:
        """What a call returned; `Gone` if the member was lost, `Failed` if it raised."""
        ...

    def kill(self, member: Any) -> None:
        """End a member at once."""
        ...

    def restart(self, member: Any) -> None:
        """End a server at once; it starts again."""
        ...

    def stood(self, actor: Member, crew: Asks) -> Begun:
        """How far the rows of an actor that was lost have come."""
        ...

    def pace(self, crew: Asks) -> dict[str, Any]:
        """What depends on the clock and only this kind of team has."""
        ...
