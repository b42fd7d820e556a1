"""`maskrl bench sweep`: runs per hour of a sweep on one core and on more, and the memory per run."""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from maskrl.bench.measure import Tell, fresh_processes
from maskrl.bench.result import Result, Row
from maskrl.machine import cores_allowed
from maskrl.studies.backends import local, sizes_of
from maskrl.studies.jobs import Job, expand
from maskrl.studies.sweep import drive, log_of

RUNS = 2  # per core, one after the other


def bench_sweep(name: str, overrides: Sequence[str], *, decisions: int, tell: Tell = print) -> Result:
    """Sweep short runs of this recipe, twice as many as cores: on one core, on two, on four, and so on.

    A run has the recipe's warm-up, this many decisions of learning, and one evaluation at each end. Starting, evaluating and saving
    take a larger share of its time than in a full run. Ideally, n cores complete n times the runs of one.
    """
    if sys.platform != "linux":
        raise RuntimeError(
            f"`maskrl bench sweep` assigns cores by affinity, which {sys.platform} lacks. "
            "Use `maskrl bench run --side-by-side 2` instead: it needs no affinity."
        )
    counts = [2**power for power in range(cores_allowed().bit_length()) if 2**power <= cores_allowed()]
    rows: list[Row] = []
    for cores in counts:
        tell(f"Running {RUNS * cores} runs of {name} on {cores} of {counts[-1]} cores.")
        with fresh_processes(1) as pool:
            seconds, memory = pool.submit(_swept, name, tuple(overrides), decisions, cores).result()
        hourly = 3600 * RUNS * cores / seconds
        first = rows[0]["runs_an_hour"] if rows else hourly
        row = {"cores": cores, "runs": RUNS * cores, "runs_an_hour": hourly, "of_ideal": hourly / (cores * first)}
        rows.append(row | {"bytes_of_a_run": memory})
    return Result({"recipe": name, "decisions": decisions, "sweeps": rows})


def _swept(name: str, overrides: tuple[str, ...], decisions: int, cores: int) -> tuple[float, int]:
    """The seconds of a sweep on this many cores, and the peak memory of its largest run in bytes."""
    import resource  # only on Unix

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    jobs = expand(
        name, seeds=RUNS * cores, methods=["mlr"], grid=_shortened(name, overrides, decisions), profile="lite"
    )
    with tempfile.TemporaryDirectory(prefix="maskrl-bench-") as directory:
        out, began = Path(directory), time.perf_counter()
        with local(out, jobs, sizes_of(jobs), workers=cores) as backend:
            failed = drive(jobs, out, backend, retries=0, stop=(), tell=lambda text: None, watch=lambda: None)
        seconds = time.perf_counter() - began
        if failed:
            raise RuntimeError(_complaint(out, jobs, failed))
    return seconds, 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def _shortened(name: str, overrides: tuple[str, ...], decisions: int) -> list[str]:
    """Overrides for a run with the recipe's warm-up and this many decisions of learning."""
    recipe = expand(name, seeds=1, methods=["mlr"], grid=overrides, profile="lite")[0].recipe
    frames = (recipe.agent.warmup_decisions + decisions) * recipe.env.action_repeat
    unit = ["budget.decisions=none"] if recipe.budget.decisions else []
    return [*overrides, *unit, f"budget.frames={frames}", f"evaluation.every={frames}", f"checkpoint_every={frames}"]


def _complaint(out: Path, jobs: Sequence[Job], failed: dict[str, str]) -> str:
    directory, why = next(iter(failed.items()))
    tail = "\n".join(log_of(out, directory).read_text(errors="replace").splitlines()[-5:])
    return f"{len(failed)} of {len(jobs)} runs failed; the first: {why}\n{tail}"
