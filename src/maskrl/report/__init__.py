"""The content of the report page, as plain values. `page.render` writes it as HTML, `exports.write` writes its tables as files.

report(["runs"])            # run directories, published results, folders of them and CSV files, beside the paper's numbers
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from maskrl.analysis.reading import read
from maskrl.analysis.scores import Scores, ScoresError
from maskrl.analysis.verdict import Verdict, Verdicts
from maskrl.report.ablations import ablations
from maskrl.report.aggregates import over_tasks
from maskrl.report.curves import MOST_POINTS, curves
from maskrl.report.document import Line, Lines, Report, Section
from maskrl.report.facts import RunFacts, all_facts
from maskrl.report.groups import IN_THE_PAPER, Group, cases, grouped, in_order
from maskrl.report.inventory import gaps, in_short, versions, what_was_run
from maskrl.report.probes import representation
from maskrl.report.published import study
from maskrl.report.tables import Mark, short_digests
from maskrl.report.task_by_task import MARKS, in_words, negative, negative_lines, task_by_task
from maskrl.report.timing import timing
from maskrl.words import count

Against = Literal["published", "none"]

# What a page can hold: more would take minutes and no browser would show it. Files may be a stranger's.
MOST = {"methods": 300, "tasks": 1000, "methods times tasks": 10_000, "runs": 20_000}


def report(
    paths: Sequence[Path | str], *, against: Against = "published", at: int | None = None, mixed: bool = False
) -> Report:
    """Build the report of these runs.

    `at`: take scores at this time, in the unit of each run's budget, instead of at its end. `mixed`: put runs of different
    protocols together; otherwise each protocol has its own sections. Raises ScoresError if a page cannot be drawn.
    """
    folders = [Path(path) for path in paths]
    found = read(folders)
    scores, published = Scores.of(found), [study(results) for results in found.results]
    every_fact = (*all_facts(folders), *(fact for one in published for fact in one.facts))
    facts = [fact for fact in every_fact if fact.run.identity not in scores.repeats]
    if not scores.runs and not facts:
        listed = "\n".join(f"  {problem}" for problem in scores.problems)
        raise ScoresError(f"There are no runs to report on:\n{listed}")
    methods = in_order({*scores.methods, *(fact.run.method for fact in facts)})
    tasks = sorted({*scores.tasks, *(fact.run.task for fact in facts)})
    _require_room(len(methods), len(tasks), len(scores.runs))
    papers = against == "published"
    groups, alike = grouped(scores, at=at, mixed=mixed, papers=papers), cases(facts)
    most = max(20, MOST_POINTS // max(1, len(scores.runs)))
    told = (line for one in published for line in one.problems)
    every_problem = [*scores.problems, *told, *(line for group in groups for line in _problems(group))]
    problems = list(dict.fromkeys(map(short_digests, every_problem)))
    listed = ", ".join(tasks[:6]) + (f" and {len(tasks) - 6} more" if len(tasks) > 6 else "")
    units = " or ".join(sorted({run.unit for run in scores.runs} or {fact.run.unit for fact in facts}, reverse=True))
    sections = [
        what_was_run(groups, facts),
        *(section for group in groups for section in _of_group(group, most)),
        ablations(groups),
        representation(alike, papers=papers),
        timing(alike, papers=papers),
        versions(facts),
        gaps(groups, facts, published, problems),
    ]
    headline = tuple(map(_headline, groups)) or (Lines("", (Line("No run has a score yet.", "warn"),)),)
    return Report(
        _title(methods, tasks),
        f"{listed}{f', scores taken at {at:,} {units}' if at is not None else ''}.",
        _counts(scores, facts, len(methods), len(tasks), len(problems)),
        headline,
        _with_unique_keys([section for section in sections if section is not None]),
        tuple(methods),
        tuple(problems),
        f"{_comparisons(groups)} {in_short(groups, facts, problems)}",
    )


def _require_room(methods: int, tasks: int, runs: int) -> None:
    """Raise ScoresError if there is too much for a page."""
    counts = {"methods": methods, "tasks": tasks, "methods times tasks": methods * tasks, "runs": runs}
    over = [f"{counts[what]:,} {what} (at most {most:,})" for what, most in MOST.items() if counts[what] > most]
    if over:
        raise ScoresError(f"This is too much for one page: {', '.join(over)}. Report on fewer runs at a time.")


def _title(methods: Sequence[str], tasks: Sequence[str]) -> str:
    """The title, such as "mlr and baseline on 6 tasks"."""
    who = " and ".join(methods) if len(methods) <= 2 else f"{len(methods)} methods"
    return f"{who} on {tasks[0] if len(tasks) == 1 else f'{len(tasks)} tasks'}"


# The outcomes of comparisons in words, in the order of the summary: one, several.
OUTCOMES: Mapping[Mark, tuple[str, str]] = {
    "above": ("1 is above", "{} are above"),
    "below": ("1 is below", "{} are below"),
    "consistent": ("in 1 no difference shows", "in {} no difference shows"),
    "unsure": ("1 is without a verdict", "{} are without a verdict"),
}


def _comparisons(groups: Sequence[Group]) -> str:
    """The verdicts in words, such as "Of 3 comparisons, 1 is above, 2 are below. Verdicts are not corrected …"."""
    verdicts = [
        verdict
        for group in groups
        for found in (*group.against_baseline.values(), *group.against_paper.values())
        for verdict in found.overall or found.tasks
    ]
    marks = Counter(MARKS[verdict.outcome] for verdict in verdicts)
    parts = [
        one if marks[mark] == 1 else several.format(marks[mark])
        for mark, (one, several) in OUTCOMES.items()
        if marks[mark]
    ]
    if not parts:
        return "Nothing is compared yet."
    several = sum(verdict.difference is not None for verdict in verdicts) > 1
    uncorrected = " Verdicts are not corrected for several tests." if several else ""
    return f"Of {count(len(verdicts), 'comparison')}, {', '.join(parts)}.{uncorrected}"


def _counts(
    scores: Scores, facts: Sequence[RunFacts], methods: int, tasks: int, problems: int
) -> tuple[tuple[str, str], ...]:
    known = {fact.run.identity for fact in facts}
    others = {run.identity for run in scores.runs} - known
    counts = {"run": len(others) + len(facts), "method": methods, "task": tasks}
    unfinished = sum(fact.unfinished for fact in facts)
    if unfinished or not (others or any(fact.life == "unknown" for fact in facts)):  # none only if that is known
        counts["unfinished"] = unfinished
    counts["problem"] = problems
    return tuple(
        (f"{many:,}", what if many == 1 or what == "unfinished" else f"{what}s") for what, many in counts.items()
    )


def _of_group(group: Group, most: int) -> list[Section]:
    """The sections about one group. `most`: maximum points of a learning curve."""
    numbers = over_tasks(group)
    return [*numbers[:1], task_by_task(group), curves(group, most=most), *numbers[1:], negative(group)]


def _problems(group: Group) -> list[str]:
    verdicts = (*group.against_paper.values(), *group.against_baseline.values())
    return [*group.final.problems, *(line for one in verdicts for line in one.problems)]


def _with_unique_keys(found: Sequence[Section]) -> tuple[Section, ...]:
    """Add numbers to equal keys: a key is a link on the page and the name of a file, and different names may share one."""
    seen = Counter[tuple[str, str]]()

    def fresh(kind: str, key: str) -> str:
        seen[kind, key] += 1
        return key if seen[kind, key] == 1 else f"{key}-{seen[kind, key]}"

    return tuple(
        replace(
            section,
            key=fresh("section", section.key),
            blocks=tuple(
                block if isinstance(block, Lines) else replace(block, key=fresh(type(block).__name__, block.key))
                for block in section.blocks
            ),
        )
        for section in found
    )


def _headline(group: Group) -> Lines:
    """The findings about a group, in a few sentences."""
    lines = [line for m, found in group.against_baseline.items() for line in _claims(m, str(group.reference), found)]
    lines += [line for m, found in group.against_paper.items() for line in _claims(m, "the paper", found)]
    if group.papers and group.not_the_papers and group.suite in IN_THE_PAPER:
        lines.append(Line(f"Beside the paper: {group.not_the_papers}.", "apart"))
    if not lines:
        runs = Counter(run.method for run in group.final.runs)
        means = [f"{method} has {count(runs[method], 'run')} with a final score" for method in group.methods]
        lines.append(Line(f"{'; '.join(means)}. There is nothing to compare with."))
    return Lines(group.name, tuple(lines))


def _claims(method: str, reference: str, verdicts: Verdicts) -> Sequence[Line]:
    """The verdict over all tasks, or on the only one; without a verdict over several, how many are above and below."""
    if not verdicts.tasks:
        return [Line(f"{method} cannot be compared with {reference} yet.", "unsure")]
    chosen: Sequence[Verdict] = verdicts.overall or (verdicts.tasks if len(verdicts.tasks) == 1 else ())
    return in_words(chosen) or [Line(negative_lines(method, reference, verdicts.tasks)[0])]
