"""Draw windows of consecutive steps from a ring of steps that several environments write to, one per column."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from maskrl.replay.buffer import Index, NothingToDrawError
from maskrl.words import count

# Returns whether a window may begin at these slots of these columns.
Usable = Callable[[Index, Index], NDArray[np.bool_]]


def draw_windows(
    generator: np.random.Generator,
    clips: int,
    length: int,
    *,
    continues: NDArray[np.bool_],  # (slots, columns): whether the next slot holds the next step of the same episode
    oldest: int,  # the slot of the oldest step
    steps: int,  # stored in each column
    usable: Usable | None = None,
) -> tuple[Index, Index]:
    """Draw windows with replacement; return their slots (B, K) and columns (B, 1). All complete windows are equally likely."""
    if clips < 1 or length < 1:
        raise ValueError(f"clips={clips} and length={length} must be at least 1.")
    slots, columns = continues.shape
    starts = np.empty(0, np.int64), np.empty(0, np.int64)
    if steps >= length:
        # Rejection keeps windows equally likely. If it leaves too few, list all complete windows.
        tries = 2 * clips + 16
        times, column = generator.integers(steps - length + 1, size=tries), generator.integers(columns, size=tries)
        first = (oldest + times) % slots
        whole = continues[(first[:, None] + np.arange(length - 1)) % slots, column[:, None]].all(axis=1)
        if usable is not None:
            whole &= usable(first, column)
        starts = first[whole][:clips], column[whole][:clips]
    if len(starts[0]) < clips:
        every = _every_start(continues, oldest, steps, length, usable)
        chosen = generator.integers(len(every[0]), size=clips)
        starts = every[0][chosen], every[1][chosen]
    return (starts[0][:, None] + np.arange(length)) % slots, starts[1][:, None]


def _every_start(
    continues: NDArray[np.bool_], oldest: int, steps: int, length: int, usable: Usable | None
) -> tuple[Index, Index]:
    """The slots and columns of all complete windows; raise an error if there are none."""
    slots, columns = continues.shape
    order = (oldest + np.arange(steps)) % slots
    breaks = np.zeros((steps, columns), np.int64)  # number of breaks before each step
    breaks[1:] = np.cumsum(~continues[order[:-1]], axis=0)
    times, column = np.nonzero(breaks[length - 1 :] == breaks[: max(0, steps - length + 1)])
    first = order[times]
    if usable is not None:
        kept = usable(first, column)
        first, column = first[kept], column[kept]
    if len(first) == 0:
        stretches = [np.unique(each, return_counts=True)[1] for each in breaks.T]
        raise NothingToDrawError(
            f"There are no {length} steps in a row within one episode: {steps} steps of {count(columns, 'environment')} are "
            f"stored, and the longest stretch has {max(stretch.max(initial=0) for stretch in stretches)}. Lower clip_length, "
            "store more steps, or collect more before the first update."
        )
    return first, column
