"""What a training run shows while it goes and when it has ended."""

from __future__ import annotations

import traceback
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..doctor import Verdict, Watch
from ..errors import Diverged, MillpondError
from ..metrics import read_metrics
from ..train import Run, train
from ..train.session import curve, resume_point
from ..view import save_curve, terminal_curve


def train_and_show(run: Run) -> int:
    """Train to the end with a progress line, then the learning curve; the exit code."""
    console = Console(stderr=True)
    settings = run.settings
    begin = resume_point(run)
    where = f" from step {begin:,}" if begin else ""
    title = f"{settings.env}, {settings.agent}, {settings.steps:,} steps{where}: {run.path}"
    if run.status()["state"] == "finished" and begin >= settings.steps:
        title = f"{run.path} is finished; nothing to do"
    console.print(title, soft_wrap=True)  # a path broken in two could not be copied
    try:
        with ProgressLine(console, settings.steps, begin) as line:
            watch = Watch(run)

            def told(one: dict[str, Any]) -> None:
                line(one)
                for verdict in watch(one):
                    show_verdict(console, verdict, one["steps"])

            digest = train(run, told)
    except KeyboardInterrupt:
        again = f"millpond resume {run.path} goes on from step {resume_point(run):,}"
        console.print(f"stopped; {again}", soft_wrap=True)
        return 130
    except Diverged as error:
        console.print(f"diverged: {error}", style="red", soft_wrap=True)
        return 3
    except MillpondError:
        raise  # it says what to do by itself
    except Exception as error:
        console.print(traceback.format_exc(), markup=False, highlight=False, soft_wrap=True)
        why = f"{type(error).__name__}: {error}"
        again = f"millpond doctor {run.path} says where, millpond resume {run.path} goes on"
        console.print(f"failed: {why}; {again}", style="red", markup=False, soft_wrap=True)
        return 1
    show_curve(run)
    show_last(run)
    print(f"parameters {digest}")
    print(f"next: millpond eval {run.path}")
    return 0


def show_verdict(console: Console, verdict: Verdict, steps: int) -> None:
    """One line of the doctor's, above the progress."""
    text = f"{steps:>11,} steps   {verdict.state} {verdict.name}: {verdict.message}"
    console.print(Text(f"{text}; {verdict.remedy}", style=verdict.state), soft_wrap=True)


class ProgressLine:
    """`told` of a training session: two live lines in a terminal, plain lines elsewhere."""

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
            self.text.plain = self._text(line)

    def _text(self, line: dict[str, Any]) -> str:
        parts = [f"{_short(line['steps'])} steps, {_short(line['steps_per_second'])}/s"]
        if line["return"] is not None:
            parts.append(f"return {line['return']:.2f}")
        if self.greedy:
            parts.append(self.greedy)
        if "epsilon" in line:
            parts.append(f"eps {max(line['epsilon']):.3f}")
        if line["updates_per_second"]:
            parts.append(f"{_short(line['updates_per_second'])} updates/s")
        if "q" in line:
            parts.append(f"Q {line['q']:.2f}")
        if "loss" in line:
            parts.append(f"loss {line['loss']:.3g}")
        return "  ".join(parts)


def greedy_text(line: dict[str, Any]) -> str:
    """One evaluation: the mean, the least of several policies, and what the env counts."""
    text = f"greedy {line['return']:.2f}"
    if len(line["returns"]) > 1:
        text += f" (least {line['least']:.2f})"
    for name, members in line.get("counts", {}).items():
        text += f"  {name} {sum(members) / len(members):.2f}"
    return text


def show_last(run: Run) -> None:
    """The last evaluation, in one line."""
    if lines := list(read_metrics(run.metrics, "eval")):
        print(f"{greedy_text(lines[-1])} after {lines[-1]['steps']:,} steps")


def show_curve(run: Run) -> None:
    """Greedy returns by env steps, in the terminal and as a picture in the run's folder."""
    steps, returns = curve(run)
    if not steps:
        return
    title = f"{run.settings.env}, {run.settings.agent}: greedy return by env steps"
    print(terminal_curve(steps, returns, title))
    save_curve(run.path / "curve.png", steps, returns, title, "env steps", "return")


def _short(number: float) -> str:
    for scale, unit in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= scale:
            return f"{number / scale:.3g}{unit}"
    return f"{number:.3g}"
