"""The gradient noise scale of a run: at which batch size a gradient is half signal, half noise.

Measured afterwards, from replay and agent in the resume state: training pays nothing for it.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from ..agents import Replayed, find_agent
from ..agents.optimizer import Optimizer
from ..engine.learner import Learner
from ..engine.make_agent import make_agent
from ..engine.pond_updates import PondUpdates
from ..engine.provenance import traced_spec
from ..errors import BadState
from ..replay import Pond
from ..train import Run, Settings

_BATCHES = 32
_LARGEST = 1 << 30  # bytes of a resume state that are worth loading for it


def noise_scale(run: Run) -> list[float | None] | None:
    """Of every policy, in transitions; None where noise drowns it, or if no replay was saved.

    Only learners of their own save one that can be read alone: in mode `fused` there is none.
    `noise_scale(Run.open(path))`.
    """
    settings, path = run.settings, run.resume_state
    learns, rule = settings.learns, getattr(settings.learning, "optimizer", None)
    if not isinstance(learns, Replayed) or not isinstance(rule, Optimizer):
        return None
    if find_agent(settings.agent).continuous:
        return None  # several losses, each with an optimizer of its own, have no one gradient
    if settings.way == "fused" or settings.replay != "pond" or settings.shards or settings.lake:
        return None
    if not path.exists() or path.stat().st_size > _LARGEST:
        return None
    measure = _measure(settings)
    try:
        with contextlib.ExitStack() as stack:
            return [measure(*one) for one in _saved(run, stack)]
    except (OSError, SafetensorError, KeyError, BadState):
        return None  # `millpond resume` reports a file that cannot be read


def _saved(run: Run, stack: contextlib.ExitStack) -> Iterator[tuple[Pond, Any, Any]]:
    settings, learns = run.settings, run.settings.replayed
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    file: Any = stack.enter_context(safe_open(run.resume_state, "numpy"))
    spec = traced_spec(settings)
    pond = Pond(spec, learns.capacity, settings.envs, learns.window, settings.sampling)
    for policy in range(settings.policies):
        begin = f"['learners'][{policy}]["
        names = [name for name in file.keys() if name.startswith(begin)]  # noqa: SIM118
        arrays = {ast.literal_eval(name[len(begin) : -1]): file.get_tensor(name) for name in names}
        alone = range(policy, policy + 1)
        learner = stack.enter_context(Learner.opened(settings, alone, folder))
        learner.restore([arrays])
        assert isinstance(learner.learning, PondUpdates)
        state = jax.tree.map(lambda leaf: leaf[0], learner.state)
        yield pond, state, learner.learning.of(0)


def _measure(settings: Settings) -> Callable[[Pond, Any, Any], float | None]:
    """trace(covariance of one transition's gradient) / |mean gradient|^2, of a policy."""
    # A step of plain descent at rate 1 is the gradient, whatever the agent's own optimizer does.
    plain = dataclasses.replace(settings.learning, optimizer=Optimizer("sgd", clip=0.0))
    probe = make_agent(dataclasses.replace(settings, learning=plain))
    now = {name: jnp.float32(1) for name in plain.schedules}
    batch_size = settings.replayed.batch

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(pond: Pond, state: Any, replay: Any) -> jax.Array:
        state = state._replace(optimizer=plain.optimizer.init(state.params))

        def one(key: jax.Array) -> jax.Array:
            _, batch = pond.sample(replay, key, batch_size)
            after, _ = probe.update(state, batch, now)
            moved = jax.tree.map(jnp.subtract, state.params, after.params)
            return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(moved)])

        return jax.lax.map(one, jax.random.split(jax.random.key(0), _BATCHES))

    def measure(pond: Pond, state: Any, replay: Any) -> float | None:
        if not int(np.asarray(state.updates)):
            return None
        found = np.asarray(gradients(pond, state, replay))
        mean = found.mean(0)
        spread = float(((found - mean) ** 2).sum()) / (_BATCHES - 1)
        signal = float((mean**2).sum()) - spread / _BATCHES
        return batch_size * spread / signal if signal > 0 else None

    return measure
