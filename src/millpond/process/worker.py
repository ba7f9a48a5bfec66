"""What runs in a process of a run: `python -m millpond.process.worker DESCRIPTOR PARENT`.

It takes its part from the wire, plays it, and says why if it cannot. When its parent dies, by
whatever cause, the kernel ends it.
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

from ..errors import ChannelClosed
from .signals import Stopped, hear_signals
from .wire import Message, Wire

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Play one part; the exit code."""
    descriptor, parent = (int(arg) for arg in sys.argv[1:3])
    die_with(parent)
    hear_signals()
    faulthandler.enable()
    wire = Wire(socket.socket(fileno=descriptor))
    try:
        begin = wire.receive(timeout=60)
        if begin is None:
            return 1
        play(wire, begin)
    except Stopped:
        return 0
    except ChannelClosed as error:
        if str(error).startswith("wire"):
            return 0  # the parent is gone
        fail(wire, error)
    except BaseException as error:
        fail(wire, error)
    return 0


def play(wire: Wire, begin: Message) -> None:
    """Become an actor or a learner."""
    # JAX is imported only now: the environment that the parent chose is in place.
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
    """Say why, as far as anyone listens."""
    text = "".join(traceback.format_exception(error))
    try:
        wire.send("failed", {"error": f"{type(error).__name__}: {error}", "traceback": text})
    except ChannelClosed:
        print(text, file=sys.stderr, flush=True)
    os._exit(1)  # what is left to tidy up may be what is broken


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; at once if it already has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
