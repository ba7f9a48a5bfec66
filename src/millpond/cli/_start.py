"""`run()`: the console script. From here on, whatever is being imported, Ctrl-C is one line."""

from __future__ import annotations

import io
import os
import signal
import sys


def run() -> None:
    """`main`, then the end of the process."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as of a job in the background
        signal.signal(signal.SIGINT, end_at_once)  # until a command runs nothing is to be saved
    from .main import main

    for stream in (sys.stdout, sys.stderr):  # a name that this terminal cannot show is no failure
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            code = main()
        except SystemExit as end:  # of a parser
            code = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has enough, as in `millpond runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    if code == 130:
        # At once: a compiler's threads, still at work, crash if the interpreter is taken down.
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def end_at_once(number: int, frame: object) -> None:
    """Ctrl-C outside a command: one line. An exception would be a traceback out of some import."""
    os.write(2, b"millpond: stopped\n")
    os._exit(130)
