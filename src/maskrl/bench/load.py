"""`maskrl bench load`: how much other programs on the same cores slow an update, for each way in which torch's threads wait."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from maskrl.bench.measure import Measured, Tell, fresh_processes
from maskrl.bench.noise import Learner
from maskrl.bench.result import Result, Row, named
from maskrl.cost.operations import spaces_of
from maskrl.machine import cores_allowed
from maskrl.recipes.schema import Recipe
from maskrl.runs.build import configure_process
from maskrl.runs.threads import threads_of
from maskrl.threads import NAMES, PASSIVE, UNTOLD, usual_threads

# A program that keeps a core busy. It ends when its standard input closes, also if this process is killed.
BUSY = "import os, threading\nthreading.Thread(target=lambda: (os.read(0, 1), os._exit(0))).start()\nwhile True: pass"
SETTLE = 0.5  # seconds until these programs run


class Variant(NamedTuple):
    """A way to run the same updates."""

    threads: int
    waiting: str  # passive: maskrl's setting; untold: OpenMP's default; or a number of spins

    @property
    def settings(self) -> dict[str, str]:
        return {"passive": PASSIVE, "untold": UNTOLD}.get(self.waiting) or {"GOMP_SPINCOUNT": self.waiting}


Samples = Mapping[tuple[int, Variant], list[float]]  # seconds per update beside this many busy processes, by round


def bench_load(
    recipe: Recipe, *, rounds: int = 5, updates: int = 10, spins: Sequence[int] = (), tell: Tell = print
) -> Result:
    """Time updates on idle cores and beside as many busy processes as cores, in turns. Each variant has a separate process.

    `spins`: further numbers of spins before a thread sleeps (GNU's OpenMP).
    """
    cores, threads = cores_allowed(), recipe.threads or usual_threads()
    if threads == 1:
        raise ValueError("With one thread there is no waiting to compare. Set threads=2, or allow more cores.")
    variants = [Variant(1, "passive"), Variant(threads, "passive"), Variant(threads, "untold")]
    variants += [Variant(threads, str(turns)) for turns in spins]
    samples: Samples = {(busy, one): [] for busy in (0, cores) for one in variants}
    with ExitStack() as stack:
        tell(f"Running the first updates of {len(variants)} processes.")
        processes = {one: stack.enter_context(_process(recipe, one)) for one in variants}
        for number in range(1, rounds + 1):
            for busy in (0, cores):
                with _busy(busy):
                    for one, process in processes.items():
                        seconds = process.submit(_seconds, recipe, one.threads, updates).result()
                        samples[busy, one].append(seconds)
            tell(
                f"Round {number} of {rounds}: {', '.join(f'{taken[-1]:.3g}' for taken in samples.values())} s per update."
            )
    return _result(recipe, samples, cores, variants)


def _result(recipe: Recipe, samples: Samples, cores: int, variants: list[Variant]) -> Result:
    one, passive, untold = variants[:3]
    rows: list[Row] = []
    for (busy, variant), taken in samples.items():
        best = [min(each) for each in zip(*(samples[busy, other] for other in variants), strict=True)]
        rows.append(
            {
                "busy_processes": busy,
                "threads": variant.threads,
                "waiting": variant.waiting,
                "seconds_per_update": Measured.of(taken),
                "of_the_best": Measured.ratio(best, taken),
            }
        )
    better = list(map(min, samples[cores, one], samples[cores, passive]))
    chosen = one if threads_of(recipe) == 1 else passive
    values = {
        **named(recipe),
        "cores": cores,
        "threads": chosen.threads,
        "busy_speed": Measured.ratio(better, samples[cores, chosen]),
        "idle_speed": Measured.ratio(samples[0, untold], samples[0, chosen]),
        "load": rows,
    }
    both = passive.threads
    notes = [
        f"threads: those of a run of this recipe. busy speed: theirs, relative to the better of 1 and {both}. idle speed: theirs, "
        f"relative to {both} threads with OpenMP's default. To measure {both} threads, set threads={both}.",
        "Medians (least – most). Ratios are within a round.",
    ]
    return Result(values, notes)


@contextmanager
def _process(recipe: Recipe, variant: Variant) -> Iterator[ProcessPoolExecutor]:
    """A process whose OpenMP waits in this way, after its first updates."""
    before = dict(os.environ)
    with fresh_processes(1) as pool:
        try:
            for name in (*NAMES, "OMP_NUM_THREADS"):
                os.environ.pop(name, None)
            os.environ.update(variant.settings)
            pool.submit(_seconds, recipe, variant.threads, 1).result()
        finally:
            os.environ.clear()
            os.environ.update(before)
        yield pool


def _seconds(recipe: Recipe, threads: int, updates: int) -> float:
    return _learner(replace(recipe, threads=threads)).seconds(updates)


@cache  # one per process
def _learner(recipe: Recipe) -> Learner:
    configure_process(recipe)
    return Learner(recipe, spaces_of(recipe))


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Run `count` processes that each keep a core busy, with the same priority as this one."""
    command, silent = [sys.executable, "-c", BUSY], subprocess.DEVNULL
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=silent))
            stack.callback(process.kill)
        time.sleep(SETTLE)
        yield
