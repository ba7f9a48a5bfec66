"""Stable-Baselines3: replay buffers on top of a HostPond.

`pip install 'millpond[sb3]'`.
"""

from __future__ import annotations

from math import prod
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
from .lake_copy import LakeCopy
from .last_seen import LastSeen
from .need import need
from .packed_steps import PackedSteps
from .ready_samples import ReadySamples
from .tensors import as_torch

buffers = need("stable_baselines3.common.buffers", "sb3")
_types = need("stable_baselines3.common.type_aliases", "sb3")
_images = need("stable_baselines3.common.preprocessing", "sb3")

__all__ = ["DictReplayBuffer", "ReplayBuffer"]


class ReplayBuffer(buffers.ReplayBuffer):
    """A replacement for Stable-Baselines3's ReplayBuffer that stores every observation once.

        DQN("MlpPolicy", env, replay_buffer_class=ReplayBuffer,
            replay_buffer_kwargs=dict(n_steps=3, frame_stack=4, lake="runs/replay"))

    `frame_stack`: the number of frames that observations stack, as VecFrameStack does; only the
    newest frame is stored, and each add checks that this loses nothing. `frame_pad`: the padding of
    an episode's first stack, "zeros" or its "first" frame. `sampler`: one of millpond's;
    `prioritized()` needs a learner that updates priorities, such as PrioritizedDQN. `lake`: a
    folder that keeps the rows, committed every `commit_every` steps, from which a new buffer fills
    itself. `gamma` matters only if `n_steps` > 1.

    `buffer_size` counts stored rows, of which an episode's final observation is one. A transition
    can be drawn once its env has made `n_steps` more steps or its episode has ended.
    """

    _kind: Any = _types.ReplayBufferSamples

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
        # Skip ReplayBuffer's own __init__, which would allocate its arrays.
        super(buffers.ReplayBuffer, self).__init__(
            buffer_size, observation_space, action_space, device, n_envs=n_envs
        )
        if optimize_memory_usage:
            raise BadConfig(
                "ReplayBuffer: optimize_memory_usage is for Stable-Baselines3's own buffer; omit "
                "it, observations are stored once anyway"
            )
        if not isinstance(commit_every, int) or commit_every < 1:
            raise BadConfig(
                f"ReplayBuffer: commit_every must be a whole number >= 1, got {commit_every!r}"
            )
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.n_steps, self.gamma = n_steps, gamma
        spaces = self._spaces()
        self._stacks = [self._frame_stack(space, frame_stack, frame_pad) for space in spaces]
        self._dtypes = [space.dtype for space in spaces]
        self._stacked = frame_stack > 1
        self._lead, self._action_lead = (n_envs,), (n_envs, self.action_dim)
        self._obs_leads = [(n_envs, *stack.shape) for stack in self._stacks]
        fields = [
            Field(dtype, stack.frame)
            for dtype, stack in zip(self._dtypes, self._stacks, strict=True)
        ]
        action_dtype = self._maybe_cast_dtype(action_space.dtype)
        spec = Spec(self._tree(fields), Field(action_dtype, (self.action_dim,)))
        self._how: dict[str, Any] = dict(
            spec=spec,
            capacity=self.buffer_size * n_envs,
            num_envs=n_envs,
            window=Window(frame_stack, n_steps, gamma, pad=frame_pad),
            sampler=sampler or uniform(),
            layout="stream" if n_envs == 1 else "per_env",
        )
        self._no_action = spec.action.lowest()
        # Without frame stacks and on the CPU, samples can share the memory of the pond's batches.
        self._ready = None
        if not self._stacked and str(self.device) == "cpu":
            discounted = gamma if n_steps > 1 else None
            window, ranked = self._how["window"], isinstance(sampler, Prioritized)
            self._ready = ReadySamples(spec, window, ranked, discounted, self._kind)
        # Without `seed`, follow Stable-Baselines3's set_random_seed.
        self._begin(np.random.randint(2**31) if seed is None else seed)
        self._lake_copy = None
        if lake is not None:
            self._lake_copy = LakeCopy(lake, self.pond, lake_capacity or max(buffer_size, 1 << 20))
            self.pos = int(self.pond.added.max()) % self.buffer_size
            self.full = bool(self.pond.added.max() >= self.buffer_size)
        # Commit before rows are overwritten; an add writes up to three rows per env.
        self._every = min(commit_every, max(1, (self.pond.length - 3) // 3))
        self._steps = 0  # steps since the last commit

    def _spaces(self) -> list[Any]:
        """The spaces of the arrays that make up an observation, in order."""
        return [self.observation_space]

    def _frame_stack(self, space: Any, number: int, pad: str) -> FrameStack:
        first = _images.is_image_space(space) and _images.is_image_space_channels_first(space)
        return FrameStack(_images.get_obs_shape(space), number, first, pad)

    def _tree(self, parts: list[Any]) -> Any:
        """An observation from its arrays, or a tree of anything with one part per array."""
        return parts[0]

    def _begin(self, seed: int) -> None:
        """Start with an empty pond; the next row of every env begins an episode."""
        self.pond: HostPond = HostPond(**self._how, seed=seed)
        self.last: Batch | None = None  # the latest batch
        self._due = False  # whether its priorities must be updated
        self._fresh = list(range(self.n_envs))  # envs whose next row begins an episode
        self._seen = LastSeen(self.n_envs)
        self._zeros, self._none = np.zeros(self.n_envs, bool), np.zeros(self.n_envs, np.uint8)
        whole = not self._stacked and isinstance(self.pond.spec.obs, Field)
        timeouts = self.handle_timeout_termination
        self._packed = PackedSteps(self.pond, self._seen, timeouts) if whole else None

    def add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[Any]
    ) -> None:
        """Add a step of every env; if it does not fit, an error is raised and nothing stored."""
        ended = None
        if self._packed:
            ended = self._packed.add(obs, next_obs, action, reward, done, infos, self._fresh)
        if ended is None:
            ended = self._add(obs, next_obs, action, reward, done, infos)
        self._fresh = ended
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0
        self._steps += 1
        if self._lake_copy and self._steps >= self._every:
            self.commit()

    def _add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[Any]
    ) -> list[int]:
        """Add any step, with errors that name each fault; returns which envs ended."""
        seen, after = self._parts("obs", obs), self._parts("next_obs", next_obs)
        action = self._shaped("action", action, self._action_lead)
        reward = self._shaped("reward", reward, self._lead)
        done = self._shaped("done", done, self._lead)
        ended = [env for env, over in enumerate(done.tolist()) if over]
        terminated, truncated = self._ends(ended, infos) if ended else (self._zeros, self._zeros)
        strayed = self._seen.strayed(seen, self._fresh)
        final = after
        if self._stacked:
            first = sorted({*self._fresh, *strayed})
            for stack, here, then in zip(self._stacks, seen, after, strict=True):
                stack.check(here, then, first)
            seen, final = self._newest(seen), self._newest(after)
        for env in strayed:
            self._leave(env)
        self._store(seen, final, action, reward, terminated, truncated, ended)
        self._seen.note(after)
        return ended

    def _parts(self, name: str, obs: Any) -> list[np.ndarray]:
        """The arrays of an observation, [env, *shape]; Discrete ones get their missing axis."""
        return [self._shaped(name, obs, self._obs_leads[0])]

    def _shaped(self, name: str, value: Any, wanted: tuple[int, ...]) -> np.ndarray:
        """A value per env, reshaped to `wanted`; SpecMismatch if it does not fit."""
        if value.__class__ is np.ndarray and value.shape == wanted:
            return value
        array = np.asarray(value)
        if array.size != prod(wanted) or array.shape[:1] != wanted[:1]:
            raise SpecMismatch(
                f"add: {name}: expected shape {wanted}, got {array.shape}; give one for each of "
                f"the {self.n_envs} envs that this buffer was made for"
            )
        return array.reshape(wanted)

    def _ends(self, ended: list[int], infos: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Which of the ended envs terminated, and which were truncated."""
        terminated, truncated = self._zeros.copy(), self._zeros.copy()
        if self.handle_timeout_termination:
            self._shaped("infos", [0] * len(infos), self._lead)
        for env in ended:
            late = self.handle_timeout_termination and infos[env].get("TimeLimit.truncated", False)
            (truncated if late else terminated)[env] = True
        return terminated, truncated

    def _newest(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        return [stack.newest(part) for stack, part in zip(self._stacks, parts, strict=True)]

    def _leave(self, env: int) -> None:
        """Close an episode that did not end: store its last next_obs, then cut."""
        one = self._tree([part[env] for part in self._newest(self._seen.obs())])
        self.pond.add(Rows(one, self._no_action, 0.0, False, False, np.uint8(CONTEXT)), env=env)
        self.pond.cut(env)
        self._fresh = sorted({*self._fresh, env})

    def _store(
        self,
        obs: list[np.ndarray],
        final: list[np.ndarray],
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        ended: list[int],
    ) -> None:
        flags = self._none
        if self._fresh:
            flags = np.zeros(self.n_envs, np.uint8)
            flags[self._fresh] = FIRST
        if ended and not self._storable(final):
            rows = Rows(self._tree(obs), action, reward, terminated, truncated, flags)
            self.pond.add(rows, final_obs=self._tree(final))
            return
        # Adding rows one by one is faster, but must not fail at a border row after its row.
        if self.n_envs == 1:
            one = self._tree([part[0] for part in obs])
            flag, end = FIRST if self._fresh else 0, (terminated.item(), truncated.item())
            self.pond.add(Rows(one, action[0], reward.item(), *end, flag))
        else:
            self.pond.add(Rows(self._tree(obs), action, reward, terminated, truncated, flags))
        for env in ended:
            one = self._tree([part[env] for part in final])
            self.pond.add(Rows(one, self._no_action, 0.0, False, False, BORDER), env=env)

    def _storable(self, final: list[np.ndarray]) -> bool:
        """Whether final observations are certain to be accepted."""
        for part, dtype in zip(final, self._dtypes, strict=True):
            if part.dtype != dtype or (part.dtype.kind == "f" and np.isnan(part).any()):
                return False
        return True

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Sample transitions as tensors, normalised if `env` is a VecNormalize."""
        if self._due:
            raise BadConfig(
                "ReplayBuffer: the priorities of the last batch were not updated; call "
                "update_priorities(errors) after each sample, as PrioritizedDQN does, or use "
                "another sampler"
            )
        steps, ready = self.n_steps, None
        if self._ready and env is None and batch_size.__class__ is int and batch_size > 0:
            ready = self._ready.take(batch_size)
        try:
            batch = self.pond.sample(batch_size, out=ready and ready.batch)
        except NotEnoughData as error:
            raise NotEnoughData(
                f"ReplayBuffer: {error}. A transition can be drawn once its env has made {steps} "
                f"more step(s); raise learning_starts by {steps * self.n_envs}"
            ) from error
        self._due = self.prioritized
        self.last = batch
        return self._ready.fill(ready) if self._ready and ready else self.tensors(batch, env)

    def tensors(self, batch: Batch, env: Any = None) -> Any:
        """A pond's batch as Stable-Baselines3's samples: `tensors(pond.take(stream, row))`."""
        if env is not None and self.n_steps > 1 and env.norm_reward:
            raise BadConfig(
                "ReplayBuffer: n-step rewards are summed before VecNormalize could normalise each; "
                "use n_steps=1, or VecNormalize(norm_reward=False)"
            )
        obs, after = (self._normal(tree, env) for tree in (batch.obs, batch.next_obs))
        reward = self._normalize_reward(batch.reward[:, None], env)
        discounts = None
        if self.n_steps > 1:
            discounts = np.float32(self.gamma) ** batch.steps[:, None].astype(np.float32)
        dones = batch.terminated[:, None].astype(np.float32)
        given = (obs, batch.action, after, dones, reward, discounts)
        device = None if str(self.device) == "cpu" else self.device  # .to("cpu") is not free
        return self._kind(*as_torch(given, device))

    def _normal(self, obs: Any, env: Any) -> Any:
        parts = zip(self._stacks, leaves(obs), strict=True)
        return self._normalize_obs(self._tree([one.joined(part) for one, part in parts]), env)

    @property
    def prioritized(self) -> bool:
        """Whether it samples by priority, and so needs `update_priorities`."""
        return isinstance(self.pond.sampler, Prioritized)

    def update_priorities(self, errors: Any, draw: Draw | None = None) -> None:
        """Set priorities to |errors|, [batch], of the last sample or of `draw`."""
        if self.last is None and draw is None:
            raise BadConfig("ReplayBuffer: update_priorities before sample(); sample first")
        given = errors.detach().cpu().numpy() if hasattr(errors, "detach") else errors
        drawn: Any = draw or (self.last and self.last.draw)
        self.pond.update_priorities(drawn, np.abs(np.asarray(given, np.float32)).reshape(-1))
        self._due = False

    def commit(self) -> None:
        """Write all rows added so far to the Lake."""
        if self._lake_copy is None:
            raise BadConfig(
                "ReplayBuffer: there is no Lake to commit to; make it with lake='FOLDER'"
            )
        self._lake_copy.commit()
        self._steps = 0

    def close(self) -> None:
        """Commit, and release the Lake for other processes; does nothing without a Lake."""
        if self._lake_copy:
            self._lake_copy.close()
            self._lake_copy = None

    def reset(self) -> None:
        """Forget all transitions; BadConfig with a Lake, which would keep them."""
        if self._lake_copy:
            raise BadConfig("ReplayBuffer: reset() is not possible with a Lake; call close() first")
        super().reset()
        self._begin(int(np.random.randint(2**31)))

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        raise BadConfig(
            "ReplayBuffer: there are no samples by position; call sample(), or "
            "tensors(pond.take(stream, row))"
        )

    def __getstate__(self) -> dict[str, Any]:
        if self._lake_copy:
            raise BadConfig(
                f"ReplayBuffer: the Lake in {self._lake_copy.lake.path} already keeps the rows; to "
                "copy or save the buffer without it, call close() first"
            )
        return self.__dict__.copy()


class DictReplayBuffer(ReplayBuffer):
    """The same for dict observations: `replay_buffer_class=DictReplayBuffer`.

    With `frame_stack`, every value of the dict is such a stack, as VecFrameStack makes them.
    """

    _kind = _types.DictReplayBufferSamples

    def _spaces(self) -> list[Any]:
        self._keys = sorted(self.observation_space.spaces)
        return [self.observation_space.spaces[key] for key in self._keys]

    def _parts(self, name: str, obs: Any) -> list[np.ndarray]:
        if obs.keys() != self.obs_shape.keys():
            raise SpecMismatch(
                f"add: expected observations with the keys {self._keys}, "
                f"got {sorted(obs)}; give exactly the keys of the space"
            )
        return [
            self._shaped(f"{name}['{key}']", obs[key], lead)
            for key, lead in zip(self._keys, self._obs_leads, strict=True)
        ]

    def _tree(self, parts: list[Any]) -> Any:
        return dict(zip(self._keys, parts, strict=True))
