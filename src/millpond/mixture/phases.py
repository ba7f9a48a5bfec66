"""`mix(run)`: run the phases of a mixture, one after the other, to the last frame.

agents -> (drain) -> fill -> big -> clone -> agents -> ... -> fill -> big -> done

The state is saved during and after `agents`, after `big` and after `clone`. A mixture killed at any
point continues from the latest state; on a CPU it ends bit for bit as if it had never been killed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from typing import Any

import jax
import numpy as np

from ..engine.checkpoint import hash_of
from ..engine.stopping import stop_asked
from ..errors import LakeFull, Paused
from ..lake.files import Files
from ..replay import PondState
from ..run_folder import shell_word
from ..train.session import Report, not_finite
from .best import Best
from .drain import MixDrain
from .filling import Filling
from .position import Position
from .programs import MixState, Programs
from .reset import by_member, candidates, passes_gate
from .run import MixRun
from .session import Session
from .settings import BY_SCORE

FILLINGS = 4  # members whose BigPonds are filled at the same time


def mix(
    run: MixRun,
    report: Report = lambda line: None,
    programs: Programs | None = None,
    files: Files | None = None,
) -> str:
    """Run a mixture from its start or saved state to its end; returns the hash of all parameters.

    On Ctrl-C, SIGTERM or SIGHUP it saves its state and raises KeyboardInterrupt; a full disk raises
    Paused. Pass the `programs` of an earlier call with the same settings to save compiling again.
    `mix(MixRun.create(Path("runs/mixture"), settings), report=print)`.
    """
    run.folder.check_parts()
    lock = run.folder.lock()
    try:
        with stop_asked() as asked, _paused(run):
            session = _Session(run, report, asked, programs or Programs(run.settings), files)
            with contextlib.closing(session):
                return session.go()
    except (Exception, SystemExit) as error:
        run.folder.gave_up(error)
        raise
    finally:
        os.close(lock)


class _Session(Session):
    """The phases; what they share, from state to metrics, is in `Session`."""

    def go(self) -> str:
        """Run from the current position to the end."""
        phases: dict[str, Callable[[], None]] = {
            "agents": self._live if self.programs.live else self._agents,
            "fill": self._fill,
            "big": self._big,
            "clone": self._clone,
        }
        self.say("running")
        while self.position.phase != "done":
            phase = self.position.phase
            self.tell("phase", {"phase": phase, "cycle": self.position.cycle})
            with self.clock.of(phase):
                phases[phase]()
            self.speed.write("phase", self.steps, self.frames, self.clock.line())
            if self.position.phase not in ("big", "done"):  # else the state was saved just now
                self.stop_if_asked()
        self.say("finished")
        return hash_of(self.params())

    # --- agents learn and drain ------------------------------------------------------------------

    def _agents(self) -> None:
        agents = self.programs.agents
        done = int(agents.pond.added(self.state.agents.ponds)[0])
        with MixDrain(self.settings, agents.pond, self.lakes, done, agents.repeats) as drain:
            if self.envs_restarted:
                drain.cut()
                self.envs_restarted = False
            while not self._cycle_over():
                before = self.position.updates
                some = self._round_updates(agents.pond.length // self.settings.learns.turns)
                state, sums = agents.round(self.state.agents, some)
                self.state = self.state._replace(agents=state)
                self.position = self.position.replace(updates=before + some)
                drain(state.ponds)
                self.replace_diverged()
                self.log(sums, self.fills(state.ponds))
                self._do_what_is_due(before, lambda: drain.finish(sync=True))
        for lake in self.lakes:
            lake.refresh()
        self._begin_filling()  # continues while the agents are evaluated
        self._end_of_agents("fill")

    def _live(self) -> None:
        """Phase agents of transfer live: the BigAgent learns at the same time as the agents."""
        live_loop = self.programs.live_loop
        assert live_loop
        while not self._cycle_over():
            before, state = self.position.updates, self.state
            some = self._round_updates(16)
            played = live_loop.round(state.agents, state.big, state.pond, some)
            (agents, big, pond), (sums, found) = played[:3], played[3:]
            self.state = MixState(agents, big, pond)
            self.position = self.position.replace(updates=before + some)
            self.replace_diverged()
            due = (before + some) // live_loop.every - before // live_loop.every
            learned = {f"big_{name}": one for name, one in self.programs.big.numbers(found).items()}
            means = {name: (value / max(1, due)).tolist() for name, value in learned.items()}
            self.log(sums, means | {"big_pond_fill": self.fill_of(self.state.pond)})
            self._do_what_is_due(before, lambda: None)
        self._end_of_agents("clone")

    def _cycle_over(self) -> bool:
        """Whether a reset is due (unless less than half a cycle is left), or no frames are left."""
        settings, left = self.settings, self.settings.frames - self.frames
        cycle = settings.updates * settings.frames_per_update
        enough = 2 * (left - settings.own_frames) >= cycle
        return left <= 0 or (self.position.updates >= settings.updates and enough)

    def _round_updates(self, most: int) -> int:
        """Updates of the next round: `most`, or fewer if something is due before."""
        settings, done = self.settings, self.position.updates
        left = -(-(settings.frames - self.frames) // settings.frames_per_update)
        every = (settings.eval_updates, settings.checkpoint_updates, settings.resume_updates)
        due = [step - done % step for step in every]
        cycle = settings.updates - done
        return max(1, min(most, left, *due, cycle if cycle > 0 else most))

    def _do_what_is_due(self, before: int, drained: Callable[[], None]) -> None:
        """Evaluate, checkpoint and save between two rounds, as far as each is due."""
        settings, now = self.settings, self.position.updates

        def passed(every: int) -> bool:
            return before // every < now // every

        over = self._cycle_over()
        if passed(settings.eval_updates) and not over:
            self.evaluate("agents")
        if passed(settings.checkpoint_updates) and not over:
            self.checkpoint()
        if (passed(settings.resume_updates) and not over) or self.asked:
            drained()
            self.save()
        self.stop_if_asked()

    def _end_of_agents(self, phase: Any) -> None:
        scores = self.evaluate("before")
        self.checkpoint()
        if self.position.target:
            took = [None if frames < 0 else frames for frames in self.position.recovered]
            self.write("recovery", {"cycle": self.position.cycle, "frames_to_recovery": took})
        chosen: tuple[int, ...] = ()
        if self.settings.init in BY_SCORE:
            chosen = self._chosen()
        last = self.frames >= self.settings.frames
        before = tuple(float(mean) for mean in scores.mean(1))
        self.save(self.position.replace(phase=phase, last=last, chosen=chosen, before=before))

    def _candidates(self) -> Any:
        return candidates(self.state.agents.agent.params, self.settings.agents)

    def _chosen(self) -> tuple[int, ...]:
        """Which candidate each member's BigAgent begins as, by greedy return."""
        state = self.state
        if self.settings.init == "best_or_average":  # the average plays in the BigAgent's place
            average = jax.tree.map(lambda leaf: leaf[:, -1], self._candidates())
            agent = state.big.agent._replace(params=average)
            state = state._replace(big=state.big._replace(agent=agent))
        agents, other = self.programs.scores(self.programs.chooser, state)
        if self.settings.init == "best_or_average":
            agents = np.column_stack([agents, other])
        return tuple(int(best) for best in agents.argmax(1))

    # --- the BigAgent ---------------------------------------------------------------------------

    def _begin_filling(self) -> None:
        """Start gathering every member's BigPond from its Lake, in background threads."""
        settings, pond, cycle = self.settings, self.programs.big.pond, self.position.cycle
        since = self.position.rows or (0,) * settings.members
        self.fillings = [
            Filling(lake, pond, settings.big, (settings.seed * 1000 + member) * 1000 + cycle, first)
            for member, (lake, first) in enumerate(zip(self.lakes, since, strict=True))
        ]
        for filling in self.fillings[:FILLINGS]:
            filling.start()

    def _fill(self) -> None:
        """Fill the BigPonds from the Lakes, several members at the same time."""
        settings, big = self.settings, self.programs.big
        if not self.fillings:  # resumed in this phase
            self._begin_filling()
        ponds: list[PondState] = []
        for number, filling in enumerate(self.fillings):
            ponds.append(filling())
            if number + FILLINGS < len(self.fillings):
                self.fillings[number + FILLINGS].start()
        self.fillings = []
        self.big_pond = big.stack_ponds(ponds)
        rows = len(self.lakes[0])
        values = {
            "chosen": list(self.position.chosen),
            "lake_rows": rows,
            "lake_fill": rows / settings.lake.capacity,
            "big_pond_fill": self.fill_of(self.big_pond),
        }
        self.write("fill", {"cycle": self.position.cycle, **values})
        best = self.state.big.agent.params
        if self.position.chosen:
            which = np.arange(settings.members), np.array(self.position.chosen)
            best = jax.tree.map(lambda leaf: leaf[which], self._candidates())
        begun = big.begin(self.state.big, self.position.cycle, best, self._steps())
        self.state = self.state._replace(big=begun)
        self.position = self.position.replace(phase="big")

    def _steps(self) -> int:
        """BigAgent steps of this phase, by the frames since the latest reset."""
        return self.settings.steps_after(self.frames - self.position.since)

    def _big(self) -> None:
        settings, big, steps = self.settings, self.programs.big, self._steps()
        filled = float(self.big_pond.size) * big.pond.streams
        best, taken = Best(), 0
        share = 1.0 - self.position.since / settings.frames if settings.big.anneal else 1.0
        found: Any = None
        every = max(1, settings.big.eval_every // settings.minibatches)
        distilled = round(settings.big.distill * steps)
        while taken < steps:
            first = taken < distilled
            teachers = by_member(self.state.agents.agent.params, settings.agents) if first else None
            some = (distilled if first else steps) - taken
            if settings.big.eval_every:
                some = min(every, some)
            state, self.big_pond, found = big.round(
                self.state.big, self.big_pond, some, share, teachers
            )
            taken += some
            state = big.reset_optimizer(state) if first and taken == distilled else state
            self.state = self.state._replace(big=state)
            if settings.big.eval_every:
                _, scores = self.programs.scores(self.programs.chooser, self.state)
                best.take(scores, self.state.big.agent.params)
                minibatches = taken * settings.minibatches
                line = {
                    "cycle": self.position.cycle,
                    "minibatches": minibatches,
                    "big": scores.tolist(),
                }
                self.write("big_eval", line)
                if settings.big.plateau and best.age >= settings.big.plateau:
                    break
        if settings.big.keep_best:
            agent = self.state.big.agent._replace(params=best.params, target=best.params)
            self.state = self.state._replace(big=self.state.big._replace(agent=agent))
        sampled = taken * settings.minibatches * settings.big_learns.rows(settings.envs)
        own = taken * settings.own_turns * settings.own_envs
        self.write(
            "big",
            {
                "cycle": self.position.cycle,
                "minibatches": taken * settings.minibatches,
                "distilled": min(taken, distilled) * settings.minibatches,
                "samples_per_row": sampled / max(1.0, filled),
                "rate_share": share,
                "own_share": min(1.0, own / (self.fill_of(self.big_pond) * settings.big.capacity)),
                "epsilon": self.big_epsilon(),
                **{name: one.tolist() for name, one in big.numbers(found).items()},
                "diverged": np.asarray(self.state.big.agent.bad).tolist(),
            },
        )
        self.big_pond = None
        self.save(self.position.replace(phase="clone"))

    # --- the agents become the BigAgent ---------------------------------------------------------

    def _clone(self) -> None:
        settings, state, now = self.settings, self.state, self.position
        ponds = state.pond if self.programs.live else state.agents.ponds
        ours, theirs = state.agents.agent.params, state.big.agent.params
        seen = self.programs.measures(ours, theirs, ponds, now.cycle)
        self.write("measure", {"cycle": now.cycle, **seen})
        self.checkpoint()  # now, since cloning overwrites the agents
        agents, big = self.programs.episodes(self.programs.chooser, state)
        if now.last:
            self.evaluate("final", big.mean(1) > agents.mean((1, 2)))
            self.save(now.replace(phase="done"))
            return
        good = ~(np.asarray(state.big.agent.bad) | np.asarray(not_finite(theirs)))
        good &= passes_gate(big, agents, settings.clone.gate)
        self.state = self.programs.clone(state, good)
        if self.programs.live:
            begun = self.programs.big.begin(
                self.state.big, now.cycle + 1, theirs, settings.big_steps
            )
            self.state = self.state._replace(big=begun)
        self.position = Position(
            cycle=now.cycle + 1,
            since=self.frames,
            rows=tuple(min((s.stop for s in lake.streams), default=0) for lake in self.lakes),
            target=now.before,
            recovered=(-1,) * settings.members,
            clones=now.clones,
        )
        line = {"cycle": now.cycle + 1, "cloned": good.tolist(), "target": list(now.before)}
        means = {"chooser": agents.mean((1, 2)).tolist(), "chooser_big": big.mean(1).tolist()}
        self.write("reset", line | means)
        self.evaluate("after")
        self.save()


@contextlib.contextmanager
def _paused(run: MixRun) -> Generator[None]:
    """Turn a full disk into `Paused`, whose message says how to continue."""
    try:
        yield
    except LakeFull as error:
        with contextlib.suppress(Exception):  # there may be no room for this either
            run.folder.say("paused", run.folder.status()["steps"])
        raise Paused(
            f"{run.path} paused: {error}. Nothing that was saved is lost: free some space, then "
            f"run millpond resume {shell_word(run.path)}"
        ) from error
