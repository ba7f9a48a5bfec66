"""`Once`: a cache of objects built from hashable arguments, such as compiled programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """`program = Once(Program, most=4)`; `program(settings)` is the same for equal settings."""

    def __init__(self, make: Callable[..., T], most: int) -> None:
        self._make, self._kept = make, functools.lru_cache(maxsize=most)(make)

    def __call__(self, *key: Any) -> T:
        try:
            hash(key)
        except TypeError:  # a user's env or agent need not be hashable: build one each time
            return self._make(*key)
        return self._kept(*key)

    def __len__(self) -> int:
        return self._kept.cache_info().currsize

    def forget(self) -> None:
        """Empty the cache."""
        self._kept.cache_clear()
