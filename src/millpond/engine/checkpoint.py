"""Trees of arrays in one safetensors file: written whole or not at all, never unpickled."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import BadState, RunFailed


def save_tree(path: Path, tree: Any, about: Mapping[str, Any]) -> None:
    """Write a tree and what is to be known about it; the file at `path` is the old or the new one.

    A full disk raises RunFailed and leaves the old file.
    """
    # safetensors writes memory as it lies: an array in another order would come back shuffled.
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in named_leaves(tree)}
    data = save(arrays, metadata={"about": json.dumps(about, sort_keys=True)})
    write_whole(path, data)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file's content so that even a power loss leaves the old or the new one."""
    draft = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise RunFailed(
            f"could not write {path.name} ({len(data):,} bytes) in {path.parent}: "
            f"{error.strerror}; what was there before is untouched; {remedy(error)}"
        ) from error


def remedy(error: OSError) -> str:
    """What to do about a file that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space and resume"
    return "make the folder writable, or choose another one with --run"


def load_tree(path: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """The tree saved at `path`, which must have the names, shapes and dtypes of `like`."""
    try:
        with safe_open(path, "numpy") as file:
            about = json.loads((file.metadata() or {})["about"])
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise BadState(f"{path} cannot be read as a checkpoint: {error}") from error
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
    """What was said about the tree, without loading it."""
    try:
        with safe_open(path, "numpy") as file:
            return json.loads((file.metadata() or {})["about"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise BadState(f"{path} cannot be read as a checkpoint: {error}") from error


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Every leaf with its path, such as `agent.params['values']['kernel']`."""
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
    """Those whose names begin so, by the rest of their names."""
    return {k.removeprefix(begin): a for k, a in arrays.items() if k.startswith(begin)}
