"""What new users stumbled over at the command line, each held down by a test."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import gymnasium
import jax
import numpy as np
import pytest
from watch_world import write_train

from millpond.agents import Network
from millpond.cli._print import elapsed
from millpond.cli._settings import parse_settings
from millpond.cli.main import main
from millpond.doctor.next_command import settles
from millpond.doctor.verdict import Verdict
from millpond.envs import GymEnv, make_env
from millpond.errors import BadConfig, RunFailed, RunRefused, SpecMismatch
from millpond.extras import import_extra
from millpond.run_folder import shell_word
from millpond.train import Run
from millpond.train.presets import settings_for
from millpond.view import run_report, terminal_curve

COMMAND = [sys.executable, "-m", "millpond"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def refused(capsys, *args) -> str:
    """What a wrong call says."""
    assert main([str(arg) for arg in args]) == 2
    return capsys.readouterr().err


# --- settings are checked before there is a folder ----------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["gym:CartPole-v1", "--dqn.gamma", "1.5"], "--dqn.gamma 1.5: gamma must lie in [0, 1]"),
        (["staghunt", "--agent", "dqn", "--dqn.batch=0"], "train: --dqn.batch 0: batch must be at"),
        (["staghunt", "--network.depth", "-1"], "train: --network.depth -1: Network: width must"),
        (["gym:CartPole-v1", "--dqn.epsilon.end", "3"], "must be from 0 to 1, got 1, 3"),
        (["gym:CartPole-v1", "--dqn.optimizer.rate.start", "-1"], "restart must be at least 0"),
        (["gym:CartPole-v1", "--mode", "fusd"], "got fusd; did you mean fused?"),
        (["gym:CartPole-v1", "--dqn.gamma", "nan"], "--dqn.gamma: expected a finite number"),
        (["gym:CartPole-v1", "--dqn.gamma"], "--dqn.gamma: expected one value, got nothing"),
        (["gym:CartPole-v1", "--gamma", "0.9"], "did you mean --dqn.gamma?"),
        (["gym:CartPole-v1", "--network.norm", "perhaps"], "expected true, false or nothing"),
        (["gym:CartPole-v1", "--replay", "sea"], "expected one of pond, host, lake, got sea"),
        (["gym:CartPole-v1", "--steps", "9", "32"], "--steps: expected one value, got 9, 32"),
        (["treasurehunt-small", "--network.torso", "nature"], "at least 36x36 pixels, got obs"),
        (["gym:CartPole-v1", "--network.torso", "grid"], "observations of shape (4,); use"),
        (["gym:FrozenLake-v1", "--env.is_slipery", "false"], "is_slipery"),
        (["gym:CartPole-v1", "--world.wrappers", "NoSuch"], "there is no wrapper 'NoSuch'"),
        (["treasurehunt-small", "--env.siz", "9"], "there is no option --env.siz"),
        (
            ["gym:CartPole-v1", "--total-timesteps", "9"],
            "there is no option --total-timesteps; use --steps",
        ),
        (["gym:CartPole-v1", "--buffer_size", "9"], "use --dqn.capacity"),
        (["gym:Pendulum-v1", "--learning-rate", "1"], "use --sac.optimizer.rate.start"),
        (["gym:CartPole-v1", "--device", "cuda"], "JAX uses a GPU if there is one"),
        (["gym:CartPole-v1", "--wandb-project-name=x"], "WANDB_PROJECT names the project"),
        (
            ["gym:CartPole-v1", "--track"],
            "expected one of '', tensorboard, wandb, mlflow, got nothing",
        ),
        (["cartpole"], "there is no env 'cartpole'; did you mean 'gym:CartPole-v1'?"),
        (["CartPole"], "did you mean 'gym:CartPole-v1'?"),
        (["breakout"], "did you mean 'minatar/breakout'?"),
        (["brakout"], "did you mean 'minatar/breakout'?"),
        (["gym/CartPole-v1"], "did you mean 'gym:CartPole-v1'?"),
        (["gymnax/CartPole-v1"], "did you mean 'gymnax:CartPole-v1'?"),
        (["minatar:breakout"], "did you mean 'minatar/breakout'?"),
        (["MinAtar/SpaceInvaders-v1"], "did you mean 'minatar/space_invaders'?"),
        (["BreakoutNoFrameskip-v4"], "did you mean 'atari/breakout'?"),
        (["gym:ALE/MsPacman-v5"], "did you mean 'atari/ms_pacman'?"),
        (["gym:CartPole"], "did you mean 'gym:CartPole-v1'?"),
        (["--env-id", "gym:CartPole-v1"], "the env comes first: millpond train gym:CartPole-v1"),
        (["gym:CartPole-v1", "--exploration-fraction", "1"], "use --dqn.epsilon.over"),
        (["gym:CartPole-v1", "--wandb"], "use --track wandb"),
        (
            ["gym:CartPole-v1", "--dqn.capacity", "1e12"],
            "--dqn.capacity 1e12: 1,000,000,000,000 rows take 25,000.0 GB, and this machine has",
        ),
        (["gym:CartPole-v1", "--dqn.batch", "1e12"], "--dqn.batch 1e12: 1,000,000,000,000 rows"),
        (["treasurehunt-small", "--dqn.capacity", "2e9"], "rows for each of 5 policies take"),
    ],
)
def test_a_setting_that_cannot_work_leaves_nothing(args, said, capsys, here, monkeypatch):
    for name in [name for name in gymnasium.registry if name.startswith("ALE/")]:
        monkeypatch.delitem(gymnasium.registry, name)  # other tests import ale_py, a user has not
    assert said in refused(capsys, "train", *args)
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("args", "lacks", "said"),
    [
        ("train treasurehunt-small --watch", "uvicorn", "--watch needs uvicorn, which is not"),
        ("mix minatar/breakout --watch", "plotly", "--watch needs plotly, which is not installed"),
        ("resume nothing --watch", "starlette", "--watch needs starlette, which is not installed"),
    ],
)
def test_a_page_that_cannot_be_shown_is_refused_before_the_run(
    args, lacks, said, capsys, here, monkeypatch
):
    monkeypatch.setitem(sys.modules, lacks, None)
    assert f"{said}" in (message := refused(capsys, *args.split()))
    assert "run: pip install 'millpond[view]'" in message
    assert not list(here.iterdir())


def test_what_a_package_prints_when_imported_is_no_part_of_the_answer(capsys, here, monkeypatch):
    """As mujoco does, which is imported for `brax:NAME`: `--json` would not be JSON."""
    (here / "chatty.py").write_text("print('Failed to import something')")
    monkeypatch.syspath_prepend(here)
    import_extra("env brax:NAME", "brax", "chatty")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "Failed to import something\n")


@pytest.mark.parametrize("lacks", ["plotly", "matplotlib"])
def test_a_report_without_its_packages_says_so_at_once(lacks, capsys, here, monkeypatch):
    write_train(here / "run")
    monkeypatch.setitem(sys.modules, lacks, None)
    assert f"report: a report needs {lacks}, which is" in refused(capsys, "report", "run")
    assert [path.name for path in here.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (gymnasium.error.DependencyNotInstalled("pygame is not installed"), "cannot be rendered"),
        (ValueError("the lamp is broken"), "No film: ValueError: the lamp is broken"),
    ],
)
def test_an_env_that_cannot_be_rendered_costs_the_film_alone(error, said, here, monkeypatch):
    """Gymnasium's CartPole needs pygame, which no extra brings: there was no report at all."""

    def render(self):
        raise error

    monkeypatch.setattr("gymnasium.vector.SyncVectorEnv.render", render)
    env = GymEnv("CartPole-v1", film=True)

    def play(*args, **kwargs):
        with contextlib.closing(env.vector(1, 0)) as vector:
            vector.render()

    monkeypatch.setattr("millpond.view.run_report.open_everyone", Mock())
    monkeypatch.setattr("millpond.view.run_report.load_params", Mock())
    monkeypatch.setattr("millpond.view.run_report.film", play)
    assert said in run_report._film(here)


def test_settings_of_the_env_go_by_either_name():
    base = settings_for("treasurehunt-small")
    one = parse_settings(base, ["--env.size", "9", "--dqn.epsilon.agents", "0.5", "-0.25"], "x")
    assert one.world.size == 9
    assert one.learning.epsilon.agents == (0.5, -0.25)
    two = parse_settings(base, ["--world.size=9", "--network.no-norm", "--steps", "2e6"], "x")
    assert (two.world.size, two.network.norm, two.steps) == (9, False, 2_000_000)
    both = parse_settings(base, ["--network.norm=false", "--dqn.n_step", "3"], "x")
    assert (both.network.norm, both.learning.n_step) == (False, 3)


def test_options_and_wrappers_reach_a_gymnasium_env(here):
    (here / "doubling.py").write_text(
        "import gymnasium\n"
        "class Doubled(gymnasium.RewardWrapper):\n"
        "    def reward(self, reward):\n"
        "        return 2 * reward\n"
    )
    base = settings_for("gym:FrozenLake-v1")
    args = ["--env.is_slippery", "false", "--env.map_name", "8x8", "--world.wrappers"]
    chosen = parse_settings(base, [*args, "doubling:Doubled"], "x")
    world = chosen.world
    assert world.options == ("is_slippery=false", "map_name=8x8")
    assert type(chosen).from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    assert world.observation.shape == (64,)
    vector = world.vector(1, 0)
    rewards = []
    for action in [2] * 7 + [1] * 7:  # right, then down: the way to the goal of that map
        rows = vector.step(np.array([[action]], np.int32))
        rewards.append(float(rows.reward[0, 0]))
    vector.close()
    assert rewards == [0.0] * 13 + [2.0], "not slippery, and the reward doubled"


def test_an_env_of_the_current_folder_is_found(here, monkeypatch):
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(here))])
    (here / "pond_world.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('PondWorld-v0', CartPoleEnv)\n"
    )
    assert make_env("gym:pond_world:PondWorld-v0").observation.shape == (4,)


def test_discrete_observations_are_one_hot():
    env = GymEnv("FrozenLake-v1", options=("is_slippery=false",))
    assert (env.observation.dtype, env.observation.shape) == (np.dtype(bool), (16,))
    assert env.note == "observations are one of 16 states, encoded one-hot as bool[16]"
    assert GymEnv("CartPole-v1").note == ""
    vector = env.vector(2, 0)
    assert vector.obs.shape == (1, 2, 16)
    vector.step(np.array([[1, 2]], np.int32))  # down; right
    assert np.argmax(vector.obs[0], -1).tolist() == [4, 1]
    assert vector.obs.sum() == 2
    vector.close()


def test_an_option_without_a_value_is_refused():
    with pytest.raises(BadConfig, match="options are KEY=VALUE, such as is_slippery=false"):
        GymEnv("FrozenLake-v1", options=("is_slippery",))


@pytest.mark.parametrize("shape", [(35, 84, 1), (84, 35, 1), (3, 84, 84), (84,)])
def test_the_nature_torso_refuses_what_it_cannot_see(shape):
    network = Network(torso="nature").build(2)
    with pytest.raises(BadConfig, match="expected an image of at least 36x36 pixels"):
        network.init(jax.random.key(0), np.zeros((1, 4, *shape), np.uint8))


# --- help ---------------------------------------------------------------------------------------


HELP = ["train", "train gym:CartPole-v1", "train treasurehunt --agent pqn", "mix minatar/breakout"]
HELP += ["train minatar/breakout --agent qlambda --sampler prioritized", "compare", "doctor"]
HELP += ["lake", "lake verify", "plan", "runs", "watch", "eval", "presets", "report", "resume"]


@pytest.mark.parametrize("words", [*HELP, "mix"])
@pytest.mark.parametrize("columns", ["80", "200"])
def test_help_fits_a_screen_in_one_style(words, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    with contextlib.suppress(SystemExit):  # as parsers end
        assert main([*words.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60
    assert lines[0].startswith("usage: millpond ")
    assert not set("".join(lines)) & set("│╭╮╰╯─"), "frames"


def test_help_all_explains_every_setting(capsys):
    with pytest.raises(SystemExit):
        main(["train", "treasurehunt-small", "--help-all"])
    out = " ".join(capsys.readouterr().out.split())
    about = "steps between two restarts; 0: no restarts (default 0)"
    assert f"--dqn.optimizer.rate.cycle N {about}" in out
    assert "--network.norm, --network.no-norm" in out


EXPLAINED = [f"train treasurehunt --agent {agent}" for agent in ("dqn", "iqn", "pqn", "qlambda")]
EXPLAINED += [f"train {env}" for env in ("staghunt", "tmaze", "pendulum", "minatar/breakout")]
EXPLAINED += [f"train tmaze --sampler {one}" for one in ("stratified", "recent", "prioritized")]
EXPLAINED += ["train pendulum --agent td3", "train gym:CartPole-v1", "train atari/pong"]


@pytest.mark.parametrize("words", [*EXPLAINED, "mix minatar/breakout"])
def test_help_all_leaves_no_setting_unexplained(words, capsys):
    with pytest.raises(SystemExit):
        main([*words.split(), "--help-all"])
    text = capsys.readouterr().out
    assert text.count("(default") > 40
    # An option, then its default: on the same line, or on the next if the option is long.
    bare = re.findall(r"^  --(?:(?! {2}).)+(?: {2,}|\n +)\(default.*", text, re.M)
    assert not bare, "\n".join(bare)


# --- pipes, Ctrl-C, curves ----------------------------------------------------------------------


def test_a_reader_that_has_enough_is_no_traceback():
    command = f"{' '.join(COMMAND)} train treasurehunt-small --help-all | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("usage: ")
    assert done.stderr == ""


# A shell's background jobs, such as the tests may be, are started deaf to Ctrl-C.
MILLPOND = ("millpond", "train", "tmaze")
HEARS_CTRL_C = """import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"""


@pytest.mark.parametrize("module", ["difflib", "numpy", "jax._src.config", "millpond.rows"])
def test_ctrl_c_while_it_is_importing_is_one_line(module):
    """The interpreter says what it has imported, so that the signal comes in between."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HEARS_CTRL_C,
            "-X",
            "importtime",
            "-m",
            "millpond",
            "train",
            "tmaze",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.rpartition("| ")[2].strip() == module:
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=120)
    said = [one for one in rest.splitlines() if not one.startswith("import time:")]
    assert (process.returncode, said) == (130, ["millpond: stopped"])


@pytest.mark.full
@pytest.mark.parametrize("after", [0.0, 2.0])
def test_ctrl_c_while_it_is_compiling_is_one_line(after, here):
    args = ["train", "minatar/breakout", "--run", "r"]
    process = subprocess.Popen([*COMMAND, *args], stdout=-1, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    assert "minatar/breakout, pqn" in process.stdout.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=after or 0.01)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=300)
    assert (process.returncode, said.count("\n")) == (130, 1), said
    assert re.match(r"stopped; millpond resume r continues from step [\d,]+\n", said)


def test_a_terminal_without_utf_8_ends_no_run(here):
    """The curve is drawn after the last step; a run's name may be anything."""
    script = (
        "from pathlib import Path\n"
        "from millpond.cli._start import run\n"
        "from millpond.cli import main\n"
        "from millpond.cli._train_text import draw_curve\n"
        "curve = [0, 1], [0, 1], 't', Path('curve.png'), 'x'\n"
        "main.main = lambda: draw_curve(*curve) or print('\\xe9')\n"
        "run()\n"
    )
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=env
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = "no curve here: it needs UTF-8, but the terminal uses ascii; set LC_ALL=C.UTF-8\n?\n"
    assert done.stdout == said


@pytest.mark.parametrize(("columns", "heads"), [(60, 4), (90, 7), (200, 10)])
def test_a_narrow_terminal_gets_fewer_columns(columns, heads, capsys, here, monkeypatch):
    for seed in range(2):
        write_train(here / f"runs/treasurehunt-small-dqn-{seed}", lines=5, seed=seed)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", f"{columns}")
    assert main(["runs"]) == 0
    table = capsys.readouterr().out.splitlines()[1:5]
    assert max(map(len, table)) <= columns
    assert len(table[0].split()) == heads
    assert {"run", "state", "steps", "greedy"} <= set(table[0].split())


def test_a_level_curve_is_one_line():
    title, line, foot = terminal_curve(
        [0, 1_000, 2_000], [5.0, 5.0, 5.0], "return", 40
    ).splitlines()
    assert (title, line[:3]) == ("return", "5 \u2524")
    assert foot.split() == ["0", "2k"]


def test_curves_are_as_wide_as_asked_and_a_point_is_no_curve():
    for columns in (40, 80, 200):
        lines = terminal_curve([0, 1000], [1.0, 2.0], "title", columns).splitlines()[1:]
        assert max(map(len, lines)) == columns
    one = terminal_curve([1000], [2.5], "title")
    assert one == "title: 2.5 at 1k, one point so far"


def test_elapsed_time_reads_as_a_clock():
    assert [elapsed(s) for s in (0, 59.4, 60, 3725)] == ["0 s", "59 s", "1:00", "1:02:05"]


def test_an_observation_outside_its_discrete_space_names_both():
    env = GymEnv("FrozenLake-v1")
    vector = env.vector(2, 0)
    with pytest.raises(SpecMismatch, match=r"gave the observation 99, .*space is Discrete\(16\)"):
        vector._own(np.array([3, 99]))
    vector.close()


@pytest.mark.filterwarnings("default::UserWarning")  # Gymnasium's, of workers that raised
@pytest.mark.parametrize("vectorization", ["sync", pytest.param("async", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("shape", r"observation space is Box(-1.0, 1.0, (3,), float32), got float32 (4,)"),
        ("dtype", "float32), got complex64 (3,)"),
        ("none", "float32), got None"),
        ("list", "float32), got [0.5, 0.5]"),
        ("reward", "reward: expected one number, got None"),
        ("rewards", "reward: expected one number, got float64 (2,)"),
        ("flag", "terminated: expected True or False, got None"),
        ("old reset", "reset must return (obs, info), got float32 (3,)"),
        ("old step", "truncated, info), got a tuple of 4"),
    ],
)
def test_an_env_that_contradicts_its_space_is_named_with_both(how, said, vectorization):
    env = GymEnv("wrong_envs:Wrong-v0", options=(f"how={how}",), vectorization=vectorization)

    def play() -> None:
        with contextlib.closing(env.vector(2, 0)) as vector:
            for _ in range(3):
                vector.step(np.zeros((1, 2), np.int32))

    with pytest.raises(SpecMismatch) as found:
        play()
    assert str(found.value).startswith("env gym:wrong_envs:Wrong-v0 contradicts what it declares: ")
    assert said in str(found.value)


@pytest.mark.filterwarnings("default::UserWarning")  # Gymnasium's, of a worker that is gone
def test_an_env_whose_process_dies_is_named():
    """Gymnasium raises an EOFError without a word."""
    env = GymEnv("wrong_envs:Wrong-v0", options=("how=dies",), vectorization="async")
    vector = env.vector(1, 0)
    with contextlib.closing(vector), pytest.raises(RunFailed) as found:
        vector.step(np.zeros((1, 1), np.int32))
    assert "the process of env 0 ended with exit code 3 and left no traceback" in str(found.value)


def test_an_env_as_it_should_be_passes_the_same_checks():
    vector = GymEnv("wrong_envs:Checked-v0", options=("how=nothing",)).vector(2, 0)
    rows = [vector.step(np.zeros((1, 2), np.int32)) for _ in range(7)]
    assert [bool(row.terminated.all()) for row in rows] == [False] * 4 + [True, False, False]
    vector.close()


@pytest.mark.parametrize(
    ("env", "how", "said"),
    [
        ("Wrong", "constructor", "built: OSError: there is no display, in wrong_envs.py:17"),
        ("Wrong", "tuple", "gym:wrong_envs:Wrong-v0: Spec.from_env: obs is a Tuple space"),
        ("Wrong", "empty", "gym:wrong_envs:Wrong-v0: Field: every axis must be at least 1 long"),
        (
            "NoSpaces",
            "",
            "it does not declare its observation or action space: 'NoSpaces' object has no",
        ),
    ],
)
def test_an_env_that_cannot_be_used_leaves_nothing(env, how, said, capsys, here):
    args = ["train", f"gym:wrong_envs:{env}-v0", "--env.how", how]
    assert said in refused(capsys, *args)
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "1 +\n",
            "importing the module mine failed: SyntaxError: invalid syntax (mine.py, line 1)",
        ),
        ("int('x')\n", "failed: ValueError: invalid literal for int() with base 10: 'x', in mine"),
        ("class Mine:\n    def __init__(self):\n        1 / 0\n", "by zero, in mine.py:3"),
    ],
)
def test_a_part_of_the_users_that_raises_is_one_line(code, said, capsys, here, monkeypatch):
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (here / "mine.py").write_text(code)
    assert said in refused(capsys, "train", "mine:Mine")


def test_an_env_that_ends_the_process_says_so(capsys, here):
    (here / "leaver.py").write_text(
        "import gymnasium, wrong_envs\n"
        "class Leaver(wrong_envs.Wrong):\n"
        "    def step(self, action):\n"
        "        raise SystemExit(4)\n"
        "gymnasium.register('Leaver-v0', Leaver, kwargs={'how': ''})\n"
    )
    assert main(["train", "gym:leaver:Leaver-v0", "--steps", "64", "--envs", "2"]) == 1
    said = capsys.readouterr().err
    assert "leaver.py" in said
    assert "failed: SystemExit: 4; millpond doctor runs/" in said


@pytest.mark.parametrize(
    ("args", "after"),
    [
        (["doctor", "--env", "gym:wrong_envs:Raises-v0"], ", in wrong_envs.py:"),
        (["mix", "gym:wrong_envs:Raises-v0", "--debug"], "; millpond doctor runs/"),
    ],
)
def test_an_env_that_raises_ends_every_command_with_one_line(args, after, capsys):
    """After the traceback, the last line has the error, and where to look."""
    assert main(args) == 1
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert f"failed: ValueError: the robot fell over{after}" in said.strip().splitlines()[-1]


def test_a_folder_with_spaces_is_one_word_of_what_is_to_be_typed(here):
    """Commands that are printed can be pasted into a shell."""
    assert shell_word(Path("/tmp/a b/run")) == "'/tmp/a b/run'"
    fired = Verdict("learning", "red", "no better than random", {})
    path = here / "my lake"
    path.mkdir()
    (path / "lake.json").write_text("{}")
    assert settles(fired, "a b/run", "tmaze") == "millpond eval 'a b/run'"
    with pytest.raises(RunRefused, match=r"millpond lake info '.*/my lake' says"):
        Run.open(path)
