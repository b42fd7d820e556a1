"""Atari games as the Atari-100k benchmark plays them (Kaiser et al., 2020), directly on the Arcade Learning Environment."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from maskrl.envs.base import (
    EnvConfig,
    Frame,
    FrameStack,
    Pad,
    image_space,
    require_begun,
    require_extra,
)

NOOP = 0  # in every action set of ALE
FRAMES_PER_SECOND = 60  # of the console


@dataclass(frozen=True, kw_only=True)
class Atari(EnvConfig):
    """One game. Observations: uint8 (frame_stack, size, size), grey; actions: those that the game uses.

    In training the reward is the sign of the score, and a lost life ends the episode but not the game. In evaluation the reward
    is the score, and an episode is a game.
    """

    pad: ClassVar[Pad] = "zero"
    packages: ClassVar[tuple[str, ...]] = ("ale-py",)
    memory: ClassVar[int] = 10_000_000

    kind: Literal["atari"] = "atari"
    task: str = "pong"  # such as "up_n_down"; Gymnasium's names, such as "ALE/UpNDown-v5", are converted
    action_repeat: int = 4  # frames per decision
    size: int = 84
    frame_stack: int = 4
    noops: int = 30  # maximum frames without an action at the start of a game
    least_noops: int = 1
    shrink_first: bool = False  # True: shrink both screens before taking the maximum (CURL)
    max_frames: int = 108_000  # of a game: half an hour

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "noops", "max_frames")
        self.require_at_least(0, "least_noops")
        if self.least_noops > self.noops:
            raise ValueError(f"least_noops={self.least_noops} must not be above noops={self.noops}.")
        object.__setattr__(self, "task", normalise(self.task))

    def make(self, *, seed: int, training: bool) -> gym.Env[Frame, np.int64]:
        """Make the game with this seed, with the rewards and endings of training or of evaluation."""
        return FrameStack(AtariEnv(self, seed, training=training), self.frame_stack, pad=self.pad)

    def variants(self, sizes: Sequence[int]) -> list["Atari"]:
        return [replace(self, size=size) for size in sizes]


class AtariEnv(gym.Env[Frame, np.int64]):
    """One decision is `action_repeat` frames of ALE; observations are the pixelwise maximum of the last two: uint8 (1, size, size).

    `info` has the "frames" and the raw "score" of the decision. After a life lost in training, `reset` continues the game
    (`info["continues"]`) unless `options={"restart": True}`; otherwise it starts a new game, even in the middle of another.
    """

    # Gymnasium's AtariPreprocessing differs from the benchmark: it averages areas instead of interpolating, does not take a
    # no-op after a lost life, restarts the game then, and returns an old screen when a game ends. ale-py's AtariVectorEnv
    # differs in the same ways, draws 0 to 29 no-ops without the first one, and cannot step one of its games alone.

    render_mode = "rgb_array"

    def __init__(self, config: Atari, seed: int, *, training: bool) -> None:
        rom = rom_of(config.task)
        import cv2
        from ale_py import ALEInterface, LoggerMode

        self._resize, self._bilinear = cv2.resize, cv2.INTER_LINEAR
        ALEInterface.setLoggerMode(LoggerMode.Error)  # no banner
        self._ale = ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("random_seed", 0)  # for sticky actions; without them no game depends on it
        self._ale.loadROM(rom)
        self._loaded = self._ale.cloneState(include_rng=True)
        self._actions = self._ale.getMinimalActionSet()
        self._screens = np.empty((2, *self._ale.getScreenDims()), np.uint8)
        self._frame = np.empty((1, config.size, config.size), np.uint8)  # the newest

        self._size, self._action_repeat = config.size, config.action_repeat
        self._noops, self._max_frames = (config.least_noops, config.noops), config.max_frames
        self._shrink_first = config.shrink_first
        self._training = training
        self._frames_left = 0  # of this game
        self._begun = False  # whether an episode is open
        self._continues = False  # whether the game continues after the episode

        self.action_space = gym.spaces.Discrete(len(self._actions))
        self.observation_space = image_space(1, config.size, config.size)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_SECOND / config.action_repeat}
        super().reset(seed=seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Begin an episode: the next life of the game, or a new game, with this seed or the next of the generator."""
        super().reset(seed=seed)
        continues = self._continues and not (options or {}).get("restart")
        if not continues:
            self._start_game()
            self._ale.getScreenGrayscale(self._screens[1])
            self._frame = self._shrink(self._screens[1])
        self._begun, self._continues = True, False
        # A new life begins with the last frame of the previous one, as in the benchmark.
        return self._frame.copy(), {"frames": 0, "score": 0.0, "continues": continues}

    def step(self, action: np.int64) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Hold `action` for a decision. ALE ignores actions after the end of a game."""
        require_begun(self._begun)
        move, lives = self._actions[action], self._ale.lives()
        score = 0.0
        for _ in range(self._action_repeat - 1):
            score += self._ale.act(move)
        self._ale.getScreenGrayscale(self._screens[0])
        score += self._ale.act(move)
        life_lost = 0 < self._ale.lives() < lives
        if life_lost:
            self._ale.act(NOOP)  # as in the benchmark, which does not count its frame or score
        self._ale.getScreenGrayscale(self._screens[1])

        self._frames_left -= self._action_repeat
        game_over, truncated = self._ale.game_over(), self._frames_left <= 0
        terminated = game_over or (self._training and life_lost)
        self._begun = not (terminated or truncated)
        self._continues = terminated and not (game_over or truncated)
        reward = float(np.sign(score)) if self._training else score
        info = {"frames": self._action_repeat, "score": score}
        if self._shrink_first:
            self._frame = np.maximum(*map(self._shrink, self._screens))
        else:
            self._frame = self._shrink(self._screens.max(axis=0))
        return self._frame.copy(), reward, terminated, truncated, info

    def render(self) -> Frame:
        """The current screen in colour: uint8 (210, 160, 3)."""
        return self._ale.getScreenRGB()

    def ram(self) -> NDArray[np.uint8]:
        """The console's current memory, which holds the state of the game: uint8 (128,)."""
        return self._ale.getRAM()

    def state(self) -> dict[str, float]:
        """The same memory byte by byte: "ram[0]" to "ram[127]"."""
        return {f"ram[{place}]": float(byte) for place, byte in enumerate(self.ram())}

    def _start_game(self) -> None:
        # In some games (Assault, Kung-Fu Master) ALE's reset leaves traces of the last game; restoring a state alone misses values
        # outside of it (Q*bert). Both together equal a freshly loaded ROM, in 5 instead of 140 ms.
        self._ale.restoreState(self._loaded)
        self._ale.reset_game()
        least, most = self._noops
        # The benchmark takes one more no-op than it draws; with least_noops=0 there may be none.
        for _ in range(min(least, 1) + int(self.np_random.integers(least, most + 1))):
            self._ale.act(NOOP)
        self._frames_left = self._max_frames

    def _shrink(self, screen: Frame) -> Frame:
        frame = self._resize(screen, (self._size, self._size), interpolation=self._bilinear)
        return np.asarray(frame, np.uint8)[None]


def normalise(name: str) -> str:
    """ALE's name for a game, from snake_case or Gymnasium's name: "ALE/UpNDown-v5" → "up_n_down"."""
    game = re.sub(r"-v\d+$", "", name.rpartition("/")[2])
    game = re.sub(r"(NoFrameskip|Deterministic)$", "", game)
    game = re.sub(r"(?<=[a-z])(?=\d?[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", game).lower()
    if game.endswith("-ram"):
        pixels = game.removesuffix("-ram")
        raise ValueError(f"task={name!r} observes the memory of the console, not pixels: use {pixels!r}.")
    return game


def rom_of(game: str) -> Path:
    """The ROM file of a game; raise ValueError if one player cannot play it."""
    require_extra("ale_py", "atari")
    require_extra("cv2", "atari")
    from ale_py import ALEInterface, roms

    games = roms.get_all_rom_ids()
    if game not in games:
        likely = difflib.get_close_matches(game, games, n=1)
        raise ValueError(
            f"task={game!r} is not a game of ALE{f': did you mean {likely[0]!r}?' if likely else '.'} "
            f"It has {', '.join(games)}."
        )
    rom = roms.get_rom_path(game)
    if rom is None or ALEInterface.isSupportedROM(rom) is None:  # loading it would end the process
        raise ValueError(f"task={game!r} cannot be played alone: choose a game for one player, such as 'pong'.")
    return rom
