"""What the report page shows, as plain values. `page.render` makes HTML of it, `exports.write` files of its tables.

report(["runs"])            # run directories, folders of them and CSV files, beside the paper's numbers
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from maskrl.analysis.scores import Scores, ScoresError
from maskrl.analysis.verdict import Verdict, Verdicts
from maskrl.report.ablations import ablations
from maskrl.report.aggregates import over_tasks
from maskrl.report.cases import cases
from maskrl.report.curves import MOST_POINTS, curves
from maskrl.report.document import Line, Lines, Report, Section
from maskrl.report.facts import RunFacts, all_facts
from maskrl.report.groups import IN_THE_PAPER, Group, grouped, in_order
from maskrl.report.inventory import gaps, versions, what_was_run
from maskrl.report.probes import representation
from maskrl.report.tables import counted
from maskrl.report.task_by_task import comparisons, in_words, negative, negative_lines, task_by_task
from maskrl.report.timing import timing

Against = Literal["published", "none"]


def report(
    paths: Sequence[Path | str], *, against: Against = "published", at: int | None = None, mixed: bool = False
) -> Report:
    """The page of these runs.

    `at`: take scores at that time, in the unit of each run's budget, instead of at its end. `mixed`: put runs of different
    protocols together; otherwise each protocol has sections of its own.
    """
    found = _Found(Scores.read(*paths), list(all_facts(map(Path, paths))))
    if not found.scores.runs and not found.facts:
        listed = "\n".join(f"  {problem}" for problem in found.scores.problems)
        raise ScoresError(f"There are no runs to report on:\n{listed}")
    return _runs_report(found, papers=against == "published", at=at, mixed=mixed)


@dataclass(frozen=True)
class _Found:
    """What was read: the scores of runs, and what else their directories tell."""

    scores: Scores
    facts: list[RunFacts]

    @cached_property
    def methods(self) -> list[str]:
        return in_order({*self.scores.methods, *(fact.method for fact in self.facts)})

    @cached_property
    def tasks(self) -> list[str]:
        return sorted({*self.scores.tasks, *(fact.task for fact in self.facts)})

    @property
    def title(self) -> str:
        """Such as "mlr and baseline on 6 tasks"."""
        who = " and ".join(self.methods) if len(self.methods) <= 2 else f"{len(self.methods)} methods"
        return f"{who} on {self.tasks[0] if len(self.tasks) == 1 else f'{len(self.tasks)} tasks'}"

    def subtitle(self, at: int | None) -> str:
        listed = ", ".join(self.tasks[:6]) + (f" and {len(self.tasks) - 6} more" if len(self.tasks) > 6 else "")
        return f"{listed}{f', scores taken at {at:,}' if at is not None else ''}."

    def counts(self, problems: int) -> tuple[tuple[str, str], ...]:
        folders = {fact.source for fact in self.facts}
        others = {(run.source, run.name) for run in self.scores.runs if run.source not in folders}
        counts = {
            "run": len(others) + len(self.facts),
            "method": len(self.methods),
            "task": len(self.tasks),
            "unfinished": sum(not fact.finished for fact in self.facts),
            "problem": problems,
        }
        return tuple(
            (f"{count:,}", what if count == 1 or what == "unfinished" else f"{what}s") for what, count in counts.items()
        )


def _runs_report(found: _Found, *, papers: bool, at: int | None, mixed: bool) -> Report:
    scores, facts = found.scores, found.facts
    groups = grouped(scores, at=at, mixed=mixed)
    most = max(20, MOST_POINTS // max(1, len(scores.runs)))
    body, headline, problems = list[Section | None](), list[Lines](), list(scores.problems)
    for group in groups:
        with_paper, with_baseline = comparisons(group, papers=papers)
        headline.append(_headline(group, with_paper, with_baseline, papers=papers))
        numbers = over_tasks(group)
        body += numbers[:1]
        body.append(task_by_task(group, with_paper, with_baseline, papers=papers))
        body.append(curves(group, papers=papers, most=most))
        body += [*numbers[1:], negative(group, with_baseline)]
        problems += group.final.normalised().problems
        problems += [line for verdicts in (*with_paper.values(), *with_baseline.values()) for line in verdicts.problems]
    problems = list(dict.fromkeys(problems))
    found_cases = cases(facts)
    body += [
        ablations(groups, papers=papers),
        representation(found_cases, papers=papers),
        timing(found_cases, papers=papers),
        versions(facts),
        gaps(groups, facts, problems),
    ]
    return Report(
        found.title,
        found.subtitle(at),
        found.counts(len(problems)),
        tuple(headline) or (Lines("", (Line("No run has a score yet.", "warn"),)),),
        _with_unique_keys([what_was_run(groups, facts), *(section for section in body if section is not None)]),
        tuple(found.methods),
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


def _headline(
    group: Group, with_paper: Mapping[str, Verdicts], with_baseline: Mapping[str, Verdicts], *, papers: bool
) -> Lines:
    """What can be said of a group, in a few sentences."""
    lines = [line for method, found in with_baseline.items() for line in _claims(method, str(group.reference), found)]
    lines += [line for method, found in with_paper.items() for line in _claims(method, "the paper", found)]
    if papers and group.not_the_papers and group.suite in IN_THE_PAPER:
        lines.append(Line(f"Beside the paper: {group.not_the_papers}.", "apart"))
    if not lines:
        runs = Counter(run.method for run in group.final.runs)
        means = [f"{method} has {counted(runs[method], 'run')} with a final score" for method in group.methods]
        lines.append(Line(f"{'; '.join(means)}. There is nothing to hold it against."))
    return Lines(group.name, tuple(lines))


def _claims(method: str, reference: str, verdicts: Verdicts) -> Sequence[Line]:
    """The verdict over all tasks, or over the only one; of several without one, how many went which way."""
    if not verdicts.tasks:
        return [Line(f"{method} cannot be held against {reference} yet.", "unsure")]
    chosen: Sequence[Verdict] = verdicts.overall or (verdicts.tasks if len(verdicts.tasks) == 1 else ())
    return in_words(chosen) or [Line(negative_lines(method, reference, verdicts.tasks)[0])]
