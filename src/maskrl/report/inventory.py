"""The runs of a page: methods, versions and gaps."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from maskrl.analysis.reading import Identity
from maskrl.recipes.schema import difference
from maskrl.report.document import Line, Lines, Section
from maskrl.report.facts import RunFacts
from maskrl.report.groups import Group, short
from maskrl.report.published import Study
from maskrl.report.tables import Cell, Column, Field, Mark, Table, number, short_digests, tabulated
from maskrl.report.task_by_task import MOST_LINES
from maskrl.words import count, ranges

MOST_COMMANDS = 5  # of a published study


def what_was_run(groups: Sequence[Group], facts: Sequence[RunFacts]) -> Section:
    """The section on methods: a row per method and group, with its differences from the others."""
    told, blocks = [], list[Table | Lines]([_methods_table(groups, {fact.run.identity: fact for fact in facts})])
    if len({group.suite for group in groups}) < len(groups):
        told.append(
            "Runs of different protocols are not averaged: each protocol is a separate group, named by its differences. "
            "--mixed averages them anyway."
        )
    lines = [
        Line(short_digests(f"{group.name}: {line}"), "warn") for group in groups for line in group.runs.conflicts()
    ]
    if lines:
        told.append(
            "These runs were mixed on request (--mixed). Their averages contain scores that are not comparable."
        )
        blocks.append(Lines("Differences between the mixed runs", tuple(lines)))
    return Section("what-was-run", "What was run", tuple(told), tuple(blocks))


def _methods_table(groups: Sequence[Group], facts: Mapping[Identity, RunFacts]) -> Table:
    name: Field[tuple[Group, str]] = (Column("runs of"), lambda row: Cell(row[0].name))
    fields: list[Field[tuple[Group, str]]] = [
        (Column("method"), lambda row: Cell(row[1], strong=True)),
        *([name] if len(groups) > 1 else []),
        (Column("tasks", ("",)), lambda row: number(len({run.task for run in row[0].runs_of(row[1])}), 0)),
        (Column("runs", ("",)), lambda row: number(len(row[0].runs_of(row[1])), 0)),
        (Column("seeds"), lambda row: Cell(ranges(sorted({run.seed for run in row[0].runs_of(row[1])})))),
        (Column("what differs"), lambda row: Cell(short_digests("; ".join(_differences(*row, facts))) or "–")),
    ]
    rows = [(group, method) for group in groups for method in group.methods]
    return tabulated("what-was-run", "What was run", fields, rows)


def _differences(group: Group, method: str, facts: Mapping[Identity, RunFacts]) -> list[str]:
    """The differences from the Baseline, or from the first method, on a task that both have."""
    reference = group.baseline or group.methods[0]
    runs = [run for name in (method, reference) for run in group.runs_of(name)]
    told = [facts[run.identity] for run in reversed(runs) if run.identity in facts]
    # If a method has several recipes on a task, that of its first run counts.
    known = {(fact.run.method, fact.run.task): fact.recipe for fact in told if fact.recipe is not None}
    published = {fact.run.method for fact in told if fact.recipe is None}
    if not any(name == method for name, _ in known):
        return ["unknown: its recipe cannot be read" if method in published else "unknown: from a CSV"]
    if method == reference:
        return ["the others are compared with it"] if len(group.methods) > 1 else []
    shared = [task for task in group.tasks if group.runs_of(method, task) and group.runs_of(reference, task)]
    if not shared:
        return [f"no task in common with {reference}"]
    task = next((task for task in shared if {(method, task), (reference, task)} <= known.keys()), None)
    if task is None:
        lacking = reference if any((method, task) in known for task in shared) else method
        return [
            f"unknown: {f'the recipe of {lacking} cannot be read' if lacking in published else f'{lacking} is from a CSV'}"
        ]
    for name in (method, reference):  # other programs may publish one recipe for several methods of their own
        if (said := known[name, task].method) != name.partition(" ")[0].lower():
            return [f"unknown: the recipe published for {name} is {said}’s"]
    lines = difference(known[reference, task], known[method, task])
    kept = [line for line in lines if not line.startswith(("seed", "device", "threads"))]
    # If only one has an objective, say only that: the name has the rest.
    named = [part for part in method.split()[1:] if not any(line.startswith(part.split("=")[0]) for line in kept)]
    return kept + named


def versions(facts: Sequence[RunFacts]) -> Section | None:
    """The section on versions of the runs; those that differ come first."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    open_choices = set[str]()
    times = Counter(id(fact.versions) for fact in facts)  # published runs share theirs
    for key, told_versions in {id(fact.versions): fact.versions for fact in facts}.items():
        for name, value in told_versions.items():
            each = value if isinstance(value, tuple) else (value,)
            counts[str(name)][" or ".join("not there" if one is None else str(one) for one in each)] += times[key]
            if len(each) > 1:
                open_choices.add(str(name))
    if not counts:
        return None
    several = {name for name, found in counts.items() if len(found) > 1} | open_choices

    def listed(name: str) -> str:
        form = "{} ({})" if len(counts[name]) > 1 else "{}"
        return short_digests(", ".join(form.format(value, count) for value, count in counts[name].most_common()))

    fields: list[Field[str]] = [
        (Column("of"), lambda name: Cell(name, strong=True)),
        (Column("version"), lambda name: Cell(listed(name), mark="warn" if name in several else "")),
    ]
    table = tabulated("versions", "Versions", fields, sorted(counts, key=lambda name: name not in several))
    told = ["Where runs differ, the number of runs is in brackets."] if several - open_choices else []
    if open_choices:
        told.append("Published results do not say which run was made on which of their machines.")
    return Section("versions", "Versions", tuple(told), (table,))


def in_short(groups: Sequence[Group], facts: Sequence[RunFacts], problems: Sequence[str]) -> str:
    """What is missing, in one sentence. Nothing is called finished or complete unless that is known."""
    counts = {
        "unfinished run": sum(fact.unfinished for fact in facts),
        "missing run": sum(count for group in groups for count, _ in _missing_runs(group)),
        "problem": len(problems),
    }
    told = [count(many, what) for what, many in counts.items() if many]
    if told:
        return f"{' and '.join(filter(None, [', '.join(told[:-1]), told[-1]]))}: see Gaps."
    return _ending(groups, facts)


def _ending(groups: Sequence[Group], facts: Sequence[RunFacts]) -> str:
    """What is known about runs if none is known to be unfinished."""
    known = {fact.run.identity for fact in facts if fact.life != "unknown"}
    if any(run.identity not in known for group in groups for run in group.runs.runs):
        return "Whether every run is finished is unknown: a CSV does not say it."
    if any(fact.published for fact in facts):
        return "Every run here is finished; published results do not say whether more were planned."
    return "Every run is finished."


def gaps(
    groups: Sequence[Group], facts: Sequence[RunFacts], studies: Sequence[Study], problems: Sequence[str]
) -> Section:
    """The section on missing, failed, interrupted and unfinished runs, reading problems, and all runs."""
    unfinished = [
        Line(_gap_sentence(fact), "bad" if fact.life == "failed" else "warn") for fact in facts if fact.unfinished
    ]
    missing = [Line(line, "warn") for group in groups for _, line in _missing_runs(group)]
    notes = [Line(f"{fact.run.source}: {note}") for fact in facts for note in fact.notes]
    blocks: list[Lines | Table] = [
        Lines(f"{title}: {len(lines)}", tuple(lines), folded=len(lines) > 2 * MOST_LINES)
        for title, lines in (
            ("Failed, interrupted and unfinished runs", unfinished),
            ("Missing runs", missing),
            ("Problems", [Line(problem, "warn") for problem in problems]),
            ("Notes in the logs of runs", notes),
            ("Published results", [Line(_study_sentence(study)) for study in studies]),
        )
        if lines
    ]
    told = [] if unfinished or missing or problems else [f"No method lacks a seed or a task. {_ending(groups, facts)}"]
    return Section("gaps", "Gaps", tuple(told), (*blocks, *([_runs_table(facts, groups)] if facts else [])))


def _gap_sentence(fact: RunFacts) -> str:
    life = f"failed: {fact.why}" if fact.life == "failed" and fact.why else fact.life
    reached = f"at {fact.reached:,} of {fact.budget:,} {fact.run.unit}"
    return f"{fact.run.name} ({fact.run.source}): {life.rstrip('.')}, {reached}."


def _study_sentence(study: Study) -> str:
    made = f", made by {'; '.join(study.commands[:MOST_COMMANDS])}" if study.commands else ""
    more = f" and {len(study.commands) - MOST_COMMANDS} more commands" if len(study.commands) > MOST_COMMANDS else ""
    return (
        f"{study.folder} holds {count(len(study.facts), 'run')}{made}{more}. Runs that were not finished are not in it."
    )


def _missing_runs(group: Group) -> Iterator[tuple[int, str]]:
    """Seeds that a method lacks but another has: the number of runs, and a sentence. Tasks that lack the same seeds share one."""
    seeds = {run.seed for run in group.runs.runs}
    has: dict[tuple[str, str], set[int]] = defaultdict(set)
    for run in group.runs.runs:
        has[run.method, run.task].add(run.seed)
    for method in group.methods:
        lacking: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for task in group.tasks:
            lacking[tuple(sorted(seeds - has[method, task]))].append(short(task))
        for missing, tasks in lacking.items():
            where, noun = ", ".join(tasks), "seed" if len(missing) == 1 else "seeds"
            if len(missing) == len(seeds):
                yield len(missing) * len(tasks), f"{group.name}: {method} has no runs on {where}."
            elif missing:
                told = f"{noun} {ranges(missing)}, which others have, on {where}."
                yield len(missing) * len(tasks), f"{group.name}: {method} lacks {told}"


def _runs_table(facts: Sequence[RunFacts], groups: Sequence[Group]) -> Table:
    final = {run.identity: run.curve[0][1] for group in groups for run in group.final.runs}
    at, units = next((group.at for group in groups), None), {fact.run.unit for fact in facts}
    when = "" if at is None else f" at {at:,}{f' {units.pop()}' if len(units) == 1 else ''}"
    so_far = "" if at is None else "by the run so far, not when the score was taken"
    marks: dict[str, Mark] = {"done": "good", "failed": "bad"}
    fields: list[Field[RunFacts]] = [
        (Column("run"), lambda fact: Cell(fact.run.source)),
        (Column("task"), lambda fact: Cell(fact.run.task)),
        (Column("method"), lambda fact: Cell(fact.run.method)),
        (Column("seed", ("",)), lambda fact: number(fact.run.seed, 0)),
        (Column("status"), lambda fact: Cell(fact.life, mark=marks.get(fact.life, "warn"), note=fact.why)),
        (Column("reached", ("",), note=so_far), lambda fact: number(fact.reached, 0)),
        (Column("of", ("",)), lambda fact: number(fact.budget, 0)),
        (Column("unit"), lambda fact: Cell(fact.run.unit)),
        (Column(f"score{when}", ("",)), lambda fact: number(final.get(fact.run.identity))),
    ]
    return tabulated("runs", "Every run", fields, facts)
