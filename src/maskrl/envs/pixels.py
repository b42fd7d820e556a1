"""Make frames of one size from the pictures of any environment. Needs only numpy; runs/export.py does the same in torch and ONNX.

Results are the same bit for bit on every machine: all weights are multiples of 1/256 and sum to 1, so every product and partial sum
is a multiple of 2⁻¹⁶ below 256. A float32 represents each of them exactly, in any order of summation.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskrl.envs.base import Frame

STEPS = 256  # weights are multiples of 1/STEPS
GREY = np.array([77, 150, 29], np.float32) / STEPS  # weights of red, green and blue (ITU-R BT.601)
MOST_CHANNELS = 16
LEAST_SIDE = 16  # minimum side of a picture: MiniGrid's observation of 7 × 7 is a table of numbers


@dataclass(frozen=True)
class Picture:
    """Converts pictures of an environment, uint8 (height, width, channels), to frames."""

    height: int
    width: int
    channels: int
    size: int  # side of a frame
    grey: bool = False

    def __post_init__(self) -> None:
        if self.grey and self.channels not in (1, 3, 4):
            raise ValueError(
                f"env.colour=grey, but a picture has {self.channels} channels, so it is unknown which are red, green and blue. "
                "Use env.colour=rgb, which keeps them all."
            )

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """(c, size, size) of a frame: one channel for grey, three for colour; other numbers are kept."""
        return (1 if self.grey else 3 if self.channels == 4 else self.channels, self.size, self.size)

    def frame(self, picture: Frame) -> Frame:
        """(height, width, channels) → (c, size, size): drop transparency, convert to grey if set, then average over areas."""
        colours = picture[..., :3] if self.channels == 4 else picture
        if self.grey and self.channels > 1:
            colours = np.floor(colours @ GREY + np.float32(0.5))[..., None]
        channels = colours.shape[-1]
        if (self.height, self.width) == (self.size, self.size):
            return np.array(colours.transpose(2, 0, 1), np.uint8, order="C")
        rows, columns = area_weights(self.height, self.size), area_weights(self.width, self.size)
        flat = colours.reshape(self.height, self.width * channels).astype(np.float32)
        tall = (rows @ flat).reshape(self.size, self.width, channels)
        means: NDArray[np.float32] = tall.transpose(2, 0, 1) @ columns.T
        frame: Frame = np.floor(means + np.float32(0.5)).astype(np.uint8)
        return frame


@cache
def area_weights(source: int, target: int) -> NDArray[np.float32]:
    """(target, source): the share of each source pixel in a target pixel, in steps of 1/256; rows sum to 1."""
    edge, inner = np.arange(target)[:, None] * source, np.arange(source) * target  # both in 1/target of a source pixel
    overlap = np.clip(np.minimum(edge + source, inner + target) - np.maximum(edge, inner), 0, None)
    steps, rest = overlap * STEPS // source, overlap * STEPS % source
    # Distribute what rounding down lost to the largest remainders, from the left.
    place = np.argsort(np.argsort(-rest, axis=1, kind="stable"), axis=1, kind="stable")
    weights: NDArray[np.float32] = (steps + (place < STEPS - steps.sum(axis=1, keepdims=True))).astype(np.float32)
    weights /= STEPS
    weights.flags.writeable = False  # the array is cached and shared
    return weights


def channels_last(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """(height, width, channels) of a picture of this shape: (H, W), (H, W, C) or (C, H, W); None if it is not a picture."""
    if len(shape) == 2 and min(shape) >= LEAST_SIDE:
        return (shape[0], shape[1], 1)
    if len(shape) != 3:
        return None
    if shape[2] <= MOST_CHANNELS and min(shape[:2]) >= max(LEAST_SIDE, shape[2] + 1):
        return (shape[0], shape[1], shape[2])
    if shape[0] <= MOST_CHANNELS and min(shape[1:]) >= max(LEAST_SIDE, shape[0] + 1):
        return (shape[1], shape[2], shape[0])
    return None


def as_channels_last(picture: NDArray[Any], expected: tuple[int, int, int]) -> Frame:
    """A picture as (height, width, channels); raise ValueError if it does not fit the space."""
    if isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and channels_last(picture.shape) == expected:
        if picture.ndim == 2:
            return picture[..., None]
        return picture if picture.shape == expected else picture.transpose(1, 2, 0)
    seen = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
    raise ValueError(
        f"the picture is {seen}, and its space says uint8 {expected} (height, width, channels): return pictures of one size, and "
        "declare it in observation_space"
    )
