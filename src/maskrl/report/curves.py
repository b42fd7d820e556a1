"""Learning curves: a thin line per seed, a thick one for the mean, and the paper's score at its budget."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from maskrl.analysis.statistics import ENOUGH
from maskrl.analysis.verdict import GAIN
from maskrl.recipes.published import plainly, published
from maskrl.report.document import Chart, Section
from maskrl.report.groups import Group, in_order, short

MOST_POINTS = 60_000  # of all learning curves on a page

Curve = Sequence[tuple[int, float]]  # (time, value)


def curves(group: Group, *, most: int) -> Section:
    """The section on learning curves, a panel per task. `most`: maximum points of a line."""
    panels = []
    for task in group.tasks:
        runs = {method: group.runs_of(method, task) for method in group.methods}
        lines = [method_lines(method, [(run.seed, run.curve) for run in mine], most) for method, mine in runs.items()]
        bands = _bands(group, task) if group.papers else []
        panels.append({"title": short(task), "methods": [line for line in lines if line["seeds"]], "bands": bands})
    told = ["Thin lines are seeds; thick lines are their mean, dashed after some seeds have ended."]
    if any(panel["bands"] for panel in panels):
        apart = f" Here it is {group.not_the_papers}." if group.not_the_papers else ""
        told.append(
            "A dashed line is the paper's mean at its budget, and a band its standard deviation over seeds: a spread, not a "
            f"confidence interval. Below {ENOUGH} seeds there is no band.{apart}"
        )
    longest = max((len(run.curve) for run in group.runs.runs), default=0)
    if longest > most:
        told.append(f"Curves have up to {longest} points, of which {most} are drawn, including the first and last.")
    data = {"unit": group.unit, "y": "score", "panels": panels, "apart": group.not_the_papers}
    chart = Chart(f"{group.key}-curves-chart", "curves", f"Learning curves, {group.name}", data)
    return Section(f"{group.key}-curves", "Learning curves", tuple(told), (chart,), over=group.name)


def _bands(group: Group, task: str) -> list[dict[str, Any]]:
    """The paper's scores of its own methods and of those with runs, at each of the runs' times.

    A spread of a few seeds, or of an unknown number, would look as certain as one of ten: it is left out.
    """
    ours = {plainly(method): method for method in reversed(group.methods)}
    times = {at for run in group.runs.runs if run.task == task for at in (run.budget, *(at for at, _ in run.curve))}
    found = [
        published(task, at, method)
        for method in in_order({*GAIN, *group.methods})
        for at in sorted(time for time in times if time is not None)
    ]
    return [
        {
            "name": ours.get(plainly(cell.method), cell.method),
            "label": f"paper: {cell.method}",
            "at": cell.at,
            "mean": cell.mean,
            "std": None if cell.misprint or (cell.seeds or 0) < ENOUGH else cell.std,
        }
        for cell in dict.fromkeys(cell for cell in found if cell is not None and cell.unit == group.unit)
    ]


def method_lines(method: str, curves: Sequence[tuple[int, Curve]], most: int) -> dict[str, Any]:
    """The lines of a method in a panel, from (seed, curve) pairs."""
    seeds = [{"seed": seed, "points": thinned(curve, most)} for seed, curve in curves]
    return {"name": method, "seeds": seeds, "mean": thinned(mean_curve(curve for _, curve in curves), most)}


def mean_curve(curves: Iterable[Curve]) -> list[tuple[int, float, int]]:
    """(time, mean, number of curves) at each time with a point."""
    at: dict[int, list[float]] = defaultdict(list)
    for curve in curves:
        for time, score in curve:
            at[time].append(score)
    return [(time, math.fsum(scores) / len(scores), len(scores)) for time, scores in sorted(at.items())]


def thinned(points: Sequence[tuple[float, ...]], most: int) -> list[list[float]]:
    """At most `most` evenly chosen points, including the first and the last. Values keep six digits, times all."""
    if len(points) > most:
        points = [points[index] for index in np.linspace(0, len(points) - 1, most).round().astype(int)]
    return [[time, *(float(f"{value:.6g}") for value in values)] for time, *values in points]
