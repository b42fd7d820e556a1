"""How fast environments are, and where their time goes: `maskrl bench env`."""

import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import gymnasium as gym
import numpy as np

from maskrl.agents.base import Spaces
from maskrl.bench.measure import Tell, fresh_processes, in_turns
from maskrl.bench.parts import Wrap, wrap_env
from maskrl.bench.result import Result, Row
from maskrl.clock import Stopwatch
from maskrl.envs.base import EnvConfig, episode_seed
from maskrl.envs.gl import NoBackendError, choose_gl
from maskrl.recipes.schema import Recipe

TURNS = 3  # in which environments of the same size are played
PICTURES = 25  # of each that are compared
SHADOWS = "Shadow differences: what a map of 512 instead of 2048 changes on average, of 255; the share of pixels by more than 2."


def bench_env(recipes: Sequence[Recipe], *, sizes: Sequence[int], seconds: float = 1.0, tell: Tell = print) -> Result:
    """Play the environment of every recipe at random. A process has one OpenGL backend, so each backend gets a process."""
    environments, differences, failures = list[Row](), list[Row](), dict[str, str]()
    for recipe in recipes:
        variants = recipe.env.variants(sizes)
        if not recipe.env.backends:
            tell(f"{recipe.name}.")
            environments += _measure(variants, None, seconds)[0]
        for backend in recipe.env.backends:
            tell(f"{recipe.name} by {backend}.")
            try:
                with fresh_processes(1) as pool:
                    rows, changes = pool.submit(_measure_backend, variants, backend, seconds).result()
            except RuntimeError as error:
                failures[backend] = str(error)
            else:
                environments += rows
                differences += changes
    values = {"environments": environments, "shadow_differences": differences, "backends_that_do_not_draw": failures}
    notes = ["A frame is one of the simulator; a decision has action_repeat of them. Milliseconds are of a decision."]
    return Result(values, notes + [SHADOWS] * bool(differences))


def _measure_backend(configs: Sequence[EnvConfig], backend: str, seconds: float) -> tuple[list[Row], list[Row]]:
    os.environ["MUJOCO_GL"] = backend
    logging.getLogger("absl").setLevel(logging.ERROR)  # the suite's own models make MuJoCo warn, each time
    try:
        choose_gl()
    except NoBackendError as error:
        raise RuntimeError(error.failures[backend]) from None  # an error that can be sent to another process
    return _measure(configs, backend, seconds)


def _measure(configs: Sequence[EnvConfig], backend: str | None, seconds: float) -> tuple[list[Row], list[Row]]:
    """Play those of the same size in turns, and compare the pictures of two. Returns the speeds and the differences."""
    rows, differences = list[Row](), list[Row]()
    for size, group in groupby(configs, key=lambda config: config.size):
        same_size = list(group)
        plays = [_Play(config) for config in same_size]
        samples = in_turns({play: partial(play.go_on, seconds / TURNS) for play in plays}, TURNS)
        rows += [play.end(backend, sum(spent)) for play, spent in samples.items()]
        if len(same_size) == 2:
            seen = min(len(play.pictures) for play in plays)
            mean, share = picture_difference(*(np.stack(play.pictures[:seen]) for play in plays))
            where = {"task": same_size[0].task, "backend": backend, "size": size}
            differences.append({**where, "mean": mean, "share": share})
    return rows, differences


class _Play:
    """An environment that is played at random, with the same seeds and actions each time, and timed."""

    def __init__(self, config: EnvConfig) -> None:
        self._config = config
        self._env: gym.Env[Any, Any] = config.make(seed=0, training=True)
        self._watch, self._spaces, self._chance = Stopwatch(), Spaces.of(self._env), np.random.default_rng(0)
        wrap_env(Wrap(self._watch), self._env)
        self._episodes, self._over = 0, True
        self.pictures: list[np.ndarray[Any, Any]] = []  # (3, H, W), of the first decisions
        self._decide()  # the first picture takes longer
        self._watch.seconds.clear()
        self._frames = self._decisions = 0

    def go_on(self, seconds: float) -> float:
        begun, decisions = time.perf_counter(), self._decisions
        while (spent := time.perf_counter() - begun) < seconds or self._decisions - decisions < 5:
            self._frames += self._decide()
            self._decisions += 1
        return spent

    def _decide(self) -> int:
        """Returns the frames of a decision."""
        with self._watch("rest"):
            if self._over:
                self._env.reset(seed=episode_seed(0, self._episodes), options={"restart": True})
                self._episodes += 1
            obs, _, terminated, truncated, info = self._env.step(self._spaces.random_action(self._chance))
        self._over = terminated or truncated
        if len(self.pictures) < PICTURES:
            self.pictures.append(obs[-3:])
        return int(info["frames"])

    def end(self, backend: str | None, seconds: float) -> Row:
        self._env.close()
        parts = sorted(self._watch.seconds.items(), key=lambda part: -part[1])
        return {
            "task": self._config.task,
            "backend": backend,  # OpenGL's; None where it does not draw
            "size": self._config.size,
            "shadow_size": getattr(self._config, "shadow_size", None),
            "frames_per_second": self._frames / seconds,
            "milliseconds": {part: 1000 * spent / self._decisions for part, spent in parts},  # of a decision
        }


def picture_difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> tuple[float, float]:
    """(…, C, H, W) uint8: the mean absolute difference, and the share of pixels with a channel more than 2 apart."""
    apart = np.abs(a.astype(np.int16) - b.astype(np.int16))
    return float(apart.mean()), float((apart.max(axis=-3) > 2).mean())
