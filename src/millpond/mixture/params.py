"""Load the parameters in a checkpoint of a training run or of a mixture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..engine.checkpoint import load_tree
from ..engine.make_agent import make_agent
from ..train import Run
from .run import MixRun, is_mixture


def open_everyone(path: Path) -> Run:
    """Open the run in a folder; a mixture is opened as one run of all its agents and BigAgents."""
    return MixRun.open(path).everyone if is_mixture(path) else Run.open(path)


def load_params(run: Run, path: Path) -> Any:
    """The parameters in a checkpoint, [policies]; a mixture's agents come before its BigAgents."""
    blank = blank_params(run)
    if not is_mixture(run.path):
        return load_tree(path, blank)[0]
    agents = MixRun.open(run.path).settings.policies
    parts = {"agents": slice(0, agents), "big": slice(agents, None)}

    def part(which: slice) -> Any:
        return jax.eval_shape(lambda tree: jax.tree.map(lambda leaf: leaf[which], tree), blank)

    both, _ = load_tree(path, {name: part(which) for name, which in parts.items()})
    return jax.tree.map(lambda a, b: np.concatenate([a, b]), both["agents"], both["big"])


def blank_params(run: Run) -> Any:
    """The shapes and dtypes of a run's parameters, [policies]."""
    settings = run.settings
    keys = jax.random.split(jax.random.key(0), settings.policies)
    return jax.eval_shape(jax.vmap(make_agent(settings).init), keys).params
