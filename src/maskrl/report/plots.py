"""Figures for a paper: learning curves, aggregates, profiles, improvement, sample efficiency.

The same scores give the same bytes: nothing of a figure tells the time or the machine. Text stays text in a PDF.
"""

import io
import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskrl import recipes
from maskrl.analysis import statistics
from maskrl.analysis.protocol import Protocol, protocol_difference, protocol_of
from maskrl.analysis.reading import RunScores
from maskrl.analysis.scores import Scores, ScoresError, scale
from maskrl.analysis.statistics import Estimate
from maskrl.envs.base import require_extra
from maskrl.recipes.published import (
    MAIN_TABLES,
    PublishedScore,
    Unit,
    published,
    published_aggregates,
    published_scores,
)
from maskrl.runs.directory import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Format = Literal["pdf", "png"]
Width = Literal["single", "double"]
Array = NDArray[np.float64]

INCHES: Mapping[Width, float] = {"single": 3.3, "double": 6.8}  # of a column of a page, and of two
RESAMPLES = 10_000
NOT_METHODS = ("Random", "Human")  # players that a scale is made of

# Okabe and Ito's colours, which all eyes tell apart, without their yellow, which is hard to see on white, and some darker
# ones: a method of the paper has its own in every figure. Others get Tol's muted ones, in the order of their names.
COLOURS = {
    "mlr": "#0072B2", "baseline": "#D55E00", "playvirtual": "#009E73", "drq": "#CC79A7", "curl": "#E69F00",
    "spr": "#56B4E9", "dreamer": "#7A5195", "sac+ae": "#444444", "slac": "#8C6D31", "planet": "#9A9A9A",
    "der": "#7A5195", "otr": "#444444",  # of Atari, where the four before them are not
}  # fmt: skip
OTHER_COLOURS = ("#882255", "#117733", "#332288", "#AA4499", "#999933", "#661100")
DASHES = ("-", "--", ":", "-.")
NAMES = {"mlr": "MLR", "baseline": "Baseline"}
TITLES = {"mean": "Mean", "median": "Median", "iqm": "IQM", "optimality_gap": "Optimality gap"}


@dataclass
class Figures:
    """Where figures go, and which were made; and in plain words, what could not be drawn."""

    out: Path
    format: Format = "pdf"
    width: Width = "single"
    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    altered: bool = False  # whether all methods have overrides that are not in their names
    names: Mapping[str, str] = field(default_factory=dict)  # method → what it is called, in every figure

    @property
    def inches(self) -> float:
        return INCHES[self.width]

    @contextmanager
    def figure(self, name: str, height: float) -> Iterator["Figure"]:
        """A figure of so many inches, written when all is drawn; whole or not at all."""
        require_extra("matplotlib", "report")
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_pdf import FigureCanvasPdf
        from matplotlib.figure import Figure  # without pyplot, which would ask for a window system

        style: dict[Any, Any] = {
            "text.parse_math": False,  # a $ in the name of a task is a $
            "pdf.fonttype": 42, "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7.5,
            "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.spines.top": False, "axes.spines.right": False,
            "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "axes.axisbelow": True,
            "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5, "lines.linewidth": 1.4, "legend.frameon": False,
        }  # fmt: skip
        with matplotlib.rc_context(style):
            figure = Figure(figsize=(self.inches, height), layout="constrained")
            yield figure
            file, path = io.BytesIO(), self.out / f"{name}.{self.format}"
            if self.format == "pdf":
                metadata = {"Creator": "maskrl", "Producer": None, "CreationDate": None}
                FigureCanvasPdf(figure).print_pdf(file, metadata=metadata)  # type: ignore[no-untyped-call]
            else:
                figure.set_dpi(300)
                FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})  # type: ignore[no-untyped-call]
        self.out.mkdir(parents=True, exist_ok=True)
        write_whole(path, file.getvalue())
        self.files.append(path)


class Style(NamedTuple):
    """How a method looks in every figure."""

    colour: str
    dashes: str


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """One for each. A known method's is always the same; if several have its name, in other letters, their dashes differ.
    24 others differ from each other.
    """
    free = itertools.cycle(Style(colour, dashes) for dashes in DASHES for colour in OTHER_COLOURS)
    found = dict[str, Style]()
    for method in sorted(set(methods), key=_by_name):
        name = method.lower()
        before = sum(other.lower() == name for other in found)
        found[method] = Style(COLOURS[name], DASHES[before % len(DASHES)]) if name in COLOURS else next(free)
    return found


def draw(
    scores: Scores, out: Path, *, format: Format = "pdf", width: Width = "single", against_paper: bool = False
) -> Figures:
    """All figures that the scores allow. Runs that may not be put together are drawn apart."""
    figures = Figures(out, format, width)
    figures.problems += scores.problems
    scores, shared = _without_shared_words(scores)
    if shared:
        figures.problems.append(f"All methods have {' '.join(shared)}, which is left out of their names.")
    figures.altered = bool(shared)
    groups = scores.groups()
    looks = styles(_paper_methods()) | styles(scores.methods)
    figures.names = _names(scores.methods)
    names = _group_names(groups)
    if len(groups) > 1:
        told = "; ".join(f"{name} ({len(group.runs)} runs)" for name, group in zip(names, groups, strict=True))
        figures.problems.append(f"These runs are drawn apart, for they do not have the same protocol: {told}.")
    for name, group in zip(names, groups, strict=True):
        _draw_group(figures, name, group, looks, against_paper)
    return figures


def draw_published(out: Path, *, format: Format = "pdf", width: Width = "single") -> Figures:
    """The paper's main tables: what they say over tasks. They hold means, so there are no intervals over runs."""
    figures = Figures(out, format, width)
    looks = styles(_paper_methods())
    suites: tuple[tuple[str, Unit, tuple[int, ...]], ...] = (
        ("dmcontrol", "frames", (100_000, 500_000)),
        ("atari", "decisions", (100_000,)),
    )
    for suite, unit, times in suites:
        tasks = sorted({score.task for score in _main_scores() if score.task.startswith(f"{suite}/")})
        for method in dict.fromkeys(score.method for score in _main_scores() if score.task in tasks):
            have = {score.task for score in _main_scores() if score.method == method}
            if method not in NOT_METHODS and not have.issuperset(tasks):
                missing = ", ".join(sorted(set(tasks) - have))
                figures.problems.append(f"{method} is left out: the paper has no score of it on {missing}.")
        by_time = {at: [replace(column, remark="") for column in _paper_columns(tasks, at, unit)] for at in times}
        for at, columns in by_time.items():
            name = f"{suite}-{_short(at)}"
            _tasks(figures, f"tasks-{name}", columns, looks)
            _aggregates(figures, f"aggregates-{name}", columns, looks)
            _profiles(figures, f"profiles-{name}", columns, looks)
            _improvement(figures, f"improvement-{name}", columns, looks)
        if len(times) > 1:
            _paper_efficiency(figures, f"efficiency-{suite}", by_time, looks, unit)
    return figures


def _without_shared_words(scores: Scores) -> tuple[Scores, list[str]]:
    """Overrides that every method has tell none from another: "mlr seed=1" and "baseline seed=1" are mlr and baseline."""
    words = [method.split()[1:] for method in scores.methods]
    shared = [word for word in words[0] if "=" in word and all(word in others for others in words)] if words else []
    runs = [replace(r, method=" ".join(w for w in r.method.split() if w not in shared)) for r in scores.runs]
    return replace(scores, runs=tuple(runs)) if shared else scores, shared


# ── What is drawn: methods on tasks ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Column:
    """A method's scores on the same tasks as those of its neighbours, normalised."""

    method: str
    tasks: tuple[str, ...]
    scores: Array  # (runs, tasks); of the paper one row of means
    name: str = ""  # if it is not called what the paper calls it
    paper: bool = False
    remark: str = "paper"  # beside the name of the paper's: where it is from, and whether it may be compared
    spread: Array | None = None  # (tasks,): standard deviation over seeds, where the paper prints one
    printed: Mapping[str, float] = field(
        default_factory=dict
    )  # aggregates that the paper prints, of runs that we do not have

    @property
    def label(self) -> str:
        name = self.name or NAMES.get(self.method.lower(), self.method)
        return f"{name} ({self.remark})" if self.paper and self.remark else name


def _draw_group(figures: Figures, name: str, scores: Scores, looks: Mapping[str, Style], against_paper: bool) -> None:
    _curves(figures, f"curves-{name}", scores, looks, against_paper)
    final = scores.at()
    on_scale = final.normalised()
    figures.problems += [problem for problem in on_scale.problems if problem not in figures.problems]
    columns = _columns(figures, name, on_scale)
    if not columns:
        return
    if against_paper:
        columns += _beside(figures, name, on_scale, columns[0].tasks)
    _tasks(figures, f"tasks-{name}", columns, looks)
    _aggregates(figures, f"aggregates-{name}", columns, looks)
    _profiles(figures, f"profiles-{name}", columns, looks)
    _improvement(figures, f"improvement-{name}", columns, looks)
    finished = {_identity(run) for run in on_scale.runs}  # the same runs as in the aggregates
    over_time = scores.where(lambda run: _identity(run) in finished).normalised()
    _efficiency(figures, f"efficiency-{name}", over_time, [c for c in columns if not c.paper], looks)


def _identity(run: RunScores) -> tuple[str, str, int, str]:
    return run.method, run.task, run.seed, run.source


def _beside(figures: Figures, name: str, scores: Scores, tasks: Sequence[str]) -> list[Column]:
    """The paper's columns for these runs. Where they may not be compared, their labels say so."""
    time, unit = scores.runs[0].curve[0][0], scores.runs[0].unit
    at = time if _paper_columns(tasks, time, unit) else 100_000
    theirs = _paper_columns(tasks, at, unit)
    if not theirs:
        counted = _paper_columns(tasks, 100_000, "decisions" if unit == "frames" else "frames")
        why = f" in {unit}, which these runs are counted in" if counted else ""
        figures.problems.append(f"{name}: the paper has no scores on these tasks{why}.")
        return []
    if any("profile" not in run.protocol for run in scores.runs):
        figures.problems.append(f"{name}: a CSV does not tell its protocol; it is taken for the paper's.")
    if at != time:
        figures.problems.append(
            f"{name}: these runs end at {time:,} {unit}, of which the paper has no scores: its columns at {at:,} are no yardstick."
        )
    if altered := figures.altered or not _is_papers(scores):
        figures.problems.append(
            f"{name}: these runs do not have the paper's protocol, so its columns are no yardstick."
        )
    remark = f"paper at {_short(at)}, not comparable" if altered or at != time else "paper"
    return [replace(column, remark=remark) for column in theirs]


def _columns(figures: Figures, name: str, scores: Scores) -> list[Column]:
    """The methods on the tasks that all of them have."""
    if not scores.runs:
        figures.problems.append(f"{name}: no run has a score at the end of its budget, so only its curves are drawn.")
        return []
    by_method = {m: {run.task for run in scores.runs if run.method == m} for m in _order(scores.methods)}
    common = tuple(sorted(set.intersection(*by_method.values())))
    if left_out := sorted(set(scores.tasks) - set(common)):
        figures.problems.append(f"{name}: not all methods have scores on {', '.join(left_out)}: not in the aggregates.")
    if not common:
        return []
    try:
        return [Column(m, common, scores.matrix(m, common), figures.names.get(m, "")) for m in by_method]
    except ScoresError as error:
        figures.problems.append(f"{name}: {error}")
        return []


def _paper_columns(tasks: Sequence[str], at: int, unit: Unit) -> list[Column]:
    """The methods that the paper has on all of these tasks at that time."""
    found = [_paper_column(tasks, at, unit, method) for method in _order(_paper_methods())]
    return [column for column in found if column is not None]


def _paper_column(tasks: Sequence[str], at: int, unit: Unit, method: str) -> Column | None:
    cells = [published(task, at, method) for task in tasks]
    scales = [scale(task) for task in tasks]
    if not tasks or any(cell is None or cell.unit != unit for cell in cells) or any(ends is None for ends in scales):
        return None
    pairs = [(cell, ends) for cell, ends in zip(cells, scales, strict=True) if cell is not None and ends is not None]
    means = np.array([[(cell.mean - zero) / (one - zero) for cell, (zero, one) in pairs]])
    usable = all(cell.std is not None and not cell.misprint for cell, _ in pairs)
    spread = np.array([(cell.std or 0.0) / abs(one - zero) for cell, (zero, one) in pairs]) if usable else None
    whole = {score.task for score in _main_scores() if score.table == pairs[0][0].table} == set(tasks)
    printed = {
        line.name: line.value
        for line in published_aggregates()
        if whole and (line.table, line.method, line.at) == (pairs[0][0].table, method, at) and line.name in TITLES
    }
    return Column(method, tuple(tasks), means, paper=True, spread=spread, printed=printed)


def _main_scores() -> list[PublishedScore]:
    return [score for score in published_scores() if score.table in (MAIN_TABLES[0], MAIN_TABLES[2])]


def _paper_methods() -> list[str]:
    return [name for name in dict.fromkeys(score.method for score in _main_scores()) if name not in NOT_METHODS]


# ── Figures ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _curves(figures: Figures, name: str, scores: Scores, looks: Mapping[str, Style], against_paper: bool) -> None:
    """A panel per task: the mean over seeds with its interval, every seed as a thin line, and the paper's score as a band."""
    from matplotlib.ticker import EngFormatter

    tasks, methods = scores.tasks, _order(scores.methods)
    many = len(tasks) > 12
    widest = {"single": 3 if many else 2, "double": 5 if many else 4 if len(tasks) % 4 == 0 else 3}[figures.width]
    across = min(len(tasks), widest)
    down = math.ceil(len(tasks) / across)
    height = 0.4 + down * min(1.75, 0.8 * figures.inches / across)
    with figures.figure(name, height) as figure:
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat[len(tasks) :]:
            axes.set_visible(False)
        handles, bands = dict[str, Any](), dict[str, Any]()
        for axes, task in zip(grid.flat, tasks, strict=False):
            axes.set_title(task.partition("/")[2])
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            for method in methods:
                runs = [run for run in scores.runs if (run.method, run.task) == (method, task)]
                if not runs:
                    continue
                line = _curve(figures, axes, runs, looks[method])
                handles.setdefault(method, line)
                band = _paper_band(figures, axes, runs, looks[method], against_paper)
                if band is not None:
                    bands.setdefault(*band)
            axes.margins(x=0.01)
        unit = scores.runs[0].unit
        for place, axes in enumerate(grid.flat[: len(tasks)]):
            if place + across >= len(tasks):
                axes.set_xlabel(_time_words(unit))
            if place % across == 0:
                axes.set_ylabel("score")
        labels = [*(figures.names.get(method, method) for method in handles), *bands]
        figure.set_figheight(min(9.2, height + _legend_height(labels, figures.inches)))
        _legend(figure, [*handles.values(), *bands.values()], labels, figures.inches)


def _curve(figures: Figures, axes: "Axes", runs: Sequence[RunScores], style: Style) -> Any:
    for run in runs:
        if len(runs) > 1:
            axes.plot(
                *zip(*run.curve, strict=True), color=style.colour, linestyle=style.dashes, linewidth=0.5, alpha=0.45
            )
    times = sorted(set.intersection(*({at for at, _ in run.curve} for run in runs)))
    if not times:
        figures.problems.append(
            f"{runs[0].method} on {runs[0].task}: its runs were never evaluated at the same time: no mean."
        )
        return axes.plot([], [], color=style.colour, linestyle=style.dashes)[0]
    values = np.array([[dict(run.curve)[at] for at in times] for run in runs])
    middle, low, high = statistics.estimate(lambda matrix: matrix.mean(axis=-2), values, resamples=RESAMPLES)
    if not np.isnan(low).any():
        axes.fill_between(times, low, high, color=style.colour, alpha=0.18, linewidth=0)
    return axes.plot(
        times, middle, color=style.colour, linestyle=style.dashes, marker="o" if len(times) == 1 else "", markersize=3
    )[0]


def _paper_band(
    figures: Figures, axes: "Axes", runs: Sequence[RunScores], style: Style, asked: bool
) -> tuple[str, Any] | None:
    """The paper's score at the end of these runs; of runs with another protocol only if asked for, and then in grey."""
    comparable = _is_papers(Scores(tuple(runs))) and not figures.altered
    time = runs[0].budget or 0
    cell = published(runs[0].task, time, runs[0].method)
    cell = cell or (published(runs[0].task, 100_000, runs[0].method) if asked else None)
    if cell is None or cell.unit != runs[0].unit or not (comparable or asked):
        return None
    colour, shown = (style.colour, "") if comparable and cell.at == time else ("#777777", ", not comparable")
    spread = 0.0 if cell.misprint else cell.std or 0.0
    axes.axhspan(cell.mean - spread, cell.mean + spread, color=colour, alpha=0.1, linewidth=0)
    line = axes.axhline(
        cell.mean, color=colour, linewidth=0.8, linestyle=(0, (4, 2) if cell.method == "MLR" else (1, 1.5))
    )
    return f"{cell.method}, paper at {_short(cell.at)}{shown}", line


def _aggregates(figures: Figures, name: str, columns: Sequence[Column], looks: Mapping[str, Style]) -> None:
    """A panel per aggregate, a row per method; an interval where there are runs to resample."""
    found = [_with_printed(statistics.estimate_all(column.scores, resamples=RESAMPLES), column) for column in columns]
    panels = [["mean", "median"], ["iqm", "optimality_gap"]] if figures.width == "single" else [list(TITLES)]
    lines = sum(1 + _wrapped(column.label).count("\n") for column in columns)
    with figures.figure(name, len(panels) * (0.5 + 0.17 * lines) + 0.15) as figure:
        grid = figure.subplots(len(panels), len(panels[0]), sharey=True, squeeze=False)
        for axes, aggregate in zip(grid.flat, [key for row in panels for key in row], strict=True):
            axes.set_title(TITLES[aggregate] + (" ↓" if aggregate == "optimality_gap" else " ↑"))
            for place, column in enumerate(columns):
                _interval(
                    axes,
                    found[place][aggregate],
                    place,
                    looks[column.method].colour,
                    hollow=column.paper,
                )
            axes.set_yticks(range(len(columns)), [_wrapped(column.label) for column in columns])
            axes.set_ylim(len(columns) - 0.5, -0.5)
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
            axes.margins(x=0.12)
            axes.locator_params(axis="x", nbins=3)
        figure.supxlabel(_scale_words(columns), fontsize=8)


def _with_printed(found: dict[str, Estimate], column: Column) -> dict[str, Estimate]:
    """What the paper prints of its runs instead of what its means over runs give."""
    nothing = np.asarray(math.nan)
    return found | {key: Estimate(np.asarray(value), nothing, nothing) for key, value in column.printed.items()}


def _interval(axes: "Axes", estimate: Estimate, place: float, colour: str, *, hollow: bool) -> None:
    value, low, high = (float(part) for part in estimate)
    if not math.isnan(low):
        axes.plot([low, high], [place, place], color=colour, linewidth=4.5, alpha=0.35, solid_capstyle="butt")
    face = "white" if hollow else colour
    axes.plot([value], [place], marker="o" if hollow else "|", markersize=4 if hollow else 8, markeredgewidth=1.2 if hollow else 2,
              color=colour, markerfacecolor=face, linestyle="none")  # fmt: skip


def _tasks(figures: Figures, name: str, columns: Sequence[Column], looks: Mapping[str, Style]) -> None:
    """A row per task: every run as a dot and their mean as a stroke, or the paper's mean with its spread."""
    tasks, share = columns[0].tasks, 0.8 / len(columns)
    height = min(
        9.2,
        0.6 + len(tasks) * max(0.24, 0.075 * len(columns)) + _legend_height([c.label for c in columns], figures.inches),
    )
    with figures.figure(name, height) as figure:
        axes = figure.subplots()
        for number, column in enumerate(columns):
            colour = looks[column.method].colour
            for place, values in enumerate(column.scores.T):
                y = place + (number - (len(columns) - 1) / 2) * share
                if column.paper:
                    bar = None if column.spread is None else column.spread[place]
                    axes.errorbar(values, [y], xerr=bar, color=colour, marker="o", markersize=2.8, markerfacecolor="white",
                                  markeredgewidth=0.9, linewidth=0.8, alpha=0.9)  # fmt: skip
                else:
                    axes.plot(
                        values, [y] * len(values), "o", color=colour, markersize=2.2, alpha=0.55, markeredgewidth=0
                    )
                    axes.plot([values.mean()], [y], marker="|", color=colour, markersize=7, markeredgewidth=1.6)
            axes.plot(
                [],
                [],
                "o",
                color=colour,
                markersize=3.5,
                markerfacecolor="white" if column.paper else colour,
                label=column.label,
            )
        axes.set_yticks(range(len(tasks)), [task.partition("/")[2] for task in tasks])
        axes.set_ylim(len(tasks) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        for edge in range(1, len(tasks)):
            axes.axhline(edge - 0.5, color="#888888", alpha=0.25, linewidth=0.5)
        axes.grid(axis="y", visible=False)
        if max(float(column.scores.max()) for column in columns) > 3:  # a few games are far beyond a human
            axes.set_xscale("symlog", linthresh=1)
            axes.set_xticks([-1, 0, 0.5, 1, 2, 5, 10], ["−1", "0", "0.5", "1", "2", "5", "10"])
            axes.minorticks_off()
        axes.set_xlabel(_scale_words(columns))
        _legend(figure, *axes.get_legend_handles_labels(), figures.inches)


def _profiles(figures: Figures, name: str, columns: Sequence[Column], looks: Mapping[str, Style]) -> None:
    """The share of runs, over all tasks, that score above each threshold."""
    most = max(float(column.scores.max()) for column in columns)
    least = min(0.0, *(float(column.scores.min()) for column in columns))
    thresholds = np.linspace(least, min(2.0, most * 1.02) if most > 0 else 1.0, 241)
    with figures.figure(
        name, 0.7 * INCHES["single"] + _legend_height([c.label for c in columns], figures.inches)
    ) as figure:
        axes = figure.subplots()
        for column in columns:
            colour, dashes = looks[column.method]
            value, low, high = statistics.estimate_profile(column.scores, thresholds, resamples=2000)
            if not np.isnan(low).any():
                axes.fill_between(thresholds, low, high, color=colour, alpha=0.15, linewidth=0, step=None)
            style = (0, (1, 1)) if column.paper and dashes == "-" and _has_runs(columns) else dashes
            axes.plot(
                thresholds,
                value,
                color=colour,
                linestyle=style,
                label=column.label,
                linewidth=1.0 if column.paper else 1.4,
            )
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel(f"threshold τ, {_scale_words(columns)}")
        axes.set_ylabel("share above τ")
        _legend(figure, *axes.get_legend_handles_labels(), figures.inches)


def _improvement(figures: Figures, name: str, columns: Sequence[Column], looks: Mapping[str, Style]) -> None:
    """How probable it is that a run of the first method beats one of another, on a task drawn at random."""
    by_runs = [column for column in columns if not column.paper]
    pairs: list[tuple[Column, Column, Estimate]]
    if len(by_runs) > 1:
        first, words = by_runs[0], ""
        pairs = [
            (first, other, statistics.estimate_improvement(first.scores, other.scores, resamples=RESAMPLES))
            for other in by_runs[1:]
        ]
    else:
        told = [column for column in columns if column.paper and column.spread is not None]
        if by_runs or len(told) < 2:
            return
        first, words = told[0], ", by mean and spread"
        nothing = np.asarray(math.nan)
        pairs = [(first, other, Estimate(np.asarray(_beats(first, other)), nothing, nothing)) for other in told[1:]]
    lines = sum(1 + _wrapped(other.label).count("\n") for _, other, _ in pairs)
    with figures.figure(name, 0.62 + 0.19 * lines) as figure:
        axes = figure.subplots()
        for place, (_, other, estimate) in enumerate(pairs):
            _interval(axes, estimate, place, looks[other.method].colour, hollow=other.paper)
        axes.axvline(0.5, color="#555555", linewidth=0.8, linestyle="--")
        axes.set_xlim(0, 1)
        axes.set_yticks(range(len(pairs)), [_wrapped(other.label) for _, other, _ in pairs])
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"P({first.label} > other){words}")


def _beats(x: Column, y: Column) -> float:
    """The mean over tasks of the probability that x is larger, if scores were normally distributed."""
    assert x.spread is not None
    assert y.spread is not None
    gaps, spreads = (x.scores - y.scores)[0], np.hypot(x.spread, y.spread)
    return float(
        np.mean(
            [NormalDist().cdf(g / s) if s > 0 else (1 + np.sign(g)) / 2 for g, s in zip(gaps, spreads, strict=True)]
        )
    )


def _efficiency(
    figures: Figures, name: str, scores: Scores, columns: Sequence[Column], looks: Mapping[str, Style]
) -> None:
    """The interquartile mean over tasks as the runs go on."""
    from matplotlib.ticker import EngFormatter

    lines = [(column, *_over_time(scores, column)) for column in columns]
    if all(len(times) < 2 for _, times, _ in lines):
        figures.problems.append(f"{name}: no two times at which all runs were evaluated: not drawn.")
        return
    with figures.figure(
        name, 0.68 * INCHES["single"] + _legend_height([c.label for c in columns], figures.inches)
    ) as figure:
        axes = figure.subplots()
        for column, times, (value, low, high) in lines:
            colour, dashes = looks[column.method]
            if not np.isnan(low).any():
                axes.fill_between(times, low, high, color=colour, alpha=0.18, linewidth=0)
            axes.plot(times, value, color=colour, linestyle=dashes, label=column.label)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        unit = scores.runs[0].unit
        axes.set_xlabel(_time_words(unit))
        axes.set_ylabel(f"IQM, {_scale_words(columns)}")
        axes.margins(x=0.01)
        _legend(figure, *axes.get_legend_handles_labels(), figures.inches)


def _over_time(scores: Scores, column: Column) -> tuple[list[int], Estimate]:
    """The times at which all runs of the column were evaluated, and the interquartile mean at each of them."""
    curves = [
        [
            dict(run.curve)
            for run in sorted(scores.runs, key=lambda run: run.seed)
            if (run.method, run.task) == (column.method, task)
        ]
        for task in column.tasks
    ]
    runs = len(column.scores)
    used = [curve for of_task in curves for curve in of_task[:runs]]
    times = sorted(set.intersection(*(set(curve) for curve in used)))
    found = [
        statistics.estimate(
            statistics.interquartile_mean,
            [[of_task[run][at] for of_task in curves] for run in range(runs)],
            resamples=2000,
        )
        for at in times
    ]
    return times, Estimate(
        *(np.array([float(part) for part in parts]) for parts in zip(*found, strict=True))
        if found
        else [np.empty(0)] * 3
    )


def _paper_efficiency(
    figures: Figures, name: str, by_time: Mapping[int, Sequence[Column]], looks: Mapping[str, Style], unit: Unit
) -> None:
    """The mean over tasks at the two times that the paper has."""
    from matplotlib.ticker import EngFormatter

    with figures.figure(name, 0.75 * INCHES["single"] + 0.1) as figure:
        axes = figure.subplots()
        for column in next(iter(by_time.values())):
            means = {
                at: float(c.scores.mean())
                for at, columns in by_time.items()
                for c in columns
                if c.method == column.method
            }
            colour, dashes = looks[column.method]
            axes.plot(
                list(means),
                list(means.values()),
                color=colour,
                linestyle=dashes,
                marker="o",
                markersize=3,
                label=column.label,
            )
        axes.set_xticks(list(by_time))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel(_time_words(unit))
        axes.set_ylabel(f"mean, {_scale_words(column for columns in by_time.values() for column in columns)}")
        _legend(figure, *axes.get_legend_handles_labels(), figures.inches)


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _time_words(unit: Unit) -> str:
    return "simulator frames" if unit == "frames" else unit


def _legend(figure: "Figure", handles: Sequence[Any], labels: Sequence[str], inches: float) -> None:
    across = _across(labels, inches)
    figure.legend(handles, labels, loc="outside lower center", ncols=across, columnspacing=1.2, handlelength=1.6)


def _across(labels: Sequence[str], inches: float) -> int:
    """Entries of a legend side by side; a letter of its size is about 1/16 of an inch wide."""
    longest = max(map(len, labels), default=1)
    return max(1, min(len(labels), 4, int(inches / (0.45 + longest / 16))))


def _legend_height(labels: Sequence[str], inches: float) -> float:
    return 0.16 * math.ceil(len(labels) / _across(labels, inches))


def _wrapped(label: str) -> str:
    """For the side of an axis."""
    return textwrap.fill(label, 20)


def _has_runs(columns: Sequence[Column]) -> bool:
    return any(not column.paper for column in columns)


def _scale_words(columns: Iterable[Column]) -> str:
    suite = next(iter(columns)).tasks[0].partition("/")[0]
    return {"atari": "human-normalised score", "dmcontrol": "score / 1000"}.get(suite, "normalised score")


def _order(methods: Iterable[str]) -> list[str]:
    """MLR first, its Baseline second, then by name."""
    return sorted(methods, key=lambda method: ({"mlr": 0, "baseline": 1}.get(method.lower(), 2), *_by_name(method)))


def _by_name(method: str) -> tuple[str, str]:
    return method.lower(), method


def _names(methods: Sequence[str]) -> dict[str, str]:
    """As the paper writes them, unless two would be called the same. Long ones are cut, only as far as they stay distinct."""
    named = [NAMES.get(method.lower(), method) for method in methods]
    whole = [name if named.count(name) == 1 else method for method, name in zip(methods, named, strict=True)]
    tries = (
        [_cut(name, length, tail) for name in whole] for length in itertools.count(44) for tail in (0, length // 2)
    )
    return dict(zip(methods, next(cut for cut in tries if len(set(cut)) == len(set(whole))), strict=True))


def _cut(name: str, length: int, tail: int) -> str:
    """At most so many letters, of which the last ones are the name's last."""
    return name if len(name) <= length else f"{name[: length - 1 - tail]}…{name[len(name) - tail :]}"


def _short(time: int) -> str:
    return f"{time // 1000}k" if time % 1000 == 0 else str(time)


def _is_papers(scores: Scores) -> bool:
    """Whether nothing that is told of these runs departs from the paper's protocol, budgets aside."""
    return not any(protocol_difference(_papers_protocol(run.task), run.protocol) for run in scores.runs)


@cache
def _papers_protocol(task: str) -> Protocol:
    try:
        protocol = protocol_of(recipes.find(task, "paper"))
    except ValueError:  # a task of somebody's own
        return {}
    return {path: value for path, value in protocol.items() if not path.startswith("budget.")}


def _group_names(groups: Sequence[Scores]) -> list[str]:
    """The suite; where it has several groups also the profile and the budget, and at last a number."""
    suites = [group.runs[0].suite for group in groups]
    long = []
    for group, suite in zip(groups, suites, strict=True):
        run = group.runs[0]
        parts = [suite, run.protocol.get("profile"), _short(run.budget) if run.budget else None]
        long.append("-".join(str(part) for part in parts if part) if suites.count(suite) > 1 else suite)
    named = [
        f"{name}-{long[: place + 1].count(name)}" if long.count(name) > 1 else name for place, name in enumerate(long)
    ]
    return ["".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name) for name in named]
