"""The program of a worker process: `python -m millpond.process.worker DESCRIPTOR PARENT`.

The first message on the wire says whether it is an actor or a learner. If it fails, it sends the
traceback to its parent. When its parent dies, for whatever reason, the kernel kills it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from typing import NoReturn

from ..engine.stopping import Stopped, hear_signals
from ..errors import ChannelClosed
from .wire import Message, Wire

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run until told to stop; returns the exit code."""
    descriptor, parent = (int(arg) for arg in sys.argv[1:3])
    die_with(parent)
    hear_signals()
    faulthandler.enable()
    wire = Wire(socket.socket(fileno=descriptor))
    try:
        begin = wire.receive(timeout=60)
        if begin is None:
            return 1
        work(wire, begin)
    except Stopped:
        return 0
    except ChannelClosed as error:
        if str(error).startswith("wire"):
            return 0  # the parent is gone
        fail(wire, error)
    except BaseException as error:
        fail(wire, error)
    return 0


def work(wire: Wire, begin: Message) -> None:
    """Be an actor or a learner until told to stop."""
    # JAX, which these import, must find the cores that the parent chose.
    if cores := begin.values.get("cores"):
        os.sched_setaffinity(0, cores)
    gc.disable()  # imports leave no garbage; looking for some takes a fifth of their time
    from .actor_worker import ActorWorker
    from .learner_worker import LearnerWorker

    gc.freeze()  # nor is it looked through later
    gc.enable()
    kind = {"actor": ActorWorker, "learner": LearnerWorker}[begin.kind]
    module, _, name = begin.values.get("hook", "").partition(":")
    hook = getattr(importlib.import_module(module), name) if module else None
    worker = kind(wire, begin)
    if hook:
        hook(worker)
    try:
        worker.run()
    finally:
        worker.close()


def fail(wire: Wire, error: BaseException) -> NoReturn:
    """Send the traceback to the parent, or print it if there is none, and exit."""
    text = "".join(traceback.format_exception(error))
    try:
        wire.send("failed", {"error": f"{type(error).__name__}: {error}", "traceback": text})
    except ChannelClosed:
        print(text, file=sys.stderr, flush=True)
    os._exit(1)  # cleaning up may be what is broken


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, or at once if it has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
