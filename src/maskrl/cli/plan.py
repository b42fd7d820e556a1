"""`maskrl plan`."""

import json
import math
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from maskrl.cli.words import (
    GRID_HELP,
    MethodsOption,
    Profile,
    ProfileOption,
    Refusal,
    SeedsOption,
    TasksOption,
    count,
    listed,
    print_rows,
    refusing,
)

if TYPE_CHECKING:
    from rich.table import Table

    from maskrl.studies.plan import Comparison, Gpu, Line, Plan, Question, Tell

ROWS = 16  # of a table, before the tasks of a method are put together

Backend = Literal["local", "ray", "print"]


def plan(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A sweep, such as dmcontrol-100k, atari-100k or ablations/masking, or a recipe, such as dmcontrol/cheetah-run.",
        ),
    ],
    grid: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE,...]...", help=GRID_HELP)] = None,
    seeds: SeedsOption = None,
    methods: MethodsOption = None,
    tasks: TasksOption = None,
    profile: ProfileOption = "auto",
    backend: Annotated[
        Backend,
        typer.Option(help="As for `maskrl sweep`. ray: say with --workers how many runs the cluster has room for."),
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Runs at a time (default: what cores and memory have room for)."),
    ] = None,
    gpu_tflops: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Plan for another machine, whose GPU is sold with X TFLOP/s: an RTX 3090 with 35.6."
        ),
    ] = None,
    gpus: Annotated[int, typer.Option(metavar="N", min=1, help="How many of these GPUs, with a run on each.")] = 1,
    utilisation: Annotated[
        float | None, typer.Option(metavar="U", help="The share of X that updates reach (default: 0.35).")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure for seconds instead of a minute. Rough.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a sweep or a run will cost, and what its scores will be able to tell. Measures this machine for about a minute."""
    from maskrl.studies.jobs import expand
    from maskrl.studies.plan import Gpu, make_plan

    gpu = _gpu(gpu_tflops, gpus, utilisation, Gpu)
    with refusing(ValueError, ModuleNotFoundError):
        jobs = expand(
            name,
            seeds=seeds,
            methods=listed(methods),
            tasks=listed(tasks),
            grid=grid or (),
            profile=_for(gpu, profile),
        )
    # RuntimeError: no OpenGL backend draws.
    with refusing(ValueError, ModuleNotFoundError, RuntimeError), _telling() as tell:
        made = make_plan(jobs, seconds=6 if quick else 60, workers=workers, gpu=gpu, tell=tell)
    where = ["--workers", str(workers)] if workers is not None else []
    where += ["--profile", jobs[0].profile] if jobs[0].name.partition("/")[0] != "toy" else []
    where += ["--backend", backend] if backend != "local" else []
    words = [*(grid or ())]
    for option, value in (("--seeds", seeds), ("--methods", methods), ("--tasks", tasks)):
        words += [option, str(value)] if value is not None else []
    command = shlex.join(["maskrl", "sweep", name, *words, *where])
    if as_json:
        print(json.dumps(_as_dict(made, command), indent=2))
    else:
        _show(name, made, gpu, command, Settling(name, grid or (), where))


def _gpu(tflops: float | None, count: int, utilisation: float | None, kind: "type[Gpu]") -> "Gpu | None":
    if tflops is None:
        if count > 1 or utilisation is not None:
            raise Refusal(
                "--gpus and --utilisation describe another machine: add --gpu-tflops, such as 35.6 for an RTX 3090."
            )
        return None
    if not (math.isfinite(tflops) and tflops > 0):
        raise Refusal(f"--gpu-tflops {tflops:g}: expected a positive number, such as 35.6 for an RTX 3090.")
    if utilisation is None:
        return kind(tflops, count)
    if not 0 < utilisation <= 1:
        raise Refusal(f"--utilisation {utilisation:g}: expected a share of the TFLOP/s, above 0 and at most 1.")
    return kind(tflops, count, utilisation)


def _for(gpu: "Gpu | None", profile: Profile) -> Profile:
    """What `auto` will mean on a machine with a GPU."""
    return "paper" if gpu is not None and profile == "auto" else profile


@contextmanager
def _telling() -> "Iterator[Tell]":
    """What is being measured, on the standard error: in place on a terminal, else a line each."""
    from rich.console import Console

    console, begun = Console(stderr=True, highlight=False), time.monotonic()
    if not console.is_terminal:
        yield lambda text: print(f"[{time.monotonic() - begun:.0f} s] {text}", file=sys.stderr, flush=True)
        return
    with console.status("measuring this machine") as status:
        yield lambda text: status.update(f"{text}; {time.monotonic() - begun:.0f} s so far")


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Settling(NamedTuple):
    """What every command that settles the question shares with the one that was planned."""

    name: str
    grid: Sequence[str]
    where: Sequence[str]  # options: profile, backend and workers

    def command(self, made: "Plan", tasks: Sequence[str], words: Sequence[str]) -> str:
        kept = [word for word in self.grid if word.partition("=")[0].strip() != "seed"]  # as many as are needed instead
        some = [] if set(tasks) == {line.task for line in made.lines} else ["--tasks", ",".join(tasks)]
        return shlex.join(
            ["maskrl", "sweep", self.name, *kept, *words, *some, "--methods", "mlr,baseline", *self.where]
        )


def _show(name: str, made: "Plan", gpu: "Gpu | None", command: str, settling: Settling) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)  # a file has no edge: nothing is cut
    profiles = " and ".join(sorted({line.recipe.profile for line in made.lines}))
    machine = "this machine" if gpu is None else f"{count(gpu.count, 'GPU')} of {gpu.tflops:g} TFLOP/s"
    print(f"Plan of {name}, {profiles} profile: {count(made.runs, 'run')} on {machine}, {made.workers} at a time\n")
    console.print(_costs(made.lines))
    _dim(console, "updates to disk: of one run. ms/decision: of the environment.")
    if any(line.papers_hours is not None for line in made.lines):
        _dim(console, "paper's hours: on one RTX 3090; on DMControl it does not say for how many frames.")
    print()
    print_rows(_totals(made), wrap=True)
    print()
    if made.comparison is None:
        print("The statistics need MLR and its Baseline on tasks of which the paper has scores; this plan has none.")
    else:
        _show_comparison(console, made.comparison, settling, made)
    print("\nHow this was worked out")
    for note in made.notes:
        console.print(f"  - {note}", soft_wrap=not console.is_terminal)
    print(f"\nTo start:\n  {command}")


def _costs(lines: "Sequence[Line]") -> "Table":
    """A row for every task and method; if these are many, one for every method."""
    from maskrl.cost.forecast import size

    papers = any(line.papers_hours is not None for line in lines)
    headings = ["task", "method", "runs", "updates", "TFLOP", "s/update", "ms/decision", "hours", "memory", "disk"]
    table = _table([*headings, *(["paper's hours"] if papers else [])], left=2)
    together: dict[str, list[Line]] = {}
    for line in lines:
        together.setdefault(line.label if len(lines) > ROWS else f"{line.task} {line.label}", []).append(line)
    for some in together.values():
        tasks = list(dict.fromkeys(line.task for line in some))
        row = [
            tasks[0] if len(tasks) == 1 else count(len(tasks), "task"),
            some[0].label,
            f"{sum(line.seeds for line in some):,}",
            _range([line.cost.updates for line in some]),
            _range([line.flops / 1e12 for line in some]),
            _range([line.speed.update for line in some]),
            _range([1e3 * line.speed.step for line in some]),
            _range([line.seconds / 3600 for line in some]),
            size(max(line.cost.memory for line in some)),
            size(max(line.cost.takes.disk for line in some)),
        ]
        hours = some[0].papers_hours
        table.add_row(*row, *(["–" if hours is None else f"{hours:g}"] if papers else []))
    return table


def _totals(made: "Plan") -> dict[str, str]:
    from maskrl.cost.forecast import size
    from maskrl.runs.terminal import duration

    every, longest = made.seconds, max(line.seconds for line in made.lines)
    return {
        "work": f"{_number(made.flops / 1e15)} PFLOP, {duration(every)} if done one after another",
        "time": f"{duration(made.elapsed)} with {count(made.workers, 'run')} at a time; the longest takes {duration(longest)}",
        "memory": f"{size(made.memory)} for the largest {count(made.workers, 'run')} together",
        "disk": f"{size(made.disk)} for all {count(made.runs, 'run')}",
    }


def _show_comparison(console: Any, comparison: "Comparison", settling: Settling, made: "Plan") -> None:
    from maskrl.runs.terminal import duration

    print(f"Does MLR score above its Baseline? If the paper is right ({comparison.at}):")
    table = _table(
        ["task", "paper's difference", "in std", "seeds", "power", "seeds for 80 %", "hours for these"], left=1
    )
    asked = [*comparison.tasks, *([comparison.overall] if comparison.overall else [])]
    for question in asked:
        tasks = question.tasks
        table.add_row(
            tasks[0] if len(tasks) == 1 else f"mean of {len(tasks)} tasks",
            _difference(question),
            f"{question.effect:+.2f}",
            str(question.seeds),
            f"{question.power:.0%}",
            "–" if question.needed is None else f"{question.needed:,}",
            "–" if question.needed is None else _number(question.seconds / 3600),
        )
    console.print(table)
    _dim(console, "power: how often the planned seeds of each method would show it, in a two-sided test at 5 %.")
    _dim(console, "–: the paper's MLR is not above. hours for these: runs of both methods, one after another.")
    print("\nThe cheapest runs that settle it, with a power of 80 %")
    best = comparison.cheapest
    if best is not None and best.needed is not None:
        runs = count(2 * best.needed, "run")
        print(
            f"  on one task: {best.tasks[0]}, {best.needed} seeds of each method ({runs}, {duration(best.seconds)} of work)"
        )
        words = ["--seeds", str(best.needed), "--out", f"sweeps/{settling.name}-one-task"]
        print(f"    {settling.command(made, best.tasks, words)}")
    if comparison.allocation is not None:
        _show_allocation(comparison, settling, made)
    if best is None and comparison.allocation is None:
        print("  There are none: the paper's MLR is not above its Baseline here.")


def _show_allocation(comparison: "Comparison", settling: Settling, made: "Plan") -> None:
    """The mean over tasks: as many seeds as all have, and then a command for each number of more."""
    from maskrl.runs.terminal import duration

    seeds = comparison.allocation or {}
    both = [line for line in made.lines if line.task in seeds and line.label in ("mlr", "baseline")]
    work, least = math.fsum(seeds[line.task] * line.seconds for line in both), min(seeds.values())
    print(f"  in the mean of {len(seeds)} tasks: {count(2 * sum(seeds.values()), 'run')}, {duration(work)} of work")
    print(f"    {settling.command(made, list(seeds), ['--seeds', str(least)])}")
    for number in sorted(set(seeds.values()) - {least}):
        more = f"seed={','.join(str(seed) for seed in range(least + 1, number + 1))}"
        tasks = [task for task, some in seeds.items() if some == number]
        print(f"    {settling.command(made, tasks, [more, '--out', f'sweeps/{settling.name}-{number}-seeds'])}")


def _dim(console: Any, words: str) -> None:
    console.print(words, style="dim")


def _difference(question: "Question") -> str:
    """Points of a score; in the mean over games of Atari, of a human player's."""
    digits = 0 if abs(question.difference) >= 10 else 3 if abs(question.difference) < 1 else 1
    return f"{question.difference:+.{digits}f}"


def _table(headings: Sequence[str], left: int) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < left else "right", no_wrap=True)
    return table


def _range(values: Sequence[float]) -> str:
    low, high = _number(min(values)), _number(max(values))
    return low if low == high else f"{low}–{high}"


def _number(value: float) -> str:
    """Whole above 100, else three digits."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _as_dict(made: "Plan", command: str) -> dict[str, Any]:
    from dataclasses import asdict

    comparison = made.comparison
    return {
        "runs": made.runs,
        "workers": made.workers,
        "flops": made.flops,
        "work_hours": made.seconds / 3600,
        "elapsed_hours": made.elapsed / 3600,
        "memory_bytes": made.memory,
        "disk_bytes": made.disk,
        "lines": [
            {
                "task": line.task,
                "method": line.label,
                "profile": line.recipe.profile,
                "seeds": line.seeds,
                "updates": line.cost.updates,
                "decisions": line.cost.decisions,
                "flops_per_update": line.cost.update.flops,
                "flops_by_phase": dict(line.cost.update.phases),
                "flops": line.flops,
                "hours": line.seconds / 3600,
                "papers_hours": line.papers_hours,
                "seconds": asdict(line.speed),
                "memory_bytes": line.cost.memory,
                "disk_bytes": line.cost.takes.disk,
            }
            for line in made.lines
        ],
        "statistics": None if comparison is None else _finite(asdict(comparison)),
        "notes": list(made.notes),
        "command": command,
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity: what there is no end to is null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
