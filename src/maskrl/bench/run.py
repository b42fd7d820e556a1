"""`maskrl bench run`: the speed of a whole run, by part."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium as gym
import torch

from maskrl.bench.measure import Measured, Tell, fresh_processes, in_turns
from maskrl.bench.parts import Wrap, wrap_agent, wrap_env
from maskrl.bench.result import Result, named
from maskrl.clock import Clock, Stopwatch
from maskrl.recipes.schema import Budget, Evaluation, Recipe
from maskrl.replay.buffer import Replay
from maskrl.runs import loop, state
from maskrl.runs.build import build_agent, torch_threads
from maskrl.runs.directory import Run
from maskrl.runs.loggers import Logger

WARMUP = 200  # maximum random decisions, enough to draw clips from
SETTLE = 5  # decisions of learning that are not counted: they allocate buffers
# The first layers, whose input is pixels.
NETWORKS = ("pixels", "critic", "objective", "actor", "momentum", "optimizer")
RENDERER = ("drawing",)
PARTS = ("physics", *RENDERER, "environment", "replay", "views", *NETWORKS, "checkpoint", "other")


def bench_run(recipe: Recipe, *, decisions: int, processes: int = 1, tell: Tell = print) -> Result:
    """Train for this many decisions after the warm-up, in one or several processes at once; several have one thread each."""
    tell(f"Timing {decisions:,} decisions of learning after a short warm-up.")
    short = shortened(recipe, decisions)
    if processes == 1:
        return _result(recipe, decisions, [_train_timed(short, decisions)])
    seeds = [replace(short, threads=1, seed=short.seed + number) for number in range(processes)]
    with fresh_processes(processes) as pool, get_context("spawn").Manager() as manager:
        barrier = manager.Barrier(processes)
        started = [pool.submit(_train_timed, each, decisions, barrier) for each in seeds]
        return _result(recipe, decisions, [process.result() for process in started])


def compare_runs(
    recipe: Recipe, other: Recipe, compared: Sequence[str], *, rounds: int = 3, tell: Tell = print, **options: Any
) -> Result:
    """Run two recipes in alternation, with the options of `bench_run`. `compared`: the overrides of the second."""
    parts: dict[str, list[Mapping[str, float]]] = {"as it is": [], " ".join(compared): []}

    def sample(name: str, recipe: Recipe) -> float:
        values = bench_run(recipe, **options, tell=tell).values
        parts[name].append(values["seconds_by_part"])
        return float(values["decisions_per_second"])

    samplers = {name: partial(sample, name, each) for name, each in zip(parts, (recipe, other), strict=True)}
    ours, theirs = in_turns(samplers, rounds, tell).values()
    seconds, compared_seconds = map(_means, parts.values())
    values = {
        **named(recipe),
        "compared": list(compared),
        "decisions_per_second": Measured.of(ours),
        "decisions_per_second_compared": Measured.of(theirs),
        "ratio": Measured.ratio(theirs, ours),
        "seconds_by_part": seconds,  # per decision: the mean over rounds
        "seconds_compared_by_part": compared_seconds,
    }
    return Result(values, [f"Medians (least – most) of {rounds} rounds in alternation. Ratios are within a round."])


def _result(recipe: Recipe, decisions: int, processes: Sequence[Mapping[str, float]]) -> Result:
    """The result, from the seconds per decision by part of each process."""
    rates = [1 / sum(seconds.values()) for seconds in processes]
    means = _means(processes)
    shares = {part: seconds / sum(means.values()) for part, seconds in means.items()}
    values = {
        **named(recipe),
        "processes": len(processes),
        "decisions": decisions,  # per process
        "decisions_per_second": sum(rates),
        "decisions_per_second_of_each": rates,
        "seconds_by_part": means,  # per decision: the mean over processes
        "share_by_part": shares,
        "share_outside_networks_and_renderer": 1 - sum(shares.get(part, 0.0) for part in (*NETWORKS, *RENDERER)),
    }
    return Result(values, [] if "checkpoint" in means else ["No checkpoint was written during these decisions."])


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each part that occurs in any row."""
    return {part: fmean(row.get(part, 0.0) for row in rows) for part in PARTS if any(part in row for row in rows)}


def shortened(recipe: Recipe, decisions: int) -> Recipe:
    """The recipe with a short warm-up and this many decisions; the interval of checkpoints is kept."""
    warmup = min(recipe.agent.warmup_decisions, WARMUP)
    frames = (warmup + SETTLE + decisions) * recipe.env.action_repeat
    return replace(
        recipe,
        agent=replace(recipe.agent, warmup_decisions=warmup),
        budget=Budget(frames=frames),
        evaluation=Evaluation(every=frames, episodes=1),
    )


class _Window(Logger):
    """Records the seconds of each part from the first counted decision on."""

    def __init__(self, first: int, barrier: Any, wrap: Wrap) -> None:
        self._first, self._barrier, self._wrap, self._begun = first, barrier, wrap, 0.0
        self.seconds: dict[str, float] = {}

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        if points or clock.decisions < self._first:
            return  # not a counted decision
        spent = self._wrap.watch.seconds
        if clock.decisions == self._first:
            if self._barrier is not None:
                self._barrier.wait(timeout=600)  # all processes start counting together
            spent.clear()
            self._begun = time.perf_counter()
        self.seconds = {part: seconds for part, seconds in spent.items() if part in PARTS}
        self.seconds["other"] = time.perf_counter() - self._begun - sum(self.seconds.values())


def _train_timed(recipe: Recipe, decisions: int, barrier: Any = None) -> dict[str, float]:
    """The seconds per decision by part, in the real training loop, with a temporary run directory."""
    try:
        temporary = tempfile.TemporaryDirectory(prefix="maskrl-bench-")
        with temporary as directory, torch_threads(torch.get_num_threads()), _timed_parts() as wrap:
            window = _Window(recipe.agent.warmup_decisions + SETTLE, barrier, wrap)
            loop.train(recipe, Run.create(Path(directory) / "run", recipe), [window])
    finally:
        if barrier is not None:
            barrier.abort()  # so that the others do not wait for a failed process
    return {part: seconds / decisions for part, seconds in window.seconds.items()}


@contextmanager
def _timed_parts() -> Iterator[Wrap]:
    """Time parts that the loop's stopwatch does not separate, and skip evaluations."""
    with Wrap(Stopwatch()) as wrap:

        def timed_agent(recipe: Recipe, env: gym.Env[Any, Any]) -> Any:
            agent = build_agent(recipe, env)
            wrap.watch = agent.watch
            wrap_agent(wrap, agent)
            wrap_env(wrap, env)
            return agent

        def not_evaluated(state: Any, _: Any) -> None:
            state.position.evaluated = state.clock.frames

        wrap.replace(state, "build_agent", timed_agent)
        wrap(Replay, ["add", "begin_episode"], "replay")
        wrap.replace(loop, "_evaluate", not_evaluated)
        yield wrap
