"""Gather batches in a thread ahead of use, while the device computes."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Ahead:
    """A queue of at most `depth` batches, in the order of their draws; 0: off.

    The caller draws immediately; the thread only reads. As long as nothing is added to the replay in between, the draws are the
    same as without it.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._pool: ThreadPoolExecutor | None = None  # created on first use: most replays need no thread
        self._coming: deque[Future[Any]] = deque()

    def __len__(self) -> int:
        return len(self._coming)

    def gather(self, read: Callable[[], Any]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "maskrl-replay")
        self._coming.append(self._pool.submit(read))

    def take(self) -> Any:
        """The next batch; None if there is none."""
        return self._coming.popleft().result() if self._coming else None
