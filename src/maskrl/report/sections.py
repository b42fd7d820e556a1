"""The sections of a report on what runs have scored."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from maskrl.analysis import statistics
from maskrl.analysis.protocol import protocol_hash
from maskrl.analysis.scores import Scores
from maskrl.analysis.statistics import CONFIDENCE, Array, Estimate, Summary, holm
from maskrl.analysis.verdict import Verdict, Verdicts, against_paper, versus
from maskrl.recipes.published import PublishedScore, published
from maskrl.recipes.schema import difference
from maskrl.report.document import Chart, Line, Lines, Section
from maskrl.report.gather import Group, RunFacts, in_order, short
from maskrl.report.tables import Cell, Column, Mark, Table, key_of, number, shown, spread, words

AGGREGATE_NAMES = {"mean": "mean", "median": "median", "iqm": "interquartile mean", "optimality_gap": "optimality gap"}
SCALES = {
    "dmcontrol": "Scores are divided by 1000, the most that an episode can earn.",
    "atari": "Scores are human-normalised: 0 is the random player of the paper's table, 1 the human one.",
    "toy": "Scores are normalised: 0 is what random actions earn, 1 is perfect play; both are known by calculation.",
}
MOST_POINTS = 60_000  # of learning curves on a page
MOST_LINES = 12  # of sentences that are not folded


# ── What was run ──────────────────────────────────────────────────────────────────────────────────────────────────────


def what_was_run(groups: Sequence[Group], facts: Sequence[RunFacts]) -> Section:
    """A row for every method of every group, and in what it differs from the others."""
    by_source = {fact.source: fact for fact in facts}
    rows = [
        _method_row(group, method, by_source, named=len(groups) > 1) for group in groups for method in group.methods
    ]
    columns = (
        *(Column("method"), *([Column("runs of")] if len(groups) > 1 else [])),
        *(Column("tasks", ("",)), Column("runs", ("",)), Column("seeds"), Column("what differs")),
        Column("protocol", note="a hash of what must agree for scores to be comparable"),
    )
    lines = [Line(f"{group.name}: {line}", "warn") for group in groups for line in group.conflicts]
    suites = Counter(group.suite for group in groups)
    told: list[str] = []
    if any(count > 1 for count in suites.values()):
        told.append(
            "Runs of different protocols are not averaged: they are in groups of their own, named by what sets them apart. "
            "To put them together all the same, ask for --mixed."
        )
    blocks: list[Table | Lines] = [
        Table("what-was-run", groups[0].name if len(groups) == 1 else "What was run", columns, tuple(rows))
    ]
    if lines:
        told.append(
            "These runs were mixed because that was asked for. Their averages are of scores that are not comparable."
        )
        blocks.append(Lines("In what the mixed runs differ", tuple(lines)))
    return Section("what-was-run", "What was run", tuple(told), tuple(blocks))


def _method_row(group: Group, method: str, facts: Mapping[str, RunFacts], *, named: bool) -> tuple[Cell, ...]:
    runs = [run for run in group.runs.runs if run.method == method]
    seeds = sorted({run.seed for run in runs})
    tasks = {run.task for run in runs}
    return (
        words(method, strong=True),
        *([words(group.name)] if named else []),
        number(len(tasks), 0),
        number(len(runs), 0),
        words(ranges(seeds)),
        words("; ".join(_differences(group, method, facts)) or "–"),
        words(_hash(group), mark="quiet"),
    )


def _hash(group: Group) -> str:
    """Over what all runs of the group share; each run has its own in the list of runs."""
    shared = dict(group.runs.runs[0].protocol)
    for run in group.runs.runs[1:]:
        shared = {path: value for path, value in shared.items() if run.protocol.get(path) == value}
    return protocol_hash(shared)


def _differences(group: Group, method: str, facts: Mapping[str, RunFacts]) -> list[str]:
    """From the Baseline, or from the first method; on a task that both have."""
    reference = group.baseline or group.methods[0]
    recipe = {
        (run.method, run.task): facts[run.source].recipe for run in reversed(group.runs.runs) if run.source in facts
    }
    if not any(name == method for name, _ in recipe):
        return ["a CSV does not tell"]
    if method == reference:
        return ["the others are held against it"] if len(group.methods) > 1 else []
    for task in group.tasks:
        if (method, task) in recipe and (reference, task) in recipe:
            lines = difference(recipe[reference, task], recipe[method, task])
            kept = [line for line in lines if not line.startswith(("seed", "device", "threads"))]
            # Where one has an objective and the other has none, that is all the difference says: the name has the rest.
            named = [
                part for part in method.split()[1:] if not any(line.startswith(part.split("=")[0]) for line in kept)
            ]
            return [*kept, *named]
    return ["no task in common with " + reference]


def ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3 and 7 are "1–3, 7"."""
    found: list[list[int]] = []
    for value in numbers:
        if found and value == found[-1][-1] + 1:
            found[-1].append(value)
        else:
            found.append([value])
    shown_ranges = [str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in found]
    return ", ".join(shown_ranges[:12]) + (", …" if len(shown_ranges) > 12 else "")


# ── Aggregates ────────────────────────────────────────────────────────────────────────────────────────────────────────


def compared_tasks(final: Scores) -> tuple[list[str], list[str]]:
    """On which tasks methods are aggregated, and which methods: what all those share that have most of the tasks."""
    has = {method: {run.task for run in final.runs if run.method == method} for method in final.methods}
    main = [tasks for tasks in has.values() if 2 * len(tasks) >= len(final.tasks)]
    common = set.intersection(*main) if main else set[str]()
    return sorted(common), in_order(method for method, tasks in has.items() if common and common <= tasks)


def aggregates(group: Group) -> Section | None:
    """Mean, median, interquartile mean and optimality gap of normalised scores, and who improves on whom."""
    final = group.final.normalised()
    tasks, methods = compared_tasks(final)
    if not methods:
        return None
    matrices = {method: final.matrix(method, tasks, mixed=group.mixed) for method in methods}
    resamples = enough_resamples(sum(matrix.size for matrix in matrices.values()))
    found = {method: statistics.estimate_all(matrix, resamples=resamples) for method, matrix in matrices.items()}
    runs = {method: len(matrix) for method, matrix in matrices.items()}
    told = [
        f"Over {counted(len(tasks), 'task')}. {SCALES.get(group.suite, '')}".strip(),
        f"Intervals hold 95 % and come from {resamples:,} stratified resamples: the runs of every task are drawn again among "
        "themselves. One run alone has no interval.",
    ]
    left_out = [method for method in final.methods if method not in methods]
    if left_out:
        told.append(f"Left out, because they lack some of these tasks: {', '.join(left_out)}.")
    uneven = [method for method in methods if len({len(final.values(method, task)) for task in tasks}) > 1]
    if uneven:
        told.append(
            f"{', '.join(uneven)}: as many runs of each task as the task with the fewest has, those with the smallest seeds."
        )
    over_tasks = estimates_table(f"{group.key}-aggregates", f"Aggregates, {group.name}", found, runs)
    chart = estimates_chart(f"{group.key}-aggregates-chart", found)
    improvement = _improvement(group, matrices, resamples)
    return Section(
        f"{group.key}-aggregates", "Headline numbers", tuple(told), (chart, over_tasks, *improvement), over=group.name
    )


def enough_resamples(scores: int) -> int:
    """As many as a page is worth waiting for: all of them up to 4000 scores, and never fewer than 2000."""
    return int(max(2000, min(statistics.RESAMPLES, 2e8 // max(1, scores))))


def estimates_table(
    key: str,
    title: str,
    found: Mapping[str, Mapping[str, Estimate]],
    runs: Mapping[str, int],
    notes: Sequence[str] = (),
) -> Table:
    parts = ("", "low", "high")
    columns = (
        Column("method"),
        Column("runs per task", ("",)),
        *(Column(AGGREGATE_NAMES[name], parts) for name in AGGREGATE_NAMES),
    )
    rows = [
        (
            words(method, strong=True),
            number(runs[method], 0),
            *(estimate_cell(numbers[name]) for name in AGGREGATE_NAMES),
        )
        for method, numbers in found.items()
    ]
    return Table(key, title, columns, tuple(rows), ("A smaller optimality gap is better.", *notes))


def estimate_cell(estimate: Estimate) -> Cell:
    value, low, high = (float(part) for part in estimate)
    text = shown(value, 3) if math.isnan(low) else f"{shown(value, 3)} ({shown(low, 3)} to {shown(high, 3)})"
    return Cell(text, (value, low, high))


def estimates_chart(key: str, found: Mapping[str, Mapping[str, Estimate]]) -> Chart:
    panels = [
        {
            "title": title,
            "hint": "less is better" if name == "optimality_gap" else "more is better",
            "rows": [_interval(method, numbers[name]) for method, numbers in found.items() if name in numbers],
        }
        for name, title in AGGREGATE_NAMES.items()
    ]
    return Chart(key, "intervals", "Aggregates of normalised scores, with 95 % intervals", {"panels": panels})


def _interval(name: str, estimate: Estimate) -> dict[str, Any]:
    value, low, high = (None if math.isnan(float(part)) else round(float(part), 5) for part in estimate)
    return {"name": name, "value": value, "low": low, "high": high}


def _improvement(group: Group, matrices: Mapping[str, Array], resamples: int) -> Iterator[Chart | Table]:
    """The probability that a run of one method beats a run of another."""
    others = [method for method in matrices if method != group.reference]
    if group.reference in matrices:
        pairs = [(method, group.reference) for method in others]
    else:
        pairs = [(others[0], method) for method in others[1:]]
    if not pairs:
        return
    found = {
        (x, y): statistics.estimate_improvement(matrices[x], matrices[y], resamples=resamples)
        for x, y in pairs
        if y is not None
    }
    rows = [(words(x, strong=True), words(y), estimate_cell(estimate)) for (x, y), estimate in found.items()]
    note = (
        "That a run of the first scores more than a run of the second, on a task drawn at random; a draw counts half."
    )
    columns = (Column("method"), Column("over"), Column("probability of improvement", ("", "low", "high")))
    yield Table(f"{group.key}-improvement", f"Probability of improvement, {group.name}", columns, tuple(rows), (note,))


# ── Task by task ──────────────────────────────────────────────────────────────────────────────────────────────────────


def comparisons(group: Group, *, papers: bool) -> tuple[dict[str, Verdicts], dict[str, Verdicts]]:
    """Method → its verdicts against the paper, and against the Baseline."""
    plain = Scores(group.runs.runs)
    printed = [method for method in group.methods if any(group.paper(task, method) for task in group.tasks)]
    with_paper = {
        method: against_paper(plain, method, at=group.at, mixed=group.mixed)
        for method in printed
        if papers and not (group.not_the_papers and not group.mixed) and "lite" not in group.not_the_papers
    }
    reference = group.reference
    others = [method for method in group.methods if method != reference and reference is not None]
    return with_paper, {
        method: versus(plain, method, reference, at=group.at, mixed=group.mixed, papers=papers)
        for method in others
        if reference is not None
    }


def task_by_task(
    group: Group, with_paper: Mapping[str, Verdicts], with_baseline: Mapping[str, Verdicts], *, papers: bool
) -> Section:
    """Every task: ours, the paper's column beside it, and the verdict."""
    blocks: list[Table | Lines] = [scores_table(group, with_paper, papers=papers)]
    for method, verdicts in with_paper.items():
        if verdicts.tasks:
            key = f"{group.key}-{key_of(method)}-paper"
            blocks += verdict_blocks(key, f"{method} against the paper, {group.name}", verdicts)
    for method, verdicts in with_baseline.items():
        if verdicts.tasks:
            key = f"{group.key}-{key_of(method)}-baseline"
            blocks += verdict_blocks(key, f"{method} against {group.reference}, {group.name}", verdicts)
    told = ["Mean ± standard deviation over runs, and how many runs in brackets. The unit of replication is the run."]
    if papers and group.not_the_papers and _papers_methods(group):
        told.append(
            f"The paper’s numbers are {group.not_the_papers}. They stand here for orientation and no verdict is given."
        )
    return Section(f"{group.key}-tasks", "Task by task", tuple(told), tuple(blocks), over=group.name)


def _papers_methods(group: Group) -> list[str]:
    """Of the paper's columns those that a reader looks for: its two own, and what we have runs of."""
    wanted = in_order({"MLR", "Baseline", *group.methods})
    by_name = {cell.method: None for name in wanted for task in group.tasks if (cell := group.paper(task, name))}
    return list(by_name)


def scores_table(group: Group, with_paper: Mapping[str, Verdicts], *, papers: bool) -> Table:
    printed = _papers_methods(group) if papers else []
    columns, makers = [Column("task")], []

    def add(column: Column, make: Any) -> None:
        columns.append(column)
        makers.append(make)

    why = group.not_the_papers
    for method in group.methods:
        add(Column(method, ("mean", "std", "runs")), lambda task, method=method: our_cell(group, method, task))
        theirs = next((name for name in printed if name.lower() == method.lower()), None)
        if theirs is not None:
            add(_papers_column(theirs, why), lambda task, theirs=theirs: papers_cell(group.paper(task, theirs)))
            add(
                Column(f"{method}: verdict"),
                lambda task, method=method: _short_verdict(with_paper.get(method), task, why),
            )
    for theirs in printed:
        if theirs.lower() not in [method.lower() for method in group.methods]:
            add(_papers_column(theirs, why), lambda task, theirs=theirs: papers_cell(group.paper(task, theirs)))
    rows = [(words(short(task), strong=True), *(make(task) for make in makers)) for task in group.tasks]
    time = " and ".join(f"{time:,}" for time in group.times) or "no"
    notes = [f"Scores at {time} {group.unit}."] + ([f"Beside the paper’s numbers: {why}."] if printed and why else [])
    return Table(f"{group.key}-scores", f"Scores, {group.name}", tuple(columns), tuple(rows), tuple(notes))


def _papers_column(method: str, why: str) -> Column:
    return Column(f"paper: {method}", ("mean", "std", "runs"), "apart" if why else "quiet", why)


def our_cell(group: Group, method: str, task: str) -> Cell:
    values = group.final.values(method, task)
    if not len(values):
        started = sum((run.method, run.task) == (method, task) for run in group.runs.runs)
        return words("–", note=f"{counted(started, 'run')} not there yet" if started else "no runs")
    mean, std, runs = Summary.of(values)
    return Cell(f"{spread(mean, std)} ({runs})", (mean, None if math.isnan(std) else std, runs))


def papers_cell(cell: PublishedScore | None, *, quiet: bool = True) -> Cell:
    if cell is None:
        return words("–")
    mark: Mark = "warn" if cell.misprint else "quiet" if quiet else ""
    star = " *" if cell.misprint else ""
    seeds = f" ({cell.seeds})" if cell.seeds else ""
    text = f"{_as_printed(cell)}{seeds}{star}"
    return Cell(text, (cell.mean, cell.std, cell.seeds), cell.misprint or "", mark)


def _as_printed(cell: PublishedScore) -> str:
    digits = 0 if cell.unit == "frames" else 1
    return spread(cell.mean, cell.std, digits)


def _short_verdict(verdicts: Verdicts | None, task: str, why: str) -> Cell:
    if why and verdicts is None:
        return words(why, mark="apart")
    found = next((verdict for verdict in verdicts.tasks if verdict.task == task), None) if verdicts else None
    return words("not compared", mark="quiet") if found is None else outcome_cell(found)


def outcome_cell(verdict: Verdict, *, corrected: float | None = None) -> Cell:
    marks: dict[str, Mark] = {
        "above": "above",
        "below": "below",
        "consistent": "consistent",
        "not enough seeds": "unsure",
    }
    text: str = verdict.outcome
    if verdict.outcome == "not enough seeds" and verdict.needed is not None:
        text = f"not enough seeds: about {verdict.needed} needed"
    elif verdict.outcome == "consistent" and verdict.needed is None:
        text = "no difference shows"
    note = ""
    if verdict.outcome in ("above", "below") and corrected is not None and corrected >= 1 - CONFIDENCE:
        note = "not after the correction for several tests"
    return words(text, mark=marks[verdict.outcome], note=note)


def verdict_blocks(key: str, title: str, verdicts: Verdicts) -> list[Table | Lines]:
    """The numbers behind the verdicts, and the same in words."""
    sentences = [Line(verdict.sentence, outcome_cell(verdict).mark) for verdict in (*verdicts.overall, *verdicts.tasks)]
    return [
        verdict_table(key, title, verdicts),
        Lines(f"In words: {title}", tuple(sentences), folded=len(sentences) > MOST_LINES),
    ]


def verdict_table(key: str, title: str, verdicts: Verdicts) -> Table:
    tested = [index for index, verdict in enumerate(verdicts.tasks) if verdict.difference is not None]
    corrected = dict(zip(tested, holm([d.p for v in verdicts.tasks if (d := v.difference) is not None]), strict=True))
    shuffled = any(verdict.permutation_p is not None for verdict in verdicts.tasks)
    columns = (
        *(Column("task"), Column("verdict"), Column("difference", ("", "low", "high")), Column("p", ("",))),
        *(Column("p, Holm", ("",)), *([Column("p, permutation", ("",))] if shuffled else [])),
        *(Column("effect size", ("",)), Column("runs", ("",))),
    )

    def row(verdict: Verdict, p: float | None) -> tuple[Cell, ...]:
        tested = (verdict.difference and verdict.difference.p, p, *([verdict.permutation_p] if shuffled else []))
        return (
            words(short(verdict.task) or verdict.task, strong=True),
            outcome_cell(verdict, corrected=p),
            _difference_cell(verdict),
            *map(_p_cell, tested),
            number(verdict.effect, 2),
            number(verdict.runs, 0),
        )

    rows = tuple(row(verdict, corrected.get(index)) for index, verdict in enumerate(verdicts.tasks))
    gauge = (
        " That none shows counts as consistent only if there are seeds enough to have found the paper’s own gain of MLR over "
        "its Baseline."
        if any(verdict.needed is not None for verdict in (*verdicts.tasks, *verdicts.overall))
        else " That none shows does not say that there is none."
    )
    notes = (
        f"p is Welch’s; p, Holm is corrected for the {counted(len(tested), 'test')} of this table. The effect size is Cohen’s d.",
        f"The verdict goes by p as it is: above or below if it is less than 0.05.{gauge}",
    )
    return Table(key, title, columns, rows, notes, tuple(row(verdict, None) for verdict in verdicts.overall))


def _difference_cell(verdict: Verdict) -> Cell:
    if verdict.difference is None:
        value = verdict.mean - verdict.reference
        return Cell(shown(value, sign=True), (value, None, None), note="one run has no spread to test with")
    value, low, high, _ = verdict.difference
    size = max(abs(verdict.mean), abs(verdict.reference))
    digits = 0 if size >= 100 else 1 if size >= 10 else 3
    text = f"{shown(value, digits, sign=True)} ({shown(low, digits)} to {shown(high, digits)})"
    return Cell(text, (value, low, high))


def _p_cell(p: float | None) -> Cell:
    if p is None:
        return Cell("–", (None,))
    return Cell("< 0.001" if p < 0.001 else f"{p:.3f}", (p,))


# ── Where it does not help ────────────────────────────────────────────────────────────────────────────────────────────


def negative(group: Group, with_baseline: Mapping[str, Verdicts]) -> Section:
    """Tasks on which a method is below the Baseline, or cannot be told from it."""
    key, title = f"{group.key}-negative", "Where it does not help"
    if group.reference is None:
        what = "There are no runs of the baseline here" if group.baseline is None else "There is the baseline alone"
        told = f"{what}, so nothing can be said about what an objective adds."
        return Section(key, title, (told,), over=group.name)
    told_all, blocks = [], []
    for method, verdicts in with_baseline.items():
        told, lines = negative_lines(method, group.reference, verdicts.tasks)
        told_all.append(told)
        if lines:
            blocks.append(Lines(method, lines, folded=len(lines) > MOST_LINES))
    return Section(key, title, tuple(told_all), tuple(blocks), over=group.name)


def negative_lines(method: str, reference: str, verdicts: Sequence[Verdict]) -> tuple[str, tuple[Line, ...]]:
    counts = Counter(verdict.outcome for verdict in verdicts)
    unsure = counts["consistent"] + counts["not enough seeds"]
    told = (
        f"{method} is above {reference} on {counts['above']} of {counted(len(verdicts), 'task')}, below on "
        f"{counts['below']}, and cannot be told from it on {unsure}."
    )
    worst = sorted((v for v in verdicts if v.outcome != "above"), key=lambda v: (v.outcome != "below", v.task))
    marks: dict[str, Mark] = {"below": "below"}
    return told, tuple(Line(verdict.sentence, marks.get(verdict.outcome, "unsure")) for verdict in worst)


# ── Curves ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def curves(group: Group, *, papers: bool, most: int) -> Section:
    """Every seed a thin line, the mean a thick one, and what the paper has as a band at its budget."""
    panels = []
    for task in group.tasks:
        lines = []
        for method in group.methods:
            mine = sorted((r for r in group.runs.runs if (r.method, r.task) == (method, task)), key=lambda r: r.seed)
            if mine:
                seeds = [{"seed": run.seed, "points": thinned(run.curve, most)} for run in mine]
                lines.append(
                    {"name": method, "seeds": seeds, "mean": thinned(mean_curve([r.curve for r in mine]), most)}
                )
        panels.append({"title": short(task), "methods": lines, "bands": _bands(group, task) if papers else []})
    chart = Chart(
        f"{group.key}-curves-chart",
        "curves",
        f"Learning curves, {group.name}",
        {"unit": group.unit, "y": "score", "panels": panels, "apart": group.not_the_papers},
    )
    told = ["Thin lines are seeds, thick ones their mean, dashed where some seeds have ended."]
    if any(panel["bands"] for panel in panels):
        apart = f" Here it is {group.not_the_papers}." if group.not_the_papers else ""
        told.append(f"A band is what the paper reports, mean ± standard deviation, at its budget.{apart}")
    longest = max((len(run.curve) for run in group.runs.runs), default=0)
    if longest > most:
        told.append(f"Of the {longest} points of a curve {most} are drawn, its first and last among them.")
    return Section(f"{group.key}-curves", "Learning curves", tuple(told), (chart,), over=group.name)


def _bands(group: Group, task: str) -> list[dict[str, Any]]:
    found: dict[tuple[str, int], PublishedScore] = {}
    times = {at for run in group.runs.runs if run.task == task for at in (run.budget, *(at for at, _ in run.curve))}
    for method in in_order({"MLR", "Baseline", *group.methods}):
        for at in sorted(time for time in times if time is not None):
            cell = published(task, at, method)
            if cell is not None and cell.unit == group.unit:
                found[cell.method, at] = cell
    return [
        {
            "name": next((ours for ours in group.methods if ours.lower() == cell.method.lower()), cell.method),
            "label": f"paper: {cell.method}",
            "at": cell.at,
            "mean": cell.mean,
            "std": None if cell.misprint else cell.std,
        }
        for cell in found.values()
    ]


def mean_curve(curves: Iterable[Sequence[tuple[int, float]]]) -> list[tuple[int, float, int]]:
    """(time, mean, of how many curves) wherever one of them has a point."""
    at: dict[int, list[float]] = defaultdict(list)
    for curve in curves:
        for time, score in curve:
            at[time].append(score)
    return [(time, math.fsum(scores) / len(scores), len(scores)) for time, scores in sorted(at.items())]


def thinned(points: Sequence[tuple[float, ...]], most: int) -> list[list[float]]:
    """At most so many of them, evenly chosen, the first and the last included; but for the time, numbers with six digits."""
    if len(points) > most:
        points = [points[index] for index in np.linspace(0, len(points) - 1, most).round().astype(int)]
    return [[time, *(float(f"{value:.6g}") for value in values)] for time, *values in points]


# ── Performance profiles ──────────────────────────────────────────────────────────────────────────────────────────────


def profiles(group: Group) -> Section | None:
    """Of normalised scores: the share of runs above every threshold."""
    final = group.final.normalised()
    tasks, methods = compared_tasks(final)
    if not methods:
        return None
    matrices = {method: final.matrix(method, tasks, mixed=group.mixed) for method in methods}
    thresholds = profile_thresholds(matrices.values())
    resamples = min(5000, enough_resamples(sum(matrix.size for matrix in matrices.values())))
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


def profile_chart(key: str, thresholds: Array, lines: Mapping[str, Estimate]) -> Chart:
    def rounded(values: Array) -> list[float | None]:
        return [None if math.isnan(value) else round(float(value), 4) for value in values]

    methods = [
        {"name": name, "value": rounded(line.value), "low": rounded(line.low), "high": rounded(line.high)}
        for name, line in lines.items()
    ]
    data = {"x": "normalised score", "y": "share of runs above", "thresholds": rounded(thresholds), "methods": methods}
    return Chart(key, "profile", "Performance profile", data)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
