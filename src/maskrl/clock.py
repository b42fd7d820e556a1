"""The clock of a run, and a stopwatch for its parts."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """The progress of a run. A decision is one action of the agent, a frame one tick of the simulator, an update one round of
    learning.
    """

    frames: int
    decisions: int
    updates: int
    seconds: float  # of training, over all sessions


class Stopwatch:
    """Seconds spent in each named part. Parts may nest: the time of an inner part does not count for the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        self._running.append(part)
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self._running.pop()
            self.seconds[part] += elapsed
            if self._running:
                self.seconds[self._running[-1]] -= elapsed
