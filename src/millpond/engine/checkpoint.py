"""Trees of arrays in one safetensors file: written whole or not at all, never unpickled."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import BadState
from ..whole_file import write_whole

Arrays = Mapping[str, np.ndarray]  # a state as it is saved: arrays by name


def save_tree(path: Path, tree: Any, about: Mapping[str, Any]) -> None:
    """Write a tree, with `about` as its metadata, in place of the file at `path`.

    A full disk raises RunFailed and leaves the old file.
    """
    # safetensors writes memory as it lies: an array in another order would come back shuffled.
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in named_leaves(tree)}
    data = save(arrays, metadata={"about": json.dumps(about, sort_keys=True)})
    write_whole(path, data)


def load_tree(path: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """The tree saved at `path`, which must have the names, shapes and dtypes of `like`."""
    with _opened(path) as file:
        about = json.loads((file.metadata() or {})["about"])
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    leaves = named_leaves(like)
    for name, leaf in leaves:
        found = stored.get(name)
        if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
            got = "nothing" if found is None else f"{found.dtype} {found.shape}"
            raise BadState(
                f"{path}: {name} should be {leaf.dtype} {leaf.shape}, got {got}; "
                "the settings of this run do not fit the file"
            )
    tree = jax.tree.structure(like)
    return jax.tree.unflatten(tree, [stored[name] for name, _ in leaves]), about


def about_file(path: Path) -> dict[str, Any]:
    """The metadata of a saved tree, which is not loaded."""
    with _opened(path) as file:
        return json.loads((file.metadata() or {})["about"])


@contextlib.contextmanager
def _opened(path: Path) -> Generator[Any]:
    try:
        with safe_open(path, "numpy") as file:
            yield file
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise BadState(f"{path} cannot be read as a checkpoint: {error}") from error


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Every leaf, named by its path, such as `agent.params['values']['kernel']`."""
    flat = jax.tree.flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path).lstrip(".") or "tree", leaf) for path, leaf in flat]


def hash_of(tree: Any) -> str:
    """16 hex digits that are equal for equal trees."""
    digest = hashlib.sha256()
    for name, leaf in named_leaves(tree):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(np.asarray(leaf)).tobytes())
    return digest.hexdigest()[:16]


def within(arrays: Mapping[str, Any], begin: str) -> dict[str, Any]:
    """The arrays whose names start with `begin`, named without it."""
    return {k.removeprefix(begin): a for k, a in arrays.items() if k.startswith(begin)}
