"""The paper's ablations: its labels down, and across its numbers beside ours."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from maskrl import recipes
from maskrl.analysis.protocol import method_of
from maskrl.recipes.ablations import STUDIES, Study
from maskrl.recipes.published import PublishedAggregate, published, published_aggregates, published_scores
from maskrl.report.document import Section
from maskrl.report.groups import Group, short
from maskrl.report.tables import NOTHING, Cell, Column, Field, Mark, Table, key_of, number, shown, tabulated, words
from maskrl.report.task_by_task import RUNS, our_cell, papers_cell

Rows = Mapping[str, Mapping[str, str]]  # label of a row → task → what the method of its runs is called


def ablations(groups: Sequence[Group], *, papers: bool) -> Section | None:
    """A table for each study of the paper of which there are rows besides the Baseline and MLR itself."""
    blocks = [
        _table(name, study, papers=papers, group=group, rows=rows)
        for group in groups
        if group.suite == "dmcontrol"
        for name, study in STUDIES.items()
        if (rows := _study_rows(name, study, group))
    ]
    told = "Rows are under the paper’s labels: runs whose recipe is that row’s, whatever their folder is called."
    return Section("ablations", "Ablations", (told,), tuple(blocks)) if blocks else None


def _study_rows(name: str, study: Study, group: Group) -> Rows:
    """The rows that there are runs of; nothing if none of them is of this study in particular."""
    rows = {
        label: {task: method for task in group.tasks if (method := _row_method(f"{name}/{label}", task, group))}
        for label in study.rows
    }
    changed = any(len(method.split()) > 1 for row in rows.values() for method in row.values())
    is_harder_tasks = name == "harder-tasks" and any(short(task) in study.tasks for task in group.tasks)
    return rows if changed or is_harder_tasks else {}


def _row_method(name: str, task: str, group: Group) -> str | None:
    """What the runs of a row of an ablation are called, if there are any on that task."""
    profiles = {run.protocol["profile"] for run in group.runs.runs if run.task == task and "profile" in run.protocol}
    for profile in profiles:
        try:
            method = method_of(recipes.ablation(name, task, profile))
        except ValueError:  # the paper has no such row on that task
            continue
        # An encoder may lie anywhere: whichever it is, these are the runs that begin with one.
        start = method.partition("encoder_from=")[0]
        alike = [m for m in group.methods if m.startswith(f"{start}encoder_from=")] if start != method else [method]
        found = [candidate for candidate in alike if len(group.final.values(candidate, task))]
        if found:
            return found[0]
    return None


def _table(name: str, study: Study, *, papers: bool, group: Group | None = None, rows: Rows | None = None) -> Table:
    """The paper's labels down; across, our columns if there are runs, and the paper's after each of them if asked for."""
    why = group.not_the_papers if group else ""
    printed = [cell.method for cell in published_scores() if cell.table == study.table]
    labels = list(dict.fromkeys([*printed, *study.rows]))  # in the paper's order
    fields: list[Field[str]] = [(Column("row"), lambda label: words(label, strong=True))]
    for our, papers_fields in _pairs(study, labels, group, rows or {}):
        fields += [our] if our else []
        fields += _beside(group, papers_fields) if papers else []
    notes = [f"paper, {study.place}: {study.seeds} seeds.", *([f"{study.note}."] if study.note else [])]
    notes += [f"Beside the paper’s numbers: {why}."] if why and papers else []
    title = f"Ablation: {study.title}" + (f", {group.name}" if group else "")
    return tabulated(key_of(group.key if group else "paper", "ablation", name), title, fields, labels, notes)


def _pairs(
    study: Study, labels: Sequence[str], group: Group | None, rows: Rows
) -> Iterator[tuple[Field[str] | None, Iterator[Field[str]]]]:
    """Our column and the paper's: over tasks, and of every task."""
    tasks = [f"dmcontrol/{task}" for task in study.tasks]
    if group:
        tasks = [task for task in group.tasks if any(task in row for row in rows.values())]
    for statistic in ("mean", "median"):
        our = _our_aggregate(group, rows, tasks, statistic) if group else None
        yield our, _printed_aggregate(study, statistic)
    for task in tasks:
        our = _our_task(group, rows, task) if group else None
        yield our, _printed_task(study, task, labels, quiet=group is not None)


def _our_task(group: Group, rows: Rows, task: str) -> Field[str]:
    return Column(short(task), RUNS), lambda label: our_cell(group, rows.get(label, {}).get(task), task)


def _our_aggregate(group: Group, rows: Rows, tasks: Sequence[str], statistic: str) -> Field[str]:
    """Over all tasks of the table, for a row that has them."""

    def cell(label: str) -> Cell:
        row = rows.get(label, {})
        if not all(task in row for task in tasks):
            return words("–", note="it lacks a task")
        means = [float(group.final.values(row[task], task).mean()) for task in tasks]
        return number(float(np.mean(means) if statistic == "mean" else np.median(means)), 1)

    return Column(statistic, ("",)), cell


def _beside(group: Group | None, fields: Iterable[Field[str]]) -> list[Field[str]]:
    """The paper's columns beside ours, or alone."""
    why = group.not_the_papers if group else ""
    mark: Mark = "apart" if why else "quiet"
    return [(Column(f"paper: {c.name}", c.parts, mark, why) if group else c, make) for c, make in fields]


def _printed_aggregate(study: Study, statistic: str) -> Iterator[Field[str]]:
    """What the paper prints over tasks, if it does."""
    name = f"{statistic}_over_tasks"
    found = {a.method: a for a in published_aggregates() if (a.table, a.name) == (study.table, name)}
    if found:
        yield Column(statistic, ("",)), lambda label: _aggregate_cell(found.get(label))


def _aggregate_cell(line: PublishedAggregate | None) -> Cell:
    if line is None:
        return NOTHING
    if line.misprint:
        return Cell(f"{shown(line.value, 1)} *", (line.value,), line.misprint, "warn")
    return number(line.value, 1)


def _printed_task(study: Study, task: str, labels: Sequence[str], *, quiet: bool) -> Iterator[Field[str]]:
    """What the paper prints of a task, at each of its times."""
    for at in study.frames if study.table is not None else ():
        cells = {label: published(task, at, label, table=study.table) for label in labels}
        if any(cells.values()):
            title = f"{short(task)}, {at // 1000}k" if len(study.frames) > 1 else short(task)
            yield Column(title, RUNS), lambda label, cells=cells: papers_cell(cells[label], quiet=quiet)  # type: ignore[misc]
