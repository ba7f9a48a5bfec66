"""Mode `ray`: the actors, shards and learners of a run as Ray actors. Only this file knows Ray.

A Ray cluster is a trust boundary: whoever can reach it runs code on every machine of it. So a local
Ray listens on the loopback address alone, has no dashboard, and asks for a token everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import secrets
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadConfig, RunFailed, WeightsBroken
from ..mixture.settings import MixSettings
from ..rows import Batch, Draw
from ..train.crew import CrewLoop
from ..train.environment import child_environment
from ..train.ledger import Judgement
from ..train.settings import Settings
from ..train.shard import Collected, Shard, Stood
from ..train.shard_store import Chunk
from ..train.sharded import shard_folder
from ..train.trace import digest
from .acting import ActorPart
from .crew import ClusterCrew, Failed, Gone
from .learning import LearnerPart
from .spread import SpreadAgents, Worker
from .transport import Lost, Published

_WAIT_S = 0.5  # how long a shard lets a learner wait before it answers that there is nothing
_ORDER_S = 1.0  # how long a chunk waits for the one before it
_CALL_S = 120.0  # what takes longer than this is lost
_ROUND_S = 3600.0  # the same for a round of a mixture's agent, which may take a while
_STORE_MB = 1024  # shared memory of a local Ray for a mixture: all its states and Ponds pass by
_ENVIRONMENT = ("XLA_", "JAX_", "OMP_", "OPENBLAS_", "MKL_", "NPROC")


def import_ray() -> Any:
    """The package `ray`, told to be quiet and careful; BadConfig if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise BadConfig(
            "mode ray: Ray is not installed; pip install 'millpond[ray]', or use --mode processes"
        ) from error


# --- what runs in Ray's processes ----------------------------------------------------------------


class ShardHost:
    """A `Shard` that many call at the same time. One thread serves them all, so nothing is torn."""

    def __init__(self, settings: dict[str, Any], index: int, folder: str, session: str) -> None:
        self.settings = Settings.from_json(settings)
        policies = range(self.settings.policies)
        path = shard_folder(Path(folder), index)
        self.shard = Shard(self.settings, index, policies, path, session)
        self._taken = [0] * len(self.settings.groups)
        self._changed = asyncio.Condition()

    async def append(self, chunk: Chunk) -> Judgement:
        """Store a chunk; the answer comes when every learner has taken it. That is the credit."""
        judge = self.shard.ledger.judge
        with contextlib.suppress(asyncio.TimeoutError):
            # Ray keeps no order among calls: an older chunk may be a moment behind this one.
            async with self._changed, asyncio.timeout(_ORDER_S):
                await self._changed.wait_for(lambda: judge(chunk.id, chunk.oldest) != "gap")
        judgement = self.shard.append(chunk)
        if judgement in ("new", "known"):
            await self._notify()
            async with self._changed:
                await self._changed.wait_for(lambda: min(self._taken) >= chunk.stop)
        return judgement

    async def collect(self, learner: int, first: int, most: int, wait_s: float) -> Collected:
        """At most so many cycles from `first` on, of which there is none if none came in time."""
        await self.took(learner, first)
        with contextlib.suppress(asyncio.TimeoutError):
            async with self._changed, asyncio.timeout(wait_s):
                await self._changed.wait_for(lambda: self.shard.available(first) > 0)
        return self.shard.collect(first, most, self.settings.groups[learner])

    async def took(self, learner: int, first: int) -> None:
        """A learner has all rows before `first`."""
        if first > self._taken[learner]:
            self._taken[learner] = first
            self.shard.take(min(self._taken))
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def draw(self, learner: int, counts: np.ndarray, turn: int) -> Batch:
        """Transitions for a learner's policies."""
        return self.shard.draw(self.settings.groups[learner], counts, turn)

    async def rank(self, learner: int, draw: Draw, errors: np.ndarray) -> None:
        """New priorities of a learner's policies."""
        self.shard.rank(self.settings.groups[learner], draw, errors)

    async def cut(self, actor: int, cycle: int) -> None:
        """An actor goes on anew after `cycle`."""
        self.shard.cut(actor, cycle)

    async def stood(self, actor: int) -> Stood | None:
        """How far an actor's rows go here."""
        return self.shard.stood(actor)

    async def export(self, learner: int) -> list[dict[str, np.ndarray]]:
        """The store of a learner's policies."""
        return self.shard.export(self.settings.groups[learner])

    async def restore(
        self, learner: int, cycle: int, arrays: list[Mapping[str, np.ndarray]]
    ) -> None:
        """Go on from what was exported, at `cycle`."""
        self.shard.began(cycle)
        self._taken = [cycle] * len(self._taken)
        if arrays:
            self.shard.restore(self.settings.groups[learner], arrays)

    async def stats(self) -> dict[str, Any]:
        """What is stored here, and what has come and gone."""
        return {**self.shard.stats(), "pid": os.getpid()}


class WeightsHost:
    """Keeps each learner's newest parameters. Actors of one machine share one copy of them."""

    def __init__(self, learners: int) -> None:
        self._ray = import_ray()
        self._newest: list[tuple[int, Any, int] | None] = [None] * learners

    async def publish(self, learner: int, version: int, params: Any) -> None:
        """Replace a learner's parameters by newer ones."""
        before = self._newest[learner]
        if before is None or version != before[0]:
            # Ours, so that they outlive the learner; a copy, because what came is a view.
            self._newest[learner] = (version, self._ray.put(params), digest(params))

    async def pull(self, have: list[int]) -> list[tuple[int, list[Any], int] | None]:
        """Of every learner version, reference and hash, where they are not those at hand."""
        return [
            (one[0], [one[1]], one[2]) if one is not None and one[0] != mine else None
            for one, mine in zip(self._newest, have, strict=True)
        ]


class ActorHost:
    """An `ActorPart`. `run` keeps one thread busy; others answer meanwhile."""

    def __init__(
        self,
        settings: dict[str, Any],
        index: int,
        incarnation: int,
        cycle: int,
        steps: np.ndarray,
        shard: Any,
        weights: Any,
    ) -> None:
        self.part = ActorPart(
            Settings.from_json(settings),
            index,
            incarnation,
            cycle,
            steps,
            RaySink(shard),
            RayWeights(weights),
        )

    def run(self, goal: int) -> tuple[int, int]:
        """Act until a cycle, or until a pause."""
        return self.part.run(goal)

    def pause(self, timeout: float) -> int:
        """Stop after the cycle that is under way."""
        return self.part.pause(timeout)

    def report(self) -> dict[str, np.ndarray]:
        """Sums since the last report."""
        return self.part.report()

    def export(self) -> dict[str, np.ndarray]:
        """The whole state."""
        return self.part.export()

    def restore(self, cycle: int, arrays: Mapping[str, np.ndarray]) -> bool:
        """Go on from an exported state."""
        return self.part.restore(cycle, _own(arrays))

    def beat(self) -> dict[str, Any]:
        """How it gets on."""
        return _beat(self.part)


class LearnerHost:
    """A `LearnerPart`. `run` keeps one thread busy; others answer meanwhile."""

    def __init__(
        self,
        settings: dict[str, Any],
        index: int,
        folder: str,
        shards: list[Any],
        weights: Any,
    ) -> None:
        self.part = LearnerPart(
            Settings.from_json(settings),
            index,
            Path(folder),
            RaySource(index, shards),
            RayWeights(weights),
        )

    def run(self, goal: int) -> tuple[int, list[dict[str, int]]]:
        """Learn until a cycle."""
        return self.part.run(goal)

    def aim(self, goal: int) -> None:
        """Change the goal of a `run` that is under way."""
        self.part.goal = goal

    def reach(self, cycle: int, timeout: float) -> tuple[int, bool]:
        """Wait for a cycle, at most so long: where it is, and whether a policy is bad."""
        return self.part.reach(cycle, timeout), self.part.learner.bad

    def report(self) -> list[dict[str, Any]]:
        """Of each policy its progress."""
        return self.part.report()

    def params(self) -> Any:
        """The parameters, [policies]."""
        return self.part.params

    def batch(self) -> dict[str, np.ndarray]:
        """The batch of the first bad update."""
        return self.part.batch()

    def stood(self, actor: int) -> tuple[int, np.ndarray]:
        """How far an actor's rows have come."""
        return self.part.stood(actor)

    def export(self) -> list[dict[str, np.ndarray]]:
        """The whole state of each policy."""
        return self.part.export()

    def restore(self, arrays: list[Mapping[str, np.ndarray]]) -> None:
        """Go on from an exported state."""
        self.part.restore([_own(one) for one in arrays])

    def cut(self, actor: int) -> None:
        """An actor's envs begin anew."""
        self.part.cut(actor)

    def beat(self) -> dict[str, Any]:
        """How it gets on."""
        return _beat(self.part)


def _beat(part: ActorPart | LearnerPart) -> dict[str, Any]:
    watch = part.watch
    return {
        "cycle": part.cycle,
        "beats": watch.beats,
        "doing": watch.doing,
        "spent": watch.spent,
        "pid": os.getpid(),
    }


def _own(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copies: what comes from Ray is read-only and pins shared memory."""
    return {name: np.array(array) for name, array in arrays.items()}


# --- Sink, Source and Weights over Ray -----------------------------------------------------------


class RaySink:
    """`Sink`: chunks to one shard."""

    def __init__(self, shard: Any) -> None:
        self._ray, self._shard = import_ray(), shard

    def append(self, chunk: Chunk) -> Any:
        return self._shard.append.remote(chunk)

    def outcome(self, ticket: Any, timeout: float) -> Judgement | None:
        done, _ = self._ray.wait([ticket], timeout=timeout)
        return _get(self._ray, ticket, _CALL_S) if done else None


class RaySource:
    """`Source`: rows and batches from all shards, asked at the same time."""

    def __init__(self, learner: int, shards: Sequence[Any]) -> None:
        self._ray, self._learner, self._shards = import_ray(), learner, shards
        self._loose: list[Any] = []

    def collect(self, first: int, most: int, timeout: float) -> list[Collected] | None:
        self._settle()
        wait_s = min(timeout, _WAIT_S)
        asked = [shard.collect.remote(self._learner, first, most, wait_s) for shard in self._shards]
        found: list[Collected] = [_get(self._ray, one, _CALL_S) for one in asked]
        return found if all(one.cycles for one in found) else None

    def took(self, first: int) -> None:
        for shard in self._shards:
            self._loose.append(shard.took.remote(self._learner, first))

    def draw(self, counts: np.ndarray, turn: int) -> list[Batch]:
        asked = [
            shard.draw.remote(self._learner, counts[:, place], turn)
            for place, shard in enumerate(self._shards)
        ]
        return [_get(self._ray, one, _CALL_S) for one in asked]

    def rank(self, draw: Draw, errors: np.ndarray) -> None:
        self._settle()
        for shard in self._shards:
            self._loose.append(shard.rank.remote(self._learner, draw, errors))

    def _settle(self) -> None:
        """See what became of calls that nobody waited for: at most one round is on its way."""
        before, self._loose = self._loose, []
        for one in before:
            _get(self._ray, one, _CALL_S)

    def cut(self, actor: int, cycle: int) -> None:
        shard = self._shards[actor % len(self._shards)]
        _get(self._ray, shard.cut.remote(actor, cycle), _CALL_S)

    def export(self) -> list[list[dict[str, np.ndarray]]]:
        asked = [shard.export.remote(self._learner) for shard in self._shards]
        return [_get(self._ray, one, _CALL_S) for one in asked]

    def restore(self, cycle: int, parts: Sequence[Sequence[Mapping[str, np.ndarray]]]) -> None:
        asked = [
            shard.restore.remote(self._learner, cycle, list(part))
            for shard, part in zip(self._shards, parts, strict=True)
        ]
        for one in asked:
            _get(self._ray, one, _CALL_S)


class RayWeights:
    """`Weights`: whole, versioned, hashed."""

    def __init__(self, host: Any) -> None:
        self._ray, self._host = import_ray(), host

    def publish(self, learner: int, version: int, params: Any) -> None:
        _get(self._ray, self._host.publish.remote(learner, version, params), _CALL_S)

    def pull(self, have: Sequence[int]) -> list[Published | None]:
        found: list[Published | None] = []
        for one in _get(self._ray, self._host.pull.remote(list(have)), _CALL_S):
            if one is None:
                found.append(None)
                continue
            version, (reference,), wanted = one
            params = _get(self._ray, reference, _CALL_S)
            if digest(params) != wanted:
                raise WeightsBroken(
                    f"weights: version {version} is not what was published; look for faulty "
                    "memory or network between the machines"
                )
            found.append(Published(version, params))
        return found


def _get(ray: Any, reference: Any, timeout: float) -> Any:
    """The result, or `Lost` if whoever should give it is gone; other errors as they are."""
    errors = ray.exceptions
    try:
        return ray.get(reference, timeout=timeout)
    except (errors.RayActorError, errors.ObjectLostError, errors.GetTimeoutError) as error:
        raise Lost(type(error).__name__) from error


# --- the driver ----------------------------------------------------------------------------------


class RayTeam:
    """Starts and ends Ray actors, calls them, and tells how they ended: `Team` of `ClusterCrew`."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._ray = import_ray()
        self.settings, self.folder = settings, folder.absolute()
        self._plain = settings.to_json()
        self._session = secrets.token_hex(8)
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        here = self._ray.get_runtime_context().get_node_id()
        # Learners and shards beside the driver, where there is room; actors everywhere.
        self._near = strategies.NodeAffinitySchedulingStrategy(here, soft=True)
        self.weights = self._make(WeightsHost, len(settings.groups), restarts=True, cpus=0.0)
        self.shards = [
            self._make(ShardHost, self._plain, i, str(self.folder), self._session, restarts=True)
            for i in range(settings.shards)
        ]

    def _make(
        self,
        kind: type,
        *args: Any,
        restarts: bool = False,
        cpus: float = 1.0,
        gpus: float = 0.0,
        spread: bool = False,
        threads: int | None = None,
    ) -> Any:
        # A folder of this machine is of no use to the others.
        compiled = None if self.settings.address else self.folder / "compiled"
        full = child_environment(self.settings.crew.threads, not gpus, compiled)
        chosen = {k: v for k, v in full.items() if k.startswith(_ENVIRONMENT)}
        options: dict[str, Any] = {
            "num_cpus": cpus,
            "max_restarts": -1 if restarts else 0,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD" if spread else self._near,
            "runtime_env": {"env_vars": chosen},
        }
        if gpus:
            options["num_gpus"] = gpus
        options["max_concurrency"] = threads or max(1000, 8 * self.settings.actors)
        return self._ray.remote(kind).options(**options).remote(*args)

    def start_actor(self, index: int, incarnation: int, cycle: int, steps: np.ndarray) -> Any:
        """A new incarnation of an actor."""
        shard = self.shards[index % len(self.shards)]
        begin = (index, incarnation, cycle, steps, shard, self.weights)
        return self._make(ActorHost, self._plain, *begin, spread=True, threads=4)

    def start_learner(self, index: int) -> Any:
        """A learner."""
        begin = (index, str(self.folder), self.shards, self.weights)
        gpus = self.settings.crew.gpus
        return self._make(LearnerHost, self._plain, *begin, gpus=gpus, threads=8)

    def call(self, member: Any, method: str, *args: Any) -> Any:
        """Begin a call; what it returns is for `wait` and `result`."""
        return getattr(member, method).remote(*args)

    def wait(self, calls: Sequence[Any], number: int, timeout: float) -> list[Any]:
        """Those that have ended, once there are so many, or time is up."""
        if not calls:
            time.sleep(min(timeout, 0.05))
            return []
        ended, _ = self._ray.wait(list(calls), num_returns=number, timeout=timeout)
        return ended

    def result(self, call: Any, timeout: float = _CALL_S) -> Any:
        """What a call returned; `Gone` if the member was lost, `Failed` if it raised."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(call, timeout=timeout)
        except errors.RayTaskError as error:
            cause = error.cause if getattr(error, "cause", None) else error
            raise Failed(f"{type(cause).__name__}: {cause}", str(error)) from error
        except errors.ActorDiedError as error:
            text = str(error)
            # A constructor that raised would raise again: that is a failure and no loss.
            if "raised in its creation task" in text:
                raise Failed(text.strip().splitlines()[-1], text) from error
            raise Gone(_why(error)) from error
        except (errors.RayActorError, errors.ObjectLostError) as error:
            raise Gone(_why(error)) from error
        except errors.GetTimeoutError as error:
            raise Gone(f"no answer within {timeout:g} s") from error

    def kill(self, member: Any) -> None:
        """End a member at once."""
        with contextlib.suppress(Exception):  # it is gone already
            self._ray.kill(member, no_restart=True)

    def close(self) -> None:
        """End shards and weights."""
        for member in (*self.shards, self.weights):
            self.kill(member)


def _why(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'gone'}"


def members(settings: Settings) -> int:
    """CPUs that a run asks Ray for: one for each actor, shard and learner."""
    return settings.actors + settings.shards + len(settings.groups)


@contextlib.contextmanager
def connected(address: str, cpus: int, who: str, store_mb: int) -> Generator[Any]:
    """Ray: what this process is connected to already, the cluster at an address, or a local one.

    `who` needs so many CPUs; a cluster with fewer is refused.
    """
    if not address and "ray" not in sys.modules:
        # Ray's own switch for listening on the loopback address alone, on every system.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if not address and not _has_token():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    ray = import_ray()
    if ray.is_initialized():
        _check_room(ray, cpus, who)
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address:
            _warn(address)
            ray.init(address=address, **quiet)
        else:
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=store_mb << 20,
                _node_ip_address="127.0.0.1",
                **quiet,
            )
    except Exception as error:  # of many kinds, by what is wrong with the cluster
        where = address or "a local Ray"
        raise RunFailed(
            f"mode ray: could not connect to {where}: {_why(error)}. Is it running (ray status), "
            "and has this machine its token (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or "
            "~/.ray/auth_token)? docs/cluster.md shows how to start one"
        ) from error
    try:
        _check_room(ray, cpus, who)
        yield ray
    finally:
        ray.shutdown()


def _has_token() -> bool:
    named = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return named or (Path.home() / ".ray" / "auth_token").exists()


def _warn(address: str) -> None:
    print(
        f"mode ray: the cluster at {address} is a trust boundary: whoever has its token and can "
        "reach it runs code on all its machines; keep it on a private network",
        file=sys.stderr,
    )


def _check_room(ray: Any, cpus: int, who: str) -> None:
    there = ray.cluster_resources().get("CPU", 0.0)
    if there < cpus:
        raise BadConfig(
            f"mode ray: {who} need {cpus} CPUs, the cluster has {there:g}; add machines, or use "
            "fewer of them"
        )


@contextlib.contextmanager
def open_loop(settings: Settings, folder: Path) -> Generator[CrewLoop]:
    """Start everything on Ray; it is gone at the end."""
    who = f"{settings.actors} actors, {settings.shards} shards and {len(settings.groups)} learners"
    with (
        connected(settings.address, members(settings), who, settings.crew.store_mb),
        contextlib.closing(RayTeam(settings, folder)) as team,
        ClusterCrew(settings, folder, team) as crew,
    ):
        yield CrewLoop(settings, crew)


# --- the agents of a mixture ---------------------------------------------------------------------


class AgentHost:
    """A `Worker` of a mixture."""

    def __init__(self, settings: dict[str, Any], policy: int) -> None:
        self.worker = Worker(MixSettings.from_json(settings), policy)

    def round(
        self, leaves: list[np.ndarray], updates: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """So many updates from a state; it and the sums afterwards."""
        return self.worker.round(leaves, updates)

    def pid(self) -> int:
        """Its process."""
        return os.getpid()


class RayWorkers:
    """`Workers` that are Ray actors, spread over all machines."""

    def __init__(self, settings: MixSettings) -> None:
        self._ray, self._plain = import_ray(), settings.to_json()
        full = child_environment(1, True, None)
        self._environment = {k: v for k, v in full.items() if k.startswith(_ENVIRONMENT)}
        self.started: dict[int, Any] = {}

    def start(self, policy: int) -> Any:
        """A worker for a policy."""
        if policy in self.started:
            self._end(self.started[policy])
        options = {"num_cpus": 1.0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        environment = {"env_vars": self._environment}
        kind = self._ray.remote(AgentHost).options(**options, runtime_env=environment)
        self.started[policy] = kind.remote(self._plain, policy)
        return self.started[policy]

    def round(self, worker: Any, leaves: list[np.ndarray], updates: int) -> Any:
        """Begin a round."""
        return worker.round.remote(leaves, updates)

    def result(self, call: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The new state's leaves, and the sums'. What the worker raised is raised here."""
        return _get(self._ray, call, _ROUND_S)

    def close(self) -> None:
        """End all workers."""
        for worker in self.started.values():
            self._end(worker)

    def _end(self, worker: Any) -> None:
        with contextlib.suppress(Exception):  # it is gone already
            self._ray.kill(worker, no_restart=True)


def spread(settings: MixSettings) -> SpreadAgents:
    """A mixture's agents on Ray, from the beginning to the end of a sitting."""
    import_ray()

    @contextlib.contextmanager
    def connect() -> Generator[RayWorkers]:
        number = settings.policies
        with (
            connected(settings.address, number, f"{number} agents", _STORE_MB),
            contextlib.closing(RayWorkers(settings)) as workers,
        ):
            yield workers

    return SpreadAgents(settings, connect)
