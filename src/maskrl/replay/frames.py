"""Frames of several environments, each stored once; stacks are rebuilt when they are read."""

from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maskrl.replay.buffer import Index, allocate

Pixels = NDArray[np.uint8]


class Frames:
    """A ring of frames for each environment (a column). Frame `n` of a column is in slot `n % slots`.

    An observation has `stack` frames on the channel axis, oldest first, and is identified by the number of its newest frame. The
    first one of an episode is written whole, whatever it contains (repeated frames, black ones, the end of a lost life), so every
    observation is read as it was added. Later ones add only their newest frame.
    """

    def __init__(
        self, obs_shape: tuple[int, int, int], stack: int, slots: int, columns: int, directory: Path | None = None
    ) -> None:
        channels, *sides = obs_shape
        if stack < 1 or channels % stack:
            raise ValueError(
                f"frame_stack={stack} does not divide the {channels} channels of observations {obs_shape}. Pass the frames in an "
                "observation, or 1 to store it whole."
            )
        self.obs_shape, self.stack, self.slots, self.columns = obs_shape, stack, slots, columns
        self._channels = channels // stack
        self._frames = allocate("frames.u8", np.uint8, (columns * slots, self._channels, *sides), directory, mend=False)
        self._next = np.zeros(columns, np.int64)  # number of the next frame per column

    @staticmethod
    def slots_for(steps: int, stack: int) -> int:
        """The slots for `steps` steps in episodes of 100: each episode has `stack` more frames than steps."""
        return steps + (steps // 100 + 2) * stack

    @property
    def nbytes(self) -> int:
        """The bytes allocated; the system assigns them as frames are added."""
        return int(self._frames.nbytes)

    def begin(self, column: int, obs: Pixels) -> int:
        """Write the first observation of an episode; returns its number."""
        for frame in obs.reshape(self.stack, self._channels, *obs.shape[1:]):
            self._write(column, frame)
        return self.newest_number(column)

    def continued(self, column: int, obs: Pixels) -> bool:
        """Whether `obs` can follow the newest observation: its older frames equal that one's newer frames."""
        kept = (self.stack - 1) * self._channels
        return np.array_equal(obs[:kept], self.newest(column)[self._channels :])

    def follow(self, column: int, obs: Pixels) -> int:
        """Write the observation after the newest one; returns its number."""
        self._write(column, obs[-self._channels :])
        return self.newest_number(column)

    def newest(self, column: int) -> Pixels:
        """The newest observation."""
        obs: Pixels = self.read(np.array([column]), self._next[[column]] - 1)[0]
        return obs

    def newest_number(self, column: int) -> int:
        return int(self._next[column]) - 1

    def holds(self, columns: Index, numbers: Index) -> NDArray[np.bool_]:
        """Whether all frames of these observations are still stored."""
        held: NDArray[np.bool_] = numbers - self.stack + 1 >= self._next[columns] - self.slots
        return held

    def read(self, columns: Index, numbers: Index) -> Pixels:
        """The observations (…, C, H, W) by column and number."""
        frames = self.runs(columns, numbers, 1)
        return frames.reshape(*numbers.shape, *self.obs_shape)

    def runs(self, columns: Index, numbers: Index, observations: int) -> Pixels:
        """The frames (…, stack + observations − 1, c, H, W) of these observations and of those that follow them."""
        wanted = numbers[..., None] + np.arange(1 - self.stack, observations)
        return self._frames[columns[..., None] * self.slots + wanted % self.slots]

    def _write(self, column: int, frame: Pixels) -> None:
        self._frames[column * self.slots + self._next[column] % self.slots] = frame
        self._next[column] += 1

    def __getstate__(self) -> dict[str, object]:
        """The state to pickle: only the frames written so far, not the empty slots."""
        used = int(min(self._next.max(), self.slots))
        frames = self._frames.reshape(self.columns, self.slots, -1)[:, :used]
        return {**self.__dict__, "_frames": np.array(frames)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        used: Pixels = self._frames
        channels, height, width = self.obs_shape
        frames = np.zeros((self.columns, self.slots, prod(self.obs_shape) // self.stack), np.uint8)
        frames[:, : used.shape[1]] = used
        self._frames = frames.reshape(-1, channels // self.stack, height, width)
