"""flashbax: the trajectory buffer, jitted. Sequences go on over ends, which `done` marks."""

from __future__ import annotations

from itertools import cycle

import flashbax as fbx
import jax

from ..stopwatch import Card, cpu_us
from . import task


def measure(card: Card, kind: task.Kind) -> None:
    """One jitted sample of 65 rows: its sequences bring no observation after the last."""
    buffer = fbx.make_trajectory_buffer(
        add_batch_size=kind.envs,
        sample_batch_size=task.BATCH,
        sample_sequence_length=task.ROWS,
        period=1,
        min_length_time_axis=task.ROWS,
        max_length_time_axis=kind.time,
    )
    add, state = jax.jit(buffer.add, donate_argnums=0), None
    for block in task.play(kind):
        turned = {name: leaf.swapaxes(0, 1) for name, leaf in block._asdict().items()}
        if state is None:
            state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], jax.device_put(turned)))
        state = add(state, turned)
    sample, keys = jax.jit(buffer.sample), cycle(list(jax.random.split(jax.random.key(0), 64)))
    us = cpu_us(lambda: jax.block_until_ready(sample(state, next(keys))))
    note = "65 rows with all fields; no masks, no final observations"
    card.put(f"{kind.name}_jit", us, note)
    card.put(f"{kind.name}_host", us, f"a jitted call; {note}")


def main() -> None:
    card = Card("flashbax", "jax", "jaxlib", "numpy")
    for kind in task.KINDS:
        with card.section(f"{kind.name}_host", f"{kind.name}_jit"):
            measure(card, kind)
    card.show()


if __name__ == "__main__":
    main()
