"""`--watch`: the live page while a run lasts."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

from ..errors import MillpondError
from ..extras import require
from ..run_folder import shell_word
from ..view.address import address, listen

_STOP_S = 3.0


def check_watch(wanted: bool) -> None:
    """Raise NotInstalled if the page is wanted and one of its packages is missing."""
    if wanted:
        require("--watch", "view", "starlette", "uvicorn", "plotly")


@contextlib.contextmanager
def watching(run: Path, wanted: bool) -> Generator[None]:
    """Print the page's address and serve the page in a child process.

    It never fails or delays the run. The socket listens before the child is ready, so that the
    address works from the start.
    """
    child = _start(run.parent) if wanted else None
    try:
        yield
    finally:
        if child is not None:
            alive = child.poll() is None
            _stop(child)
            if alive:
                again = f"millpond watch {shell_word(run.parent)} shows it again"
                print(f"the page has ended with the run; {again}")


def _start(root: Path) -> subprocess.Popen[bytes] | None:
    token = secrets.token_urlsafe(24)
    try:
        with listen() as listener:
            command = [sys.executable, "-m", "millpond", "watch", str(root), "--inherit"]
            child = subprocess.Popen(
                [*command, str(listener.fileno()), str(os.getpid())],
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
                start_new_session=True,  # so that Ctrl-C reaches only the run
            )
            assert child.stdin is not None
            child.stdin.write(f"{token}\n".encode())  # not on the command line, which is public
            child.stdin.close()
            print(f"live page: {address(listener, token)}", file=sys.stderr, flush=True)
            return child
    except (OSError, MillpondError) as error:
        print(f"no live page: {error}", file=sys.stderr, flush=True)
        return None


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(timeout=30)
