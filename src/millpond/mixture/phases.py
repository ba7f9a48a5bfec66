"""`mix(run)`: the phases of a mixture, one after the other, to the last frame.

agents -> (drain) -> fill -> big -> clone -> agents -> ... -> fill -> big -> done

A state is saved within and after `agents`, after `big` and after `clone`. Killed anywhere, a
mixture continues from the latest one; on a CPU its end is bit for bit that of an uninterrupted one.
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
from ..run_folder import word
from ..train.session import Report, not_finite
from .best import Best
from .drain import MixDrain
from .filling import Filling
from .position import Position
from .programs import MixState, Programs
from .reset import by_member, candidates, passes
from .run import MixRun
from .session import Session
from .settings import BY_SCORE

FILLINGS = 4  # members whose BigPonds are gathered at the same time


def mix(
    run: MixRun,
    report: Report = lambda line: None,
    programs: Programs | None = None,
    files: Files | None = None,
) -> str:
    """Run from the start or the saved state to the end; returns the hash of all parameters.

    Stopped by Ctrl-C, SIGTERM or SIGHUP it saves its state and raises KeyboardInterrupt; a full
    disk raises Paused. `programs` of an earlier session of the same settings need not be
    compiled again.
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
    """The phases. What they share, from state to metrics, is a `Session`'s."""

    def go(self) -> str:
        """From where the mixture stands to its end."""
        phases: dict[str, Callable[[], None]] = {
            "agents": self._live if self.programs.live else self._agents,
            "fill": self._fill,
            "big": self._big,
            "clone": self._clone,
        }
        self.say("running")
        while self.at.phase != "done":
            phase = self.at.phase
            self.tell("phase", {"phase": phase, "cycle": self.at.cycle})
            with self.clock.of(phase):
                phases[phase]()
            self.speed.write("phase", self.steps, self.frames, self.clock.line())
            if self.at.phase not in ("big", "done"):  # in all others a state was saved just now
                self.stop_if_asked()
        self.say("finished")
        return hash_of(self.params())

    # --- agents learn and drain ------------------------------------------------------------------

    def _agents(self) -> None:
        agents = self.programs.agents
        done = int(agents.pond.added(self.state.agents.ponds)[0])
        with MixDrain(self.settings, agents.pond, self.lakes, done, agents.repeats) as drain:
            if self.anew:
                drain.cut()
                self.anew = False
            while not self._cycle_over():
                before = self.at.updates
                some = self._some_updates(agents.pond.length // self.settings.learns.turns)
                state, sums = agents.round(self.state.agents, some)
                self.state = self.state._replace(agents=state)
                self.at = self.at.at(updates=before + some)
                drain(state.ponds)
                self.heal()
                self.log(sums, self.fills(state.ponds))
                self._between(before, lambda: drain.finish(sync=True))
        for lake in self.lakes:
            lake.refresh()
        self._begin_filling()  # it continues while the agents are evaluated
        self._end_of_agents("fill")

    def _live(self) -> None:
        """The same without a break: the BigAgent learns meanwhile, and is cloned at the end."""
        together = self.programs.together
        assert together
        while not self._cycle_over():
            before, state = self.at.updates, self.state
            some = self._some_updates(16)
            played = together.round(state.agents, state.big, state.pond, some)
            (agents, big, pond), (sums, found) = played[:3], played[3:]
            self.state = MixState(agents, big, pond)
            self.at = self.at.at(updates=before + some)
            self.heal()
            due = (before + some) // together.every - before // together.every
            learned = {f"big_{name}": one for name, one in self.programs.big.numbers(found).items()}
            means = {name: (value / max(1, due)).tolist() for name, value in learned.items()}
            self.log(sums, means | {"big_pond_fill": self.fill_of(self.state.pond)})
            self._between(before, lambda: None)
        self._end_of_agents("clone")

    def _cycle_over(self) -> bool:
        """At `updates`, unless too little is left for a reset to pay; or when no frame is left."""
        settings, left = self.settings, self.settings.frames - self.frames
        cycle = settings.updates * settings.frames_per_update
        enough = 2 * (left - settings.own_frames) >= cycle
        return left <= 0 or (self.at.updates >= settings.updates and enough)

    def _some_updates(self, most: int) -> int:
        """Updates until the Pond is full, or something is due."""
        settings, done = self.settings, self.at.updates
        left = -(-(settings.frames - self.frames) // settings.frames_per_update)
        every = (settings.eval_updates, settings.checkpoint_updates, settings.resume_updates)
        due = [step - done % step for step in every]
        cycle = settings.updates - done
        return max(1, min(most, left, *due, cycle if cycle > 0 else most))

    def _between(self, before: int, drained: Callable[[], None]) -> None:
        """What is due between two rounds of the agents."""
        settings, now = self.settings, self.at.updates

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
        if self.at.target:
            took = [None if frames < 0 else frames for frames in self.at.recovered]
            self.write("recovery", {"cycle": self.at.cycle, "frames_to_recovery": took})
        chosen: tuple[int, ...] = ()
        if self.settings.init in BY_SCORE:
            chosen = self._chosen()
        last = self.frames >= self.settings.frames
        before = tuple(float(mean) for mean in scores.mean(1))
        self.save(self.at.at(phase=phase, last=last, chosen=chosen, before=before))

    def _candidates(self) -> Any:
        return candidates(self.state.agents.agent.params, self.settings.agents)

    def _chosen(self) -> tuple[int, ...]:
        """Which of its candidates each member's BigAgent begins as."""
        state = self.state
        if self.settings.init == "best_or_average":  # it is judged where the BigAgent would be
            average = jax.tree.map(lambda leaf: leaf[:, -1], self._candidates())
            agent = state.big.agent._replace(params=average)
            state = state._replace(big=state.big._replace(agent=agent))
        agents, other = self.programs.scores(self.programs.chooser, state)
        if self.settings.init == "best_or_average":
            agents = np.column_stack([agents, other])
        return tuple(int(best) for best in agents.argmax(1))

    # --- the BigAgent ---------------------------------------------------------------------------

    def _begin_filling(self) -> None:
        """Every member's BigPond begins to be gathered from its Lake, beside all that follows."""
        settings, pond, cycle = self.settings, self.programs.big.pond, self.at.cycle
        since = self.at.rows or (0,) * settings.members
        self.fillings = [
            Filling(lake, pond, settings.big, (settings.seed * 1000 + member) * 1000 + cycle, first)
            for member, (lake, first) in enumerate(zip(self.lakes, since, strict=True))
        ]
        for filling in self.fillings[:FILLINGS]:
            filling.start()

    def _fill(self) -> None:
        """BigPond from the Lakes, those of several members at the same time."""
        settings, big = self.settings, self.programs.big
        if not self.fillings:  # the run was resumed here
            self._begin_filling()
        ponds: list[PondState] = []
        for number, filling in enumerate(self.fillings):
            ponds.append(filling())
            if number + FILLINGS < len(self.fillings):
                self.fillings[number + FILLINGS].start()
        self.fillings = []
        self.big_pond = big.together(ponds)
        rows = len(self.lakes[0])
        values = {
            "chosen": list(self.at.chosen),
            "lake_rows": rows,
            "lake_fill": rows / settings.lake.capacity,
            "big_pond_fill": self.fill_of(self.big_pond),
        }
        self.write("fill", {"cycle": self.at.cycle, **values})
        best = self.state.big.agent.params
        if self.at.chosen:
            which = np.arange(settings.members), np.array(self.at.chosen)
            best = jax.tree.map(lambda leaf: leaf[which], self._candidates())
        begun = big.begin(self.state.big, self.at.cycle, best, self._steps())
        self.state = self.state._replace(big=begun)
        self.at = self.at.at(phase="big")

    def _steps(self) -> int:
        """Steps of this phase, by the frames since the latest reset."""
        return self.settings.steps_after(self.frames - self.at.since)

    def _big(self) -> None:
        settings, big, steps = self.settings, self.programs.big, self._steps()
        filled = float(self.big_pond.size) * big.pond.streams
        best, taken = Best(), 0
        share = 1.0 - self.at.since / settings.frames if settings.big.anneal else 1.0
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
            state = big.renew(state) if first and taken == distilled else state
            self.state = self.state._replace(big=state)
            if settings.big.eval_every:
                _, scores = self.programs.scores(self.programs.chooser, self.state)
                best.take(scores, self.state.big.agent.params)
                minibatches = taken * settings.minibatches
                line = {"cycle": self.at.cycle, "minibatches": minibatches, "big": scores.tolist()}
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
                "cycle": self.at.cycle,
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
        self.save(self.at.at(phase="clone"))

    # --- and back -------------------------------------------------------------------------------

    def _clone(self) -> None:
        settings, state, x = self.settings, self.state, self.at
        ponds = state.pond if self.programs.live else state.agents.ponds
        ours, theirs = state.agents.agent.params, state.big.agent.params
        seen = self.programs.measures(ours, theirs, ponds, x.cycle)
        self.write("measure", {"cycle": x.cycle, **seen})
        self.checkpoint()  # before they are cloned: clones are what the BigAgent is
        agents, big = self.programs.episodes(self.programs.chooser, state)
        if x.last:
            self.evaluate("final", big.mean(1) > agents.mean((1, 2)))
            self.save(x.at(phase="done"))
            return
        good = ~(np.asarray(state.big.agent.bad) | np.asarray(not_finite(theirs)))
        good &= passes(big, agents, settings.clone.gate)
        self.state = self.programs.clone(state, good)
        if self.programs.live:
            begun = self.programs.big.begin(self.state.big, x.cycle + 1, theirs, settings.big_steps)
            self.state = self.state._replace(big=begun)
        self.at = Position(
            cycle=x.cycle + 1,
            since=self.frames,
            rows=tuple(min((s.stop for s in lake.streams), default=0) for lake in self.lakes),
            target=x.before,
            recovered=(-1,) * settings.members,
            clones=x.clones,
        )
        line = {"cycle": x.cycle + 1, "cloned": good.tolist(), "target": list(x.before)}
        means = {"chooser": agents.mean((1, 2)).tolist(), "chooser_big": big.mean(1).tolist()}
        self.write("reset", line | means)
        self.evaluate("after")
        self.save()


@contextlib.contextmanager
def _paused(run: MixRun) -> Generator[None]:
    """A full disk is not a failure: say so, and how to continue."""
    try:
        yield
    except LakeFull as error:
        with contextlib.suppress(Exception):  # there may be no room for this either
            run.folder.say("paused", run.folder.status()["steps"])
        raise Paused(
            f"{run.path} paused: {error}. Nothing that was saved is lost: free some space and "
            f"millpond resume {word(run.path)}"
        ) from error
