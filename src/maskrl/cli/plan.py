"""`maskrl plan`."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from maskrl.cli import options
from maskrl.cli.words import Refusal, command, console, count, listed, print_rows, refusing, table, telling

if TYPE_CHECKING:
    from maskrl.studies.plan import Comparison, Gpu, Line, Plan, Question

ROWS = 16  # of a table, before the tasks of a method are put together
TFLOPS_HELP = "Plan for another machine, whose GPU is sold with X TFLOP/s: an RTX 3090 with 35.6."


def plan(
    name: options.SweepName,
    grid: options.Grid = None,
    seeds: options.Seeds = None,
    methods: options.Methods = None,
    tasks: options.Tasks = None,
    profile: options.ProfileOption = "auto",
    backend: options.Backend = "local",
    workers: options.Workers = None,
    gpu_tflops: Annotated[float | None, typer.Option(metavar="X", help=TFLOPS_HELP)] = None,
    gpus: Annotated[int, typer.Option(metavar="N", min=1, help="How many of these GPUs, with a run on each.")] = 1,
    utilisation: Annotated[
        float | None, typer.Option(metavar="U", help="The share of X that updates reach (default: 0.35).")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure for seconds instead of a minute. Rough.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Say what a sweep or a run will cost, and what its scores will be able to tell. Measures this machine for about a minute."""
    from maskrl.studies.jobs import expand
    from maskrl.studies.plan import make_plan

    gpu, words = _gpu(gpu_tflops, gpus, utilisation), grid or []
    only = {"methods": listed(methods), "tasks": listed(tasks)}
    if gpu is not None and profile == "auto":
        profile = "paper"  # what it will mean on a machine with a GPU
    # RuntimeError: no OpenGL backend draws.
    with refusing(ValueError, ModuleNotFoundError, RuntimeError), telling(stderr=True) as tell:
        jobs, begun = expand(name, seeds=seeds, **only, grid=words, profile=profile), time.monotonic()

        def timed(text: str) -> None:
            tell(f"[{time.monotonic() - begun:.0f} s] {text}")

        made = make_plan(jobs, seconds=6 if quick else 60, workers=workers, gpu=gpu, tell=timed)
    where = {
        "workers": workers,
        "profile": None if name.partition("/")[0] == "toy" else jobs[0].profile,
        "backend": None if backend == "local" else backend,
    }
    start = command("sweep", name, *words, seeds=seeds, methods=methods, tasks=tasks, **where)
    if as_json:
        print(json.dumps(_as_dict(made, start), indent=2))
    else:
        _show(made, gpu, start, Settling(name, words, where, {line.task for line in made.lines}))


def _gpu(tflops: float | None, number: int, utilisation: float | None) -> "Gpu | None":
    from maskrl.studies.plan import UTILISATION, Gpu

    if tflops is None:
        if number > 1 or utilisation is not None:
            raise Refusal(
                "--gpus and --utilisation describe another machine: add --gpu-tflops, such as 35.6 for an RTX 3090."
            )
        return None
    if not (math.isfinite(tflops) and tflops > 0):
        raise Refusal(f"--gpu-tflops {tflops:g}: expected a positive number, such as 35.6 for an RTX 3090.")
    share = UTILISATION if utilisation is None else utilisation
    if not 0 < share <= 1:
        raise Refusal(f"--utilisation {share:g}: expected a share of the TFLOP/s, above 0 and at most 1.")
    return Gpu(tflops, number, share)


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Settling(NamedTuple):
    """What every command that settles the question shares with the one that was planned."""

    name: str
    grid: Sequence[str]
    where: dict[str, Any]  # options: workers, profile and backend
    every: set[str]  # tasks of the plan

    def command(self, tasks: Sequence[str], *words: str, **options: object) -> str:
        kept = [word for word in self.grid if word.partition("=")[0].strip() != "seed"]  # as many as are needed instead
        options |= {"tasks": None if set(tasks) == self.every else ",".join(tasks), "methods": "mlr,baseline"}
        return command("sweep", self.name, *kept, *words, **options, **self.where)


def _show(made: "Plan", gpu: "Gpu | None", start: str, settling: Settling) -> None:
    out, at_a_time = console(), f"{made.workers} at a time"
    profiles = " and ".join(sorted({line.recipe.profile for line in made.lines}))
    machine = "this machine" if gpu is None else f"{count(gpu.count, 'GPU')} of {gpu.tflops:g} TFLOP/s"
    print(f"Plan of {settling.name}, {profiles} profile: {count(made.runs, 'run')} on {machine}, {at_a_time}\n")
    headings, rows = _costs(made.lines)
    out.print(table(headings, rows, left=2))
    out.print("updates to disk: of one run. ms/decision: of the environment.", style="dim")
    if "paper's hours" in headings:
        out.print("paper's hours: on one RTX 3090; on DMControl it does not say for how many frames.", style="dim")
    print()
    print_rows(_totals(made), wrap=True)
    print()
    if made.comparison is None:
        print("The statistics need MLR and its Baseline on tasks of which the paper has scores; this plan has none.")
    else:
        _show_comparison(made.comparison, settling, made)
    print("\nHow this was worked out")
    for note in made.notes:
        out.print(f"  - {note}", soft_wrap=not out.is_terminal)
    print(f"\nTo start:\n  {start}")


def _costs(lines: "Sequence[Line]") -> tuple[list[str], list[list[str]]]:
    """A row for every task and method; if these are many, one for every method."""
    together: dict[str, list[Line]] = {}
    for line in lines:
        together.setdefault(line.label if len(lines) > ROWS else f"{line.task} {line.label}", []).append(line)
    headings = ["task", "method", "runs", "updates", "TFLOP", "s/update", "ms/decision", "hours", "memory", "disk"]
    rows = [_cost(some) for some in together.values()]
    if all(line.papers_hours is None for line in lines):
        return headings, rows
    hours = [some[0].papers_hours for some in together.values()]
    papers = ["–" if amount is None else f"{amount:g}" for amount in hours]
    return [*headings, "paper's hours"], [[*row, amount] for row, amount in zip(rows, papers, strict=True)]


def _cost(lines: "Sequence[Line]") -> list[str]:
    """What a run of these takes, from the least to the most."""
    from maskrl.cost.forecast import size

    tasks = list(dict.fromkeys(line.task for line in lines))
    return [
        tasks[0] if len(tasks) == 1 else count(len(tasks), "task"),
        lines[0].label,
        f"{sum(line.seeds for line in lines):,}",
        _range([line.cost.updates for line in lines]),
        _range([line.flops / 1e12 for line in lines]),
        _range([line.speed.update for line in lines]),
        _range([1e3 * line.speed.step for line in lines]),
        _range([line.seconds / 3600 for line in lines]),
        size(max(line.cost.memory for line in lines)),
        size(max(line.cost.takes.disk for line in lines)),
    ]


def _totals(made: "Plan") -> dict[str, str]:
    from maskrl.cost.forecast import size
    from maskrl.runs.terminal import duration

    longest, at_once = duration(max(line.seconds for line in made.lines)), count(made.workers, "run")
    return {
        "work": f"{_number(made.flops / 1e15)} PFLOP, {duration(made.seconds)} if done one after another",
        "time": f"{duration(made.elapsed)} with {at_once} at a time; the longest takes {longest}",
        "memory": f"{size(made.memory)} for the largest {at_once} together",
        "disk": f"{size(made.disk)} for all {count(made.runs, 'run')}",
    }


def _show_comparison(comparison: "Comparison", settling: Settling, made: "Plan") -> None:
    from maskrl.runs.terminal import duration

    out, best = console(), comparison.cheapest
    print(f"Does MLR score above its Baseline? If the paper is right ({comparison.at}):")
    headings = ["task", "paper's difference", "in std", "seeds", "power", "seeds for 80 %", "hours for these"]
    questions = [*comparison.tasks, *([comparison.overall] if comparison.overall else [])]
    out.print(table(headings, map(_asked, questions), left=1))
    out.print(
        "power: how often the planned seeds of each method would show it, in a two-sided test at 5 %.", style="dim"
    )
    out.print("–: the paper's MLR is not above. hours for these: runs of both methods, one after another.", style="dim")
    print("\nThe cheapest runs that settle it, with a power of 80 %")
    if best is not None and best.needed is not None:
        work = f"{count(2 * best.needed, 'run')}, {duration(best.seconds)} of work"
        print(f"  on one task: {best.tasks[0]}, {best.needed} seeds of each method ({work})")
        print(f"    {settling.command(best.tasks, seeds=best.needed, out=f'sweeps/{settling.name}-one-task')}")
    if comparison.allocation is not None:
        _show_allocation(comparison.allocation, settling, made)
    if best is None and comparison.allocation is None:
        print("  There are none: the paper's MLR is not above its Baseline here.")


def _asked(question: "Question") -> list[str]:
    """A row. The difference is in points of a score; in the mean over games of Atari, in those of a human player."""
    tasks, size = question.tasks, abs(question.difference)
    return [
        tasks[0] if len(tasks) == 1 else f"mean of {len(tasks)} tasks",
        f"{question.difference:+.{0 if size >= 10 else 3 if size < 1 else 1}f}",
        f"{question.effect:+.2f}",
        str(question.seeds),
        f"{question.power:.0%}",
        *(["–", "–"] if question.needed is None else [f"{question.needed:,}", _number(question.seconds / 3600)]),
    ]


def _show_allocation(seeds: Mapping[str, int], settling: Settling, made: "Plan") -> None:
    """The mean over tasks: as many seeds as all have, and then a command for each number of more."""
    from maskrl.runs.terminal import duration
    from maskrl.studies.jobs import PAIR

    both, least = [line for line in made.lines if line.task in seeds and line.label in PAIR], min(seeds.values())
    work = duration(math.fsum(seeds[line.task] * line.seconds for line in both))
    print(f"  in the mean of {len(seeds)} tasks: {count(2 * sum(seeds.values()), 'run')}, {work} of work")
    print(f"    {settling.command(list(seeds), seeds=least)}")
    for number in sorted(set(seeds.values()) - {least}):
        more = f"seed={','.join(str(seed) for seed in range(least + 1, number + 1))}"
        tasks = [task for task, some in seeds.items() if some == number]
        print(f"    {settling.command(tasks, more, out=f'sweeps/{settling.name}-{number}-seeds')}")


def _range(values: Sequence[float]) -> str:
    low, high = _number(min(values)), _number(max(values))
    return low if low == high else f"{low}–{high}"


def _number(value: float) -> str:
    """Whole above 100, else three digits."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _as_dict(made: "Plan", start: str) -> dict[str, Any]:
    from dataclasses import asdict

    def line_as_dict(line: "Line") -> dict[str, Any]:
        cost = line.cost
        return {
            "task": line.task,
            "method": line.label,
            "profile": line.recipe.profile,
            "seeds": line.seeds,
            "updates": cost.updates,
            "decisions": cost.decisions,
            "flops_per_update": cost.update.flops,
            "flops_by_phase": dict(cost.update.phases),
            "flops": line.flops,
            "hours": line.seconds / 3600,
            "papers_hours": line.papers_hours,
            "seconds": asdict(line.speed),
            "memory_bytes": cost.memory,
            "disk_bytes": cost.takes.disk,
        }

    return {
        "runs": made.runs,
        "workers": made.workers,
        "flops": made.flops,
        "work_hours": made.seconds / 3600,
        "elapsed_hours": made.elapsed / 3600,
        "memory_bytes": made.memory,
        "disk_bytes": made.disk,
        "lines": [line_as_dict(line) for line in made.lines],
        "statistics": None if made.comparison is None else _finite(asdict(made.comparison)),
        "notes": list(made.notes),
        "command": start,
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity: what there is no end to is null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
