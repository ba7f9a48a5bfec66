"""Run folders written by the project's own writers, and a live page over them in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mix_runs import mixture
from tiny_runs import WORLD, settings

from millpond.metrics import Metrics
from millpond.mixture import MixRun
from millpond.train import Run
from millpond.view.address import listen
from millpond.view.guard import Tokens
from millpond.view.runs import Runs
from millpond.view.server import make_server

HEALTH = {  # of one learner in one round
    "rows": 64,
    "border_breaks": 0,
    "overwritten": 32,
    "overwritten_unsampled": 12,
    "sampled": 64,
    "stack_mismatches": 0,
    "rewards_nonzero": 9,
    "lag": [3, 1],
    "lag_max": 1,
    "epsilon_off": 0.0,
    "reward_mean": 0.1,
    "reward_max": 1.0,
    "target_reward_max": 1.0,
    "returns_checked": 4,
    "returns_wrong": 0,
    "stored": 32,
    "min_fill": 16,
    "samples_per_insert": 1.0,
    "torn": 0,
    "q": 0.5,
    "gradient": 1.0,
    "change": 0.01,
}


def write_train(path: Path, lines: int = 30, seed: int = 0, sick: bool = False) -> Run:
    """A run in mode processes: `lines` rounds, an evaluation every fifth, two processes.

    A sick one has lost its actor three times, which the doctor calls red.
    """
    run = Run.create(path, settings(mode="processes", seed=seed))
    grow(run, 1, lines)
    with open(path / "events.jsonl", "w", encoding="utf-8") as file:
        for process in ("learner", "actor"):
            file.write(f'{{"event": "started", "process": "{process}", "index": 0, ')
            file.write('"incarnation": 0, "pid": 1}\n')
        for _ in range(3 * sick):
            file.write('{"event": "lost", "process": "actor", "index": 0, ')
            file.write('"why": "killed by <b>SIGKILL</b>"}\n')
    run.say("finished", 16 * lines)
    return run


def grow(run: Run, first: int, last: int) -> None:
    """Write the rounds from `first` to `last` as a session does."""
    metrics, speed = Metrics(run.metrics), Metrics(run.speed)
    for i in range(first, last + 1):
        at = 16 * i, 16 * i
        learner = {**HEALTH, "updates": i, "target_updates": i}
        values: dict[str, Any] = {"return": i / 10, "returns": [i / 10, i / 8], "loss": 1 / i}
        values |= {"q": i / 20, "epsilon": [0.1, 0.2], "updates": i, "target_updates": i}
        rest = {"gradient": 1.0, "change": 0.01, "episodes": 2, "rate": 0.001}
        metrics.write("train", *at, values | rest)
        metrics.write("health", *at, {"learners": [learner, learner]})
        pace = {"seconds": i / 2, "steps_per_second": 1000.0 + i}
        shares = {"shares": {"actor 0": [0.5, 0.4, 0.1]}, "share_names": ["a", "b", "c"]}
        speed.write("speed", *at, pace | shares)
        if i % 5 == 0:
            greedy = {"return": i / 5, "returns": [i / 5, i / 4], "errors": [0.3, 0.4]}
            metrics.write("eval", *at, greedy | {"least": i / 5, "episodes": 3})
    metrics.close()
    speed.close()


def write_mixture(path: Path, cycles: int = 2) -> MixRun:
    """A mixture's folder: in every cycle agents, fill, big, a measure and a reset."""
    one = dataclasses.replace(WORLD, agents=1)
    of = dataclasses.replace(mixture(world=one), env="treasurehunt-small")
    run = MixRun.create(path, of)
    metrics, speed = Metrics(run.folder.metrics), Metrics(run.folder.speed)
    for i in range(1, 6 * cycles + 1):
        at, cycle = (100 * i, 400 * i), (i - 1) // 6
        values = {"return": i / 9, "epsilon": [0.5, 0.1], "q": i / 12, "loss": 1 / i}
        fills = {"pond_fill": 0.8, "lake_fill": i / 20, "updates": i, "cycle": cycle}
        metrics.write("train", *at, values | fills)
        speed.write("phase", *at, {"seconds": float(i), "share": {"agents": 0.7, "big": 0.3}})
        if i % 2 == 0:
            greedy = {"return": i / 6, "returns": [[i / 7, i / 5]], "big_return": i / 4}
            metrics.write("eval", *at, greedy | {"cycle": cycle, "when": "agents"})
        if i % 6 == 0:
            about = {"lake_rows": 800 * i, "lake_fill": i / 20, "big_pond_fill": 0.9}
            metrics.write("fill", *at, {"cycle": cycle, **about})
            learned = {"samples_per_row": 1.5, "q": [1.0, 2.0], "diverged": [False]}
            metrics.write("big", *at, {"cycle": cycle, **learned})
            seen = {"disagreement": [0.4], "max_q": [[1.5]], "big_max_q": [1.6], "realised": [1.2]}
            seen |= {"dormant": [[0.1, 0.2]], "big_dormant": [0.1]}
            metrics.write("measure", *at, {"cycle": cycle, **seen})
            reset = {"cloned": [True], "target": [i / 6]}
            metrics.write("reset", *at, {"cycle": cycle + 1, **reset})
            took = {"cycle": cycle + 1, "frames_to_recovery": [400]}
            metrics.write("recovery", *at, took)
    metrics.close()
    speed.close()
    run.folder.say("finished", 2400 * cycles)
    return run


class Page:
    """A live page: `page.get("/api/runs")`; `page.address()` opens it once."""

    def __init__(self, root: Path, chosen: str = "") -> None:
        self.runs, self.tokens = Runs(root), Tokens(chosen)
        self.listener = listen(port=0)
        self.port = self.listener.getsockname()[1]
        self.server = make_server(self.runs, self.listener, self.tokens)
        self._thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.listener]}, daemon=True
        )
        self._thread.start()
        self.cookie = ""

    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={self.tokens.token}"

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict, bytes]:
        """Status, headers and body; the cookie goes along once there is one."""
        known = {"Cookie": self.cookie} if self.cookie else {}
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(line):
            line.request(method, path, headers={**known, **headers})
            answer = line.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()

    def enter(self) -> None:
        status, headers, _ = self.ask(f"/?token={self.tokens.token}")
        assert status == 303
        self.cookie = headers["set-cookie"].partition(";")[0]

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()
        self.listener.close()


@contextlib.contextmanager
def page_over(root: Path, chosen: str = "") -> Iterator[Page]:
    page = Page(root, chosen)
    try:
        yield page
    finally:
        page.close()
