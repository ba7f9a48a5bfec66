"""millpond, as its README uses it: `HostPond` on the host, `Pond` inside jit."""

from __future__ import annotations

from . import ours_device, ours_host
from . import workload as work
from .stopwatch import Card


def main() -> None:
    card = Card("millpond", "jax", "jaxlib", "numpy")
    with card.section("vector_add", "vector_sample"):
        ours_host.vector(card, "vector_add", "vector_sample")
    with card.section("vector_add.1% ends", "vector_sample.1% ends"):
        ours_host.vector(card, "vector_add.1% ends", "vector_sample.1% ends", ends=0.01)
    checked = ("vector_add.bounds checked", "vector_sample.bounds checked")
    with card.section(*checked):
        ours_host.vector(card, *checked, bounded=True)
    with card.section("single_add", "single_sample"):
        ours_host.single(card)
    for envs in work.SMALL_ENVS:
        with card.section(f"small_{envs}_add"):
            ours_host.small(card, envs)
    ranked = (f"ranked_{how}add" for how in ("", "uneven_", "per_env_", "masked_"))
    with card.section(*ranked):
        ours_host.lockstep(card)
    with card.section("pixels_sample", "pixels_bytes"):
        ours_host.pixels(card)
    with card.section("prioritised_host"):
        ours_host.prioritised(card, "prioritised_host", "stream")
    with card.section("prioritised_host.shared"):
        ours_host.prioritised(card, "prioritised_host.shared", "shared")
    with card.section("vector_add_scan", "scan_add_first", "scan_sample_first"):
        ours_device.vector_scan(card)
    with card.section("prioritised_calls", "prioritised_scan"):
        ours_device.prioritised(card, "stream", "")
    with card.section("prioritised_calls.shared", "prioritised_scan.shared"):
        ours_device.prioritised(card, "shared", ".shared")
    for key in ("vector_add", "vector_sample", "scan_add_first", "scan_sample_first"):
        card.rows["stream" + key.removeprefix("vector").removeprefix("scan")] = card.rows[key]
    for layout in ("shared", "per_env"):
        keys = [f"{layout}_{what}" for what in ("add", "sample", "add_first", "sample_first")]
        with card.section(*keys[:2]):
            ours_host.vector(card, *keys[:2], layout=layout)
        with card.section(*keys[2:]):
            ours_device.orders(card, *keys[2:], layout=layout)
    card.show()


if __name__ == "__main__":
    main()
