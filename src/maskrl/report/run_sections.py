"""The sections of a report on the runs themselves: ablations, representation, time, versions and gaps."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from maskrl import recipes
from maskrl.analysis.protocol import method_of, protocol_hash
from maskrl.analysis.statistics import Summary
from maskrl.recipes.ablations import STUDIES, Study
from maskrl.recipes.published import (
    published,
    published_aggregates,
    published_scores,
    representation_cosines,
    training_hours,
)
from maskrl.report.document import Chart, Line, Lines, Section
from maskrl.report.gather import LITE, Group, RunFacts, is_number, short
from maskrl.report.sections import MOST_LINES, mean_curve, our_cell, papers_cell, ranges, thinned
from maskrl.report.tables import Cell, Column, Mark, Table, key_of, number, shown, spread, words

# ── Ablations ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def ablations(groups: Sequence[Group], *, papers: bool) -> Section | None:
    """A table for each study of the paper of which there are rows besides the Baseline and MLR itself."""
    blocks = [
        ablation_table(name, study, group, rows, papers=papers)
        for group in groups
        if group.suite == "dmcontrol"
        for name, study in STUDIES.items()
        if (rows := _study_rows(name, study, group))
    ]
    if not blocks:
        return None
    told = "Rows are under the paper’s labels: runs whose recipe is that row’s, whatever their folder is called."
    return Section("ablations", "Ablations", (told,), tuple(blocks))


def _study_rows(name: str, study: Study, group: Group) -> dict[str, dict[str, str]]:
    """Label → task → the method of its runs; nothing if there are no runs of this study in particular."""
    rows = {
        label: {task: method for task in group.tasks if (method := _row_method(f"{name}/{label}", task, group))}
        for label in study.rows
    }
    special = any(method not in ("mlr", "baseline") for row in rows.values() for method in row.values())
    is_harder_tasks = name == "harder-tasks" and any(short(task) in study.tasks for task in group.tasks)
    return rows if special or is_harder_tasks else {}


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


def ablation_table(
    name: str, study: Study, group: Group | None, rows: Mapping[str, Mapping[str, str]], *, papers: bool
) -> Table:
    """The paper's labels down, mean and median, and tasks across. Without a group, the paper's numbers alone."""
    printed = dict.fromkeys(cell.method for cell in published_scores() if cell.table == study.table)
    labels = list(dict.fromkeys([*printed, *study.rows]))  # in the paper's order
    tasks = [f"dmcontrol/{task}" for task in study.tasks]
    if group is not None:
        tasks = [task for task in group.tasks if any(task in row for row in rows.values())]
    why = group.not_the_papers if group else ""
    parts = ("mean", "std", "runs")
    columns, makers = [Column("row")], list[Any]()
    for statistic in ("mean", "median"):
        if group is not None:
            columns.append(Column(statistic, ("",)))
            makers.append(lambda label, statistic=statistic: _over_tasks(group, rows.get(label, {}), tasks, statistic))
        found = {
            line.method: line
            for line in published_aggregates()
            if papers and line.table == study.table and line.name == f"{statistic}_over_tasks"
        }
        if found:
            title = f"paper: {statistic}" if group else statistic
            columns.append(Column(title, ("",), "apart" if why else "quiet" if group else "", why))
            makers.append(lambda label, found=found: _aggregate_cell(found.get(label)))
    for task in tasks:
        if group is not None:
            columns.append(Column(short(task), parts))
            makers.append(lambda label, task=task: _row_cell(group, rows.get(label, {}).get(task), task))
        for at in study.frames if papers and study.table is not None else ():
            if any(published(task, at, label, table=study.table) for label in labels):
                suffix = f", {at // 1000}k" if len(study.frames) > 1 else ""
                title = f"paper: {short(task)}{suffix}" if group else f"{short(task)}{suffix}"
                columns.append(Column(title, parts, "apart" if why else "quiet" if group else "", why))
                makers.append(
                    lambda label, task=task, at=at: papers_cell(
                        published(task, at, label, table=study.table), quiet=group is not None
                    )
                )
    body = [(words(label, strong=True), *(make(label) for make in makers)) for label in labels]
    notes = [f"paper, {study.place}: {study.seeds} seeds.", *([f"{study.note}."] if study.note else [])]
    if why and papers:
        notes.append(f"Beside the paper’s numbers: {why}.")
    key = key_of(*([group.key] if group else ["paper"]), "ablation", name)
    title = f"Ablation: {study.title}" + (f", {group.name}" if group else "")
    return Table(key, title, tuple(columns), tuple(body), tuple(notes))


def _row_cell(group: Group, method: str | None, task: str) -> Cell:
    return words("–") if method is None else our_cell(group, method, task)


def _over_tasks(group: Group, row: Mapping[str, str], tasks: Sequence[str], statistic: str) -> Cell:
    """Over all tasks of the table, for a row that has them."""
    if not all(task in row for task in tasks):
        return words("–", note="it lacks a task")
    means = [float(group.final.values(row[task], task).mean()) for task in tasks]
    return number(float(np.mean(means) if statistic == "mean" else np.median(means)), 1)


def _aggregate_cell(line: Any) -> Cell:
    if line is None:
        return words("–")
    if line.misprint:
        return Cell(f"{shown(line.value, 1)} *", (line.value,), line.misprint, "warn")
    return number(line.value, 1)


# ── Representation ────────────────────────────────────────────────────────────────────────────────────────────────────

PROBES = {
    "encoder_cosine": "encoder cosine",
    "decoder_cosine": "decoder cosine",
    "rank": "effective rank",
    "dead": "dead units",
    "r2": "linear R²",
}


def representation(facts: Sequence[RunFacts], alike: Mapping[str, str], *, papers: bool) -> Section | None:
    """What the encoders have learned, beside the paper's cosines. `alike`: of which protocol each run is."""
    probed = [fact for fact in facts if fact.probes]
    if not probed:
        return None
    cases = _cases(probed, alike)
    several = len({setting for _, setting, _ in cases}) > 1
    last = {fact.source: _last_probe(fact) for fact in probed}
    cosines = (
        {(method.lower(), task): value for (method, task), value in representation_cosines().items()} if papers else {}
    )
    columns = [Column("task"), Column("method")]
    columns += [Column(title, ("mean", "std", "runs")) for title in PROBES.values()]
    columns[3:3] = [Column("paper: cosine", ("",), "quiet")] if papers else []
    columns += [Column("profile"), *([Column("runs of")] if several else [])]
    rows = []
    for (task, setting, method), of_case in cases.items():
        mine, profile = [last[fact.source] for fact in of_case], of_case[0].recipe.profile
        row = [words(task, strong=True), words(method)]
        row += [_probe_cell([probe[key] for probe in mine if key in probe]) for key in PROBES]
        theirs = cosines.get((method, task))
        row[3:3] = [number(theirs, 3)] if papers else []
        row.append(words(LITE, mark="apart") if theirs is not None and profile == "lite" else words(profile))
        rows.append((*row, *([words(setting)] if several else [])))
    told = (
        "The cosine is between latents of masked and of original observations: near 1, the encoder sees through the mask. "
        "Effective rank and dead units tell of collapse; R² is how well the simulator’s state can be read off the latents "
        "by a linear map.",
        "Each number is of the last probe of a run, and the mean over runs.",
    )
    table = Table("representation", "Representation probes", tuple(columns), tuple(rows))
    return Section("representation", "What the encoders learned", told, (table, *_probe_curves(probed, alike)))


def _cases(facts: Sequence[RunFacts], alike: Mapping[str, str]) -> dict[tuple[str, str, str], list[RunFacts]]:
    """(task, protocol, method) → its runs, in order. Runs of different protocols are never averaged here, mixed or not."""
    found: dict[tuple[str, str, str], list[RunFacts]] = defaultdict(list)
    for fact in facts:
        found[fact.task, alike[fact.source], fact.method].append(fact)
    return dict(sorted(found.items(), key=lambda case: (*case[0][:2], in_order_key(case[0][2]))))


def _of_task(task: str, setting: str) -> str:
    """Such as "dmcontrol/walker-walk, paper profile · 100,000 frames": the task has the suite."""
    return f"{task}, {setting.partition(' · ')[2]}"


def in_order_key(method: str) -> tuple[int, str]:
    return {"mlr": (0, ""), "baseline": (1, "")}.get(method.lower(), (2, method))


def _last_probe(fact: RunFacts) -> dict[str, float]:
    """The newest value of each."""
    found = dict[str, float]()
    for probe in fact.probes:
        linear = probe.get("linear")
        values = {**probe, **({"r2": linear.get("r2")} if isinstance(linear, dict) else {})}
        for key in PROBES:
            if is_number(values.get(key)):
                found[key] = float(values[key])
    return found


def _probe_cell(values: Sequence[float]) -> Cell:
    if not values:
        return words("–")
    mean, std, runs = Summary.of(values)
    return Cell(f"{spread(mean, std)} ({runs})", (mean, None if math.isnan(std) else std, runs))


def _probe_curves(facts: Sequence[RunFacts], alike: Mapping[str, str]) -> Iterator[Chart]:
    """The encoder's cosine over training, where it was measured more than once; a panel for each task and protocol."""
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for (task, setting, method), of_case in _cases(facts, alike).items():
        mine = [(fact.recipe.seed, _cosines(fact)) for fact in of_case]
        seeds = [{"seed": seed, "points": thinned(points, 100)} for seed, points in mine if points]
        if seeds:
            mean = mean_curve([points for _, points in mine])
            lines[_of_task(task, setting)].append({"name": method, "seeds": seeds, "mean": thinned(mean, 100)})
    panels = [
        {"title": title, "methods": methods, "bands": []}
        for title, methods in lines.items()
        if any(len(seed["points"]) > 1 for method in methods for seed in method["seeds"])
    ]
    if panels:
        data = {"unit": "frames", "y": "cosine", "panels": panels, "apart": ""}
        yield Chart("probe-curves", "curves", "Cosine after the encoder, over training", data)


def _cosines(fact: RunFacts) -> list[tuple[int, float]]:
    found = {
        int(probe["frames"]): float(probe["encoder_cosine"])
        for probe in fact.probes
        if is_number(probe.get("frames")) and is_number(probe.get("encoder_cosine"))
    }
    return sorted(found.items())


# ── Time ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def timing(facts: Sequence[RunFacts], alike: Mapping[str, str], *, papers: bool) -> Section | None:
    """How long runs took, and with what. `alike`: of which protocol each run is."""
    timed = [fact for fact in facts if fact.seconds > 0]
    if not timed:
        return None
    parts = list(dict.fromkeys(part for fact in timed for part in fact.timing))
    columns = (
        *(Column("task"), Column("runs of"), Column("method"), Column("runs", ("",)), Column("finished", ("",))),
        *(
            Column("hours per run", ("",), note="of those that have finished"),
            Column("frames per second", ("",)),
            *(Column(part, ("",), note="share of the time that was split") for part in parts),
        ),
    )
    rows, bars = [], list[Bar]()
    for (task, setting, method), mine in _cases(timed, alike).items():
        finished = [fact for fact in mine if fact.finished]
        hours_each = math.fsum(fact.seconds for fact in finished) / len(finished) / 3600 if finished else None
        split = _split(mine, parts)
        total, seconds = math.fsum(split.values()), math.fsum(fact.seconds for fact in mine)
        frames = math.fsum(_frames(fact) for fact in mine)
        shares = [Cell(f"{share / total:.0%}", (share / total,)) if total else words("–") for share in split.values()]
        rows.append(
            (
                *(words(task, strong=True), words(setting), words(method), number(len(mine), 0)),
                *(number(len(finished), 0), number(hours_each, 2), number(frames / seconds, 1), *shares),
            )
        )
        if finished and any(whole := _split(finished, parts).values()):
            bars.append((task, setting, method, [round(value, 3) for value in whole]))
    blocks: list[Table | Chart] = [Table("time", "Time", columns, tuple(rows))]
    if bars:
        data = {"parts": parts, "rows": _fewer(bars), "unit": "seconds"}
        blocks.insert(
            0, Chart("time-chart", "bars", "Where the time goes, mean of the finished runs of a method", data)
        )
    told = [
        "Seconds of training over all sittings, evaluations included. They depend on the machine and what else it does."
    ]
    hours = {suite: {m: h for (s, m), h in training_hours().items() if s == suite} for suite in ("dmcontrol", "atari")}
    for suite in sorted({fact.task.partition("/")[0] for fact in timed} & set(hours)) if papers else []:
        listed = ", ".join(f"{method} {h:g}" for method, h in hours[suite].items())
        told.append(f"The paper, for {suite} on one RTX 3090, in hours: {listed} (Appendix B.2).")
    return Section("time", "Time", tuple(told), tuple(blocks))


Bar = tuple[str, str, str, list[float]]  # task, protocol, method, seconds of each part


def _split(facts: Sequence[RunFacts], parts: Sequence[str]) -> dict[str, float]:
    """Part → seconds, the mean over runs."""
    return {part: math.fsum(fact.timing.get(part, 0.0) for fact in facts) / len(facts) for part in parts}


def _fewer(bars: Sequence[Bar], most: int = 16) -> list[dict[str, Any]]:
    """One bar for all tasks of a method and protocol, if there are too many."""
    if len(bars) <= most:
        return [{"name": name, "group": _of_task(task, of), "values": values} for task, of, name, values in bars]
    together: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for _, setting, name, values in bars:
        together[setting, name].append(values)
    return [
        {"name": name, "group": f"mean over tasks, {setting}", "values": np.mean(found, axis=0).round(3).tolist()}
        for (setting, name), found in sorted(together.items(), key=lambda case: (case[0][0], in_order_key(case[0][1])))
    ]


def _frames(fact: RunFacts) -> float:
    return fact.reached * (fact.recipe.env.action_repeat if fact.unit == "decisions" else 1)


# ── Versions and gaps ─────────────────────────────────────────────────────────────────────────────────────────────────


def versions(facts: Sequence[RunFacts]) -> Section | None:
    """With what the runs were made; what differs between them comes first."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for fact in facts:
        for name, value in fact.versions.items():
            counts[str(name)]["not there" if value is None else str(value)] += 1
    if not counts:
        return None
    rows = []
    for name, found in sorted(counts.items(), key=lambda item: len(item[1]) == 1):
        several = len(found) > 1
        listed = (
            ", ".join(f"{value} ({count})" for value, count in found.most_common()) if several else next(iter(found))
        )
        rows.append((words(name, strong=True), words(listed, mark="warn" if several else "")))
    told = "Where runs differ, the number of runs is in brackets." if any(len(c) > 1 for c in counts.values()) else ""
    table = Table("versions", "Versions", (Column("of"), Column("version")), tuple(rows))
    return Section("versions", "Versions", (told,) if told else (), (table,))


def gaps(groups: Sequence[Group], facts: Sequence[RunFacts], problems: Sequence[str]) -> Section:
    """What is missing, failed, interrupted or unfinished, every problem in reading, and every run."""
    unfinished = [
        Line(_gap_sentence(fact), "bad" if fact.life == "failed" else "warn") for fact in facts if not fact.finished
    ]
    missing = [Line(line, "warn") for group in groups for line in missing_runs(group)]
    notes = [Line(f"{fact.source}: {note}") for fact in facts for note in fact.notes]
    blocks: list[Lines | Table] = [
        Lines(f"{title}: {len(lines)}", tuple(lines), folded=len(lines) > 2 * MOST_LINES)
        for title, lines in (
            ("Failed, interrupted and unfinished runs", unfinished),
            ("Missing runs", missing),
            ("Problems", [Line(problem, "warn") for problem in problems]),
            ("Notes that runs have left", notes),
        )
        if lines
    ]
    told = [] if unfinished or missing or problems else ["Nothing is missing: every run is there and finished."]
    if facts:
        blocks.append(_runs_table(facts, groups))
    return Section("gaps", "Gaps", tuple(told), tuple(blocks))


def _gap_sentence(fact: RunFacts) -> str:
    life = f"failed: {fact.why}" if fact.life == "failed" and fact.why else fact.life
    return (
        f"{fact.method} on {fact.task}, seed {fact.recipe.seed} ({fact.source}): {life.rstrip('.')}, at {fact.reached:,} of "
        f"{fact.budget:,} {fact.unit}."
    )


def missing_runs(group: Group) -> list[str]:
    """Seeds that some method has on some task of the group and another lacks; tasks that lack the same ones together."""
    seeds = {run.seed for run in group.runs.runs}
    has: dict[tuple[str, str], set[int]] = defaultdict(set)
    for run in group.runs.runs:
        has[run.method, run.task].add(run.seed)
    found = list[str]()
    for method in group.methods:
        lacking: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for task in group.tasks:
            lacking[tuple(sorted(seeds - has[method, task]))].append(short(task))
        for missing, tasks in lacking.items():
            if len(missing) == len(seeds):
                found.append(f"{group.name}: {method} has no runs on {', '.join(tasks)}.")
            elif missing:
                noun = "seed" if len(missing) == 1 else "seeds"
                found.append(
                    f"{group.name}: {method} lacks {noun} {ranges(missing)}, which others have, on {', '.join(tasks)}."
                )
    return found


def _runs_table(facts: Sequence[RunFacts], groups: Sequence[Group]) -> Table:
    final = {run.source: run.curve[0][1] for group in groups for run in group.final.runs}
    hashes = {run.source: protocol_hash(run.protocol) for group in groups for run in group.runs.runs}
    columns = (
        *(Column("run"), Column("task"), Column("method"), Column("seed", ("",)), Column("status")),
        *(Column("reached", ("",)), Column("of", ("",)), Column("unit"), Column("score", ("",)), Column("protocol")),
    )
    marks: dict[str, Mark] = {"done": "good", "failed": "bad"}
    rows = [
        (
            *(words(fact.source), words(fact.task), words(fact.method), number(fact.recipe.seed, 0)),
            words(fact.life, mark=marks.get(fact.life, "warn"), note=fact.why),
            *(number(fact.reached, 0), number(fact.budget, 0), words(fact.unit), number(final.get(fact.source))),
            words(hashes.get(fact.source, "–"), mark="quiet"),
        )
        for fact in facts
    ]
    return Table("runs", "Every run", columns, tuple(rows))
