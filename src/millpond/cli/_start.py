"""`run()`: the console script. Ctrl-C prints one line, even during imports."""

from __future__ import annotations

import io
import os
import signal
import sys


def run() -> None:
    """Run `main` and end the process with its exit code."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # ignored in background jobs
        signal.signal(signal.SIGINT, end_at_once)  # there is nothing to save before a command runs
    from .main import main

    for stream in (sys.stdout, sys.stderr):  # do not fail on letters that the terminal lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            code = main()
        except SystemExit as end:  # raised by argparse
            code = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as in `millpond runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    if code == 130:
        # Exit at once: compiler threads that are still at work crash in a normal shutdown.
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def end_at_once(number: int, frame: object) -> None:
    """Handle Ctrl-C outside a command with one line instead of a traceback from some import."""
    os.write(2, b"millpond: stopped\n")
    os._exit(130)
