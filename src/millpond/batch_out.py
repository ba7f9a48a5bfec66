"""`check_out`: checks that the arrays passed as `out=` can hold a batch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from .errors import SpecMismatch


def check_out(who: str, blank: Any, out: Any, joined: Collection[int] = ()) -> None:
    """Raise SpecMismatch unless `out` has the shapes and dtypes of `blank` and is writable.

    Arrays must be contiguous (a reshape of a strided one would be a copy, and `out` stay unfilled),
    except those whose `id()` is in `joined`.
    """
    wanted, given = arrays_of(blank), arrays_of(out)
    if len(wanted) == len(given) and all(
        isinstance(theirs, np.ndarray)
        and (theirs.flags.c_contiguous or id(theirs) in joined)
        and theirs.flags.writeable
        and (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        for ours, theirs in zip(wanted, given, strict=True)
    ):
        return
    raise SpecMismatch(
        f"sample: out must be a batch of this {who}, in writable NumPy arrays; pass what an "
        "earlier sample with the same window returned"
    )


def arrays_of(tree: Any) -> list[Any]:
    """The arrays of a batch, in order."""
    if isinstance(tree, dict):
        return [array for key in sorted(tree) for array in arrays_of(tree[key])]
    if isinstance(tree, tuple):
        return [array for part in tree for array in arrays_of(part)]
    return [] if tree is None else [tree]
