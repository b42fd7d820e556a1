"""Environments whose pixels say which environment, episode and step they show."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

SIZE = 36  # the smallest side that SB3's NatureCNN takes


class Counting(gym.Env):  # type: ignore[type-arg]
    """(2 · 3, SIZE, SIZE) uint8: two frames, the older first; channels are environment, episode and step (from 1)."""

    def __init__(self, column: int = 0, length: int = 23, *, discrete: bool = False, terminates: bool = True) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (6, SIZE, SIZE), np.uint8)
        box = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(3) if discrete else box
        self.column, self.length, self.terminates = column, length, terminates
        self.episode = self.at = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.at += 1
        over = self.at == self.length
        return self._obs(), 1.0, over and self.terminates, over and not self.terminates, {}

    def _obs(self) -> NDArray[np.uint8]:
        frames = [(self.column, self.episode % 256, max(self.at - age, -1) + 1) for age in (1, 0)]
        return np.concatenate([np.stack([np.full((SIZE, SIZE), v, np.uint8) for v in frame]) for frame in frames])


def assert_whole(obs: NDArray[np.uint8]) -> None:
    """(B, K, C, H, W): every clip is of one environment, one episode, and consecutive."""
    assert (obs == obs[..., :1, :1]).all()
    shown = obs[..., 0, 0].astype(int)  # (B, K, 6)
    columns, episodes, steps = shown[..., 3], shown[..., 4], shown[..., 5]
    assert (columns == columns[:, :1]).all()
    assert (episodes == episodes[:, :1]).all()
    assert (np.diff(steps, axis=1) == 1).all()
    assert (shown[..., 2] == steps - 1).all()  # the older frame of each stack
