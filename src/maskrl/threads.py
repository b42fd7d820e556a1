"""How torch's threads wait for each other, and the number of threads of a run. Needs only the standard library.

By default a waiting thread of OpenMP spins for milliseconds before it sleeps. If other programs need the core, it takes time from
the thread that it waits for, and an update on two threads takes several times as long as on one. OpenMP reads its variables once,
when torch is loaded, so `import maskrl` imports this module first.
"""

import os
import sys

from maskrl.machine import cores_allowed, physical_cores

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # if one is set, the user has decided
# The first is for GNU's OpenMP, torch's on Linux, the second for LLVM's and Intel's. Most waits are shorter than waking up a
# thread: 5000 spins avoid most wake-ups on an idle machine and cost little on a busy one. `maskrl bench load --spins
# 0,1000,20000` measures it.
PASSIVE = {"GOMP_SPINCOUNT": "5000", "KMP_BLOCKTIME": "0"}
# Their defaults: spin for some milliseconds, or for 200 ms.
UNTOLD = {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
MOST = 8  # maximum default threads of a run: the layers of an update are too small for more


def _wait_passively() -> bool:
    """Set OpenMP's variables for this process and its children, unless the user has. Returns whether torch is loaded already."""
    if any(name in os.environ for name in NAMES):
        return False
    os.environ.update(PASSIVE)
    return "torch" in sys.modules


SPINS = _wait_passively()  # True: torch was loaded before maskrl, so its threads spin


def usual_threads() -> int:
    """The most threads that a run has by default: one per available core, at most `MOST`. Small layers get fewer (runs/threads.py).

    OMP_NUM_THREADS can lower it. If threads spin, it is 1: they would delay each other.
    """
    if SPINS:
        return 1
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    cores = min(cores_allowed(), physical_cores(), MOST)
    return min(cores, int(asked)) if asked.isdecimal() and int(asked) > 0 else cores


def advice(threads: int) -> str | None:
    """A note for the user about the threads of a run, if one is needed."""
    if SPINS:
        remedy = "Import maskrl before torch, or set GOMP_SPINCOUNT=5000 before Python starts."
        if threads == 1:
            return (
                "torch was imported before maskrl, so its threads would spin while they wait, and the run has one thread. "
                f"{remedy}"
            )
        return (
            f"torch was imported before maskrl, so its {threads} threads spin while they wait: if other programs use these "
            f"cores, the run is several times slower. {remedy}"
        )
    if threads > (cores := cores_allowed()):
        return (
            f"The run has {threads} threads, on which its results depend, but this process may use {cores} "
            f"{'core' if cores == 1 else 'cores'}, so it is slower than where it began."
        )
    return None
