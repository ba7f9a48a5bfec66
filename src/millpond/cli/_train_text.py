"""What a training run prints while it runs and at the end."""

from __future__ import annotations

import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..doctor import Verdict, Watch
from ..errors import Diverged, MillpondError, NotInstalled
from ..metrics import read_metrics
from ..run_folder import shell_word
from ..train import Run, train
from ..train.session import curve, resume_point
from ..view import save_curve, terminal_curve
from ._print import elapsed, short


def train_and_show(run: Run) -> int:
    """Train to the end with a progress line, then draw the curve; returns the exit code."""
    console = Console(stderr=True)
    settings = run.settings
    begin = resume_point(run)
    where = f" from step {begin:,}" if begin else ""
    title = f"{settings.env}, {settings.agent}, {settings.steps:,} steps{where}: {run.path}"
    if run.status()["state"] == "finished" and begin >= settings.steps:
        title = f"{run.path} is finished; nothing to do"
    console.print(title, soft_wrap=True)  # a path broken in two cannot be copied
    if note := getattr(settings.world, "note", ""):
        console.print(note, soft_wrap=True)
    began = time.monotonic()
    try:
        with ProgressLine(console, settings.steps, begin) as line:
            watch = Watch(run)

            def show(one: dict[str, Any]) -> None:
                line(one)
                for verdict in watch(one):
                    show_verdict(console, verdict, one["steps"])

            digest = train(run, show)
    except KeyboardInterrupt:
        again = f"millpond resume {shell_word(run.path)} continues from step {resume_point(run):,}"
        console.print(f"stopped; {again}", soft_wrap=True)
        return 130
    except Diverged as error:
        console.print(f"diverged: {error}", style="red", soft_wrap=True)
        return 3
    except MillpondError:
        raise  # its message says what to do
    except (Exception, SystemExit) as error:  # an env may call sys.exit
        show_failure(console, error, run.path)
        return 1
    show_curve(run)
    show_last(run)
    if line.speeds:
        took, usual = elapsed(time.monotonic() - began), median(line.speeds)
        print(f"took {took}; {speed_text(usual)} while acting and learning")
    print(f"hash of the parameters {digest}")
    print(f"next: millpond eval {shell_word(run.path)}")
    return 0


def show_failure(console: Console, error: BaseException, path: Path) -> None:
    """Print what a user's env or agent (or a bug of ours) raised, and what to do next."""
    console.print(traceback.format_exc(), markup=False, highlight=False, soft_wrap=True)
    why = f"{type(error).__name__}: {error}".removesuffix(": ")
    folder = shell_word(path)
    again = f"millpond doctor {folder} shows where, millpond resume {folder} continues it"
    console.print(f"failed: {why}; {again}", style="red", markup=False, soft_wrap=True)


def show_verdict(console: Console, verdict: Verdict, steps: int) -> None:
    """Print a verdict of the doctor above the progress line."""
    text = f"{steps:>11,} steps   {verdict.state} {verdict.name}: {verdict.message}"
    console.print(Text(f"{text}; {verdict.remedy}", style=verdict.state), soft_wrap=True)


class ProgressLine:
    """Shows a run's progress: two live lines in a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, steps: int, begin: int) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.percentage:3.0f}%"),
            BarColumn(bar_width=None),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self.task = self.progress.add_task("", total=steps, completed=begin)
        self.text = Text("compiling ...")
        lines = Group(self.progress, self.text)
        self.live = Live(lines, console=console, transient=True, refresh_per_second=4)
        self.greedy = ""
        self.speeds: list[float] = []

    def __enter__(self) -> ProgressLine:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def __call__(self, line: dict[str, Any]) -> None:
        if line["kind"] == "eval":
            self.greedy = greedy_text(line)
            if not self.console.is_terminal:
                self.console.print(f"{line['steps']:>11,} steps   {self.greedy}")
        elif line["kind"] == "train":
            self.progress.update(self.task, completed=line["steps"])
            self.speeds.append(line["steps_per_second"])
            self.text.plain = self._text(line)

    def _text(self, line: dict[str, Any]) -> str:
        speed = speed_text(line["steps_per_second"])
        parts = [f"{short(line['steps'])} steps in {elapsed(line['seconds'])}, {speed}"]
        if line["return"] is not None:
            parts.append(f"return {line['return']:.2f}")
        if self.greedy:
            parts.append(self.greedy)
        if "epsilon" in line:
            parts.append(f"eps {max(line['epsilon']):.3f}")
        if line["updates_per_second"]:
            parts.append(f"{short(line['updates_per_second'])} updates/s")
        if "q" in line:
            parts.append(f"Q {line['q']:.2f}")
        if "loss" in line:
            parts.append(f"loss {line['loss']:.3g}")
        return "  ".join(parts)


def speed_text(steps_per_second: float) -> str:
    """The speed: env steps of all policies per second, without evaluating and saving."""
    return f"{short(steps_per_second)} env steps/s"


def greedy_text(line: dict[str, Any]) -> str:
    """One evaluation: the mean return, the worst agent's, and the events that the env counts."""
    text = f"greedy {line['return']:.2f}"
    if len(line["returns"]) > 1:
        text += f" (worst agent {line['least']:.2f})"
    for name, members in line.get("counts", {}).items():
        text += f"  {name} {sum(members) / len(members):.2f}"
    return text


def show_last(run: Run) -> None:
    """Print the last evaluation in one line."""
    if lines := list(read_metrics(run.metrics, "eval")):
        print(f"{greedy_text(lines[-1])} after {lines[-1]['steps']:,} steps")


def show_curve(run: Run) -> None:
    """Draw greedy returns by env steps, in the terminal and as a picture in the run's folder."""
    steps, returns = curve(run)
    draw_curve(
        steps,
        returns,
        f"{run.settings.env}, {run.settings.agent}: greedy return by env steps",
        run.path / "curve.png",
        "env steps",
    )


def can_show(text: str) -> bool:
    """Whether standard output can encode a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def draw_curve(
    x: Sequence[float], y: Sequence[float], title: str, path: Path, x_label: str
) -> None:
    """Draw a curve in the terminal, and as a picture if its packages are installed.

    A single point is not drawn.
    """
    if len(x) < 2:
        return
    drawn = terminal_curve(x, y, title, shutil.get_terminal_size().columns)
    if can_show(drawn):
        print(drawn)
    else:
        encoding = sys.stdout.encoding
        print(
            f"no curve here: it needs UTF-8, but the terminal uses {encoding}; set LC_ALL=C.UTF-8"
        )
    try:
        save_curve(path, x, y, title, x_label, "return")
    except NotInstalled as error:
        print(f"no {path.name}: {error}")
