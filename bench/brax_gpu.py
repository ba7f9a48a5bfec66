"""SAC on 2048 Brax envs on a GPU: speed, time to a return, and learning curves.

    python bench/brax_gpu.py                    # make bench-gpu ONLY=brax: all of it, in minutes
    python bench/brax_gpu.py --parts speed      # one part; those whose JSON is there are skipped
    python bench/brax_gpu.py --tiny --parts ... # a few steps of everything, on a CPU

`speed` compares the loop of `millpond train brax:hopper` with a bare single-file SAC
(workers/sac/bare.py) on the same envs, in turns. `ours`, `ours5` and `brax` train hopper by
millpond (one seed; five as one program) and by Brax's own SAC (seeds in turn), with the settings of
Brax's notebook for it as far as 2048 envs allow, and note when greedy return first reaches
1000. `walker2d` and `halfcheetah` are learning curves of five seeds.

Each part is a process of its own, writes JSON into --out as it goes, and is ended at its limit. All
but `speed` compile at the same time; then one after the other has the GPU to itself, and the
learning curves share it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BENCH = Path(__file__).parent
# Part: the most seconds it may take once it has the GPU. The curves are trained together.
LIMITS = {"speed": 150, "ours": 40, "ours5": 90, "brax": 100, "walker2d": 90, "halfcheetah": 90}
MORE = {"ant": 90, "inverted_pendulum": 60}
TOGETHER = ("walker2d", "halfcheetah", "ant", "inverted_pendulum")
COMPILING = 200  # seconds that a part may take until it could begin
GOAL, BACKEND = 1000.0, "positional"
# Batch and updates per turn of all envs.
SPEED = ((4_096, 8), (32_768, 1))
# gamma, scale of rewards, learning rate: of hopper and walker2d those of Brax's notebook for SAC.
TASKS = {
    "hopper": (0.997, 30, 6e-4),
    "walker2d": (0.997, 5, 6e-4),
    "halfcheetah": (0.99, 5, 6e-4),
    "ant": (0.99, 10, 6e-4),
    "inverted_pendulum": (0.997, 1, 6e-4),
}


class Size:
    """Everything that --tiny makes small."""

    def __init__(self, tiny: bool) -> None:
        self.envs, self.batch, self.updates = (16, 32, 2) if tiny else (2_048, 4_096, 16)
        self.capacity, self.fill = (2_048, 64) if tiny else (1_024_000, 65_536)
        self.turns = 20 if tiny else 500  # of all envs, between two evaluations
        self.episodes, self.length = (4, 20) if tiny else (128, 1_000)
        self.width, self.members = (16, 2) if tiny else (256, 5)
        self.speed = ((32, 2), (64, 1)) if tiny else SPEED
        self.stretch, self.rounds = (4, 2) if tiny else (40, 9)
        self.goal = -1e9 if tiny else GOAL
        self.race = "inverted_pendulum" if tiny else "hopper"


class Report:
    """What a part has found so far, as a file; `done` when nothing is missing."""

    def __init__(self, path: Path, part: str) -> None:
        import jax

        device = jax.devices()[0].device_kind
        self.path, self.found = path, {"part": part, "device": device, "jax": jax.__version__}

    def write(self, **found) -> None:
        self.found |= found
        whole = self.path.with_suffix(".tmp")
        whole.write_text(json.dumps(self.found, indent=1) + "\n")
        whole.replace(self.path)


class Enough(Exception):
    """The goal is reached, or the time is up."""


def hold(held: bool) -> None:
    """Compiled: wait until the GPU is free."""
    print("warm", flush=True)
    if held and not sys.stdin.readline():
        raise SystemExit("nobody waits for this part any more")


# --- what millpond does -----------------------------------------------------------------------


def settings_of(task: str, size: Size, *options: str):
    """Those of `millpond train brax:TASK` with these options, and the options."""
    from millpond.cli.train import parse_train
    from millpond.train.presets import settings_for

    given = [f"--envs={size.envs}", f"--sac.capacity={size.capacity}", *options]
    given += [f"--env.backend={BACKEND}", "--env.starts=256", f"--network.width={size.width}"]
    return parse_train(settings_for(f"brax:{task}", agent="sac"), given), given


def learn(part: str, size: Size, report: Report, held: bool) -> None:
    """Train by `millpond train`, five seeds as one program, or one until it reaches the goal."""
    from millpond.train import Run, train

    task = size.race if part.startswith("ours") else part
    gamma, scale, rate = TASKS[task]
    every, members = size.turns * size.envs, 1 if part == "ours" else size.members
    settings, options = settings_of(
        task,
        size,
        *(f"--members={members}", f"--steps={10**9}", "--seed=0"),
        *(f"--sac.gamma={gamma}", f"--sac.reward-scale={scale}", "--sac.entropy=-0.5"),
        *(f"--sac.{rule}.rate.start={rate}" for rule in ("optimizer", "actor-optimizer")),
        *(f"--sac.batch={size.batch}", f"--sac.updates={size.updates}"),
        *(f"--sac.min-fill={size.fill}", f"--log-every={every}", f"--eval-every={every // 2}"),
        *(f"--eval-episodes={size.episodes}", f"--eval-turns={size.length}"),
        *(f"--checkpoint-every={10**9}", f"--resume-every={10**9}"),
    )
    report.write(command=f"millpond train brax:{task} " + " ".join(options), rounds=[])
    rounds, lines, until = report.found["rounds"], [], [float("inf")]

    def line(found: dict) -> None:
        if found["kind"] == "train":
            lines.append(found)
        if found["kind"] != "eval":
            return
        last = lines[-1]
        steps = found["steps"] - (rounds[-1]["steps"] if rounds else 0)
        took = steps * members / last["steps_per_second"]
        rounds.append(
            {"steps": found["steps"], "seconds": took, "returns": found["returns"]}
            | {name: last.get(name) for name in ("return", "temperature", "entropy", "q", "length")}
        )
        report.write(rounds=rounds)
        if len(rounds) == 1:
            hold(held)
            until[0] = time.monotonic() + LIMITS.get(part, MORE.get(part, 60)) - 5
        reached = part == "ours" and min(found["returns"]) >= size.goal
        if len(rounds) > 1 and (reached or time.monotonic() > until[0] or size.envs < 99):
            report.write(done=True)
            raise Enough

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Enough):
        train(Run.create(Path(folder) / "run", settings), line)


class Ours:
    """The program of `millpond train`, without its lines and evaluations."""

    def __init__(self, size: Size, batch: int, updates: int) -> None:
        from millpond.engine.device_loop import DeviceLoop

        settings, self.options = settings_of(
            size.race,
            size,
            *("--network.no-norm", f"--sac.min-fill={size.envs}", f"--steps={10**9}"),
            *(f"--sac.batch={batch}", f"--sac.updates={updates}"),
        )
        self.loop = DeviceLoop(settings)
        self.state = self.loop.init()

    def go(self, turns: int) -> None:
        self.state, _ = self.loop.round(self.state, turns)


def speed(size: Size, report: Report, held: bool) -> None:
    """Wall-clock of stretches of each program, in turns."""
    from workers.sac.bare import Bare
    from workers.sac.brax_world import BraxWorld

    report.write(rows=[])
    limit = time.monotonic() + LIMITS["speed"]
    for batch, updates in size.speed:
        world = BraxWorld(size.race, BACKEND, size.envs)
        ours = Ours(size, batch, updates)
        bare = Bare(size.envs, batch, size.capacity, size.width, world, updates, fill=0)
        players, taken = {"ours": ours, "bare": bare}, {"ours": [], "bare": []}
        for player in players.values():
            player.go(4)  # compiles; ours with and without learning
            player.go(size.stretch)
        for turn in range(2 * size.rounds):
            for name in list(players)[:: 1 if turn % 2 else -1]:
                began = time.perf_counter()
                players[name].go(size.stretch)
                taken[name].append(time.perf_counter() - began)
            if turn >= 2 and time.monotonic() > limit:
                break
        ratios = sorted(b / a for a, b in zip(taken["ours"], taken["bare"], strict=True))
        row = {"task": size.race, "envs": size.envs, "batch": batch, "updates_per_turn": updates}
        row |= {"options": ours.options, "turns": size.stretch, "seconds": taken}
        row |= {"ours_is_faster_by": [statistics.median(ratios), ratios[0], ratios[-1]]}
        report.write(rows=[*report.found["rows"], row])
        if time.monotonic() > limit - 60:
            break
    report.write(done=True)


# --- what Brax does ---------------------------------------------------------------------------


def brax(size: Size, report: Report, held: bool) -> None:
    """Brax's own SAC until it reaches the goal, one seed after the other."""
    import jax
    import jax.numpy as jnp

    if not hasattr(jax, "device_put_replicated"):  # Brax 0.14 calls it; newer JAX has dropped it

        def replicated(tree, devices):
            return jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * len(devices)), tree)

        jax.device_put_replicated = replicated
    from brax import envs
    from brax.training.agents.sac import networks
    from brax.training.agents.sac import train as sac

    gamma, scale, rate = TASKS[size.race]
    env = envs.get_environment(size.race, backend=BACKEND)
    layers = (size.width, size.width)
    # The same number of turns between two evaluations as ours; never this many of them.
    epochs = 400
    steps = size.fill + epochs * size.turns * size.envs
    options = dict(
        num_timesteps=steps,
        num_evals=epochs + 1,
        episode_length=size.length,
        num_envs=size.envs,
        num_eval_envs=size.episodes,
        learning_rate=rate,
        discounting=gamma,
        reward_scaling=scale,
        batch_size=size.batch,
        grad_updates_per_step=size.updates,
        min_replay_size=size.fill,
        max_replay_size=size.capacity,
        normalize_observations=True,
        deterministic_eval=True,
    )
    report.write(options=options, seeds=[])
    until = [float("inf")]
    for seed in range(size.members):
        rounds, last = [], [0.0]
        report.write(seeds=[*report.found["seeds"], rounds])

        def progress(steps: int, metrics: dict, rounds=rounds, last=last) -> None:
            if not steps:
                return
            walltime = float(metrics["training/walltime"])
            took, last[0] = walltime - last[0], walltime
            score = float(metrics["eval/episode_reward"])
            rounds.append({"steps": int(steps), "seconds": took, "return": score})
            report.write(seeds=report.found["seeds"])
            if until[0] == float("inf"):
                hold(held)
                until[0] = time.monotonic() + LIMITS["brax"] - 5
            late = time.monotonic() > until[0]
            if len(rounds) > 1 and (late or score >= size.goal):
                raise Enough

        def make(*shape, **others):
            return networks.make_sac_networks(*shape, hidden_layer_sizes=layers, **others)

        with contextlib.suppress(Enough):
            sac.train(env, seed=seed, network_factory=make, progress_fn=progress, **options)
        if time.monotonic() > until[0]:
            break
    report.write(done=True)


# --- one process for each ---------------------------------------------------------------------


class Part:
    """A process that compiles, says so, and goes on when it may."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.log = name, Path(tempfile.mkdtemp()) / "stderr"
        command = [sys.executable, "-W", "ignore", __file__, "--part", name, "--held"]
        command += ["--out", str(options.out), *["--tiny"] * options.tiny]
        paths = [str(BENCH.parent / "src"), os.environ.get("PYTHONPATH", "")]
        env = {
            **{"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "2"},
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, env=env, stderr=log, **pipes)
        self.began, self.patience = time.monotonic(), COMPILING * (10 if options.tiny else 1)

    def warm(self) -> bool:
        """Wait until it has compiled; whether it has."""
        left = max(1.0, self.began + self.patience - time.monotonic())
        signal.setitimer(signal.ITIMER_REAL, left)
        try:
            for line in self.process.stdout:
                if line.strip() == "warm":
                    return True
        except TimeoutError:
            self.process.kill()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False

    def go(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self, limit: float) -> None:
        """Wait that long for its end, then end it."""
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
        if self.process.returncode:
            tail = "\n".join(self.log.read_text().splitlines()[-8:])
            print(f"{self.name} ended with status {self.process.returncode}:\n{tail}", flush=True)


def timed_out(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=[*LIMITS, *MORE], default=list(LIMITS))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", BENCH / "out")))
    parser.add_argument("--seconds", type=float, default=560, help="of the whole, at most")
    parser.add_argument("--tiny", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--part", choices=[*LIMITS, *MORE], help=argparse.SUPPRESS)
    parser.add_argument("--held", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part:
        report = Report(options.out / f"brax_{options.part}.json", options.part)
        play = {"speed": speed, "brax": brax}.get(options.part)
        if play is None:
            learn(options.part, Size(options.tiny), report, options.held)
        else:
            play(Size(options.tiny), report, options.held)
        return
    signal.signal(signal.SIGALRM, timed_out)
    ends = time.monotonic() + options.seconds
    cache = tempfile.mkdtemp()
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", cache)
    wanted = [part for part in options.parts if not found(options.out, part).get("done")]
    if "speed" in wanted:
        part = Part("speed", options)
        part.end(min(LIMITS["speed"] + part.patience / 3, ends - time.monotonic()))
        show(options.out, ["speed"])
    parts = [Part(name, options) for name in wanted if name != "speed"]
    parts = [part for part in parts if part.warm() or part.end(1)]
    alone = [part for part in parts if part.name not in TOGETHER]
    together = [part for part in parts if part.name in TOGETHER]
    for group in (*([part] for part in alone), together):
        for part in group:
            part.go()
        over = time.monotonic() + max([{**LIMITS, **MORE}[p.name] for p in group], default=0) + 15
        for part in group:
            over = ends if options.tiny else min(over, ends)
            part.end(max(1.0, over - time.monotonic()))
        show(options.out, [part.name for part in group])


# --- tables -----------------------------------------------------------------------------------


def found(out: Path, part: str) -> dict:
    file = out / f"brax_{part}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def show(out: Path, parts: list[str]) -> None:
    for part in parts:
        report = found(out, part)
        for row in report.get("rows", []):
            pace = row["envs"] * row["turns"] / statistics.median(row["seconds"]["ours"])
            middle, least, most = row["ours_is_faster_by"]
            print(
                f"speed, {row['task']}, {row['envs']} envs, batch {row['batch']}, "
                f"{row['updates_per_turn']} updates a turn: {pace:,.0f} env steps/s, "
                f"{middle:.2f} of bare ({least:.2f} to {most:.2f})",
                flush=True,
            )
        for seed, rounds in enumerate(report.get("seeds", [])):
            curve(f"{part} seed {seed}", rounds, [[one["return"]] for one in rounds])
        rounds = report.get("rounds", [])
        if rounds:
            curve(part, rounds, [one["returns"] for one in rounds])


def curve(title: str, rounds: list[dict], returns: list[list[float]]) -> None:
    """Returns by steps, and when every seed had first reached the goal; compiling not counted."""
    if not rounds:
        print(f"{title}: nothing", flush=True)
        return
    each = statistics.median([one["seconds"] for one in rounds[1:]] or [rounds[0]["seconds"]])
    print(
        f"{title}: {len(rounds)} rounds of {each:.2f} s of training, the first, which compiles, "
        f"{rounds[0]['seconds']:.0f} s; to {rounds[-1]['steps']:,} steps",
        flush=True,
    )
    for at in sorted({*range(0, len(rounds), max(1, len(rounds) // 8)), len(rounds) - 1}):
        scores = " ".join(f"{value:.0f}" for value in returns[at])
        print(f"  {rounds[at]['steps']:>12,}  {scores}")
    for seed in range(len(returns[0])):
        first = [at for at, scores in enumerate(returns) if scores[seed] >= GOAL]
        if first:
            steps = rounds[first[0]]["steps"]
            print(f"  column {seed}: {GOAL:.0f} at {steps:,}, {(first[0] + 1) * each:.1f} s")


if __name__ == "__main__":
    main()
