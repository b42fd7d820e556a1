"""Shared by all environments: the base config, stacked frames, seeds of episodes, and errors for missing packages."""

import importlib.util
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, SupportsFloat, get_args

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from maskrl.config import Config
from maskrl.files import EnvironmentFailedError

Frame = NDArray[np.uint8]  # (C, H, W)
Pad = Literal["repeat", "zero"]  # frames before an episode's first one: that frame repeated, or black


@dataclass(frozen=True, kw_only=True)
class EnvConfig(Config):
    """The base of every environment's config, the `env` of a recipe.

    `make` returns a Gymnasium environment with uint8 observations (frame_stack · channels, size, size), and discrete actions or
    actions in [-1, 1].
    """

    kind: str
    task: str
    action_repeat: int  # frames per decision
    size: int  # pixels along each side of a frame
    frame_stack: int
    # Maximum seconds of a reset or a step. A process that does not answer in time is killed, and restored by replaying its actions.
    # Does not change results. Any other value than the default puts the environment into a separate process.
    timeout: float = 300.0
    parallel: int = 1  # environments to collect in at once, each in a separate process

    least_size: ClassVar[int] = 1
    pad: ClassVar[Pad] = "repeat"
    packages: ClassVar[tuple[str, ...]] = ()  # packages whose version may change a score
    returns: ClassVar[tuple[float, float] | None] = None  # the lowest and the best possible score
    memory: ClassVar[int] = 0  # bytes per further environment in one process

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "action_repeat", "frame_stack", "timeout", "parallel")
        self.require_at_least(self.least_size, "size")

    def make(self, *, seed: int, training: bool) -> gym.Env[Frame, Any]:
        raise NotImplementedError

    @property
    def episode_decisions(self) -> int | None:
        """Decisions of an episode, if its length is fixed; otherwise None."""
        return None

    def variants(self, sizes: Sequence[int]) -> "Sequence[EnvConfig]":
        """The configs that `maskrl bench env` compares: this one only, or frames of these sizes."""
        return [self]

    @property
    def is_portable(self) -> bool:
        """Whether another process can make it. A callable that exists only in this process is not portable."""
        return True

    @property
    def is_trusted(self) -> bool:
        """Whether its code may run without asking (see envs/consent.py)."""
        return True

    def allow(self) -> None:
        """Allow its code to run in this process and its children, if that needs consent (see envs/consent.py)."""

    def trust(self) -> None:
        """Allow its code to run for this user on this machine, now and later, if that needs consent (see envs/consent.py)."""

    def require_consent(self) -> None:
        """Raise ConsentError if its code must not run (see envs/consent.py)."""

    def made_from(self, name: str) -> "EnvConfig":
        """The same settings for another environment, by its name."""
        raise ValueError(f"The run's environment is {self.kind}/{self.task}, which needs no --env. Leave it out.")

    def renderer(self) -> str | None:
        """The renderer, if another one may draw different frames."""
        return None


class FrameStack(gym.Wrapper[Frame, Any, Frame, Any]):
    """Stack the newest frames on the channel axis, oldest first: (C, H, W) → (frames · C, H, W).

    At the start of an episode, missing frames are copies of the first one, or black with `pad="zero"`. (Gymnasium's own
    FrameStackObservation adds an axis and copies everything twice.)
    """

    def __init__(self, env: gym.Env[Frame, Any], frames: int, *, pad: Pad = "repeat") -> None:
        super().__init__(env)
        if pad not in get_args(Pad):
            raise ValueError(f"pad={pad!r} must be one of {', '.join(get_args(Pad))}.")
        channels, height, width = env.observation_space.shape or ()
        self.observation_space = image_space(frames * channels, height, width)
        self._frames: deque[Frame] = deque(maxlen=frames)
        self._pad = pad

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        frame, info = self.env.reset(seed=seed, options=options)
        past = frame if self._pad == "repeat" else np.zeros_like(frame)
        self._frames.extend([past] * (self._frames.maxlen or 0))
        self._frames.append(frame)
        return np.concatenate(self._frames), info

    def step(self, action: Any) -> tuple[Frame, SupportsFloat, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(frame)
        return np.concatenate(self._frames), reward, terminated, truncated, info


def image_space(channels: int, height: int, width: int) -> gym.Space[Frame]:
    """The space of uint8 images (C, H, W)."""
    return gym.spaces.Box(0, 255, (channels, height, width), np.uint8)


def require_begun(begun: bool) -> None:
    """Raise ResetNeeded for a decision outside an episode."""
    if not begun:
        raise gym.error.ResetNeeded("The episode is over, or has not begun: call reset() before step().")


def episode_seed(run_seed: int, episode: int) -> int:
    """The seed of one episode of one run: 32 bits, the same on every machine, unrelated for neighbouring episodes.

    After `env.reset(seed=episode_seed(run, n))`, episode n depends only on its actions, not on earlier episodes.
    """
    return int(np.random.SeedSequence((run_seed, episode)).generate_state(1)[0])


def rows_of(info: dict[str, Any]) -> NDArray[np.float32] | None:
    """The vector observation (1, V) from `info["vector"]`; None if the environment has none."""
    return info["vector"][None] if "vector" in info else None


def state_of(env: gym.Env[Any, Any]) -> dict[str, float] | None:
    """The current true state behind the pixels, by name; None if the environment does not report it.

    To report it, define a method `state() -> dict[str, float]`, with the same names in the same order every time.
    """
    tell = getattr(env.unwrapped, "state", None)  # in some of Gymnasium's environments it is an array
    state = tell() if callable(tell) else None
    return state if isinstance(state, dict) else None


def words_of(error: Exception) -> str:
    """An error as text, for processes that cannot send every error. One of the user's code has its own words and place."""
    return str(error) if isinstance(error, EnvironmentFailedError) else f"{type(error).__name__}: {error}"


def require_extra(module: str, extra: str) -> None:
    """Raise an error with installation advice if an optional package is missing."""
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"{module} is not installed: pip install 'maskrl[{extra}]'", name=module)
