"""A Gymnasium environment of a user, as small as can be: also the file of `own_env.py:make_env`."""

from typing import Any

import gymnasium as gym
import numpy as np

BOX = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


class Dot(gym.Env[Any, Any]):
    """A bright square on a wide picture. Moving it to the right is worth the distance. Ends after `length` steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self, *, actions: gym.Space[Any] = BOX, layout: str = "HWC", length: int = 20, render_mode: str | None = None,
        fault: str = "",
    ) -> None:  # fmt: skip
        self.fault = fault
        shapes = {"HWC": (40, 60, 3), "CHW": (3, 40, 60), "HW": (40, 60), "vector": (2,)}
        self.render_mode, self.layout, self.length = render_mode, layout, length
        self.action_space = actions
        self.observation_space = gym.spaces.Box(0, 255, shapes.get(layout, (40, 60, 3)), np.uint8)
        if layout == "float":
            self.observation_space = gym.spaces.Box(0.0, 1.0, (40, 60, 3), np.float32)
        if layout == "vector":
            self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        if layout == "dict":
            self.observation_space = gym.spaces.Dict(
                view=self.observation_space,
                speed=gym.spaces.Box(-2.0, 6.0, (2,), np.float32),
                score=gym.spaces.Box(-np.inf, np.inf, (), np.float64),
                mission=gym.spaces.Text(10),
            )
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.y = int(self.np_random.integers(50)), int(self.np_random.integers(30))
        self.steps, self.taken = 0, []
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken.append(action)
        before = self.x
        self.x = int(np.clip(self.x + round(float(np.ravel(action)[0])), 0, 50))
        self.steps += 1
        if self.fault == "prints":
            print("moving", self.x)
        if self.fault == "nan" and self.steps == 7:
            return self._observed(), float("nan"), False, False, {}
        return self._observed(), float(self.x - before), False, self.steps == self.length, {}

    def render(self) -> Any:
        return self._picture()

    def _picture(self) -> Any:
        picture = np.zeros((40, 60, 3), np.uint8)
        picture[self.y : self.y + 10, self.x : self.x + 10] = (200, 100, 50)
        picture[0, 0, 0] = self.steps
        return picture

    def _observed(self) -> Any:
        picture = self._picture()
        return {
            "HWC": picture,
            "CHW": picture.transpose(2, 0, 1),
            "HW": picture[..., 0],
            "vector": np.zeros(2, np.float32),
            "dict": {
                "view": picture, "mission": "right", "score": np.float64(self.x * 10),
                "speed": np.array([self.steps / 10, self.y / 10], np.float32),
            },
        }[self.layout]  # fmt: skip


def make_env(choices: int = 0, **options: Any) -> gym.Env[Any, Any]:
    return Dot(actions=gym.spaces.Discrete(choices) if choices else BOX, **options)


def make_dict(choices: int = 0) -> gym.Env[Any, Any]:
    return make_env(choices, layout="dict")


def class_itself() -> type[Dot]:
    return Dot


class Old:
    """As in the older gym: no base class, and four values."""

    def reset(self) -> None: ...

    def step(self, action: Any) -> None: ...


def fails() -> None:
    raise OSError("the robot is not plugged in")
