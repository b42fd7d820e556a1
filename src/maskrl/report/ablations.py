"""The paper's ablations: a row per label, with the paper's numbers beside ours."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from maskrl import recipes
from maskrl.analysis.protocol import method_of
from maskrl.analysis.verdict import shown
from maskrl.recipes.ablations import STUDIES, Study
from maskrl.recipes.published import PublishedAggregate, published, published_aggregates, published_scores
from maskrl.report.document import Section
from maskrl.report.groups import Group, short
from maskrl.report.tables import NOTHING, Cell, Column, Field, Table, as_printed, key_of, number, tabulated
from maskrl.report.task_by_task import RUNS, our_cell, papers_cell, papers_column

Rows = Mapping[str, Mapping[str, str]]  # label of a row → task → the name of its runs' method


def ablations(groups: Sequence[Group]) -> Section | None:
    """A table for each of the paper's studies with runs of rows other than the Baseline and MLR; None if there are none."""
    blocks = [
        _table(name, study, group, rows)
        for group in groups
        if group.suite == "dmcontrol"
        for name, study in STUDIES.items()
        if (rows := _study_rows(name, study, group))
    ]
    told = "Rows have the paper’s labels and contain the runs with that row’s recipe, in any folder."
    return Section("ablations", "Ablations", (told,), tuple(blocks)) if blocks else None


def _study_rows(name: str, study: Study, group: Group) -> Rows:
    """The rows with runs; empty if none of them is specific to this study."""
    rows = {
        label: {task: method for task in group.tasks if (method := _row_method(f"{name}/{label}", task, group))}
        for label in study.rows
    }
    changed = any(len(method.split()) > 1 for row in rows.values() for method in row.values())
    is_harder_tasks = name == "harder-tasks" and any(short(task) in study.tasks for task in group.tasks)
    return rows if changed or is_harder_tasks else {}


def _row_method(name: str, task: str, group: Group) -> str | None:
    """The name of the method of a row's runs on a task; None if there are none."""
    profiles = {run.protocol["profile"] for run in group.runs.runs if run.task == task and "profile" in run.protocol}
    for profile in profiles:
        try:
            method = method_of(recipes.ablation(name, task, profile))
        except ValueError:  # the paper has no such row on that task
            continue
        # The encoder's file may be anywhere: take all runs that start from one.
        start = method.partition("encoder_from=")[0]
        alike = [m for m in group.methods if m.startswith(f"{start}encoder_from=")] if start != method else [method]
        found = [candidate for candidate in alike if len(group.final.values(candidate, task))]
        if found:
            return found[0]
    return None


def _table(name: str, study: Study, group: Group, rows: Rows) -> Table:
    """A row per label: our columns, each followed by the paper's if requested."""
    printed = [cell.method for cell in published_scores() if cell.table == study.table]
    labels = list(dict.fromkeys([*printed, *study.rows]))  # in the paper's order
    tasks = [task for task in group.tasks if any(task in row for row in rows.values())]
    fields: list[Field[str]] = [(Column("row"), lambda label: Cell(label, strong=True))]
    for statistic in ("mean", "median"):
        fields.append(_our_aggregate(group, rows, tasks, statistic))
        fields += _papers_aggregate(study, group, statistic) if group.papers else ()
    for task in tasks:
        fields.append(_our_task(group, rows, task))
        fields += _papers_task(study, group, task, labels) if group.papers else ()
    notes = [f"paper, {study.place}: {study.seeds} seeds.", *([f"{study.note}."] if study.note else [])]
    if group.papers and group.not_the_papers:
        notes.append(f"Beside the paper’s numbers: {group.not_the_papers}.")
    return tabulated(
        key_of(group.key, "ablation", name), f"Ablation: {study.title}, {group.name}", fields, labels, notes
    )


def _our_task(group: Group, rows: Rows, task: str) -> Field[str]:
    return Column(short(task), RUNS), lambda label: our_cell(group, rows.get(label, {}).get(task), task)


def _our_aggregate(group: Group, rows: Rows, tasks: Sequence[str], statistic: str) -> Field[str]:
    """Our aggregate over all tasks of the table, for rows with all tasks."""

    def cell(label: str) -> Cell:
        row = rows.get(label, {})
        if not all(task in row for task in tasks):
            return Cell("–", note="a task is missing")
        means = [float(group.final.values(row[task], task).mean()) for task in tasks]
        return number(float(np.mean(means) if statistic == "mean" else np.median(means)), 1)

    return Column(statistic, ("",)), cell


def _papers_aggregate(study: Study, group: Group, statistic: str) -> Iterator[Field[str]]:
    """The paper's number over tasks, if there is one."""
    name = f"{statistic}_over_tasks"
    found = {a.method: a for a in published_aggregates() if (a.table, a.name) == (study.table, name)}

    def cell(line: PublishedAggregate | None) -> Cell:
        return NOTHING if line is None else as_printed(shown(line.value, 1), (line.value,), line.misprint)

    if found:
        yield papers_column(group, statistic, ("",)), lambda label: cell(found.get(label))


def _papers_task(study: Study, group: Group, task: str, labels: Sequence[str]) -> Iterator[Field[str]]:
    """The paper's numbers for a task, at each time that it reports."""
    for at in study.frames if study.table is not None else ():
        cells = {label: published(task, at, label, table=study.table) for label in labels}
        if any(cells.values()):
            title = f"{short(task)}, {at // 1000}k" if len(study.frames) > 1 else short(task)
            yield papers_column(group, title, RUNS), lambda label, cells=cells: papers_cell(cells[label])  # type: ignore[misc]
