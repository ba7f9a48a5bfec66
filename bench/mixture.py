"""Speed of the mixture on MinAtar against bare loops: `make bench-gpu ONLY=mixture`.

    python bench/mixture.py                     # prints a table, writes bench/out/mixture.json
    python bench/mixture.py --updates 20 --rounds 2 --big-steps 4 --cycle-updates 0   # small

agents   the agents' phase with all rows draining into the Lake, against the same number of bare
         vmapped PQNs that keep nothing (bench/pqn.py)
big      the BigAgent's steps, sampling included, against bare train steps on batches drawn before
resets   fill and clone as shares of one whole cycle of a real run, evaluations left out
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pqn import Bare

from millpond.metrics import read_metrics
from millpond.mixture import MixRun, MixSettings, mix, mix_for
from millpond.mixture.agents import Agents
from millpond.mixture.big import BigAgent
from millpond.mixture.drain import MixDrain, open_lakes
from millpond.rows import Rows


def seconds(work: Callable[[], Any], rounds: int) -> float:
    """Median seconds of one call, after one that compiles."""
    work()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def agents_phase(settings: MixSettings, updates: int, rounds: int) -> dict[str, float]:
    """Env steps per second of all agents, drained and not, and of bare ones."""
    agents = Agents(settings)
    state = [jax.jit(agents.init)()]
    most = agents.pond.length // settings.learns.turns
    rows = updates * settings.rows_per_update * settings.policies

    def play(drain: MixDrain | None) -> None:
        done = 0
        while done < updates:
            some = min(most, updates - done)
            state[0], _ = agents.round(state[0], some)
            done += some
            if drain:
                drain(state[0].ponds)

    with tempfile.TemporaryDirectory() as folder:
        lakes = open_lakes(settings, agents.acting.spec, Path(folder))
        with MixDrain(settings, agents.pond, lakes, 0) as drain:

            def drained() -> None:
                play(drain)
                drain.finish()  # all of it counts: nothing may pile up behind

            took = seconds(drained, rounds)
    alone = seconds(lambda: play(None), rounds)
    bare = Bare(settings.env.removeprefix("minatar/"), settings.policies)
    plain = seconds(lambda: bare.go(updates), rounds)
    return {"drained": rows / took, "not_drained": rows / alone, "bare": rows / plain}


def big_phase(settings: MixSettings, steps: int, rounds: int) -> dict[str, float]:
    """Minibatches per second (of all members at once) with sampling and of the bare train step."""
    big = BigAgent(settings)
    members, number = settings.members, steps * settings.minibatches
    field: Any = big.acting.spec.obs
    envs, length = big.pond.streams, big.pond.length
    rng = np.random.default_rng(0)
    shape = (members, envs)

    def some(time: int) -> Rows:
        return Rows(
            rng.random((time, *shape, *field.shape)) < 0.1,
            rng.integers(0, big.agent.actions, (time, *shape)).astype(np.int32),
            rng.random((time, *shape)).astype(np.float32),
            np.zeros((time, *shape), bool),
            np.zeros((time, *shape), bool),
            np.zeros((time, *shape), np.uint8),
        )

    add = jax.jit(big.add, donate_argnums=0)
    pond, block = big.pond.init_many(members), some(100)
    for begin in range(0, length, 100):
        flags = block.flags.copy()
        flags[0] = begin == 0
        pond = add(pond, block._replace(flags=flags))
    state = [jax.jit(big.init)(), pond]

    def ours() -> None:
        state[0], state[1], _ = big.round(state[0], state[1], steps)

    took = seconds(ours, rounds)
    axes = big.pond.axes
    draw = jax.vmap(
        lambda s, k: big.pond.sample(s, k, settings.big_learns.batch), (axes, 0), (axes, 0)
    )
    keys = jax.random.split(jax.random.key(0), (settings.minibatches, members))
    # Different batches, drawn before: from one alone XLA would take work out of the loop.
    _, batches = jax.jit(lambda pond: jax.lax.scan(draw, pond, keys))(state[1])

    @jax.jit
    def bare(agent: Any, batches: Any) -> Any:
        one = jnp.ones(members)
        now = {"rate": one * 1e-4, "beta": one}

        def step(agent: Any, batch: Any) -> tuple[Any, None]:
            return jax.vmap(big.agent.update)(agent, batch, now)[0], None

        def turn(agent: Any, _: None) -> tuple[Any, None]:
            return jax.lax.scan(step, agent, batches)[0], None

        return jax.lax.scan(turn, agent, length=steps)[0]

    plain = seconds(lambda: jax.block_until_ready(bare(state[0].agent, batches)), rounds)
    return {"big": number / took, "bare": number / plain}


def cycle_shares(settings: MixSettings, updates: int) -> dict[str, float]:
    """Seconds by phase in the second of two cycles, when everything has been compiled."""
    frames = 2 * updates * settings.frames_per_update
    settings = dataclasses.replace(settings, updates=updates, frames=frames)
    with tempfile.TemporaryDirectory() as folder:
        run = MixRun.create(Path(folder) / "run", settings)
        mix(run)
        lines = list(read_metrics(run.folder.speed, "phase"))
    # The clock has a time for `clone` only when the first cycle is over.
    first = next(i for i, line in enumerate(lines) if "clone" in line["share"])

    def seconds_of(line: dict[str, Any]) -> dict[str, float]:
        return {name: share * line["seconds"] for name, share in line["share"].items()}

    before, after = seconds_of(lines[first]), seconds_of(lines[-1])
    spent = {name: after[name] - before.get(name, 0.0) for name in after if name != "evaluate"}
    return spent | {"resets": (spent["fill"] + spent["clone"]) / sum(spent.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="breakout")
    parser.add_argument("--members", nargs="+", type=int, default=[1])
    parser.add_argument("--envs", type=int, default=128, help="of each agent")
    parser.add_argument("--lake-envs", type=int, default=0, help="of each agent; 0: all")
    parser.add_argument("--updates", type=int, default=128)
    parser.add_argument("--big-steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cycle-updates", type=int, default=500, help="0: no whole cycle")
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}: the mixture on MinAtar {options.game}")
    results = []
    for members in options.members:
        base = mix_for(f"minatar/{options.game}")
        lake = dataclasses.replace(base.lake, envs=options.lake_envs)
        settings = dataclasses.replace(base, members=members, envs=options.envs, lake=lake)
        found: dict[str, Any] = {"members": members}
        found["agents"] = agents_phase(settings, options.updates, options.rounds)
        found["big"] = big_phase(settings, options.big_steps, options.rounds)
        if options.cycle_updates:
            found["cycle"] = cycle_shares(settings, options.cycle_updates)
        show(found)
        results.append(found)
    out = Path("bench/out")
    out.mkdir(parents=True, exist_ok=True)
    (out / "mixture.json").write_text(json.dumps(results, indent=2))


def show(found: dict[str, Any]) -> None:
    agents, big = found["agents"], found["big"]
    print(f"  {found['members']} members")
    for name in ("drained", "not_drained", "bare"):
        print(f"    agents, {name:12} {agents[name]:>12,.0f} env steps/s")
    ratio = agents["drained"] / agents["bare"]
    print(f"    target: drained >= 1.8M for one member; drained / bare {ratio:.2f}")
    share = big["big"] / big["bare"]
    print(f"    BigAgent             {big['big']:>12,.0f} minibatches/s, bare {big['bare']:,.0f}")
    print(
        f"    target: >= 0.8 of the bare rate; {share:.2f}: {'met' if share >= 0.8 else 'MISSED'}"
    )
    if "cycle" in found:
        resets = found["cycle"]["resets"]
        verdict = "met" if resets <= 0.02 else "MISSED"
        print(
            f"    fill and clone       {resets:>12.1%} of the second cycle; target <= 2%: {verdict}"
        )


if __name__ == "__main__":
    main()
