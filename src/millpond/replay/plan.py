"""`Plan`: how much memory a replay takes in every layout and placement, and what fits.

Pure arithmetic over a `Spec`, using the column widths of the actual rings; only `Machine.detect`
looks at the machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadConfig
from ..samplers import Prioritized
from ..spec import Field, Spec
from ..window import Window
from .columns import Column
from .priorities import device_tree_bytes, host_tree_bytes

_DEVICE_ROWS = 2**31 - 1  # a device ring counts positions in 32 bits
_IMAGE = 1024  # bytes; a uint8 field with two or more axes and at least this wide is an image
# Measured: bytes per 84 x 84 uint8 frame, compressed by zstd with a trained dictionary.
_FRAME = 84 * 84
_FRAMES = {"Ms. Pacman": 327, "Gravitar": 158}
NO_ACCELERATOR = "no accelerator"


@dataclass(frozen=True)
class Machine:
    """Memory to plan for, in bytes; None where it is not known. `Machine.detect()`."""

    device: str = NO_ACCELERATOR  # without one, a Pond is in RAM
    device_bytes: int | None = None
    ram_bytes: int | None = None
    disk_bytes: int | None = None

    @staticmethod
    def detect(folder: str | Path = ".") -> Machine:
        """This machine: free memory of its first accelerator, all RAM, free disk at `folder`."""
        import jax  # only here, because listing devices starts a backend

        name, free = NO_ACCELERATOR, None
        try:
            device = jax.local_devices()[0]
        except RuntimeError:  # the platform that JAX is set to use is not available
            device = None
        if device is not None and device.platform != "cpu":
            stats = device.memory_stats() or {}
            name = str(device.device_kind)
            if "bytes_limit" in stats:
                free = int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
        return Machine(name, free, _ram(), shutil.disk_usage(folder).free)

    def memory(self, placement: str) -> int | None:
        """The bytes available to placement `device`, `host` or `lake`."""
        if placement == "lake":
            return self.disk_bytes
        in_ram = placement == "host" or self.device == NO_ACCELERATOR
        return self.ram_bytes if in_ram else self.device_bytes


@dataclass(frozen=True)
class PlanRow:
    """One layout at one placement. Sizes are None if unknown or impossible.

    `problem` says why the planned replay cannot be built this way; then `fits` is false.
    """

    layout: str  # two_stacks (the reference), stream, per_env, shared
    placement: str  # device, host, lake; "any" for the reference
    encoding: str  # words (32-bit), bytes, raw, or zstd with the compression ratio of images
    row_bytes: int | None
    tree_bytes: int  # the priority tree's share of total_bytes
    total_bytes: int | None
    saving: float | None  # how many times smaller than two_stacks
    estimate: bool
    memory_bytes: int | None  # available at this placement
    fits: bool | None
    rows_fit: int | None  # the largest capacity that fits, a multiple of num_envs if required
    problem: str
    note: str


@dataclass(frozen=True)
class Plan:
    """The memory for `capacity` rows over `num_envs` streams. Every `PlanRow` is for `rows` rows.

    `make_plan(spec, stack=4, num_envs=8, capacity=10**6).to_json()`.
    """

    spec: Spec
    stack: int
    n_step: int
    num_envs: int
    capacity: int  # as requested
    prioritized: bool
    rows: int  # the capacity, rounded down to a multiple of num_envs
    nearest: tuple[int, ...]  # the multiples of num_envs nearest to the requested capacity
    starts: int  # valid starts in a full ring of layout stream, if no episode ended in it
    machine: Machine
    layouts: tuple[PlanRow, ...]  # the reference first

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: the fields of this class and of those inside, with exact bytes.

        Keys: spec, stack, n_step, num_envs, capacity, prioritized, rows, nearest, starts, machine
        (a `Machine`), layouts (a list of `PlanRow`).
        """
        plain = asdict(self) | {"spec": self.spec.to_json()}
        return plain | {name: list(plain[name]) for name in ("nearest", "layouts")}


def make_plan(
    spec: Spec,
    stack: int = 1,
    num_envs: int = 1,
    capacity: int = 1_000_000,
    n_step: int = 1,
    machine: Machine | None = None,
    prioritized: bool = False,
) -> Plan:
    """Plan a replay of `capacity` rows, rounded down to a multiple of `num_envs`.

    With `prioritized`, totals of rings in memory include the sum tree of `prioritized()`.

    `make_plan(spec, stack=4, num_envs=2048, capacity=10**6, machine=Machine.detect())`.
    """
    window, machine = Window(stack=stack, n_step=n_step), machine or Machine()
    for name, value in (("num_envs", num_envs), ("capacity", capacity)):
        if not isinstance(value, int) or value < 1:
            raise BadConfig(f"{name} must be a whole number >= 1, got {value!r}")
    length, over = divmod(capacity, num_envs)
    if length < stack + n_step:
        raise BadConfig(
            f"capacity {capacity} keeps {length} rows for each of {num_envs} envs, and stack "
            f"{stack} with n_step {n_step} spans {stack + n_step}; use a capacity of "
            f"{(stack + n_step) * num_envs} or more, or fewer envs"
        )
    rows = capacity - over
    return Plan(
        spec=spec,
        stack=stack,
        n_step=n_step,
        num_envs=num_envs,
        capacity=capacity,
        prioritized=prioritized,
        rows=rows,
        nearest=(rows, rows + num_envs) if over else (capacity,),
        starts=int(window.eligible(np.int64(length), length)[1]) * num_envs,
        machine=machine,
        layouts=tuple(_layouts(spec, window, num_envs, rows, machine, prioritized)),
    )


def _layouts(
    spec: Spec, window: Window, num_envs: int, rows: int, machine: Machine, prioritized: bool
) -> Iterator[PlanRow]:
    reference = 1 + sum(
        field.size * field.dtype.itemsize * (2 * window.stack if path.startswith("obs") else 1)
        for path, field in spec.columns.items()
    )

    def row(
        name: tuple[str, str, str], row_bytes: int | None, problem: str = "", note: str = ""
    ) -> PlanRow:
        layout, placement, encoding = name
        memory = None if placement == "any" else machine.memory(placement)
        tree = _tree_bytes(placement, rows) if prioritized and row_bytes is not None else 0
        fit = None
        if memory is not None and row_bytes is not None and not problem:
            fit = _most_rows(memory, row_bytes, placement if prioritized else "")
            fit = min(fit, _DEVICE_ROWS) if placement == "device" else fit
            fit -= 0 if layout == "shared" or placement == "lake" else fit % num_envs
        return PlanRow(
            layout=layout,
            placement=placement,
            encoding=encoding,
            row_bytes=row_bytes,
            tree_bytes=tree,
            total_bytes=None if row_bytes is None else row_bytes * rows + tree,
            saving=None if row_bytes is None else round(reference / row_bytes, 2),
            estimate=placement == "lake",
            memory_bytes=memory,
            fits=False if problem else None if fit is None else rows <= fit,
            rows_fit=fit,
            problem=problem,
            note=note,
        )

    note = "what most libraries store: two stacks, of T and T+1"
    note += ", a byte per bool" if any(f.binary for f in spec.columns.values()) else ""
    yield row(("two_stacks", "any", "bytes"), reference, note=note)
    for layout in ("stream", "per_env", "shared"):
        for placement, encoding in (("device", "words"), ("host", "bytes")):
            name = (layout, placement, encoding)
            try:
                size = _row_bytes(spec, layout, placement, window.stack)
            except BadConfig as error:  # a field that no device holds
                yield row(name, None, problem=str(error))
            else:
                yield row(name, size, *_remarks(spec, layout, placement, window, rows))
    for encoding, size, note in _lake(spec):
        yield row(("stream", "lake", encoding), size, note=note)


def _row_bytes(spec: Spec, layout: str, placement: str, stack: int) -> int:
    """Bytes of one stored row. `shared` holds whole transitions: a stack of obs, and the next."""
    total = 1  # the flags byte
    for path, field in spec.columns.items():
        twice = layout == "shared" and path.startswith("obs")
        if twice and stack > 1:
            field = Field(field.dtype, (stack, *field.shape), binary=field.binary)
        one = Column(path, field).nbytes if placement == "device" else field.nbytes
        total += one * (2 if twice else 1)
    return total


def _tree_bytes(placement: str, rows: int) -> int:
    """What priorities cost: rings in memory keep a tree of them, others none."""
    if placement == "device":
        return device_tree_bytes(rows, Prioritized.fan)
    return host_tree_bytes(rows) if placement == "host" else 0


def _most_rows(memory: int, row_bytes: int, tree: str) -> int:
    """The most rows that fit, together with the sum tree of placement `tree` ("": no tree)."""
    fit, over = 0, memory // row_bytes + 1
    while over - fit > 1:
        middle = (fit + over) // 2
        small = middle * row_bytes + _tree_bytes(tree, middle) <= memory
        fit, over = (middle, over) if small else (fit, middle)
    return fit


def _remarks(spec: Spec, layout: str, placement: str, window: Window, rows: int) -> tuple[str, str]:
    """(problem, note): why a ring cannot be built this way, if so, and what else to know."""
    problem = note = ""
    if placement == "device" and rows > _DEVICE_ROWS:
        problem = f"Pond: {rows} rows need 64-bit positions, which JAX lacks on a device; "
        problem += "use several Ponds, HostPond or a Lake"
    if layout == "shared" and window.n_step > 1:
        problem = "layout shared stores one-step transitions and cannot serve n_step "
        problem += f"{window.n_step}; use stream or per_env"
    if layout == "shared" and window.stack > 1:
        single = _row_bytes(spec, layout, placement, 1)
        note = f"serves stack 1 only: the env must give stacks of {window.stack} whole, stored "
        note += f"twice; {single:,} B for single observations, which cannot be stacked later"
    return problem, note


def _lake(spec: Spec) -> Iterator[tuple[str, int, str]]:
    """Yield encoding, estimated bytes per row and the basis of the estimate, largest first."""
    images = sum(
        field.nbytes
        for path, field in spec.columns.items()
        if path.startswith("obs") and not field.binary and field.dtype == np.uint8
        if len(field.shape) > 1 and field.nbytes >= _IMAGE
    )
    why = "" if images else ": no compression is assumed, no observation being a uint8 image"
    yield "raw", spec.row_bytes, f"estimate, without the Lake's index{why}"
    for game, frame in _FRAMES.items() if images else ():
        compressed = -(-images * frame // _FRAME)
        note = (
            f"estimate: images shrink like {game}'s, whose 84x84 frames take {frame} B under zstd "
            "with a dictionary; small fields raw"
        )
        yield f"zstd {_FRAME / frame:.0f}x", spec.row_bytes - images + compressed, note


def _ram() -> int | None:
    """Bytes of RAM, or of the container's limit."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system reports it
        return None
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path("/sys/fs/cgroup", name).read_text()))
        except (OSError, ValueError):  # no such control group, or no limit
            continue
    return total
