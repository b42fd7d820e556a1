"""`maskrl bench replay`: the speed and size of full replays."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from maskrl.bench.measure import Tell
from maskrl.bench.noise import fill
from maskrl.bench.result import Result, Row
from maskrl.cost.timing import seconds_each
from maskrl.machine import free_memory
from maskrl.replay.buffer import Replay
from maskrl.words import size

CLIP = 16  # K


class Kind(NamedTuple):
    """A replay of the paper's agents, with their draws for one update."""

    name: str
    layout: dict[str, Any]  # arguments of `Replay`
    transitions: int
    clips: int
    steps: int  # of the returns


_CONTROL = {"frame_shape": (3, 100, 100), "frame_stack": 3, "action_dim": 6, "discrete": False}
_ATARI = {"frame_shape": (1, 84, 84), "frame_stack": 4, "action_dim": 18, "discrete": True, "priority_exponent": 0.5}
KINDS = (
    Kind("DMControl, uniform", _CONTROL, transitions=512, clips=128, steps=1),
    Kind("Atari, prioritised", _ATARI, transitions=32, clips=32, steps=10),
)


def bench_replay(
    sizes: Sequence[int], *, kinds: Sequence[Kind] = KINDS, seconds: float = 0.5, tell: Tell = print
) -> Result:
    """Fill a replay of every kind and size, in memory and on disk, and draw from it. Nothing stays on disk."""
    cases = [(kind, capacity, storage) for capacity in sizes for kind in kinds for storage in ("memory", "disk")]
    return Result({"replays": [_measure(*case, seconds, tell) for case in cases]})


def _measure(kind: Kind, capacity: int, storage: str, seconds: float, tell: Tell) -> Row:
    """Measure one replay. Rates count single transitions and clips, drawn and read in batches."""
    nbytes = Replay.forecast(**kind.layout, capacity=capacity)
    row: Row = {"kind": kind.name, "storage": storage, "transitions": capacity, "nbytes": nbytes}
    row |= {"bytes_per_transition": nbytes / capacity, "transitions_per_second": None, "clips_per_second": None}
    with tempfile.TemporaryDirectory(prefix="maskrl-bench-") as directory:
        room = free_memory() if storage == "memory" else shutil.disk_usage(directory).free
        if room is not None and nbytes > room / 2:  # half, because other processes need some
            return {**row, "skipped": f"it takes {size(nbytes)} of {storage}; {size(room // 2)} may be used"}
        tell(f"{kind.name}: {capacity:,} transitions, {size(nbytes)} of {storage}.")
        on_disk = Path(directory) if storage == "disk" else None
        replay = Replay(**kind.layout, capacity=capacity, seed=0, directory=on_disk)
        fill(replay, capacity)

        def transitions() -> None:
            draw = replay.draw(kind.transitions, span=kind.steps, whole=False, correction=0.5)
            replay.transitions(draw, n_step=kind.steps)

        def clips() -> None:
            replay.clips(replay.draw(kind.clips, span=CLIP, correction=0.5), length=CLIP)

        row["transitions_per_second"] = _rate(kind.transitions, transitions, seconds)
        row["clips_per_second"] = _rate(kind.clips, clips, seconds)
    return {**row, "skipped": None}


def _rate(count: int, call: Callable[[], None], seconds: float) -> float:
    """Items per second of a call that handles `count` items, over this many seconds or at least three calls."""
    call()
    calls = max(3, round(seconds / seconds_each(call, 1)))
    return count / seconds_each(call, calls)
