"""`one_program`: makes a pure method run as one compiled program when called outside jit.

Otherwise each of its operations, about a hundred in `Pond.sample`, would be compiled and dispatched
separately. Inside jit, vmap and scan, the method is part of the surrounding program as usual.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
from jax.core import Tracer

Method = TypeVar("Method", bound=Callable[..., Any])
_STATIC = ("batch_size", "agents")  # arguments that determine shapes


class CompiledCalls(dict[str, Any]):
    """The compiled methods of one object; a copy of the object starts without any."""

    def __reduce__(self) -> Any:
        return CompiledCalls, ()


def one_program(method: Method) -> Method:
    """Decorates a method of a class whose objects have `_programs`, a `CompiledCalls`."""
    name = method.__name__
    static = [one for one in _STATIC if one in inspect.signature(method).parameters]

    @functools.wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        leaves = jax.tree.leaves((given, named))
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return method(self, *given, **named)
        if name not in self._programs:
            # Inlined: without traced arguments, as in `init`, the call may still be inside jit.
            whole = functools.partial(method, self)
            self._programs[name] = jax.jit(whole, static_argnames=static, inline=True)
        return self._programs[name](*given, **named)

    return cast(Method, call)
