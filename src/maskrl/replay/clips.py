"""Clips for your own training loop, stored beside its replay.

clips = maskrl.ClipStore(envs.single_observation_space, envs.single_action_space, 100_000, envs.num_envs, frame_stack=4)
clips.add(obs, actions, terminated | truncated)        # once per step of the loop
clip = clips.draw(32, length=16)                       # for an objective
"""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from maskrl.nn.clip import Clip
from maskrl.replay.buffer import Index
from maskrl.replay.frames import Frames, Pixels
from maskrl.replay.spaces import Actions, Pictures
from maskrl.replay.windows import draw_windows


class ClipStore:
    """The newest steps of one or several environments. Every frame is stored once, in memory or in files of a directory.

    `capacity` counts steps of all environments together. `frame_stack`: the number of frames on an observation's channel axis,
    oldest first; with 1 an observation is stored whole. Leave it out for observations with a separate stack axis.
    Episodes of under 100 steps take more room than is reserved for them, so the oldest steps are dropped sooner.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        capacity: int,
        environments: int = 1,
        *,
        frame_stack: int | None = None,
        directory: Path | str | None = None,
        seed: int = 0,
    ) -> None:
        self._pictures, self._actions = Pictures.of(observation_space), Actions(action_space)
        self._slots = capacity // max(1, environments)
        if environments < 1 or self._slots < 1:
            raise ValueError(
                f"capacity={capacity} steps for {environments} environments: each needs at least 1 step to store."
            )
        stack = frame_stack or self._pictures.stack
        self._frames = Frames(
            *(self._pictures.shape, stack, Frames.slots_for(self._slots, stack), environments),
            directory=None if directory is None else Path(directory),
        )
        dtype, shape = self._actions.stored
        self._taken = np.zeros((self._slots, environments, *shape), dtype)
        self._numbers = np.zeros((self._slots, environments), np.int64)  # frame number of each observation
        self._continues = np.zeros((self._slots, environments), np.bool_)
        self._open = np.zeros(environments, np.bool_)  # whether the next observation continues the episode
        self._steps = 0  # ever added to each column
        self._generator = np.random.default_rng(seed)

    @property
    def obs_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the observations in a clip."""
        return self._pictures.shape

    @property
    def action_dim(self) -> int:
        """A, the width of the actions in a clip."""
        return self._actions.dim

    @property
    def discrete(self) -> bool:
        """Whether the actions in a clip are one-hot."""
        return self._actions.discrete

    @property
    def nbytes(self) -> int:
        """The bytes allocated; the system assigns them as steps are added."""
        return self._frames.nbytes + self._taken.nbytes + self._numbers.nbytes + self._continues.nbytes

    def __len__(self) -> int:
        """The number of steps stored."""
        return min(self._steps, self._slots) * self._frames.columns

    def add(self, obs: ArrayLike, actions: ArrayLike, ended: ArrayLike) -> None:
        """Store one step of every environment: the observation, the action taken, and whether it ended the episode.

        `ended` is terminated or truncated. A single environment may leave out the first axis.
        """
        pictures, taken, ends = self._checked(obs, actions, ended)
        for column in np.flatnonzero(self._open).tolist():
            if not self._frames.continued(column, pictures[column]):
                raise ValueError(
                    f"The observation of environment {column} does not continue the last one: with "
                    f"frame_stack={self._frames.stack} its older frames must be the newer frames of that one. If the environment "
                    "was reset, pass ended=True at the last step, or call cut(). If observations do not have their frames on "
                    "the channel axis, oldest first, use frame_stack=1."
                )
        slot = self._steps % self._slots
        if self._steps:
            self._continues[slot - 1] = self._open
        for column, picture in enumerate(pictures):
            write = self._frames.follow if self._open[column] else self._frames.begin
            self._numbers[slot, column] = write(column, picture)
        self._taken[slot], self._continues[slot], self._open = taken, False, ~ends
        self._steps += 1

    def cut(self) -> None:
        """Start new episodes with the next observations: call it after resetting environments within an episode."""
        self._open[:] = False

    def draw(self, clips: int, *, length: int) -> Clip:
        """B clips of K consecutive steps, each of one environment and within one episode, uniformly with replacement."""
        full = self._steps >= self._slots
        slots, columns = draw_windows(
            *(self._generator, clips, length),
            continues=self._continues,
            oldest=self._steps % self._slots if full else 0,
            steps=min(self._steps, self._slots),
            usable=self._readable,
        )
        obs = self._frames.read(np.broadcast_to(columns, slots.shape), self._numbers[slots, columns])
        actions = self._actions.rows(self._taken[slots, columns])
        return Clip(torch.from_numpy(obs), torch.from_numpy(actions))

    def _readable(self, slots: Index, columns: Index) -> NDArray[np.bool_]:
        return self._frames.holds(columns, self._numbers[slots, columns])

    def _checked(
        self, obs: ArrayLike, actions: ArrayLike, ended: ArrayLike
    ) -> tuple[Pixels, NDArray[Any], NDArray[np.bool_]]:
        count, shape = self._frames.columns, self._pictures.space_shape
        pictures = np.asarray(obs)
        if pictures.shape == shape and count == 1:
            pictures = pictures[None]
        if pictures.dtype != np.uint8 or pictures.shape != (count, *shape):
            raise ValueError(
                f"obs must be uint8 of shape {(count, *shape)}, a picture of every environment; got {pictures.dtype} of shape "
                f"{pictures.shape}. Pass the environments' observations unchanged, 0..255."
            )
        _, each = self._actions.stored
        taken, ends = np.asarray(actions), np.asarray(ended, np.bool_)
        if taken.size != count * int(np.prod(each)) or ends.size != count or not np.isfinite(taken).all():
            raise ValueError(
                f"actions must be finite numbers of shape {(count, *each)} and ended bool of shape {(count,)}, one for every "
                f"environment; got {taken.shape} and {ends.shape}: {taken}."
            )
        return self._pictures.first(pictures), taken.reshape(count, *each), ends.reshape(count)
