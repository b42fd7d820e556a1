"""Batches that a thread gathers before they are used, while the device computes."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Ahead:
    """At most `depth` batches in the order of their draws; 0: none.

    The caller draws at once; only the reading is left to the thread. As long as nothing is added to the replay in between, these
    are the draws that would be made later.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._pool: ThreadPoolExecutor | None = None  # most replays never need a thread
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
