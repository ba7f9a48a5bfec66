"""Runs the code of a page as a reader would: every `python` and `bash` block, in order.

    python docs/run_blocks.py docs/tutorial.md docs/how-to/*.md

A comment above a block says what is special about it, `<!-- run: KEY=VALUE ... -->`:

    file=NAME          a python block is saved under this name instead of being run
    exit=N             the block ends with this exit code, or one of N,M; else 0
    says=TEXT          what the block prints has this in it
    interrupt=TEXT     Ctrl-C as soon as this was printed, which ends it with 130
    command=NAME       only where `millpond NAME` exists
    module=NAME        only where this module is installed

Python blocks of a page share their names. All run in a folder that looks like a fresh clone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(
    r"^(?:<!-- run:(?P<how>[^\n]*)-->\n)?```(?P<kind>python|bash)\n(?P<code>.*?)^```$", re.M | re.S
)
_KEYS = {"file", "exit", "says", "interrupt", "command", "module"}
_SLOW = 240.0  # seconds; a block that takes longer has failed


class BlockFailed(Exception):
    """A block of a page did not do what the page says."""


@dataclass(frozen=True)
class Block:
    """One block: where it stands, its language, its code, what is special about it."""

    page: Path
    line: int
    kind: str
    code: str
    how: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    def missing(self) -> str | None:
        """What this block needs and this machine has not."""
        module, command = self.how.get("module"), self.how.get("command")
        if module and importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
        if command and not (ROOT / "src" / "millpond" / "cli" / f"{command}.py").exists():
            return f"there is no millpond {command}"
        return None


def blocks_of(page: Path) -> list[Block]:
    """Every python and bash block of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    for match in _BLOCK.finditer(text):
        pairs = [word.partition("=")[::2] for word in shlex.split(match["how"] or "")]
        line = text.count("\n", 0, match.start("code"))
        block = Block(page, line, match["kind"], match["code"], dict(pairs))
        if unknown := block.how.keys() - _KEYS:
            raise BlockFailed(f"{block.place}: unknown {', '.join(unknown)}; use {_KEYS}")
        found.append(block)
    return found


def run_page(page: Path, folder: Path, kinds: tuple[str, ...] = ("python", "bash")) -> None:
    """Run a page's blocks in `folder`; BlockFailed names the first that does not do as it says."""
    names: dict[str, Any] = {"__name__": "__main__"}
    sys.path.insert(0, str(folder))  # a reader's Python looks into the current folder
    with contextlib.chdir(folder):
        for block in blocks_of(page):
            if block.kind not in kinds:
                continue
            if why := block.missing():
                print(f"{block.place}: skipped, {why}", flush=True)
                continue
            begun = time.perf_counter()
            run_python(block, names) if block.kind == "python" else run_bash(block, folder)
            print(f"{block.place}: {time.perf_counter() - begun:.1f} s", flush=True)


def run_python(block: Block, names: dict[str, Any]) -> None:
    """Run one python block, or save it."""
    if name := block.how.get("file"):
        Path(name).write_text(block.code, encoding="utf-8")
        return
    said = io.StringIO()
    code = "\n" * block.line + block.code  # so that a traceback names the page's line
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(code, str(block.page), "exec"), names)
    except Exception as error:
        raise BlockFailed(f"{block.place}: {type(error).__name__}: {error}") from error
    _check_said(block, said.getvalue())


def run_bash(block: Block, folder: Path) -> None:
    """Run one bash block, which stops at the first command that fails."""
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        # A shell that inherits an ignored SIGINT, as behind an `&`, could not trap it.
        ["env", "--default-signal=INT", "bash", "-euo", "pipefail", "-c", block.code],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    said = _follow(process, block)
    wanted = block.how.get("exit", "130" if "interrupt" in block.how else "0")
    if str(process.returncode) not in wanted.split(","):
        raise BlockFailed(
            f"{block.place}: ended with {process.returncode}, not {wanted}:\n{block.code}\n{said}"
        )
    _check_said(block, said)


def _follow(process: subprocess.Popen[str], block: Block) -> str:
    """What a process prints; interrupted, if the block says so, as a terminal would."""
    said: list[str] = []
    text = block.how.get("interrupt")
    with process, _killed_after(process, _SLOW):
        assert process.stdout
        for line in process.stdout:
            said.append(line)
            if text and text in line:
                os.killpg(process.pid, signal.SIGINT)
                text = None
    return "".join(said)


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, lambda: os.killpg(process.pid, signal.SIGKILL))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_said(block: Block, said: str) -> None:
    text = block.how.get("says")
    if text and text not in said:
        raise BlockFailed(f"{block.place}: expected it to print {text!r}, got\n{said}")


def like_a_clone(folder: Path) -> Path:
    """Fill `folder` with links to all that a clone of this project has."""
    for path in ROOT.iterdir():
        if path.name not in {".git", "runs", "build"}:
            (folder / path.name).symlink_to(path)
    return folder


def main(pages: list[str]) -> int:
    """Run pages, each in a folder of its own; the number of pages that failed."""
    failed = 0
    for page in pages:
        with tempfile.TemporaryDirectory(prefix="millpond-docs-") as folder:
            try:
                run_page(Path(page).resolve(), like_a_clone(Path(folder)))
            except BlockFailed as error:
                print(error, file=sys.stderr)
                failed += 1
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
