"""What a mixture prints while it runs and at the end."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from ..engine.checkpoint import about_file
from ..errors import Diverged, MillpondError, NotInstalled, Paused
from ..metrics import read_metrics
from ..mixture import MixRun, mix
from ..run_folder import shell_word
from ._train_text import draw_curve, show_failure


def mix_and_show(run: MixRun) -> int:
    """Run to the end, printing a line per event and then the curve; returns the exit code."""
    console, settings = Console(stderr=True), run.settings
    begin = frames_saved(run)
    where = f" from frame {begin:,}" if begin else ""
    title = f"{settings.env}, mixture of {settings.agents}, {settings.frames:,} frames{where}"
    title = f"{title}: {run.path}"
    if run.folder.status()["state"] == "finished" and begin >= settings.frames:
        title = f"{run.path} is finished; nothing to do"
    console.print(title, soft_wrap=True)
    try:
        digest = mix(run, Teller(console))
    except KeyboardInterrupt:
        again = f"millpond resume {shell_word(run.path)} continues from frame {frames_saved(run):,}"
        console.print(f"stopped; {again}", soft_wrap=True)
        return 130
    except Paused as error:
        console.print(f"{error}", style="yellow", soft_wrap=True)
        return 4
    except Diverged as error:
        console.print(f"diverged: {error}", style="red", soft_wrap=True)
        return 3
    except MillpondError:
        raise  # its message says what to do
    except (Exception, SystemExit) as error:  # an env may call sys.exit
        show_failure(console, error, run.path)
        return 1
    show_mixture(run)
    print(f"hash of the parameters {digest}")
    return 0


def frames_saved(run: MixRun) -> int:
    """The frame from which the mixture would continue."""
    path = run.folder.resume_state
    return int(about_file(path)["frames"]) if path.exists() else 0


class Teller:
    """Prints what a mixture reports, one line per event."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __call__(self, line: dict[str, Any]) -> None:
        text = self._text(line)
        if text:
            self.console.print(f"{line['frames']:>12,} frames   {text}", soft_wrap=True)

    def _text(self, line: dict[str, Any]) -> str:
        kind = line["kind"]
        if kind == "eval":
            text = f"{line['when']:<7} greedy {line['return']:.2f}"
            return f"{text}   BigAgent {line['big_return']:.2f}"
        if kind == "fill":
            share = f"{line['big_pond_fill']:.0%} of BigPond"
            return f"filled {share} from a Lake with {line['lake_rows']:,} rows"
        if kind == "big":
            per_row = f"{line['samples_per_row']:.2f} samples per row"
            return f"BigAgent learned from {line['minibatches']:,} minibatches, {per_row}"
        if kind == "reset":
            cloned = sum(line["cloned"])
            if cloned == len(line["cloned"]) == 1:
                return f"reset {line['cycle']}: the agents are now copies of the BigAgent"
            text = f"reset {line['cycle']}: cloned in {cloned} of {len(line['cloned'])} members"
            if cloned == len(line["cloned"]):
                return text
            pairs = zip(line["cloned"], line["chooser_big"], line["chooser"], strict=True)
            refused = [f"{big:.2f} against {agents:.2f}" for ok, big, agents in pairs if not ok]
            return f"{text}; refused BigAgents with return {', '.join(refused)} of their agents"
        if kind == "recloned":
            return f"agent {line['policy']} diverged; it is now a copy of agent {line['copy_of']}"
        return ""


def show_mixture(run: MixRun) -> None:
    """Draw the agents' greedy returns in the terminal and as a picture; write the report."""
    lines = list(read_metrics(run.folder.metrics, "eval"))
    frames, returns = [x["frames"] for x in lines], [x["return"] for x in lines]
    title = f"{run.settings.env}, mixture: mean greedy return of the agents by frames"
    draw_curve(frames, returns, title, run.path / "curve.png", "frames")
    try:
        from ..view.run_report import read_runs, save_run_report

        page, *_ = save_run_report(run.path / "report.html", read_runs([run.path]), with_film=True)
        print(f"report: {page}")
    except NotInstalled as error:
        print(f"no report: {error}")
    print(f"BigAgent at the end {lines[-1]['big_return']:.2f}, agents {lines[-1]['return']:.2f}")
