"""Figures for a paper: the charts of the report page, with the same numbers, and what is too much for the page.

draw(Scores.read("runs"), Path("figures"))     # of runs
draw_published(Path("figures"))                # of the paper's tables
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from maskrl.analysis import statistics
from maskrl.analysis.scores import Scores
from maskrl.analysis.statistics import EVERYWHERE, Estimate, Summary
from maskrl.recipes.published import PublishedScore, published_scores
from maskrl.report.aggregates import AGGREGATE_NAMES, compared_tasks, estimate_row, over_tasks
from maskrl.report.curves import curves
from maskrl.report.document import Chart
from maskrl.report.figures import GREY, INCHES, Figures, Format, Style, Width, styles
from maskrl.report.groups import Group, grouped, short
from maskrl.report.paper import estimates, methods_of, published_report, spread_row
from maskrl.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESAMPLES = 10_000
Row = Mapping[str, Any]  # of an interval: name, value, low and high, the scores of runs, and a remark on the paper's


def draw(
    scores: Scores, out: Path, *, format: Format = "pdf", width: Width = "single", against_paper: bool = False
) -> Figures:
    """All figures that the scores allow. Runs that may not be put together are drawn apart."""
    figures = Figures(out, format, width, problems=list(scores.problems))
    scores = _as_printed(scores)
    figures.looks = styles(methods_of(published_scores())) | styles(scores.methods)
    groups = grouped(scores, at=None, mixed=False)
    names = _file_names(groups)
    if len(groups) > 1:
        told = "; ".join(f"{name} ({len(group.runs.runs)} runs)" for name, group in zip(names, groups, strict=True))
        figures.problems.append(f"These runs are drawn apart, for they do not have the same protocol: {told}.")
    for name, group in zip(names, groups, strict=True):
        _draw_group(figures, name, group, against_paper)
    return figures


def draw_published(out: Path, *, format: Format = "pdf", width: Width = "single") -> Figures:
    """The charts of the paper's page."""
    figures = Figures(out, format, width, looks=styles(methods_of(published_scores())))
    for chart in published_report().charts:
        benchmark, _, kind = chart.key.removesuffix("-chart").rpartition("-")
        if kind == "profile":
            _profile(figures, f"profiles-{benchmark}", chart)
        elif kind in ("tasks", "aggregates"):
            _intervals(figures, f"{kind}-{benchmark}", chart.data["panels"])
    return figures


def _draw_group(figures: Figures, name: str, group: Group, against_paper: bool) -> None:
    _curves(figures, f"curves-{name}", group, asked=against_paper)
    final = group.final.normalised()
    tasks, methods = compared_tasks(final)
    figures.problems += [problem for problem in final.problems if problem not in figures.problems]
    if not methods:
        figures.problems.append(
            f"{name}: no task has a normalised score of every method, so only its curves are drawn."
        )
        return
    if left_out := sorted(set(final.tasks) - set(tasks)):
        figures.problems.append(f"{name}: not all methods have scores on {', '.join(left_out)}: not in the aggregates.")
    cells = _papers_cells(figures, name, group, tasks) if against_paper else []
    remark = "paper, not comparable" if group.not_the_papers else "paper"
    _intervals(figures, f"tasks-{name}", _task_panels(group, cells, remark))
    aggregates, profiles = over_tasks(group)
    _intervals(figures, f"aggregates-{name}", _with_papers(aggregates.charts[0].data["panels"], cells, remark))
    _profile(figures, f"profiles-{name}", profiles.charts[0])
    for table in aggregates.tables[1:]:
        _improvement(figures, f"improvement-{name}", table)
    _efficiency(figures, f"efficiency-{name}", group, tasks, methods)


def _as_printed(scores: Scores) -> Scores:
    """Methods of the paper are spelt as there, unless another method has that name already."""
    printed = {method.lower(): method for method in methods_of(published_scores())}
    spelt = {method: printed[method] for method in scores.methods if printed.get(method, method) not in scores.methods}
    return replace(scores, runs=tuple(replace(run, method=spelt.get(run.method, run.method)) for run in scores.runs))


def _file_names(groups: Sequence[Group]) -> list[str]:
    """The suite; where it has several groups, also the profile and the budget, and a number if these are the same."""
    suites, names = [group.suite for group in groups], list[str]()
    for group, suite in zip(groups, suites, strict=True):
        run = group.runs.runs[0]
        budget = f"{run.budget // 1000}k" if run.budget and run.budget % 1000 == 0 else run.budget
        parts = [suite, run.protocol.get("profile"), budget] if suites.count(suite) > 1 else [suite]
        name = "-".join(str(part) for part in parts if part)
        names.append("".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name))
    return [f"{n}-{names[: i + 1].count(n)}" if names.count(n) > 1 else n for i, n in enumerate(names)]


def _papers_cells(figures: Figures, name: str, group: Group, tasks: Sequence[str]) -> list[PublishedScore]:
    """What the paper has on these tasks at the time of these scores."""
    wanted = [group.paper(task, method) for task in tasks for method in methods_of(published_scores())]
    cells = [cell for cell in wanted if cell is not None]
    if not cells:
        times = " and ".join(f"{time:,}" for time in group.times)
        figures.problems.append(f"{name}: the paper has no scores on these tasks at {times} {group.unit}.")
    elif group.not_the_papers:
        figures.problems.append(f"{name}: the paper's numbers are {group.not_the_papers}.")
    elif any("profile" not in run.protocol for run in group.runs.runs):
        figures.problems.append(f"{name}: a CSV does not tell its protocol; it is taken for the paper's.")
    return cells


def _task_panels(group: Group, cells: Sequence[PublishedScore], remark: str) -> list[dict[str, Any]]:
    """A panel for each task: mean ± standard deviation and the score of every run; then the paper's."""
    panels = []
    for task in group.tasks:
        rows: list[Row] = []
        for method in group.methods:
            values = group.final.values(method, task)
            if len(values):
                mean, std, _ = Summary.of(values)
                ends = {"low": None, "high": None} if math.isnan(std) else {"low": mean - std, "high": mean + std}
                rows.append({"name": method, "value": mean, "scores": values.tolist(), **ends})
        rows += [{**spread_row(cell), "remark": remark} for cell in cells if cell.task == task]
        panels.append({"title": short(task), "rows": rows})
    return panels


def _with_papers(panels: Sequence[Row], cells: Sequence[PublishedScore], remark: str) -> list[dict[str, Any]]:
    """The panels of aggregates, with the paper's below. It prints means over runs, so they have no intervals."""
    found = estimates(cells, EVERYWHERE, simulated=False) if cells else {}
    return [
        {
            **panel,
            "rows": [
                *panel["rows"],
                *({**estimate_row(m, line[name]), "remark": remark} for m, line in found.items() if name in line),
            ],
        }
        for name, panel in zip(AGGREGATE_NAMES, panels, strict=True)
    ]


def _curves(figures: Figures, name: str, group: Group, *, asked: bool) -> None:
    """A panel per task: the mean over seeds with its interval, every seed as a thin line, and the paper's score as a band.

    Beside runs with another protocol than the paper's, bands are drawn only if asked for, and in grey.
    """
    (chart,) = curves(group, papers=asked or not group.not_the_papers, most=10**9).charts
    panels, apart = chart.data["panels"], bool(chart.data["apart"])
    across = {"single": 3 if len(panels) > 12 else 2, "double": 5 if len(panels) > 12 else 3}[figures.width]
    height = min(1.75, 0.8 * figures.inches / min(across, len(panels)))
    with figures.panels(name, [panel["title"] for panel in panels], across, height) as drawn:
        for axes, panel in zip(drawn.axes, panels, strict=True):
            for line in panel["methods"]:
                drawn.legend.setdefault(line["name"], _curve(figures, axes, panel["title"], line))
            last = max((band["at"] for band in panel["bands"]), default=None)
            for band in (band for band in panel["bands"] if band["at"] == last):
                if asked or band["name"] in group.methods:
                    label = f"{band['label']}{', not comparable' if apart else ''}"
                    colour = GREY if apart else figures.looks[band["name"]].colour
                    drawn.legend.setdefault(label, _band(axes, band, colour))
            axes.set_xlabel(_time_words(group.unit))
            _count_thousands(axes)
        drawn.axes[0].set_ylabel("score")


def _curve(figures: Figures, axes: "Axes", task: str, line: Mapping[str, Any]) -> Any:
    style, runs = figures.looks[line["name"]], [dict(seed["points"]) for seed in line["seeds"]]
    for run in runs if len(runs) > 1 else []:
        axes.plot(list(run), list(run.values()), color=style.colour, linestyle=style.dashes, linewidth=0.5, alpha=0.45)
    times = sorted(set.intersection(*map(set, runs)))
    if not times:
        figures.problems.append(f"{line['name']} on {task}: its runs were never evaluated at the same time: no mean.")
        return axes.plot([], [], color=style.colour, linestyle=style.dashes)[0]
    values = np.array([[run[at] for at in times] for run in runs])
    found = statistics.estimate(lambda matrix: matrix.mean(axis=-2), values, resamples=RESAMPLES)
    return _with_band(axes, times, *found, style=style)


def _band(axes: "Axes", band: Mapping[str, Any], colour: str) -> Any:
    spread = band["std"] or 0.0
    axes.axhspan(band["mean"] - spread, band["mean"] + spread, color=colour, alpha=0.1, linewidth=0)
    return axes.axhline(band["mean"], color=colour, linewidth=0.8, linestyle=(0, (4, 2)))


def _with_band(axes: "Axes", x: Sequence[float], value: Any, low: Any, high: Any, *, style: Style) -> Any:
    """A line with its interval; one run alone has none."""
    low, high = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    if not np.isnan(low).any():
        axes.fill_between(x, low, high, color=style.colour, alpha=0.18, linewidth=0)
    marker = "o" if len(x) == 1 else ""
    return axes.plot(x, value, color=style.colour, linestyle=style.dashes, marker=marker, markersize=3)[0]


def _intervals(figures: Figures, name: str, panels: Sequence[Mapping[str, Any]]) -> None:
    """A panel each, and in it a row for every method: the paper's hollow, the scores of runs as dots."""
    rows = sorted((row for panel in panels for row in panel["rows"]), key=lambda row: "remark" in row)  # ours first
    labels = list(dict.fromkeys(map(_label, rows)))
    height = 0.42 + len(labels) * max(0.16, *(0.13 * (1 + label.count("\n")) for label in labels))
    titles, across = [panel["title"] for panel in panels], 2 if figures.width == "single" else 4
    with figures.panels(name, titles, across, height) as drawn:
        for place, (axes, panel) in enumerate(zip(drawn.axes, panels, strict=True)):
            for row in panel["rows"]:
                _interval(axes, row, labels.index(_label(row)), figures.looks[row.get("method", row["name"])].colour)
            axes.set_yticks(range(len(labels)), labels if place % drawn.across == 0 else [""] * len(labels))
            axes.set_ylim(len(labels) - 0.5, -0.5)
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
            axes.margins(x=0.12)
            axes.locator_params(axis="x", nbins=3)
            axes.set_xlabel(panel.get("hint", ""))
            if "is_chance" in panel:
                axes.set_xlim(0, 1)
                axes.axvline(0.5, color="#555555", linewidth=0.8, linestyle="--")


def _label(row: Row) -> str:
    """For the side of an axis."""
    return textwrap.fill(f"{row['name']} ({row['remark']})" if "remark" in row else row["name"], 24)


def _interval(axes: "Axes", row: Row, place: float, colour: str) -> None:
    ends, scores = [row["low"], row["high"]], row.get("scores", [])
    if None not in ends:
        axes.plot(ends, [place, place], color=colour, linewidth=4.5, alpha=0.35, solid_capstyle="butt")
    axes.plot(scores, [place] * len(scores), "o", color=colour, markersize=2.2, alpha=0.55, markeredgewidth=0)
    (point,) = axes.plot([row["value"]], [place], "|", color=colour, markersize=8, markeredgewidth=2)
    if "remark" in row:  # the paper's are hollow
        point.set(marker="o", markersize=4, markeredgewidth=1.2, markerfacecolor="white")


def _profile(figures: Figures, name: str, chart: Chart) -> None:
    """The share of runs, over all tasks, that score above each threshold."""
    with figures.panels(name, [""], 1, 0.7 * INCHES["single"]) as drawn:
        (axes,) = drawn.axes
        for line in chart.data["methods"]:
            numbers = (line[part] for part in ("value", "low", "high"))
            style = figures.looks[line["name"]]
            drawn.legend[line["name"]] = _with_band(axes, chart.data["thresholds"], *numbers, style=style)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel(f"threshold τ, {chart.data['x']}")
        axes.set_ylabel("share above τ")


def _improvement(figures: Figures, name: str, table: Table) -> None:
    """How probable it is that a run of one method beats one of another, on a task drawn at random."""
    rows = [
        {**estimate_row(f"{x.text} > {y.text}", Estimate(*map(np.asarray, cell.numbers))), "method": x.text}
        for x, y, cell in table.rows
    ]
    _intervals(figures, name, [{"title": "Probability of improvement", "rows": rows, "is_chance": True}])


def _efficiency(figures: Figures, name: str, group: Group, tasks: Sequence[str], methods: Sequence[str]) -> None:
    """The interquartile mean over tasks as the runs go on, of the runs that are in the aggregates."""
    finished = {(run.source, run.method, run.task, run.seed) for run in group.final.runs}
    runs = group.runs.where(lambda run: (run.source, run.method, run.task, run.seed) in finished).normalised()
    lines = {method: over_time(runs, method, tasks) for method in methods}
    if all(len(times) < 2 for times, _ in lines.values()):
        figures.problems.append(f"{name}: no two times at which all runs were evaluated: not drawn.")
        return
    with figures.panels(name, [""], 1, 0.68 * INCHES["single"]) as drawn:
        (axes,) = drawn.axes
        for method, (times, found) in lines.items():
            drawn.legend[method] = _with_band(
                axes, times, *np.array(found).reshape(-1, 3).T, style=figures.looks[method]
            )
        axes.set_xlabel(_time_words(group.unit))
        axes.set_ylabel("IQM, normalised score")
        _count_thousands(axes)


def over_time(scores: Scores, method: str, tasks: Sequence[str]) -> tuple[list[int], list[Estimate]]:
    """The times at which all runs of a method were evaluated, and the interquartile mean at each of them.

    As many runs of each task as the task with the fewest has, as in the aggregates.
    """
    mine = sorted((run for run in scores.runs if run.method == method), key=lambda run: run.seed)
    runs = list(zip(*([dict(run.curve) for run in mine if run.task == task] for task in tasks), strict=False))
    times = sorted(set.intersection(*(set(curve) for run in runs for curve in run)))
    iqm = statistics.interquartile_mean
    return times, [statistics.estimate(iqm, [[c[at] for c in run] for run in runs], resamples=2000) for at in times]


def _time_words(unit: str) -> str:
    return "simulator frames" if unit == "frames" else unit


def _count_thousands(axes: "Axes") -> None:
    from matplotlib.ticker import EngFormatter

    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.margins(x=0.01)
