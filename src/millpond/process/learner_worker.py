"""`LearnerWorker`: a learner in a process of its own: pop rows, learn, publish parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..errors import ChannelBroken, ChannelClosed
from ..rows import Rows
from ..train.checkpoint import named_leaves
from ..train.learner import Learner
from ..train.provenance import traced_spec
from ..train.sequential import join
from .board import STARTING, WAITING, WORKING
from .channel import Channel
from .part import SLICE_S, NotYet, Part, params_template
from .weights import Weights
from .wire import Message, Wire


class LearnerWorker(Part):
    """It alone owns its policy's replay. It takes a cycle's rows from every actor, then learns."""

    def __init__(self, wire: Wire, begin: Message) -> None:
        super().__init__(wire, begin)
        values, settings = begin.values, self.settings
        self.spec = traced_spec(settings.world)
        channels = [Channel.attach(plain, self.take_fds(3)) for plain in values["channels"]]
        weights = Weights.attach(values["weights"], self.take_fds(1))
        # Of each actor the channels of its incarnations, oldest first.
        self.sources = [[channel.reader(self.spec)] for channel in channels]
        self.torn, self.damaged = 0, None
        self.writer = weights.writer(params_template(settings))
        self._stack = contextlib.ExitStack()
        self.learner = self._stack.enter_context(
            Learner.opened(settings, self.index, Path(values["folder"]))
        )
        self.published = -1
        self.first = True  # until the first update here, which is compiled before it is taken
        self.publish()
        canaries = [list(source[0].canary) for source in self.sources]
        canaries.append(list(self.writer.canary))
        wire.send("ready", {"canaries": canaries, "spec": self.spec.fingerprint()})

    def publish(self) -> None:
        """Give the parameters to the actors, if they are new and good."""
        if self.learner.updates > self.published and not self.learner.bad:
            self.published = self.learner.updates
            self.writer.publish(jax.device_get(self.learner.params), self.published)

    def advance(self) -> None:
        self.pencil.now(STARTING if self.first else WORKING, "moving")
        rows = join([self._pop(actor) for actor in range(len(self.sources))])
        self.pencil.now(STARTING if self.first else WORKING, "working")
        self.learner.cycle(rows)
        self.pencil.now(WORKING, "moving")
        self.first = self.first and self.published == self.learner.updates
        self.publish()
        if self.learner.bad:
            self.goal = self.cycle + 1  # nothing more is learned; the parent is told by the report
            self.wire.send("bad", {})

    def _pop(self, actor: int) -> Rows:
        """The next rows of an actor, whichever of its incarnations they come from."""
        source, waited = self.sources[actor], False
        while True:
            rows, over = self._try(actor, SLICE_S if waited else 0.0)
            if rows is not None:
                if waited:
                    self.pencil.now(WORKING, "moving")
                return rows
            if len(source) > 1 and (over or not source[0].ready):
                # What a dead incarnation had pushed is taken: go on with the next, after a cut.
                del source[0]
                self.learner.cut(actor)
                continue
            if not waited:
                waited = True
                self.pencil.now(WAITING, "waiting")
            self.listen(SLICE_S if over else 0)
            if self.cycle >= self.goal:
                raise NotYet  # the actors stop here too: nothing of the next cycle is on its way

    def _try(self, actor: int, timeout: float) -> tuple[Rows | None, bool]:
        """Rows if there are any, and whether none will ever come from this incarnation."""
        reader = self.sources[actor][0]
        try:
            return reader.pop(timeout), False
        except ChannelClosed:
            return None, True  # it has failed; the parent sends the next one's channel
        except ChannelBroken as error:
            # Nothing more is taken from a damaged channel: the parent replaces its actor.
            if reader is not self.damaged:
                self.damaged = reader
                self.torn += 1
                self.wire.send("broken", {"actor": actor, "error": str(error)})
            return None, True

    def take(self, message: Message) -> None:
        if message.kind == "channel":
            channel = Channel.attach(message.values["channel"], message.fds)
            self.sources[int(message.values["actor"])].append(channel.reader(self.spec))
        elif message.kind == "cut":
            self.learner.cut(int(message.values["actor"]))
        elif message.kind == "batch":
            batch = {name: np.asarray(leaf) for name, leaf in named_leaves(self.learner.batch)}
            self.wire.send("batch", {}, batch)
        else:
            super().take(message)

    def where(self) -> dict[str, Any]:
        traced = self.learner.traced() if self.settings.crew.trace else {}
        return {"cycle": self.cycle, "traced": traced}

    def report(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        progress = self.learner.report()._asdict()
        progress["evidence"]["torn"] = self.torn
        return progress, {}

    def export(self) -> dict[str, np.ndarray]:
        return self.learner.export()

    def restore(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        self.learner.restore(arrays)
        self.publish()
        return {}

    def close(self) -> None:
        for source in self.sources:
            for reader in source:
                reader.close()
        self._stack.close()
