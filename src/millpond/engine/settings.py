"""`Settings`: everything that determines a run. Frozen, typed, checked when it is made."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..agents import Network, Replayed, Rollouts, agent_names, find_agent
from ..config import check_saved, from_plain, to_plain
from ..envs import Env, action_of, is_real, make_env
from ..envs.registry import FAMILIES
from ..errors import BadConfig, NotInstalled
from ..plugins import origin, short_name
from ..rows import Array
from ..samplers import Prioritized, make_sampler
from ..window import Window


@dataclass(frozen=True)
class CrewSettings:
    """How actors and learners work together, in modes other than `fused`.

    `Settings(env, world, mode="processes", crew=CrewSettings(credits=2))`.
    """

    learners: int = 1  # processes that share the policies; 0: one for each policy
    credits: int = 4  # cycles (mode ray: chunks) that an actor may be ahead of a learner
    trace: bool = False  # keep a hash of every cycle, to compare two runs
    hang_s: float = 60.0  # seconds without progress after which a working process is killed
    start_s: float = 300.0  # seconds that a process may take to start and compile
    failures: int = 3  # consecutive failures of an actor that stop the run
    restarts: int = 1000  # restarts of actors and learners in total before the run stops
    threads: int = 1  # threads per process
    pin: bool = False  # pin each process to its own cores: for a machine with one run only
    lockstep: bool = False  # mode ray: one turn after the other, bit for bit like `sequential`
    chunk: int = 16  # mode ray: most cycles that an actor sends at once
    ship_s: float = 0.2  # mode ray: seconds after which an actor sends what it has
    prefetch: int = 1  # mode ray: packs of rows and batches that a learner fetches ahead
    publish_every: int = 1  # mode ray: updates between two publications of the parameters
    gpus: float = 0.0  # mode ray: GPUs per learner
    store_mb: int = 512  # mode ray: shared memory of a local Ray, in MB

    def __post_init__(self) -> None:
        if self.learners < 0:
            raise BadConfig(f"crew: learners must be 0 or more, got {self.learners}")
        above = ("credits", "hang_s", "start_s", "failures", "threads", "chunk", "ship_s")
        for name in (*above, "prefetch", "publish_every", "store_mb"):
            if getattr(self, name) <= 0:
                raise BadConfig(f"crew: {name} must be above 0, got {getattr(self, name)}")
        if self.gpus < 0:
            raise BadConfig(f"crew: gpus must be 0 or more, got {self.gpus}")
        if self.lockstep and self.publish_every > 1:
            raise BadConfig(
                f"crew: lockstep needs the newest parameters, got publish_every "
                f"{self.publish_every}; leave it at 1"
            )


Mode = Literal["auto", "fused", "sequential", "lockstep", "processes", "ray"]


@dataclass(frozen=True)
class Settings:
    """A run. One env step is one step of one env; `steps` counts them for each policy.

    `members` independent copies (seeds) train side by side in one program. `world` holds the env's
    own settings. Everything that happens `..._every` happens at the first round that reaches it.
    `Settings("staghunt", Staghunt(), "pqn", PQNSettings(rollout=64), steps=500_000)`.
    """

    env: str
    world: Any  # the env itself, which is its settings
    agent: str = "dqn"  # dqn, pqn, a name that a package registers, or package.module:Name
    learning: Any = None  # the agent's own settings; None: its defaults
    steps: int = 200_000  # env steps of every policy
    envs: int = 128  # envs stepped together, per member
    members: int = 1  # independent copies (seeds), trained together
    seed: int = 0  # seed of everything that is random
    stack: int = 1  # observations stacked into a state
    replay: Literal["pond", "host", "lake"] = "pond"  # where rows are kept
    sampler: str = "uniform"  # uniform, stratified, recent, prioritized, or package.module:Name
    sampling: Any = None  # the sampler itself, which is its settings; None: its defaults
    mode: Mode = "auto"  # auto: fused where env and replay run in JAX, else sequential
    actors: int = 1  # actor processes; each has an equal share of the envs (not in mode fused)
    replay_shards: int = 0  # parts of the replay, each for some actors; modes ray and sequential
    address: str = ""  # mode ray: a running cluster, auto or HOST:PORT; else a local Ray starts
    from_lake: str = ""  # learn from this Lake alone; `steps` then counts updates
    lake: str = ""  # learn from this Lake as well as from play
    lake_share: float = 0.5  # share of every minibatch from that Lake, rounded to whole rows
    network: Network = field(default_factory=Network)
    crew: CrewSettings = field(default_factory=CrewSettings)
    log_every: int = 10_000  # steps between two lines in metrics.jsonl
    eval_every: int = 50_000  # steps between two greedy evaluations
    eval_episodes: int = 128  # episodes per evaluation and policy
    eval_turns: int = 10_000  # longest greedy episode; longer ones count with their return so far
    checkpoint_every: int = 100_000  # steps between two checkpoints of the parameters; kept
    resume_every: int = 50_000  # steps between two states to resume from; replaced
    track: Literal["", "tensorboard", "wandb", "mlflow"] = ""  # send the metrics there too
    debug: bool = False  # tiny sizes, no jit, NaN checks: a run within a minute

    def __post_init__(self) -> None:
        ones = ("steps", "envs", "members", "stack", "log_every", "eval_every", "eval_episodes")
        for name in (*ones, "eval_turns", "checkpoint_every", "resume_every"):
            if getattr(self, name) < 1:
                raise BadConfig(f"{name} must be at least 1, got {getattr(self, name)}")
        family = self.env.startswith(tuple(FAMILIES))
        if family and self.world.name != self.env:
            raise BadConfig(
                f"env is {self.env} but world describes {self.world.name}; name that env instead"
            )
        if not 0 <= self.seed < 2**31:
            raise BadConfig(f"seed must lie in [0, 2^31), got {self.seed}")
        if self.steps >= 2**32:
            raise BadConfig(f"steps must be below 2^32 (they are uint32), got {self.steps}")
        self._fill_in()
        self._check_learning()
        self._check_crew()
        if self.ranked and (self.replay == "lake" or self.from_lake):
            raise BadConfig(
                "sampler: a Lake keeps no priorities; use uniform, stratified or recent, or "
                "--replay pond or host"
            )
        self._check_share()
        if self.from_lake and self.policies != 1:
            raise BadConfig(
                f"from_lake: a Lake feeds one policy, this run has {self.policies}; "
                "use an env with one agent and members=1"
            )

    def _fill_in(self) -> None:
        """Fill in the default settings of agent and sampler; refuse those of another kind."""
        kind = find_agent(self.agent).Settings
        if self.learning is None:
            object.__setattr__(self, "learning", kind())
        if not isinstance(self.learning, kind):
            raise BadConfig(
                f"learning: agent {self.agent} takes {kind.__name__}, got "
                f"{type(self.learning).__name__}; give settings of that class, or none"
            )
        plain = make_sampler(self.sampler)
        if self.sampling is None:
            object.__setattr__(self, "sampling", plain)
        if type(self.sampling) is not type(plain):
            raise BadConfig(
                f"sampling: sampler {self.sampler} is a {type(plain).__name__}, got "
                f"{type(self.sampling).__name__}; give one of that class, or none"
            )

    def check_actions(self) -> None:
        """Raise BadConfig unless the agent's actions fit the env."""
        kind, real = find_agent(self.agent), takes_real(self.world)
        if real != kind.continuous:
            fit = [name for name in agent_names() if find_agent(name).continuous == real]
            raise BadConfig(
                f"agent {self.agent}: acts with {_kind(kind.continuous)}, but {self.env} takes "
                f"{_kind(real)}; agents that fit are {', '.join(fit) or 'none of ours'}"
            )

    def _check_learning(self) -> None:
        """Refuse sizes that do not fit together."""
        agent = find_agent(self.agent)
        if self.network.memory and not getattr(agent, "remembers", False):
            self.check_actions()  # if those do not fit, another network would not help
            able = [
                name
                for name in agent_names()
                if getattr(find_agent(name), "remembers", False)
                and find_agent(name).continuous == agent.continuous
            ]
            others = f", or use --agent {' or '.join(able)}" if able else ""
            raise BadConfig(
                f"network.memory: agent {self.agent} learns from single rows and cannot have one, "
                f"got {self.network.memory}; leave it at 0{others}"
            )
        name, learns = self.section, self.learns
        if isinstance(learns, Rollouts) and learns.whole_envs and self.envs % learns.parts:
            raise BadConfig(
                f"{name}: with network.memory all rows of an env are in one minibatch, and "
                f"{self.envs} envs cannot be divided among {learns.parts}; change envs or "
                f"{name}.minibatches"
            )
        if isinstance(learns, Rollouts):
            rows = learns.turns * self.envs
            if rows % learns.parts:
                raise BadConfig(
                    f"{name}: a rollout of {learns.turns} turns x {self.envs} envs = {rows} rows "
                    f"cannot be cut into {learns.parts} equal minibatches; "
                    f"change envs, {name}.rollout or {name}.minibatches"
                )
            if self.from_lake:
                raise BadConfig(f"from_lake: {name} learns from its own play only; use --agent dqn")
        elif learns.capacity % self.envs:
            raise BadConfig(
                f"{name}: capacity {learns.capacity} is not a multiple of {self.envs} envs; "
                f"use {learns.capacity // self.envs * self.envs or self.envs}"
            )

    def _check_share(self) -> None:
        """Refuse a share of a Lake that cannot be drawn."""
        if not self.lake:
            if self.lake_share != 0.5:
                raise BadConfig(
                    f"lake_share: got {self.lake_share}, but no Lake; name one with --lake"
                )
            return
        if self.from_lake:
            raise BadConfig(
                "lake: from_lake learns from a Lake alone; give one of --lake and --from-lake"
            )
        if isinstance(self.learns, Rollouts):
            raise BadConfig(f"lake: {self.section} learns from its own play only; use --agent dqn")
        if self.mode == "ray" or self.replay_shards:
            raise BadConfig(
                "lake: a replay in shards draws whole minibatches; use --mode sequential, "
                "lockstep or processes without replay_shards"
            )
        batch = self.learns.batch
        if not 0 < self.lake_share < 1 or not 0 < self.lake_rows < batch:
            raise BadConfig(
                f"lake_share: {self.lake_share:g} of a batch of {batch} leaves one of the two "
                "without a row; change lake_share, use --from-lake for the Lake alone, or omit "
                "--lake"
            )

    def _check_crew(self) -> None:
        """Refuse combinations of mode, actors and shards that cannot work."""
        if self.replay_shards and self.way not in ("ray", "sequential"):
            raise BadConfig(
                f"replay_shards: mode {self.mode} keeps its replay in one piece, got "
                f"{self.replay_shards}; use --mode ray, or sequential for the same in one process"
            )
        if self.mode != "ray" and (self.address or self.crew.lockstep):
            raise BadConfig(
                f"address, crew.lockstep: settings of mode ray, got mode {self.mode}; use --mode "
                "ray, or --mode lockstep for lockstep without Ray"
            )
        if self.mode == "fused" and not self._fusable:
            raise BadConfig(
                f"mode fused: env, replay and agent must run in JAX, got env {self.env}, replay "
                f"{self.replay}, from_lake {self.from_lake!r}, lake {self.lake!r}; use --mode "
                "sequential, or leave "
                "the mode at auto"
            )
        if self.way == "fused" and self.actors != 1:
            raise BadConfig(
                f"actors: one program acts in mode fused, got {self.actors}; "
                "use --mode processes, lockstep, sequential or ray"
            )
        if self.mode in ("lockstep", "processes", "ray"):
            self._check_apart()
        if self.from_lake and self.actors != 1:
            raise BadConfig(f"from_lake: nobody acts, got {self.actors} actors; leave it at 1")
        if self.actors < 1 or self.envs % self.actors:
            raise BadConfig(
                f"actors: {self.envs} envs cannot be shared equally among {self.actors} actors"
            )
        if not 0 <= self.replay_shards <= self.actors:
            raise BadConfig(
                f"replay_shards: each keeps the rows of one actor or more, so at most "
                f"{self.actors}, got {self.replay_shards}; use fewer shards or more --actors"
            )

    def _check_apart(self) -> None:
        """Refuse what cannot work with actors and learners in separate processes."""
        if isinstance(self.learns, Rollouts):
            raise BadConfig(
                f"mode {self.mode}: {self.section} acts and learns in turn, so there is nothing to "
                "do at the same time; use --agent dqn, or --mode auto"
            )
        if self.members != 1 or self.from_lake:
            raise BadConfig(
                f"mode {self.mode}: needs members=1 and no from_lake, got members={self.members}, "
                f"from_lake={self.from_lake!r}; use --mode auto"
            )

    @property
    def way(self) -> Mode:
        """The mode that `auto` means; any other means itself."""
        if self.mode != "auto":
            return self.mode
        return "fused" if self._fusable else "sequential"

    @property
    def _fusable(self) -> bool:
        """Whether env, replay and agent can run as one program inside jit."""
        return (
            isinstance(self.world, Env)
            and not self.from_lake
            and not self.lake
            and not self.replay_shards
            and (isinstance(self.learns, Rollouts) or self.replay == "pond")
        )

    @property
    def policies(self) -> int:
        """How many policies learn: members x agents of the env."""
        return self.members * self.world.num_agents

    @functools.cached_property
    def groups(self) -> list[range]:
        """The policies of each learner, which learn in one program: fewer learners cost less."""
        number = min(self.policies, self.crew.learners or self.policies)
        edges = [self.policies * i // number for i in range(number + 1)]
        return [range(*pair) for pair in itertools.pairwise(edges)]

    @property
    def shards(self) -> int:
        """Shards of the replay; 0: each learner has its own replay."""
        return max(1, self.replay_shards) if self.mode == "ray" else self.replay_shards

    @property
    def chunk(self) -> int:
        """Most cycles in a chunk: at most half of what the replay holds."""
        cycles = self.replayed.capacity // self.envs // self.replayed.turns
        return 1 if self.crew.lockstep else max(1, min(self.crew.chunk, cycles // 2))

    @property
    def ahead(self) -> int:
        """How many cycles acting parameters may be behind the newest published ones."""
        crew = self.crew
        if self.mode == "processes":
            return crew.credits + 1
        if self.mode != "ray" or crew.lockstep:
            return 0
        # Sent, being acted; fetched, being fetched, being learned; not published yet.
        return (crew.credits + 1 + crew.prefetch + 2 + 1) * self.chunk

    @property
    def names(self) -> dict[str, str]:
        """Fields with another name for users: the agent's settings go by the agent's name."""
        return {"learning": self.section}

    @property
    def section(self) -> str:
        """The name of the agent's own settings, as in `--dqn.gamma`."""
        return short_name(self.agent)

    @functools.cached_property
    def learns(self) -> Replayed | Rollouts:
        """What the agent learns from, and how often."""
        memory = self.network.memory
        return self.learning.learns(self.stack, *([memory] if memory else []))

    @property
    def replayed(self) -> Replayed:
        """`learns`, for an agent that learns from replay."""
        learns = self.learns
        assert isinstance(learns, Replayed)
        return learns

    @property
    def lake_rows(self) -> int:
        """Rows of every minibatch that come from `lake`, rounded to the nearest; halves up."""
        return int(self.replayed.batch * self.lake_share + 0.5) if self.lake else 0

    @property
    def played_rows(self) -> int:
        """Rows of every minibatch that come from the run's own replay."""
        return self.replayed.batch - self.lake_rows

    @property
    def window(self) -> Any:
        """What a sample means in this run: a Window, or a Sequence."""
        return self.learns.window

    @property
    def sight(self) -> Window:
        """The window that stacks observations for acting."""
        return Window(self.stack, pad=self.window.pad)

    @functools.cached_property
    def ranked(self) -> bool:
        """Whether rows are drawn by priority."""
        return isinstance(self.learns, Replayed) and isinstance(self.sampling, Prioritized)

    @property
    def reports(self) -> tuple[str, ...]:
        """Names of the numbers that an update reports."""
        return find_agent(self.agent).reports

    def now(self, steps: Array, policies: Array = 0, xp: Any = np) -> dict[str, Array]:
        """The values of the agent's schedules, by name, after `steps` of each of the policies."""
        schedules: Mapping[str, Any] = self.learning.schedules
        return {
            name: schedule.at(steps, self.steps, policies, xp=xp)
            for name, schedule in schedules.items()
        }

    def parts(self) -> dict[str, dict[str, str]]:
        """The classes of env, agent and sampler, with the versions of their packages."""
        agent = find_agent(self.agent)
        return dict(env=origin(self.world), agent=origin(agent), sampler=origin(self.sampling))

    def check_saved(self) -> None:
        """Raise BadConfig if settings of env, agent or sampler could not be read back."""
        check_saved(self.world, f"env {self.env}")
        check_saved(self.learning, f"agent {self.agent}")
        check_saved(self.sampling, f"sampler {self.sampler}")

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` gives these settings back."""
        plain = to_plain(self)
        plain[self.section] = plain.pop("learning")
        return plain

    @staticmethod
    def from_json(plain: Any) -> Settings:
        """The settings that `to_json` described."""
        if not isinstance(plain, dict):
            raise BadConfig(f"settings: expected a table of settings, got {plain!r}")
        if not isinstance(plain.get("env"), str):
            raise BadConfig(f"setting 'env': expected a name, got {plain.get('env')!r}")
        return settings_from(plain, plain["env"])


def settings_from(plain: Mapping[str, Any], env: str, world: Any = None) -> Settings:
    """Settings from nested tables; that of the agent has the agent's name, such as `dqn`.

    Without `agent` it is the usual one for `world`, or for the env with default settings. Tables of
    other agents are checked and dropped, so that one preset can serve several.
    """
    plain = {"sampler": "uniform", **plain}
    if "agent" not in plain:  # ask only then: some envs must be built to say what they take
        plain["agent"] = usual_agent(world or make_env(env))
    name, sampler = plain["agent"], plain["sampler"]
    agent = find_agent(name) if isinstance(name, str) else None
    if agent is None or not isinstance(sampler, str):
        raise BadConfig(f"settings: agent and sampler are names, got {name!r} and {sampler!r}")
    for other in agent_names():
        if other in plain and short_name(name) != other:
            from_plain(find_agent(other).Settings, plain.pop(other), where=f"{other}.")
    if short_name(name) in plain:
        plain["learning"] = plain.pop(short_name(name))
    parts = dict(env=env, world=make_env(env), learning=agent.Settings())
    parts["sampling"] = make_sampler(sampler)
    try:
        return from_plain(Settings, plain, parts=parts)
    except NotInstalled:
        raise
    except BadConfig as error:
        shown = str(error).replace("'learning", f"'{short_name(name)}")
        raise BadConfig(shown) from error


def usual_agent(world: Any) -> str:
    """The default agent for an env: `usual_agent(make_env("pendulum")) == "sac"`."""
    return "sac" if takes_real(world) else "dqn"


def takes_real(world: Any) -> bool:
    """Whether an env takes real vectors as actions, without building it if it need not be."""
    return hasattr(world, "action") and is_real(action_of(world))


def tiny(settings: Settings) -> Settings:
    """The same run, so small that it ends within a minute even without jit: for `--debug`."""
    few = dict(steps=24, envs=4, log_every=8, eval_every=24, eval_episodes=4, eval_turns=4)
    every = dict(checkpoint_every=24, resume_every=24)
    learning = settings.learning.tiny()
    return dataclasses.replace(settings, **few, **every, learning=learning, debug=True)


def _kind(real: bool) -> str:
    return "real vectors" if real else "one of several actions"
