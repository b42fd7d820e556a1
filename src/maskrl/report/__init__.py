"""What the report page shows, as plain values. `page.render` makes HTML of it, `tables.write` files of its tables.

report(["runs"])            # run directories, folders of them and CSV files, beside the paper's numbers
report([])                  # the paper's tables alone
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from maskrl.analysis.scores import Scores, ScoresError
from maskrl.analysis.verdict import Verdict, Verdicts
from maskrl.report import run_sections, sections
from maskrl.report.document import Line, Lines, Report, Section
from maskrl.report.gather import Group, RunFacts, all_facts, grouped, in_order, settings
from maskrl.report.paper_sections import published_report

Against = Literal["published", "none"]


def report(
    paths: Sequence[Path | str], *, against: Against = "published", at: int | None = None, mixed: bool = False
) -> Report:
    """The page of these runs, or of the paper's tables if there are none.

    `at`: take scores at that time, in the unit of each run's budget, instead of at its end. `mixed`: put runs of different
    protocols together, which is else refused.
    """
    if not paths:
        return published_report()
    scores = Scores.read(*paths)
    facts = list(all_facts(map(Path, paths)))
    if not scores.runs and not facts:
        listed = "\n".join(f"  {problem}" for problem in scores.problems)
        raise ScoresError(f"There are no runs to report on:\n{listed}")
    return _runs_report(scores, facts, papers=against == "published", at=at, mixed=mixed)


def _runs_report(scores: Scores, facts: Sequence[RunFacts], *, papers: bool, at: int | None, mixed: bool) -> Report:
    groups = grouped(scores, at=at, mixed=mixed)
    most = max(20, sections.MOST_POINTS // max(1, len(scores.runs)))
    body, headline, problems = list[Section](), list[Lines](), list(scores.problems)
    for group in groups:
        with_paper, with_baseline = sections.comparisons(group, papers=papers)
        headline.append(_headline(group, with_paper, with_baseline, papers=papers))
        body += [
            section
            for section in (
                sections.aggregates(group),
                sections.task_by_task(group, with_paper, with_baseline, papers=papers),
                sections.curves(group, papers=papers, most=most),
                sections.profiles(group),
                sections.negative(group, with_baseline),
            )
            if section is not None
        ]
        problems += group.final.problems
        problems += group.final.normalised().problems
        problems += [line for found in (*with_paper.values(), *with_baseline.values()) for line in found.problems]
    problems = list(dict.fromkeys(problems))
    alike = settings(facts)
    rest = (
        run_sections.ablations(groups, papers=papers),
        run_sections.representation(facts, alike, papers=papers),
        run_sections.timing(facts, alike, papers=papers),
        run_sections.versions(facts),
        run_sections.gaps(groups, facts, problems),
    )
    return Report(
        _title(scores, facts),
        _subtitle(scores, facts, at=at),
        _counts(scores, facts, problems),
        tuple(headline) or (Lines("", (Line("No run has a score yet.", "warn"),)),),
        _with_unique_keys(
            [sections.what_was_run(groups, facts), *body, *(section for section in rest if section is not None)]
        ),
        tuple(in_order({*scores.methods, *(fact.method for fact in facts)})),
        tuple(problems),
    )


def _with_unique_keys(found: Sequence[Section]) -> tuple[Section, ...]:
    """Names that differ may have the same key; it is a link of the page and the name of a file, so it gets a number."""
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


def _title(scores: Scores, facts: Sequence[RunFacts]) -> str:
    """Such as "mlr and baseline on 6 tasks"."""
    methods = in_order({*scores.methods, *(fact.method for fact in facts)})
    tasks = sorted({*scores.tasks, *(fact.task for fact in facts)})
    who = " and ".join(methods) if len(methods) <= 2 else f"{len(methods)} methods"
    return f"{who} on {tasks[0] if len(tasks) == 1 else f'{len(tasks)} tasks'}"


def _subtitle(scores: Scores, facts: Sequence[RunFacts], *, at: int | None) -> str:
    tasks = sorted({*scores.tasks, *(fact.task for fact in facts)})
    listed = ", ".join(tasks[:6]) + (f" and {len(tasks) - 6} more" if len(tasks) > 6 else "")
    return f"{listed}{f', scores taken at {at:,}' if at is not None else ''}."


def _counts(scores: Scores, facts: Sequence[RunFacts], problems: Sequence[str]) -> tuple[tuple[str, str], ...]:
    runs = len({*(run.source + run.name for run in scores.runs if run.source not in {f.source for f in facts})}) + len(
        facts
    )
    unfinished = sum(not fact.finished for fact in facts)
    tasks = {*scores.tasks, *(fact.task for fact in facts)}
    methods = {*scores.methods, *(fact.method for fact in facts)}
    return tuple(
        (f"{count:,}", one if count == 1 else many)
        for count, one, many in (
            (runs, "run", "runs"),
            (len(methods), "method", "methods"),
            (len(tasks), "task", "tasks"),
            (unfinished, "unfinished", "unfinished"),
            (len(problems), "problem", "problems"),
        )
    )


def _headline(
    group: Group, with_paper: Mapping[str, Verdicts], with_baseline: Mapping[str, Verdicts], *, papers: bool
) -> Lines:
    """What can be said of a group, in a few sentences."""
    lines = list[Line]()
    for method, found in with_baseline.items():
        lines += _claims(method, f"{group.reference}", found)
    for method, found in with_paper.items():
        lines += _claims(method, "the paper", found)
    if papers and group.not_the_papers and group.suite in ("dmcontrol", "atari"):
        lines.append(Line(f"Beside the paper: {group.not_the_papers}.", "apart"))
    if not lines:
        means = [f"{method} has {_scored(group, method)}" for method in group.methods]
        lines.append(Line(f"{'; '.join(means)}. There is nothing to hold it against."))
    return Lines(group.name, tuple(lines))


def _claims(method: str, reference: str, verdicts: Verdicts) -> list[Line]:
    """The verdict over all tasks, or over the only one; of several without one, how many went which way."""
    if not verdicts.tasks:
        return [Line(f"{method} cannot be held against {reference} yet.", "unsure")]
    chosen: Sequence[Verdict] = verdicts.overall or (verdicts.tasks if len(verdicts.tasks) == 1 else ())
    if chosen:
        return [Line(v.sentence, sections.outcome_cell(v).mark) for v in chosen]
    told, _ = sections.negative_lines(method, reference, verdicts.tasks)
    return [Line(told)]


def _scored(group: Group, method: str) -> str:
    count = sum(run.method == method for run in group.final.runs)
    return f"{count} run{'' if count == 1 else 's'} with a final score"
