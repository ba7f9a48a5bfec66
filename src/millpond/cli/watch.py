"""`millpond watch`: serve a live page of all runs in a folder, for your browser

    millpond watch
    millpond watch other/runs --port 9000
    millpond train ENV --watch               # the same page, until the run ends

The page only reads the runs' files, needs no network and, by default, can be opened only from this
machine. A printed address works once; when it is used, a new one is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import BadConfig, RunRefused
from ..process.worker import die_with
from ..view.address import address, listen
from ..view.guard import Tokens, is_loopback, own_names
from ..view.runs import Runs
from ..view.server import serve
from ._options import Parser


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser("millpond watch", __doc__)
    parser.add_argument(
        "root", metavar="FOLDER", nargs="?", type=Path, default=Path("runs"), help="default: runs"
    )
    parser.add_argument("--port", type=int, help="default: 8787, or a free port if that is taken")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="0.0.0.0 lets other machines connect (default 127.0.0.1)",
    )
    parser.add_argument("--token", default="", help="a token of your own; required with --host")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        help="another host name by which browsers reach this machine; repeatable",
    )
    # Used by `--watch`: a socket that is already listening, and the process to end with.
    parser.add_argument("--inherit", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(args)
    if options.inherit:
        return _beside(options.root, *options.inherit)
    if options.port is not None and not 0 <= options.port <= 65535:
        raise BadConfig(f"watch: --port must be from 0 to 65535, got {options.port}")
    runs = Runs(options.root)
    listener = listen(options.host, options.port, options.token)
    tokens = Tokens(options.token)
    elsewhere = not is_loopback(options.host)
    hosts = {*options.name, *(own_names() if elsewhere else ())}
    print(f"watching {runs.root}; press Ctrl-C to stop")
    print(f"open {address(listener, tokens.token)}", flush=True)
    return _serve(runs, listener, tokens, hosts)


def _serve(runs: Runs, listener: socket.socket, tokens: Tokens, hosts: set[str]) -> int:
    def traded() -> None:
        if not tokens.chosen:
            print(f"opened; to open it again: {address(listener, tokens.token)}", flush=True)

    os.nice(10)  # runs take precedence over the page
    gc.set_threshold(1_000_000)  # reading a long file makes many objects, none of them garbage
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to stop
        serve(runs, listener, tokens, hosts, traded)
    return 0


def _beside(root: Path, descriptor: int, parent: int) -> int:
    """Serve on the parent's socket with the parent's token, and end when it ends."""
    die_with(parent)
    listener = socket.socket(fileno=descriptor)
    tokens = Tokens(first=sys.stdin.readline().strip())
    try:
        runs = Runs(root)
    except RunRefused as error:
        print(error, file=sys.stderr)
        return 1
    return _serve(runs, listener, tokens, set())
