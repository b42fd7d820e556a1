"""Time the parts of a run on this machine: real steps of the environment, and real updates, or smaller ones if these are slow.

Time is the smaller of processor time and elapsed time, so that other programs do not count. The fastest of several samples
counts, because disturbances only slow them down.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from maskrl.agents.base import Agent, Spaces
from maskrl.cost.operations import UpdateCost, update_cost
from maskrl.envs.base import episode_seed
from maskrl.machine import free_memory
from maskrl.recipes.schema import Recipe, settled
from maskrl.replay.buffer import Replay
from maskrl.runs.build import device_of, replay_size, torch_threads
from maskrl.runs.threads import threads_of

QUICK = 2e10  # maximum FLOP of an update to time in full: less than a second on most machines
ASSUMED = 0.35  # share of a matrix product's speed, for updates that cannot be timed
CPU = torch.device("cpu")


class Start:
    """A start time."""

    def __init__(self) -> None:
        self._wall, self._work = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        """The smaller of processor time and elapsed time since the start: several threads may take more processor time than
        elapsed, and a processor idles while a GPU works.
        """
        wall, work = time.perf_counter() - self._wall, time.process_time() - self._work
        return wall if torch.cuda.is_available() else min(wall, work)


def seconds_each(call: Callable[[], Any], times: int, device: torch.device = CPU) -> float:
    """The mean time of this many calls in a row."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def fastest(call: Callable[[], Any], seconds: float = 0.0, *, least: int = 5) -> float:
    """The seconds of the fastest call within about this time. The first does not count: it allocates buffers."""
    call()
    samples, ends = list[float](), time.perf_counter() + seconds
    while len(samples) < least or (time.perf_counter() < ends and len(samples) < 200):
        start = Start()
        call()
        samples.append(start.seconds)
    return min(samples)


class Stepped(NamedTuple):
    """Measurements of an environment with random actions."""

    spaces: Spaces
    step: float  # seconds per decision, including its share of resets
    episode: float  # mean decisions per episode, or those of the unfinished first one
    replay: Replay  # the decisions, to learn from


def measure_env(recipe: Recipe, seconds: float, least: int = 40) -> Stepped:
    """Play at random for this time and at least this many decisions, in an evaluation environment."""
    env: gym.Env[Any, Any] = recipe.env.make(seed=recipe.seed, training=False)
    spaces, chance = Spaces.of(env), np.random.default_rng(0)
    size = replay_size(recipe, spaces)
    size["capacity"], size["reserve"] = 256, 0
    replay, steps, resets, ends = Replay(**size, seed=0), list[float](), list[float](), list[int]()
    begun, over = time.perf_counter(), True
    while len(steps) < least or time.perf_counter() - begun < seconds:
        if over:
            start = Start()
            obs, info = env.reset(seed=episode_seed(0, len(resets)), options={"restart": True})
            resets.append(start.seconds)
            replay.begin_episode(obs, info.get("vector"))
        action, start = spaces.random_action(chance), Start()
        obs, reward, terminated, truncated, info = env.step(action)
        steps.append(start.seconds)
        ends_so = {"terminated": terminated, "truncated": truncated}
        replay.add(spaces.as_vector(action), float(reward), obs, info.get("vector"), **ends_so)
        over = terminated or truncated
        ends += [len(steps)] * over
    env.close()
    episode = recipe.env.episode_decisions or (ends[-1] / len(ends) if ends else len(steps))
    return Stepped(spaces, fastest_mean(steps) + min(resets) / episode, episode, replay)


def fastest_mean(seconds: Sequence[float], pieces: int = 5) -> float:
    """The mean of the fastest fifth in a row: some steps are always slower, so the fastest single step would mislead."""
    size = math.ceil(len(seconds) / pieces)
    return min(statistics.fmean(seconds[start : start + size]) for start in range(0, len(seconds) - size + 1, size))


class Updated(NamedTuple):
    """Measured seconds of updates."""

    update: float
    act: float
    act_together: float
    share: float  # the share of its batches that was timed; 0: not timed, for lack of memory


def measure_updates(recipe: Recipe, cost: UpdateCost, stepped: Stepped, seconds: float) -> Updated:
    """Time real updates, at full size if that is quick; otherwise at two smaller sizes, and extrapolate.

    The time of an update is a constant, such as the optimiser's, plus a part proportional to its batches; two sizes give both.
    """
    recipe = settled(recipe)
    with torch_threads(threads_of(recipe)):
        if cost.flops < QUICK:
            return _try(recipe, stepped, seconds)
        small, free = replace(recipe, agent=recipe.agent.scaled(1 / 64)), free_memory()
        least = update_cost(small, stepped.spaces)
        if free is not None and least.memory > 0.8 * free:
            matrix = torch.ones(1024, 1024)  # fits into caches
            rate = ASSUMED * 2 * 1024**3 / fastest(lambda: matrix @ matrix)
            return Updated(cost.flops / rate, cost.act / rate, cost.act / rate, 0.0)
        first = _try(small, stepped, seconds / 4)
        share = min(1.0, max(1 / 16, seconds / 8 / first.update / 64))
        larger = replace(recipe, agent=recipe.agent.scaled(share))
        second = _try(larger, stepped, seconds / 2)
    points = [(least.flops, first.update), (update_cost(larger, stepped.spaces).flops, second.update)]
    return second._replace(update=extended(points, cost.flops), share=share)


def extended(points: Sequence[tuple[float, float]], flops: float) -> float:
    """The seconds of this many FLOP, on the line through two points; if it does not rise, through the origin and the last."""
    (x, a), (y, b) = points[0], points[-1]
    if y <= x or b <= a or a * y < b * x:  # the last: a negative constant
        return b * flops / y
    return a + (b - a) / (y - x) * (flops - x)


def _try(recipe: Recipe, stepped: Stepped, seconds: float) -> Updated:
    """Time updates for about this long, and actions for one observation, as in training and evaluations."""
    device, turn = device_of(recipe), recipe.agent.turn(recipe.objective)
    agent: Agent = recipe.agent.build(stepped.spaces, recipe.objective, device)
    update = fastest(lambda: seconds_each(lambda: agent.update(stepped.replay), turn, device), seconds, least=2) / turn
    obs = np.zeros((min(recipe.evaluation.side_by_side, recipe.evaluation.episodes), *stepped.spaces.obs), np.uint8)
    rows = np.zeros((len(obs), stepped.spaces.vector), np.float32) if stepped.spaces.vector else None
    act = fastest(partial(agent.policy().act, obs[:1], None if rows is None else rows[:1]))
    on_gpu = device.type != "cpu"
    with nullcontext() if on_gpu else torch_threads(1):
        obs, rows = (obs, rows) if on_gpu else (obs[:1], None if rows is None else rows[:1])
        together = fastest(partial(agent.policy().act, obs, rows)) / len(obs)
    return Updated(update, act, together, 1.0)
