"""The environment of a run, which can be restored to an earlier point.

Every episode is reset with its own seed, so it depends only on its actions: to continue it after a crash, reset again and take the
same actions. Not every environment is deterministic (a robot is not), so the results are compared.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from maskrl.agents.base import Action, Spaces
from maskrl.envs.base import episode_seed, words_of
from maskrl.envs.subprocess import SubprocessEnv
from maskrl.files import EnvironmentFailedError
from maskrl.recipes.schema import Recipe

T = TypeVar("T")
Tell = Callable[[str], None]  # takes a sentence for the log and the terminal


class Step(NamedTuple):
    """The result of a decision."""

    obs: NDArray[np.uint8]  # (C, H, W)
    reward: float
    terminated: bool
    truncated: bool


class World:
    """The training environment, with the actions to replay the current game.

    An error of the renderer or the network may be temporary, so each call has a second try in a fresh environment, which first
    replays the game.
    """

    def __init__(self, recipe: Recipe, tell: Tell, place: int = 0) -> None:
        self._recipe, self._tell = recipe, tell
        self._place = place  # index among the `env.parallel` environments
        self.is_stopping: Callable[[], bool] = lambda: False  # polled while an environment's process does not answer
        self.waiting: float | None = None  # time.monotonic() since which it waits for the environment
        self.env = self._make()
        self.spaces = Spaces.of(self.env)
        self.episode = -1  # number of the current episode
        self.running = False  # whether it is open
        self.vector: NDArray[np.float32] | None = None  # the newest vector observation (V,), if there is one
        # The actions, and check sums of their results, of this episode and earlier ones in the same game.
        self._actions: list[list[Action]] = []
        self._sums: list[list[int]] = []

    @property
    def length(self) -> int:
        """Decisions in the current episode."""
        return len(self._actions[-1])

    @property
    def rows(self) -> NDArray[np.float32] | None:
        """The newest vector observation as a network takes it, (1, V)."""
        return None if self.vector is None else self.vector[None]

    def begin(self) -> NDArray[np.uint8]:
        """Begin the next episode; return its first observation."""
        number = self.episode + 1
        begun = self._twice(lambda: self._reset(number), f"at the reset of episode {number}")
        assert begun is not None  # because no episode is open
        obs, continues = begun
        # On Atari a lost life ends an episode but not the game, and the rest of the game depends on all of its earlier actions.
        if not continues:
            self._actions, self._sums = [], []
        self._actions.append([])
        self._sums.append([self._sum(obs)])
        self.episode, self.running = number, True
        return obs

    def step_async(self, action: Action) -> None:
        """Announce the next step; an environment in a separate process begins it now."""
        if (begin := getattr(self.env, "step_async", None)) is not None:
            begin(action)

    def step(self, action: Action) -> Step | None:
        """Take the action; None if the environment failed and could not be restored, so that the episode is lost."""
        where = f"at decision {self.length + 1} of episode {self.episode}"
        step = self._twice(lambda: self._step(action), where)
        if step is None:
            return None
        self._actions[-1].append(action)
        self._sums[-1].append(self._sum(step.obs, step.reward))
        self.running = not (step.terminated or step.truncated)
        return step

    def close(self) -> None:
        self.env.close()

    # ── resuming ──────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        return {
            "episode": self.episode,
            "running": self.running,
            "actions": [[action.tolist() for action in episode] for episode in self._actions],
            "sums": self._sums,
        }

    def load_state_dict(self, state: dict[str, Any]) -> NDArray[np.uint8] | None:
        """Restore a saved state; return its observation, or None if no episode was open."""
        kind: Any = np.int64 if self.spaces.discrete else np.float32
        self.episode, self.running, self._sums = int(state["episode"]), bool(state["running"]), state["sums"]
        self._actions = [[np.array(action, kind)[()] for action in episode] for episode in state["actions"]]
        try:
            obs = self._relive()
        except Exception as error:
            self._tell(
                f"The environment failed while it was restored ({_words(error)}). Trying once more in a fresh one."
            )
            self._renew()
            obs = self._again(self._relive, "while it was restored")
        return obs if self.running else None

    def _relive(self) -> NDArray[np.uint8] | None:
        """Replay the game; if the results differ, close the episode."""
        obs, difference = self._retrace()
        if difference is None:
            return obs
        closed = f"Episode {self.episode} is closed as truncated" if self.running else "The next game is a new one"
        self._tell(
            f"The environment was not restored: {difference} differs from before. {closed}. Training "
            "continues, but results will differ from an uninterrupted run."
        )
        self._actions, self._sums, self.running = [], [], False
        self._renew()
        return None

    def _retrace(self) -> tuple[NDArray[np.uint8] | None, str | None]:
        """Take the same actions from the first episode of the game on. Returns the last observation, and the first difference."""
        obs, first = None, self.episode + 1 - len(self._actions)
        for number, (actions, sums) in enumerate(zip(self._actions, self._sums, strict=True), start=first):
            obs, _ = self._reset(number)
            if self._sum(obs) != sums[0]:
                return None, f"the first observation of episode {number}"
            for place, (action, expected) in enumerate(zip(actions, sums[1:], strict=True), start=1):
                step = self._step(action)
                ends = place == len(actions) and not (number == self.episode and self.running)
                if self._sum(step.obs, step.reward) != expected or (step.terminated or step.truncated) != ends:
                    return None, f"what followed decision {place} of episode {number}"
                obs = step.obs
        return obs, None

    # ── the environment, checked and with a second try ────────────────────────────────────────────────────────────

    def _twice(self, call: Callable[[], T], where: str) -> T | None:
        """The result of the call, with a second try in a fresh environment; None if the open episode was lost."""
        try:
            return call()
        except Exception as error:
            self._tell(f"The environment failed {where} ({_words(error)}). Trying once more in a fresh one.")
        was_running = self.running
        self._renew()
        self._again(self._relive, where)
        return None if was_running and not self.running else self._again(call, where)

    def _again(self, call: Callable[[], T], where: str) -> T:
        try:
            return call()
        except Exception as error:
            failed = f"The environment failed {where}, and again in a fresh one: {_words(error)}."
            raise EnvironmentFailedError(failed) from error

    def _renew(self) -> None:
        self.waiting = None
        with suppress(Exception):
            self.env.close()
        try:
            self.env = self._make()
        except Exception as error:
            raise EnvironmentFailedError(
                f"The environment cannot be made again: {_words(error)}. Repair it, and run the same command."
            ) from error

    def _make(self) -> gym.Env[Any, Any]:
        recipe, seed = self._recipe, self._recipe.seed + self._place
        if recipe.is_apart:
            if not recipe.env.is_portable:
                name = "parallel" if recipe.env.parallel > 1 else "timeout"
                wanted = "overlap=true" if recipe.overlap else f"env.{name}={getattr(recipe.env, name):g}"
                raise ValueError(
                    f"{wanted} puts the environment into a separate process, which cannot import {recipe.env.task}: it is a "
                    "closure, a lambda or a function of the main script. Move it to the top of a module, or use overlap=false, "
                    f"env.parallel=1 and env.timeout={type(recipe.env).timeout:g}."
                )
            timeout = recipe.env.timeout
            return SubprocessEnv(
                recipe.env, seed=seed, training=True, timeout=timeout, is_stopping=lambda: self.is_stopping()
            )
        return recipe.env.make(seed=seed, training=True)

    def _reset(self, number: int) -> tuple[NDArray[np.uint8], bool]:
        """The first observation of an episode, and whether it continues the same game."""
        self.waiting = time.monotonic()
        unique = number * self._recipe.env.parallel + self._place  # so that no two episodes of a run have the same seed
        obs, info = self.env.reset(seed=episode_seed(self._recipe.seed, unique))
        self.waiting = None
        return self._checked(obs, info), bool(info.get("continues", False))

    def _step(self, action: Action) -> Step:
        self.waiting = time.monotonic()
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.waiting = None
        if not math.isfinite(float(reward)):
            raise ValueError(f"the reward is {reward}, and must be a finite number")
        return Step(self._checked(obs, info), float(reward), bool(terminated), bool(truncated))

    def _checked(self, obs: NDArray[np.uint8], info: dict[str, Any]) -> NDArray[np.uint8]:
        if not isinstance(obs, np.ndarray) or obs.dtype != np.uint8 or obs.shape != self.spaces.obs:
            seen = f"{obs.dtype} {obs.shape}" if isinstance(obs, np.ndarray) else type(obs).__name__
            raise ValueError(f"the observation is {seen}, and its space says uint8 {self.spaces.obs}")
        self.vector = info["vector"] if self.spaces.vector else None
        return obs

    def _sum(self, obs: NDArray[np.uint8], reward: float = 0.0) -> int:
        """A check sum of the newest observation, its vector observation and a reward."""
        seen = crc32(np.ascontiguousarray(obs).data)
        return crc32(np.float64(reward).tobytes(), seen if self.vector is None else crc32(self.vector.tobytes(), seen))


def _words(error: Exception) -> str:
    return words_of(error).rstrip(".: ")
