"""`checked_vector`: checks every row of a host env against what the env declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import SpecMismatch
from ..intake import Intake
from ..rows import Rows, Tree
from ..spec import Field, mismatch
from .env import Facts, HostEnv, HostVector, spec_of


def checked_vector(env: HostEnv, num_envs: int, seed: int) -> HostVector:
    """`env.vector(num_envs, seed)`, which raises SpecMismatch if the env contradicts itself.

    `vector = checked_vector(make_env("gym:CartPole-v1"), 8, seed=0)`.
    """
    checked: Any = _Checked(env, env.vector(num_envs, seed))
    return checked


def check_seen(env: Facts, obs: Tree, lead: tuple[int, ...], whose: str) -> None:
    """Raise SpecMismatch if observations on the host are not as the env declares."""
    spec = spec_of(env)

    def full(field: Field) -> np.ndarray:
        return np.broadcast_to(field.lowest(), lead + field.shape)

    extras = {name: full(field) for name, field in spec.extras.items()}
    zero = np.zeros(lead, np.float32)
    no = zero > 0
    rows = Rows(obs, full(spec.action), zero, no, no, zero.astype(np.uint8), extras)
    check_rows(env, Intake(spec), rows, lead, whose)


class _Checked:
    """A `HostVector` that checks every observation before anyone acts on it."""

    num_envs: int

    def __init__(self, env: HostEnv, vector: HostVector) -> None:
        self.num_envs, self._env, self._vector = vector.num_envs, env, vector
        self._intake = Intake(spec_of(env))
        self._lead = (env.num_agents, vector.num_envs)
        try:
            check_seen(env, vector.obs, self._lead, "agents, envs")
        except BaseException:
            vector.close()
            raise

    @property
    def obs(self) -> Tree:
        return self._vector.obs

    @property
    def flags(self) -> np.ndarray:
        return self._vector.flags

    def step(self, action: np.ndarray) -> Rows:
        rows = self._vector.step(action)
        self._check(rows._replace(obs=self._vector.obs))
        return rows

    def _check(self, rows: Rows) -> None:
        """Check the results of the last step together with the new observations."""
        rows = rows._replace(flags=np.broadcast_to(rows.flags, self._lead))
        check_rows(self._env, self._intake, rows, self._lead, "agents, envs")

    def render(self) -> np.ndarray:
        return self._vector.render()

    def export(self) -> dict[str, np.ndarray] | None:
        return self._vector.export()

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._vector.restore(arrays)

    def close(self) -> None:
        self._vector.close()


def check_rows(env: Facts, intake: Intake, rows: Rows, lead: tuple[int, ...], whose: str) -> None:
    """Raise SpecMismatch if rows on the host are not as the env declares."""
    try:
        intake.check_values(intake.arrange(rows, lead, whose))
    except SpecMismatch as error:
        raise contradiction(env, str(error)) from error


def contradiction(env: Facts, what: str) -> SpecMismatch:
    """The error for an env that returns something other than it declares."""
    return SpecMismatch(f"env {env.name} contradicts what it declares: {what}")


def check_traced(env: Facts, path: str, field: Field, lead: tuple[int, ...], value: Any) -> None:
    """Inside jit: raise unless `value` has the shape lead + field.shape and a dtype that fits."""
    wanted, got = lead + field.shape, tuple(np.shape(value))
    dtype = np.dtype(value.dtype)
    if got != wanted or not field.accepts(dtype):
        expected, given = f"{field.dtype} {wanted}", f"{dtype} {got}"
        remedy = "correct the env, or what it declares"
        raise contradiction(env, str(mismatch(path, expected, given, remedy)))
