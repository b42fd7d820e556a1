"""Crafter has the older gym's interface: this is how a user makes a Gymnasium environment of it."""

from typing import Any

import crafter
import gymnasium as gym
import numpy as np


class Crafter(gym.Env[Any, Any]):
    render_mode = "rgb_array"
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self) -> None:
        self._env = crafter.Env(size=(64, 64))
        self.observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(self._env.action_space.n)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._env = crafter.Env(size=(64, 64), seed=seed)
        return self._env.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, done, info = self._env.step(int(action))
        dead = info["discount"] == 0
        return obs, float(reward), done and dead, done and not dead, {}

    def render(self) -> Any:
        return self._env.render((256, 256))


def make_env() -> Crafter:
    return Crafter()
