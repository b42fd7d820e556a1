"""Groups of comparable runs: those of one suite and one protocol, with a name for both."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from maskrl.analysis.reading import RunScores
from maskrl.analysis.scores import Scores
from maskrl.analysis.verdict import GAIN, Verdicts, against_paper, versus
from maskrl.recipes.published import PublishedScore, Unit, published
from maskrl.recipes.schema import as_override
from maskrl.report.facts import RunFacts
from maskrl.report.tables import Cell, Column, Field, key_of, short_digests

LITE = "not comparable: lite profile"
SUITES = {"dmcontrol": "DMControl", "atari": "Atari", "toy": "Toys", "other": "Other tasks"}
IN_THE_PAPER = ("dmcontrol", "atari")  # suites that have a paper profile

Values = dict[str, set[str]]  # path of the protocol → the values of a group's runs


@dataclass(frozen=True)
class Group:
    """Runs of one suite and one protocol, or of several protocols if mixed."""

    name: str  # "DMControl · lite profile · 100,000 frames"
    runs: Scores  # with their curves
    at: int | None  # the time of the scores; None: the end of each budget
    mixed: bool
    papers: bool  # whether to show the paper's numbers

    @property
    def key(self) -> str:
        return key_of(self.name)

    @property
    def suite(self) -> str:
        return self.runs.runs[0].suite

    @property
    def unit(self) -> Unit:
        return self.runs.runs[0].unit

    @cached_property
    def final(self) -> Scores:
        """The score of each run that has reached the time."""
        return self.runs.at(self.at)

    @cached_property
    def methods(self) -> list[str]:
        return in_order(self.runs.methods)

    @cached_property
    def tasks(self) -> list[str]:
        return self.runs.tasks

    def runs_of(self, method: str, task: str | None = None) -> list[RunScores]:
        """The runs of a method, on one task or all, by task and seed."""
        return [run for one in (self.tasks if task is None else [task]) for run in self.runs.of_method(method, one)]

    @property
    def baseline(self) -> str | None:
        """The name of the Baseline in this group: a CSV may use the paper's spelling."""
        return next((method for method in self.methods if method.lower() == GAIN[1].lower()), None)

    @property
    def reference(self) -> str | None:
        """The method that others are compared with."""
        return self.baseline if len(self.methods) > 1 else None

    @property
    def times(self) -> list[int]:
        """The times of the scores, in the group's unit."""
        return sorted({run.curve[0][0] for run in self.final.runs})

    def paper(self, task: str, method: str) -> PublishedScore | None:
        """The paper's score at the time of these scores, or at the end of the budget if there are none yet.

        None for mixed scores of several times.
        """
        if not self.papers:
            return None
        found = published(task, self._time_of[task], method) if task in self._time_of else None
        return found if found is not None and found.unit == self.unit else None

    @cached_property
    def _time_of(self) -> dict[str, int]:
        """Task → the only time of its scores, or the only budget of its runs if there are none yet."""
        times, budgets = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
        for run in self.final.runs:
            times[run.task].add(run.curve[0][0])
        for run in self.runs.runs:
            budgets[run.task] |= {run.budget} if run.budget is not None else set()
        chosen = {task: times[task] or budgets[task] for task in self.tasks}
        return {task: min(found) for task, found in chosen.items() if len(found) == 1}

    @cached_property
    def not_the_papers(self) -> str:
        """Why its scores may not be compared with the paper's; empty if they may."""
        if any(run.protocol.get("profile") == "lite" for run in self.runs.runs):
            return LITE
        strange = sorted({line for run in self.runs.runs for line in run.departures})
        return f"not comparable: {'; '.join(strange[:3])}{'; …' if len(strange) > 3 else ''}" if strange else ""

    @cached_property
    def against_paper(self) -> dict[str, Verdicts]:
        """The verdicts of each method that is in the paper, if they may be compared. The lite profile may not."""
        why = self.not_the_papers
        if (why and not self.mixed) or "lite" in why:
            return {}
        printed = [method for method in self.methods if any(self.paper(task, method) for task in self.tasks)]
        return {method: against_paper(self.runs, method, at=self.at, mixed=self.mixed) for method in printed}

    @cached_property
    def against_baseline(self) -> dict[str, Verdicts]:
        """The verdicts of each other method, if there is a Baseline."""
        reference = self.reference
        return {
            method: versus(self.runs, method, reference, at=self.at, mixed=self.mixed, papers=self.papers)
            for method in self.methods
            if reference is not None and method != reference
        }


def order_of(method: str) -> tuple[int, str, str]:
    """A sort key: the paper's own methods first, so that their colours are the same on every page; then by name."""
    first, name = [own.lower() for own in GAIN], method.lower()
    return first.index(name) if name in first else len(first), name, method


def in_order(methods: Iterable[str]) -> list[str]:
    return sorted(methods, key=order_of)


def short(task: str) -> str:
    return task.partition("/")[2]


def grouped(scores: Scores, *, at: int | None, mixed: bool, papers: bool) -> list[Group]:
    """Group scores by suite and, unless `mixed`, by protocol."""
    runs = scores.runs
    if at is not None:  # runs of different budgets are then one group
        runs = tuple(replace(run, protocol={**run.protocol, f"budget.{run.unit}": at}) for run in runs)
    suites = sorted({run.suite for run in runs})
    together = [Scores(tuple(run for run in runs if run.suite == suite)) for suite in suites]
    parts = together if mixed else sorted(Scores(runs).groups(), key=lambda part: part.suites)
    return [Group(name, part, at, mixed, papers) for name, part in zip(_names(parts), parts, strict=True)]


def _names(parts: Sequence[Scores]) -> list[str]:
    """The name of each group: suite, profile, budget, and what distinguishes it from other groups with the same ones."""
    plain, values = [_plain_name(part) for part in parts], [_values(part) for part in parts]
    rivals = defaultdict[str, list[Values]](list)
    for name, own in zip(plain, values, strict=True):
        rivals[name].append(own)
    return [
        short_digests(" · ".join([name, *_apart(own, rivals[name])])) for name, own in zip(plain, values, strict=True)
    ]


def _apart(own: Values, rivals: Sequence[Values]) -> Iterator[str]:
    """The values of a group that some of its rivals do not have. It may be among them: it has them all."""
    for path, found in own.items():
        if path in ("profile", "env.task", "env.kind") or path.startswith("budget.") or len(found) > 1:
            continue
        if any(path in other and not found & other[path] for other in rivals):
            yield f"{path}={next(iter(found))}"


def _plain_name(part: Scores) -> str:
    first = part.runs[0]
    words = [SUITES.get(first.suite, first.suite)]
    if first.suite in IN_THE_PAPER:
        words.append(_profile_of(part))
    budgets = sorted({run.budget for run in part.runs if run.budget is not None})
    words.append(f"{' and '.join(f'{budget:,}' for budget in budgets)} {first.unit}")
    return " · ".join(words)


def _profile_of(part: Scores) -> str:
    """The profile of these runs, in a few words."""
    found = {run.protocol.get("profile") for run in part.runs}
    known = found - {None}
    if not known:
        return "CSV"
    if len(known) > 1:
        return "mixed profiles"
    return f"{known.pop()} {'and unknown profiles' if None in found else 'profile'}"


def _values(scores: Scores) -> Values:
    values: Values = {}
    for run in scores.runs:
        for path, value in run.protocol.items():
            values.setdefault(path, set()).add(as_override(value))
    return values


class Case(NamedTuple):
    """Runs of one task, one protocol and one method, over which probes and times are averaged."""

    task: str
    setting: str  # the name of their protocol: "DMControl · paper profile · 100,000 frames"
    method: str


Cases = Mapping[Case, Sequence[RunFacts]]

CASE_FIELDS: list[Field[Case]] = [
    (Column("task"), lambda case: Cell(case.task, strong=True)),
    (Column("runs of"), lambda case: Cell(case.setting)),
    (Column("method"), lambda case: Cell(case.method)),
]


def cases(facts: Sequence[RunFacts]) -> Cases:
    """The runs of each case, in order. Runs of different protocols are never averaged, even if mixed."""
    parts = Scores(tuple(fact.run for fact in facts)).groups()
    names = {run.identity: name for name, part in zip(_names(parts), parts, strict=True) for run in part.runs}
    found = defaultdict[Case, list[RunFacts]](list)
    for fact in facts:
        found[Case(fact.run.task, names[fact.run.identity], fact.run.method)].append(fact)
    return dict(sorted(found.items(), key=lambda item: (item[0].task, item[0].setting, order_of(item[0].method))))
