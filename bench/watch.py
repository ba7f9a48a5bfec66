"""The live page: how fast it answers, how soon it shows, what it costs: `make bench ONLY=watch`.

Twenty runs of 100,000 lines each are served by `millpond watch` in a process of its own: times and
sizes of what the page asks for, first and again; the same of 30 and of 300 runs of 1,000 lines, and
how soon a browser shows them. An update's way is timed from the line on disk to
the figures that hold it. Then a real training runs on, in stretches with and without a page that
listens and fetches as the browser does, one after the other, and medians are compared; beside it
stands the server's CPU time, which tells more than the noise of a shared machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from millpond.cli.train import parse_train
from millpond.metrics import Metrics
from millpond.train import Run, train
from millpond.train.presets import settings_for

RUNS, LINES, UPDATES = 20, 100_000, 20
CROWDS, SHORT = (30, 300), 1000
# Rounds of about a second; what is rare would only make some of them longer than others.
RARE = "--eval-every 1000000000 --checkpoint-every 1000000000 --resume-every 1000000000"
OPTIONS = f"--steps 1000000000 --log-every 20000 {RARE}"


def write_runs(root: Path, number: int = RUNS, lines: int = LINES, seeds: int = 1) -> Run:
    """Runs, so many seeds of each setting; all but the first share one file of metrics.

    That is to be kind to the disk.
    """
    base = settings_for("treasurehunt-small", agent="dqn")

    def settings(index: int) -> Any:
        learning = dataclasses.replace(base.learning, batch=32 + index // seeds)
        return dataclasses.replace(base, seed=index % seeds, learning=learning)

    rng = np.random.default_rng(0)
    noise = rng.normal(size=(lines, 8)).round(5).tolist()
    first = Run.create(root / "run-000", settings(0))
    text: list[str] = []
    for i, some in enumerate(noise):
        place = f'"steps": {128 * i}, "frames": {128 * i}'
        values = {"return": some[0], "returns": some[:5], "loss": abs(some[5]), "q": some[6]}
        values |= {"epsilon": [0.1] * 5, "rate": 1e-3, "updates": i, "target_updates": i}
        rest = json.dumps(values | {"gradient": abs(some[7]), "change": 0.001, "episodes": 9})
        text.append(f'{{"kind": "train", {place}, {rest[1:]}\n')
        if i % 100 == 99:
            greedy = {"return": some[0] + i / lines, "returns": some[:5], "errors": [0.1] * 5}
            text.append(f'{{"kind": "eval", {place}, {json.dumps(greedy)[1:]}\n')
    whole = "".join(text)
    first.metrics.write_text(whole)
    shared = root / "shared"
    shared.write_text(whole)
    for index in range(1, number):
        run = Run.create(root / f"run-{index:03d}", settings(index))
        os.link(shared, run.metrics)
    return first


class Client:
    """Asks what the page asks, over one socket."""

    def __init__(self, host: str, port: int, cookie: str) -> None:
        self.host, self.port, self.cookie = host, port, cookie
        self._stream: socket.socket | None = None

    @staticmethod
    def opened(address: str) -> Client:
        """With the cookie that an address's token is traded for."""
        found = re.search(r"http://([^:]+):(\d+)/\?token=(\S+)", address)
        assert found
        client = Client(found[1], int(found[2]), "")
        _, headers, _ = client.get(f"/?token={found[3]}")
        client.cookie = headers["set-cookie"].partition(";")[0]
        return client

    def get(self, path: str) -> tuple[float, dict[str, str], bytes]:
        """Seconds, headers, body."""
        began = time.perf_counter()
        line = http.client.HTTPConnection(self.host, self.port, timeout=600)
        with contextlib.closing(line):
            line.request("GET", path, headers={"Cookie": self.cookie})
            answer = line.getresponse()
            body = answer.read()
            headers = {name.lower(): value for name, value in answer.getheaders()}
        assert answer.status < 400, body
        return time.perf_counter() - began, headers, body

    @contextlib.contextmanager
    def events(self) -> Any:
        """Data of events, one after the other; until it is closed."""
        line = http.client.HTTPConnection(self.host, self.port, timeout=600)
        line.request("GET", "/api/events", headers={"Cookie": self.cookie})
        self._stream = line.sock
        answer = line.getresponse()

        def walk() -> Any:
            while text := answer.readline():
                if text.startswith(b"data: "):
                    yield json.loads(text[6:])

        try:
            yield walk()
        finally:
            line.close()

    def shut(self) -> None:
        """End the stream of events, from another thread."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def server(root: Path) -> Any:
    """`millpond watch` in a process of its own: its address and its process."""
    command = [sys.executable, "-m", "millpond", "watch", str(root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            told = process.stdout.readline() + process.stdout.readline()
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield told, process
        finally:
            process.terminate()
            process.wait(timeout=30)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # pyright: ignore


def answers(root: Path) -> dict[str, Any]:
    """Times in ms and sizes in kB of what the page asks for, and an update's way."""
    growing = write_runs(root)
    with server(root) as (told, process):
        client = Client.opened(told)
        found: dict[str, Any] = {}

        def ask(name: str, path: str) -> bytes:
            first, _, body = client.get(path)
            while json.loads(body).get("unread"):  # the page asks again until all are there
                more, _, body = client.get(path)
                first += more
            again = statistics.median(client.get(path)[0] for _ in range(5))
            found[name] = dict(first_ms=first * 1e3, again_ms=again * 1e3, kb=len(body) / 1e3)
            return body

        cards = json.loads(ask("list of 20 runs", "/api/runs"))["runs"]
        ids = [card["id"] for card in sorted(cards, key=lambda card: card["name"])]
        ask("one run of 100,000 lines", f"/api/runs/{ids[0]}")
        ask("5 runs compared", f"/api/compare?runs={','.join(ids[:5])}")
        ask("20 runs compared", f"/api/compare?runs={','.join(ids)}")
        found["update_ms"] = update_times(client, growing, ids[0])
        found["browser"] = in_browser(client, growing, ids)
        found["memory_mb"] = memory_mb(process.pid)
    return found


def update_times(client: Client, run: Run, run_id: str) -> list[float]:
    """From a line on disk to the figures that hold it, as the page fetches them."""
    metrics = Metrics(run.metrics)
    took: list[float] = []
    with client.events() as events:
        next(events)
        for number in range(UPDATES):
            x = 128 * (LINES + number)
            began = time.perf_counter()
            metrics.write("train", x, x, {"return": 0.5, "q": 1.0})
            while time.perf_counter() - began < 60:
                next(events)
                _, _, body = client.get(f"/api/runs/{run_id}")
                returns = json.loads(body)["figures"][0]["data"]
                if any(trace["x"][-1] == x for trace in returns):
                    break
            took.append((time.perf_counter() - began) * 1e3)
    metrics.close()
    return took


# Frames while the page is scrolled and one of its runs grows: gaps between them in ms.
FRAMES = """
const done = arguments[arguments.length - 1], gaps = [], main = document.scrollingElement;
let before = performance.now(), began = before;
function frame(now) {
  gaps.push(now - before);
  before = now;
  main.scrollTop = (main.scrollTop + 12) % Math.max(1, main.scrollHeight - innerHeight);
  if (now - began < 10000) requestAnimationFrame(frame); else done(gaps);
}
requestAnimationFrame(frame);
"""


def crowd(root: Path, number: int, look: bool = True) -> dict[str, Any]:
    """Times of many short runs, five seeds of each setting: the server's, then a browser's."""
    write_runs(root, number, SHORT, seeds=5)
    with server(root) as (told, process):
        client = Client.opened(told)
        found: dict[str, Any] = {}

        def ask(name: str, path: str) -> Any:
            """Until all is read, and once more: milliseconds of CPU time, which do not depend on
            what else the machine does."""
            body = b"{}"
            for suffix in ("", "_again"):
                began, unread = cpu_seconds(process.pid), 1
                while unread:
                    _, _, body = client.get(path)
                    unread = json.loads(body).get("unread", 0)
                found[f"{name}{suffix}_cpu_ms"] = (cpu_seconds(process.pid) - began) * 1e3
            return json.loads(body)

        ids = ",".join(ask("list", "/api/runs")["order"])
        ask("greedy", f"/api/greedy?runs={ids}")
        ask("compared", f"/api/compare?runs={ids}&figures=compare-greedy")
        found["memory_mb"] = memory_mb(process.pid)
        if not look:
            return found
        with browser(client) as page:
            if page is not None:
                found |= crowd_in_browser(page, ids, number)
    return found


def crowd_in_browser(page: Any, ids: str, number: int) -> dict[str, float]:
    """The overview of many runs and their comparison, until they are drawn."""
    rows = "document.querySelectorAll('.runs-table tbody tr').length"
    curves = "document.querySelector('[data-figure=compare-greedy] .plot')?.data?.length || 0"

    def timed(script: str, wanted: str) -> float:
        began = time.perf_counter()
        page.execute_script(script)
        drawn(page, wanted)
        return (time.perf_counter() - began) * 1e3

    found = {"overview_ms": timed("location.reload()", f"{rows} === {number // 5}")}
    drawn(page, "document.querySelector('.chart .plot')?.data?.length")
    found["every_run_ms"] = timed("location.hash = 'each=1'", f"{rows} === {number}")
    sort = "const t = performance.now(); document.querySelector('[data-sort=seed]').click(); "
    found["sort_ms"] = page.execute_script(
        f"{sort} document.body.offsetHeight; return performance.now() - t"
    )
    found["nodes"] = page.execute_script("return document.querySelectorAll('*').length")
    means = f"({curves}) >= {number // 5}"
    found["compare_ms"] = timed(f"location.hash = 'compare={ids}'", means)
    return found


def drawn(page: Any, wanted: str) -> None:
    """Wait until a script says so."""
    from selenium.webdriver.support.ui import WebDriverWait

    look = WebDriverWait(page, 120, poll_frequency=0.02)
    look.until(lambda driver: driver.execute_script(f"return {wanted}"), wanted)


@contextlib.contextmanager
def browser(client: Client) -> Any:
    """Chromium at the page, or None where there is none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        yield None
        return
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_argument("--disable-background-networking")
    options.add_argument("--window-size=1400,1000")
    page = webdriver.Chrome(options, Service(driver))
    try:
        page.set_script_timeout(60)
        address = f"http://{client.host}:{client.port}/"
        page.get(address)  # refused, but now it may have a cookie
        name, _, value = client.cookie.partition("=")
        page.add_cookie({"name": name, "value": value, "httpOnly": True, "sameSite": "Strict"})
        page.get(address)
        drawn(page, "document.querySelectorAll('.runs-table tbody tr').length")
        yield page
    finally:
        page.quit()


def in_browser(client: Client, run: Run, ids: list[str]) -> dict[str, Any]:
    """Twenty runs compared in chromium, if there is one: time to draw, and frames after that."""
    with browser(client) as page:
        if page is None:
            return {}
        began = time.perf_counter()
        page.execute_script(f"location.hash = 'compare={','.join(ids)}'")
        drawn(page, f"document.querySelector('.chart .plot')?.data?.length >= {RUNS}")
        draw = time.perf_counter() - began
        stop = threading.Event()
        growing = threading.Thread(target=_grow, args=(run, stop))
        growing.start()
        gaps = sorted(page.execute_async_script(FRAMES))
        stop.set()
        growing.join()
        sizes = page.execute_script(
            "return [...document.querySelectorAll('.chart .plot')].map("
            "(plot) => (plot.data || []).reduce((sum, one) => sum + one.x.length, 0))"
        )
    ends = {"median": gaps[len(gaps) // 2], "p95": gaps[int(0.95 * len(gaps))], "most": gaps[-1]}
    return {"draw_ms": draw * 1e3, "frame_ms": ends, "frames": len(gaps), "points": sizes}


def _grow(run: Run, stop: threading.Event) -> None:
    metrics = Metrics(run.metrics)
    number = 2 * LINES
    while not stop.wait(1.0):
        number += 1
        metrics.write("train", 128 * number, 128 * number, {"return": 0.5, "q": 1.0})
    metrics.close()


def view(cookie: str, host: str, port: str) -> None:
    """A page that looks while it is told to, `on` or `off` by lines; it ends with its input.

    As gently as can be: it stands for a browser that is somewhere else.
    """
    os.nice(19)
    client = Client(host, int(port), cookie)

    def look() -> None:
        shut = (OSError, ValueError, http.client.HTTPException, AttributeError)
        with contextlib.suppress(*shut), client.events() as events:
            for news in events:
                for card in news["runs"]:
                    client.get(f"/api/runs/{card['id']}")
                    client.get(f"/api/runs/{card['id']}/doctor")

    for line in sys.stdin:
        if line.strip() == "on":
            threading.Thread(target=look, daemon=True).start()
        else:
            client.shut()


def slow_down(root: Path, stretches: int, rounds: int, options: str) -> dict[str, Any]:
    """Steps per second of a training, by turns without and with a page that looks at it."""
    settings = parse_train(settings_for("treasurehunt-small"), options.split())
    run = Run.create(root / "train", settings)
    speeds: dict[bool, list[float]] = {False: [], True: []}
    each: list[float] = []
    spent = {False: 0.0, True: 0.0}
    walls = {False: 0.0, True: 0.0}
    with server(root) as (told, process):
        client = Client.opened(told)
        state: dict[str, Any] = {"seen": -3, "since": None}
        command = [sys.executable, __file__, "--view", client.cookie, client.host]
        viewer = subprocess.Popen(
            [*command, str(client.port)], stdin=subprocess.PIPE, text=True, bufsize=1
        )
        assert viewer.stdin is not None

        def switch(on: bool) -> None:
            viewer.stdin.write("on\n" if on else "off\n")

        def heard(line: dict[str, Any]) -> None:
            if line["kind"] != "train":
                return
            state["seen"] += 1
            seen = state["seen"]
            if seen < 0:
                return  # compiling, filling
            stretch, at = divmod(seen, rounds + 2)
            on = bool(stretch % 2)
            now = time.perf_counter(), cpu_seconds(process.pid)
            if at == 0:
                switch(on)
            elif at == 1:
                state["since"] = now  # one round for whoever starts or stops
            else:
                each.append(line["steps_per_second"])
                if at == rounds + 1:
                    speeds[on].append(statistics.median(each))
                    each.clear()
                    walls[on] += now[0] - state["since"][0]
                    spent[on] += now[1] - state["since"][1]
                    if len(speeds[True]) == stretches:
                        raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            train(run, heard)
        viewer.stdin.close()
        viewer.wait(timeout=30)
    pairs = [on / off for off, on in zip(speeds[False], speeds[True], strict=True)]
    return {
        "unwatched": speeds[False],
        "watched": speeds[True],
        "ratio": statistics.median(pairs),
        "ratios": sorted(pairs),
        "interval": interval(pairs),
        "server_cpu_idle": spent[False] / walls[False],
        "server_cpu_watched": spent[True] / walls[True],
    }


def interval(pairs: list[float]) -> list[float]:
    """95% of the medians that as many pairs, drawn from these, would have had."""
    drawn = np.random.default_rng(0).choice(pairs, (10_000, len(pairs)))
    return np.quantile(np.median(drawn, axis=1), [0.025, 0.975]).tolist()


def show(found: dict[str, Any]) -> None:
    print(f"{'what the page asks for':<28}{'first, ms':>11}{'again, ms':>11}{'kB':>9}")
    for name, one in found["answers"].items():
        if isinstance(one, dict) and "kb" in one:
            times = f"{one['first_ms']:>11,.0f}{one['again_ms']:>11,.1f}{one['kb']:>9,.1f}"
            print(f"{name:<28}{times}")
    took = found["answers"]["update_ms"]
    middle = statistics.median(took)
    print(f"an update is shown after {middle:,.0f} ms, at most {max(took):,.0f} ms")
    print(f"memory of the server: {found['answers']['memory_mb']:,.0f} MB")
    if page := found["answers"]["browser"]:
        gaps = ", ".join(f"{name} {gap:.0f} ms" for name, gap in page["frame_ms"].items())
        print(f"20 runs compared in a browser: drawn after {page['draw_ms']:,.0f} ms")
        print(f"then {page['frames']} frames in 10 s of scrolling, beside updates: {gaps}")
    for number, crowded in found["crowds"].items():
        times = ", ".join(f"{name} {value:,.0f}" for name, value in crowded.items())
        print(f"{number} runs of {SHORT:,} lines: {times}")
    if "training" not in found:
        return
    slow = found["training"]
    low, high = slow["ratios"][0], slow["ratios"][-1]
    inside = "{:.4f}, {:.4f}".format(*slow["interval"])
    number = len(slow["ratios"])
    spread = f"median {slow['ratio']:.4f} [{inside}] of {number}, from {low:.3f} to {high:.3f}"
    print(f"watched / unwatched steps per second: {spread}")
    idle, watched = slow["server_cpu_idle"], slow["server_cpu_watched"]
    print(f"CPU of the server: {watched:.2%} of a core while watched, {idle:.2%} while not")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stretches", type=int, default=60, help="of each kind")
    parser.add_argument("--rounds", type=int, default=6, help="of the training, per stretch")
    parser.add_argument("--options", default=OPTIONS)
    parser.add_argument("--out", type=Path, default=Path("bench/out/watch.json"))
    parser.add_argument("--only-answers", action="store_true", help="omit the training")
    parser.add_argument("--crowd", type=int, help="only this many short runs, without a browser")
    parser.add_argument("--view", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.view:
        view(*options.view)
        return
    if options.crowd:
        with tempfile.TemporaryDirectory() as folder:
            found = crowd(Path(folder), options.crowd, look=False)
        print(f"{options.crowd} runs of {SHORT:,} lines:", found)
        return
    with tempfile.TemporaryDirectory() as folder:
        answered = answers(Path(folder))
    crowds: dict[int, Any] = {}
    for number in CROWDS:
        with tempfile.TemporaryDirectory() as folder:
            crowds[number] = crowd(Path(folder), number)
    if options.only_answers:
        show({"answers": answered, "crowds": crowds})
        return
    with tempfile.TemporaryDirectory() as folder:
        slowed = slow_down(Path(folder), options.stretches, options.rounds, options.options)
    found = {"answers": answered, "crowds": crowds, "training": slowed, "load": os.getloadavg()[0]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=2) + "\n")
    show(found)


if __name__ == "__main__":
    main()
