"""`Settings`: everything that decides how a run goes. Frozen, typed, checked once."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field
from typing import Any, Literal

from ..agents import DQNSettings, Network, PQNSettings
from ..config import from_plain, to_plain
from ..envs import Env, make_env
from ..errors import BadConfig
from ..samplers import Sampler, prioritized, recent, stratified, uniform
from ..window import Window


@dataclass(frozen=True)
class CrewSettings:
    """How actors and learners work together, in modes other than `fused`."""

    learners: int = 1  # among which the policies are shared out; 0: one for each policy
    credits: int = 4  # cycles (mode ray: chunks) that an actor may be ahead of a learner
    trace: bool = False  # keep a hash of every cycle, to compare two runs
    hang_s: float = 60.0  # a process that works and does not get on for so long is killed
    start_s: float = 300.0  # how long a process may take to start and compile
    failures: int = 3  # of an actor, one after another, until the run stops
    restarts: int = 1000  # of actors and learners in all, until the run stops
    threads: int = 1  # of each process
    pin: bool = False  # keep each process on cores of its own: for a machine of one run alone
    lockstep: bool = False  # mode ray: one turn after the other, bit for bit `sequential`
    chunk: int = 16  # mode ray: cycles that an actor ships at once, at most
    ship_s: float = 0.2  # mode ray: an actor ships what it has after so long
    prefetch: int = 1  # mode ray: packs of rows and batches that a learner fetches ahead
    publish_every: int = 1  # mode ray: updates after which a learner gives its actors parameters
    gpus: float = 0.0  # mode ray: GPUs of each learner
    store_mb: int = 512  # mode ray: shared memory of a local Ray

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
                f"crew: lockstep acts with the newest parameters, got publish_every "
                f"{self.publish_every}; leave it at 1"
            )


Mode = Literal["fused", "sequential", "lockstep", "processes", "ray"]


@dataclass(frozen=True)
class Settings:
    """A run. One env step is one step of one env; `steps` counts them for each policy.

    `members` independent copies (seeds) train side by side in one program. `world` holds the env's
    own settings. Everything that happens `..._every` happens at the first round that reaches it.
    `Settings("staghunt", Staghunt(), agent="pqn", steps=500_000)`.
    """

    env: str
    world: Any  # the env itself, which is its settings
    agent: Literal["dqn", "pqn"] = "dqn"  # PQN has no replay
    steps: int = 200_000  # env steps of every policy
    envs: int = 128  # stepped side by side, per member
    members: int = 1  # independent copies, trained side by side
    seed: int = 0  # decides everything that is left to chance
    stack: int = 1  # observations that a state is made of
    replay: Literal["pond", "host", "lake"] = "pond"  # where DQN keeps its rows
    mode: Mode = "fused"  # docs/processes.md tells them apart
    actors: int = 1  # in modes other than fused; each has an equal share of the envs
    replay_shards: int = 0  # parts of the replay, each of some actors; modes ray and sequential
    address: str = ""  # mode ray: a running cluster, auto or HOST:PORT; else a local Ray starts
    from_lake: str = ""  # learn from this Lake alone; `steps` then counts updates
    network: Network = field(default_factory=Network)
    dqn: DQNSettings = field(default_factory=DQNSettings)
    pqn: PQNSettings = field(default_factory=PQNSettings)
    crew: CrewSettings = field(default_factory=CrewSettings)
    log_every: int = 10_000  # steps between two lines in metrics.jsonl
    eval_every: int = 50_000  # steps between two greedy evaluations
    eval_episodes: int = 128  # of one evaluation, for every policy
    eval_turns: int = 10_000  # longest greedy episode; longer ones are counted as they stand
    checkpoint_every: int = 100_000  # steps between two checkpoints of the parameters; kept
    resume_every: int = 50_000  # steps between two states to resume from; replaced
    track: Literal["", "tensorboard", "wandb"] = ""  # send the metrics there too
    debug: bool = False  # tiny sizes, no jit, NaN checks: a run within a minute

    def __post_init__(self) -> None:
        ones = ("steps", "envs", "members", "stack", "log_every", "eval_every", "eval_episodes")
        for name in (*ones, "eval_turns", "checkpoint_every", "resume_every"):
            if getattr(self, name) < 1:
                raise BadConfig(f"{name} must be at least 1, got {getattr(self, name)}")
        if any(mark in self.env for mark in "/:") and self.world.name != self.env:
            raise BadConfig(
                f"env is {self.env} but world describes {self.world.name}; name that env instead"
            )
        if not 0 <= self.seed < 2**31:
            raise BadConfig(f"seed must lie in [0, 2^31), got {self.seed}")
        if self.steps >= 2**32:
            raise BadConfig(f"steps must be below 2^32, which counts them, got {self.steps}")
        if self.agent == "pqn":
            rows = self.pqn.rollout * self.envs
            if rows % self.pqn.minibatches:
                raise BadConfig(
                    f"pqn: a rollout of {self.pqn.rollout} turns x {self.envs} envs = {rows} rows "
                    f"cannot be cut into {self.pqn.minibatches} equal minibatches; "
                    "change envs, pqn.rollout or pqn.minibatches"
                )
            if self.from_lake:
                raise BadConfig("from_lake: PQN learns from its own play only; use --agent dqn")
        elif self.dqn.capacity % self.envs:
            raise BadConfig(
                f"dqn: capacity {self.dqn.capacity} is no multiple of {self.envs} envs; "
                f"use {self.dqn.capacity // self.envs * self.envs or self.envs}"
            )
        self._check_crew()
        from_disk = self.agent == "dqn" and (self.replay == "lake" or self.from_lake)
        if from_disk and self.dqn.sampler == "prioritized":
            raise BadConfig(
                "dqn.sampler: a Lake keeps no priorities; use uniform, stratified or recent, or "
                "--replay pond or host"
            )
        if self.from_lake and self.policies != 1:
            raise BadConfig(
                f"from_lake: a Lake feeds one policy, this run has {self.policies}; "
                "use an env with one agent and members=1"
            )

    def _check_crew(self) -> None:
        """Refuse what actors and learners apart from each other cannot do."""
        if self.replay_shards and self.mode not in ("ray", "sequential"):
            raise BadConfig(
                f"replay_shards: mode {self.mode} keeps its replay in one piece, got "
                f"{self.replay_shards}; use --mode ray, or sequential for the same in one process"
            )
        if self.mode != "ray" and (self.address or self.crew.lockstep):
            raise BadConfig(
                f"address, crew.lockstep: settings of mode ray, got mode {self.mode}; use --mode "
                "ray, or --mode lockstep for lockstep without Ray"
            )
        if self.mode == "fused":
            if self.actors != 1:
                raise BadConfig(
                    f"actors: one program acts in mode fused, got {self.actors}; "
                    "use --mode processes, lockstep, sequential or ray"
                )
            return
        if self.agent != "dqn":
            raise BadConfig(
                f"mode {self.mode}: PQN acts and learns in turn, so there is nothing to do at the "
                "same time; use --agent dqn, or --mode fused"
            )
        if self.members != 1 or self.from_lake:
            raise BadConfig(
                f"mode {self.mode}: needs members=1 and no from_lake, got members={self.members}, "
                f"from_lake={self.from_lake!r}; use --mode fused"
            )
        if self.actors < 1 or self.envs % self.actors:
            raise BadConfig(
                f"actors: {self.envs} envs cannot be shared equally among {self.actors} actors"
            )
        if not 0 <= self.replay_shards <= self.actors:
            raise BadConfig(
                f"replay_shards: each keeps the rows of one actor or more, so at most "
                f"{self.actors}, got {self.replay_shards}; use fewer shards or more --actors"
            )

    @property
    def policies(self) -> int:
        """Policies that learn: members x agents of the env."""
        return self.members * self.world.num_agents

    @property
    def groups(self) -> list[range]:
        """The policies of each learner. They learn in one program: fewer learners cost less."""
        number = min(self.policies, self.crew.learners or self.policies)
        edges = [self.policies * i // number for i in range(number + 1)]
        return [range(*pair) for pair in itertools.pairwise(edges)]

    @property
    def shards(self) -> int:
        """Parts of the replay that stand apart from the learners; 0: each learner has its own."""
        return max(1, self.replay_shards) if self.mode == "ray" else self.replay_shards

    @property
    def chunk(self) -> int:
        """Cycles that an actor ships at once, at most. A longer one would overwrite itself."""
        cycles = self.dqn.capacity // self.envs // self.dqn.update_every
        return 1 if self.crew.lockstep else max(1, min(self.crew.chunk, cycles // 2))

    @property
    def ahead(self) -> int:
        """Cycles by which parameters that act may be behind the learner's newest published ones."""
        crew = self.crew
        if self.mode == "processes":
            return crew.credits + 1
        if self.mode != "ray" or crew.lockstep:
            return 0
        # On their way and being acted; fetched, being fetched, being learned; not published yet.
        return (crew.credits + 1 + crew.prefetch + 2 + 1) * self.chunk

    @property
    def on_device(self) -> bool:
        """Whether env, replay and agent run as one program inside jit."""
        return (
            isinstance(self.world, Env)
            and self.mode == "fused"
            and not self.from_lake
            and (self.agent == "pqn" or self.replay == "pond")
        )

    @property
    def learning(self) -> DQNSettings | PQNSettings:
        """The settings of the agent that is used."""
        return self.dqn if self.agent == "dqn" else self.pqn

    @property
    def window(self) -> Window:
        """What a sample means in this run, and what is acted on."""
        if self.agent == "pqn":
            return Window(self.stack, gamma=self.pqn.gamma)
        dqn = self.dqn
        return Window(self.stack, dqn.n_step, dqn.gamma, reward_clip=dqn.reward_clip)

    @property
    def sampler(self) -> Sampler:
        """Which rows DQN draws. Beta is a schedule by env steps, so the ring's own one is 1."""
        name = self.dqn.sampler
        if name == "prioritized":
            return prioritized(self.dqn.alpha, beta=1.0)
        if name == "recent":
            return recent(self.dqn.half_life)
        return stratified() if name == "stratified" else uniform()

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` gives these settings back."""
        return to_plain(self)

    @staticmethod
    def from_json(plain: Any) -> Settings:
        """The settings that `to_json` described."""
        if not isinstance(plain, dict):
            raise BadConfig(f"settings: expected a table of settings, got {plain!r}")
        if not isinstance(plain.get("env"), str):
            raise BadConfig(f"setting 'env': expected a name, got {plain.get('env')!r}")
        return from_plain(Settings, plain, Settings(plain["env"], make_env(plain["env"])))


def tiny(settings: Settings) -> Settings:
    """The same run so small that it ends within a minute even without jit: for `--debug`."""
    few = dict(steps=24, envs=4, log_every=8, eval_every=24, eval_episodes=4, eval_turns=4)
    rule = dataclasses.replace(settings.dqn.optimizer, accumulate=1)
    dqn = dataclasses.replace(
        settings.dqn, batch=4, min_fill=8, capacity=64, updates=1, update_every=2, optimizer=rule
    )
    pqn = dataclasses.replace(settings.pqn, rollout=2, minibatches=2, epochs=1)
    every = dict(checkpoint_every=24, resume_every=24)
    return dataclasses.replace(settings, **few, **every, dqn=dqn, pqn=pqn, debug=True)
