"""`Optimizer`: gradients into changes of parameters, at a learning rate given from outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import optax

from ..errors import BadConfig
from ..rows import Array
from ..schedule import Schedule, constant

_KINDS = {
    "adam": optax.scale_by_adam,
    "radam": optax.scale_by_radam,
    "sgd": lambda eps: optax.identity(),
}


@dataclass(frozen=True)
class Optimizer:
    """The update rule, its learning rate, and how many gradients are averaged for one step.

    The learning rate is a `Schedule` by env steps, so it is an argument of `change`, not a count
    kept here. With `accumulate` = k, k updates with batches of B change the parameters exactly as
    one update with a batch of k * B.
    `Optimizer("adam", linear(1e-3, 1e-5))` with `linear` of `millpond.schedule`.
    """

    kind: Literal["adam", "radam", "sgd"] = "adam"  # the update rule
    rate: Schedule = field(default_factory=lambda: constant(2.5e-4))
    clip: float = 10.0  # largest norm of a gradient; 0: not clipped
    eps: float = 1e-8  # added to the denominator, for numerical stability
    accumulate: int = 1  # gradients that are averaged for one step

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise BadConfig(f"Optimizer: kind must be {', '.join(_KINDS)}, got {self.kind!r}")
        if self.accumulate < 1 or self.clip < 0 or self.eps <= 0:
            raise BadConfig(
                "Optimizer: accumulate must be at least 1, clip at least 0 and eps above 0, got "
                f"{self.accumulate}, {self.clip} and {self.eps}"
            )

        self.rate.check_levels("Optimizer: rate", 0.0)

    def _transform(self) -> optax.GradientTransformation:
        rule = _KINDS[self.kind](eps=self.eps)
        if self.clip:
            rule = optax.chain(optax.clip_by_global_norm(self.clip), rule)
        if self.accumulate == 1:
            return rule
        return optax.MultiSteps(rule, self.accumulate).gradient_transformation()

    def init(self, params: Any) -> Any:
        """The optimizer's own state."""
        return self._transform().init(params)

    def change(self, gradient: Any, state: Any, params: Any, rate: Array) -> tuple[Any, Any]:
        """What is to be added to the parameters, and the new state."""
        change, state = self._transform().update(gradient, state, params)
        return jax.tree.map(lambda c: -rate * c, change), state
