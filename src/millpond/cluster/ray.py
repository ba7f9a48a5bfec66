"""Ray itself: importing it, connecting to it, reading results. Only this file imports it.

A Ray cluster is a trust boundary: whoever can reach it can run code on all its machines. So a local
Ray listens on the loopback address only, has no dashboard, and always requires a token.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..engine.stopping import SIGNALS, held_back
from ..errors import BadConfig, ChannelClosed, RunFailed
from ..extras import import_extra

T = TypeVar("T")

AGAIN_S = 0.2  # after so long a server that was lost is asked again
_ENVIRONMENT = ("XLA_", "JAX_", "OMP_", "OPENBLAS_", "MKL_", "NPROC")


class Lost(Exception):
    """The other end is gone, with everything on its way to it; it may come back."""


def import_ray() -> Any:
    """The package `ray`, without usage statistics; BadConfig if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return import_extra("mode ray", "ray", "ray", otherwise="use --mode processes")


def result_of(ray: Any, reference: Any, timeout: float) -> Any:
    """The result; raises `Lost` if the process that owes it is gone, other errors unchanged."""
    errors = ray.exceptions
    try:
        return ray.get(reference, timeout=timeout)
    except (errors.RayActorError, errors.ObjectLostError, errors.GetTimeoutError) as error:
        raise Lost(type(error).__name__) from error


def until_back(call: Callable[[], T], patience: float) -> T:
    """The result of `call`, repeated while it raises `Lost` for at most `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return call()
        except Lost as lost:
            if time.monotonic() > deadline:
                raise ChannelClosed(
                    f"{lost}: it has been away for {patience:g} s; look at the cluster's nodes, or "
                    "raise --crew.start-s"
                ) from lost
            time.sleep(AGAIN_S)


def why_of(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'gone'}"


def beside_us(ray: Any) -> Any:
    """The scheduling strategy that prefers this machine."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    here = ray.get_runtime_context().get_node_id()
    return strategies.NodeAffinitySchedulingStrategy(here, soft=True)


def passed_on(environment: Mapping[str, str]) -> dict[str, Any]:
    """The `runtime_env` that gives a process of Ray our settings of JAX and of its threads."""
    chosen = {k: v for k, v in environment.items() if k.startswith(_ENVIRONMENT)}
    return {"env_vars": chosen}


@contextlib.contextmanager
def connected(
    address: str, cpus: int, who: str, store_mb: int, gpus: float = 0.0
) -> Generator[Any]:
    """Ray: the one this process is connected to, the cluster at `address`, or a local one.

    A cluster with fewer CPUs or GPUs than `who` needs is refused.
    """
    if not address and "ray" not in sys.modules:
        # Ray's own switch for listening on the loopback address only, on every system.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if not address and not _has_token():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    ray = import_ray()
    if ray.is_initialized():
        _check_room(ray, cpus, gpus, who)
        yield ray
        return
    begin: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address:
        _warn(address)
        begin |= {"address": address}
    else:
        begin |= {"address": "local", "num_cpus": cpus, "include_dashboard": False}
        begin |= {"object_store_memory": store_mb << 20, "_node_ip_address": "127.0.0.1"}
    try:
        with _signals_are_ours():
            ray.init(**begin)
    except Exception as error:  # of many kinds
        where = address or "a local Ray"
        raise RunFailed(
            f"mode ray: could not connect to {where}: {why_of(error)}. Is it running (ray status), "
            "and has this machine its token (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or "
            "~/.ray/auth_token)? docs/cluster.md shows how to start one"
        ) from error
    try:
        _check_room(ray, cpus, gpus, who)
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _signals_are_ours() -> Generator[None]:
    """Start Ray within, and neither it nor its processes end by a signal that asks us to stop.

    Such a signal reaches its processes too, which are in our process group: they begin with it
    blocked. In this process Ray would replace our handlers by its own, which exits.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with held_back():
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):  # not in the main thread: no handler was set
                for number, handler in before.items():
                    signal.signal(number, handler)


def _has_token() -> bool:
    named = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return named or (Path.home() / ".ray" / "auth_token").exists()


def _warn(address: str) -> None:
    print(
        f"mode ray: the cluster at {address} is a trust boundary: whoever has its token and can "
        "reach it runs code on all its machines; keep it on a private network",
        file=sys.stderr,
    )


def _check_room(ray: Any, cpus: int, gpus: float, who: str) -> None:
    has = ray.cluster_resources()
    for name, wanted in (("CPU", cpus), ("GPU", gpus)):
        there = has.get(name, 0.0)
        if there < wanted:
            raise BadConfig(
                f"mode ray: {who} need {wanted:g} {name}s, the cluster has {there:g}; add "
                "machines, or ask for less"
            )
