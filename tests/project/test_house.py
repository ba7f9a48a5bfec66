"""The house: exported names, import direction, no pickle, nothing of any one machine."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import millpond
from millpond.cli import main

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "millpond"
FILES = sorted(SRC.rglob("*.py"))

# What each part may import of millpond. Dependencies point one way.
BASE = {
    "errors",
    "extras",
    "spec",
    "rows",
    "window",
    "sequence",
    "returns",
    "samplers",
    "arguments",
    "batch_out",
    "borders",
    "intake",
    "host_random",
    "memory",
    "once",
    "schedule",
    "config",
    "plugins",
    "metrics",
    "whole_file",
    "run_folder",
    "return_check",
    "curve",
}
LEAVES = {"replay", "lake", "agents", "envs"}
LAYERS = [
    BASE,
    LEAVES,
    {"flow", "transport", "logged", "exchange"},
    {"engine"},
    {"process"},
    {"cluster"},
    {"train"},
    {"mixture"},
    {"compare"},
    {"doctor"},
    {"view"},
    {"compat"},  # above what it uses, so that nothing but the command line can need it
    {"cli", "__main__"},
]


def layer(part: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if part in names)


def imports(path: Path) -> set[str]:
    """Parts of millpond that a file imports."""
    package = ["millpond", *path.relative_to(SRC).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{stem}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A module that is named in a string, as for import_module, is imported too.
            found |= set(re.findall(r"^millpond(?:\.\w+)+(?<!\.json)$", node.value))
    return {name.split(".")[1] for name in found if name.startswith("millpond.")}


def test_a_class_name_means_one_thing():
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(SRC)))
    assert not {name: files for name, files in places.items() if len(files) > 1}


def test_public_names_are_pinned():
    assert millpond.__all__ == [
        "BadConfig",
        "BadState",
        "Batch",
        "BrokenEpisode",
        "ChannelBroken",
        "ChannelClosed",
        "ChannelFull",
        "Diverged",
        "Draw",
        "FaultsFound",
        "Field",
        "Flag",
        "History",
        "HostPond",
        "Lake",
        "LakeDamaged",
        "LakeFailed",
        "LakeFull",
        "LakeLocked",
        "LakeRefused",
        "MillpondError",
        "NotEnoughData",
        "PackedStep",
        "Pond",
        "PondState",
        "Rows",
        "RowsGone",
        "RunFailed",
        "RunRefused",
        "Sequence",
        "SequenceBatch",
        "Spec",
        "SpecMismatch",
        "Stacker",
        "WeightsBroken",
        "Window",
        "Writer",
        "border_row",
        "lambda_returns",
        "next_flags",
        "prioritized",
        "recent",
        "run",
        "sequence_priority",
        "stratified",
        "uniform",
    ]
    for name in millpond.__all__:
        assert getattr(millpond, name).__doc__, f"{name} has no docstring"


# All but what only names what the others give.
INSIDE = [path for path in FILES if path != SRC / "__init__.py"]


@pytest.mark.parametrize("path", INSIDE, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_one_way(path):
    part = path.relative_to(SRC).parts[0].removesuffix(".py")
    for other in imports(path):
        if other == part:
            continue
        assert layer(other) <= layer(part), f"{part} must not import {other}"
        if layer(other) == layer(part) and part not in BASE | {"cli", "__main__"}:
            pytest.fail(f"{part} and {other} stand side by side and must not know each other")
    if part != "cluster":
        assert not re.search(r"^\s*(import|from) ray\b", path.read_text(), re.M)


def tracked() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=30, check=True
    )
    return [ROOT / name for name in done.stdout.decode().split("\0") if name]


def test_no_pickle_anywhere():
    banned = re.compile(r"\b(c?[p]ickle|cloud[p]ickle|d[i]ll|shelve|j[o]blib|allow_[p]ickle)\b")
    for path in tracked():
        if path.suffix == ".py" and path != Path(__file__):
            assert not banned.search(path.read_text()), path


def test_no_index_addresses_or_machine_paths():
    for path in tracked():
        if path.suffix in {".png", ".gif"} or path.name == "LICENSE":
            continue
        text = path.read_text()
        if path.name in ("requirements.lock", "pyproject.toml"):
            assert "://" not in text, path
            assert " @ " not in text, path
        assert not re.search(r"/(wor[k]|roo[t]|hom[e])/", text), path


def test_typed_marker_ships():
    assert (SRC / "py.typed").exists()


def test_readme_example_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 1
    lines = [line for line in blocks[0].splitlines() if line.strip()]
    assert len(lines) <= 14
    names: dict = {}
    exec(compile(blocks[0], "README.md", "exec"), names)
    assert names["batch"].obs.shape == (256, 1, 4)
    assert names["batch"].mask.all()


def test_import_does_not_touch_a_device():
    code = (
        "from millpond import *; import jax._src.xla_bridge as b; "
        "raise SystemExit(1 if b.backends_are_initialized() else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_garbage_is_looked_for_again_once_a_command_is_imported(monkeypatch):
    said = []
    monkeypatch.setattr(main, "import_module", lambda name: said.append((name, gc.isenabled())))
    main._imported("presets")
    assert said == [("millpond.cli.presets", False)]
    assert gc.isenabled()
    gc.disable()
    try:
        main._imported("presets")
        assert not gc.isenabled(), "whoever calls a command from a program decides"
    finally:
        gc.enable()


def test_names_come_when_they_are_used():
    """`import millpond` alone imports nothing that takes long; every name is where it should be."""
    code = (
        "import sys, millpond; heavy = {'jax', 'numpy', 'zstandard'} & set(sys.modules); "
        "assert not heavy, heavy; "
        "assert set(millpond.__all__) <= set(dir(millpond)); "
        "millpond.lake.verify_lake, millpond.__version__, millpond.run"
    )
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)
    with pytest.raises(AttributeError, match="no attribute 'Lakes'"):
        millpond.Lakes
    tree = ast.parse((SRC / "__init__.py").read_text())
    typed = [
        (node.module, name.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    ]
    for module, name in typed:  # what a type checker reads is what is imported
        home = millpond._HOME.get(name, "errors")
        assert (module, name) == (home, name)
    assert {name for _, name in typed} == {*millpond.__all__, "run"}


def test_what_is_abstract_is_declared():
    """A method that raises NotImplementedError is missed only when it is called."""
    assert not [str(path) for path in FILES if "NotImplementedError" in path.read_text()]
