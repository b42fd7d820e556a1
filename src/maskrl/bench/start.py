"""`maskrl bench start`: time the help, the first frame of a run, and the resume of a run with a full replay."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from maskrl.bench.measure import Measured, Tell, in_turns
from maskrl.bench.noise import fill
from maskrl.bench.result import Result, named
from maskrl.clock import Clock
from maskrl.recipes.schema import Recipe
from maskrl.runs import loggers
from maskrl.runs.directory import Run
from maskrl.runs.loggers import Logger, Loggers
from maskrl.runs.state import State

COMMAND = (sys.executable, "-m", "maskrl")
# The real command, but it ends at its first frame and prints the time.
WATCH = "from maskrl.bench.start import end_at_first_frame; end_at_first_frame(); from maskrl.cli import main; main()"
WATCHED = (sys.executable, "-c", WATCH)


def bench_start(recipe: Recipe, words: Sequence[str], *, rounds: int = 3, tell: Tell = print) -> Result:
    """Time real commands from their start. `words`: the arguments of `maskrl train` for the recipe."""
    with tempfile.TemporaryDirectory(prefix="maskrl-bench-") as directory:
        tell("Preparing a run with a full replay.")
        full = Path(directory) / "full"
        decisions = make_full(recipe, Run.create(full, recipe))
        fresh = (Path(directory) / f"new-{number}" for number in range(rounds))
        samplers: dict[str, Callable[[], float]] = {
            "help": _help,
            "first": lambda: _first_frame(words, next(fresh)),
            "continued": partial(_first_frame, words, full),
        }
        samples = in_turns(samplers, rounds, tell)
    values = {
        **named(recipe),
        "rounds": rounds,
        "seconds_of_help": Measured.of(samples["help"]),
        "seconds_to_first_frame": Measured.of(samples["first"]),
        "seconds_to_continue": Measured.of(samples["continued"]),
        "decisions_before_it_continues": decisions,
    }
    notes = [
        "help: `maskrl --help`. first frame: until a new run has drawn it. continue: with a full replay, until a decision."
    ]
    return Result(values, notes)


def make_full(recipe: Recipe, run: Run) -> int:
    """Save a run one decision before its end, with a replay of noise and an open episode. Returns its decisions."""
    decisions = recipe.frames // recipe.env.action_repeat - 1
    lived = min((recipe.env.episode_decisions or 200) - 1, decisions // 2)
    with State(recipe, run, Loggers([], tell=lambda text, clock: None)) as state:
        fill(state.replay, min(recipe.replay.capacity, decisions) - lived)
        state.position.decisions = decisions - lived
        obs = None
        for _ in range(lived):
            if obs is None:
                state.begin_episode()
            action = state.spaces.random_action(state.explorer)
            step = state.world.step(action)
            assert step is not None  # the episode was not lost
            obs = state.add(action, step)
        state.position.evaluated = 0  # the first evaluation is done
        state.save_if_due(ending=True)
    run.set_status("stopped")
    return decisions


def _help() -> float:
    start = time.time()
    subprocess.run([*COMMAND, "--help"], check=True, capture_output=True)
    return time.time() - start


def _first_frame(words: Sequence[str], path: Path) -> float:
    """Seconds from the start of `maskrl train` to its first frame."""
    start = time.time()
    done = subprocess.run([*WATCHED, "train", *words, "--run-dir", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"maskrl train ended before its first frame:\n{done.stdout}{done.stderr}")
    return float(done.stdout.split()[-1]) - start


class _First(Logger):
    """Ends the process at the second call of `write`; the first one comes before training."""

    def __init__(self, run: Run) -> None:
        self._ready = False

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        if self._ready:
            print(f"\n{time.time()}", flush=True)
            os._exit(0)
        self._ready = True


def end_at_first_frame() -> None:
    """Make runs of this process end at their first frame."""
    loggers.choose_loggers = lambda names: [_First]
