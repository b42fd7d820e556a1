"""The vector observation beside a picture: the Boxes of a Dict observation, as one vector for a network.

A number with finite bounds is rescaled to [-1, 1]. One without is compressed, x → sign(x) · log(1 + |x|), so that both a speed of
0.1 and a score of 10,000 stay visible.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float32]
LARGE = 1e6  # larger bounds count as infinite: a Box of float32 has 3.4e38 for infinity
MOST = 10_000  # numbers in a vector observation


@dataclass(frozen=True)
class Vector:
    """The keys of the vector observation and its bounds, as plain values for checkpoints and exported policies."""

    keys: tuple[str, ...]
    low: tuple[float | None, ...]  # one per number; None: no bounds
    high: tuple[float | None, ...]

    def __len__(self) -> int:
        return len(self.low)

    @property
    def scales(self) -> tuple[NDArray[np.bool_], Numbers, Numbers]:
        """For each number: whether it has bounds, their middle, and half their distance."""
        bounded = np.array([low is not None for low in self.low], np.bool_)
        low, high = (np.array([side or 0.0 for side in sides], np.float32) for sides in (self.low, self.high))
        middle, reach = (low + high) * np.float32(0.5), (high - low) * np.float32(0.5)
        return bounded, middle, np.where(bounded, reach, np.float32(1))

    def raw(self, observed: Mapping[str, Any]) -> Numbers:
        """The unscaled vector (V,) of an observation."""
        raw: Numbers = self.rows(observed, 1)[0]
        return raw

    def rows(self, observed: Mapping[str, Any], count: int) -> Numbers:
        """The unscaled vectors (N, V) of a batch of N observations."""
        rows: Numbers = np.concatenate(
            [np.asarray(observed[key], np.float32).reshape(count, -1) for key in self.keys], axis=1
        )
        return self.checked(rows)

    def checked(self, rows: Numbers) -> Numbers:
        """Return the rows; raise ValueError if their width differs from the space or if they are not finite."""
        names = ", ".join(self.keys)
        if rows.shape[1:] != (len(self),):
            raise ValueError(
                f"{names} of the observation have shape {rows.shape[1:]}, and their space says {len(self)}"
            )
        if not np.isfinite(rows).all():
            raise ValueError(f"{names} of the observation are not all finite: {rows.tolist()}")
        return rows

    def scaled(self, raw: Numbers) -> Numbers:
        """Scale vectors for the network: (…, V) → (…, V)."""
        bounded, middle, reach = self.scales
        scaled: Numbers = np.where(
            bounded, np.clip((raw - middle) / reach, -1, 1), np.sign(raw) * np.log1p(np.abs(raw))
        ).astype(np.float32)
        return scaled

    @classmethod
    def of(cls, space: gym.Space[Any], picture: str | None, named: tuple[str, ...] | None) -> "Vector | None":
        """The vector of a Dict observation: the named keys, or for "all" every Box except the picture; None if there are none."""
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
    """Whether "all" includes it: a Box with at most one axis, not a second picture."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) <= 1 and space.shape != (0,)
