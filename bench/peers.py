"""`Peer`: a library to compare with, in a virtual environment of its own under `.venvs`."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

BENCH = Path(__file__).parent
# A CPU build is enough here, and other versions may bring gigabytes of GPU libraries. Installed
# first and named again in every later step, so that pip stops rather than replace it.
TORCH = "torch==2.13.0"
INSTALL_LIMIT_S = 1800


class Unavailable(Exception):
    """A peer could not be installed; the message says why."""


@dataclass(frozen=True)
class Peer:
    """A library by the name of its worker, and what pip installs for it, step by step."""

    name: str
    steps: tuple[tuple[str, ...], ...]

    def python(self) -> Path:
        """Its interpreter, in an environment that is made if it is missing or out of date."""
        home = BENCH / ".venvs" / self.name
        python, ready = home / "bin" / "python", home / "ready"
        wanted = "\n".join(" ".join(step) for step in self.steps)
        if ready.exists() and ready.read_text() == wanted:
            return python
        print(f"setting up {self.name}: {wanted.replace(chr(10), ', then ')}", flush=True)
        _run(sys.executable, "-m", "venv", "--clear", str(home))
        for step in self.steps:
            _run(str(python), "-m", "pip", "install", "--quiet", *step)
        ready.write_text(wanted)
        return python


PEERS = (
    # The same JAX as ours: the compiler must not make the difference.
    Peer("flashbax", (("flashbax==0.1.3", f"jax=={metadata.version('jax')}"),)),
    Peer("sb3", ((TORCH,), (TORCH, "stable-baselines3==2.9.2"))),
    Peer("cpprb", (("cpprb==11.0.0",),)),
    Peer("torchrl", ((TORCH,), (TORCH, "torchrl==0.14.1", "tensordict==0.14.3"))),
)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip took more than {INSTALL_LIMIT_S} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        raise Unavailable(lines[-1] if lines else f"exit status {done.returncode}")
