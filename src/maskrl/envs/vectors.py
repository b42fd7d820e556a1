"""Numbers beside a picture: the Boxes of a Dict observation, as one vector that a network can take.

A number with finite bounds is rescaled to [-1, 1]. One without is compressed, x → sign(x) · log(1 + |x|), so that neither a speed
of 0.1 nor a score of 10,000 is lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float32]
LARGE = 1e6  # bounds beyond are none: a Box of float32 says 3.4e38 where it means infinity
MOST = 10_000  # numbers


@dataclass(frozen=True)
class Vector:
    """Which numbers, and their bounds. Plain values, which a checkpoint and an exported policy keep."""

    keys: tuple[str, ...]
    low: tuple[float | None, ...]  # one for each number; None: it has no bounds
    high: tuple[float | None, ...]

    def __len__(self) -> int:
        return len(self.low)

    @property
    def scales(self) -> tuple[NDArray[np.bool_], Numbers, Numbers]:
        """Of each number: whether it has bounds, their middle, and half of their distance."""
        bounded = np.array([low is not None for low in self.low], np.bool_)
        low, high = (np.array([side or 0.0 for side in sides], np.float32) for sides in (self.low, self.high))
        middle, reach = (low + high) * np.float32(0.5), (high - low) * np.float32(0.5)
        return bounded, middle, np.where(bounded, reach, np.float32(1))

    def raw(self, observed: Mapping[str, Any]) -> Numbers:
        """(V,), as the environment has them."""
        raw: Numbers = self.rows(observed, 1)[0]
        return raw

    def rows(self, observed: Mapping[str, Any], count: int) -> Numbers:
        """(N, V) of a batch of N observations."""
        rows: Numbers = np.concatenate(
            [np.asarray(observed[key], np.float32).reshape(count, -1) for key in self.keys], axis=1
        )
        return self.checked(rows)

    def checked(self, rows: Numbers) -> Numbers:
        """The same, if they are as many as the space says, and finite."""
        names = ", ".join(self.keys)
        if rows.shape[1:] != (len(self),):
            raise ValueError(
                f"{names} of the observation have shape {rows.shape[1:]}, and their space says {len(self)}"
            )
        if not np.isfinite(rows).all():
            raise ValueError(f"{names} of the observation are not all finite: {rows.tolist()}")
        return rows

    def scaled(self, raw: Numbers) -> Numbers:
        """(…, V) → (…, V), as the network takes them."""
        bounded, middle, reach = self.scales
        scaled: Numbers = np.where(
            bounded, np.clip((raw - middle) / reach, -1, 1), np.sign(raw) * np.log1p(np.abs(raw))
        ).astype(np.float32)
        return scaled

    @classmethod
    def of(cls, space: gym.Space[Any], picture: str | None, named: tuple[str, ...] | None) -> "Vector | None":
        """Of a Dict observation: what is named, or with "all" every Box of numbers but the picture. None: there are none."""
        spaces = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {}
        keys = named or ()
        if keys == ("all",):
            keys = tuple(key for key, inner in spaces.items() if key != picture and _is_vector(inner))
        for key in keys:
            if key not in spaces or not isinstance(spaces[key], gym.spaces.Box):
                raise ValueError(
                    f"env.vectors={','.join(keys)}, but its observations are {space}. Expected keys of Boxes, all or none."
                )
        if not keys:
            return None
        low, high = (
            np.concatenate([np.asarray(getattr(spaces[key], side), np.float64).ravel() for key in keys])
            for side in ("low", "high")
        )
        if len(low) > MOST:
            raise ValueError(
                f"{', '.join(keys)} of its observations are {len(low):,} numbers. Expected at most {MOST:,} beside a picture: name "
                "those that matter with env.vectors=KEY, or use env.vectors=none."
            )
        has_bounds = (np.abs(low) < LARGE) & (np.abs(high) < LARGE) & (low < high)
        sides = (
            tuple(float(x) if ok else None for x, ok in zip(side, has_bounds, strict=True)) for side in (low, high)
        )
        return cls(keys, *sides)


def _is_vector(space: gym.Space[Any]) -> bool:
    """Whether "all" takes it: a Box of up to one axis, which is not a second picture."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) <= 1 and space.shape != (0,)
