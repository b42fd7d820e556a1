"""The paper's ablations: its labels down, and across its numbers beside ours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from maskrl import recipes
from maskrl.analysis.protocol import method_of
from maskrl.recipes.ablations import STUDIES, Study
from maskrl.recipes.published import PublishedAggregate, published, published_aggregates, published_scores
from maskrl.report.document import Section
from maskrl.report.groups import Group, short
from maskrl.report.tables import NOTHING, Cell, Column, Field, Table, key_of, number, shown, tabulated, words
from maskrl.report.task_by_task import RUNS, our_cell, papers_cell

Rows = Mapping[str, Mapping[str, str]]  # label of a row → task → what the method of its runs is called


def ablations(groups: Sequence[Group], *, papers: bool) -> Section | None:
    """A table for each study of the paper of which there are rows besides the Baseline and MLR itself."""
    blocks = [
        _OurTable(name, study, group, rows, papers).table()
        for group in groups
        if group.suite == "dmcontrol"
        for name, study in STUDIES.items()
        if (rows := _study_rows(name, study, group))
    ]
    told = "Rows are under the paper’s labels: runs whose recipe is that row’s, whatever their folder is called."
    return Section("ablations", "Ablations", (told,), tuple(blocks)) if blocks else None


def papers_ablations() -> Section:
    """The paper's tables alone."""
    told = (
        "The reference of these tables is MLR with 5 seeds; Table 1 has it with 10. Compare a row with the reference of its own "
        "table."
    )
    tables = [_papers_table(name, study) for name, study in STUDIES.items() if study.table is not None]
    return Section("ablations", "Ablations", (told,), tuple(tables))


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


# ── Tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────

LABEL: Field[str] = (Column("row"), lambda label: words(label, strong=True))


def _labels(study: Study) -> list[str]:
    """In the paper's order."""
    printed = [cell.method for cell in published_scores() if cell.table == study.table]
    return list(dict.fromkeys([*printed, *study.rows]))


def _notes(study: Study) -> list[str]:
    return [f"paper, {study.place}: {study.seeds} seeds.", *([f"{study.note}."] if study.note else [])]


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


def _printed_task(study: Study, task: str, *, quiet: bool) -> Iterator[Field[str]]:
    """What the paper prints of a task, at each of its times."""
    for at in study.frames if study.table is not None else ():
        cells = {label: published(task, at, label, table=study.table) for label in _labels(study)}
        if any(cells.values()):
            title = f"{short(task)}, {at // 1000}k" if len(study.frames) > 1 else short(task)
            yield Column(title, RUNS), lambda label, cells=cells: papers_cell(cells[label], quiet=quiet)  # type: ignore[misc]


def _papers_table(name: str, study: Study) -> Table:
    fields = [LABEL, *_printed_aggregate(study, "mean"), *_printed_aggregate(study, "median")]
    for task in study.tasks:
        fields += _printed_task(study, f"dmcontrol/{task}", quiet=False)
    return tabulated(
        key_of("paper", "ablation", name), f"Ablation: {study.title}", fields, _labels(study), _notes(study)
    )


@dataclass(frozen=True)
class _OurTable:
    """A study of which we have runs, with the paper's columns if they are asked for."""

    name: str
    study: Study
    group: Group
    rows: Rows
    papers: bool

    def table(self) -> Table:
        fields, why = [LABEL], self.group.not_the_papers
        for statistic in ("mean", "median"):
            fields.append((Column(statistic, ("",)), lambda label, s=statistic: self._over_tasks(label, s)))  # type: ignore[misc]
            fields += map(self._beside, _printed_aggregate(self.study, statistic) if self.papers else ())
        for task in self._tasks:
            fields.append((Column(short(task), RUNS), lambda label, task=task: self._cell(label, task)))  # type: ignore[misc]
            fields += map(self._beside, _printed_task(self.study, task, quiet=True) if self.papers else ())
        notes = _notes(self.study) + ([f"Beside the paper’s numbers: {why}."] if why and self.papers else [])
        key = key_of(self.group.key, "ablation", self.name)
        title = f"Ablation: {self.study.title}, {self.group.name}"
        return tabulated(key, title, fields, _labels(self.study), notes)

    @property
    def _tasks(self) -> list[str]:
        return [task for task in self.group.tasks if any(task in row for row in self.rows.values())]

    def _beside(self, field: Field[str]) -> Field[str]:
        """A column of the paper beside ours."""
        why, (column, make) = self.group.not_the_papers, field
        return Column(f"paper: {column.name}", column.parts, "apart" if why else "quiet", why), make

    def _cell(self, label: str, task: str) -> Cell:
        return our_cell(self.group, self.rows.get(label, {}).get(task), task)

    def _over_tasks(self, label: str, statistic: str) -> Cell:
        """Over all tasks of the table, for a row that has them."""
        row = self.rows.get(label, {})
        if not all(task in row for task in self._tasks):
            return words("–", note="it lacks a task")
        means = [float(self.group.final.values(row[task], task).mean()) for task in self._tasks]
        return number(float(np.mean(means) if statistic == "mean" else np.median(means)), 1)
