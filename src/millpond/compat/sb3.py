"""Stable-Baselines3: replay buffers over a HostPond, in the place of its own.

`pip install 'millpond[sb3]'`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadConfig, NotEnoughData, SpecMismatch
from ..replay import HostPond
from ..rows import BORDER, CONTEXT, FIRST, Batch, Draw, Rows, leaves
from ..samplers import Prioritized, Sampler, uniform
from ..spec import Field, Spec
from ..window import Window
from .frame_stack import FrameStack
from .kept_rows import KeptRows
from .need import need
from .tensors import as_torch

buffers = need("stable_baselines3.common.buffers", "sb3")
_types = need("stable_baselines3.common.type_aliases", "sb3")
_spaces = need("stable_baselines3.common.preprocessing", "sb3")

__all__ = ["DictReplayBuffer", "ReplayBuffer"]


class ReplayBuffer(buffers.ReplayBuffer):
    """Stable-Baselines3's ReplayBuffer with every observation stored once.

        DQN("MlpPolicy", env, replay_buffer_class=ReplayBuffer,
            replay_buffer_kwargs=dict(n_steps=3, frame_stack=4, lake="runs/replay"))

    `frame_stack`: observations are stacks of N frames, as VecFrameStack gives them; only the
    newest frame is stored, and each add checks that this loses nothing. `frame_pad`: what an
    episode's first stack is padded with, "zeros" or its "first" frame. `sampler`: one of
    millpond's; `prioritized()` needs a learner that gives priorities back, such as PrioritizedDQN.
    `lake`: a folder that keeps the rows, committed every `commit_every` steps, from which the
    buffer fills itself when it is made again. `gamma` counts where `n_steps` > 1.

    `buffer_size` counts stored rows: an episode's final observation is one of them. A transition
    can be drawn once its env has made `n_steps` more steps, or its episode has ended.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_steps: int = 1,
        gamma: float = 0.99,
        frame_stack: int = 1,
        frame_pad: Any = "zeros",
        sampler: Sampler | None = None,
        seed: int | None = None,
        lake: str | Path | None = None,
        lake_capacity: int | str | None = None,
        commit_every: int = 1000,
    ) -> None:
        # Past ReplayBuffer's own __init__, which would allocate all that is stored here otherwise.
        super(buffers.ReplayBuffer, self).__init__(
            buffer_size, observation_space, action_space, device, n_envs=n_envs
        )
        if optimize_memory_usage:
            raise BadConfig(
                "ReplayBuffer: optimize_memory_usage is for Stable-Baselines3's own buffer; leave "
                "it out, observations are stored once anyway"
            )
        if not isinstance(commit_every, int) or commit_every < 1:
            raise BadConfig(
                f"ReplayBuffer: commit_every must be a whole number >= 1, got {commit_every!r}"
            )
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.n_steps, self.gamma = n_steps, gamma
        self._stack = self._frame_stack(frame_stack, frame_pad)
        action_dtype = self._maybe_cast_dtype(action_space.dtype)
        spec = Spec(self._obs_fields(), Field(action_dtype, (self.action_dim,)))
        self._how: dict[str, Any] = dict(
            spec=spec,
            capacity=self.buffer_size * n_envs,
            num_envs=n_envs,
            window=Window(frame_stack, n_steps, gamma, pad=frame_pad),
            sampler=sampler or uniform(),
            layout="stream" if n_envs == 1 else "per_env",
        )
        self._no_action = spec.action.lowest()
        # Otherwise as set_random_seed says.
        self._begin(np.random.randint(2**31) if seed is None else seed)
        self._kept = None
        if lake is not None:
            self._kept = KeptRows(lake, self.pond, lake_capacity or max(buffer_size, 1 << 20))
            self.pos = int(self.pond.added.max()) % self.buffer_size
            self.full = bool(self.pond.added.max() >= self.buffer_size)
        # Before rows that are not committed yet are overwritten; an add writes up to three per env.
        self._every = min(commit_every, max(1, (self.pond.length - 3) // 3))
        self._steps = 0  # since the last commit

    def _frame_stack(self, number: int, pad: str) -> FrameStack | None:
        space = self.observation_space
        first = _spaces.is_image_space(space) and _spaces.is_image_space_channels_first(space)
        return FrameStack(tuple(self.obs_shape), number, first, pad)

    def _obs_fields(self) -> Any:
        assert self._stack
        return Field(self.observation_space.dtype, self._stack.frame)

    def _begin(self, seed: int) -> None:
        """An empty pond; the next row of every env begins an episode."""
        self.pond: HostPond = HostPond(**self._how, seed=seed)
        self.last: Batch | None = None  # the batch that was drawn last
        self._due = False  # priorities of it are due
        self._flags = np.full(self.n_envs, FIRST, np.uint8)
        # The newest next_obs, leaf by leaf. As bytes: they compare fastest and never change.
        self._after: list[tuple[bytes, np.dtype, tuple[int, ...]]] = []
        self._zeros, self._plain = np.zeros(self.n_envs, bool), np.zeros(self.n_envs, np.uint8)

    def add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[Any]
    ) -> None:
        """One step of every env; refused, and nothing of it stored, where it does not fit."""
        seen, after = self._observations(obs), self._observations(next_obs)
        action = self._shaped("action", action, (self.action_dim,))
        done, reward = self._shaped("done", done).astype(bool), self._shaped("reward", reward)
        truncated, ended = self._zeros, bool(done.any())
        if ended and self.handle_timeout_termination:
            late = [bool(info.get("TimeLimit.truncated", False)) for info in infos]
            truncated = done & self._shaped("infos", late)
        strayed = self._strayed(leaves(seen))
        final = after
        if self._stack and self._stack.number > 1:
            self._stack.check(seen, after, (self._flags == FIRST) | strayed)
            seen, final = self._stack.newest(seen), self._stack.newest(after)
        if strayed is not self._zeros:
            for env in np.flatnonzero(strayed):
                self._leave(int(env))
        self._store(seen, final, action, reward, done, truncated, ended)
        self._after = [(leaf.tobytes(), leaf.dtype, leaf.shape) for leaf in leaves(after)]
        self._flags = done * np.uint8(FIRST) if ended else self._plain
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0
        self._steps += 1
        if self._kept and self._steps >= self._every:
            self.commit()

    def _observations(self, obs: Any) -> Any:
        """[env, *shape]; of Discrete ones, which come without it, with an axis of their own."""
        return self._shaped("obs", obs, tuple(self.obs_shape))

    def _shaped(self, name: str, value: Any, shape: tuple[int, ...] = ()) -> np.ndarray:
        """One value of this shape for every env."""
        array, wanted = np.asarray(value), (self.n_envs, *shape)
        if array.shape == wanted:
            return array
        if array.size != int(np.prod(wanted)) or array.shape[:1] != wanted[:1]:
            raise SpecMismatch(
                f"add: {name}: expected shape {wanted}, got {array.shape}; give one per env of the "
                f"{self.n_envs} that this buffer was made for"
            )
        return array.reshape(wanted)

    def _strayed(self, seen: list[np.ndarray]) -> np.ndarray:
        """Which envs do not go on where they were: they were reset, or others were played."""
        if not self._after:
            return self._zeros
        for leaf, (known, dtype, _) in zip(seen, self._after, strict=True):
            if leaf.dtype != dtype or leaf.tobytes() != known:
                break
        else:
            return self._zeros
        strayed = self._zeros.copy()
        for leaf, was in zip(seen, self._expected(), strict=True):
            strayed |= (leaf != was).reshape(self.n_envs, -1).any(1)
        return strayed & (self._flags != FIRST)

    def _expected(self) -> list[np.ndarray]:
        """The newest next_obs, leaf by leaf."""
        return [np.frombuffer(known, dtype).reshape(shape) for known, dtype, shape in self._after]

    def _leave(self, env: int) -> None:
        """Close what env played without an end: its last next_obs, which others do not follow."""
        obs = self._tree(self._expected())
        obs = self._stack.newest(obs) if self._stack else obs
        one = {k: v[env] for k, v in obs.items()} if isinstance(obs, dict) else obs[env]
        self.pond.add(Rows(one, self._no_action, 0.0, False, False, np.uint8(CONTEXT)), env=env)
        self.pond.cut(env)
        self._flags = self._flags.copy()
        self._flags[env] = FIRST

    def _tree(self, found: list[np.ndarray]) -> Any:
        return found[0]

    def _store(
        self,
        obs: Any,
        final: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        truncated: np.ndarray,
        ended: bool,
    ) -> None:
        terminated = done & ~truncated if ended else self._zeros
        rows = Rows(obs, action, reward, terminated, truncated, self._flags)
        if not self._stack or (ended and not self._storable(final)):
            self.pond.add(rows, final_obs=final if ended else None)
            return
        # A row at a time takes a short way, but a border must not fail behind its row.
        if self.n_envs == 1:
            late, flag = bool(truncated[0]), self._flags[0]
            rows = Rows(obs[0], action[0], reward.item(), bool(terminated[0]), late, flag)
            self.pond.add(rows)
        else:
            self.pond.add(rows)
        if ended:
            for env in np.flatnonzero(done):
                border = Rows(final[env], self._no_action, 0.0, False, False, BORDER)
                self.pond.add(border, env=int(env))

    def _storable(self, final: np.ndarray) -> bool:
        """Whether nothing can be wrong with final observations: their field has no bounds."""
        if final.dtype != self.pond.spec.columns["obs"].dtype:
            return False
        return final.dtype.kind != "f" or not np.isnan(final).any()

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Tensors of `batch_size` transitions; with a VecNormalize they are normalised."""
        if self._due:
            raise BadConfig(
                "ReplayBuffer: priorities of the batch before this one are missing; call "
                "update_priorities(errors) after each sample, as PrioritizedDQN does, or use "
                "another sampler"
            )
        steps = self.n_steps
        try:
            batch = self.pond.sample(batch_size)
        except NotEnoughData as error:
            raise NotEnoughData(
                f"ReplayBuffer: {error}. A transition can be drawn when its env has made "
                f"{steps} more step(s): raise learning_starts by {steps * self.n_envs}"
            ) from error
        self._due = self.prioritized
        self.last = batch
        return self.tensors(batch, env)

    def tensors(self, batch: Batch, env: Any = None) -> Any:
        """A batch of the pond as Stable-Baselines3's samples: `tensors(pond.take(stream, row))`."""
        if env is not None and self.n_steps > 1 and env.norm_reward:
            raise BadConfig(
                "ReplayBuffer: rewards are summed before VecNormalize could clip each of them; use "
                "n_steps=1, or VecNormalize(norm_reward=False)"
            )
        obs, after = (self._normal(tree, env) for tree in (batch.obs, batch.next_obs))
        reward = self._normalize_reward(batch.reward[:, None], env)
        discounts = None
        if self.n_steps > 1:
            discounts = np.float32(self.gamma) ** batch.steps[:, None].astype(np.float32)
        dones = batch.terminated[:, None].astype(np.float32)
        given = (obs, batch.action, after, dones, reward, discounts)
        kind = _types.ReplayBufferSamples if self._stack else _types.DictReplayBufferSamples
        device = None if str(self.device) == "cpu" else self.device  # .to() costs where it stays
        return kind(*as_torch(given, device))

    def _normal(self, obs: Any, env: Any) -> Any:
        if self._stack:
            obs = self._stack.joined(obs)
        else:
            obs = {key: value[:, 0] for key, value in obs.items()}
        return self._normalize_obs(obs, env)

    @property
    def prioritized(self) -> bool:
        """Whether it draws by priority, and wants priorities back."""
        return isinstance(self.pond.sampler, Prioritized)

    def update_priorities(self, errors: Any, draw: Draw | None = None) -> None:
        """Give |TD errors|[batch] of the last sample, or of `draw`: arrays or tensors."""
        if self.last is None and draw is None:
            raise BadConfig("ReplayBuffer: update_priorities before the first sample()")
        given = errors.detach().cpu().numpy() if hasattr(errors, "detach") else errors
        drawn: Any = draw or (self.last and self.last.draw)
        self.pond.update_priorities(drawn, np.abs(np.asarray(given, np.float32)).reshape(-1))
        self._due = False

    def commit(self) -> None:
        """Everything that was added is in the Lake when this returns."""
        if self._kept is None:
            raise BadConfig("ReplayBuffer: nothing to commit to; make it with lake='FOLDER'")
        self._kept.commit()
        self._steps = 0

    def close(self) -> None:
        """Commit, and give the Lake free for another process; without a Lake nothing is done."""
        if self._kept:
            self._kept.close()
            self._kept = None

    def reset(self) -> None:
        """Forget all transitions; refused with a Lake, which would not forget them."""
        if self._kept:
            raise BadConfig("ReplayBuffer: reset() with a Lake; close() it first")
        super().reset()
        self._begin(int(np.random.randint(2**31)))

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        raise BadConfig(
            "ReplayBuffer: rows have no position that one could ask for; call sample(), or "
            "tensors(pond.take(stream, row))"
        )

    def __getstate__(self) -> dict[str, Any]:
        if self._kept:
            raise BadConfig(
                f"ReplayBuffer: the Lake in {self._kept.lake.path} keeps the rows already; call "
                "close() first to copy or save the buffer without it"
            )
        return self.__dict__.copy()


class DictReplayBuffer(ReplayBuffer):
    """The same for observations that are dicts: `replay_buffer_class=DictReplayBuffer`."""

    def _frame_stack(self, number: int, pad: str) -> None:
        if number != 1:
            raise BadConfig(
                f"DictReplayBuffer: frame_stack must be 1, got {number!r}; stacks inside dicts are "
                "stored as they come"
            )

    def _obs_fields(self) -> Any:
        spaces = self.observation_space.spaces
        return {key: Field(spaces[key].dtype, shape) for key, shape in self.obs_shape.items()}

    def _observations(self, obs: Any) -> Any:
        if set(obs) != set(self.obs_shape):
            raise SpecMismatch(
                f"add: expected observations with the keys {sorted(self.obs_shape)}, "
                f"got {sorted(obs)}; give every key of the space"
            )
        return {
            key: self._shaped(f"obs['{key}']", obs[key], shape)
            for key, shape in self.obs_shape.items()
        }

    def _tree(self, found: list[np.ndarray]) -> Any:
        return dict(zip(sorted(self.obs_shape), found, strict=True))
