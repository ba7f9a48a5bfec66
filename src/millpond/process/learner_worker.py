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
from .channel_reader import ChannelReader
from .part import SLICE_S, NotYet, Part, params_template
from .weights import Weights
from .wire import Message, Wire


class LearnerWorker(Part):
    """It alone owns its policies' replay. It takes a cycle's rows from every actor, then learns.

    Usually one policy; several where there are more policies than cores.
    """

    def __init__(self, wire: Wire, begin: Message) -> None:
        super().__init__(wire, begin)
        values, settings = begin.values, self.settings
        self.spec = traced_spec(settings.world)
        self.policies = [int(policy) for policy in values["policies"]]
        # For each of our policies and each actor the channels of its incarnations, oldest first.
        self.sources = [
            [[self._reader(plain, self.take_fds(3))] for plain in channels]
            for channels in values["channels"]
        ]
        self.torn, self.damaged = [0] * len(self.policies), None
        template = params_template(settings)
        weights = [Weights.attach(plain, self.take_fds(1)) for plain in values["weights"]]
        self.writers = [one.writer(template) for one in weights]
        self._stack = contextlib.ExitStack()
        folder = Path(values["folder"])
        self.learners = [
            self._stack.enter_context(Learner.opened(settings, policy, folder))
            for policy in self.policies
        ]
        self.published = [-1] * len(self.policies)
        self.first = True  # until the first update here, which is compiled before it is taken
        self.publish()
        ends = [source[0] for sources in self.sources for source in sources]
        canaries = [list(end.canary) for end in (*ends, *self.writers)]
        wire.send("ready", {"canaries": canaries, "spec": self.spec.fingerprint()})

    def _reader(self, plain: Mapping[str, Any], fds: list[int]) -> ChannelReader:
        return Channel.attach(plain, fds).reader(self.spec)

    def publish(self) -> bool:
        """Give parameters to the actors, where they are new and good; whether any were."""
        new = False
        for which, learner in enumerate(self.learners):
            if learner.updates > self.published[which] and not learner.bad:
                self.published[which], new = learner.updates, True
                self.writers[which].publish(jax.device_get(learner.params), learner.updates)
        return new

    def advance(self) -> None:
        starting = STARTING if self.first else WORKING
        for which, learner in enumerate(self.learners):
            self.pencil.now(starting, "moving")
            rows = join([self._pop(which, actor) for actor in range(self.settings.actors)])
            self.pencil.now(starting, "working")
            learner.cycle(rows)
        self.pencil.now(WORKING, "moving")
        if self.publish():
            self.first = False
        if any(learner.bad for learner in self.learners):
            self.goal = self.cycle + 1  # nothing more is learned; the parent is told by the report
            self.wire.send("bad", {})

    def _pop(self, which: int, actor: int) -> Rows:
        """The next rows of an actor, whichever of its incarnations they come from."""
        source, waited = self.sources[which][actor], False
        while True:
            rows, over = self._try(which, actor, SLICE_S if waited else 0.0)
            if rows is not None:
                if waited:
                    self.pencil.now(WORKING, "moving")
                return rows
            if len(source) > 1 and (over or not source[0].ready):
                # What a dead incarnation had pushed is taken: go on with the next, after a cut.
                del source[0]
                self.learners[which].cut(actor)
                continue
            if not waited:
                waited = True
                self.pencil.now(WAITING, "waiting")
            self.listen(SLICE_S if over else 0)
            if self.cycle >= self.goal:
                raise NotYet  # the actors stop here too: nothing of the next cycle is on its way

    def _try(self, which: int, actor: int, timeout: float) -> tuple[Rows | None, bool]:
        """Rows if there are any, and whether none will ever come from this incarnation."""
        reader = self.sources[which][actor][0]
        try:
            return reader.pop(timeout), False
        except ChannelClosed:
            return None, True  # it has failed; the parent sends the next one's channel
        except ChannelBroken as error:
            # Nothing more is taken from a damaged channel: the parent replaces its actor.
            if reader is not self.damaged:
                self.damaged = reader
                self.torn[which] += 1
                where = {"actor": actor, "policy": self.policies[which]}
                self.wire.send("broken", {**where, "error": str(error)})
            return None, True

    def take(self, message: Message) -> None:
        if message.kind == "channels":
            actor, fds = int(message.values["actor"]), list(message.fds)
            for sources, plain in zip(self.sources, message.values["channels"], strict=True):
                sources[actor].append(self._reader(plain, fds[:3]))
                fds = fds[3:]
        elif message.kind == "cut":
            for learner in self.learners:
                learner.cut(int(message.values["actor"]))
        elif message.kind == "batch":
            batch = next((one.batch for one in self.learners if one.bad), None)
            arrays = {name: np.asarray(leaf) for name, leaf in named_leaves(batch)}
            self.wire.send("batch", {}, arrays)
        else:
            super().take(message)

    def where(self) -> dict[str, Any]:
        trace = self.settings.crew.trace
        return {"cycle": self.cycle, "traced": [one.traced() for one in self.learners if trace]}

    def report(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        found = [learner.report()._asdict() for learner in self.learners]
        for progress, torn in zip(found, self.torn, strict=True):
            progress["evidence"]["torn"] = torn
        return {"learners": found}, {}

    def export(self) -> dict[str, np.ndarray]:
        return {
            f"{learner.policy}/{name}": array
            for learner in self.learners
            for name, array in learner.export().items()
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        for learner in self.learners:
            begin = f"{learner.policy}/"
            mine = {k.removeprefix(begin): a for k, a in arrays.items() if k.startswith(begin)}
            learner.restore(mine)
        self.publish()
        return {}

    def close(self) -> None:
        for source in (one for sources in self.sources for one in sources):
            for reader in source:
                reader.close()
        self._stack.close()
