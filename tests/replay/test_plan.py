"""`millpond plan`: its bytes are the rings' own, its answer is counted, bad input exits with 2."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from millpond import BadConfig, Field, HostPond, Pond, Spec, Window, prioritized
from millpond.cli.main import find_commands, main
from millpond.cli.plan import parse_count, parse_field, parse_obs
from millpond.replay.plan import Machine, make_plan

ATARI = Spec(Field("uint8", (3, 84, 84)), Field("int32"))
SPECS = {
    "pixels": Spec(Field("uint8", (3, 5, 5)), Field("int32")),  # 75 B: padded to words
    "bits": Spec(Field("bool", (5, 7)), Field("int32")),
    "one bool": Spec(Field("bool"), Field("uint8")),
    "halves": Spec(Field("float16", (3,)), Field("float32", (2,))),
    "dict": Spec(
        {"image": Field("uint8", (6, 6)), "pose": {"arm": Field("float32", (7,))}},
        Field("float32", (8,)),
        {"life_lost": Field("bool"), "epsilon": Field("float32"), "mask": Field("bool", (9,))},
    ),
}


def rows(plan, **wanted):
    return [r for r in plan.layouts if all(getattr(r, k) == v for k, v in wanted.items())]


def row(plan, layout, placement):
    (found,) = rows(plan, layout=layout, placement=placement)
    return found


def run(capsys, *args):
    try:
        code = main(["plan", *args])
    except SystemExit as stop:  # how the option parser ends
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def array_bytes(obj, seen=None) -> int:
    """Bytes of every array that an object holds, views of one array counted once."""
    seen = set() if seen is None else seen
    if isinstance(obj, np.ndarray):
        while obj.base is not None and isinstance(obj.base, np.ndarray):
            obj = obj.base
        if id(obj) in seen:
            return 0
        seen.add(id(obj))
        return obj.nbytes
    if isinstance(obj, dict):
        return sum(array_bytes(value, seen) for value in obj.values())
    if type(obj).__module__.startswith("millpond.replay") and hasattr(obj, "__dict__"):
        return array_bytes(vars(obj), seen)
    return 0


def ring(kind, spec, layout, stack, envs, capacity, sampler):
    """The real ring of a layout; its spec has the env's own stacks where the layout needs them."""
    if layout == "shared":
        stacked = {
            path.replace("/", "."): Field(field.dtype, (stack, *field.shape), binary=field.binary)
            for path, field in spec.columns.items()
            if path.startswith("obs")
        }
        spec = Spec(stacked, spec.action, spec.extras)
    window = Window(stack=1 if layout == "shared" else stack)
    return kind(spec, capacity, envs, window, sampler, layout)


@pytest.mark.parametrize("sampler", [None, prioritized()], ids=["uniform", "prioritized"])
@pytest.mark.parametrize("layout", ["stream", "per_env", "shared"])
@pytest.mark.parametrize("name", SPECS)
def test_device_bytes_are_the_ponds_own(name, layout, sampler):
    spec, stack, envs, capacity = SPECS[name], 3, 4, 4 * 100
    pond = ring(Pond, spec, layout, stack, envs, capacity, sampler)
    state = pond.init()
    assert pond.nbytes == sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    plan = make_plan(spec, stack, envs, capacity, prioritized=sampler is not None)
    planned = row(plan, layout, "device")
    assert planned.tree_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(state.priorities))
    assert planned.total_bytes == planned.row_bytes * capacity + planned.tree_bytes
    assert 0 <= pond.nbytes - planned.total_bytes <= 64 + 32 * envs  # heads and counts


@pytest.mark.parametrize("sampler", [None, prioritized()], ids=["uniform", "prioritized"])
@pytest.mark.parametrize("layout", ["stream", "per_env", "shared"])
@pytest.mark.parametrize("name", SPECS)
def test_host_bytes_are_the_host_ponds_own(name, layout, sampler):
    spec, stack, envs, capacity = SPECS[name], 3, 4, 4 * 1000
    pond = ring(HostPond, spec, layout, stack, envs, capacity, sampler)
    tree = array_bytes(pond._ranks.tree) if sampler else 0
    assert pond.nbytes == array_bytes(pond._ring) + tree
    plan = make_plan(spec, stack, envs, capacity, prioritized=sampler is not None)
    planned = row(plan, layout, "host")
    assert planned.tree_bytes == tree
    heads = array_bytes(pond) - planned.total_bytes
    # One row of zeros for padding and a table of verdicts: less than a byte per row.
    assert 0 <= heads <= 2000 + planned.row_bytes < capacity


def test_what_fits_counts_the_tree():
    spec = Spec(Field("float32", (4,)), Field("int32"))
    memory = Machine("a GPU", device_bytes=10**6, ram_bytes=10**6, disk_bytes=10**6)
    plan = make_plan(spec, num_envs=4, capacity=4000, machine=memory, prioritized=True)
    for place, kind in (("device", Pond), ("host", HostPond)):
        fit = row(plan, "stream", place).rows_fit
        assert fit < row(plan, "stream", "lake").rows_fit
        exact = make_plan(spec, num_envs=4, capacity=fit, machine=memory, prioritized=True)
        more = make_plan(spec, num_envs=4, capacity=fit + 4, machine=memory, prioritized=True)
        assert (row(exact, "stream", place).fits, row(more, "stream", place).fits) == (True, False)
        held = kind(spec, fit, 4, sampler=prioritized()).nbytes
        assert held == pytest.approx(10**6, rel=0.01)


def test_atari_by_hand():
    plan = make_plan(ATARI, stack=4, num_envs=2048, capacity=2048 * 500)
    frame, small = 3 * 84 * 84, 4 + 4 + 1  # action, reward, flags
    assert plan.layouts[0].layout == "two_stacks"
    assert plan.layouts[0].row_bytes == 8 * frame + small
    for layout in ("stream", "per_env"):
        for placement in ("device", "host"):
            assert row(plan, layout, placement).row_bytes == frame + small
            assert row(plan, layout, placement).total_bytes == 1_024_000 * (frame + small)
            assert row(plan, layout, placement).saving == 8.0
    assert row(plan, "shared", "device").row_bytes == 8 * frame + small
    assert f"{2 * frame + small:,} B" in row(plan, "shared", "device").note
    assert row(make_plan(ATARI), "shared", "host").row_bytes == 2 * frame + small
    lake = {r.encoding: r.row_bytes for r in rows(plan, placement="lake")}
    frames = {"raw": frame, "zstd 22x": 3 * 327, "zstd 45x": 3 * 158}
    assert lake == {name: size + small for name, size in frames.items()}
    assert all(r.estimate == (r.placement == "lake") for r in plan.layouts)
    assert plan.starts == 2048 * (500 - 4)


def test_a_ring_per_env_costs_what_one_ring_costs():
    """Row for row: a capacity of 500 for each of 2,048 envs is 1,024,000 rows either way."""
    plan = make_plan(ATARI, num_envs=2048, capacity=2048 * 500)
    for placement in ("device", "host"):
        own, one = (row(plan, layout, placement) for layout in ("per_env", "stream"))
        assert own.row_bytes == one.row_bytes
        assert own.total_bytes == one.total_bytes == 1_024_000 * own.row_bytes


def test_the_answer_is_printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(Machine, "detect", lambda: Machine("G", 10**11, 10**11, 10**12))
    asked = ("--obs", "3x84x84:uint8", "--stack", "4", "--envs", "2048", "--capacity", "1e6")
    code, out, err = run(capsys, *asked)
    words = " ".join(out.split())
    assert (code, err) == (0, "")
    assert "use 999,424 or 1,001,472" in words
    assert "All totals are for 999,424 rows, 488 per env" in words
    assert "counting error" not in words, "plan does not argue with anybody"
    assert "what one ring over all envs costs" not in words
    assert "observation once, not 8 times (8.0x)" in words
    assert "…" not in out, "a number was cut off"
    assert max(map(len, out.splitlines())) <= 80


def test_binary_fields_are_bits():
    plan = make_plan(Spec(Field("bool", (10, 10, 4)), Field("int32")))
    assert row(plan, "stream", "host").row_bytes == 50 + 9
    assert row(plan, "stream", "device").row_bytes == 52 + 9  # 13 words
    assert plan.layouts[0].row_bytes == 2 * 400 + 9  # others spend a byte on each
    assert [r.encoding for r in rows(plan, placement="lake")] == ["raw"]


@pytest.mark.parametrize("field", [Field("float32", (84, 84)), Field("uint8", (128,))])
def test_only_images_are_assumed_to_compress(field):
    (lake,) = rows(make_plan(Spec(field, Field("int32"))), placement="lake")
    assert "no compression is assumed" in lake.note


def test_a_capacity_that_does_not_divide_is_planned_below():
    plan = make_plan(ATARI, num_envs=2048, capacity=10**6)
    assert (plan.capacity, plan.rows, plan.nearest) == (10**6, 999_424, (999_424, 1_001_472))
    assert make_plan(ATARI, num_envs=4, capacity=400).nearest == (400,)


def test_what_fits():
    spec = Spec(Field("float32", (4,)), Field("int32"))  # 25 B, shared 41
    machine = Machine("a GPU", device_bytes=25 * 1001, ram_bytes=25 * 100, disk_bytes=25 * 1003)
    plan = make_plan(spec, num_envs=10, capacity=1000, machine=machine)
    device, host = row(plan, "stream", "device"), row(plan, "stream", "host")
    assert (device.fits, device.rows_fit) == (True, 1000)
    assert (host.fits, host.rows_fit) == (False, 100)
    assert row(plan, "shared", "device").rows_fit == 25 * 1001 // 41
    assert row(plan, "stream", "lake").rows_fit == 1003
    assert plan.layouts[0].fits is None
    plan = make_plan(spec, num_envs=10, capacity=1000, machine=Machine(ram_bytes=25 * 1000))
    assert row(plan, "stream", "device").fits, "without an accelerator a Pond lies in RAM"
    assert row(plan, "stream", "lake").fits is None


def test_what_cannot_be_built_is_said():
    wide = make_plan(Spec(Field("float64", (3,)), Field("int32")), machine=Machine(ram_bytes=10**9))
    device = row(wide, "stream", "device")
    assert (device.fits, device.row_bytes) == (False, None)
    assert "HostPond" in device.problem
    assert row(wide, "stream", "host").fits
    long = make_plan(ATARI, capacity=2**31)
    assert "64-bit positions" in row(long, "stream", "device").problem
    assert row(long, "stream", "host").problem == ""
    steps = make_plan(ATARI, n_step=3)
    assert "n_step 3" in row(steps, "shared", "host").problem
    assert row(steps, "stream", "device").problem == ""


@pytest.mark.parametrize("stats", [{"bytes_limit": 80, "bytes_in_use": 30}, None])
def test_detect(monkeypatch, tmp_path, stats):
    here = Machine.detect(tmp_path)
    assert here.ram_bytes is None or here.ram_bytes > 0
    assert here.disk_bytes is not None
    gpu = SimpleNamespace(platform="gpu", device_kind="G", memory_stats=lambda: stats)
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    there = Machine.detect(tmp_path)
    assert (there.device, there.device_bytes) == ("G", 50 if stats else None)
    plan = make_plan(ATARI, machine=there)
    assert (row(plan, "stream", "device").fits is None) == (stats is None)


def test_json_is_all_there_is_on_stdout():
    call = [sys.executable, "-m", "millpond", "plan", "--json", "--capacity", "1_001", "--envs=2"]
    call += ["--obs", "image=84x84:uint8", "--obs", "pose=7:float32", "--action", "8:float32"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=True)
    plain = json.loads(done.stdout)
    keys = "spec stack n_step num_envs capacity prioritized rows nearest starts machine layouts"
    assert list(plain) == keys.split()
    assert (plain["capacity"], plain["rows"], plain["nearest"]) == (1001, 1000, [1000, 1002])
    assert set(plain["machine"]) == {"device", "device_bytes", "ram_bytes", "disk_bytes"}
    keys = (
        "layout placement encoding row_bytes tree_bytes total_bytes saving estimate memory_bytes "
    )
    assert all(" ".join(r) == keys + "fits rows_fit problem note" for r in plain["layouts"])
    spec = Spec.from_json(plain["spec"])
    assert spec.obs == {"image": Field("uint8", (84, 84)), "pose": Field("float32", (7,))}
    plan = make_plan(spec, num_envs=2, capacity=1001, machine=Machine(**plain["machine"]))
    assert plan.to_json() == plain


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e6", 10**6), ("1_000_000", 10**6), ("500k", 500_000), ("1M", 10**6), ("1.5m", 1_500_000)],
)
def test_numbers(text, number):
    assert parse_count(text, "--capacity") == number


def test_fields():
    assert parse_field("3x84x84:uint8", "--obs") == Field("uint8", (3, 84, 84))
    assert parse_field("int32", "--action") == Field("int32")
    assert parse_field("8:bool", "--obs").binary
    assert parse_obs(["a=2:int8"]) == {"a": Field("int8", (2,))}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ("--obs 3x84x84:unint8", "did you mean uint8?"),
        ("--obs 3:zork", "use one of bool"),
        ("--obs 3x84x84", "write 3x84x84:uint8"),
        ("--obs 3x-4:uint8", "got '3x-4'"),
        ("--obs 3x0:uint8", "expected a shape such as 3x84x84"),
        ("--obs 9999999999x9999999999:uint8", "at most 10^15 elements"),
        ("--obs 3:int8 --obs 4:int8", "NAME=SHAPE:DTYPE"),
        ("--obs a=3:int8 --obs a=4:int8", "given twice"),
        ("", "--obs: no observation"),
        ("--obs 4:int8 --action discrete", "--action"),
        ("--obs 4:int8 --envs 0", "--envs: expected a whole number"),
        ("--obs 4:int8 --stack -4", "--stack: expected a whole number"),
        ("--obs 4:int8 --n-step 1.5", "--n-step: expected a whole number"),
        ("--obs 4:int8 --capacity 1e99", "--capacity: expected a whole number"),
        ("--obs 4:int8 --capacity -1", "got '-1'"),
        ("--obs 4:int8 --envs 90", "use a capacity of 180 or more"),
        ("--obs 4:int8 --wrong", "--wrong"),
    ],
)
def test_bad_input_exits_with_2_and_a_remedy(capsys, args, says):
    code, out, err = run(capsys, "--capacity", "100", *args.split())
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "wrong", [{"num_envs": 0}, {"capacity": 1.5}, {"stack": 0}, {"n_step": -1}]
)
def test_make_plan_refuses(wrong):
    with pytest.raises(BadConfig, match="whole number"):
        make_plan(ATARI, **wrong)


def test_help_fits_one_screen(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 24
    assert all(f"  {name} " in out and text for name, text in find_commands().items())
    assert main([]) == 2
    assert main(["plam"]) == 2
    assert "did you mean 'plan'?" in capsys.readouterr().err
    assert main(["--version"]) == 0
    code, out, _ = run(capsys, "--help")
    flags = ("--obs", "--stack", "--envs", "--capacity", "--n-step", "--action", "--json")
    assert code == 0
    assert all(flag in out for flag in flags)
