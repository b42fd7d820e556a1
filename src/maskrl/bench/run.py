"""How fast a whole run is, and where its time goes: `maskrl bench run`."""

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from maskrl.bench.measure import Measured, Tell, fresh_processes, in_turns
from maskrl.bench.parts import Wrap, wrap_agent, wrap_env
from maskrl.bench.result import Result, Row, named
from maskrl.clock import Clock, Stopwatch
from maskrl.recipes.schema import Budget, Evaluation, Recipe
from maskrl.replay.buffer import Replay
from maskrl.runs import loop, state
from maskrl.runs.build import build_agent, build_replay
from maskrl.runs.directory import Run
from maskrl.runs.loggers import Logger

WARMUP = 200  # random decisions at most: enough to draw clips from
SETTLE = 5  # decisions of learning that are not counted: buffers are made in them
# Pixels are what goes into the first layers.
NETWORKS = ("pixels", "critic", "objective", "actor", "momentum", "optimizer")
RENDERER = ("drawing",)
PARTS = ("physics", *RENDERER, "environment", "replay", "views", *NETWORKS, "checkpoint", "other")


def bench_run(recipe: Recipe, *, decisions: int, processes: int = 1, tell: Tell | None = None) -> Result:
    """Train for this many decisions after the warm-up, in this many processes at once; with several, on one thread each."""
    if tell is not None:
        tell(f"{decisions:,} decisions of learning after a short warm-up.")
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
    """Run two recipes in alternation, with the options of `bench_run`; `compared` has the overrides of the other."""
    first, second = list[Row](), list[Row]()

    def sample(recipe: Recipe, done: list[Row]) -> float:
        done.append(bench_run(recipe, **options).values)
        return float(done[-1]["decisions_per_second"])

    words = " ".join(compared)
    samplers = {"as it is": partial(sample, recipe, first), words: partial(sample, other, second)}
    rates = in_turns(samplers, rounds, tell, unit="decisions a second")
    ratio = Measured.ratio(rates[words], rates["as it is"])
    values = named(recipe) | {"processes": first[0]["processes"], "compared": list(compared)}
    values |= {"rounds": first, "rounds_compared": second, "ratio": ratio}
    shown = named(recipe)
    for name, done in (("", first), (f" with {words}", second)):
        median = sorted(done, key=lambda row: float(row["decisions_per_second"]))[(rounds - 1) // 2]
        for what in ("decisions_per_second", "share_outside_networks_and_renderer"):
            shown[what.replace("_", " ") + name] = median[what]
        shown |= {f"{what}{name}_by_part": median[f"{what}_by_part"] for what in ("seconds", "share")}
    shown[f"times the decisions per second with {words}"] = ratio
    return Result(values, [f"{rounds} rounds of both in alternation. Parts are those of the median rounds."], shown)


def _result(recipe: Recipe, decisions: int, processes: Sequence[Mapping[str, float]]) -> Result:
    """Of the seconds of a decision by part, in each process."""
    rates = [1 / sum(seconds.values()) for seconds in processes]
    parts = [part for part in PARTS if any(part in seconds for seconds in processes)]
    means = {part: statistics.fmean(seconds.get(part, 0.0) for seconds in processes) for part in parts}
    shares = {part: seconds / sum(means.values()) for part, seconds in means.items()}
    values = {
        **named(recipe),
        "processes": len(processes),
        "decisions": decisions,  # of each process
        "decisions_per_second": sum(rates),
        "decisions_per_second_of_each": rates,
        "seconds_by_part": means,  # of a decision: the mean over processes
        "share_by_part": shares,
        "share_outside_networks_and_renderer": 1 - sum(shares.get(part, 0.0) for part in (*NETWORKS, *RENDERER)),
    }
    return Result(values, [] if "checkpoint" in parts else ["No checkpoint fell into these decisions."])


def shortened(recipe: Recipe, decisions: int) -> Recipe:
    """The recipe with a short warm-up, then this many decisions; checkpoints as often as it has them."""
    warmup = min(recipe.agent.warmup_decisions, WARMUP)
    frames = (warmup + SETTLE + decisions) * recipe.env.action_repeat
    return replace(
        recipe,
        agent=replace(recipe.agent, warmup_decisions=warmup),
        budget=Budget(frames=frames),
        evaluation=Evaluation(every=frames, episodes=1),
    )


class _Window(Logger):
    """Keeps the time and the seconds of each part at the first counted decision, and at the newest."""

    def __init__(self, first: int, barrier: Any, wrap: Wrap) -> None:
        self._first, self._barrier, self._wrap, self._newest = first, barrier, wrap, -1
        self.before: dict[str, float] = {}
        self.after: dict[str, float] = {}

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        if points or clock.decisions == self._newest:
            return  # decisions alone are counted
        self._newest = clock.decisions
        if clock.decisions == self._first:
            if self._barrier is not None:
                self._barrier.wait(timeout=600)  # all begin to count at once
            self.before = self._now()
        self.after = self._now()

    def _now(self) -> dict[str, float]:
        return {**self._wrap.watch.seconds, "all": time.perf_counter()}

    def seconds(self) -> dict[str, float]:
        """By part; "other" is what no part has."""
        if not self.before:
            raise RuntimeError("The run ended before its first counted decision, so nothing was measured.")
        spent = {part: total - self.before.get(part, 0.0) for part, total in self.after.items()}
        whole = spent.pop("all")
        return spent | {"other": whole - sum(spent.values())}


def _train_timed(recipe: Recipe, decisions: int, barrier: Any = None) -> dict[str, float]:
    """The seconds of a decision by part, in the training loop itself. Its run directory is temporary."""
    threads = torch.get_num_threads()
    try:
        with tempfile.TemporaryDirectory(prefix="maskrl-bench-") as directory, _timed_parts() as wrap:
            window = _Window(recipe.agent.warmup_decisions + SETTLE, barrier, wrap)
            loop.train(recipe, Run.create(Path(directory) / "run", recipe), [window])
    finally:
        torch.set_num_threads(threads)
        if barrier is not None:
            barrier.abort()  # the others need not wait for a process that failed
    return {part: seconds / decisions for part, seconds in window.seconds().items() if part in PARTS}


@contextmanager
def _timed_parts() -> Iterator[Wrap]:
    """Time parts that the loop's own stopwatch does not separate, and leave out evaluations."""
    with Wrap(Stopwatch()) as wrap:

        def timed_agent(recipe: Recipe, env: gym.Env[Any, Any]) -> Any:
            agent = build_agent(recipe, env)
            wrap.watch = agent.watch
            wrap_agent(wrap, agent)
            wrap_env(wrap, env)
            return agent

        def timed_replay(*args: Any, **options: Any) -> Replay:
            replay = build_replay(*args, **options)
            wrap(replay, ["add", "begin_episode"], "replay")
            return replay

        def not_evaluated(state: Any, _: Any) -> None:
            state.position.evaluated = state.clock.frames

        wrap.replace(state, "build_agent", timed_agent)
        wrap.replace(state, "build_replay", timed_replay)
        wrap.replace(loop, "_evaluate", not_evaluated)
        yield wrap
