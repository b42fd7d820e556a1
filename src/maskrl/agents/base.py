"""What an agent is, what it needs to know of an environment, and where its time goes."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from maskrl.nn.encoders import Encoder
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Objective
from maskrl.replay.buffer import Replay

Metrics = dict[str, Tensor]  # detached scalars, keys "<part>/<what>"
Action = NDArray[np.float32] | np.int64  # what an environment takes: a vector within [-1, 1], or a number


@dataclass(frozen=True)
class Spaces:
    """What an environment shows and takes."""

    obs: tuple[int, int, int]  # (C, H, W) of a stack of frames
    action_dim: int  # width of a continuous action, or number of discrete ones
    discrete: bool

    def random_action(self, generator: np.random.Generator) -> Action:
        """Uniform over the space."""
        if self.discrete:
            return generator.integers(self.action_dim, dtype=np.int64)
        action: NDArray[np.float32] = generator.uniform(-1, 1, self.action_dim).astype(np.float32)
        return action

    def as_vector(self, action: Action) -> NDArray[np.float32]:
        """(A,), as replay and objectives know it: a discrete action is one-hot."""
        return np.asarray(np.arange(self.action_dim) == action if self.discrete else action, np.float32)

    @classmethod
    def of(cls, env: gym.Env[Any, Any]) -> "Spaces":
        obs, action = env.observation_space, env.action_space
        if not isinstance(obs, gym.spaces.Box) or obs.dtype != np.uint8 or len(obs.shape) != 3:
            raise ValueError(
                f"Observations must be uint8 images of shape (C, H, W); this environment has {obs}. Wrap it so that it returns "
                "raw frames with the channels first."
            )
        shape = (obs.shape[0], obs.shape[1], obs.shape[2])
        if isinstance(action, gym.spaces.Discrete):
            return cls(shape, int(action.n), discrete=True)
        if isinstance(action, gym.spaces.Box) and len(action.shape) == 1 and (abs(action.low) == 1).all():
            return cls(shape, action.shape[0], discrete=False)
        raise ValueError(
            f"Actions must be Discrete, or a Box of one axis within [-1, 1]; this environment has {action}. "
            "gymnasium.wrappers.RescaleAction(env, -1, 1) rescales a bounded Box."
        )


class Stopwatch:
    """Seconds spent in each named part. Parts may nest: an inner one is taken out of the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        self._running.append(part)
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self._running.pop()
            self.seconds[part] += elapsed
            if self._running:
                self.seconds[self._running[-1]] -= elapsed


class Agent(Protocol):
    """What acts and learns. It draws from the replay what it needs; the loop knows neither losses nor objectives."""

    encoder: Encoder
    target_encoder: Momentum
    watch: Stopwatch
    updates: int

    @property
    def objective(self) -> Objective[Any] | None: ...

    @property
    def centre(self) -> nn.Module:
        """What the encoder sees of observations (N, C, H, W) uint8 when the agent acts."""
        ...

    def act(self, obs: NDArray[np.uint8], *, explore: bool) -> NDArray[np.float32] | NDArray[np.int64]:
        """(N, C, H, W) → an action for each: (N, A), or (N,) if they are discrete; without `explore` the same every time."""
        ...

    def update(self, replay: Replay) -> Metrics: ...

    def state_dict(self) -> dict[str, Any]:
        """Networks, optimisers, objective, counters: everything but the random generators, which are torch's own."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def require_finite(what: str, value: Tensor, update: int) -> None:
    """Stop before a loss or a gradient that is not finite reaches the weights."""
    if not value.isfinite():
        raise FloatingPointError(
            f"The {what} is {value.item()} at update {update}; the weights were left as they were. Lower agent.learning_rate, "
            "and look for rewards that are not finite or very large."
        )
