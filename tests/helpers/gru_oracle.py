"""A Q-network with memory by its equations, step by step: NumPy in float64, or JAX for gradients.

One Dense layer with LayerNorm and ReLU, the GRU of Cho et al. with the reset gate behind the
recurrent product, and a linear head, dueling or not.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def sigmoid(x: Any, xp: Any) -> Any:
    return 1 / (1 + xp.exp(-x))


def dense(params: Any, x: Any) -> Any:
    return x @ params["kernel"] + params.get("bias", 0)


def step(params: Any, obs: Any, memory: Any, xp: Any = np) -> tuple[Any, Any]:
    """obs[batch, stack, features], memory[batch, units] -> values[batch, actions], memory after."""
    if xp is np:
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = dense(params["Dense_0"], obs.reshape(len(obs), -1) * 1.0)
    norm = params["LayerNorm_0"]
    x = (x - x.mean(-1, keepdims=True)) / xp.sqrt(x.var(-1, keepdims=True) + 1e-6)
    x = xp.maximum(x * norm["scale"] + norm["bias"], 0)
    gru = params["gru"]
    reset = sigmoid(dense(gru["ir"], x) + dense(gru["hr"], memory), xp)
    keep = sigmoid(dense(gru["iz"], x) + dense(gru["hz"], memory), xp)
    new = xp.tanh(dense(gru["in"], x) + reset * dense(gru["hn"], memory))
    after = (1 - keep) * new + keep * memory
    values = dense(params["values"], after)
    if "state_value" in params:
        state = dense(params["state_value"], after)
        values = state + values - values.mean(-1, keepdims=True)
    return values, after


def unroll(params: Any, obs: Any, memory: Any, first: Any, held: Any = None, xp: Any = np) -> Any:
    """obs[batch, time, ...] -> values[batch, time, actions], memories before each row and after."""
    values, before = [], []
    for t in range(obs.shape[1]):
        kept = memory
        memory = xp.where(first[:, t, None], 0, memory)
        before.append(memory)
        found, memory = step(params, obs[:, t], memory, xp)
        values.append(found)
        if held is not None:
            memory = xp.where(held[:, t, None], kept, memory)
    return xp.stack(values, 1), xp.stack(before, 1), memory
