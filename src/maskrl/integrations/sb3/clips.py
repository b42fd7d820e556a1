"""Read clips from the buffers of SB3's agents, without changing them."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer

from maskrl.replay.frames import Pixels
from maskrl.replay.windows import draw_windows

CHUNK = 256  # steps to compare at once


class ClipSource(Protocol):
    """A source of clips: `FrameReplayBuffer`, or one of the readers below."""

    def draw_clips(self, generator: np.random.Generator, clips: int, length: int) -> tuple[Pixels, NDArray[Any]]:
        """Observations (B, K, C, H, W) and actions (B, K, …) of consecutive steps, each clip within one episode."""
        ...


class ReplayClips:
    """Reads SB3's replays: arrays (slots, environments, …), of one key of a Dict or of the whole observation.

    A step continues the one before if that one did not end the episode and its next observation is the same. The second condition
    is needed because `learn()` resets the environments without marking it in the buffer. If next observations are not stored
    (`optimize_memory_usage`), call `cut`.
    """

    def __init__(self, buffer: ReplayBuffer, key: str | None) -> None:
        self.buffer, self._key = buffer, key
        self.continues = np.zeros((buffer.buffer_size, buffer.n_envs), np.bool_)
        self._is_cut = False
        self._position = (-1, False)
        self.look(buffer.size())  # the buffer may have steps of another agent

    def look(self, steps: int) -> None:
        """Find the ends of episodes among the newest steps. Ends do not change later, so pictures are compared only once."""
        steps = min(steps, self.buffer.size())
        links = min(steps, self.buffer.size() - 1)  # the step before the oldest is unknown
        for start in range(0, links, CHUNK):
            slots = (self.buffer.pos - 1 - np.arange(start, min(start + CHUNK, links))) % self.buffer.buffer_size
            before = slots - 1
            self.continues[before] = (self.buffer.dones[before] == 0) & self._leads_to(before, slots)
        if self._is_cut and steps > 0:
            self.continues[(self.buffer.pos - steps - 1) % self.buffer.buffer_size] = False
            self._is_cut = False
        self._position = (self.buffer.pos, self.buffer.full)

    def knows(self, buffer: ReplayBuffer) -> bool:
        """Whether it has read all of this buffer."""
        return self.buffer is buffer and self._position == (buffer.pos, buffer.full)

    def cut(self) -> None:
        """Start a new episode with the next step."""
        self._is_cut = True

    def draw_clips(self, generator: np.random.Generator, clips: int, length: int) -> tuple[Pixels, NDArray[Any]]:
        buffer = self.buffer
        # With optimize_memory_usage the oldest slot of a full ring has the newest observation but the oldest action.
        skipped = int(buffer.full and buffer.optimize_memory_usage)
        slots, columns = draw_windows(
            *(generator, clips, length),
            continues=self.continues,
            oldest=(buffer.pos + skipped) % buffer.buffer_size if buffer.full else 0,
            steps=buffer.size() - skipped,
        )
        return self._of_key(buffer.observations)[slots, columns], buffer.actions[slots, columns]

    def _leads_to(self, before: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self.buffer.optimize_memory_usage:
            return np.ones((len(slots), self.buffer.n_envs), np.bool_)
        led = self._of_key(self.buffer.next_observations)[before] == self._of_key(self.buffer.observations)[slots]
        same: NDArray[np.bool_] = led.reshape(len(slots), self.buffer.n_envs, -1).all(axis=-1)
        return same

    def _of_key(self, arrays: Any) -> NDArray[Any]:
        array: NDArray[Any] = arrays if self._key is None else arrays[self._key]
        return array


class RolloutClips:
    """Reads the rollout of PPO and A2C, which is complete until `train` begins."""

    def __init__(self, buffer: RolloutBuffer, key: str | None) -> None:
        self.buffer, self._key = buffer, key

    def draw_clips(self, generator: np.random.Generator, clips: int, length: int) -> tuple[Pixels, NDArray[Any]]:
        buffer = self.buffer
        continues = np.zeros(buffer.episode_starts.shape, np.bool_)
        continues[:-1] = buffer.episode_starts[1:] == 0
        slots, columns = draw_windows(*(generator, clips, length), continues=continues, oldest=0, steps=buffer.size())
        observations: Any = buffer.observations
        pictures = observations if self._key is None else observations[self._key]
        # Older versions of SB3 store pictures as unscaled floats.
        return pictures[slots, columns].astype(np.uint8, copy=False), buffer.actions[slots, columns]
