"""Convert an agent's action, a vector in [-1, 1] or an index, to the environment's own."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np

MOST_COMBINATIONS = 256  # of a MultiDiscrete action: Rainbow has an output for each


@dataclass(frozen=True, kw_only=True)
class Actions:
    """The action space of an environment, as plain values for checkpoints and exported policies."""

    kind: Literal["box", "discrete", "multi"]
    low: tuple[float, ...] = ()  # of a box, one for each number
    high: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()  # of a box
    dtype: str = "int64"
    counts: tuple[int, ...] = ()  # number of choices: one entry for discrete, one per part for multi
    starts: tuple[int, ...] = ()  # the first choice of each part

    @property
    def space(self) -> gym.Space[Any]:
        """The agent's action space."""
        if self.kind == "box":
            return gym.spaces.Box(-1.0, 1.0, (len(self.low),), np.float32)
        return gym.spaces.Discrete(math.prod(self.counts))

    def outward(self, action: Any) -> Any:
        """The environment's own action; for a batch, with one more axis in front, a batch."""
        if self.kind == "box":
            low, high = (np.array(side, np.float32) for side in (self.low, self.high))
            within = (low + high) / 2 + (high - low) / 2 * np.asarray(action, np.float32)
            within = np.clip(within, low, high)
            return within.reshape(*within.shape[:-1], *self.shape).astype(self.dtype)
        if self.kind == "discrete":
            return action + self.starts[0]
        parts = np.stack(np.unravel_index(np.asarray(action), self.counts), axis=-1)
        return (parts + np.array(self.starts)).astype(self.dtype)

    @classmethod
    def of(cls, space: gym.Space[Any], limit: float | None = None) -> "Actions":
        """Describe the environment's action space. `limit` replaces infinite bounds."""
        if isinstance(space, gym.spaces.Discrete):
            return cls(kind="discrete", counts=(int(space.n),), starts=(int(space.start),))
        if isinstance(space, gym.spaces.MultiBinary):
            space = gym.spaces.MultiDiscrete(np.full(int(np.prod(space.shape)), 2), dtype=np.int8)
        if isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim == 1:
            return cls._of_parts(space)
        if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating) and space.shape != (0,):
            return cls._of_box(space, limit)
        raise ValueError(
            f"Its actions are {space}. Expected Discrete (Rainbow), MultiDiscrete of up to {MOST_COMBINATIONS} combinations "
            "(Rainbow), or a Box of floats (SAC). Wrap the environment in a gymnasium.ActionWrapper that has one of these."
        )

    @classmethod
    def _of_parts(cls, space: gym.spaces.MultiDiscrete) -> "Actions":
        counts = tuple(int(count) for count in space.nvec)
        if (combinations := math.prod(counts)) > MOST_COMBINATIONS:
            raise ValueError(
                f"Its actions are {space}: {combinations:,} combinations. Expected at most {MOST_COMBINATIONS}: Rainbow has an "
                "output for each. Wrap the environment in a gymnasium.ActionWrapper with the combinations that matter."
            )
        starts = tuple(int(start) for start in getattr(space, "start", np.zeros(len(counts))))
        return cls(kind="multi", counts=counts, starts=starts, dtype=str(space.dtype))

    @classmethod
    def _of_box(cls, space: gym.spaces.Box, limit: float | None) -> "Actions":
        low, high = (np.asarray(side, np.float64).ravel() for side in (space.low, space.high))
        if limit is not None:
            low, high = np.where(np.isinf(low), -limit, low), np.where(np.isinf(high), limit, high)
        # A bound of 1e30 counts as infinite.
        if not (np.abs(low) < 1e10).all() or not (np.abs(high) < 1e10).all():
            raise ValueError(
                f"Its actions are {space}, a Box without bounds. Expected finite bounds: SAC acts within [-1, 1], which is "
                "rescaled to them. Set finite bounds, such as env.action_limit=1."
            )
        if not (low < high).all():
            raise ValueError(f"Its actions are {space}: low must be below high everywhere. Fix the space.")
        bounds = {"low": tuple(low.tolist()), "high": tuple(high.tolist())}
        return cls(kind="box", **bounds, shape=tuple(space.shape), dtype=str(space.dtype))
