"""A replay for SB3's off-policy agents that stores every frame once, shifts pictures at random, and records ends of episodes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor, nn

from maskrl.nn.augment import RandomShift
from maskrl.replay.buffer import Index
from maskrl.replay.frames import Frames, Pixels
from maskrl.replay.spaces import Pictures
from maskrl.replay.windows import draw_windows


class FrameReplayBuffer(ReplayBuffer):
    """`replay_buffer_class=FrameReplayBuffer, replay_buffer_kwargs={"frame_stack": 3, "shift": 4}`.

    `frame_stack`: the frames per observation (VecFrameStack's `n_stack`); 1 stores observations whole, but only once.
    `shift`: shift observations and next observations separately by up to this many pixels (DrQ); None: no shifts.
    `directory`: store the frames in a file there instead of in memory.
    With the same seed and no shift it returns the same batches as SB3's own. Episodes of under 100 steps take more room than is
    reserved for them, so the oldest steps are dropped sooner.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        frame_stack: int = 1,
        shift: int | None = None,
        directory: Path | str | None = None,
    ) -> None:
        if optimize_memory_usage:
            raise ValueError("optimize_memory_usage=True: this replay stores every frame once anyway. Leave it out.")
        if isinstance(observation_space, spaces.Dict):
            raise ValueError(
                "FrameReplayBuffer stores pictures, but the observations are a Dict. Leave replay_buffer_class out: SB3's "
                "DictReplayBuffer works with Auxiliary(key=...)."
            )
        # Skip ReplayBuffer's own __init__, which would allocate every stack twice.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        pictures = Pictures.of(observation_space)
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage, self.handle_timeout_termination = False, handle_timeout_termination
        self.frames = Frames(
            *(pictures.shape, frame_stack, Frames.slots_for(self.buffer_size, frame_stack), n_envs),
            directory=None if directory is None else Path(directory),
        )
        steps = (self.buffer_size, n_envs)
        self.numbers = np.zeros(steps, np.int64)  # frame number of each observation; the next one's follows it
        self.continues = np.zeros(steps, np.bool_)  # whether the next slot continues the episode
        self.actions = np.zeros((*steps, self.action_dim), self._maybe_cast_dtype(action_space.dtype))
        self.rewards, self.dones, self.timeouts = (np.zeros(steps, np.float32) for _ in range(3))
        self._open = np.zeros(n_envs, np.bool_)
        # Its own generator, so that batches are the same with and without shifts. SB3 seeds torch before it builds this.
        self._generator = torch.Generator().manual_seed(torch.initial_seed())
        self.shift = shift
        self._move = self._mover()

    def _mover(self) -> nn.Module:
        # In place: the gathered pictures are copies.
        return nn.Identity() if self.shift is None else RandomShift(self.shift, self._generator, inplace=True)

    @property
    def nbytes(self) -> int:
        """The bytes allocated; the system assigns them as steps are added."""
        arrays = (self.numbers, self.continues, self.actions, self.rewards, self.dones, self.timeouts)
        return self.frames.nbytes + sum(array.nbytes for array in arrays)

    def reset(self) -> None:
        super().reset()
        self._open[:] = False

    def add(
        self,
        obs: Pixels,
        next_obs: Pixels,
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Store one step of every environment. Resets without a mark, as by `learn()`, are detected from the pictures."""
        kept = obs.shape[1] // self.frames.stack  # channels of the oldest frame, which the next observation lacks
        for column, (now, then) in enumerate(zip(obs, next_obs, strict=True)):
            if not np.array_equal(now[kept:], then[: len(then) - kept]):
                raise ValueError(
                    f"The next observation of environment {column} does not continue its observation: with "
                    f"frame_stack={self.frames.stack} its older frames must be the newer frames of it. Pass the environment's "
                    "own number of frames, oldest first on the channel axis, or frame_stack=1."
                )
        for column, (now, then) in enumerate(zip(obs, next_obs, strict=True)):
            goes_on = bool(self._open[column]) and np.array_equal(now, self.frames.newest(column))
            self.continues[self.pos - 1, column] = goes_on
            number = self.frames.newest_number(column) if goes_on else self.frames.begin(column, now)
            self.numbers[self.pos, column] = number
            self.frames.follow(column, then)
        self.actions[self.pos] = action.reshape(self.n_envs, self.action_dim)
        self.rewards[self.pos], self.dones[self.pos] = reward, done
        self.continues[self.pos] = False
        if self.handle_timeout_termination:
            self.timeouts[self.pos] = [info.get("TimeLimit.truncated", False) for info in infos]
        self._open = ~np.asarray(done, np.bool_)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def _get_samples(self, batch_inds: Index, env: VecNormalize | None = None) -> ReplayBufferSamples:
        slots, columns = batch_inds, np.random.randint(0, high=self.n_envs, size=len(batch_inds))
        while (gone := ~self._readable(slots, columns)).any():  # short episodes have overwritten them
            slots[gone] = np.random.randint(0, self.size(), size=gone.sum())
            columns[gone] = np.random.randint(0, high=self.n_envs, size=gone.sum())
        now, then = self._pairs(columns, self.numbers[slots, columns])
        obs, next_obs = self._pictures(now, env), self._pictures(then, env)
        ends = self.dones[slots, columns] * (1 - self.timeouts[slots, columns])
        rewards = self._normalize_reward(self.rewards[slots, columns].reshape(-1, 1), env)
        numbers = (self.to_torch(array) for array in (self.actions[slots, columns], ends.reshape(-1, 1), rewards))
        actions, dones, gains = numbers
        return ReplayBufferSamples(obs, actions, next_obs, dones, gains)

    def _pairs(self, columns: Index, numbers: Index) -> tuple[Pixels, Pixels]:
        """Observations and next observations, (B, stack, c, H, W) or (B, 1, C, H, W)."""
        if self.shift is None:
            frames = self.frames.runs(columns, numbers, 2)  # (B, stack + 1, c, H, W); both are views of it
            return frames[:, :-1], frames[:, 1:]
        return self.frames.read(columns, numbers)[:, None], self.frames.read(columns, numbers + 1)[:, None]

    def _pictures(self, frames: Pixels, env: VecNormalize | None) -> Tensor:
        """(B, C, H, W) on the device."""
        moved: Tensor = self._move(torch.from_numpy(frames).flatten(1, 2))
        if env is not None:
            moved = torch.from_numpy(np.asarray(self._normalize_obs(moved.numpy(), env)))
        return moved.to(self.device)

    def _readable(self, slots: Index, columns: Index) -> NDArray[np.bool_]:
        return self.frames.holds(columns, self.numbers[slots, columns])

    # ── clips ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def draw_clips(self, generator: np.random.Generator, clips: int, length: int) -> tuple[Pixels, NDArray[Any]]:
        """Observations (B, K, C, H, W) and actions (B, K, …) of consecutive steps, each clip within one episode."""
        slots, columns = draw_windows(
            *(generator, clips, length),
            continues=self.continues,
            oldest=self.pos if self.full else 0,
            steps=self.size(),
            usable=self._readable,
        )
        obs = self.frames.read(np.broadcast_to(columns, slots.shape), self.numbers[slots, columns])
        return obs, self.actions[slots, columns]

    # ── for SB3's save_replay_buffer ──────────────────────────────────────────────────────────────────────────────

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_move"}
        return {**state, "_generator": self._generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._generator = torch.Generator()
        self._generator.set_state(state["_generator"])
        self._move = self._mover()
