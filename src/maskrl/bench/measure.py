"""Measurements of benchmarks: in turns, round by round, as a median with its range.

The speed of a shared machine changes from second to second. Ratios within a round are hardly affected.
"""

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar

K = TypeVar("K")
Tell = Callable[[str], None]  # shows progress


@dataclass(frozen=True)
class Measured:
    """A median with the smallest and the largest sample."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Measured":
        return cls(statistics.median(samples), min(samples), max(samples))

    @classmethod
    def ratio(cls, above: Sequence[float], below: Sequence[float]) -> "Measured":
        """The median and range of the ratios within rounds, in which a slow-down of a whole round cancels out."""
        return cls.of([a / b for a, b in zip(above, below, strict=True)])


def in_turns(samplers: Mapping[K, Callable[[], float]], rounds: int, tell: Tell) -> dict[K, list[float]]:
    """Call every sampler once per round, and collect their results."""
    samples: dict[K, list[float]] = {name: [] for name in samplers}
    for number in range(1, rounds + 1):
        for name, sample in samplers.items():
            samples[name].append(sample())
        newest = ", ".join(f"{name} {taken[-1]:.3g}" for name, taken in samples.items())
        tell(f"Round {number} of {rounds}: {newest}.")
    return samples


@contextmanager
def fresh_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """New processes that inherit nothing, because the thread count and the handling of freed memory are set per process."""
    try:
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            yield pool
    except BrokenProcessPool:
        raise RuntimeError(
            "A process of the benchmark ended without an answer, probably from lack of memory. Choose smaller sizes or fewer "
            "processes."
        ) from None


def peak_memory() -> int | None:
    """The largest resident memory of this process so far, in bytes; None where the unit of the system is another, or unknown."""
    if sys.platform != "linux":
        return None
    import resource  # only on Unix

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
