"""Numbers over all tasks: aggregates with their intervals, probabilities of improvement, and performance profiles."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from maskrl.analysis import statistics
from maskrl.analysis.scores import Scores
from maskrl.analysis.statistics import Array, Estimate
from maskrl.report.document import Block, Chart, Section
from maskrl.report.groups import Group, in_order
from maskrl.report.tables import Cell, Column, Field, Table, estimate_cell, number, tabulated
from maskrl.words import count

AGGREGATE_NAMES = {"mean": "mean", "median": "median", "iqm": "interquartile mean", "optimality_gap": "optimality gap"}
SCALES = {
    "dmcontrol": "Scores are divided by 1000, the maximum of an episode.",
    "atari": "Scores are human-normalised: 0 is the random player of the paper's table, 1 the human one.",
    "toy": "Scores are normalised: 0 is the score of random actions, 1 that of perfect play; both are calculated.",
}
INTERVAL = ("", "low", "high")


def over_tasks(group: Group) -> list[Section]:
    """The aggregates and the profiles of a group; empty without scores that can be normalised."""
    final = group.final.normalised()
    has = {method: {run.task for run in final.runs if run.method == method} for method in final.methods}
    main = [tasks for tasks in has.values() if 2 * len(tasks) >= len(final.tasks)]
    # The tasks that most methods share; methods that lack some of them are left out.
    common = sorted(set.intersection(*main)) if main else []
    methods = in_order(method for method, tasks in has.items() if common and tasks.issuperset(common))
    matrices = {method: final.matrix(method, common, mixed=group.mixed) for method in methods}
    return [_aggregates(group, final, common, matrices), _profiles(group, common, matrices)] if matrices else []


def _aggregates(group: Group, final: Scores, tasks: Sequence[str], matrices: Mapping[str, Array]) -> Section:
    """Mean, median, interquartile mean and optimality gap of normalised scores, and probabilities of improvement."""
    resamples = _enough_resamples(matrices)
    found = {method: statistics.estimate_all(matrix, resamples=resamples) for method, matrix in matrices.items()}
    intervals = (
        f"95 % bootstrap intervals from {resamples:,} stratified resamples: each task’s runs are resampled separately. With "
        "few runs they are too narrow: with 4 runs on one task they hold the true mean in about 80 % of cases. "
    )
    told = [
        f"Over {count(len(tasks), 'task')}. {SCALES.get(group.suite, '')}".strip(),
        f"{intervals if _has_interval(found) else ''}Below {statistics.ENOUGH} runs per task there is no interval and no "
        "probability of improvement. If all resamples agree, there is no interval either: agreement of a few runs does not prove "
        "certainty.",
    ]
    left_out = [method for method in final.methods if method not in matrices]
    if left_out:
        told.append(f"Left out, because they lack some of these tasks: {', '.join(left_out)}.")
    uneven = [method for method in matrices if len({len(final.values(method, task)) for task in tasks}) > 1]
    if uneven:
        told.append(
            f"{', '.join(uneven)}: every task has as many runs as the task with the fewest, those with the smallest seeds."
        )
    key = f"{group.key}-aggregates"
    fields: list[Field[str]] = [
        (Column("method"), lambda method: Cell(method, strong=True)),
        (Column("runs per task", ("",)), lambda method: number(len(matrices[method]), 0)),
    ]
    for name, heading in AGGREGATE_NAMES.items():
        fields.append((Column(heading, INTERVAL), lambda method, name=name: estimate_cell(found[method][name])))  # type: ignore[misc]
    table = tabulated(key, f"Aggregates, {group.name}", fields, found, ["A smaller optimality gap is better."])
    blocks: tuple[Block, ...] = (_chart(f"{key}-chart", found), table, *_improvement(group, matrices, resamples))
    return Section(key, "Headline numbers", tuple(told), blocks, over=group.name)


def _enough_resamples(matrices: Mapping[str, Array]) -> int:
    """The number of resamples: the full number up to 4000 scores, and never below 2000."""
    scores = sum(matrix.size for matrix in matrices.values())
    return int(max(2000, min(statistics.RESAMPLES, 2e8 // scores)))


def _chart(key: str, found: Mapping[str, Mapping[str, Estimate]]) -> Chart:
    panels = [
        {
            "title": title,
            "hint": "less is better" if name == "optimality_gap" else "more is better",
            "rows": [{"name": method, **_point(numbers[name])} for method, numbers in found.items()],
        }
        for name, title in AGGREGATE_NAMES.items()
    ]
    title = f"Aggregates of normalised scores{', with 95 % bootstrap intervals' if _has_interval(found) else ''}"
    return Chart(key, "intervals", title, {"panels": panels})


def _has_interval(found: Mapping[str, Mapping[str, Estimate]]) -> bool:
    """Whether any aggregate has an interval in the table and the chart."""
    return any(np.isfinite(_point(one)["low"]) for numbers in found.values() for one in numbers.values())


def _point(estimate: Estimate) -> dict[str, Any]:
    """A point of a chart, with the table's numbers."""
    return _rounded(Estimate(*map(np.asarray, estimate_cell(estimate).numbers)), 5)


def _rounded(estimate: Estimate, digits: int) -> dict[str, Any]:
    """An estimate for JSON: value, low and high, each a number or a list. NaN becomes null (`page.script_json`)."""
    return {name: np.round(part, digits).tolist() for name, part in estimate._asdict().items()}


def _improvement(group: Group, matrices: Mapping[str, Array], resamples: int) -> list[Table]:
    """The probability that a run of one method beats a run of another."""
    reference = group.reference
    if reference is not None and reference in matrices:
        pairs = [(method, reference) for method in matrices if method != reference]
    else:
        first, *others = matrices
        pairs = [(first, method) for method in others]
    found = {
        (x, y): statistics.estimate_improvement(matrices[x], matrices[y], resamples=resamples)
        for x, y in pairs
        if min(len(matrices[x]), len(matrices[y])) >= statistics.ENOUGH
    }
    fields: list[Field[tuple[str, str]]] = [
        (Column("method"), lambda pair: Cell(pair[0], strong=True)),
        (Column("over"), lambda pair: Cell(pair[1])),
        (Column("probability of improvement", INTERVAL), lambda pair: estimate_cell(found[pair])),
    ]
    note = (
        "The probability that a run of the first scores more than a run of the second, on a random task; a tie "
        "counts half. No verdict uses it: see the tests under “Task by task”."
    )
    title = f"Probability of improvement, {group.name}"
    return [tabulated(f"{group.key}-improvement", title, fields, found, [note])] if found else []


def _profiles(group: Group, tasks: Sequence[str], matrices: Mapping[str, Array]) -> Section:
    """The performance profile: the share of runs above each threshold of the normalised score."""
    # From the worst score or 0 to the best or 1, at most 4 human-normalised: above that few runs remain.
    low = min(0.0, *(float(matrix.min()) for matrix in matrices.values()))
    high = min(4.0, max(1.0, *(float(matrix.max()) for matrix in matrices.values())))
    thresholds, resamples = np.linspace(low, high, 101), min(5000, _enough_resamples(matrices))
    methods = [
        {"name": method, **_rounded(statistics.estimate_profile(matrix, thresholds, resamples=resamples), 4)}
        for method, matrix in matrices.items()
    ]
    axes = {"x": "normalised score", "y": "share of runs above", "thresholds": thresholds.round(4).tolist()}
    chart = Chart(f"{group.key}-profile-chart", "profile", "Performance profile", {**axes, "methods": methods})
    told = (
        f"The share of the runs, over {count(len(tasks), 'task')}, that score above each threshold. A line that is above another "
        "everywhere is better. Bands are 95 % bootstrap intervals at each point separately. With few runs they are too narrow; "
        f"below {statistics.ENOUGH} runs per task there is none."
    )
    return Section(f"{group.key}-profiles", "Performance profiles", (told,), (chart,), over=group.name)
