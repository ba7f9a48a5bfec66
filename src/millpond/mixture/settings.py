"""`MixSettings`: the settings of a mixture. Frozen, typed, checked once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from ..agents import Network, Replayed, Rollouts, find_agent
from ..config import from_plain, to_plain, with_known
from ..engine.settings import Settings, takes_real
from ..envs import Env, make_env
from ..errors import BadConfig
from ..flow import Choice
from ..plugins import short_name
from ..samplers import Prioritized, make_sampler
from ..schedule import Schedule, constant

Init = Literal["scratch", "previous", "shrink_perturb", "best_agent", "best_or_average"]
BY_SCORE = ("best_agent", "best_or_average")  # need an evaluation before the phase


@dataclass(frozen=True)
class BigSettings:
    """How the BigAgent learns (loss, batch and learning rate are settings of its agent).

    It takes `minibatches_per_1k` minibatches for every thousand frames since the last reset;
    schedules such as its learning rate run over one phase.
    The first share `distill` of a phase's minibatches learns the mean of the agents' values.
    With `anneal` the learning rate at the start of a phase falls over the run, down to 0.
    Init `best_or_average` takes the average of the agents' parameters if that plays better than
    the best agent, else the best agent's.
    `own_fraction` is the share of BigPond's rows that the BigAgent has played itself by the end of
    its phase (transfer live: of all rows).
    """

    minibatches_per_1k: float = 8.0  # minibatches for every thousand frames since the last reset
    capacity: int = 2_048_000  # rows in BigPond, per member
    choice: Choice = "newest"  # rows it takes from the Lake; newest: those since the last reset
    half_life: float = 1e6  # choice recent: rows of a stream after which a row counts half
    init: Init | None = None  # none: best_or_average, or scratch with transfer live
    shrink: float = 0.5  # init shrink_perturb: the old network's share
    distill: float = 0.0  # share of a phase that learns the agents' mean values before returns
    anneal: bool = False  # later phases begin with a lower learning rate
    own_fraction: float | None = None  # share it plays itself; none: 0, or 0.2 with transfer live
    reset_optimizer: bool = True  # begin every phase with a new optimizer
    eval_every: int = 0  # minibatches between evaluations within the phase; 0: none
    plateau: int = 0  # stop after that many evaluations without improvement; 0: never
    keep_best: bool = False  # hand over the parameters with the best evaluation, not the last


@dataclass(frozen=True)
class CloneSettings:
    """How the agents become copies of the BigAgent; their epsilon restarts at its `restart`.

    A BigAgent whose mean return is more than `gate` standard errors below that of its agents is
    refused, and they continue unchanged; with 0 none is refused.
    """

    gate: float = 2.0  # standard errors the BigAgent may be worse than its agents; 0: no limit
    reset_optimizer: bool = True  # give the agents a new optimizer at a reset
    spread: bool = False  # restart levels fall from agent to agent, as in Ape-X


@dataclass(frozen=True)
class LakeSettings:
    """The Lakes that keep the agents' rows: one per member, with a group per agent."""

    capacity: int = 32_000_000  # rows per member; the oldest are dropped first
    envs: int = 0  # envs of each agent whose rows are kept; 0: all
    path: str = ""  # a new folder, perhaps on another disk; default: in the run's folder


@dataclass(frozen=True)
class MixSettings:
    """A mixture: `agents` agents and one BigAgent for each of `members` seeds.

    `frames` counts the emulator frames of one member: those of all its agents and its BigAgent.
    Epsilon decays over one cycle of `updates` updates, the learning rate over an agent's whole
    share of the frames. The agents learn from rollouts, the BigAgent from replay.
    `with_frames(mix_for("minatar/breakout"), 10_000_000)` makes one from a preset.
    """

    env: str
    world: Any  # the env itself, which is its settings
    frames: int = 100_000_000
    agents: int = 4  # agents per member; they share a Lake
    members: int = 1  # independent copies, trained side by side
    seed: int = 0  # seed of everything that is random
    updates: int = 2000  # updates of each agent between two resets
    cycles: int = 16  # at least this many; `updates` is lowered if frames are too few for them
    transfer: Literal["file", "live"] = "file"  # rows go through a Lake, or straight into BigPond
    mode: Literal["fused", "ray"] = "fused"  # all agents in one program, or each on Ray
    address: str = ""  # mode ray: a running cluster, auto or HOST:PORT; default: a local Ray
    envs: int = 32  # envs per agent
    stack: int = 1  # observations stacked into a state
    pond: int = 131_072  # rows in each agent's Pond
    network: Network = field(default_factory=Network)
    agent: str = "pqn"  # an agent that learns from rollouts, or package.module:Name
    learning: Any = None  # the agents' own settings
    big_agent: str = "qlambda"  # an agent that learns from replay, or package.module:Name
    big_learning: Any = None  # the BigAgent's own settings
    sampler: str = "uniform"  # which rows of BigPond the BigAgent draws
    sampling: Any = None  # the sampler itself, which is its settings
    big: BigSettings = field(default_factory=BigSettings)
    clone: CloneSettings = field(default_factory=CloneSettings)
    lake: LakeSettings = field(default_factory=LakeSettings)
    eval_updates: int = 200  # PQN updates between evaluations
    eval_episodes: int = 128  # episodes per evaluation and agent
    eval_turns: int = 10_000  # longest greedy episode; longer ones count with their return so far
    checkpoint_updates: int = 1000  # PQN updates between checkpoints; kept
    resume_updates: int = 1000  # PQN updates between states to resume from; replaced
    track: Literal["", "tensorboard", "wandb", "mlflow"] = ""  # send the metrics there too
    debug: bool = False  # two tiny cycles, done within a minute

    def __post_init__(self) -> None:
        self._fill_in()
        whole = ("frames", "agents", "members", "updates", "cycles", "eval_updates")
        whole = (*whole, "checkpoint_updates", "resume_updates")
        values = {name: getattr(self, name) for name in whole}
        values |= {"lake.capacity": self.lake.capacity}
        for name, value in values.items():
            if value < 1:
                raise BadConfig(f"{name} must be at least 1, got {value}")
        if self.world.num_agents != 1:
            raise BadConfig(
                f"mixture: needs an env with one agent, such as minatar/breakout; {self.env} has "
                f"{self.world.num_agents} agents"
            )
        if takes_real(self.world):
            raise BadConfig(
                f"mixture: needs an env with discrete actions, and {self.env} takes real vectors; "
                "use millpond train with --agent sac or td3"
            )
        if self.network.memory:
            raise BadConfig(
                f"mixture: network.memory must be 0, got {self.network.memory}: the BigAgent "
                "learns from the rows of several agents, and the memory of one means nothing to "
                "another; use --network.memory 0"
            )
        if self.hosted and (self.transfer == "live" or self.own_fraction):
            raise BadConfig(
                f"mixture: {self.env} is stepped on the host, where the BigAgent cannot play in "
                "one program with the agents; leave transfer at file and big.own_fraction at 0"
            )
        if self.mode == "ray" and (self.hosted or self.transfer == "live"):
            what = f"{self.env} is stepped on the host" if self.hosted else "transfer is live"
            raise BadConfig(
                f"mixture: mode ray sends an agent's whole state to its worker and back, which is "
                f"not possible because {what}; use --mode fused"
            )
        if self.address and self.mode != "ray":
            raise BadConfig(
                f"mixture: address is a setting of mode ray, got mode {self.mode}; use --mode ray"
            )
        self._check_values()
        self._check_rings()
        _ = self.playing, self.big_playing  # run their checks now

    def _fill_in(self) -> None:
        """Fill in the settings of agents and sampler that were left out."""
        for part, name in (("learning", self.agent), ("big_learning", self.big_agent)):
            if getattr(self, part) is None:
                object.__setattr__(self, part, find_agent(name).Settings())
        if self.sampling is None:
            object.__setattr__(self, "sampling", make_sampler(self.sampler))
        check_roles(self.agent, self.learning, self.big_agent, self.big_learning)

    def _check_values(self) -> None:
        """Agents and BigAgent hand networks to each other, so values must mean the same to both."""
        agents, big = self.learns, self.big_learns
        pairs = {
            "gamma": (agents.window.gamma, big.window.gamma),
            "reward_clip": (agents.window.reward_clip, big.window.reward_clip),
            "reward_scale": (agents.reward_scale, big.reward_scale),
        }
        first, second = self.names.values()
        for name, (ours, theirs) in pairs.items():
            if ours != theirs:
                raise BadConfig(
                    f"mixture: {first}.{name} is {ours}, {second}.{name} is {theirs}; agents and "
                    "BigAgent share one network, so both must be equal"
                )
        if isinstance(self.sampling, Prioritized):
            raise BadConfig(
                "mixture: sampler prioritized is not supported, because BigPond is refilled in "
                "every cycle; use uniform, stratified or recent"
            )
        ratio, most = self.big.minibatches_per_1k, 2**31  # minibatches are counted in 32 bits
        if not 0 < ratio * self.frames / 1000 < most:
            raise BadConfig(
                f"mixture: big.minibatches_per_1k must be above 0 and give fewer than {most:,} "
                f"minibatches over {self.frames:,} frames, got {ratio}"
            )
        if not 0 <= self.own_fraction < 1 or not 0 <= self.big.shrink <= 1 or self.clone.gate < 0:
            raise BadConfig(
                "mixture: big.own_fraction must lie in [0, 1), big.shrink in [0, 1] and clone.gate "
                f"be 0 or more, got {self.own_fraction}, {self.big.shrink} and {self.clone.gate}"
            )
        if not 0 <= self.big.distill <= 1:
            raise BadConfig(f"mixture: big.distill must lie in [0, 1], got {self.big.distill}")
        if self.big.distill and not hasattr(find_agent(self.big_agent), "imitate"):
            raise BadConfig(
                f"mixture: big.distill needs a BigAgent that can learn the values of other agents, "
                f"and {self.big_agent} has no `imitate`; use --big-agent qlambda, or big.distill 0"
            )
        if (self.big.plateau or self.big.keep_best) and not self.big.eval_every:
            raise BadConfig(
                "mixture: big.plateau and big.keep_best need evaluations within the phase; "
                "set big.eval_every"
            )
        if self.transfer == "live" and (self.big.anneal or self.big.distill):
            raise BadConfig(
                "mixture: big.anneal and big.distill act on phases of the BigAgent, and transfer "
                "live has none; leave them off"
            )
        if self.transfer == "live" and (self.big.eval_every or self.big.init in BY_SCORE):
            raise BadConfig(
                "mixture: transfer live has no phases in which the BigAgent could be evaluated; "
                f"leave big.eval_every at 0, and choose a big.init other than "
                f"{' and '.join(BY_SCORE)}"
            )

    def _check_rings(self) -> None:
        rows = self.rows_per_update
        if self.pond % self.envs or self.pond < rows:
            raise BadConfig(
                f"mixture: pond must be a multiple of {self.envs} envs and hold at least one "
                f"update ({rows} rows), got {self.pond}; use {max(1, self.pond // rows) * rows}"
            )
        if not 0 <= self.lake.envs <= self.envs:
            raise BadConfig(
                f"mixture: lake.envs must lie in [0, {self.envs}], got {self.lake.envs}"
            )
        streams = self.big_streams
        if self.big.capacity % streams:
            near = max(1, round(self.big.capacity / streams)) * streams
            raise BadConfig(
                f"mixture: big.capacity {self.big.capacity} is not a multiple of its {streams} "
                f"streams; use {near}"
            )
        window = self.big_learns.window
        needed = window.before + 1 + window.n_step
        if self.big.capacity // streams < needed:
            raise BadConfig(
                f"mixture: big.capacity {self.big.capacity} keeps {self.big.capacity // streams} "
                f"rows of each of its {streams} streams, but one sample of {self.big_agent} takes "
                f"{needed}; use {needed * streams} or more"
            )
        turns = self.updates * self.learns.turns
        if turns < needed:
            raise BadConfig(
                f"mixture: {self.updates} updates between two resets give {turns} rows of each "
                f"env, but one sample of {self.big_agent} takes {needed}; raise updates (or "
                "frames), or shorten its sequences"
            )

    @property
    def names(self) -> dict[str, str]:
        """Fields that users know by other names: agents' settings carry the agents' names."""
        return section_names(self.agent, self.big_agent)

    @property
    def learns(self) -> Rollouts:
        """What the agents learn from: rollouts of which length, how many minibatches."""
        return self.learning.learns(self.stack)

    @property
    def big_learns(self) -> Replayed:
        """What the BigAgent learns from: which batches, which windows."""
        return self.big_learning.learns(self.stack)

    @property
    def hosted(self) -> bool:
        """Whether the envs are stepped on the host."""
        return not isinstance(self.world, Env)

    @property
    def policies(self) -> int:
        """The number of agents of all members; agent i of member m is policy m * agents + i."""
        return self.members * self.agents

    @property
    def rows_per_update(self) -> int:
        """Rows of one agent between two of its updates."""
        return self.envs * self.learns.turns

    @property
    def minibatches(self) -> int:
        """Minibatches per update of the agents; one BigAgent step takes as many."""
        return self.learns.updates

    @property
    def init(self) -> Init:
        """Which parameters the BigAgent begins a cycle with."""
        return self.big.init or ("scratch" if self.transfer == "live" else "best_or_average")

    @property
    def own_fraction(self) -> float:
        """The share of BigPond that the BigAgent plays itself."""
        default = 0.2 if self.transfer == "live" else 0.0
        return default if self.big.own_fraction is None else self.big.own_fraction

    @property
    def own_envs(self) -> int:
        """The number of envs in which the BigAgent plays; 0: none."""
        if not self.own_fraction:
            return 0
        if self.transfer == "file":
            return self.envs
        others = self.agents * self.envs
        return max(1, round(self.own_fraction / (1 - self.own_fraction) * others))

    @property
    def own_turns(self) -> int:
        """Turns of those envs per BigAgent step (transfer live: as many as a rollout has)."""
        if not self.own_fraction:
            return 0
        if self.transfer == "live":
            return self.learns.turns
        length = self.big.capacity // self.big_streams
        return max(1, round(self.own_fraction * length / self.big_steps))

    @property
    def own_frames(self) -> int:
        """Frames that the BigAgent plays in its phase; 0 with transfer live, which has none."""
        if self.transfer == "live":
            return 0
        return self.big_steps * self.own_turns * self.own_envs * self.world.frames_per_step

    @property
    def big_streams(self) -> int:
        """Streams of BigPond: one for every env with transfer live, else as many as an agent's."""
        if self.transfer == "live":
            return self.agents * self.envs + self.own_envs
        return self.envs

    @property
    def frames_per_update(self) -> int:
        """Frames of one member during one update of its agents, border rows included."""
        return self.agents * self.rows_per_update * self.world.frames_per_step

    @property
    def big_steps(self) -> int:
        """BigAgent steps after a cycle of full length."""
        return self.steps_after(self.updates * self.frames_per_update)

    def steps_after(self, frames: int) -> int:
        """BigAgent steps, of `minibatches` each, for `frames` frames since the last reset."""
        minibatches = self.big.minibatches_per_1k * frames / 1000
        return max(1, round(minibatches / self.minibatches))

    @property
    def epsilon(self) -> Schedule:
        """The agents' epsilon; with `clone.spread` its restart levels fall from agent to agent."""
        epsilon = self.learning.schedules.get("epsilon", constant(0.0))
        if not self.clone.spread:
            return epsilon
        last = max(1, self.agents - 1)
        levels = tuple(0.4 ** (7 * i / last) for i in range(self.agents))
        return dataclasses.replace(epsilon, agents=levels)

    @property
    def playing(self) -> Settings:
        """The agents as `Settings` of a training run, in which each agent is a member."""
        steps = -(-self.frames // (self.agents * self.world.frames_per_step))
        return self._plain(
            agent=self.agent, learning=self.learning, steps=steps, members=self.policies
        )

    @property
    def big_playing(self) -> Settings:
        """The BigAgents as `Settings` of a training run, in which each is a member."""
        envs = self.own_envs or self.envs
        # BigPond is sized by `big.capacity` and `big_streams`; this capacity need only fit `envs`.
        capacity = envs if self.transfer == "live" else self.big.capacity
        learning = with_known(self.big_learning, capacity=capacity, min_fill=1)
        return self._plain(
            agent=self.big_agent,
            learning=learning,
            sampler=self.sampler,
            sampling=self.sampling,
            envs=envs,
            members=self.members,
        )

    @property
    def judged(self) -> Settings:
        """`Settings` for a Referee that plays all agents, then all BigAgents."""
        return dataclasses.replace(self.playing, members=self.policies + self.members)

    def _plain(self, **changes: Any) -> Settings:
        names = ("env", "world", "envs", "seed", "stack", "network")
        names = (*names, "eval_episodes", "eval_turns", "debug")
        changes |= {"replay": "host"} if self.hosted else {}
        return Settings(**{name: getattr(self, name) for name in names} | changes)

    def to_json(self) -> dict[str, Any]:
        """Plain values that `from_json` turns back into these settings."""
        plain = to_plain(self)
        return {self.names.get(name, name): value for name, value in plain.items()}

    @staticmethod
    def from_json(plain: Any) -> MixSettings:
        """The settings that `to_json` turned into plain values."""
        if not isinstance(plain, dict) or not isinstance(plain.get("env"), str):
            raise BadConfig("settings: expected a table of settings that names an env")
        plain = {"agent": "pqn", "big_agent": "qlambda", "sampler": "uniform", **plain}
        names = section_names(plain["agent"], plain["big_agent"])
        fields = {shown: name for name, shown in names.items()}
        parts = dict(env=plain["env"], world=make_env(plain["env"]))
        parts |= dict(learning=find_agent(plain["agent"]).Settings())
        parts |= dict(big_learning=find_agent(plain["big_agent"]).Settings())
        parts |= dict(sampling=make_sampler(plain["sampler"]))
        given: dict[str, Any] = {fields.get(str(k), str(k)): v for k, v in plain.items()}
        return from_plain(MixSettings, given, parts=parts)


def check_roles(agent: str, learning: Any, big_agent: str, big_learning: Any) -> None:
    """BadConfig unless the agents learn from rollouts and the BigAgent from replay."""
    if not isinstance(learning.learns(1), Rollouts):
        raise BadConfig(
            f"mixture: its agents must learn from rollouts, and {agent} does not; use --agent pqn"
        )
    if not isinstance(big_learning.learns(1), Replayed):
        raise BadConfig(
            f"mixture: the BigAgent must learn from replay, and {big_agent} does not; "
            "use --big-agent qlambda"
        )


def section_names(agent: str, big_agent: str) -> dict[str, str]:
    """The names of the two sections of agent settings, which are those of their agents."""
    first, second = short_name(agent), short_name(big_agent)
    return {"learning": first, "big_learning": second if second != first else f"big_{second}"}
