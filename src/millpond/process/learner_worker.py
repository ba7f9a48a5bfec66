"""`LearnerWorker`: a learner in its own process: pop rows, learn, publish parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from ..engine.checkpoint import Arrays
from ..engine.crew_member import LearnerMember
from ..engine.learner import Learner, Progress
from ..engine.provenance import traced_spec
from ..engine.trees import joined
from ..errors import ChannelBroken, ChannelClosed
from ..rows import Rows
from ..transport.channel import Channel
from ..transport.channel_ends import ChannelReader
from ..transport.weights import Weights
from .member import SLICE_S, NotYet, ProcessMember, from_block, params_template
from .wire import Message, Wire


class LearnerWorker(ProcessMember, LearnerMember):
    """It alone owns its policies' replay. Each cycle it takes rows from every actor and learns."""

    def __init__(self, wire: Wire, begin: Message) -> None:
        super().__init__(wire, begin)
        values, settings = begin.values, self.settings
        self.spec = traced_spec(settings)
        self.policies = settings.groups[self.index]
        # For each actor the channels of its incarnations, oldest first.
        self.sources = [
            [ActorChannel(0, self._reader(plain, self.take_fds(3)))] for plain in values["channels"]
        ]
        self.torn = 0
        weights = Weights.attach(values["weights"][0], self.take_fds(1))
        self.writer = weights.writer(params_template(settings, self.policies))
        self._stack = contextlib.ExitStack()
        self.learner = self._stack.enter_context(
            Learner.opened(settings, self.policies, Path(values["folder"]))
        )
        self.published = -1
        self.publish()
        ends = [source[0].reader for source in self.sources]
        canaries = [list(end.canary) for end in (*ends, self.writer)]
        wire.send("ready", {"canaries": canaries, "spec": self.spec.fingerprint()})

    def _reader(self, plain: Mapping[str, Any], fds: list[int]) -> ChannelReader:
        return Channel.attach(plain, fds).reader(self.spec)

    def publish(self) -> bool:
        """Publish the parameters to the actors if they are new; returns whether they were.

        An update that is not finite changes none: the parameters before it stay published.
        """
        version = self.learner.version
        if version == self.published:
            return False
        self.writer.publish(jax.device_get(self.learner.params), version)
        self.published = version
        return True

    def advance(self) -> None:
        self.watch.now("moving")
        blocks = [self._pop(actor) for actor in range(self.settings.actors)]
        rows = joined([from_block(block, self.policies) for block in blocks], 2)
        self.watch.now("working")
        self.learner.cycle(rows)
        self.watch.now("moving")
        if self.publish():
            self.watch.starting = False
        if self.learner.bad:
            self.goal = self.cycle + 1  # nothing more is learned; the parent sees that it is bad

    def _pop(self, actor: int) -> Rows:
        """The next rows of an actor, from whichever of its incarnations."""
        source, waited = self.sources[actor], False
        while True:
            rows, over = self._try(actor, SLICE_S if waited else 0.0)
            if rows is not None:
                if waited:
                    self.watch.now("moving")
                return rows
            if len(source) > 1 and (over or not source[0].reader.ready):
                self._turn_to_next(actor)
                continue
            if not waited:
                waited = True
                self.watch.now("waiting")
            self.listen(SLICE_S if over else 0)
            if self.cycle >= self.goal:
                raise NotYet  # the actors stop here too: no rows of the next cycle will come

    def _turn_to_next(self, actor: int) -> None:
        """All rows of a dead incarnation are taken: continue with the next one, after a cut."""
        del self.sources[actor][0]
        self.learner.cut(actor)

    def _try(self, actor: int, timeout: float) -> tuple[Rows | None, bool]:
        """Rows if there are any; and whether no more will come from this incarnation."""
        source = self.sources[actor][0]
        try:
            return source.reader.pop(timeout), False
        except ChannelClosed:
            return None, True  # it failed; the parent will send the next one's channel
        except ChannelBroken as error:
            # Nothing more is taken from a damaged channel; the parent replaces the actor.
            if not source.damaged:
                self.sources[actor][0] = source._replace(damaged=True)
                self.torn += 1
                where = {"actor": actor, "incarnation": source.incarnation}
                self.wire.send("broken", {**where, "error": str(error)})
            return None, True

    def arrived(self) -> None:
        self.watch.reached(self.cycle, bad=self.learner.bad)

    def aim(self, goal: int) -> None:
        self.goal = self.cycle + self._busy if self.learner.bad else goal

    def take(self, message: Message) -> None:
        if message.kind == "channel":
            values = message.values
            reader = self._reader(values["channel"], list(message.fds))
            self.sources[int(values["actor"])].append(
                ActorChannel(int(values["incarnation"]), reader)
            )
        else:
            super().take(message)

    def where(self) -> tuple[int, list[dict[str, int]]]:
        return self.cycle, self.learner.traced() if self.settings.crew.trace else []

    def cut(self, actor: int) -> None:
        """An actor's envs begin again, after all rows of its dead incarnations were taken."""
        del self.sources[actor][:-1]
        super().cut(actor)

    def report(self) -> Progress:
        progress = super().report()
        for line in progress.evidence:
            line["torn"] = self.torn
        return progress

    def restore(self, arrays: Sequence[Arrays]) -> None:
        super().restore(arrays)
        self.cycle = self.goal = self.learner.cycles
        self.publish()
        self.arrived()  # before the answer: after that the parent reads our heartbeat

    def close(self) -> None:
        for source in (one for sources in self.sources for one in sources):
            source.reader.close()
        self._stack.close()


class ActorChannel(NamedTuple):
    """The channel of one incarnation of an actor."""

    incarnation: int
    reader: ChannelReader
    damaged: bool = False  # and it was reported to the parent
