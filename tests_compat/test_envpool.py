"""EnvPool's vectors give rows as Gymnasium's do."""

from __future__ import annotations

import envpool
import numpy as np
import pytest

from millpond import BadConfig, HostPond, Spec, Window
from millpond.envs import GymRows


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_envpools_vectors_work_natively():
    envs = envpool.make_gymnasium("CartPole-v1", num_envs=3, seed=1, max_episode_steps=12)
    spec = Spec.from_env(envs)
    pond = HostPond(spec, 3 * 200, 3, Window(n_step=1, gamma=0.9))
    with pytest.raises(BadConfig, match="does not say how it resets itself"):
        GymRows(envs)
    loop = GymRows(envs, same_step=False)
    loop.reset()
    oracle, played = {}, []
    for _ in range(100):
        obs = loop.obs.copy()
        action = np.ones(3, np.int32)
        action[0] = len(played) % 2
        rows, final = loop.step(action)
        assert final is None
        pond.add(rows)
        played.append((obs, rows, loop.obs.copy()))
    ends = {"terminated": 0, "truncated": 0}
    for stream in range(3):
        for t, (obs, rows, after) in enumerate(played):
            if not rows.flags[stream] & 2:
                oracle[stream, t] = (obs[stream], after[stream], rows.terminated[stream])
                ends["terminated"] += rows.terminated[stream]
                ends["truncated"] += rows.truncated[stream]
    assert min(ends.values()) > 3
    batch = pond.sample(2000)
    for i, where in enumerate(
        zip(batch.draw.stream.tolist(), batch.draw.row.tolist(), strict=True)
    ):
        obs, after, terminated = oracle[where]
        np.testing.assert_array_equal(batch.obs[i, 0], obs)
        np.testing.assert_array_equal(batch.next_obs[i, 0], after)
        assert batch.discount[i] == np.float32(0 if terminated else 0.9)
    # An episode's first observation is near zero; a final one taken for it would not be.
    first = np.array([o for (o, r, _) in played for o, f in zip(o, r.flags, strict=True) if f & 1])
    assert np.abs(first).max() <= 0.05
    assert np.abs(batch.next_obs[batch.terminated, 0, 2]).min() > 0.2


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_an_asynchronous_vector_is_refused():
    envs = envpool.make_gymnasium("CartPole-v1", num_envs=4, batch_size=2, seed=1)
    with pytest.raises(BadConfig, match="make it without batch_size"):
        GymRows(envs, same_step=False)
