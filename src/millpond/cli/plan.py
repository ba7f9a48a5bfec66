"""`millpond plan`: show how much memory a replay needs in each layout, and what fits here

millpond plan --obs 3x84x84:uint8 --stack 4 --envs 2048 --capacity 1e6
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import textwrap
from collections.abc import Sequence
from decimal import Decimal

from ..errors import BadConfig
from ..replay.plan import NO_ACCELERATOR, Machine, Plan, PlanRow, make_plan
from ..spec import Field, Spec
from ._options import Parser, width
from ._print import Table, empty_table, many, print_table, sized

_COUNT = re.compile(r"(\d[\d_]*(?:\.\d+)?(?:[eE]\+?\d{1,3})?)([kKmMgG]?)")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_MOST = 10**15  # more rows, envs or bytes than any machine has: most likely a typo
_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]
_PLACES = {"any": "any", "device": "device Pond", "host": "HostPond", "lake": "Lake"}


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    asked = _parser().parse_args(args)
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
    make_plan(spec, stack, envs, capacity, n_step)  # fail before JAX starts a backend
    # Looking at a GPU must not take its memory from a run that already uses it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    plan = make_plan(spec, stack, envs, capacity, n_step, Machine.detect(), asked.prioritized)
    if asked.json:
        print(json.dumps(plan.to_json(), indent=2))
    else:
        show(plan)
    return 0


def _parser() -> Parser:
    parser = Parser("millpond plan", __doc__, allow_abbrev=False)
    parser.add_argument(
        "--capacity", required=True, metavar="ROWS", help="rows to keep, over all envs: 1e6, 500k"
    )
    parser.add_argument(
        "--obs",
        action="append",
        default=[],
        metavar="SHAPE:DTYPE",
        help="one observation of the env, without stacking: 3x84x84:uint8, 17:float32 or "
        "10x10x4:bool (stored as bits); for a dict, --obs image=84x84:uint8 --obs pose=7:float32",
    )
    parser.add_argument(
        "--stack", default="1", metavar="N", help="observations in a state; stored once (default 1)"
    )
    parser.add_argument(
        "--n-step", default="1", metavar="N", help="steps in a return; costs nothing (default 1)"
    )
    parser.add_argument(
        "--envs", default="1", metavar="N", help="envs stepped together (default 1)"
    )
    parser.add_argument(
        "--action",
        default="int32",
        metavar="DTYPE",
        help="int32 for discrete actions (default), 8:float32 for eight continuous numbers",
    )
    parser.add_argument(
        "--prioritized",
        action="store_true",
        help="include priorities: 4.3 bytes per row on a device, 8.5 on the host",
    )
    parser.add_argument(
        "--json", action="store_true", help="JSON instead of text; Plan.to_json explains its keys"
    )
    return parser


def parse_count(text: str, flag: str) -> int:
    """Parse a whole number of at least 1: 2048, 1_000_000, 1e6, 500k, 1M."""
    found = _COUNT.fullmatch(text.strip())
    value = Decimal(found[1].replace("_", "")) * _UNITS[found[2].lower()] if found else Decimal(0)
    if not 1 <= value <= _MOST or value != value.to_integral_value():
        raise BadConfig(
            f"{flag}: expected a whole number from 1 to 10^15, got '{text}'; "
            "write it as 2048, 1_000_000, 1e6, 500k or 1M"
        )
    return int(value)


def parse_field(text: str, flag: str) -> Field:
    """Parse SHAPE:DTYPE, such as 3x84x84:uint8, or DTYPE alone for a single number."""
    shape_text, colon, dtype = text.rpartition(":")
    shape = tuple(int(n) for n in shape_text.split("x")) if _is_shape(shape_text) else ()
    if not colon and _is_shape(text):
        raise BadConfig(f"{flag}: '{text}' has no dtype; write {text}:uint8, {text}:float32, ...")
    if colon and (not shape or min(shape) < 1 or math.prod(shape) > _MOST):
        raise BadConfig(
            f"{flag}: expected a shape such as 3x84x84, with at most 10^15 elements, "
            f"got '{shape_text}' in '{text}'; write it as 3x84x84:uint8, or "
            f"{dtype or 'float32'} alone for one number"
        )
    if dtype not in _DTYPES:
        near = difflib.get_close_matches(dtype.lower(), _DTYPES, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(_DTYPES)}"
        raise BadConfig(f"{flag}: '{dtype}' in '{text}' cannot be stored; {remedy}")
    return Field(dtype, shape)


def parse_obs(texts: Sequence[str]) -> Field | dict[str, Field]:
    """Parse one field, or a dict of fields if the texts begin with NAME=."""
    if not texts:
        raise BadConfig("--obs: no observation given; add one such as --obs 3x84x84:uint8")
    if len(texts) == 1 and "=" not in texts[0]:
        return parse_field(texts[0], "--obs")
    fields: dict[str, Field] = {}
    for text in texts:
        name, _, rest = text.partition("=")
        if not rest or not re.fullmatch(r"[\w.-]+", name):
            raise BadConfig(
                f"--obs: with several, each must be NAME=SHAPE:DTYPE, got '{text}'; "
                "write --obs image=84x84:uint8 --obs pose=7:float32"
            )
        if name in fields:
            raise BadConfig(f"--obs: '{name}' is given twice; remove one")
        fields[name] = parse_field(rest, "--obs")
    return fields


def _is_shape(text: str) -> bool:
    return re.fullmatch(r"\d{1,15}(x\d{1,15})*", text) is not None


def show(plan: Plan) -> None:
    """Print the plan as a table and text."""
    fields = [(p, f) for p, f in plan.spec.columns.items() if p.startswith(("obs", "action"))]
    _say(
        f"{', '.join(f'{path} {field.describe()}' for path, field in fields)}; "
        f"stack {plan.stack}, n-step {plan.n_step}, {many(plan.num_envs, 'env')}"
    )
    if len(plan.nearest) > 1:
        _say(
            f"Capacity {plan.capacity:,} is not a multiple of {plan.num_envs:,} envs and is never "
            f"rounded: use {plan.nearest[0]:,} or {plan.nearest[1]:,}. Only layout shared takes "
            "any capacity."
        )
    planned = f"{plan.rows:,} rows, {plan.rows // plan.num_envs:,} per env"
    _say(f"All totals are for {planned}.")
    here = plan.machine
    device = f"{here.device} with {sized(here.device_bytes)} for JAX"
    if here.device == NO_ACCELERATOR:
        device = f"{NO_ACCELERATOR} (a Pond is in RAM)"
    _say(
        f"This machine: {device}, {sized(here.ram_bytes)} RAM, {sized(here.disk_bytes)} free disk."
    )
    footnotes: list[str] = []
    print_table(_layout_table(plan.layouts, footnotes))
    for number, text in enumerate(footnotes, 1):
        _say(f"{number}) {text}.")
    _say(
        "A row is one transition, or the border row that ends an episode. A full stream or per_env "
        f"ring has {plan.starts:,} rows that samples can start at; "
        f"{many(plan.stack + plan.n_step - 1, 'row')} per env only complete other samples. "
        f"Totals include only the ring{' and its priorities' if plan.prioritized else ''}: leave "
        "room for networks and batches."
    )
    _say(_what_saves(plan))


def _say(text: str) -> None:
    print(textwrap.fill(text, width(), break_long_words=False, break_on_hyphens=False))


def _layout_table(rows: Sequence[PlanRow], footnotes: list[str]) -> Table:
    """The table of layouts; remarks are added to `footnotes`, each once."""
    heads = (
        "layout",
        "placement",
        "bytes per\ntransition",
        "total",
        "saves",
        "fits",
        "rows that\nwould fit",
    )
    table = empty_table(heads, words=2)
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


def _what_saves(plan: Plan) -> str:
    once = next(row for row in plan.layouts if row.placement == "lake")
    least = [row.saving for row in plan.layouts if row.estimate and row is not once and row.saving]
    bits = " and bools as bits" if any(f.binary for f in plan.spec.columns.values()) else ""
    text = (
        f"Memory is saved by storing every observation once, not {2 * plan.stack} times{bits} "
        f"({once.saving:.1f}x)"
    )
    if least:
        text += (
            f", and by compressing frames on disk (estimated {least[0]:.0f}x to {least[-1]:.0f}x)"
        )
    return text + "."
