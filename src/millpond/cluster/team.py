"""`RayTeam`: the actors, shards and learners of a run as Ray actors; `open_loop` is mode `ray`."""

from __future__ import annotations

import contextlib
import importlib
import secrets
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.crew import CrewLoop
from ..engine.environment import child_environment
from ..engine.settings import Settings
from ..engine.supervised_crew import SupervisedCrew
from ..engine.team import CALL_S, Asks, Failed, Gone, Member, Server, StartPoint
from ..errors import RunFailed
from .actor import RayActor
from .learner import RayLearner
from .ray import beside_us, connected, import_ray, passed_on, why_of
from .shards import ShardHost
from .weights import WeightsHost


class RayTeam:
    """A `Team` of Ray actors.

    `hook` names functions to call in actors, learners and shards first: {"shard": "module:name"}.
    """

    def __init__(self, settings: Settings, folder: Path, hook: Mapping[str, str] = {}) -> None:
        self._ray = import_ray()
        self.settings, self.folder, self.hook = settings, folder.absolute(), hook
        self._plain = settings.to_json()
        self._session = secrets.token_hex(8)
        self._everybody: list[Any] = []  # members and servers that were started
        # Learners and shards run on the driver's machine if there is room, actors on all.
        self._near = beside_us(self._ray)
        again = {"max_restarts": -1}  # Ray starts them again
        self.weights = self._make(WeightsHost, len(settings.groups), num_cpus=0.0, **again)
        shard, where = self._hooked(ShardHost, "shard"), (str(self.folder), self._session)
        self.shards = [
            self._make(shard, self._plain, i, *where, **again) for i in range(settings.shards)
        ]
        self.servers = [Server("shard", index, shard) for index, shard in enumerate(self.shards)]
        self.servers.append(Server("weights", 0, self.weights))

    def _make(self, kind: type, *args: Any, **options: Any) -> Any:
        # Other machines cannot use a folder of this one.
        compiled = None if self.settings.address else self.folder / "compiled"
        on_cpu = "num_gpus" not in options
        environment = child_environment(self.settings.crew.threads, on_cpu, compiled)
        usual = {
            "num_cpus": 1.0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": self._near,
            "runtime_env": passed_on(environment),
            "max_concurrency": max(1000, 8 * self.settings.actors),
        }
        made = self._ray.remote(kind).options(**usual | options).remote(*args)
        self._everybody.append(made)
        return made

    def _hooked(self, kind: Any, role: str) -> Any:
        """The class or, if the role has a hook, a subclass that calls it in its process."""
        if not (hook := self.hook.get(role)):
            return kind
        module, _, name = hook.partition(":")

        def begin(self: Any, *args: Any) -> None:
            call = getattr(importlib.import_module(module), name)  # import it first
            kind.__init__(self, *args)
            call(self)

        # A name of its own, as Ray knows classes by their names.
        return type(f"Hooked{kind.__name__}", (kind,), {"__init__": begin})

    def start_actor(self, index: int, incarnation: int, start: StartPoint) -> Any:
        shard = self.shards[index % len(self.shards)]
        begin = (index, incarnation, min(start.cycles), start.steps, shard, self.weights)
        how = {"scheduling_strategy": "SPREAD", "max_concurrency": 4}
        return self._make(self._hooked(RayActor, "actor"), self._plain, *begin, **how)

    def start_learner(self, index: int) -> Any:
        begin = (index, str(self.folder), self.shards, self.weights)
        gpus = self.settings.crew.gpus
        how = {"max_concurrency": 8, **({"num_gpus": gpus} if gpus else {})}
        return self._make(self._hooked(RayLearner, "learner"), self._plain, *begin, **how)

    def about(self, member: Any) -> dict[str, Any]:
        """Nothing: its process may be on another machine."""
        return {}

    def call(self, member: Any, method: str, *args: Any) -> Any:
        return getattr(member, method).remote(*args)

    def wait(self, calls: Sequence[Any], number: int, timeout: float) -> list[Any]:
        if not calls:
            time.sleep(min(timeout, 0.05))
            return []
        ended, _ = self._ray.wait(list(calls), num_returns=number, timeout=timeout)
        return ended

    def result(self, call: Any, timeout: float = CALL_S) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(call, timeout=timeout)
        except errors.RayTaskError as error:
            cause = error.cause if getattr(error, "cause", None) else error
            raise Failed(f"{type(cause).__name__}: {cause}", str(error)) from error
        except errors.ActorDiedError as error:
            text = str(error)
            # A constructor that raised would raise again, so this is a failure, not a loss.
            if "raised in its creation task" in text:
                raise Failed(text.strip().splitlines()[-1], text) from error
            raise Gone(why_of(error)) from error
        except (errors.RayActorError, errors.ObjectLostError) as error:
            raise Gone(why_of(error)) from error
        except errors.GetTimeoutError as error:
            raise Gone(f"no answer within {timeout:g} s") from error

    def kill(self, member: Any) -> None:
        with contextlib.suppress(Exception):  # it is already gone
            self._ray.kill(member, no_restart=True)

    def restart(self, member: Any) -> None:
        """Kill a shard or the weights; Ray starts it again."""
        with contextlib.suppress(Exception):  # it is already gone
            self._ray.kill(member, no_restart=False)

    def progress(self, actor: Member, crew: Asks) -> StartPoint:
        """How far an actor's rows are safe: as its shard says, else as the learners say."""
        deadline = time.monotonic() + self.settings.crew.start_s
        which = actor.index % len(self.shards)
        while True:
            try:
                found = crew.result(self.call(self.shards[which], "progress", actor.index))
                break
            except Gone as error:  # it is coming back
                if time.monotonic() > deadline:
                    raise RunFailed(f"shard {which} of {actor.name} does not come back") from error
                time.sleep(0.1)
        learners = crew.ask("learner", "progress", actor.index)
        cycle, steps = min(one for one, _ in learners), [some for _, some in learners]
        if found is not None and found[0] >= cycle:
            cycle, steps = found[0], [found[1]]
        return StartPoint([int(cycle)] * len(learners), np.concatenate(steps))

    def pace(self, crew: Asks) -> dict[str, Any]:
        """What the shards hold, each and in total; one that is away is left out."""
        shards: list[dict[str, Any]] = []
        for call in [self.call(shard, "stats") for shard in self.shards]:
            try:
                shards.append(crew.result(call))
            except Gone:
                shards.append({})
        names = ("stored", "bytes", "chunks", "rows", "again", "refused", "drawn")
        total = {name: sum(one.get(name, 0) for one in shards) for name in names}
        return {"shards": {"each": [one.get("stored") for one in shards], **total}}

    def close(self) -> None:
        """Kill everybody."""
        for member in reversed(self._everybody):
            self.kill(member)


def members(settings: Settings) -> int:
    """How many CPUs a run asks Ray for: one for each actor, shard and learner."""
    return settings.actors + settings.shards + len(settings.groups)


@contextlib.contextmanager
def open_loop(
    settings: Settings, folder: Path, hook: Mapping[str, str] = {}
) -> Generator[CrewLoop]:
    """Start everything on Ray, and end it when done."""
    learners = len(settings.groups)
    who = f"{settings.actors} actors, {settings.shards} shards and {learners} learners"
    cpus, gpus = members(settings), settings.crew.gpus * learners
    with (
        connected(settings.address, cpus, who, settings.crew.store_mb, gpus),
        contextlib.closing(RayTeam(settings, folder, hook)) as team,
        SupervisedCrew(settings, folder, team) as crew,
    ):
        yield CrewLoop(settings, crew)
