"""`Saved`: what a run left on disk, read back: its agents, the rows of its replay, its parameters.

Nothing of the run is started. `Saved.of(Run.open(path))`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from ..agents import AgentState, Replayed
from ..engine.checkpoint import hash_of, load_tree, named_leaves, within
from ..engine.device_loop import DeviceLoop
from ..engine.keys import Role, key_of
from ..engine.make_agent import make_agent
from ..engine.provenance import stored_spec, traced_spec
from ..errors import BadState, MillpondError
from ..replay import Pond
from ..rows import Rows
from ..train import Run, Settings
from .play import Play

LARGEST = 1 << 30  # bytes of a resume state that are worth loading
_BYTES = 64 << 20  # of the observations that are read back
_TURNS = 400


@dataclass
class Saved:
    """Agents [policies] and, of a run with replay in memory, a ring for each; what is not there
    is None and `why` says why."""

    settings: Settings
    params: Any = None  # [policies], of the resume state or else of the newest checkpoint
    state: AgentState | None = None  # [policies]
    rings: list[Any] = field(default_factory=list)
    why: str = ""
    checkpoints: list[tuple[int, Any]] = field(default_factory=list)  # steps, params

    @staticmethod
    def of(run: Run) -> Saved:
        """Whatever of it can be read; `millpond resume` reports damage."""
        found = Saved(run.settings)
        for one in _spread(run.checkpoints()):
            try:
                found.checkpoints.append((one.steps, load_tree(one.path, found.shape.params)[0]))
            except MillpondError as error:
                found.why = str(error).partition("\n")[0]
        if found.checkpoints:
            found.params = found.checkpoints[-1][1]
        path = run.resume_state
        if not path.exists():
            found.why = "no state was saved yet: let it train for longer (--resume-every)"
        elif path.stat().st_size > LARGEST:
            found.why = f"the saved state has {path.stat().st_size:,} bytes: too large to look at"
        else:
            try:
                found._load(run)
            except (OSError, SafetensorError, KeyError, ValueError, BadState) as error:
                found.why = f"the saved state cannot be read: {str(error).partition(chr(10))[0]}"
        return found

    @cached_property
    def agent(self) -> Any:
        return make_agent(self.settings)

    @cached_property
    def shape(self) -> AgentState:
        """Shapes and dtypes of the agents' states, [policies]."""
        keys = jax.random.split(jax.random.key(0), self.settings.policies)
        return jax.eval_shape(jax.vmap(self.agent.init), keys)

    @cached_property
    def initial(self) -> Any:
        """The parameters that the run began with, made again from its seed."""
        settings = self.settings
        keys = jax.random.split(key_of(settings.seed, Role.PARAMETERS), settings.policies)
        return jax.device_get(jax.jit(jax.vmap(self.agent.init))(keys).params)

    @cached_property
    def pond(self) -> Pond | None:
        """The ring that the run's rows lie in, as a Pond."""
        settings, learns = self.settings, self.settings.learns
        if not isinstance(learns, Replayed) or settings.from_lake:
            return None
        spec = stored_spec(settings) if settings.way == "fused" else traced_spec(settings)
        # Shards keep a ring for each actor: that of the first one is looked at.
        envs = settings.envs // (settings.actors if settings.shards else 1)
        capacity = learns.capacity // settings.envs * envs
        return Pond(spec, capacity, envs, learns.window, settings.sampling)

    @cached_property
    def sample(self) -> Any:
        """`pond.sample(ring, key, batch_size)`, compiled once for all checks."""
        assert self.pond
        return jax.jit(self.pond.sample, static_argnums=2)

    def _load(self, run: Run) -> None:
        if self.settings.way == "fused":
            loop = DeviceLoop(self.settings)
            tree, _ = load_tree(run.resume_state, loop.like())
            self.state = tree.agent
            if self.pond:
                one = self.pond.one
                rings = [one(tree.replay, i) for i in range(self.settings.policies)]
                self.rings = jax.tree.map(jnp.asarray, rings)
        else:
            self._load_learners(run)
        if self.state is None:
            return
        newest = self.checkpoints[-1][1] if self.checkpoints else None
        self.params = self.state.params
        if newest is not None and hash_of(newest) == hash_of(self.params):
            self.params = newest  # one tree: what was found of one is known of the other

    def _load_learners(self, run: Run) -> None:
        agents: list[Any] = []
        with safe_open(run.resume_state, "numpy") as file:
            for policy in range(self.settings.policies):
                begin = f"['learners'][{policy}]["
                names = [name for name in file.keys() if name.startswith(begin)]  # noqa: SIM118
                mine = {ast.literal_eval(n[len(begin) : -1]): file.get_tensor(n) for n in names}
                like = named_leaves(self.shape)
                leaves = [mine[f"agent/{name}"] for name, _ in like]
                agents.append(jax.tree.unflatten(jax.tree.structure(self.shape), leaves))
                if self.pond and self.settings.replay != "lake":
                    ring = within(mine, "replay/0/0/" if self.settings.shards else "replay/")
                    ring.pop("base", None)
                    self.rings.append(self.pond.restore(ring))
        self.state = jax.tree.map(lambda *leaves: np.stack(leaves), *agents)

    @cached_property
    def rows(self) -> Rows | None:
        """The newest rows of every policy's replay, [time, policies, envs], as they were added."""
        if not self.rings or self.pond is None:
            return None
        pond, envs = self.pond, self.pond.streams
        size = int(np.min(np.asarray(self.rings[0].size)))
        each = sum(f.size * f.dtype.itemsize for f in pond.spec.columns.values())
        # Streams that are whole say more than many that are short.
        turns = min(size, _TURNS)
        some = min(envs, max(2, _BYTES // max(1, each * turns * len(self.rings))))
        turns = min(turns, max(32, _BYTES // max(1, each * some * len(self.rings))))
        if turns < 2:
            return None
        found: list[Rows] = []
        for ring in self.rings:
            head = int(np.max(np.asarray(ring.head)))
            position = (head - turns + np.arange(turns)) % pond.length
            stream = np.broadcast_to(np.arange(some), (turns, some))
            at = np.broadcast_to(position[:, None], (turns, some))
            read = pond.read(ring, jnp.asarray(stream), jnp.asarray(at.astype(np.int32)))
            found.append(jax.device_get(read))
        return jax.tree.map(lambda *leaves: np.stack(leaves, 1), *found)

    @cached_property
    def play(self) -> Play | None:
        """The same rows, as checks of an environment read them."""
        if self.rows is None or self.pond is None:
            return None
        return Play.of(self.pond.spec, self.rows, "the replay")


def _spread(checkpoints: list[Any], most: int = 4) -> list[Any]:
    """At most four of them: the first, the last, and some between."""
    if len(checkpoints) <= most:
        return checkpoints
    places = np.unique(np.linspace(0, len(checkpoints) - 1, most).round().astype(int))
    return [checkpoints[place] for place in places]
