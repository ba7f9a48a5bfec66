"""`ActorWorker`: an actor in its own process: act, push rows, pull parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.checkpoint import Arrays
from ..engine.crew_member import ActorMember
from ..engine.provenance import traced_spec
from ..errors import ChannelFull
from ..rows import Rows
from ..transport.channel import Channel
from ..transport.weights import Weights
from .member import SLICE_S, ProcessMember, params_template, to_block
from .wire import Message, Wire


class ActorWorker(ProcessMember, ActorMember):
    """It has one channel to each learner for rows, and each learner's Weights for parameters."""

    def __init__(self, wire: Wire, begin: Message) -> None:
        super().__init__(wire, begin)
        values, settings = begin.values, self.settings
        self.spec = traced_spec(settings)
        self.channels = [Channel.attach(plain, self.take_fds(3)) for plain in values["channels"]]
        weights = [Weights.attach(plain, self.take_fds(1)) for plain in values["weights"]]
        self.writers = [channel.writer(self.spec) for channel in self.channels]
        self.groups = settings.groups
        self.readers = [
            one.reader(params_template(settings, group), self.index)
            for one, group in zip(weights, self.groups, strict=True)
        ]
        self.make(np.array(values["steps"], np.uint32))
        self.starts = [int(cycle) for cycle in values["start"]]  # first cycle for each learner
        canaries = [list(end.canary) for end in (*self.writers, *self.readers)]
        wire.send("ready", {"canaries": canaries, "spec": self.spec.fingerprint()})

    def advance(self) -> None:
        self.watch.now("moving")
        self._pull()
        self.watch.now("working")
        rows = self.act()
        self.watch.now("moving")
        for learner, writer in enumerate(self.writers):
            if self.cycle >= self.starts[learner]:  # else the incarnation before has pushed these
                self._push(writer, to_block(rows, self.groups[learner]))

    def _pull(self) -> None:
        for learner, reader in enumerate(self.readers):
            while (found := reader.pull_if_newer(int(self.versions[learner]))) is None:
                if self.versions[learner] >= 0:
                    break
                self.listen(SLICE_S)  # the learner has published nothing yet
            if found is not None:
                self.params[learner], self.versions[learner] = found

    def _push(self, writer: Any, rows: Rows) -> None:
        try:
            writer.push(rows, timeout=0)  # waiting for room must not count as moving
            return
        except ChannelFull:
            self.watch.now("waiting")
        while True:
            self.listen(0)
            try:
                writer.push(rows, timeout=SLICE_S)
            except ChannelFull:
                continue
            self.watch.now("moving")
            return

    def arrived(self) -> None:
        self.watch.reached(self.cycle, int(self.actor.steps[0]))

    def where(self) -> tuple[int, int]:
        return self.cycle, self.rows

    def pause(self, timeout: float) -> int:
        """Stop after the cycle that is under way; returns that cycle, at once.

        (To end it, others may have to go on.) Rows that one learner has from the incarnation
        before, all learners must get.
        """
        self.goal = max(self.cycle + self._busy, *self.starts)
        return self.goal

    def restore(self, cycle: int, arrays: Arrays) -> bool:
        self.goal, self.starts = cycle, [cycle] * len(self.starts)
        whole = super().restore(cycle, arrays)
        self.arrived()  # before the answer: after that the parent reads our heartbeat
        return whole

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.actor.close()
