"""`Session`: what the phases of a mixture share: its state, its files and its metrics."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.checkpoint import load_tree, save_tree
from ..engine.episode_stats import Sums
from ..errors import Diverged
from ..lake import Lake
from ..lake.files import Files
from ..metrics import Metrics, make_sink
from ..train.session import Report, cut_file, not_finite, summary
from .drain import open_lakes
from .filling import Filling
from .position import Position
from .programs import MixState, Programs
from .reset import clone, replacements
from .run import MixRun


class Session:
    """One process's work on a mixture, from the saved state to the end or until it is stopped.

    `state` and `position` together are the whole mixture; `save` writes both atomically.
    """

    def __init__(
        self, run: MixRun, report: Report, asked: list[int], programs: Programs, files: Files | None
    ) -> None:
        self.run, self.folder, self.report, self.asked = run, run.folder, report, asked
        self.settings, self.programs = run.settings, programs
        self.lakes: list[Lake] = []
        if not programs.live:
            self.lakes = open_lakes(self.settings, programs.agents.acting.spec, run.lakes, files)
        self.state, self.position, written = self._begin()
        self.fillings: list[Filling] = []  # started at the end of phase agents; never saved
        self.big_pond: Any = None  # exists in phases fill and big; never saved
        track = self.settings.track
        cut_file(self.folder.metrics, written)
        self.metrics = Metrics(
            self.folder.metrics, [make_sink(track, run.path, run.path.name)] if track else []
        )
        self.speed = Metrics(self.folder.speed)
        self.clock = Clock()

    def close(self) -> None:
        """Stop the background threads; close metrics and envs."""
        for filling in self.fillings:
            filling.close()
        self.metrics.close()
        self.speed.close()
        self.programs.agents.close()

    def _begin(self) -> tuple[MixState, Position, int]:
        """The state and position to continue from, and the length of the metrics file then."""
        path = self.folder.resume_state
        about: dict[str, Any] = {"frames": -1, "metrics": 0}
        state, at = None, Position()
        if path.exists():
            tree, about = load_tree(path, self.programs.shapes())
            state, at = jax.tree.map(jnp.asarray, tree), Position.from_json(about["at"])
        for checkpoint in self.folder.checkpoints():
            if checkpoint.steps > about["frames"]:
                checkpoint.path.unlink()  # will be written again, identically
        resumed, state = state is not None, state or self.programs.init()
        agents = self.programs.agents.begin(state.agents, resumed)
        # Envs that start new episodes need a cut in the Lakes.
        self.envs_restarted = resumed and not self.programs.agents.repeats
        return state._replace(agents=agents), at, about["metrics"]

    # --- progress --------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Env steps taken by every agent."""
        return int(np.asarray(self.state.agents.acting.tally.steps).min())

    @property
    def frames(self) -> int:
        """Frames played by each member: by all its agents and its BigAgent."""
        steps = np.asarray(self.state.agents.acting.tally.steps).astype(np.int64)
        total = steps.reshape(self.settings.members, -1).sum(1)
        if self.state.big.acting is not None:
            total = total + np.asarray(self.state.big.acting.tally.steps)
        return int(total.min()) * self.settings.world.frames_per_step

    def fill_of(self, pond: Any) -> float:
        """How full BigPond is, from 0 to 1."""
        return float(pond.size) / self.programs.big.pond.length

    def big_epsilon(self) -> float | None:
        """The BigAgent's epsilon; None if it does not play."""
        acting = self.state.big.acting
        return None if acting is None else float(self.programs.big.acting.epsilon(acting)[0])

    def params(self) -> dict[str, Any]:
        """All parameters: the agents' [policies] and the BigAgents' [members]."""
        return {"agents": self.state.agents.agent.params, "big": self.state.big.agent.params}

    def fills(self, ponds: Any) -> dict[str, float]:
        """How full Ponds and Lakes are, from 0 to 1; a Lake by the rows drained to it so far."""
        settings, pond = self.settings, self.programs.agents.pond
        kept = settings.agents * (settings.lake.envs or settings.envs)
        drained = int(pond.added(ponds)[0]) * kept
        return {
            "pond_fill": float(ponds.size) / pond.length,
            "lake_fill": min(1.0, drained / settings.lake.capacity),
        }

    def replace_diverged(self) -> None:
        """Replace every agent that met NaN or infinity with a copy of a healthy one."""
        agent, agents = self.state.agents.agent, self.settings.agents
        bad = np.asarray(agent.bad) | np.asarray(not_finite(agent.params))
        if not bad.any():
            return
        who = replacements(bad, agents)
        if (who < 0).any():
            member = int(np.argmax(who < 0)) // agents
            self.say("diverged")
            raise Diverged(
                f"all {agents} agents of member {member} diverged in cycle {self.position.cycle}, "
                f"before frame {self.frames:,}: each had a loss, gradient or parameter that is not "
                "finite, so none is left to copy; lower the learning rate, or clip rewards"
            )
        params = jax.tree.map(lambda leaf: leaf[who], agent.params)
        fresh = clone(self.programs.agents.agent, agent, params, jnp.asarray(bad), True)
        self.state = self.state._replace(agents=self.state.agents._replace(agent=fresh))
        self.position = self.position.replace(clones=self.position.clones + int(bad.sum()))
        for policy in np.flatnonzero(bad):
            pair = {"policy": int(policy), "copy_of": int(who[policy])}
            self.write("recloned", {"cycle": self.position.cycle, **pair})

    # --- what is reported and saved --------------------------------------------------------------

    def tell(self, kind: str, values: Mapping[str, Any]) -> None:
        """Report an event to the caller."""
        try:
            self.report({"kind": kind, "steps": self.steps, "frames": self.frames, **values})
        except OSError:  # after SIGHUP the terminal may be gone; the state must still be saved
            if not self.asked:
                raise

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write a line of metrics and report it."""
        self.metrics.write(kind, self.steps, self.frames, values)
        self.tell(kind, values)

    def log(self, sums: Sums, more: Mapping[str, Any]) -> None:
        """Write the `train` line of a round of the agents."""
        agents = self.programs.agents
        line = {"cycle": self.position.cycle, **summary(sums, agents.agent.reports)}
        for name, value in jax.device_get(agents.acting.now(self.state.agents.acting)).items():
            line[name] = value.tolist() if name == "epsilon" else float(value.mean())
        line["updates"] = int(np.asarray(self.state.agents.agent.updates)[0])
        line["big_updates"] = int(self.state.big.taken)
        self.write("train", line | dict(more))
        self.speed.write("phase", self.steps, self.frames, self.clock.line())

    def evaluate(self, when: str, better: np.ndarray | None = None) -> np.ndarray:
        """Evaluate agents and BigAgents greedily; returns the agents' means [members, agents].

        `better`, bool[members], says whose BigAgent beat its agents in other episodes; the score
        of a member is its BigAgent's there, else its agents' mean.
        """
        with self.clock.of("evaluate"):
            agents, big = self.programs.scores(self.programs.referee, self.state)
        self.position = self.position.judge(agents.mean(1).tolist(), self.frames)
        line = {
            "cycle": self.position.cycle,
            "when": when,
            "return": float(agents.mean()),
            "returns": agents.tolist(),
            "big_return": float(big.mean()),
            "big": big.tolist(),
            "episodes": self.settings.eval_episodes,
        }
        if better is not None:
            line["chosen"] = ["big" if one else "agents" for one in better]
            line["scores"] = np.where(better, big, agents.mean(1)).tolist()
        self.write("eval", line)
        return agents

    def checkpoint(self) -> None:
        """Save the parameters of all agents and BigAgents; checkpoints are kept."""
        path = self.folder.checkpoint_path(self.frames)
        about = {"frames": self.frames, "cycle": self.position.cycle, "env": self.settings.env}
        with self.clock.of("save"):
            save_tree(path, jax.device_get(self.params()), about)
        self.tell("checkpoint", {"path": str(path)})

    def save(self, at: Position | None = None) -> None:
        """Replace the state that a resume continues from; `at` is the new position, if any."""
        self.position = at or self.position
        with self.clock.of("save"):
            about = {
                "frames": self.frames,
                "steps": self.steps,
                "at": self.position.to_json(),
                "metrics": self.metrics.position(),
            }
            save_tree(self.folder.resume_state, jax.device_get(self.state), about)
        self.say("running")
        self.tell("saved", {"phase": self.position.phase})

    def say(self, state: str) -> None:
        """Write the run's status; a mixture's progress is counted in frames."""
        self.folder.say(state, self.frames)

    def stop_if_asked(self) -> None:
        """Stop if a signal asked for it; call this only when the state is saved."""
        if self.asked:
            self.say("stopped")
            raise KeyboardInterrupt


class Clock:
    """Seconds spent in each phase of this session; nested phases are not counted twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = time.perf_counter()

    @contextmanager
    def of(self, name: str) -> Generator[None]:
        """Count the time of the block as this phase's."""
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def line(self) -> dict[str, Any]:
        """Total seconds, and each phase's share of them."""
        self._turn()
        total = sum(self.seconds.values()) or 1.0
        shares = {name: took / total for name, took in self.seconds.items()}
        return {"seconds": total, "share": shares}

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
