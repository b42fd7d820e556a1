"""Numbers over all tasks: aggregates with their intervals, who improves on whom, and performance profiles."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from maskrl.analysis import statistics
from maskrl.analysis.scores import Scores
from maskrl.analysis.statistics import Array, Estimate
from maskrl.report.document import Block, Chart, Section
from maskrl.report.groups import Group, in_order
from maskrl.report.tables import Column, Field, Table, counted, estimate_cell, number, tabulated, words

AGGREGATE_NAMES = {"mean": "mean", "median": "median", "iqm": "interquartile mean", "optimality_gap": "optimality gap"}
SCALES = {
    "dmcontrol": "Scores are divided by 1000, the most that an episode can earn.",
    "atari": "Scores are human-normalised: 0 is the random player of the paper's table, 1 the human one.",
    "toy": "Scores are normalised: 0 is what random actions earn, 1 is perfect play; both are known by calculation.",
}
INTERVAL = ("", "low", "high")


def compared_tasks(final: Scores) -> tuple[list[str], list[str]]:
    """On which tasks methods are aggregated, and which methods: what all those share that have most of the tasks."""
    has = {method: {run.task for run in final.runs if run.method == method} for method in final.methods}
    main = [tasks for tasks in has.values() if 2 * len(tasks) >= len(final.tasks)]
    common = set.intersection(*main) if main else set[str]()
    return sorted(common), in_order(method for method, tasks in has.items() if common and common <= tasks)


def over_tasks(group: Group) -> list[Section]:
    """The aggregates and the profiles of a group; nothing without scores that can be normalised."""
    final = group.final.normalised()
    tasks, methods = compared_tasks(final)
    matrices = {method: final.matrix(method, tasks, mixed=group.mixed) for method in methods}
    return [_aggregates(group, final, tasks, matrices), _profiles(group, tasks, matrices)] if matrices else []


def _aggregates(group: Group, final: Scores, tasks: Sequence[str], matrices: Mapping[str, Array]) -> Section:
    """Mean, median, interquartile mean and optimality gap of normalised scores, and who improves on whom."""
    resamples = enough_resamples(matrices)
    found = {method: statistics.estimate_all(matrix, resamples=resamples) for method, matrix in matrices.items()}
    told = [
        f"Over {counted(len(tasks), 'task')}. {SCALES.get(group.suite, '')}".strip(),
        f"Intervals hold 95 % and come from {resamples:,} stratified resamples: the runs of every task are drawn again among "
        "themselves. One run alone has no interval.",
    ]
    left_out = [method for method in final.methods if method not in matrices]
    if left_out:
        told.append(f"Left out, because they lack some of these tasks: {', '.join(left_out)}.")
    uneven = [method for method in matrices if len({len(final.values(method, task)) for task in tasks}) > 1]
    if uneven:
        told.append(
            f"{', '.join(uneven)}: as many runs of each task as the task with the fewest has, those with the smallest seeds."
        )
    key = f"{group.key}-aggregates"
    runs: Field[str] = (Column("runs per task", ("",)), lambda method: number(len(matrices[method]), 0))
    blocks: tuple[Block, ...] = (
        estimates_chart(f"{key}-chart", found),
        estimates_table(key, f"Aggregates, {group.name}", found, runs),
        *_improvement(group, matrices, resamples),
    )
    return Section(key, "Headline numbers", tuple(told), blocks, over=group.name)


def enough_resamples(matrices: Mapping[str, Array]) -> int:
    """As many as a page is worth waiting for: all of them up to 4000 scores, and never fewer than 2000."""
    scores = sum(matrix.size for matrix in matrices.values())
    return int(max(2000, min(statistics.RESAMPLES, 2e8 // max(1, scores))))


def estimates_table(
    key: str, title: str, found: Mapping[str, Mapping[str, Estimate]], *more: Field[str], notes: Sequence[str] = ()
) -> Table:
    """A row for every method, a column for every aggregate. `more`: fields before these."""
    fields: list[Field[str]] = [(Column("method"), lambda method: words(method, strong=True)), *more]
    for name, heading in AGGREGATE_NAMES.items():
        fields.append((Column(heading, INTERVAL), lambda method, name=name: estimate_cell(found[method].get(name))))  # type: ignore[misc]
    return tabulated(key, title, fields, found, (*notes, "A smaller optimality gap is better."))


def estimates_chart(key: str, found: Mapping[str, Mapping[str, Estimate]]) -> Chart:
    panels = [
        {
            "title": title,
            "hint": "less is better" if name == "optimality_gap" else "more is better",
            "rows": [estimate_row(method, numbers[name]) for method, numbers in found.items() if name in numbers],
        }
        for name, title in AGGREGATE_NAMES.items()
    ]
    return Chart(key, "intervals", "Aggregates of normalised scores, with 95 % intervals", {"panels": panels})


def estimate_row(name: str, estimate: Estimate) -> dict[str, Any]:
    value, low, high = (None if math.isnan(float(part)) else round(float(part), 5) for part in estimate)
    return {"name": name, "value": value, "low": low, "high": high}


def _improvement(group: Group, matrices: Mapping[str, Array], resamples: int) -> list[Table]:
    """The probability that a run of one method beats a run of another."""
    reference = group.reference
    if reference is not None and reference in matrices:
        pairs = [(method, reference) for method in matrices if method != reference]
    else:
        first, *others = matrices
        pairs = [(first, method) for method in others]
    found = {(x, y): statistics.estimate_improvement(matrices[x], matrices[y], resamples=resamples) for x, y in pairs}
    fields: list[Field[tuple[str, str]]] = [
        (Column("method"), lambda pair: words(pair[0], strong=True)),
        (Column("over"), lambda pair: words(pair[1])),
        (Column("probability of improvement", INTERVAL), lambda pair: estimate_cell(found[pair])),
    ]
    note = (
        "That a run of the first scores more than a run of the second, on a task drawn at random; a draw counts half."
    )
    title = f"Probability of improvement, {group.name}"
    return [tabulated(f"{group.key}-improvement", title, fields, found, [note])] if found else []


def _profiles(group: Group, tasks: Sequence[str], matrices: Mapping[str, Array]) -> Section:
    """Of normalised scores: the share of runs above every threshold."""
    thresholds = profile_thresholds(matrices.values())
    resamples = min(5000, enough_resamples(matrices))
    lines = {m: statistics.estimate_profile(matrix, thresholds, resamples=resamples) for m, matrix in matrices.items()}
    chart = profile_chart(f"{group.key}-profile-chart", thresholds, lines)
    told = (
        f"How many of the runs, over {counted(len(tasks), 'task')}, score more than so much. A line above another at every "
        "point is better everywhere. Bands hold 95 %, at each point by itself.",
    )
    return Section(f"{group.key}-profiles", "Performance profiles", told, (chart,), over=group.name)


def profile_thresholds(matrices: Iterable[Array]) -> Array:
    """From the worst score or 0 to the best or 1, at most 4 human ones: beyond there is little to see."""
    together = list(matrices)
    low = min(0.0, *(float(matrix.min()) for matrix in together))
    high = min(4.0, max(1.0, *(float(matrix.max()) for matrix in together)))
    return np.linspace(low, high, 101)


def profile_chart(
    key: str, thresholds: Array, lines: Mapping[str, Estimate], *, title: str = "Performance profile"
) -> Chart:
    def rounded(values: Array) -> list[float | None]:
        return [None if math.isnan(value) else round(float(value), 4) for value in values]

    methods = [
        {"name": name, **{k: rounded(part) for k, part in line._asdict().items()}} for name, line in lines.items()
    ]
    data = {"x": "normalised score", "y": "share of runs above", "thresholds": rounded(thresholds), "methods": methods}
    return Chart(key, "profile", title, data)
