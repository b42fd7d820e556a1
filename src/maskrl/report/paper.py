"""The paper's own tables and figures, drawn again from what it prints."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from maskrl.analysis import statistics
from maskrl.analysis.scores import scale
from maskrl.analysis.statistics import AGGREGATES, EVERYWHERE, Array, Estimate, Summary
from maskrl.analysis.verdict import GAIN, Verdicts, on_scale, usable_summary, within_paper
from maskrl.recipes.ablations import STUDIES
from maskrl.recipes.published import (
    PAPER,
    PublishedScore,
    citations,
    published_aggregates,
    published_scores,
    representation_cosines,
    training_hours,
)
from maskrl.report.ablations import papers_ablations
from maskrl.report.aggregates import (
    AGGREGATE_NAMES,
    SCALES,
    estimates_chart,
    estimates_table,
    profile_chart,
    profile_thresholds,
)
from maskrl.report.document import Chart, Line, Lines, Report, Section
from maskrl.report.groups import in_order, short
from maskrl.report.tables import NOTHING, Cell, Column, Field, Table, number, shown, tabulated, words
from maskrl.report.task_by_task import RUNS, in_words, negative_lines, papers_cell, verdict_blocks

PLAYERS = ("Human", "Random")  # columns of Atari's table that are no methods
AS_IF_NORMAL = (
    "The paper prints means and standard deviations over seeds, not the runs themselves. So these intervals are simulated: "
    "tables of as many normal runs as there were, drawn 20,000 times, between the ends of the scale where it has them. "
    "Methods without a printed spread or number of seeds have a point alone."
)


@dataclass(frozen=True)
class Benchmark:
    """A table of the paper at one time."""

    name: str  # "DMControl-100k"
    suite: str
    table: str
    at: int
    ends: tuple[float, float]  # of the normalised scale

    @property
    def key(self) -> str:
        return self.name.lower()

    @cached_property
    def cells(self) -> list[PublishedScore]:
        return [cell for cell in published_scores() if (cell.table, cell.at) == (self.table, self.at)]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(cell.task for cell in self.cells))

    def best(self, task: str) -> float:
        return max(cell.mean for cell in self.cells if cell.task == task and cell.method not in PLAYERS)

    @cached_property
    def verdicts(self) -> Verdicts:
        return within_paper(self.table, self.at)


BENCHMARKS = (
    Benchmark("DMControl-100k", "dmcontrol", "table:dmc_compare", 100_000, (0.0, 1.0)),
    Benchmark("DMControl-500k", "dmcontrol", "table:dmc_compare", 500_000, (0.0, 1.0)),
    Benchmark("Atari-100k", "atari", "table:atari_compare", 100_000, EVERYWHERE),
)


def published_report() -> Report:
    """The page without any runs."""
    compared = [benchmark.table for benchmark in BENCHMARKS]
    methods = methods_of(cell for cell in published_scores() if cell.table in compared)
    return Report(
        "The paper’s tables",
        f"{PAPER}. Every number is as printed; no runs of yours are on this page.",
        (
            (str(len({cell.task for cell in published_scores()})), "tasks"),
            (str(len(methods)), "methods compared"),
            (str(sum(study.table is not None for study in STUDIES.values())), "ablation tables"),
            (str(len(_misprints())), "misprints, marked"),
        ),
        tuple(Lines(benchmark.name, in_words(benchmark.verdicts.overall)) for benchmark in BENCHMARKS),
        (
            *(section for benchmark in BENCHMARKS for section in _sections(benchmark)),
            *(_negative(), papers_ablations(), _representation(), _hours(), _misprint_section()),
        ),
        GAIN,  # the others stay grey
    )


def methods_of(cells: Iterable[PublishedScore]) -> list[str]:
    """Without the two players that a scale is made of."""
    return in_order({cell.method for cell in cells} - set(PLAYERS))


def _sections(benchmark: Benchmark) -> list[Section]:
    key, name = benchmark.key, benchmark.name
    found = estimates(benchmark.cells, benchmark.ends)
    unit, place = benchmark.cells[0].unit, citations()[benchmark.table].place
    told = (
        f"{place} of the paper: mean ± standard deviation over seeds, at {benchmark.at:,} {unit}. "
        "The best of each row is bold, as the paper has it."
    )
    tested = "Welch’s test on the printed means and standard deviations, which are taken as those with n − 1."
    gain = verdict_blocks(f"{key}-gain", f"{name}: {GAIN[0]} against its {GAIN[1]}", benchmark.verdicts)
    numbers = (
        estimates_chart(f"{key}-aggregates-chart", found),
        _aggregates_table(benchmark, found),
        _profile(benchmark),
    )
    aggregates = (SCALES[benchmark.suite], AS_IF_NORMAL)
    return [
        Section(key, "Scores", (told,), (_scores_table(benchmark), _task_chart(benchmark)), over=name),
        Section(f"{key}-aggregates", "Aggregates", aggregates, numbers, over=name),
        Section(f"{key}-gain", f"What {GAIN[0]} adds", (tested,), tuple(gain), over=name),
    ]


def _scores_table(benchmark: Benchmark) -> Table:
    cells = benchmark.cells
    printed = {cell.method for cell in cells}
    by_place = {(cell.task, cell.method): cell for cell in cells}

    def score(task: str, method: str) -> Cell:
        cell = by_place.get((task, method))
        strong = cell is not None and method not in PLAYERS and cell.mean == benchmark.best(task)
        return papers_cell(cell, quiet=False, strong=strong)

    methods = [*(player for player in PLAYERS if player in printed), *methods_of(cells)]
    columns = (Column("task"), *(Column(method, RUNS) for method in methods))
    rows = [(words(short(task), strong=True), *(score(task, method) for method in methods)) for task in benchmark.tasks]
    summary = [
        (words(title, strong=True), *(_summary_cell(line.get(method), digits) for method in methods))
        for title, digits, line in _summary_lines(benchmark, methods)
    ]
    notes = ("Seeds are in brackets where the paper tells their number.",)
    title = f"{benchmark.name} in the paper"
    return Table(f"{benchmark.key}-scores", title, columns, tuple(rows), notes, tuple(summary))


def _summary_cell(value: float | None, digits: int) -> Cell:
    return NOTHING if value is None else Cell(shown(value, digits), (value, None, None))


def _summary_lines(benchmark: Benchmark, methods: Sequence[str]) -> list[tuple[str, int, dict[str, float]]]:
    """What the paper prints over tasks and, on Atari, what it does not: title, digits, method → number."""
    found: dict[str, dict[str, float]] = {}
    for line in published_aggregates():
        if (line.table, line.at) == (benchmark.table, benchmark.at):
            found.setdefault(line.name, {})[line.method] = line.value
    titles = {"iqm": "IQM", "optimality_gap": "optimality gap"}
    lines = [
        (f"{titles.get(name, name.removesuffix('_over_tasks'))} (printed)", 3 if name in titles else 1, line)
        for name, line in found.items()
    ]
    for name in ("mean", "median") if benchmark.suite == "atari" else ():
        values = {method: float(AGGREGATES[name](normalised(benchmark.cells, method))) for method in methods}
        lines.append((f"{name} human-normalised (computed)", 3, values))
    return lines


def _task_chart(benchmark: Benchmark) -> Chart:
    """Mean ± standard deviation, a panel for each task; on Atari of the methods that have a spread."""
    panels = []
    with_spread = {cell.method for cell in benchmark.cells if cell.std is not None}
    for task in benchmark.tasks:
        mine = {cell.method: cell for cell in benchmark.cells if cell.task == task}
        rows = [
            spread_row(mine[method])
            for method in methods_of(mine.values())
            if benchmark.suite == "dmcontrol" or method in with_spread
        ]
        panels.append({"title": short(task), "hint": "", "rows": rows})
    note = "Lines reach one standard deviation to each side; a misprinted one is not drawn."
    title = f"{benchmark.name}, task by task"
    return Chart(f"{benchmark.key}-tasks-chart", "intervals", title, {"panels": panels}, (note,))


def spread_row(cell: PublishedScore) -> dict[str, Any]:
    ends = (None, None) if cell.std is None or cell.misprint else (cell.mean - cell.std, cell.mean + cell.std)
    return {"name": cell.method, "value": cell.mean, "low": ends[0], "high": ends[1]}


def normalised(cells: Iterable[PublishedScore], method: str) -> Array:
    """(1, tasks): the means that a method has."""
    own = [(cell.mean, *(scale(cell.task) or (0.0, 1.0))) for cell in cells if cell.method == method]
    return np.array([[(mean - zero) / (one - zero) for mean, zero, one in own]])


def _summaries(cells: Iterable[PublishedScore], method: str) -> list[Summary]:
    """On the normalised scale; nothing if the paper does not tell all that takes."""
    found = [(cell.task, usable_summary(cell)) for cell in cells if cell.method == method]
    told = [on_scale(task, summary) for task, summary in found if summary is not None]
    return told if len(told) == len(found) else []


def estimates(
    cells: Sequence[PublishedScore], ends: tuple[float, float], *, simulated: bool = True
) -> dict[str, dict[str, Estimate]]:
    """Mean and median are exact; the others are printed, or simulated where only the spread is.

    Methods that lack a task are left out: SLAC has three of the six at 100k, and its mean is not over the same ones.
    """
    tasks = {cell.task for cell in cells}
    whole = tasks == {cell.task for cell in published_scores() if cell.table == cells[0].table}
    printed = {
        (a.method, a.name): a.value
        for a in published_aggregates()
        if whole and (a.table, a.at) == (cells[0].table, cells[0].at)
    }
    found: dict[str, dict[str, Estimate]] = {}
    for method in methods_of(cells):
        means = normalised(cells, method)
        if means.shape[1] < len(tasks):
            continue
        points = {"mean": float(statistics.mean(means)), "median": float(statistics.median(means))}
        points |= {name: printed[method, name] for name in ("iqm", "optimality_gap") if (method, name) in printed}
        nothing = np.asarray(np.nan)
        found[method] = {name: Estimate(np.asarray(point), nothing, nothing) for name, point in points.items()}
        summaries = _summaries(cells, method) if simulated else []
        for name in AGGREGATE_NAMES if summaries else ():
            made = statistics.estimate_as_if_normal(summaries, AGGREGATES[name], ends=ends)
            found[method][name] = made._replace(value=np.asarray(points.get(name, made.value)))
    return found


def _aggregates_table(benchmark: Benchmark, found: Mapping[str, Mapping[str, Estimate]]) -> Table:
    suite, at = benchmark.suite, f"{benchmark.at // 1000}k"
    others = "as printed" if suite == "atari" else "simulated: the paper has none here"
    notes = [f"Mean and median are of the printed task means. Interquartile mean and optimality gap are {others}."]
    left_out = [method for method in methods_of(benchmark.cells) if method not in found]
    if left_out:
        notes.append(f"Not here, for the paper has only some of the tasks: {', '.join(left_out)}.")
    title = f"Aggregates of the paper’s scores, {suite} at {at}"
    return estimates_table(f"{suite}-{at}-paper-aggregates", title, found, notes=notes)


def _profile(benchmark: Benchmark) -> Chart:
    """As if runs were normal: what share of them is above each threshold."""
    found = {method: summaries for method in GAIN if (summaries := _summaries(benchmark.cells, method))}
    reach = [np.array([[s.mean + 2 * s.std * side for s in one] for side in (-1, 1)]) for one in found.values()]
    thresholds = profile_thresholds([np.clip(matrix, *benchmark.ends) for matrix in reach])
    share = partial(_share_above, thresholds)
    lines = {
        method: statistics.estimate_as_if_normal(summaries, share, ends=benchmark.ends, resamples=4000)
        for method, summaries in found.items()
    }
    title = "Performance profile, simulated from the printed spreads"
    return profile_chart(f"{benchmark.key}-profile-chart", thresholds, lines, title=title)


def _share_above(thresholds: Array, scores: Array) -> Array:
    return np.asarray((scores[..., None] > thresholds).mean(axis=(-3, -2)))


def _negative() -> Section:
    found = {benchmark.name: negative_lines(*GAIN, benchmark.verdicts.tasks) for benchmark in BENCHMARKS}
    told = tuple(f"{name}: {sentence}" for name, (sentence, _) in found.items())
    blocks = tuple(Lines(name, lines, folded=len(lines) > 8) for name, (_, lines) in found.items())
    return Section("negative", f"Where {GAIN[0]} does not help in the paper", told, blocks)


def _representation() -> Section:
    cosines = representation_cosines()
    tasks, methods = list(dict.fromkeys(task for _, task in cosines)), in_order({method for method, _ in cosines})

    def cosine(task: str) -> Field[str]:
        return Column(short(task), ("",)), lambda method: number(cosines.get((method, task)), 3)

    fields: list[Field[str]] = [(Column("method"), lambda method: words(method, strong=True)), *map(cosine, tasks)]
    panels = [
        {
            "title": short(task),
            "hint": "cosine",
            "rows": [{"name": m, "value": cosines[m, task], "low": None, "high": None} for m in methods],
        }
        for task in tasks
    ]
    chart = Chart("cosines-chart", "intervals", "Cosines", {"panels": panels, "from_zero": True})
    told = f"{citations()['table:correlation'].place}: cosine between latents of masked and of original observations."
    blocks = (chart, tabulated("cosines", "Cosines", fields, methods))
    return Section("representation", "What the encoders learned", (told,), blocks)


def _hours() -> Section:
    hours = training_hours()
    fields: list[Field[tuple[str, str]]] = [
        (Column("suite"), lambda key: words(key[0])),
        (Column("method"), lambda key: words(key[1], strong=True)),
        (Column("hours", ("",)), lambda key: number(hours[key], 1)),
    ]
    bars = [{"name": method, "group": suite, "values": [value]} for (suite, method), value in hours.items()]
    chart = Chart("hours-chart", "bars", "Hours of a run", {"parts": ["hours"], "rows": bars, "unit": "hours"})
    told = "Appendix B.2, on one RTX 3090. The paper does not say for how many frames on DMControl."
    return Section("hours", "Training time", (told,), (chart, tabulated("hours", "Hours of training", fields, hours)))


def _misprints() -> list[str]:
    scores = [
        f"{cell.source}: {cell.method} on {short(cell.task)} at {cell.at:,} {cell.unit}: {cell.misprint}."
        for cell in published_scores()
        if cell.misprint
    ]
    aggregates = [
        f"{citations()[line.table].place}: {line.method}, {line.name.replace('_over_tasks', ' over tasks')}: {line.misprint}."
        for line in published_aggregates()
        if line.misprint
    ]
    return scores + aggregates


def _misprint_section() -> Section:
    told = "They stand in the tables as printed, marked with an asterisk. No test uses a misprinted spread."
    lines = tuple(Line(text, "warn") for text in _misprints())
    return Section("misprints", "Misprints", (told,), (Lines("Misprints", lines),))
