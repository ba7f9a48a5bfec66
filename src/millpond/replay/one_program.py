"""`one_program`: a pure method that outside jit runs as one compiled program.

Op by op each of its operations would be compiled by itself and then started from Python: of a
`Pond.sample` some hundred. Inside jit, vmap and scan it is part of the program around it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
from jax.core import Tracer

Method = TypeVar("Method", bound=Callable[..., Any])
_STATIC = ("batch_size", "agents")  # arguments that decide shapes


class CompiledCalls(dict[str, Any]):
    """What was compiled for one object; a copy of that compiles for itself."""

    def __reduce__(self) -> Any:
        return CompiledCalls, ()


def one_program(method: Method) -> Method:
    """Of a class whose objects have `_programs`, a `CompiledCalls`."""
    name = method.__name__
    static = [one for one in _STATIC if one in inspect.signature(method).parameters]

    @functools.wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        leaves = jax.tree.leaves((given, named))
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return method(self, *given, **named)
        if name not in self._programs:
            # Inlined: where nothing was given that is traced, as to `init`, it may be inside too.
            whole = functools.partial(method, self)
            self._programs[name] = jax.jit(whole, static_argnames=static, inline=True)
        return self._programs[name](*given, **named)

    return cast(Method, call)
