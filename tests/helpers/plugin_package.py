"""The package of `examples/plugin`, installed as a user would, entry points and all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"


def install(folder: Path) -> dict[str, str]:
    """The environment of a process that has the package installed, in `folder`."""
    source, target = folder / "source", folder / "site"
    shutil.copytree(PLUGIN, source)  # a build leaves files in its folder
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", *options, str(source)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    paths = [str(target), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
