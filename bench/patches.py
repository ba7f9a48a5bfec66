"""A convolution as one matmul against `lax.conv`: `make bench ONLY=patches`.

The torso's first layer on MinAtar (3 x 3, 16 channels), value and gradient, inside a scan as in
training and by itself. Both run in turns in one process; medians are compared.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from millpond.agents.networks import patches

BATCH, SIDE, CHANNELS, FILTERS, LAYERS, ROUNDS, TARGET = 128, 10, 4, 16, 20, 30, 4.0


def by_matmul(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return patches(x, 3, 1) @ kernel.reshape(-1, FILTERS)


def by_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    names = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=names)


def programs(layer) -> dict:
    def gradient(kernel, x):
        return jax.grad(lambda k: (layer(x, k) ** 2).mean())(kernel)

    def scan(kernel, x):
        step = lambda kernel, _: (kernel - 1e-3 * gradient(kernel, x), None)  # noqa: E731
        return jax.lax.scan(step, kernel, length=LAYERS)[0]

    return {"alone": jax.jit(gradient), "in a scan": jax.jit(scan)}


def main() -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.random((BATCH, SIDE, SIDE, CHANNELS)) < 0.1, np.float32)
    kernel = jnp.asarray(rng.normal(size=(3, 3, CHANNELS, FILTERS)), np.float32)
    np.testing.assert_allclose(by_matmul(x, kernel), by_conv(x, kernel), rtol=1e-4, atol=1e-4)
    ways = {"matmul": programs(by_matmul), "lax.conv": programs(by_conv)}
    results = {}
    print(f"{jax.devices()[0].device_kind}: value and gradient, target {TARGET} x lax.conv")
    for name in ("alone", "in a scan"):
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(ROUNDS + 2):
            for way, found in ways.items():
                began = time.perf_counter()
                jax.block_until_ready(found[name](kernel, x))
                if number >= 2:  # the first ones compile
                    times[way].append(time.perf_counter() - began)
        medians = {way: statistics.median(some) for way, some in times.items()}
        ratio = medians["lax.conv"] / medians["matmul"]
        results[name] = {**medians, "ratio": ratio}
        verdict = "met" if ratio >= TARGET else "MISSED"
        shown = "  ".join(f"{way} {1e6 * took:8.0f} us" for way, took in medians.items())
        print(f"  {name:10} {shown}   {ratio:.1f} x  {verdict}")
    out = Path("bench/out")
    out.mkdir(parents=True, exist_ok=True)
    (out / "patches.json").write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
