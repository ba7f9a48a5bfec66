"""A mixture in envs that are stepped on the host: the same rounds, and a cut after a resume."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from mix_runs import PLAIN, crash_where, mixture
from tiny_runs import Arms, HostArms

from millpond import BadConfig
from millpond.lake import Lake
from millpond.mixture import MixRun, mix
from millpond.mixture.agents import Agents
from millpond.mixture.host_agents import HostAgents
from millpond.mixture.programs import Programs
from millpond.mixture.settings import BigSettings
from millpond.rows import BORDER, CUT

BIG = BigSettings(28.0, capacity=400)


def test_the_same_rounds_as_on_the_device():
    """In envs that leave nothing to chance both play and learn the same."""
    arms = Arms(pay=(0.25, 1.0, -0.5), turns=5)
    device = Agents(mixture(world=arms, big=BIG))
    host = HostAgents(mixture(world=HostArms(arms), big=BIG))
    ours, theirs = jax.jit(host.init)(), jax.jit(device.init)()
    ours = host.begin(ours, resumed=False)
    for _ in range(3):
        ours, seen = host.round(ours, 2)
        theirs, wanted = device.round(theirs, 2)
        for a, b in zip(seen, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    host.close()
    for name in ("agent", "ponds"):
        for a, b in zip(
            jax.tree.leaves(getattr(ours, name)),
            jax.tree.leaves(getattr(theirs, name)),
            strict=True,
        ):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_crashed_and_resumed_it_goes_on_behind_a_cut(tmp_path):
    """No row is lost, none is stored twice, and no window crosses from one life to the next."""
    settings = mixture(world=HostArms(PLAIN), big=BIG)
    programs = Programs(settings)
    run = MixRun.create(tmp_path / "run", settings)
    trains = 0

    def late(line):
        nonlocal trains
        trains += line["kind"] == "train"
        return trains == 5  # behind a save, with rows in the Lake that it does not know

    crash_where(run, programs, late)
    before = {
        (path.name, s.number): (s.stop, Lake.open(path).read(s.number, s.first, s.stop))
        for path in sorted(run.lakes.iterdir())
        for s in Lake.open(path).streams
    }
    mix(run, lambda line: None, programs)
    assert run.folder.status()["state"] == "finished"
    programs.agents.pond.check(programs_state(run, programs).agents.ponds)
    for path in sorted(run.lakes.iterdir()):
        lake = Lake.open(path)
        for stream in lake.streams:
            stop, old = before[path.name, stream.number]
            rows = lake.read(stream.number, stream.first, stream.stop)
            np.testing.assert_array_equal(rows.obs[: stop - 1], old.obs[: stop - 1])
            cuts = np.flatnonzero(rows.flags & CUT)
            assert cuts.tolist() == [stop - 1]
            ended = rows.terminated | rows.truncated
            follows = (rows.flags[1:] & BORDER) != 0
            same = ended[:-1] == follows
            assert same[np.arange(len(same)) != stop - 1].all()


def programs_state(run: MixRun, programs: Programs):
    from millpond.engine.checkpoint import load_tree

    return load_tree(run.folder.resume_state, programs.shapes())[0]


@pytest.mark.parametrize("changes", [{"transfer": "live"}, {"big": BigSettings(own_fraction=0.2)}])
def test_what_needs_one_program_is_refused(changes):
    with pytest.raises(BadConfig, match="stepped on the host"):
        mixture(**{"world": HostArms(PLAIN), "big": BIG} | changes)
