"""Two very small pixel tasks in numpy: for tests, tutorials and a first look at a change.

The scores of perfect and of random play are known.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from maskrl.envs.base import EnvConfig, Frame, FrameStack, image_space, require_begun

DECISIONS = 40  # per episode of Reach
REACH = 0.15  # maximum move of the dot per decision along each axis

GRID = 8  # rows and columns of Catch
BALLS = 5  # per episode of Catch

VIDEO_SIZE = 256


@dataclass(frozen=True, kw_only=True)
class ToyControl(EnvConfig):
    """Reach: move a dot to a goal. Observations: uint8 (3 · frame_stack, size, size); actions: [-1, 1]²."""

    kind: Literal["toy_control"] = "toy_control"
    task: Literal["reach"] = "reach"
    action_repeat: Literal[1] = 1
    size: int = 32
    frame_stack: int = 3

    # Mean returns. The axes are independent, so the best play closes the gap along each as fast as possible; integrate over
    # all goals. Uniformly random actions are a random walk along each axis, whose distribution is computed step by step.
    # tests/envs/test_toy.py has both calculations.
    optimal_return: ClassVar[float] = 38.54
    random_return: ClassVar[float] = 9.18
    returns: ClassVar[tuple[float, float] | None] = (random_return, optimal_return)
    least_size: ClassVar[int] = 8

    def make(self, *, seed: int, training: bool) -> gym.Env[Frame, NDArray[np.float32]]:
        """Make the task with this seed; training and evaluation are the same."""
        return FrameStack(Reach(self.size, seed), self.frame_stack)


@dataclass(frozen=True, kw_only=True)
class ToyArcade(EnvConfig):
    """Catch: meet falling balls with a paddle. Observations: uint8 (frame_stack, size, size); actions: left, stay, right."""

    kind: Literal["toy_arcade"] = "toy_arcade"
    task: Literal["catch"] = "catch"
    action_repeat: Literal[1] = 1
    size: int = 32
    frame_stack: int = 4

    # A ball falls 7 rows and is at most 7 columns away, so all 5 can be caught. It falls into each of the 8 columns with the
    # same probability, so a player who ignores the picture catches 1 of 8 with any moves: 5 · (1/8 - 7/8).
    optimal_return: ClassVar[float] = 5.0
    random_return: ClassVar[float] = -3.75
    returns: ClassVar[tuple[float, float] | None] = (random_return, optimal_return)
    least_size: ClassVar[int] = GRID

    def make(self, *, seed: int, training: bool) -> gym.Env[Frame, np.int64]:
        """Make the task with this seed; training and evaluation are the same."""
        return FrameStack(Catch(self.size, seed), self.frame_stack)


class Reach(gym.Env[Frame, NDArray[np.float32]]):
    """A red dot starts in the middle of [-1, 1]², a green goal lies anywhere. The reward at distance d is max(1 - d, 0)."""

    render_mode = "rgb_array"

    def __init__(self, size: int, seed: int) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
        self.observation_space = image_space(3, size, size)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.dot = self.goal = np.zeros(2)
        self._pixels = np.arange(size)
        self._decisions_left = 0
        super().reset(seed=seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Begin an episode: of that seed, or the next one of the generator."""
        super().reset(seed=seed)
        self.dot, self.goal = np.zeros(2), self.np_random.uniform(-1, 1, 2)
        self._decisions_left = DECISIONS
        return self._draw(), {"frames": 0}

    def step(self, action: NDArray[np.float32]) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Move the dot, stopping at the walls."""
        require_begun(self._decisions_left > 0)
        self.dot = np.clip(self.dot + REACH * np.clip(action, -1, 1), -1, 1)
        self._decisions_left -= 1
        reward = max(0.0, 1.0 - float(np.hypot(*(self.dot - self.goal))))
        return self._draw(), reward, False, self._decisions_left == 0, {"frames": 1}

    def render(self) -> Frame:
        """The frame, enlarged: uint8 (H, W, 3)."""
        return _enlarge(self._draw())

    def state(self) -> dict[str, float]:
        """The positions of the dot and the goal."""
        (x, y), (goal_x, goal_y) = self.dot, self.goal
        return {"dot.x": float(x), "dot.y": float(y), "goal.x": float(goal_x), "goal.y": float(goal_y)}

    def _draw(self) -> Frame:
        red, green = self._disc(self.dot), self._disc(self.goal)
        return np.stack([red, green, np.zeros_like(red)])

    def _disc(self, centre: NDArray[np.float64]) -> Frame:
        """A disc (H, W) with a smooth rim, so that a move of less than a pixel is visible."""
        radius = len(self._pixels) / 16
        column, row = radius + (centre + 1) / 2 * (len(self._pixels) - 1 - 2 * radius)  # whole, also at the walls
        distance = np.hypot(self._pixels[:, None] - row, self._pixels - column)
        disc: Frame = np.rint(255 * np.clip(radius + 0.5 - distance, 0, 1)).astype(np.uint8)
        return disc


class Catch(gym.Env[Frame, np.int64]):
    """A ball falls one row per decision, the paddle in the last row moves by one column: +1 if they meet, otherwise -1."""

    render_mode = "rgb_array"

    def __init__(self, size: int, seed: int) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
        self.observation_space = image_space(1, size, size)
        self.action_space = gym.spaces.Discrete(3)
        self.paddle = self.row = self.column = 0
        self._cell = np.arange(size) * GRID // size  # grid cell of each pixel
        self._balls_left = 0
        super().reset(seed=seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Begin an episode: of that seed, or the next one of the generator."""
        super().reset(seed=seed)
        self.paddle, self._balls_left = GRID // 2, BALLS
        self._drop()
        return self._draw(), {"frames": 0}

    def step(self, action: np.int64) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Move the paddle and the ball; after a ball has landed, the next one starts."""
        require_begun(self._balls_left > 0)
        self.paddle = min(max(self.paddle + int(action) - 1, 0), GRID - 1)
        if self.row == GRID - 1:
            self._drop()
        else:
            self.row += 1
        reward = 0.0
        if self.row == GRID - 1:
            reward = 1.0 if self.paddle == self.column else -1.0
            self._balls_left -= 1
        return self._draw(), reward, self._balls_left == 0, False, {"frames": 1}

    def render(self) -> Frame:
        """The frame, enlarged: uint8 (H, W, 3)."""
        return _enlarge(self._draw())

    def state(self) -> dict[str, float]:
        """The column of the paddle, and the row and column of the ball."""
        return {"paddle": float(self.paddle), "ball.row": float(self.row), "ball.column": float(self.column)}

    def _drop(self) -> None:
        self.row, self.column = 0, int(self.np_random.integers(GRID))

    def _draw(self) -> Frame:
        grid = np.zeros((1, GRID, GRID), np.uint8)
        grid[0, -1, self.paddle] = 128
        grid[0, self.row, self.column] = 255
        return grid[:, self._cell[:, None], self._cell]


def _enlarge(frame: Frame) -> Frame:
    """Enlarge a frame: (1 or 3, H, W) → (at least 256, at least 256, 3)."""
    factor = -(-VIDEO_SIZE // frame.shape[-1])
    large = frame.repeat(factor, axis=1).repeat(factor, axis=2)
    image: Frame = np.broadcast_to(large, (3, *large.shape[1:])).transpose(1, 2, 0).copy()
    return image
