"""`maskrl bench env`: the speed of environments, by part."""

import logging
import time
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from maskrl.agents.base import Spaces
from maskrl.bench.measure import Tell
from maskrl.bench.parts import Wrap, wrap_env
from maskrl.bench.result import Result, Row
from maskrl.clock import Stopwatch
from maskrl.envs.base import EnvConfig, Frame, episode_seed
from maskrl.recipes.schema import Recipe

LEAST = 5  # minimum decisions, also for slow environments
COMPARED = (5, 10)  # episodes, and decisions of each, whose pictures are compared
SEEN = 2  # of 255: a smaller difference is not counted as a changed pixel


def bench_env(recipes: Sequence[Recipe], *, sizes: Sequence[int], seconds: float = 1.0, tell: Tell = print) -> Result:
    """Play the environment of every recipe at random. MUJOCO_GL chooses the renderer of DMControl."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # MuJoCo warns about the suite's own models each time
    rows, failures = list[Row](), dict[str, str]()
    for recipe in recipes:
        tell(f"{recipe.name}.")
        try:
            variants = recipe.env.variants(sizes)
            firsts = {config.size: config for config in reversed(variants)}
            rows += [play(config, seconds) | difference(config, firsts[config.size]) for config in variants]
        except (ImportError, RuntimeError) as error:  # no simulator, or no OpenGL backend
            failures[recipe.name] = str(error)
    notes = [
        "A frame is one of the simulator; a decision has action_repeat frames. Milliseconds are per decision.",
        f"Changed pixels differ by more than {SEEN} of 255 from the first row of that size; the mean is also of 255.",
    ]
    return Result({"environments": rows, "not_measured": failures}, notes)


def play(config: EnvConfig, seconds: float) -> Row:
    """Play at random, with the same seeds and actions each time."""
    env = config.make(seed=0, training=True)
    spaces, chance, watch = Spaces.of(env), np.random.default_rng(0), Stopwatch()
    wrap_env(Wrap(watch), env)
    decisions, frames, episodes, over, begun = -1, 0, 0, True, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds or decisions < LEAST:
        with watch("rest"):
            if over:
                env.reset(seed=episode_seed(0, episodes), options={"restart": True})
                episodes += 1
            _, _, terminated, truncated, info = env.step(spaces.random_action(chance))
        over = terminated or truncated
        decisions, frames = decisions + 1, frames + info["frames"]
        if decisions == 0:  # the first picture takes longer: count after it
            watch.seconds.clear()
            frames, begun = 0, time.perf_counter()
    env.close()
    parts = sorted(watch.seconds.items(), key=lambda part: -part[1])
    return {
        "task": config.task,
        "renderer": config.renderer(),
        "size": config.size,
        "drawing": getattr(config, "drawing", None),
        "shadow_size": getattr(config, "shadow_size", None),
        "frames_per_second": frames / spent,
        "milliseconds": {part: 1000 * total / decisions for part, total in parts},  # per decision
    }


def difference(config: EnvConfig, first: EnvConfig) -> Row:
    """The difference between the pictures of two variants, at the same steps of the same episodes."""
    if config == first:
        return {}
    apart = np.abs(pictures(config) - pictures(first))
    return {"changed_share": float((apart.max(axis=1) > SEEN).mean()), "mean_difference": float(apart.mean())}


@cache
def pictures(config: EnvConfig) -> NDArray[np.int16]:
    """Frames of the beginnings of some episodes, with random actions: (N, C, H, W)."""
    env = config.make(seed=0, training=True)
    spaces, chance, seen = Spaces.of(env), np.random.default_rng(0), list[Frame]()
    episodes, decisions = COMPARED
    for episode in range(episodes):
        env.reset(seed=episode_seed(0, episode), options={"restart": True})
        seen += [env.step(spaces.random_action(chance))[0] for _ in range(decisions)]
    env.close()
    observations = np.stack(seen).astype(np.int16)
    return observations[:, -observations.shape[1] // config.frame_stack :]  # the newest frame of each stack
