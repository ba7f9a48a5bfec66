"""`ProcessTeam`: the actors and learners of a run as processes; modes `processes` and `lockstep`.

Shared memory carries rows (a channel from every actor to every learner), parameters (Weights) and
heartbeats, which show everybody's progress. Everything else goes by messages.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.crew import CrewLoop
from ..engine.environment import child_environment
from ..engine.events import Events
from ..engine.provenance import traced_spec
from ..engine.settings import Settings
from ..engine.stopping import ask_to_stop
from ..engine.stopwatch import SHARES
from ..engine.supervised_crew import SupervisedCrew
from ..engine.team import Asks, Member, Server, StartPoint
from ..errors import BadConfig, ChannelBroken, ChannelClosed, SpecMismatch
from ..transport.channel import Channel
from ..transport.memory import Canary
from ..transport.weights import Weights
from .child import Call, Child
from .heartbeat import STARTING, Heartbeats
from .member import params_template
from .wire import Message, wait_for

_STOP_S = 10.0  # seconds that a process may take to stop before it is killed


class ProcessTeam:
    """A `Team` of processes on this machine.

    `hook` names functions to call in processes before they run: {"actor 0": "module:name"}.
    """

    def __init__(self, settings: Settings, folder: Path, hook: Mapping[str, str] = {}) -> None:
        if not sys.platform.startswith("linux"):
            raise BadConfig(f"mode {settings.mode}: this needs Linux, got {sys.platform}")
        self.settings, self.folder, self.hook = settings, folder, hook
        self.servers: Sequence[Server] = ()
        self._note = Events(folder).note
        self.groups, actors = settings.groups, settings.actors
        allow_descriptors(actors, len(self.groups))
        self.spec = traced_spec(settings)
        templates = [params_template(settings, group) for group in self.groups]
        self.weights = [Weights.create(template) for template in templates]
        self.readers = [
            one.reader(template) for one, template in zip(self.weights, templates, strict=True)
        ]
        self.channels = [self._new_channels() for _ in range(actors)]
        self.board = Heartbeats.create(actors + len(self.groups))
        self.children: dict[tuple[str, int], Child] = {}
        self._steps = [0] * actors  # env steps of one policy that each actor last reported

    def _new_channels(self) -> list[Channel]:
        """Channels from one actor to every learner."""
        of = self.settings
        envs, turns = of.envs // of.actors, of.learns.turns
        return [
            Channel.create(self.spec, len(group) * envs, turns, of.crew.credits)
            for group in self.groups
        ]

    def close(self) -> None:
        """Ask every process to stop; kill those that do not."""
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

    def start_learner(self, index: int) -> Child:
        channels = [row[index] for row in self.channels]
        values = {"folder": str(self.folder), "cycle": 0}
        shared = channels, [self.weights[index]]
        return self._start("learner", index, 0, self.settings.actors + index, values, *shared)

    def start_actor(self, index: int, incarnation: int, start: StartPoint) -> Child:
        """Start a new incarnation of an actor, with new channels."""
        if incarnation:
            self._renew_channels(index, incarnation)
        begin = {"start": start.cycles, "steps": start.steps.tolist()}
        values = {"cycle": min(start.cycles), **begin}
        shared = self.channels[index], self.weights
        return self._start("actor", index, incarnation, index, values, *shared)

    def _renew_channels(self, index: int, incarnation: int) -> None:
        self.children.pop(("actor", index)).forget()  # now, in case its successor does not start
        for channel in self.channels[index]:
            channel.close()
        self.channels[index] = self._new_channels()
        for learner, channel in enumerate(self.channels[index]):
            plain, fds = channel.share()
            values = {"actor": index, "incarnation": incarnation, "channel": plain}
            self.children["learner", learner].tell("channel", values, fds)

    def _start(
        self,
        role: str,
        index: int,
        incarnation: int,
        line: int,
        values: Mapping[str, Any],
        channels: Sequence[Channel],
        weights: Sequence[Weights],
    ) -> Child:
        self.board.wipe(line)
        crew = self.settings.crew
        plain = {**values, "settings": self.settings.to_json(), "line": line}
        ends = {"board": [self.board], "channels": channels, "weights": weights}
        shared = {name: [end.share() for end in some] for name, some in ends.items()}
        plain |= {name: [about for about, _ in some] for name, some in shared.items()}
        fds = [fd for some in shared.values() for _, fds in some for fd in fds]
        if crew.pin:
            plain["cores"] = cores_for(line, crew.threads)
        if hook := self.hook.get(f"{role} {index}", self.hook.get(role)):
            plain["hook"] = hook
        environment = child_environment(crew.threads, role == "actor", self.folder / "compiled")
        child = Child(role, index, incarnation, line, plain, fds, environment)
        child.ends = [*channels, *weights]
        self.children[role, index] = child
        return child

    def about(self, member: Child) -> dict[str, Any]:
        """The id of its process."""
        return {"pid": member.process.pid}

    # --- calling ---------------------------------------------------------------------------------

    def call(self, member: Child, method: str, *args: Any) -> Call:
        """Start a call; if the process is not ready, once it is."""
        call = Call(member, method, args)
        if member.ended:
            self._hear(member)
        if member.end is not None:
            call.ended(None, member.end)
        elif member.ready:
            self._begin(call)
        else:
            member.early.append(call)
        return call

    def _begin(self, call: Call) -> None:
        """Answer a call from shared memory if possible, else send it."""
        child, board = call.child, self.board
        if call.method == "beat":
            line = board.line(child.line)
            spent = dict(zip(SHARES, line.spent_ns, strict=True))
            # Waiting members beat too, so one whose beats stop hangs, whatever it is doing.
            beat = {"beats": line.beat, "waits": False, "starting": line.state == STARTING}
            call.ended({**beat, "spent": spent})
        elif call.method == "reach":
            cycle, wait_s = call.args
            if (line := board.line(child.line)).cycle < cycle and not line.bad:
                self._poll(wait_s)
                line = board.line(child.line)
            call.ended((line.cycle, line.bad))
        elif call.method == "params":
            found = self.readers[child.index].pull_if_newer()
            call.ended(found[0] if found else None)
        else:
            child.send(call)

    def wait(self, calls: Sequence[Call], number: int, timeout: float) -> list[Call]:
        deadline = time.monotonic() + timeout
        while True:
            ended = [call for call in calls if call.done]
            left = deadline - time.monotonic()
            if len(ended) >= number or left <= 0:
                return ended
            self._poll(left)

    def result(self, call: Call) -> Any:
        if call.error is not None:
            raise call.error
        return call.answer

    def kill(self, member: Child) -> None:
        member.kill()
        self._hear(member)

    def restart(self, member: Any) -> None:
        raise AssertionError("processes have no servers")

    # --- hearing ---------------------------------------------------------------------------------

    def _poll(self, timeout: float) -> None:
        """Handle messages, and notice processes that have ended."""
        some = [child for child in self.children.values() if child.end is None]
        wait_for([fd for child in some for fd in (child.wire.fileno(), child.pidfd)], timeout)
        for child in some:
            self._hear(child)

    def _hear(self, child: Child) -> None:
        ended = child.ended  # asked before its last messages are read
        for message in child.said():
            self._heard(child, message)
        if ended and child.end is None:
            child.settle()

    def _heard(self, child: Child, message: Message) -> None:
        values = message.values
        if message.kind == "ready":
            self._confirm(child, message)
            child.ready, early, child.early = True, child.early, []
            for call in early:
                self._begin(call)
        elif message.kind == "signal":
            self._note("signal", child, number=values["number"])
            ask_to_stop(int(values["number"]))
        elif message.kind == "broken":
            actor = self.children["actor", int(values["actor"])]
            self._note("broken channel", actor, why=values["error"])
            # Several learners may find rows of the same actor damaged: replace it once.
            if values["incarnation"] == actor.incarnation and not actor.ended:
                self.kill(actor)
        else:
            raise AssertionError(f"unknown message {message.kind}")

    def _confirm(self, child: Child, message: Message) -> None:
        """Raise unless what the process wrote to shared memory is seen here, and specs agree."""
        own = self.spec.fingerprint()
        if message.values["spec"] != own:
            raise SpecMismatch(
                f"{child.role} {child.index}: its rows are {message.values['spec']}, this process "
                f"expects {own}; start all processes with one version and one config"
            )
        try:
            for end, canary in zip(child.ends, message.values["canaries"], strict=True):
                end.confirm(Canary(*canary))
        except ChannelBroken as error:
            self._note("not shared", child, why=str(error))
            raise ChannelBroken(f"{child.role} {child.index}: {error}") from error

    def progress(self, actor: Member, crew: Asks) -> StartPoint:
        """What a lost actor has pushed to each learner."""
        index = actor.index
        # Its line is blank until its first cycle ends; until then its predecessor's steps count.
        self._steps[index] = max(self._steps[index], self.board.line(index).steps)
        # It may have died between two pushes of one cycle, so learners may stand at different
        # cycles. Nothing behind the damage in a channel counts.
        pushed = [channel.whole() for channel in self.channels[index]]
        cycles = [a + b for a, b in zip(actor.start.cycles, pushed, strict=True)]
        return StartPoint(cycles, np.full(self.settings.policies, self._steps[index], np.uint32))

    def pace(self, crew: Asks) -> dict[str, Any]:
        """How often readers found damaged parameters."""
        return {"weights_torn": sum(one.torn for one in self.weights)}


@contextlib.contextmanager
def open_loop(
    settings: Settings, folder: Path, hook: Mapping[str, str] = {}
) -> Generator[CrewLoop]:
    """Start the processes, and end them when done."""
    with (
        contextlib.closing(ProcessTeam(settings, folder, hook)) as team,
        SupervisedCrew(settings, folder, team) as crew,
    ):
        yield CrewLoop(settings, crew)


def allow_descriptors(actors: int, learners: int) -> None:
    """Raise this process's limit of open files, which its children inherit, as far as needed.

    A channel between an actor and a learner takes three, and each process two in its parent.
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
    """The cores to pin a process to; after the last core they start again from the first."""
    cores = sorted(os.sched_getaffinity(0))
    return sorted({cores[(line * threads + i) % len(cores)] for i in range(threads)})
