"""How torch's threads wait for each other, and the number of threads of a run. The standard library alone.

A waiting thread of OpenMP spins for milliseconds before it sleeps, unless a variable says otherwise. If other programs need the
core, it takes time from the very thread that it waits for, and an update on two threads takes several times as long as on one.
OpenMP reads its variables once, when torch is loaded. So `import maskrl` imports this module first.
"""

import os
import sys

from maskrl.machine import cores_allowed, physical_cores

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # with any of them a user has decided
# The first is for GNU's OpenMP, which torch has on Linux, the second for LLVM's and Intel's. Most waits are shorter than
# waking up: 5000 turns save an idle machine most of that, and cost a busy one little. `maskrl bench load --spins 0,1000,20000`
# measures it.
PASSIVE = {"GOMP_SPINCOUNT": "5000", "KMP_BLOCKTIME": "0"}
# Their defaults: spin for some milliseconds, or for 200.
UNTOLD = {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
MOST = 8  # threads of a run that names no number: the layers of an update are too small to feed more


def _wait_passively() -> bool:
    """Set OpenMP's variables, here and in child processes, unless the user has. Returns whether it is too late for this
    process.
    """
    if any(name in os.environ for name in NAMES):
        return False
    os.environ.update(PASSIVE)
    return "torch" in sys.modules


SPINS = _wait_passively()  # torch was loaded before maskrl, and its threads spin


def usual_threads() -> int:
    """Threads of a run that names no number: a core each, of those that this process may use, but at most `MOST`.

    OMP_NUM_THREADS can ask for fewer. If threads spin, there is only one: they would delay each other.
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
            f"torch was imported before maskrl, so its {threads} threads spin while they wait: with anything else on these "
            f"cores the run is several times slower. {remedy}"
        )
    if threads > (cores := cores_allowed()):
        return (
            f"The run has {threads} threads, which its results depend on, but this process may use {cores} "
            f"{'core' if cores == 1 else 'cores'}, so it is slower than on the machine where it began."
        )
    return None
