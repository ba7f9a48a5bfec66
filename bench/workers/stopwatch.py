"""CPU time of a call, and the card on which a worker writes what it measured."""

from __future__ import annotations

import contextlib
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

IN_JIT = ("vector_add_scan", "prioritised_calls", "prioritised_scan")
IN_JIT += ("scan_add_first", "scan_sample_first")
_SPAN_S = 2e-3  # shortest stretch that is timed: the clock itself costs about a microsecond


def cpu_us(
    call: Callable[[], Any],
    per_call: int = 1,
    budget_s: float = 1.0,
    warm: int = 3,
    least: int = 7,
) -> float:
    """Median CPU µs of `call` / per_call, over all threads of the process, after warm-up.

    CPU time, not wall time: what other processes do on this core must not count.
    """
    for _ in range(warm):
        call()
    repeats = 1
    while (span := _span(call, repeats)) < _SPAN_S:
        repeats = max(2 * repeats, int(repeats * _SPAN_S / max(span, 1e-6)))
    gc.collect()
    gc.disable()
    try:
        spans: list[float] = []
        while len(spans) < least or sum(spans) < budget_s:
            spans.append(_span(call, repeats))
    finally:
        gc.enable()
    return statistics.median(spans) / repeats / per_call * 1e6


def _span(call: Callable[[], Any], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        call()
    return time.process_time() - start


@contextlib.contextmanager
def allocated() -> Iterator[Callable[[], int]]:
    """Bytes that Python and NumPy allocated since: `with allocated() as held: ...; held()`."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


class Card:
    """What one worker measured: every row has a value, or None and the reason.

    Row keys name the work; `key.variant` is another way to do it, kept out of the main table.
    """

    def __init__(self, *packages: str) -> None:
        self.versions = {package: metadata.version(package) for package in packages}
        self.rows: dict[str, dict[str, Any]] = {}

    def put(self, key: str, value: float, note: str = "") -> None:
        """One measured value; a note says where the work differs from what was asked."""
        self.rows[key] = {"value": value, "note": note}

    def best(self, key: str, ways: dict[str, float], note: str = "") -> None:
        """The fastest of several ways to do the same, and the others as variants."""
        name = min(ways, key=lambda way: ways[way])
        self.put(key, ways[name], f"{name}; {note}" if note else name)
        for other, value in ways.items():
            if other != name:
                self.put(f"{key}.{other}", value)

    def skip(self, reason: str, *keys: str) -> None:
        """Rows that this library cannot do."""
        for key in keys:
            self.rows[key] = {"value": None, "reason": reason}

    def skip_jit(self) -> None:
        """The rows that take place inside jit, for a library of the host."""
        self.skip("nothing of it runs inside jit", *IN_JIT)

    @contextlib.contextmanager
    def section(self, *keys: str) -> Iterator[None]:
        """Rows measured together; if something raises, those still without a value say why."""
        try:
            yield
        except Exception as error:  # one library's fault must not cost the others their numbers
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self.skip(reason, *(key for key in keys if key not in self.rows))

    def show(self) -> None:
        """Print the card as the worker's last line."""
        print(json.dumps({"versions": self.versions, "rows": self.rows}), flush=True)
