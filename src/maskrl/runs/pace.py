"""Detect what outside a run makes it far slower: other programs, a quota, lack of memory, heat.

During an update on a CPU, the calling thread always computes or waits for its own helper threads. If it got little of the elapsed
time, something else took the rest; the system's counters show what.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from maskrl.machine import control_groups, cores_allowed

WINDOW = 60.0  # seconds of updates over which a run is judged
FAR = 1 / 3  # share of its full speed below which a run gets a note
MUCH = 0.2  # share of the time spent waiting for memory or throttled by a quota


@dataclass(frozen=True)
class Reading:
    """Counters of the machine at one moment; None: not available."""

    load: float | None  # average number of programs that want a core in the last minute
    throttled: float | None  # seconds throttled by the control group's quota
    stalled: float | None  # seconds in which a program waited for memory
    frequency: float | None  # of the fastest core, as a share of its maximum


def read(root: Path = Path("/")) -> Reading:
    return Reading(_load(root), _throttled(root), _stalled(root), _frequency(root))


def judged(before: Reading, after: Reading, *, seconds: float, worked: float, cores: int) -> str | None:
    """A note on updates that took `seconds`, `worked` of them processor time; None if they were not much slower than possible.

    A run that is slow without a visible cause gets no note: the run itself may be the cause.
    """
    clock = max((each for each in (before.frequency, after.frequency) if each is not None), default=1.0)
    speed = max(0.01, clock * worked / seconds)  # avoids a division by 0
    if speed >= FAR:
        return None
    throttled, stalled = (
        0.0 if then is None or now is None else (now - then) / seconds
        for then, now in ((before.throttled, after.throttled), (before.stalled, after.stalled))
    )
    if throttled > MUCH:
        cause = "The CPU quota of its control group was used up repeatedly"
        remedy = "Give the container or the job more CPU time, or use fewer threads: threads=1."
    elif stalled > MUCH:
        cause = f"Programs waited for memory {stalled:.0%} of the time"
        remedy = (
            "Close programs that take memory, or start again with a smaller replay.capacity or replay.storage=disk."
        )
    elif worked / seconds < FAR and after.load is not None and after.load > 1.5 * cores:
        cause = f"Other programs want the same cores: the load is {after.load:.1f}, and there are {cores} cores"
        remedy = "Stop some of them, or train fewer runs at a time."
    elif clock < 2 * FAR:
        cause = f"The processor runs at {clock:.0%} of its frequency, to stay cool or to save power"
        remedy = "Cool it, plug it in, or choose a faster power profile."
    else:
        return None
    return f"This run is about {1 / speed:.0f} times slower than this machine allows. {cause}. {remedy} Its results stay the same."


class Pace:
    """Watches the updates of a run: `with pace:` around each of them."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root, self._before = root, read(root)
        self._seconds = self._worked = 0.0
        self._told = False

    def __enter__(self) -> None:
        self._start = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        wall, work = self._start
        self._seconds += time.perf_counter() - wall
        self._worked += time.thread_time() - work

    def complaint(self) -> str | None:
        """A note on the cause of a slow run, at most once per process; otherwise None."""
        if self._told or self._seconds < WINDOW:
            return None
        after = read(self._root)
        text = judged(self._before, after, seconds=self._seconds, worked=self._worked, cores=cores_allowed(self._root))
        self._before, self._seconds, self._worked, self._told = after, 0.0, 0.0, text is not None
        return text


def _load(root: Path) -> float | None:
    with suppress(OSError, ValueError, IndexError):
        return float((root / "proc/loadavg").read_text().split()[0])
    with suppress(OSError, AttributeError):  # macOS
        return os.getloadavg()[0] if root == Path("/") else None
    return None


def _throttled(root: Path) -> float | None:
    """Throttled seconds of the most throttled group above this process: outer limits apply, too."""
    found = []
    for group in control_groups("cpu", root):
        with suppress(OSError, ValueError):
            counts = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
            found += [int(counts["throttled_usec"]) / 1e6] if "throttled_usec" in counts else []  # version 2
            found += [int(counts["throttled_time"]) / 1e9] if "throttled_time" in counts else []
    return max(found, default=None)


def _stalled(root: Path) -> float | None:
    with suppress(OSError, ValueError, IndexError):
        some = (root / "proc/pressure/memory").read_text().splitlines()[0]
        return int(some.partition("total=")[2]) / 1e6
    return None


def _frequency(root: Path) -> float | None:
    found = []
    for core in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq"):
        with suppress(OSError, ValueError, ZeroDivisionError):
            now, most = (int((core / name).read_text()) for name in ("scaling_cur_freq", "cpuinfo_max_freq"))
            found.append(now / most)
    return max(found, default=None)
