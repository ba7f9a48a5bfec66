"""`Supervisor`: starts a run's processes, sees at once when one dies or hangs, and acts on it.

A lost actor comes back as a new incarnation with new channels; its streams get a cut. A lost
learner takes its replay with it, so the run goes back to its resume state. What an actor or a
learner says of its own failure is kept, told, and written to `events.jsonl` in the run's folder.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.environment import child_environment
from ..engine.events import Events
from ..engine.provenance import traced_spec
from ..engine.settings import Settings
from ..engine.stopping import ask_to_stop, stop_if_asked
from ..errors import BadConfig, ChannelBroken, ChannelClosed, LearnerLost, RunFailed, SpecMismatch
from ..transport.channel import Channel
from ..transport.memory import Canary
from ..transport.weights import Weights
from .child import Child
from .heartbeat import STARTING, Heartbeats
from .part import params_template
from .wire import Message, wait_for

_TICK_S = 0.5  # how often hangs are looked for
_STOP_S = 10.0  # how long a process may take to stop before it is killed


class Supervisor:
    """Actors and learners of one run as processes.

    with Supervisor(settings, folder) as supervisor: supervisor.ask("actor", "report")
    """

    def __init__(self, settings: Settings, folder: Path, hook: Mapping[str, str] = {}) -> None:
        if not sys.platform.startswith("linux"):
            raise BadConfig(f"mode {settings.mode}: this needs Linux, got {sys.platform}")
        self.settings, self.folder, self.hook = settings, folder, hook
        self._note = Events(folder).note
        allow_descriptors(settings.actors, len(settings.groups))
        spec = traced_spec(settings.world)
        self.groups, actors = settings.groups, settings.actors
        templates = [params_template(settings, group) for group in self.groups]
        self.weights = [Weights.create(template) for template in templates]
        self.readers = [
            one.reader(template) for one, template in zip(self.weights, templates, strict=True)
        ]
        self._new_channels: Callable[[], list[Channel]] = lambda: [
            Channel.create(
                spec,
                len(group) * (settings.envs // actors),
                settings.learns.turns,
                settings.crew.credits,
            )
            for group in self.groups
        ]
        self.channels = [self._new_channels() for _ in range(actors)]
        # The cycle at which each channel begins, [actor][learner]; where all run to, if known.
        self._begun = [[0] * len(self.groups) for _ in range(actors)]
        self.goal = 0
        self.board = Heartbeats.create(actors + len(self.groups))
        self.children: dict[tuple[str, int], Child] = {}
        self.replies: list[tuple[Child, Message]] = []
        self.restarts = 0
        self._failures = [0] * actors
        self._steps = [0] * actors  # env steps of one policy, as far as an actor has told
        self._looked = time.monotonic()

    def __enter__(self) -> Supervisor:
        try:
            for index in range(len(self.groups)):
                self._start_learner(index)
            for index in range(self.settings.actors):
                self._start_actor(index, 0)
            self._until(self._all_ready)
        except BaseException:
            self.close()
            raise
        return self

    def _all_ready(self) -> bool:
        stop_if_asked()  # nothing has been done yet that could be saved
        return all(child.ready for child in self.children.values())

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop every process: by asking first, by SIGKILL in the end."""
        for child in self.children.values():
            with contextlib.suppress(ChannelClosed):
                child.wire.send("stop", timeout=1.0)
        deadline = time.monotonic() + _STOP_S
        for child in self.children.values():
            with contextlib.suppress(Exception):
                child.process.wait(timeout=max(0.01, deadline - time.monotonic()))
            if not child.ended:
                child.kill()
            child.forget()
        self.children.clear()
        for channel in (c for row in self.channels for c in row):
            channel.close()

    # --- starting --------------------------------------------------------------------------------

    def _start_learner(self, index: int) -> None:
        board, weights = self.board.share(), self.weights[index].share()
        channels = [row[index].share() for row in self.channels]
        values = {
            "channels": [plain for plain, _ in channels],
            "weights": weights[0],
            "folder": str(self.folder),
            "board": board[0],
            "cycle": 0,
        }
        fds = [fd for _, some in (board, *channels, weights) for fd in some]
        self._start("learner", index, 0, self.settings.actors + index, values, fds)

    def _start_actor(self, index: int, incarnation: int, steps: int = 0) -> None:
        shared = [self.board.share(), *(channel.share() for channel in self.channels[index])]
        board, *channels = (plain for plain, _ in shared)
        weights = [one.share() for one in self.weights]
        values = {"channels": channels, "weights": [plain for plain, _ in weights]}
        fds = [fd for _, some in (*shared, *weights) for fd in some]
        begun = self._begun[index]
        begin = {**values, "board": board, "cycle": min(begun), "begun": begun, "steps": steps}
        self._start("actor", index, incarnation, index, begin, fds)

    def _start(
        self,
        role: str,
        index: int,
        incarnation: int,
        line: int,
        values: Mapping[str, Any],
        fds: Sequence[int],
    ) -> None:
        self.board.wipe(line)
        crew = self.settings.crew
        plain = {**values, "settings": self.settings.to_json(), "line": line}
        if crew.pin:
            plain["cores"] = cores_for(line, crew.threads)
        if hook := self.hook.get(f"{role} {index}", self.hook.get(role)):
            plain["hook"] = hook
        compiled = self.folder / "compiled"
        environment = child_environment(crew.threads, role == "actor", compiled)
        child = Child(role, index, incarnation, line, plain, fds, environment)
        self.children[role, index] = child
        self._note("started", child, pid=child.process.pid)

    # --- asking ----------------------------------------------------------------------------------

    def ask(
        self,
        role: str,
        kind: str,
        values: Mapping[str, Any] | Sequence[Mapping[str, Any]] = {},
        arrays: Sequence[Mapping[str, np.ndarray]] | None = None,
        reply: str | None = None,
    ) -> list[Message]:
        """Send a message to every process of a role and wait for all replies, in order.

        An actor that is lost meanwhile is asked again in its next incarnation.
        """
        number = self.settings.actors if role == "actor" else len(self.groups)
        asked: dict[int, Child] = {}
        found: dict[int, Message] = {}

        def all_there() -> bool:
            for index in range(number):
                child = self.children[role, index]
                if index not in found and asked.get(index) is not child and child.ready:
                    asked[index] = child
                    one = values if isinstance(values, Mapping) else values[index]
                    with contextlib.suppress(ChannelClosed):  # its end will be seen
                        child.wire.send(kind, one, arrays[index] if arrays else None)
            keep: list[tuple[Child, Message]] = []
            for child, message in self.replies:
                if child.role == role and message.kind == (reply or kind):
                    found[child.index] = message
                else:
                    keep.append((child, message))
            self.replies = keep
            return len(found) == number

        self._until(all_there)
        return [found[index] for index in range(number)]

    def tell(self, role: str, kind: str, values: Mapping[str, Any]) -> None:
        """Send a message to every process of a role; no reply is waited for."""
        for child in list(self.children.values()):
            if child.role == role:
                with contextlib.suppress(ChannelClosed):
                    child.wire.send(kind, values)

    def set_goal(self, cycle: int) -> None:
        """Let all run to a cycle, those too that start later; 0: new ones wait to be asked."""
        self.goal = cycle
        if cycle:
            for role in ("learner", "actor"):
                self.tell(role, "goal", {"cycle": cycle, "tell": False})

    def began(self, cycle: int) -> None:
        """All processes were restored to a cycle; nothing has been pushed since."""
        self._begun = [[cycle] * len(self.groups) for _ in self._begun]

    @property
    def newest_begun(self) -> int:
        """The cycle that rows are pushed up to by all incarnations that have ended, at least."""
        return max(max(row) for row in self._begun)

    def wait(self, done: Callable[[], bool]) -> None:
        """Until `done()`, seeing to the processes meanwhile."""
        self._until(done)

    # --- watching --------------------------------------------------------------------------------

    def _until(self, done: Callable[[], bool]) -> None:
        """Processes end, hang or get on, and each is seen; when none of it happens, that is too."""
        before, since = None, time.monotonic()
        patience = self.settings.crew.start_s + self.settings.crew.hang_s
        while not done():
            self.poll(0.05)
            lines = {c.name: self.board.line(c.line).cycle for c in self.children.values()}
            now = (lines, [child.ready for child in self.children.values()], len(self.replies))
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > patience:
                raise RunFailed(
                    f"nothing has happened for {patience:g} s; every process waits for another. "
                    f"Cycles: {lines}; this is a bug: please report it with events.jsonl"
                )

    def poll(self, timeout: float) -> None:
        """Take what processes say; act on those that ended or hang."""
        wires = [*self.children.values()]
        wait_for([fd for child in wires for fd in (child.wire.fileno(), child.pidfd)], timeout)
        for child in wires:
            ended = child.ended  # before its last words are read
            for message in child.said():
                self._heard(child, message)
            if ended and self.children.get((child.role, child.index)) is child:
                self._lost(child, child.how())
        if time.monotonic() - self._looked > _TICK_S:
            self._look_for_hangs()

    def _heard(self, child: Child, message: Message) -> None:
        if message.kind == "ready":
            self._confirm(child, message)
            child.ready = True
            if child.incarnation:
                self._note("back", child, cycle=min(self._begun[child.index]))
            if self.goal:
                with contextlib.suppress(ChannelClosed):  # its end will be seen
                    child.wire.send("goal", {"cycle": self.goal, "tell": False})
        elif message.kind == "signal":
            self._note("signal", child, number=message.values["number"])
            ask_to_stop(int(message.values["number"]))
        elif message.kind == "failed":
            child.failure = message
        elif message.kind == "broken":
            actor = self.children["actor", int(message.values["actor"])]
            self._note("broken channel", actor, why=message.values["error"])
            # Another learner may have found the same actor's rows damaged before: replace it once.
            if message.values["incarnation"] == actor.incarnation and not actor.ended:
                actor.kill()
        else:
            self.replies.append((child, message))

    def _confirm(self, child: Child, message: Message) -> None:
        """What the process wrote into shared memory must be seen here, and its rows be ours."""
        own = traced_spec(self.settings.world).fingerprint()
        if message.values["spec"] != own:
            raise SpecMismatch(
                f"{child.name}: its rows are {message.values['spec']}, this process expects {own}; "
                "start all processes with one version and one config"
            )
        canaries = [Canary(*pair) for pair in message.values["canaries"]]
        if child.role == "actor":
            shared: list[Any] = [*self.channels[child.index], *self.weights]
        else:
            shared = [*(row[child.index] for row in self.channels), self.weights[child.index]]
        try:
            for one, canary in zip(shared, canaries, strict=True):
                one.confirm(canary)
        except ChannelBroken as error:
            self._note("not shared", child, why=str(error))
            raise ChannelBroken(f"{child.name}: {error}") from error

    def _look_for_hangs(self) -> None:
        now, crew = time.monotonic(), self.settings.crew
        # Evaluating, say, or stopped together with all others: nobody could be seen meanwhile.
        if (away := now - self._looked) > 5 * _TICK_S:
            for child in self.children.values():
                child.seen += away
        self._looked = now
        for child in list(self.children.values()):
            line = self.board.line(child.line)
            if line.beat != child.beat:  # who waits beats too
                child.beat, child.seen = line.beat, now
                continue
            patience = crew.start_s if line.state == STARTING or not child.ready else crew.hang_s
            if now - child.seen > patience and not child.ended:
                child.kill()
                hung = f"hung for {patience:g} s at cycle {line.cycle}"
                self._lost(child, child.how() if child.failure else hung)

    def _lost(self, child: Child, how: str) -> None:
        """A process is gone: bring an actor back, or say that the run cannot go on."""
        self._note("lost", child, why=how, traceback=_traceback(child))
        crew = self.settings.crew
        self.restarts += 1
        if self.restarts > crew.restarts:
            raise RunFailed(f"{child.name}: {how}; {crew.restarts} restarts are used up")
        if child.role == "learner" and child.failure is None:
            raise LearnerLost(f"{child.name}: {how}")
        # One that cannot start for a reason of its own will not start the next time either. One
        # that was killed meanwhile may, and so may the successor of one that had started.
        in_vain = not child.ready and not child.incarnation and child.failure is not None
        if child.role == "learner" or in_vain:
            raise RunFailed(f"{child.name} failed: {how}\n{_traceback(child)}")
        self._bring_back(child, how)

    def _bring_back(self, child: Child, how: str) -> None:
        index = child.index
        # Its line is blank until it has ended a cycle: then it stands where the one before stood.
        self._steps[index] = max(self._steps[index], self.board.line(child.line).steps)
        # It may have died between two pushes of one cycle: each learner goes on where it stands.
        # From a damaged channel nothing is taken after the damage.
        pushed = [channel.whole() for channel in self.channels[index]]
        self._failures[index] = 0 if any(pushed) else self._failures[index] + 1
        if self._failures[index] >= self.settings.crew.failures:
            raise RunFailed(
                f"{child.name}: {how}; it failed {self._failures[index]} times without a step in "
                f"between, so another try would not help\n{_traceback(child)}"
            )
        self._begun[index] = [a + b for a, b in zip(self._begun[index], pushed, strict=True)]
        child.forget()
        del self.children["actor", index]  # should its successor not start, it is closed once
        for channel in self.channels[index]:
            channel.close()
        self.channels[index] = self._new_channels()
        incarnation = child.incarnation + 1
        for learner, channel in enumerate(self.channels[index]):
            plain, fds = channel.share()
            values = {"actor": index, "incarnation": incarnation, "channel": plain}
            with contextlib.suppress(ChannelClosed):  # the learner's end will be seen
                self.children["learner", learner].wire.send("channel", values, fds=fds)
        self._start_actor(index, incarnation, self._steps[index])


def allow_descriptors(actors: int, learners: int) -> None:
    """Raise this process's own limit of open files, which its children inherit, to what is needed.

    A channel between an actor and a learner has three, and each process two here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = 3 * actors * learners + 2 * (actors + learners) + 256
    if soft == resource.RLIM_INFINITY or need <= soft:
        return
    if hard != resource.RLIM_INFINITY and need > hard:
        raise BadConfig(
            f"{actors} actors and {learners} learners need about {need} open files, this process "
            f"may have {hard} (ulimit -Hn); use fewer actors, or raise the limit"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def cores_for(line: int, threads: int) -> list[int]:
    """The cores of one process, in turn; the processes beyond the last core begin anew."""
    cores = sorted(os.sched_getaffinity(0))
    return sorted({cores[(line * threads + i) % len(cores)] for i in range(threads)})


def _traceback(child: Child) -> str:
    return str(child.failure.values["traceback"]) if child.failure else ""
