"""The contract fails when any index in the window arithmetic is off by one.

Every integer that takes part in an index (literals, `self.stack`, `self.n_step`, loop counters,
`depth`, `steps`, `size`) in window.py's arithmetic is shifted by +1 and by -1, one place at a
time. Each mutant then runs contract stories on a HostPond, and at least one story must fail.
"""

from __future__ import annotations

import ast
import random
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from scenarios import PATTERNS, HostSubject, Stream, pick, to_rows
from test_contract import play

import millpond.window
from millpond import Stacker

SOURCE = Path(millpond.window.__file__)
ARITHMETIC = {"before", "eligible", "judge", "lookback", "returns", "push"}
INDEX_NAMES = {"here", "back", "ahead", "depth", "newest", "deeper", "size", "length", "first"}
INDEX_ATTRIBUTES = {"stack", "n_step", "steps", "depth", "before"}
# Shifts that cannot change any result, each with its reason.
EQUIVALENT = {
    "returns: self.n_step +1 in powers": "a longer table with the same entries",
    "returns: 1 +1 in powers": "a longer table with the same entries",
    "eligible: 0 -1 in return": "0 times 0 is 0 as well, and -1 is not above itself",
    "push: newest +1 in deeper": "the cap only keeps the counter from overflowing",
}


def places(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    """Every expression in the arithmetic that is an index, with the function it stands in."""
    found = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name not in ARITHMETIC:
            continue
        stack = [child for statement in function.body for child in ast.walk(statement)]
        inner = {  # flags bits, axes and slices of axes are no row indices
            id(node)
            for part in stack
            if isinstance(part, (ast.Attribute, ast.Call, ast.Compare, ast.BinOp))
            for node in ast.walk(part)
            if _is_bit_or_axis(part)
        }
        for node in stack:
            if id(node) in inner or isinstance(getattr(node, "ctx", None), ast.Store):
                continue
            if (
                (isinstance(node, ast.Constant) and type(node.value) is int)
                or (isinstance(node, ast.Name) and node.id in INDEX_NAMES)
                or (isinstance(node, ast.Attribute) and node.attr in INDEX_ATTRIBUTES)
            ):
                found.append((function.name, node))
    return found


def _is_bit_or_axis(node: ast.AST) -> bool:
    text = ast.unparse(node)
    if isinstance(node, ast.Compare):  # (row & CUT) != 0
        return "&" in text and text.endswith(("!= 0", "== 0"))
    if isinstance(node, ast.Call):  # np.float32(0), dtype.type(0)
        return text in ("np.float32(0)", "chosen.dtype.type(0)", "isinstance(leaf, jax.Array)")
    if isinstance(node, ast.Attribute):  # back.shape
        return node.attr == "shape"
    return isinstance(node, ast.BinOp) and text in ("(1,) * (frames.ndim - 2)",)


def mutants():
    source = SOURCE.read_text()
    for number in range(len(places(ast.parse(source)))):
        for shift in (1, -1):
            tree = ast.parse(source)
            function, node = places(tree)[number]
            line, text = node.lineno, ast.unparse(node)
            shifted = ast.BinOp(_copy(node), ast.Add(), ast.Constant(shift))
            _replace(tree, node, shifted)
            label = (
                f"{function}:{line}: {text} {shift:+d}  in  {source.splitlines()[line - 1].strip()}"
            )
            target = source.splitlines()[line - 1].split()[0]
            key = f"{function}: {text} {shift:+d} in {target}"
            yield key, label, ast.unparse(ast.fix_missing_locations(tree))


def _copy(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, field, new)
            elif isinstance(value, list) and any(item is old for item in value):
                value[next(i for i, item in enumerate(value) if item is old)] = new


def load(code: str) -> types.ModuleType:
    module = types.ModuleType("millpond.window_mutant")
    module.__package__ = "millpond"
    import sys

    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(code, "window_mutant.py", "exec"), module.__dict__)
    return module


def survives(module: types.ModuleType) -> bool:
    """Whether the mutant passes every story below."""
    windows = [
        module.Window(stack=3, n_step=2, gamma=0.5),
        module.Window(stack=2, n_step=3, gamma=0.9, pad="first", life_loss_ends=True),
        module.Window(),
    ]
    try:
        for seed in range(14):
            chance = random.Random(seed)
            pattern = PATTERNS[["everything", "short", "cuts", "long"][seed % 4]]
            ops = [("add", chance.randrange(1, 9)) for _ in range(chance.randrange(1, 8))]
            ops += [("cut", chance.randrange(3))] if seed % 3 == 0 else []
            for window in windows:
                for few in range(window.n_step + 3):  # just too little, and just enough
                    few_ops = [("add", 1)] * few
                    play(HostSubject, window, PATTERNS["long"], (7, 1, few_ops, seed), draws=64)
                play(HostSubject, window, pattern, (6 + seed % 5, 2, ops, seed), draws=64)
                check_stacker(module.Stacker, window, pattern, seed)
    except Exception:
        return False
    return True


def check_stacker(stacker_class, window, pattern, seed: int) -> None:
    """What was acted on is what is trained on: sampled stacks equal the stacker's, everywhere."""
    subject = HostSubject(window, 40, 2)
    stacker = stacker_class(subject.pond.spec, window)
    history, acted = stacker.init(2), []
    streams = [Stream(env, pattern, random.Random(seed + env)) for env in range(2)]
    for _ in range(30):
        rows = to_rows([[stream.next() for stream in streams]])
        rows = pick(rows, 0)
        history, stacked = stacker.push(history, rows.obs, rows.flags)
        acted.append(stacked)
        subject.add(rows)
    stream, row = np.divmod(np.arange(60), 30)
    batch = subject.take(stream, row)
    for b in np.flatnonzero(batch.mask):
        mine = jax.tree.map(lambda leaf, b=b: leaf[stream[b]], acted[row[b]])
        yours = jax.tree.map(lambda leaf, b=b: leaf[b], batch.obs)
        jax.tree.map(np.testing.assert_array_equal, mine, yours)


def test_the_unmutated_arithmetic_survives():
    assert survives(load(SOURCE.read_text()))


@pytest.mark.parametrize(
    "share", [0, *(pytest.param(share, marks=pytest.mark.full) for share in (1, 2, 3))]
)
def test_every_index_mutant_is_caught(share, record_property):
    caught, alive, skipped = [], [], []
    for number, (key, label, code) in enumerate(mutants()):
        if number % 4 != share:
            continue
        if key in EQUIVALENT:
            skipped.append(f"equivalent  {label}   ({EQUIVALENT[key]})")
            continue
        (alive if survives(load(code)) else caught).append(label)
    assert caught
    assert not alive, "mutants that no contract story caught:\n" + "\n".join(alive)
    for label in caught:
        record_property("mutants", f"caught  {label}")
    for label in skipped:
        record_property("mutants", label)


def test_stacker_equals_training_stack():
    import millpond

    for seed in range(6):
        for pad in ("zeros", "first"):
            window = millpond.Window(stack=4, n_step=2, pad=pad)
            check_stacker(Stacker, window, PATTERNS["everything"], seed)
