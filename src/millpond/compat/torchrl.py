"""TorchRL: batches as TensorDicts, ready for its losses.

`pip install 'millpond[torchrl]'`.
"""

from __future__ import annotations

from typing import Any

from ..errors import SpecMismatch
from ..rows import Batch
from ..sequence import SequenceBatch
from .need import need
from .tensors import as_torch, each

tensordict = need("tensordict", "torchrl")

__all__ = ["as_tensordict"]


def as_tensordict(batch: Batch | SequenceBatch, device: Any = None) -> Any:
    """A TensorDict [batch], or [batch, time] for sequences, that shares the batch's memory.

    Keys are TorchRL's: `observation`, `action`, `next` with `observation`, `reward`, `done`,
    `terminated` and `truncated`, `steps_to_next_obs`; and ours: `mask`, `_weight`, `row`, `stream`
    and the extras. Stacks of one frame lose their axis. On the CPU only `done` is new; everything
    else shares memory with the batch, as in `as_torch`.

        loss = DQNLoss(q_net, action_space="categorical")(as_tensordict(pond.sample(256)))
    """
    if not isinstance(batch, (Batch, SequenceBatch)):
        raise SpecMismatch(
            f"as_tensordict: expected a Batch or SequenceBatch, got {type(batch).__name__}; "
            "give the result of sample() or take()"
        )
    given: Any = as_torch(batch, device)
    lead = tuple(given.reward.shape)
    if isinstance(batch, Batch):
        axis, obs, after = 1, given.obs, given.next_obs
        more = {"steps_to_next_obs": given.steps[:, None]}
    else:
        axis = 2
        obs = each(given.obs, lambda leaf: leaf[:, :-1])
        after = each(given.obs, lambda leaf: leaf[:, 1:])
        more = {"is_init": given.first[..., None]}

    def frames(tree: Any) -> Any:
        return each(tree, lambda leaf: leaf.squeeze(axis) if leaf.shape[axis] == 1 else leaf)

    def column(value: Any) -> Any:
        return value[..., None]

    terminated, truncated = column(given.terminated), column(given.truncated)
    following = {
        "observation": frames(after),
        "reward": column(given.reward),
        "terminated": terminated,
        "truncated": truncated,
        "done": terminated | truncated,
    }
    rows = {"_weight": given.weight, "row": given.draw.row, "stream": given.draw.stream}
    if len(lead) == 2:  # one per sequence, repeated for every step
        rows = {name: value[:, None].expand(lead) for name, value in rows.items()}
    return tensordict.TensorDict(
        {
            "observation": frames(obs),
            "action": given.action,
            "next": following,
            "mask": given.mask,
            **rows,
            **more,
            **given.extras,
        },
        batch_size=lead,
    )
