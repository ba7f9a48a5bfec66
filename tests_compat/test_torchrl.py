"""Batches as TorchRL's TensorDicts, in its own losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lakes import lake
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss

from millpond import Field, HostPond, Rows, Sequence, Spec, SpecMismatch, Window
from millpond.compat.torchrl import as_tensordict


def test_a_batch_shares_its_memory_under_torchrls_names(tmp_path):
    made = lake(tmp_path / "lake")
    batch = made.sample(np.random.default_rng(0), 32, Window(n_step=3, gamma=0.9))
    given = as_tensordict(batch)
    assert given.batch_size == (32,)
    assert given["observation"].shape == (32, 3)
    pairs = {
        "observation": batch.obs,
        ("next", "observation"): batch.next_obs,
        "action": batch.action,
        ("next", "reward"): batch.reward,
        ("next", "terminated"): batch.terminated,
        "steps_to_next_obs": batch.steps,
        "_weight": batch.weight,
        "mood": batch.extras["mood"],
        "row": batch.draw.row,
    }
    for name, array in pairs.items():
        assert given[name].data_ptr() == array.ctypes.data
        np.testing.assert_array_equal(given[name].numpy().reshape(array.shape), array)
    np.testing.assert_array_equal(
        given["next", "done"][:, 0].numpy(), batch.terminated | batch.truncated
    )


def test_torchrls_own_loss_is_ours(tmp_path):
    """DQNLoss of a TensorDict against the target written out from the batch."""
    made = lake(tmp_path / "lake")
    batch = made.sample(np.random.default_rng(0), 64, Window(n_step=3, gamma=0.9))
    net = torch.nn.Linear(3, 5)
    actor = QValueActor(net, in_keys=["observation"], action_space="categorical")
    loss = DQNLoss(actor, action_space="categorical", delay_value=False, loss_function="l2")
    loss.make_value_estimator(gamma=0.9)
    theirs = loss(as_tensordict(batch))["loss"]
    with torch.no_grad():
        best = net(torch.from_numpy(batch.next_obs[:, 0])).amax(1)
        goal = torch.from_numpy(batch.reward) + torch.from_numpy(batch.discount) * best
        value = net(torch.from_numpy(batch.obs[:, 0]))
        value = value.gather(1, torch.from_numpy(batch.action).long()[:, None])[:, 0]
    assert batch.terminated.any()
    assert (batch.truncated & ~batch.terminated).any()
    torch.testing.assert_close(theirs, torch.nn.functional.mse_loss(value, goal))


def test_sequences_and_stacks_and_dicts(tmp_path):
    made = lake(tmp_path / "lake")
    batch = made.sample(np.random.default_rng(0), 8, Sequence(6, stack=2, end="stop"))
    given = as_tensordict(batch)
    assert given.batch_size == (8, 6)
    assert given["observation"].shape == (8, 6, 2, 3)
    np.testing.assert_array_equal(given["next", "observation"].numpy(), batch.obs[:, 1:])
    np.testing.assert_array_equal(given["observation"].numpy(), batch.obs[:, :-1])
    np.testing.assert_array_equal(given["is_init"][..., 0].numpy(), batch.first)
    np.testing.assert_array_equal(given["mask"].numpy(), batch.mask)
    spec = Spec({"a": Field("float32", (2,)), "b": Field("uint8")}, Field("int32"))
    pond = HostPond(spec, 20)
    for t in range(5):
        obs = {"a": np.full(2, t, np.float32), "b": np.uint8(t)}
        pond.add(Rows(obs, np.int32(0), 0.5, False, False, np.uint8(t == 0)))
    given = as_tensordict(pond.sample(4))
    assert given["observation", "a"].shape == (4, 2)
    assert (given["next", "observation", "b"] == given["observation", "b"] + 1).all()
    with pytest.raises(SpecMismatch, match="got dict"):
        as_tensordict({})
