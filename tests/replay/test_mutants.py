"""The contract fails when any index in the arithmetic of windows or sequences is off by one.

Every integer that takes part in an index (literals, `self.stack`, `self.n_step`, loop counters,
`depth`, `steps`, `size`) in the arithmetic of window.py and sequence.py is shifted by +1 and by -1,
one place at a time. Each mutant then runs contract stories on a HostPond, and at least one story
must fail.
"""

from __future__ import annotations

import ast
import contextlib
import random
import types
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scenarios import PATTERNS, HostSubject, Stream, pick, to_rows
from test_contract import play

import millpond.sequence
import millpond.window
from millpond import BadConfig, Sequence, Stacker, Window, prioritized

SOURCE = Path(millpond.window.__file__)
SEQUENCE = Path(millpond.sequence.__file__)
ARITHMETIC = {"before", "eligible", "judge", "lookback", "returns", "push"}
ARITHMETIC |= {"n_step", "time", "offsets", "whole", "seen", "facts", "_earliest"}  # of sequences
INDEX_NAMES = {"here", "back", "ahead", "depth", "newest", "deeper", "size", "length", "first"}
INDEX_NAMES |= {"cut", "known", "stacked", "until", "none", "places", "rows", "at", "earliest"}
INDEX_ATTRIBUTES = {"stack", "n_step", "steps", "depth", "before"}
INDEX_ATTRIBUTES |= {"length", "burn_in", "time", "back", "until"}
# Shifts that cannot change any result, each with its reason.
EQUIVALENT = {
    "returns: self.n_step +1 in powers": "a longer table with the same entries",
    "returns: 1 +1 in powers": "a longer table with the same entries",
    "eligible: 0 -1 in return": "0 times 0 is 0 as well, and -1 is not above itself",
    "push: newest +1 in deeper": "the cap only keeps the counter from overflowing",
}
SEQUENCE_EQUIVALENT = {
    "eligible: 0 -1 in return": EQUIVALENT["eligible: 0 -1 in return"],
    "eligible: size +1 in count": "flags decide; the count only spares useless draws",
    "eligible: self.length -1 in count": "flags decide; the count only spares useless draws",
    "eligible: 1 -1 in count": "flags decide; the count only spares useless draws",
    "eligible: size +1 in none": "times 0",
    "eligible: size -1 in none": "times 0",
    "judge: cut +1 in return": "the first row that has its stack needs no more",
    "_earliest: none +1 in return": "both ends of a comparison move, and rows end with the length",
    "judge: here +1 in first": "reach is bounded by the cut, and back is more than enough",
    "judge: here +1 in cut": "reach is bounded by the first row, and back is more than enough",
    "judge: self.length +1 in whole": "offsets end with the length",
    "judge: here +1 in if": "the shortcut is not taken, and the long way says the same",
    "judge: self.length +1 in linked": "until is at most the length",
    "seen: rows -1 in there": "the row at until is a border row",
    "seen: span.until +1 in there": "the row at until is a border row",
    "whole: span.back -1 in return": "copied row by row, though it is whole",
    "whole: self.burn_in +1 in return": "copied row by row, though it is whole",
    "whole: span.until -1 in return": "copied row by row, though it is whole",
    "whole: self.length +1 in return": "copied row by row, though it is whole",
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
    if isinstance(node, ast.Call) and text.startswith("xp.arange(found.shape[0], dtype="):
        return True  # shaped along the first axis
    if isinstance(node, ast.Call):  # np.float32(0), dtype.type(0)
        return text in ("np.float32(0)", "chosen.dtype.type(0)", "isinstance(leaf, jax.Array)")
    if isinstance(node, ast.Attribute):  # back.shape
        return node.attr == "shape"
    return isinstance(node, ast.BinOp) and text in ("(1,) * (frames.ndim - 2)",)


def mutants(path: Path = SOURCE):
    source = path.read_text()
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


@contextlib.contextmanager
def in_the_place_of(*pairs: tuple[type, type]) -> Generator[None]:
    """A mutant's arithmetic in the real class: stores take no windows but real ones."""
    swapped = [
        (real, name, vars(real)[name], vars(mutant)[name])
        for real, mutant in pairs
        for name in ARITHMETIC & set(vars(real))
    ]
    assert swapped
    for real, name, _, other in swapped:
        setattr(real, name, other)
    try:
        yield
    finally:
        for real, name, own, _ in swapped:
            setattr(real, name, own)


def survives(module: types.ModuleType) -> bool:
    """Whether the mutant passes every story below."""
    with in_the_place_of((Window, module.Window)):
        return passes(module.Stacker)


def passes(stacker_class: Any) -> bool:
    windows = [
        Window(stack=3, n_step=2, gamma=0.5),
        Window(stack=2, n_step=3, gamma=0.9, pad="first", life_loss_ends=True),
        Window(),
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
                check_stacker(stacker_class, window, pattern, seed)
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


def sequence_survives(module: types.ModuleType) -> bool:
    """As `survives`, of sequences."""
    aged = type(Sequence(1).ranked), type(module.Sequence(1).ranked)
    with in_the_place_of((Sequence, module.Sequence), aged):
        return sequences_pass()


def sequences_pass() -> bool:
    windows = [
        (Sequence(3, stack=2, burn_in=2, end="stop"), None),
        (Sequence(2, stack=3, burn_in=1, gamma=0.5), None),
        (Sequence(1, stack=2, end="stop", every=2), prioritized()),
        (Sequence(4), prioritized()),
        (Sequence(3, end="stop"), None),
    ]
    try:
        for seed in range(8):
            chance = random.Random(seed)
            pattern = PATTERNS[["everything", "short", "cuts", "long"][seed % 4]]
            ops = [("add", chance.randrange(1, 9)) for _ in range(chance.randrange(1, 8))]
            ops += [("cut", chance.randrange(3))] if seed % 3 == 0 else []
            for window, sampler in windows:
                for few in range(7 if seed < 2 else 0):  # just too little, and just enough
                    story = (7, 1, [("add", 1)] * few, seed)
                    play(HostSubject, window, PATTERNS["long"], story, 64, sampler)
                play(HostSubject, window, pattern, (6 + seed % 5, 2, ops, seed), 64, sampler)
        with pytest.raises(BadConfig):
            Sequence(4, stack=2).fits(HostSubject(Window(), 7, 1).pond.spec, 5)
        Sequence(4, stack=2).fits(HostSubject(Window(), 7, 1).pond.spec, 6)
    except Exception:
        return False
    return True


def test_the_unmutated_arithmetic_survives():
    assert survives(load(SOURCE.read_text()))
    assert sequence_survives(load(SEQUENCE.read_text()))


@pytest.mark.parametrize(
    "share", [0, *(pytest.param(share, marks=pytest.mark.full) for share in (1, 2, 3))]
)
@pytest.mark.parametrize("source", [SOURCE, SEQUENCE], ids=["window", "sequence"])
def test_every_index_mutant_is_caught(source, share, record_property):
    caught, alive, skipped = [], [], []
    alike, equivalent = survives, EQUIVALENT
    if source is SEQUENCE:
        alike, equivalent = sequence_survives, SEQUENCE_EQUIVALENT
    for number, (key, label, code) in enumerate(mutants(source)):
        if number % 4 != share:
            continue
        if key in equivalent:
            skipped.append(f"equivalent  {label}   ({equivalent[key]})")
            continue
        (alive if alike(load(code)) else caught).append(label)
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
