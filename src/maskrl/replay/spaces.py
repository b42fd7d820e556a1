"""Convert pictures and actions of Gymnasium spaces to the form of clips."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from maskrl.replay.frames import Pixels


@dataclass(frozen=True)
class Pictures:
    """Converts observations to pictures (C, H, W): channels first or last, with or without a separate stack axis."""

    space_shape: tuple[int, ...]
    stack: int  # frames along the first of four axes, otherwise 1

    @classmethod
    def of(cls, space: gym.Space[Any]) -> "Pictures":
        shape = space.shape or ()
        if space.dtype != np.uint8 or len(shape) not in (3, 4):
            raise ValueError(
                f"The observations are {space}, not pictures: expected uint8 of shape (C, H, W), (H, W, C) or a stack of these, "
                "with values 0..255. Objectives need pictures; vectors are not supported."
            )
        return cls(shape, shape[0] if len(shape) == 4 else 1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one observation."""
        channels, height, width = self.first(np.empty((1, *self.space_shape), np.uint8)).shape[1:]
        return channels, height, width

    def first(self, obs: Pixels) -> Pixels:
        """(N, …) from the environment → (N, C, H, W)."""
        picture = self.space_shape[-3:]
        if np.argmin(picture) == 2:  # as in stable-baselines3: the channels are the shortest axis
            obs = np.moveaxis(obs, -1, -3)
        return obs.reshape(len(obs), -1, *obs.shape[-2:])


@dataclass(frozen=True)
class Actions:
    """Converts actions to rows of floats: one-hot, or scaled to [-1, 1] if the space has bounds."""

    space: gym.Space[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.space, gym.spaces.Discrete | gym.spaces.Box):
            raise ValueError(f"The actions are {self.space}: expected Discrete or Box. Wrap the environment.")

    @property
    def discrete(self) -> bool:
        """Whether a row is one-hot."""
        return isinstance(self.space, gym.spaces.Discrete)

    @property
    def dim(self) -> int:
        """A, the width of a row."""
        space = self.space
        return int(space.n) if isinstance(space, gym.spaces.Discrete) else int(np.prod(space.shape or ()))

    @property
    def stored(self) -> tuple[Any, tuple[int, ...]]:
        """The dtype and shape that store one action unchanged."""
        if self.discrete:
            return np.int64, ()
        return np.float32, (self.dim,)

    def rows(self, actions: NDArray[Any], *, scaled: bool = False) -> NDArray[np.float32]:
        """(…) or (…, A) as stored → (…, A). `scaled`: they are in [-1, 1] already."""
        space = self.space
        if isinstance(space, gym.spaces.Discrete):
            one_hot: NDArray[np.bool_] = actions[..., None] == space.start + np.arange(self.dim)
            return one_hot.astype(np.float32)
        actions = actions.astype(np.float32)
        assert isinstance(space, gym.spaces.Box)
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        if scaled or not (np.isfinite(low) & np.isfinite(high)).all():
            return actions
        rows: NDArray[np.float32] = np.clip(actions, low, high)  # as stable-baselines3 clips sampled actions
        if ((low != -1) | (high != 1)).any():
            rows = (2 * (rows - low) / (high - low) - 1).astype(np.float32)
        return rows
