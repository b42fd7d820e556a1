"""What runs say about the paper, and one method about another: numbers, and a sentence that says no more than they do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from maskrl import recipes
from maskrl.analysis.scores import Scores, protocol_difference, protocol_of, scale
from maskrl.analysis.statistics import (
    CONFIDENCE,
    Difference,
    Summary,
    effect_size,
    permutation_p,
    seeds_needed,
    welch,
)
from maskrl.recipes.published import PublishedScore, published, published_scores

Outcome = Literal["consistent", "above", "below", "not enough seeds"]


@dataclass(frozen=True)
class Verdict:
    """One comparison: on a task, or of the means over the tasks of a suite."""

    task: str  # "dmcontrol/walker-walk", or "dmcontrol: mean of 6 tasks"
    ours: str  # the first method
    theirs: str  # the second, or where the paper has it
    runs: int  # of ours; the fewest of any task
    mean: float  # over tasks, if there are several; on Atari then human-normalised
    reference: float
    difference: Difference | None  # None: one run alone
    permutation_p: float | None  # None: the runs behind a table are not known
    effect: float | None  # Cohen's d
    needed: int | None  # runs of each method to show the paper's gain of MLR over its Baseline; None: it has none here
    outcome: Outcome
    sentence: str


@dataclass(frozen=True)
class Verdicts:
    """One for every task, one for every suite of which there are several tasks, and what could not be compared."""

    tasks: tuple[Verdict, ...]
    overall: tuple[Verdict, ...]
    problems: tuple[str, ...]


def against_paper(scores: Scores, method: str, *, at: int | None = None, mixed: bool = False) -> Verdicts:
    """A method's runs against the paper's column of that name, at a time or at the end of their budget.

    A task whose runs do not have the paper's protocol is refused and the difference shown, unless `mixed`. The paper does
    not tell the versions of its simulators, so these are not compared.
    """
    scores = scores.where(lambda run: run.method == method).at(at)
    problems = [*scores.problems, *([] if scores.runs else [f"There are no scores of {method}."])]
    sides, mixed_suites = list[_Side](), list[str]()
    for task in scores.tasks:
        of_task = _part(scores, [task])
        if not mixed and (conflicts := of_task.conflicts()):
            problems.append(
                f"{task} is not compared, for its runs do not have the same protocol: {'; '.join(conflicts)}."
            )
            continue
        times = _times(of_task)
        if len(times) > 1:
            listed = " and ".join(map(str, times))
            problems.append(f"{task} is not compared, for its scores are of {listed} {of_task.runs[0].unit}.")
            continue
        time = times[0]
        cell = published(task, time, method)
        if cell is None or cell.unit != of_task.runs[0].unit:
            problems.append(f"The paper has no {method} on {task} at {time} {of_task.runs[0].unit}.")
            continue
        strange = _not_the_papers(of_task)
        if strange and not mixed:
            problems.append(
                f"{task} is not compared, for its runs do not have the paper's protocol: {'; '.join(strange)}."
            )
            continue
        if any("profile" not in run.protocol for run in of_task.runs):
            problems.append(f"{task}: a CSV does not tell its protocol; it is taken for the paper's.")
        values = of_task.values(method, task)
        label, reference, exact = _reference(cell)
        gauged = _papers_own(method) and not strange
        sides.append(_Side(task, time, values, Summary.of(values), reference, None, label, gauged, exact))
    for suite in scores.suites:
        compared = [side.task for side in sides if _suite(side.task) == suite]
        if not mixed and (conflicts := _part(scores, compared).conflicts()):
            problems.append(f"{suite} has no verdict over tasks, for they differ in protocol: {'; '.join(conflicts)}.")
            mixed_suites.append(suite)
    return _judge(method, "the paper", sides, problems, without=mixed_suites)


def versus(
    scores: Scores, first: str, second: str, *, at: int | None = None, mixed: bool = False, papers: bool = True
) -> Verdicts:
    """One method's runs against another's, on the tasks that both have. Runs of different protocols are refused.

    `papers`: of MLR and the Baseline with the paper's protocol, say how many seeds it takes to show the paper's gain.
    """
    scores = scores.where(lambda run: run.method in (first, second)).at(at)
    if not mixed:
        scores.require_one_protocol()
    problems, sides = list(scores.problems), []
    for task in scores.tasks:
        x, y = scores.values(first, task), scores.values(second, task)
        if not len(x) or not len(y):
            problems.append(f"{task} is not compared: there are no scores of {second if len(x) else first}.")
            continue
        of_task = _part(scores, [task])
        times = _times(of_task)
        gauged = papers and _papers_own(first, second) and len(times) == 1 and not _not_the_papers(of_task)
        sides.append(_Side(task, times[0], x, Summary.of(x), Summary.of(y), y, second, gauged))
    return _judge(first, second, sides, problems)


def within_paper(table: str, at: int, first: str = "MLR", second: str = "Baseline") -> Verdicts:
    """Two columns of a table of the paper against each other, by the means and standard deviations it prints."""
    sides = list[_Side]()
    for task in dict.fromkeys(cell.task for cell in published_scores() if cell.table == table):
        cells = published(task, at, first, table=table), published(task, at, second, table=table)
        x, y = (None if cell is None else _summary(cell) for cell in cells)
        if x is not None and y is not None:
            sides.append(
                _Side(task, at, np.array([]), x, y, None, f"{second} ({y.runs} runs)", _papers_own(first, second))
            )
    return _judge(first, second, sides, ())


def papers_gain(tasks: Sequence[tuple[str, int]]) -> float | None:
    """The effect size of MLR against Baseline in the paper, on tasks at a time; None where it lacks one or its spread."""
    pairs = [(published(task, at, "MLR"), published(task, at, "Baseline")) for task, at in tasks]
    found = [(_summary(x), _summary(y)) for x, y in pairs if x is not None and y is not None]
    x, y = [x for x, _ in found if x is not None], [y for _, y in found if y is not None]
    if not tasks or not len(x) == len(y) == len(tasks):
        return None
    if len(tasks) > 1:
        scales = [scale(task) or (0.0, 1.0) for task, _ in tasks]
        x, y = ([s.scaled(*ends) for s, ends in zip(side, scales, strict=True)] for side in (x, y))
    return effect_size(x, y)


# ── One comparison ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Side:
    """A task: our runs, and what they are held against."""

    task: str
    at: int
    values: NDArray[np.float64]
    ours: Summary
    theirs: Summary
    their_values: NDArray[np.float64] | None
    label: str
    gauged: bool  # by the paper's gain of MLR over its Baseline: measured as the paper does, and of these methods
    exact: bool = False  # theirs is a mean without a spread

    @property
    def testable(self) -> bool:
        return not np.isnan(self.ours.std) and not np.isnan(self.theirs.std)

    def scaled(self) -> "_Side":
        ends = scale(self.task) or (0.0, 1.0)

        def values(raw: NDArray[np.float64]) -> NDArray[np.float64]:
            return (raw - ends[0]) / (ends[1] - ends[0])

        theirs = None if self.their_values is None else values(self.their_values)
        return replace(
            self,
            values=values(self.values),
            ours=self.ours.scaled(*ends),
            theirs=self.theirs.scaled(*ends),
            their_values=theirs,
        )


def _judge(
    first: str, second: str, sides: Sequence[_Side], problems: Sequence[str], *, without: Sequence[str] = ()
) -> Verdicts:
    """Every task, and every suite of several but those without."""
    tasks = [_verdict(side.task, first, side.label, [side]) for side in sides]
    overall = []
    for suite in dict.fromkeys(_suite(side.task) for side in sides):
        of_suite = [side for side in sides if _suite(side.task) == suite]
        if len(of_suite) > 1 and suite not in without and all(scale(side.task) for side in of_suite):
            if suite != "dmcontrol":  # whose tasks all have the same scale
                of_suite = [side.scaled() for side in of_suite]
            overall.append(_verdict(f"{suite}: mean of {len(of_suite)} tasks", first, second, of_suite))
    return Verdicts(tuple(tasks), tuple(overall), tuple(problems))


def _suite(task: str) -> str:
    return task.partition("/")[0]


def _papers_own(*methods: str) -> bool:
    """Whether these are the paper's MLR and its Baseline, or one of them."""
    names = {method.lower() for method in methods}
    return len(names) == len(methods) and names <= {"mlr", "baseline"}


def _times(scores: Scores) -> list[int]:
    return sorted({at for run in scores.runs for at, _ in run.curve})


def _part(scores: Scores, tasks: Sequence[str]) -> Scores:
    return scores.where(lambda run: run.task in tasks)


def _verdict(name: str, first: str, second: str, sides: Sequence[_Side]) -> Verdict:
    ours, theirs = [side.ours for side in sides], [side.theirs for side in sides]
    runs = min(side.ours.runs for side in sides)
    gain = papers_gain([(side.task, side.at) for side in sides]) if all(side.gauged for side in sides) else None
    needed = None if gain is None else seeds_needed(gain)
    mean, reference = float(np.mean([s.mean for s in ours])), float(np.mean([s.mean for s in theirs]))
    testable = all(side.testable for side in sides)
    difference = welch(ours, theirs) if testable else None
    their_values = [side.their_values for side in sides if side.their_values is not None]
    shuffled = (
        permutation_p([side.values for side in sides], their_values)
        if testable and len(their_values) == len(sides)
        else None
    )
    outcome = _outcome(min(runs, *map(len, their_values)) if their_values else runs, difference, needed)
    # Of an exact mean no spread is known, which is not to say that it is 0: ours stands for both.
    spreads = [s.theirs._replace(std=s.ours.std) if s.exact else s.theirs for s in sides]
    effect = effect_size(ours, spreads) if testable else None
    verdict = Verdict(name, first, second, runs, mean, reference, difference, shuffled, effect, needed, outcome, "")
    return replace(verdict, sentence=_sentence(verdict))


def _outcome(runs: int, difference: Difference | None, needed: int | None) -> Outcome:
    """A difference that the test finds is one. That it finds none says something only if it could have found the paper's."""
    if difference is not None and difference.p < 1 - CONFIDENCE:
        return "above" if difference.value > 0 else "below"
    return "not enough seeds" if difference is None or (needed is not None and runs < needed) else "consistent"


def _sentence(verdict: Verdict) -> str:
    """In plain words. Points without decimals, small numbers with some."""
    size = max(abs(verdict.mean), abs(verdict.reference))
    digits = 0 if size >= 100 else 1 if size >= 10 else 3

    def shown(value: float, sign: str = "") -> str:
        return f"{value:{sign}.{digits}f}"

    counted = f"{verdict.runs} run{'s' if verdict.runs > 1 else ''}"
    start = (
        f"{verdict.task}: {verdict.ours} {shown(verdict.mean)} ({counted}), {verdict.theirs} {shown(verdict.reference)}"
    )
    if verdict.difference is None:
        middle = "one run has no spread to test with"
    else:
        value, low, high, p = verdict.difference
        middle = f"a difference of {shown(value, '+')}, 95 % interval {shown(low)} to {shown(high)}, p = {p:.2g}"
    if verdict.permutation_p is not None:
        middle += f" (by permutation {verdict.permutation_p:.2g})"
    ending = {
        "consistent": "They are consistent.",
        "above": f"{verdict.ours} is above.",
        "below": f"{verdict.ours} is below.",
        "not enough seeds": "Not enough seeds to tell.",
    }[verdict.outcome]
    if verdict.outcome == "consistent" and verdict.needed is None:  # nothing says how many seeds would be enough
        ending = "No difference shows."
    if verdict.outcome == "not enough seeds" and verdict.needed is not None:
        ending = f"Not enough seeds: to show the paper's own gain here takes about {verdict.needed} of each method."
    return f"{start}: {middle}. {ending}"


# ── The paper's side ──────────────────────────────────────────────────────────────────────────────────────────────────


def _summary(cell: PublishedScore) -> Summary | None:
    """What a test needs, if the paper tells it and did not misprint it."""
    return None if cell.std is None or cell.seeds is None or cell.misprint else Summary(cell.mean, cell.std, cell.seeds)


def _reference(cell: PublishedScore) -> tuple[str, Summary, bool]:
    """What runs are held against. A mean without a usable spread is taken as exact, and the label says so."""
    summary = _summary(cell)
    if summary is not None:
        return f"{cell.source} ({cell.seeds} seeds)", summary, False
    why = f"misprinted: {cell.misprint}" if cell.misprint else "no spread or number of seeds is told"
    return f"{cell.source} (taken as exact; {why})", Summary(cell.mean, 0.0, cell.seeds or 1), True


def _not_the_papers(scores: Scores) -> list[str]:
    """Where the protocol of these runs of one task is not the paper's: "env.size: 100 -> 48"."""
    try:
        papers = protocol_of(recipes.find(scores.runs[0].task, "paper"))
    except ValueError:
        return ["the paper has no such task"]
    told = {path: value for path, value in papers.items() if not path.startswith("budget.")}
    return sorted({line for run in scores.runs for line in protocol_difference(told, run.protocol)})
