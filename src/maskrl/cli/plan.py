"""`maskrl plan`."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskrl.cli import options
from maskrl.cli.words import command, console, listed, print_rows, refusing, shown, table, telling
from maskrl.words import count, duration, size

if TYPE_CHECKING:
    from maskrl.studies.plan import Comparison, Line, Plan, Question

ROWS = 16  # maximum rows of a table; with more, each method has one row


def plan(
    name: options.SweepName,
    grid: options.Grid = None,
    seeds: options.Seeds = None,
    methods: options.Methods = None,
    tasks: options.Tasks = None,
    profile: options.ProfileOption = "auto",
    backend: options.Backend = "local",
    workers: options.Workers = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure for seconds instead of a minute. Rough.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Forecast cost and statistical power of a sweep or a run. Measures this machine for about a minute.

    $ maskrl plan dmcontrol-100k --seeds 5
    $ maskrl plan dmcontrol/cheetah-run objective.mask.ratio=0.1,0.5 --quick
    """
    from maskrl.studies import registered
    from maskrl.studies.jobs import expand
    from maskrl.studies.plan import make_plan

    words, only = grid or [], {"methods": listed(methods), "tasks": listed(tasks)}
    # RuntimeError: no OpenGL backend draws.
    with refusing(ValueError, ModuleNotFoundError, RuntimeError), telling(stderr=True) as tell:
        jobs, begun = expand(name, seeds=seeds, **only, grid=words, profile=profile), time.monotonic()

        def timed(text: str) -> None:
            tell(f"[{time.monotonic() - begun:.0f} s] {text}")

        made = make_plan(jobs, seconds=6 if quick else 60, workers=workers, tell=timed)
    start = command(
        "sweep",
        name,
        *words,
        seeds=seeds,
        methods=methods,
        tasks=tasks,
        workers=workers,
        profile=None if name.partition("/")[0] == "toy" or registered.page_of(name) else jobs[0].profile,
        backend=None if backend == "local" else backend,
    )
    if as_json:
        print(json.dumps(_as_dict(made, start), indent=2))
    else:
        _show(name, made, start)


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _show(name: str, made: "Plan", start: str) -> None:
    out, at_a_time = console(), f"{made.workers} at a time"
    profiles = " and ".join(sorted({line.recipe.profile for line in made.lines}))
    print(f"Plan of {name}, {profiles} profile: {count(made.runs, 'run')} on this machine, {at_a_time}\n")
    headings = ("task", "method", "runs", "updates", "TFLOP", "s/update", "ms/decision", "hours", "memory", "disk")
    out.print(table(headings, _costs(made.lines), left=2))
    out.print("All columns after runs are of one run. ms/decision: of the environment alone.\n", style="dim")
    print_rows(_totals(made), wrap=True)
    print()
    _show_comparison(made.comparison)
    print("\nHow this was computed")
    for note in made.notes:
        out.print(f"  - {note}", soft_wrap=not out.is_terminal)
    print(f"\nTo start:\n  {start}")


def _costs(lines: "Sequence[Line]") -> list[list[str]]:
    """A row per task and method; if there are too many, a row per method."""
    together: dict[str, list[Line]] = {}
    for line in lines:
        together.setdefault(line.label if len(lines) > ROWS else f"{line.task} {line.label}", []).append(line)
    return [_cost(some) for some in together.values()]


def _cost(lines: "Sequence[Line]") -> list[str]:
    """The cost of one run, as a range over these."""
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
    longest, at_once = duration(max(line.seconds for line in made.lines)), count(made.workers, "run")
    return {
        "work": f"{_number(made.flops / 1e15)} PFLOP, {duration(made.seconds)} if done one after another",
        "time": f"{duration(made.elapsed)} with {at_once} at a time; the longest takes {longest}",
        "memory": f"{size(made.memory)} for the largest {at_once} together",
        "disk": f"{size(made.disk)} for all {count(made.runs, 'run')}",
    }


def _show_comparison(comparison: "Comparison") -> None:
    from maskrl.analysis.statistics import ENOUGH

    out, questions = console(), [*comparison.tasks, *([comparison.overall] if comparison.overall else [])]
    if questions:
        print("Does MLR score above its Baseline? Assumes the differences of earlier runs:")
        headings = (
            "task",
            "difference",
            "in std",
            "seeds",
            "power",
            "seeds for 80 %",
            "hours for these",
            "earlier runs",
        )
        rows = [_asked(question, comparison.planned) for question in questions]
        out.print(table(headings, rows, left=1, folds=["earlier runs"]))
        few = any(question.seeds < ENOUGH for question in questions)
        not_above = any(question.difference <= 0 for question in questions)
        legend = [
            "power: probability that the planned seeds show it, in a paired two-sided test at 5 %."
            + (f" –: there is no test below {ENOUGH} runs of each method." if few else ""),
            "hours for these: runs of both methods, one after another."
            + (" –: MLR is not above its Baseline." if not_above else ""),
        ]
        if any(question.early for question in questions):
            legend.append("at … of …: the latest known scores are from before the end of the planned runs.")
        out.print("\n".join(legend), style="dim")
        if comparison.gaps:
            print("Left out:")
    else:
        print("The power to tell MLR from its Baseline is unknown:")
    for gap in comparison.gaps:
        out.print(f"  - {shown(gap)}", markup=False, soft_wrap=not out.is_terminal)


def _asked(question: "Question", planned: int) -> list[str]:
    """A row of the table: of a task, or of the mean over some of the planned tasks."""
    tasks, size = question.tasks, abs(question.difference)
    return [
        tasks[0] if len(tasks) == 1 else _mean(question, planned),
        f"{question.difference:+.{0 if size >= 10 else 3 if size < 1 else 1}f}",
        "–" if question.effect is None else f"{question.effect:+.2f}",
        str(question.seeds),
        "–" if question.power is None else f"{question.power:.0%}",
        "–" if question.needed is None else f"{question.needed:,}",
        "–" if question.seconds is None else _number(question.seconds / 3600),
        question.source if len(tasks) == 1 else "those above",
    ]


def _mean(question: "Question", planned: int) -> str:
    """Names a mean with the number of its tasks: "mean of 3 of 6 tasks", "mean of 26 games, human-normalised"."""
    some, games = len(question.tasks), question.unit == "human-normalised"
    share = f"{some}" if some == planned else f"{some} of {planned}"
    return f"mean of {share} {'games, human-normalised' if games else 'tasks'}"


def _range(values: Sequence[float]) -> str:
    low, high = _number(min(values)), _number(max(values))
    return low if low == high else f"{low}–{high}"


def _number(value: float) -> str:
    """A number in words: whole above 100, otherwise three digits."""
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
        "statistics": asdict(made.comparison),
        "notes": list(made.notes),
        "command": start,
    }
