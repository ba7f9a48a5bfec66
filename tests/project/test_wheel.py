"""The wheel in a clean environment with what it depends on and nothing else: the light core."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What `pip install millpond` brings, with what those need in turn.
CORE = ["jax", "jaxlib", "ml_dtypes", "numpy", "opt_einsum", "scipy", "safetensors", "xxhash"]
CORE += ["zstandard", "cffi", "pycparser"]

EXAMPLE = """
import resource, sys
import millpond
spent = resource.getrusage(resource.RUSAGE_SELF)
assert "jax" not in sys.modules and "numpy" not in sys.modules
import jax, numpy as np
from millpond import Field, Flag, HostPond, Lake, Pond, Rows, Spec, Window, next_flags

spec = Spec(Field("float32", (3,)), Field("int32"))
host, pond = HostPond(spec, 400, 2, Window(n_step=3)), Pond(spec, 400, 2, Window(n_step=3))
state, flags = pond.init(), np.full(2, Flag.FIRST, np.uint8)
lake = Lake.create("lake", spec, 10_000)
with lake.writer("g", streams=2) as writer:
    for turn in range(50):
        ended = np.full(2, turn % 10 == 8)
        obs, zero = np.full((2, 3), turn, np.float32), np.zeros(2, np.float32)
        rows = Rows(obs, zero.astype(np.int32), zero, ended, np.zeros(2, bool), flags)
        host.add(rows)
        state = pond.add(state, rows)
        writer.append(jax.tree.map(lambda leaf: leaf[None], rows))
        flags = next_flags(flags, ended, np.zeros(2, bool))
assert host.sample(64).mask.all()
state, batch = pond.sample(state, jax.random.key(0), 64)
assert batch.mask.all()
print(f"import millpond: {spent.ru_utime + spent.ru_stime:.2f} s of CPU, interpreter included")
"""


def site_of(python: Path) -> Path:
    return next((python.parents[1] / "lib").glob("python*")) / "site-packages"


def link(names: list[str], site: Path) -> None:
    """Put installed packages into another environment, as they are: no index is asked."""
    for name in names:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            if not (site / top).exists() and top != "__pycache__":
                (site / top).symlink_to(Path(str(found.locate_file(top))))


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """The Python of an environment that holds the wheel and the core's packages."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, timeout=300)
    (wheel,) = folder.glob("millpond-*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True, timeout=300)
    python = folder / "env" / "bin" / "python"
    link(CORE, site_of(python))
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, timeout=300)
    return python


def call(python: Path, cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    # Without PYTHONPATH and the like: this environment and no other.
    return subprocess.run(
        [str(python), *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(cwd)},
    )


@pytest.mark.full
def test_the_core_is_whole_without_any_extra(clean, tmp_path):
    done = call(clean, tmp_path, "-m", "pip", "check")
    assert done.returncode == 0, done.stdout
    done = call(clean, tmp_path, "-c", EXAMPLE)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    command = ["-m", "millpond"]
    done = call(clean, tmp_path, *command, "lake", "verify", "lake")
    assert (done.returncode, "100 rows" in done.stdout) == (0, True), done.stderr
    done = call(clean, tmp_path, *command, "plan", "--obs", "4:float32", "--capacity", "1e6")
    assert (done.returncode, "All totals are for" in done.stdout) == (0, True), done.stderr
    assert call(clean, tmp_path, *command, "--help").returncode == 0
    assert call(clean, tmp_path, *command, "--version").stdout.startswith("millpond ")


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("train gym:CartPole-v1", "train"),
        ("mix minatar/breakout", "train"),
        ("runs", "train"),
        ("resume x", "train"),
        ("watch", "train,view"),
        ("report x", "train,view"),
    ],
)
def test_other_commands_say_what_to_install(command, extra, clean, tmp_path):
    done = call(clean, tmp_path, "-m", "millpond", *command.split())
    name = command.split()[0]
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"millpond {name}: this command needs flax, gymnasium, optax and rich, which are not "
        f"installed; run: pip install 'millpond[{extra}]'\n"
    )
    assert [path.name for path in tmp_path.iterdir()] in ([], [".cache"])


@pytest.mark.full
def test_modules_say_what_to_install(clean, tmp_path):
    for module, said in (
        ("agents", "training needs flax and optax, which are not installed; run: pip install"),
        ("envs", "millpond.envs needs gymnasium, which is not installed; run: pip install"),
    ):
        done = call(clean, tmp_path, "-c", f"import millpond.{module}")
        assert done.returncode == 1
        assert said in done.stderr
        assert "'millpond[train]'" in done.stderr


@pytest.mark.full
def test_the_readme_example_needs_gymnasium_alone(clean, tmp_path):
    needs = [one for one in distribution("gymnasium").requires or () if "extra ==" not in one]
    names = [re.split(r"[^\w.-]", one)[0] for one in needs]
    link(["gymnasium", *(one for one in names if one not in CORE)], site_of(clean))
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    done = call(clean, tmp_path, "-c", code + "\nassert batch.mask.all()\n")
    assert done.returncode == 0, done.stderr
