"""`millpond plan`: bytes per transition in every layout and placement, and what fits here

Parses and prints; the arithmetic is `millpond.replay.plan`.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from ..errors import BadConfig
from ..replay.plan import NO_ACCELERATOR, Machine, Plan, PlanRow, make_plan
from ..spec import Field, Spec
from ._print import empty_table, many, print_table, sized

_COUNT = re.compile(r"(\d[\d_]*(?:\.\d+)?(?:[eE]\+?\d{1,3})?)([kKmMgG]?)")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_MOST = 10**15  # rows, envs or bytes beyond any machine: most likely a slip
_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]
_PLACES = {"any": "any", "device": "device Pond", "host": "HostPond", "lake": "Lake"}


@dataclass(frozen=True)
class Args:
    """Bytes per transition in every layout and placement, and what fits on this machine.

    millpond plan --obs 3x84x84:uint8 --stack 4 --envs 2048 --capacity 1e6
    """

    capacity: Annotated[str, tyro.conf.arg(metavar="ROWS")]
    """Rows to keep in all, over all envs: 1000000, 1_000_000, 1e6, 500k, 1M."""
    obs: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="[NAME=]SHAPE:DTYPE"), tyro.conf.UseAppendAction
    ] = ()
    """One observation as the env gives it, without stacking: 3x84x84:uint8, 17:float32. bool is
    stored as bits. For dict observations repeat it: --obs image=84x84:uint8 --obs pose=7:float32.
    Required."""
    stack: Annotated[str, tyro.conf.arg(metavar="N")] = "1"
    """Observations that a state stacks. Stored once, stacked when sampled."""
    n_step: Annotated[str, tyro.conf.arg(metavar="N")] = "1"
    """Steps that a return sums. Costs no bytes; the newest N rows of an env are no starts yet."""
    envs: Annotated[str, tyro.conf.arg(metavar="N")] = "1"
    """Envs that step side by side. The capacity must divide among them."""
    action: Annotated[str, tyro.conf.arg(metavar="[SHAPE:]DTYPE")] = "int32"
    """One action: int32 for discrete ones, 8:float32 for eight continuous numbers."""
    prioritized: tyro.conf.FlagCreatePairsOff[bool] = False
    """Count the priority tree too: 4.3 bytes per row on a device, 8.5 on the host."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object and nothing else. Its keys: spec, stack, n_step, num_envs, capacity,
    prioritized, rows (as planned), nearest, starts, machine, layouts, counting; see
    Plan.to_json."""


def main(args: Sequence[str]) -> int:
    """Plan what the flags describe and print it."""
    asked = tyro.cli(Args, prog="millpond plan", args=list(args))
    spec = Spec(parse_obs(asked.obs), parse_field(asked.action, "--action"))
    stack, n_step, envs, capacity = (
        parse_count(value, flag)
        for value, flag in (
            (asked.stack, "--stack"),
            (asked.n_step, "--n-step"),
            (asked.envs, "--envs"),
            (asked.capacity, "--capacity"),
        )
    )
    make_plan(spec, stack, envs, capacity, n_step)  # a bad plan fails before a backend starts
    # Looking at an accelerator must not take its memory from the run that already uses it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    plan = make_plan(spec, stack, envs, capacity, n_step, Machine.detect(), asked.prioritized)
    if asked.json:
        print(json.dumps(plan.to_json(), indent=2))
    else:
        show(plan, Console(highlight=False, markup=False, emoji=False))
    return 0


def parse_count(text: str, flag: str) -> int:
    """A whole number >= 1: 2048, 1_000_000, 1e6, 500k, 1M."""
    found = _COUNT.fullmatch(text.strip())
    value = Decimal(found[1].replace("_", "")) * _UNITS[found[2].lower()] if found else Decimal(0)
    if not 1 <= value <= _MOST or value != value.to_integral_value():
        raise BadConfig(
            f"{flag}: expected a whole number from 1 to 10^15, got '{text}'; "
            "write it as 2048, 1_000_000, 1e6, 500k or 1M"
        )
    return int(value)


def parse_field(text: str, flag: str) -> Field:
    """SHAPE:DTYPE such as 3x84x84:uint8, or DTYPE alone for a single number."""
    shape_text, colon, dtype = text.rpartition(":")
    shape = tuple(int(n) for n in shape_text.split("x")) if _is_shape(shape_text) else ()
    if not colon and _is_shape(text):
        raise BadConfig(f"{flag}: '{text}' names no dtype; write {text}:uint8, {text}:float32, ...")
    if colon and (not shape or min(shape) < 1 or math.prod(shape) > _MOST):
        raise BadConfig(
            f"{flag}: expected a shape of whole numbers >= 1 joined by x, 10^15 elements at most, "
            f"got '{shape_text}' in '{text}'; write it as 3x84x84:uint8, or "
            f"{dtype or 'float32'} alone for one number"
        )
    if dtype not in _DTYPES:
        near = difflib.get_close_matches(dtype.lower(), _DTYPES, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(_DTYPES)}"
        raise BadConfig(f"{flag}: '{dtype}' in '{text}' is no dtype that can be stored; {remedy}")
    return Field(dtype, shape)


def parse_obs(texts: Sequence[str]) -> Field | dict[str, Field]:
    """One field, or a dict of fields where every text begins with NAME=."""
    if not texts:
        raise BadConfig("--obs: no observation given; add one such as --obs 3x84x84:uint8")
    if len(texts) == 1 and "=" not in texts[0]:
        return parse_field(texts[0], "--obs")
    fields: dict[str, Field] = {}
    for text in texts:
        name, _, rest = text.partition("=")
        if not rest or not re.fullmatch(r"[\w.-]+", name):
            raise BadConfig(
                f"--obs: expected NAME=SHAPE:DTYPE because there are several, got '{text}'; "
                "write --obs image=84x84:uint8 --obs pose=7:float32"
            )
        if name in fields:
            raise BadConfig(f"--obs: '{name}' is given twice; keep one of them")
        fields[name] = parse_field(rest, "--obs")
    return fields


def _is_shape(text: str) -> bool:
    return re.fullmatch(r"\d{1,15}(x\d{1,15})*", text) is not None


def show(plan: Plan, console: Console) -> None:
    """The plan as tables and sentences, at most 80 columns wide where the values allow."""
    fields = [(p, f) for p, f in plan.spec.columns.items() if p.startswith(("obs", "action"))]
    console.print(
        f"{', '.join(f'{path} {field.describe()}' for path, field in fields)}; "
        f"stack {plan.stack}, n-step {plan.n_step}, {many(plan.num_envs, 'env')}"
    )
    if len(plan.nearest) > 1:
        console.print(
            f"Capacity {plan.capacity:,} does not divide among {plan.num_envs:,} envs and is never "
            f"rounded: use {plan.nearest[0]:,} or {plan.nearest[1]:,}. Only layout shared takes "
            "any capacity."
        )
    planned = f"{plan.rows:,} rows, {plan.rows // plan.num_envs:,} per env"
    console.print(f"Every total is for {planned}.")
    here = plan.machine
    device = f"{here.device} with {sized(here.device_bytes)} for JAX"
    if here.device == NO_ACCELERATOR:
        device = f"{NO_ACCELERATOR} (a Pond lies in RAM)"
    console.print(
        f"This machine: {device}, {sized(here.ram_bytes)} RAM, {sized(here.disk_bytes)} free disk."
    )
    footnotes: list[str] = []
    print_table(console, _layout_table(plan.layouts, footnotes))
    for number, text in enumerate(footnotes, 1):
        console.print(f"{number}) {text}.")
    console.print(
        "A row is one transition, or the border row that ends an episode. Once full, a stream or "
        f"per_env ring can start {plan.starts:,} samples: "
        f"{many(plan.stack + plan.n_step - 1, 'row')} per env can only complete others. "
        f"Totals are the ring{' and its priorities' if plan.prioritized else ' alone'}: leave room "
        "for networks and batches."
    )
    if plan.counting:
        console.print("\nPer env or shared?")
        for sentence in _answer(plan):
            console.print(sentence)
        print_table(console, _counting_table(plan))


def _layout_table(rows: Sequence[PlanRow], footnotes: list[str]) -> Table:
    """One line per row; what needs saying about it goes to `footnotes`, each text once."""
    heads = (
        "layout",
        "placement",
        "bytes per\ntransition",
        "total",
        "saves",
        "fits",
        "rows that\nwould fit",
    )
    table = empty_table(heads, text=2)
    for row in rows:
        marks: list[str] = []
        for text in filter(None, (row.problem, row.note)):
            if text not in footnotes:
                footnotes.append(text)
            marks.append(f"{footnotes.index(text) + 1})")
        place = _PLACES[row.placement]
        if row.placement == "lake":
            place += f" {row.encoding}"
        fits = {True: "yes", False: "no", None: "-"}[row.fits]
        table.add_row(
            row.layout.replace("two_stacks", "two stacks"),
            " ".join([place, *marks]),
            "-" if row.row_bytes is None else f"{row.row_bytes:,}",
            "-"
            if row.row_bytes is None
            else ("~" if row.estimate else "") + sized(row.total_bytes),
            "-" if row.saving is None else f"{row.saving:.1f}x",
            "cannot" if row.problem else fits,
            "-" if row.rows_fit is None else f"{row.rows_fit:,}",
        )
    return table


def _answer(plan: Plan) -> Iterator[str]:
    """Whether rings per env or one shared ring cost less, by the plan's own figures."""
    envs = plan.num_envs
    second = "the next observation too" if plan.stack == 1 else "two stacks per transition"
    host = {row.layout: row.row_bytes or 0 for row in plan.layouts if row.placement == "host"}
    yield (
        f"Equal rows cost the same: per_env, {envs:,} x {plan.rows // envs:,} rows, takes "
        f"{sized(host['per_env'] * plan.rows)}; stream, one ring of {plan.rows:,} rows, takes "
        f"{sized(host['stream'] * plan.rows)}. Layout shared takes "
        f"{host['shared'] / host['stream']:.1f}x that: it stores {second}."
    )
    own = next(line for line in plan.counting if line.rings == "per_env")
    shared = next(line for line in plan.counting if line.rings == "one_ring")
    text = (
        f'"Shared saves {envs:,}x" is a counting error: a capacity of {own.capacity:,} per env is '
        f"{envs:,} x {own.capacity:,} = {own.rows:,} rows."
    )
    if own.printed_row_bytes and shared.printed_row_bytes:
        text += (
            f" That was compared, {sized(own.printed_bytes)}, with {shared.rows:,} rows, "
            f"{sized(shared.printed_bytes)}: {own.rows / shared.rows:.2f}x the rows, and per row "
            f"{own.printed_row_bytes:.0f} B against {shared.printed_row_bytes:.0f} B, "
            f"{own.printed_row_bytes / shared.printed_row_bytes:.1f}x."
        )
    yield text
    once = next(row for row in plan.layouts if row.placement == "lake")
    least = [row.saving for row in plan.layouts if row.estimate and row is not once and row.saving]
    bits = " and bools as bits" if any(f.binary for f in plan.spec.columns.values()) else ""
    text = (
        f"What saves is to store every observation once and not {2 * plan.stack} times{bits} "
        f"({once.saving:.1f}x)"
    )
    if least:
        text += f", and to compress frames on disk (estimated {least[0]:.0f}x to {least[-1]:.0f}x)"
    yield text + "."


def _counting_table(plan: Plan) -> Table:
    printed = plan.counting[0].printed_bytes is not None
    heads = ["the same row, counted", "rows", "B/row", "total"]
    table = empty_table([*heads, "as printed", "so per row"] if printed else heads, text=1)
    for line in plan.counting:
        shape = f"one ring ({line.capacity:,})"
        if line.rings == "per_env":
            shape = f"per env ({plan.num_envs:,}, {line.capacity:,})"
        cells = [f"{line.rows:,}", f"{line.row_bytes:,}", sized(line.total_bytes)]
        if printed:
            cells += [sized(line.printed_bytes), f"{line.printed_row_bytes:.0f} B"]
        table.add_row(shape, *cells)
    return table
