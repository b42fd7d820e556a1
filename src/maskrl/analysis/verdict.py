"""Compare runs with the paper, and methods with each other: numbers, and a sentence that the numbers support."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from maskrl.analysis.protocol import papers_protocol
from maskrl.analysis.scores import Scores, scale
from maskrl.analysis.statistics import (
    ALPHA,
    ENOUGH,
    ZERO,
    Difference,
    Summary,
    effect_size,
    seeds_needed,
    welch,
)
from maskrl.recipes.published import PublishedScore, published
from maskrl.words import count

# "not tested": no number of runs allows a test against the paper's number, or no score varies between runs.
Outcome = Literal["consistent", "above", "below", "not enough seeds", "not tested"]

# The paper's own methods. The gain of the first over the second determines how many seeds are enough.
GAIN = ("MLR", "Baseline")


@dataclass(frozen=True)
class Verdict:
    """One comparison: on a task, or of the means over the tasks of a suite."""

    task: str  # "dmcontrol/walker-walk", or "dmcontrol: mean of 6 tasks"
    ours: str  # the first method
    theirs: str  # the second, or its place in the paper
    runs: int  # of ours; the fewest of any task
    mean: float  # over tasks, if several; then human-normalised on Atari
    reference: float
    difference: Difference | None  # None: no test; `untested` says why
    effect: float | None  # Cohen's d, if there is a test
    needed: int | None  # runs per method to show the paper's gain of MLR over its Baseline; None: unknown
    outcome: Outcome
    paired: bool = False  # whether the test is on differences between runs of the same seed
    untested: str = ""  # why there is no test
    left_out: int = 0  # runs that do not count, because the other method has no run of their seed
    with_paper: bool = False  # whether theirs are the paper's scores

    @property
    def sentence(self) -> str:
        """The verdict as a sentence. Large numbers have no decimals, small ones some."""
        mean, reference = (shown(value, self.digits) for value in (self.mean, self.reference))
        ending = self.untested
        if self.difference is not None:
            value, low, high = shown_difference(self.difference, self.digits)
            p = shown_p(self.difference.p)
            ending = f"difference {value}, 95 % interval {low} to {high}, p {p if p.startswith('<') else f'= {p}'}"
        if self.left_out:
            ending += f"; {count(self.left_out, 'run')} without a partner of the same seed left out"
        if self.outcome == "not enough seeds" and self.needed is not None and not self.with_paper:
            ending += f"; about {count(self.needed, 'seed')} of each method would show the paper's own gain"
        return f"{self.conclusion}. {mean} ({count(self.runs, 'run')}) against {reference}; {ending}."

    @property
    def digits(self) -> int:
        """The decimals of its scores."""
        return digits_for(max(abs(self.mean), abs(self.reference)))

    @property
    def conclusion(self) -> str:
        """The beginning of the sentence: the finding without its numbers."""
        pair = f"{self.ours} and {self.theirs}"
        return (
            f"{self.task}: "
            + {
                "above": f"{self.ours} is above {self.theirs}",
                "below": f"{self.ours} is below {self.theirs}",
                "consistent": f"no difference between {pair} shows",
                "not enough seeds": f"not enough seeds to compare {pair}",
                "not tested": f"{pair} are not tested",
            }[self.outcome]
        )


def digits_for(size: float) -> int:
    """The number of decimals for a number of this size: none from 100 on, three below 10."""
    return 0 if size >= 100 else 1 if size >= 10 else 3


def shown(value: float | None, digits: int | None = None, *, sign: bool = False) -> str:
    """A number as text: whole from 100 on, three digits below 10, with a typographic minus sign."""
    if value is None or not math.isfinite(value):
        return "–"
    if digits is None:
        digits = digits_for(abs(value))
    value = round(float(value), digits) + 0.0  # turns -0.0 into 0.0
    return f"{value:{'+' if sign else ''},.{digits}f}".replace("-", "−")


def shown_difference(difference: Difference, digits: int) -> tuple[str, str, str]:
    """The difference and both ends of its interval as text, with these decimals or more.

    At least two significant digits of the interval's width are shown, and one of each end: one that is not 0 must not read 0.
    """
    value, low, high, _ = difference
    for number, significant in ((high - low, 2), (low, 1), (high, 1)):
        if number and math.isfinite(number):
            digits = max(digits, significant - 1 - math.floor(math.log10(abs(number))))
    return shown(value, digits, sign=True), shown(low, digits), shown(high, digits)


def shown_p(p: float) -> str:
    """A p value as text: three decimals, and more if one below `ALPHA` would otherwise read as not below it."""
    digits = 3
    while p < ALPHA <= round(p, digits):
        digits += 1
    return "< 0.001" if p < 0.001 else f"{p:.{digits}f}"


@dataclass(frozen=True)
class Verdicts:
    """A verdict per task, one per suite with several tasks, and the problems: what could not be compared."""

    tasks: tuple[Verdict, ...]
    overall: tuple[Verdict, ...]
    problems: tuple[str, ...]


def against_paper(scores: Scores, method: str, *, at: int | None = None, mixed: bool = False) -> Verdicts:
    """Compare a method's runs with the paper's column of that name, at a time or at the end of their budget.

    A task whose runs do not have the paper's protocol becomes a problem that shows the difference, unless `mixed`. The paper
    does not name the versions of its simulators, so these are not compared.
    """
    scores = scores.where(lambda run: run.method == method).at(at)
    problems = [*scores.problems, *([] if scores.runs else [f"There are no scores of {method}."])]
    sides, without = list[_Side](), list[str]()
    for task in scores.tasks:
        side, problem = _beside_paper(_part(scores, [task]), mixed=mixed)
        sides += [side] if side else []
        problems += [problem] if problem else []
    for suite in scores.suites:
        compared = [side.task for side in sides if _suite(side.task) == suite]
        if not mixed and (conflicts := _part(scores, compared).conflicts()):
            problems.append(
                f"{suite} has no verdict over tasks, because they differ in protocol: {'; '.join(conflicts)}."
            )
            without.append(suite)
    return _judge(method, "the paper", sides, problems, without=without)


def _beside_paper(scores: Scores, *, mixed: bool) -> tuple["_Side | None", str]:
    """Runs of one method on one task with the paper's cell, or None if they cannot be compared; and a problem, or ""."""
    run, times = scores.runs[0], _times(scores)
    refused = f"{run.task} is not compared, because its"
    if not mixed and (conflicts := scores.conflicts()):
        return None, f"{refused} runs do not have the same protocol: {'; '.join(conflicts)}."
    if len(times) > 1:
        return None, f"{refused} scores are of {' and '.join(map(str, times))} {run.unit}."
    cell = published(run.task, times[0], run.method)
    if cell is None or cell.unit != run.unit:
        return None, f"The paper has no {run.method} on {run.task} at {times[0]} {run.unit}."
    strange = _not_the_papers(scores)
    if strange and not mixed:
        return None, f"{refused} runs do not have the paper's protocol: {'; '.join(strange)}."
    unknown = any("profile" not in one.protocol for one in scores.runs)
    told = f"{run.task}: a CSV has no protocol; the paper's is assumed." if unknown else ""
    ours = Summary.of(scores.values(run.method, run.task))
    theirs = _usable(cell) or Summary(cell.mean, math.nan, cell.seeds or 0)
    label = f"{cell.source} ({cell.seeds} seeds)" if cell.seeds else cell.source
    gauged = _papers_own(run.method) and not strange
    why = _untestable(cell)
    return _Side(run.task, times[0], ours, theirs, label, gauged, untestable=why, with_paper=True), told


def _untestable(cell: PublishedScore) -> str:
    """Why the paper's number cannot be tested against; empty if it can."""
    if cell.misprint:
        return f"the paper's spread is misprinted ({cell.misprint})"
    if cell.std is None or cell.seeds is None:
        return f"the paper does not print its {'spread' if cell.std is None else 'number of seeds'}"
    return f"the paper has {cell.seeds} seeds, and there is no test below {ENOUGH}" if cell.seeds < ENOUGH else ""


def versus(
    scores: Scores, first: str, second: str, *, at: int | None = None, mixed: bool = False, papers: bool = True
) -> Verdicts:
    """Compare the runs of two methods on the tasks that both have. Raises ScoresError for runs of different protocols.

    If one method has all seeds of the other on a task, and these are at least `ENOUGH`, only runs of these seeds count, and the
    test is paired: runs of a seed share their warm-up, resets, noise and evaluation starts. `papers`: for MLR and the Baseline
    with the paper's protocol, also give the seeds needed to show the paper's gain.
    """
    scores = scores.where(lambda run: run.method in (first, second)).at(at)
    if not mixed:
        scores.require_one_protocol()
    problems, sides = list(scores.problems), list[_Side]()
    for task in scores.tasks:
        x, y = scores.values(first, task), scores.values(second, task)
        if not len(x) or not len(y):
            problems.append(f"{task} is not compared: there are no scores of {second if len(x) else first}.")
            continue
        of_task = _part(scores, [task])
        times = _times(of_task)
        gauged = papers and _papers_own(first, second) and len(times) == 1 and not _not_the_papers(of_task)
        runs, pairs = len(x) + len(y), None
        if (partners := _partners(scores.seeds(first, task), scores.seeds(second, task))) is not None:
            x, y = x[partners[0]], y[partners[1]]
            differences = Summary.of_differences(x, y)
            # All are equal: that happens easily with a few integer scores, and there is no test without a spread.
            pairs = None if differences.std == 0 else differences
        left_out = runs - len(x) - len(y)
        sides.append(_Side(task, times[0], Summary.of(x), Summary.of(y), second, gauged, pairs, left_out))
    return _judge(first, second, sides, problems)


def _partners(first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """The places of both methods' runs of the seeds that they share. None if these are too few, if a method has a seed twice,
    or if each method has seeds that the other lacks: a pairing would lose these runs.
    """
    shared = sorted({*first} & {*second})
    repeated = any(len({*seeds}) < len(seeds) for seeds in (first, second))
    if repeated or len(shared) < max(ENOUGH, min(len(first), len(second))):
        return None
    return [first.index(seed) for seed in shared], [second.index(seed) for seed in shared]


def papers_gain(tasks: Sequence[tuple[str, int]]) -> float | None:
    """The paper's effect size of MLR over its Baseline, over (task, time) pairs; None if a score or its spread is missing."""
    sides = list[list[Summary]]()
    for method in GAIN:
        found = [(task, _usable(published(task, at, method))) for task, at in tasks]
        told = [summary if len(tasks) == 1 else _on_scale(task, summary) for task, summary in found if summary]
        if not told or len(told) < len(tasks):
            return None
        sides.append(told)
    return effect_size(*sides)


@dataclass(frozen=True)
class _Side:
    """A task: our runs, and the numbers they are compared with."""

    task: str
    at: int
    ours: Summary
    theirs: Summary
    label: str
    gauged: bool  # whether the paper's gain of MLR over its Baseline applies to these methods and this protocol
    pairs: Summary | None = None  # differences between runs of the same seed, if the test is paired
    left_out: int = 0  # runs without a partner of the same seed, if the others are paired
    untestable: str = ""  # why theirs allows no test
    with_paper: bool = False  # whether theirs is the paper's score

    @property
    def constant(self) -> bool:
        """Whether no score varies between runs."""
        return self.ours.std == 0 == self.theirs.std

    def scaled(self) -> "_Side":
        zero, one = scale(self.task) or (0.0, 1.0)
        pairs = self.pairs and self.pairs.scaled(0.0, one - zero)
        return replace(
            self, ours=_on_scale(self.task, self.ours), theirs=_on_scale(self.task, self.theirs), pairs=pairs
        )


def _judge(
    first: str, second: str, sides: Sequence[_Side], problems: Sequence[str], *, without: Sequence[str] = ()
) -> Verdicts:
    """The verdicts of every task, and of every suite with several tasks, except those in `without`."""
    tasks = [_verdict(side.task, first, side.label, [side]) for side in sides]
    overall = []
    for suite in dict.fromkeys(_suite(side.task) for side in sides):
        of_suite = [side for side in sides if _suite(side.task) == suite]
        if len(of_suite) > 1 and suite not in without and all(scale(side.task) for side in of_suite):
            if suite != "dmcontrol":  # whose tasks share a scale already
                of_suite = [side.scaled() for side in of_suite]
            overall.append(_verdict(f"{suite}: mean of {len(of_suite)} tasks", first, second, of_suite))
    return Verdicts(tuple(tasks), tuple(overall), tuple(problems))


def _verdict(name: str, first: str, second: str, sides: Sequence[_Side]) -> Verdict:
    ours, theirs = [side.ours for side in sides], [side.theirs for side in sides]
    mean, reference = (float(np.mean([summary.mean for summary in part])) for part in (ours, theirs))
    runs, fewest = (min(summary.runs for summary in part) for part in (ours, (*ours, *theirs)))
    verdict = replace(
        Verdict(name, first, second, runs, mean, reference, None, None, None, "not tested"),
        left_out=sum(side.left_out for side in sides),
        with_paper=any(side.with_paper for side in sides),
    )
    if whys := list(dict.fromkeys(side.untestable for side in sides if side.untestable)):
        return replace(verdict, untested="; ".join(whys))
    gain = papers_gain([(side.task, side.at) for side in sides]) if all(side.gauged for side in sides) else None
    needed = None if gain is None else seeds_needed(gain)
    if fewest < ENOUGH:
        why = f"there is no test below {ENOUGH} runs of each"
        return replace(verdict, needed=needed, outcome="not enough seeds", untested=why)
    if constant := [side.task for side in sides if side.constant]:
        where = f"on {_first_few(constant)} " if len(sides) > 1 else ""
        return replace(verdict, untested=f"{where}no score varies between runs, and without a spread there is no test")
    tested = [(side.pairs, ZERO) if side.pairs else (side.ours, side.theirs) for side in sides]
    difference = welch([x for x, _ in tested], [y for _, y in tested])
    return replace(
        verdict,
        difference=difference,
        effect=effect_size(ours, theirs),
        needed=needed,
        outcome=_outcome(fewest, difference, needed),
        paired=all(side.pairs for side in sides),
    )


def _first_few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _outcome(runs: int, difference: Difference, needed: int | None) -> Outcome:
    """The outcome of a test. "consistent" requires enough runs to have found the paper's gain."""
    if difference.p < ALPHA:
        return "above" if difference.value > 0 else "below"
    return "not enough seeds" if needed is not None and runs < needed else "consistent"


def _suite(task: str) -> str:
    return task.partition("/")[0]


def _papers_own(*methods: str) -> bool:
    """Whether these are the paper's MLR and its Baseline, or one of them."""
    names = {method.lower() for method in methods}
    return len(names) == len(methods) and names <= {method.lower() for method in GAIN}


def _times(scores: Scores) -> list[int]:
    return sorted({at for run in scores.runs for at, _ in run.curve})


def _part(scores: Scores, tasks: Sequence[str]) -> Scores:
    return scores.where(lambda run: run.task in tasks)


def _usable(cell: PublishedScore | None) -> Summary | None:
    """The summary for a test; None if the paper does not print it correctly."""
    if cell is None or cell.std is None or cell.seeds is None or cell.misprint:
        return None
    return Summary(cell.mean, cell.std, cell.seeds)


def _on_scale(task: str, summary: Summary) -> Summary:
    """The summary, normalised if the task has a scale."""
    return summary.scaled(*(scale(task) or (0.0, 1.0)))


def _not_the_papers(scores: Scores) -> list[str]:
    """Differences of these runs of one task from the paper's protocol."""
    if not papers_protocol(scores.runs[0].task):
        return ["the paper has no such task"]
    return sorted({line for run in scores.runs for line in run.departures})
