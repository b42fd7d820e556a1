"""The paper's own tables and figures, drawn again from what it prints."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from maskrl.analysis import statistics
from maskrl.analysis.scores import scale
from maskrl.analysis.statistics import AGGREGATES, Array, Estimate, Summary
from maskrl.analysis.verdict import Verdicts, within_paper
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
from maskrl.report.document import Chart, Line, Lines, Report, Section
from maskrl.report.gather import in_order, short
from maskrl.report.run_sections import ablation_table
from maskrl.report.sections import (
    AGGREGATE_NAMES,
    estimate_cell,
    estimates_chart,
    negative_lines,
    outcome_cell,
    papers_cell,
    profile_chart,
    profile_thresholds,
    verdict_blocks,
)
from maskrl.report.tables import Cell, Column, Table, number, shown, words

BENCHMARKS = (
    ("dmcontrol", "table:dmc_compare", 100_000, "DMControl-100k"),
    ("dmcontrol", "table:dmc_compare", 500_000, "DMControl-500k"),
    ("atari", "table:atari_compare", 100_000, "Atari-100k"),
)
PLAYERS = ("Human", "Random")  # columns of Atari's table that are no methods
AS_IF_NORMAL = (
    "The paper prints means and standard deviations over seeds, not the runs themselves. So these intervals are simulated: "
    "tables of as many normal runs as there were, drawn 20,000 times, between the ends of the scale where it has them. "
    "Methods without a printed spread or number of seeds have a point alone."
)


def published_report() -> Report:
    """The page without any runs."""
    verdicts = {name: within_paper(table, at) for _, table, at, name in BENCHMARKS}
    benchmarks = [_benchmark(*benchmark, verdicts[benchmark[3]]) for benchmark in BENCHMARKS]
    headline = [
        Lines(name, tuple(Line(verdict.sentence, outcome_cell(verdict).mark) for verdict in found.overall))
        for name, found in verdicts.items()
    ]
    cells, compared = published_scores(), [table for _, table, _, _ in BENCHMARKS]
    methods = in_order({cell.method for cell in cells if cell.table in compared} - set(PLAYERS))
    return Report(
        "The paper’s tables",
        f"{PAPER}. Every number is as printed; no runs of yours are on this page.",
        (
            (str(len({cell.task for cell in cells})), "tasks"),
            (str(len(methods)), "methods compared"),
            (str(sum(study.table is not None for study in STUDIES.values())), "ablation tables"),
            (str(len(_misprints())), "misprints, marked"),
        ),
        tuple(headline),
        (
            *(section for sections in benchmarks for section in sections),
            _negative(verdicts),
            _ablations(),
            _representation(),
            _hours(),
            _misprint_section(),
        ),
        ("MLR", "Baseline"),  # the others stay grey
    )


def _benchmark(suite: str, table: str, at: int, name: str, verdicts: Verdicts) -> list[Section]:
    cells = [cell for cell in published_scores() if (cell.table, cell.at) == (table, at)]
    methods = [method for method in dict.fromkeys(cell.method for cell in cells) if method not in PLAYERS]
    key = name.lower()
    aggregates, found = _aggregates(suite, cells, methods, table, at)
    scores = _scores_table(key, name, cells, table, at)
    tested = verdict_blocks(f"{key}-gain", f"{name}: MLR against its Baseline", verdicts)
    profile = _profile(key, suite, cells)
    unit = "frames" if suite == "dmcontrol" else "decisions"
    return [
        Section(
            key,
            "Scores",
            (
                f"{citations()[table].place} of the paper: mean ± standard deviation over seeds, at {at:,} {unit}. "
                "The best of each row is bold, as the paper has it.",
            ),
            (scores, *_task_chart(key, name, suite, cells)),
            over=name,
        ),
        Section(
            f"{key}-aggregates",
            "Aggregates",
            (_scale_words(suite), AS_IF_NORMAL),
            (estimates_chart(f"{key}-aggregates-chart", found), aggregates, profile),
            over=name,
        ),
        Section(
            f"{key}-gain",
            "What MLR adds",
            ("Welch’s test on the printed means and standard deviations, which are taken as those with n − 1.",),
            tuple(tested),
            over=name,
        ),
    ]


def _scores_table(key: str, name: str, cells: Sequence[PublishedScore], table: str, at: int) -> Table:
    columns_printed = {cell.method for cell in cells}
    methods = [*(player for player in PLAYERS if player in columns_printed), *in_order(columns_printed - set(PLAYERS))]
    by_place = {(cell.task, cell.method): cell for cell in cells}
    columns = (Column("task"), *(Column(method, ("mean", "std", "runs")) for method in methods))
    rows = []
    for task in dict.fromkeys(cell.task for cell in cells):
        of_task = [cell for cell in cells if cell.task == task and cell.method not in PLAYERS]
        best = max(cell.mean for cell in of_task)
        row = [_printed(by_place.get((task, method)), best) for method in methods]
        rows.append((words(short(task), strong=True), *row))
    printed = {
        (line.method, line.name): line for line in published_aggregates() if (line.table, line.at) == (table, at)
    }
    summary = []
    for statistic in dict.fromkeys(what for _, what in printed):
        digits = 1 if statistic.endswith("_over_tasks") else 3
        line = [printed.get((method, statistic)) for method in methods]
        values = [
            words("–") if one is None else Cell(shown(one.value, digits), (one.value, None, None)) for one in line
        ]
        title = {"iqm": "IQM (printed)", "optimality_gap": "optimality gap (printed)"}.get(
            statistic, f"{statistic.removesuffix('_over_tasks')} (printed)"
        )
        summary.append((words(title, strong=True), *values))
    if table == "table:atari_compare":
        summary += [_normalised_row(cells, methods, statistic) for statistic in ("mean", "median")]
    notes = ("Seeds are in brackets where the paper tells their number.",)
    return Table(f"{key}-scores", f"{name} in the paper", columns, tuple(rows), notes, tuple(summary))


def _printed(cell: PublishedScore | None, best: float) -> Cell:
    strong = cell is not None and cell.mean == best and cell.method not in PLAYERS
    return replace(papers_cell(cell, quiet=False), strong=strong)


def _normalised_row(cells: Sequence[PublishedScore], methods: Sequence[str], statistic: str) -> tuple[Cell, ...]:
    values = [
        float(AGGREGATES[statistic](np.array([[_normalised(cell) for cell in cells if cell.method == method]])))
        for method in methods
    ]
    name = words(f"{statistic} human-normalised (computed)", strong=True)
    return (name, *(Cell(shown(value, 3), (value, None, None)) for value in values))


def _normalised(cell: PublishedScore) -> float:
    zero, one = scale(cell.task) or (0.0, 1.0)
    return (cell.mean - zero) / (one - zero)


def _summaries(cells: Sequence[PublishedScore], method: str) -> list[Summary] | None:
    """On the normalised scale, if the paper tells all that takes."""
    found = list[Summary]()
    for cell in cells:
        if cell.method == method:
            if cell.std is None or cell.seeds is None or cell.misprint:
                return None
            found.append(Summary(cell.mean, cell.std, cell.seeds).scaled(*(scale(cell.task) or (0.0, 1.0))))
    return found


def _ends(suite: str) -> tuple[float, float]:
    return (0.0, 1.0) if suite == "dmcontrol" else (-np.inf, np.inf)


def _aggregates(
    suite: str, cells: Sequence[PublishedScore], methods: Sequence[str], table: str, at: int
) -> tuple[Table, dict[str, dict[str, Estimate]]]:
    """Mean and median are exact; the others are printed, or simulated where only the spread is."""
    tasks = len({cell.task for cell in cells})
    printed = {(a.method, a.name): a.value for a in published_aggregates() if (a.table, a.at) == (table, at)}
    found: dict[str, dict[str, Estimate]] = {}
    for method in in_order(methods):
        means = np.array([[_normalised(cell) for cell in cells if cell.method == method]])
        if means.shape[1] < tasks:
            continue  # SLAC has three of the six tasks at 100k: its mean is not over the same ones
        summaries = _summaries(cells, method)
        exact = {"mean": float(statistics.mean(means)), "median": float(statistics.median(means))}
        found[method] = {}
        for name in AGGREGATE_NAMES:
            point = exact.get(name, printed.get((method, name)))
            if summaries is not None:
                made = statistics.estimate_as_if_normal(summaries, AGGREGATES[name], ends=_ends(suite))
                found[method][name] = Estimate(made.value if point is None else np.asarray(point), made.low, made.high)
            elif point is not None:
                found[method][name] = Estimate(np.asarray(point), np.asarray(np.nan), np.asarray(np.nan))
    rows = [
        (words(method, strong=True), *(_cell(numbers.get(name)) for name in AGGREGATE_NAMES))
        for method, numbers in found.items()
    ]
    columns = (Column("method"), *(Column(title, ("", "low", "high")) for title in AGGREGATE_NAMES.values()))
    others = "as printed" if suite == "atari" else "simulated: the paper has none here"
    notes = [
        f"Mean and median are of the printed task means. Interquartile mean and optimality gap are {others}.",
        "A smaller optimality gap is better.",
    ]
    left_out = [method for method in methods if method not in found]
    if left_out:
        notes.append(f"Not here, for the paper has only some of the tasks: {', '.join(left_out)}.")
    title = f"Aggregates of the paper’s scores, {suite} at {at // 1000}k"
    return Table(f"{suite}-{at // 1000}k-paper-aggregates", title, columns, tuple(rows), tuple(notes)), found


def _cell(estimate: Estimate | None) -> Cell:
    return words("–") if estimate is None else estimate_cell(estimate)


def _scale_words(suite: str) -> str:
    if suite == "atari":
        return "Human-normalised: 0 is the random player, 1 the human one."
    return "Scores are divided by 1000, the most that an episode can earn."


def _task_chart(key: str, name: str, suite: str, cells: Sequence[PublishedScore]) -> list[Chart]:
    """Mean ± standard deviation of every method, a panel for each task; on Atari of the two that have a spread."""
    panels = []
    for task in dict.fromkeys(cell.task for cell in cells):
        mine = {cell.method: cell for cell in cells if cell.task == task and cell.method not in PLAYERS}
        shown_methods = in_order(mine) if suite == "dmcontrol" else ["MLR", "Baseline"]
        rows = []
        for method in shown_methods:
            if method not in mine:
                continue
            cell = mine[method]
            std = None if cell.misprint else cell.std
            low, high = (None, None) if std is None else (cell.mean - std, cell.mean + std)
            rows.append({"name": method, "value": cell.mean, "low": low, "high": high})
        panels.append({"title": short(task), "hint": "", "rows": rows})
    note = "Lines reach one standard deviation to each side; a misprinted one is not drawn."
    return [Chart(f"{key}-tasks-chart", "intervals", f"{name}, task by task", {"panels": panels}, (note,))]


def _profile(key: str, suite: str, cells: Sequence[PublishedScore]) -> Chart:
    """As if runs were normal: what share of them is above each threshold."""
    found = {method: summaries for method in ("MLR", "Baseline") if (summaries := _summaries(cells, method))}
    reach = [
        np.array([[s.mean + 2 * s.std * side for s in summaries] for side in (-1, 1)]) for summaries in found.values()
    ]
    thresholds = profile_thresholds([np.clip(matrix, *_ends(suite)) for matrix in reach])
    lines = {
        method: statistics.estimate_as_if_normal(
            summaries, partial(_share_above, thresholds), ends=_ends(suite), resamples=4000
        )
        for method, summaries in found.items()
    }
    chart = profile_chart(f"{key}-profile-chart", thresholds, lines)
    return replace(chart, title="Performance profile, simulated from the printed spreads")


def _share_above(thresholds: Array, scores: Array) -> Array:
    return np.asarray((scores[..., None] > thresholds).mean(axis=(-3, -2)))


def _negative(verdicts: Mapping[str, Verdicts]) -> Section:
    told, blocks = [], []
    for name, found in verdicts.items():
        sentence, lines = negative_lines("MLR", "Baseline", found.tasks)
        told.append(f"{name}: {sentence}")
        blocks.append(Lines(name, lines, folded=len(lines) > 8))
    return Section("negative", "Where MLR does not help in the paper", tuple(told), tuple(blocks))


def _ablations() -> Section:
    tables = [
        ablation_table(name, study, None, {}, papers=True) for name, study in STUDIES.items() if study.table is not None
    ]
    told = (
        "The reference of these tables is MLR with 5 seeds; Table 1 has it with 10. Compare a row with the reference of its own "
        "table.",
    )
    return Section("ablations", "Ablations", told, tuple(tables))


def _representation() -> Section:
    cosines = representation_cosines()
    tasks = list(dict.fromkeys(task for _, task in cosines))
    methods = in_order({method for method, _ in cosines})
    columns = (Column("method"), *(Column(short(task), ("",)) for task in tasks))
    rows = [
        (words(method, strong=True), *(number(cosines.get((method, task)), 3) for task in tasks)) for method in methods
    ]
    panels = [
        {
            "title": short(task),
            "hint": "cosine",
            "rows": [{"name": m, "value": cosines[m, task], "low": None, "high": None} for m in methods],
        }
        for task in tasks
    ]
    told = f"{citations()['table:correlation'].place}: cosine between latents of masked and of original observations."
    chart = Chart("cosines-chart", "intervals", "Cosines", {"panels": panels, "from_zero": True})
    return Section(
        "representation",
        "What the encoders learned",
        (told,),
        (chart, Table("cosines", "Cosines", columns, tuple(rows))),
    )


def _hours() -> Section:
    hours = training_hours()
    rows = [(words(suite), words(method, strong=True), number(value, 1)) for (suite, method), value in hours.items()]
    columns = (Column("suite"), Column("method"), Column("hours", ("",)))
    bars = [{"name": method, "group": suite, "values": [value]} for (suite, method), value in hours.items()]
    chart = Chart("hours-chart", "bars", "Hours of a run", {"parts": ["hours"], "rows": bars, "unit": "hours"})
    told = "Appendix B.2, on one RTX 3090. The paper does not say for how many frames on DMControl."
    table = Table("hours", "Hours of training", columns, tuple(rows))
    return Section("hours", "Training time", (told,), (chart, table))


def _misprints() -> list[str]:
    return [
        *(
            f"{cell.source}: {cell.method} on {short(cell.task)} at {cell.at:,} {cell.unit}: {cell.misprint}."
            for cell in published_scores()
            if cell.misprint
        ),
        *(
            f"{citations()[line.table].place}: {line.method}, {line.name.replace('_over_tasks', ' over tasks')}: {line.misprint}."
            for line in published_aggregates()
            if line.misprint
        ),
    ]


def _misprint_section() -> Section:
    told = "They stand in the tables as printed, marked with an asterisk. No test uses a misprinted spread."
    return Section(
        "misprints", "Misprints", (told,), (Lines("Misprints", tuple(Line(text, "warn") for text in _misprints())),)
    )
