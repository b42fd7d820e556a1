"""Tables per task: scores beside the paper's, verdicts with their numbers, and tasks on which a method does not help."""

from collections import Counter
from collections.abc import Mapping, Sequence

from maskrl.analysis.scores import scale
from maskrl.analysis.statistics import ALPHA, ENOUGH, holm
from maskrl.analysis.verdict import GAIN, Verdict, Verdicts, shown, shown_difference, shown_p
from maskrl.recipes.published import PublishedScore, plainly
from maskrl.report.document import Line, Lines, Section
from maskrl.report.groups import Group, in_order, short
from maskrl.report.tables import (
    NOTHING,
    Cell,
    Column,
    Field,
    Mark,
    Table,
    as_printed,
    key_of,
    number,
    spread,
    summary_cell,
    tabulated,
)
from maskrl.words import count

MOST_LINES = 12  # sentences before the rest is folded
RUNS = ("mean", "std", "runs")
MARKS: Mapping[str, Mark] = {
    "above": "above",
    "below": "below",
    "consistent": "consistent",
    "not enough seeds": "unsure",
    "not tested": "unsure",
}


def task_by_task(group: Group) -> Section:
    """The section on tasks: our scores, the paper's beside them, and the verdicts with their numbers."""
    tables = [_scores_table(group)]
    for papers, found in ((True, group.against_paper), (False, group.against_baseline)):
        corrected = _corrected(found)
        tables += [_verdict_table(group, m, v, corrected, papers=papers) for m, v in found.items() if v.tasks]
    told = [
        "Mean ± standard deviation over runs, with the number of runs in brackets. The unit of replication is the run."
    ]
    if unscaled := [short(task) for task in group.final.tasks if scale(task) is None]:
        told.append(
            f"Scores of {', '.join(unscaled)} cannot be normalised, because no scale is known: the headline numbers leave them out."
        )
    return Section(f"{group.key}-tasks", "Task by task", tuple(told), tuple(tables), over=group.name)


def _scores_table(group: Group) -> Table:
    # The paper's columns of its own methods and of those with runs.
    found = [group.paper(task, method) for method in in_order({*GAIN, *group.methods}) for task in group.tasks]
    printed = {plainly(cell.method): cell.method for cell in found if cell is not None}
    fields: list[Field[str]] = [(Column("task"), lambda task: Cell(short(task), strong=True))]
    for method in group.methods:
        fields += _our_fields(group, method, printed.get(plainly(method)))
    ours = {plainly(method) for method in group.methods}
    fields += [_papers_field(group, name) for plain, name in printed.items() if plain not in ours]
    time = " and ".join(f"{time:,}" for time in group.times) or "no"
    notes = [f"Scores at {time} {group.unit}."]
    if any(found) and group.not_the_papers:
        notes.append(f"Beside the paper’s numbers: {group.not_the_papers}.")
    return tabulated(f"{group.key}-scores", f"Scores, {group.name}", fields, group.tasks, notes)


def _our_fields(group: Group, method: str, printed: str | None) -> list[Field[str]]:
    """Our column and, if the paper has this method, its column and the verdict."""
    ours: Field[str] = (Column(method, RUNS), lambda task: our_cell(group, method, task))
    verdict: Field[str] = (Column(f"{method}: verdict"), lambda task: _short_verdict(group, method, task))
    return [ours] if printed is None else [ours, _papers_field(group, printed), verdict]


def _papers_field(group: Group, method: str) -> Field[str]:
    return papers_column(group, method, RUNS), lambda task: papers_cell(group.paper(task, method))


def papers_column(group: Group, name: str, parts: tuple[str, ...]) -> Column:
    """A column for the paper's numbers."""
    why = group.not_the_papers
    return Column(f"paper: {name}", parts, "apart" if why else "quiet", why)


def our_cell(group: Group, method: str | None, task: str) -> Cell:
    """The final scores of a method's runs on a task, or why there are none."""
    if method is None:
        return NOTHING
    values = group.final.values(method, task)
    if len(values):
        return summary_cell(values)
    started = len(group.runs_of(method, task))
    return Cell("–", note=f"{count(started, 'run')} not finished yet" if started else "no runs")


def papers_cell(cell: PublishedScore | None) -> Cell:
    """The paper's score as printed, with its seeds."""
    if cell is None:
        return NOTHING
    text = spread(cell.mean, cell.std, 0 if cell.unit == "frames" else 1) + (f" ({cell.seeds})" if cell.seeds else "")
    return as_printed(text, (cell.mean, cell.std, cell.seeds), cell.misprint)


def _short_verdict(group: Group, method: str, task: str) -> Cell:
    verdicts = group.against_paper.get(method)
    if verdicts is None:
        return Cell(group.not_the_papers, mark="apart")
    found = next((verdict for verdict in verdicts.tasks if verdict.task == task), None)
    return Cell("not compared", mark="quiet") if found is None else _outcome_cell(found)


def _outcome_cell(verdict: Verdict, *, corrected: float | None = None, needs: bool = False) -> Cell:
    """The verdict in a few words. `needs`: with the runs needed to show the paper's gain of MLR over its Baseline."""
    text: str = verdict.outcome
    if needs and verdict.outcome == "not enough seeds" and verdict.needed is not None:
        text = f"not enough seeds: about {verdict.needed:,} needed"
    elif verdict.outcome == "consistent":
        text = "no difference shows"
    lost = verdict.outcome in ("above", "below") and corrected is not None and corrected >= ALPHA
    return Cell(text, mark=MARKS[verdict.outcome], note="not after the correction for several tests" if lost else "")


def in_words(verdicts: Sequence[Verdict]) -> tuple[Line, ...]:
    return tuple(Line(verdict.sentence, MARKS[verdict.outcome], verdict.conclusion) for verdict in verdicts)


def _corrected(found: Mapping[str, Verdicts]) -> dict[tuple[str, str], float]:
    """(method, task) → p with Holm's correction for all tests of all methods against the same reference."""
    p_values = {
        (method, verdict.task): verdict.difference.p
        for method, verdicts in found.items()
        for verdict in verdicts.tasks
        if verdict.difference is not None
    }
    return dict(zip(p_values, holm(list(p_values.values())), strict=True))


def _verdict_table(
    group: Group, method: str, verdicts: Verdicts, corrected: Mapping[tuple[str, str], float], *, papers: bool
) -> Table:
    """The verdicts of a method against the paper or the Baseline, with their numbers."""
    reference, ending = ("the paper", "paper") if papers else (str(group.reference), "baseline")
    every = (*verdicts.tasks, *verdicts.overall)
    theirs = _runs_of_reference(group, method, verdicts, papers=papers)
    whys = list(dict.fromkeys(verdict.untested for verdict in every if verdict.difference is None))
    tested = any(verdict.difference is not None for verdict in verdicts.tasks)
    told = not tested and len(whys) == 1  # the caption gives the only reason
    holms: Field[Verdict] = (Column("p, Holm", ("",)), lambda verdict: _p_cell(corrected.get((method, verdict.task))))
    fields: list[Field[Verdict]] = [
        (Column("task"), lambda verdict: Cell(short(verdict.task) or verdict.task, strong=True)),
        (
            Column("verdict"),
            lambda verdict: _outcome_cell(verdict, corrected=corrected.get((method, verdict.task)), needs=not papers),
        ),
        (Column("difference", ("", "low", "high")), lambda verdict: _difference_cell(verdict, told=told)),
        (Column("p", ("",)), lambda verdict: _p_cell(verdict.difference and verdict.difference.p)),
        *([holms] if len(corrected) > 1 else []),  # otherwise there is nothing to correct
        (Column("effect size", ("",)), lambda verdict: number(verdict.effect, 2)),
        (Column("runs", ("", f"of {reference}")), lambda verdict: _runs_cell(verdict, theirs[verdict.task])),
    ]
    if tested:
        notes = _notes_of_tests(every, len(corrected), reference, papers=papers)
    else:  # then there is no test over tasks either
        notes = [f"Nothing is tested{f': {whys[0]}' if told else ''}."]
    title = f"{method} against {reference}, {group.name}"
    return tabulated(f"{group.key}-{key_of(method)}-{ending}", title, fields, verdicts.tasks, notes, verdicts.overall)


def _runs_of_reference(group: Group, method: str, verdicts: Verdicts, *, papers: bool) -> dict[str, int | None]:
    """Task → runs of the Baseline that count, or the paper's seeds; of a mean over tasks the fewest. None: unknown."""

    def runs(verdict: Verdict) -> int | None:
        if not papers:
            return verdict.runs if verdict.left_out else len(group.final.values(str(group.reference), verdict.task))
        cell = group.paper(verdict.task, method)
        return cell.seeds if cell else None

    found = {verdict.task: runs(verdict) for verdict in verdicts.tasks}
    known = [one for one in found.values() if one is not None]
    fewest = min(known) if len(known) == len(found) else None
    return found | {verdict.task: fewest for verdict in verdicts.overall}


def _runs_cell(verdict: Verdict, theirs: int | None) -> Cell:
    """The runs of both that count, once if both have the same number."""
    ours, left_out = verdict.runs, verdict.left_out
    note = f"{count(left_out, 'run')} without a partner of the same seed left out" if left_out else ""
    return Cell(f"{ours}" if theirs in (None, ours) else f"{ours} and {theirs}", (ours, theirs), note)


def _notes_of_tests(every: Sequence[Verdict], tests: int, reference: str, *, papers: bool) -> list[str]:
    """`tests`: those of all methods against the reference."""
    gauge = "If no difference shows, there may still be one."
    if any(verdict.needed is not None for verdict in every):
        size = "a difference as large as the paper’s gain" if papers else "the paper’s gain"
        gauge = f"The verdict that no difference shows needs enough seeds to detect {size} of MLR over its Baseline."
    test, which = f"p is {_tests(every)}.", "p"
    if tests > 1:
        test += (
            f" p, Holm is corrected for all {tests:,} tests against {reference}: those of every method on every task."
        )
        which = "the uncorrected p"
    return [
        f"{test} The effect size is Cohen’s d.",
        f"The verdict uses {which}: above or below if it is less than 0.05. {gauge}",
    ]


def _tests(verdicts: Sequence[Verdict]) -> str:
    """The test of a table's p values, in words. At least one verdict has a test."""
    tested = [verdict for verdict in verdicts if verdict.difference is not None]
    if not any(verdict.paired for verdict in tested):
        return "Welch’s"
    if not all(verdict.paired for verdict in tested):
        return (
            f"of the paired t test where one has all seeds of the other, at least {ENOUGH}, and the differences vary, and "
            "Welch’s elsewhere"
        )
    if len(tested) < len(verdicts) or any(verdict.left_out for verdict in tested):
        return "of the paired t test, on the seeds that both have"
    return "of the paired t test, because both have the same seeds"


def _difference_cell(verdict: Verdict, *, told: bool) -> Cell:
    """The difference with its interval. `told`: whether the caption says why there is no test."""
    if verdict.difference is None:
        value = verdict.mean - verdict.reference
        return Cell(shown(value, sign=True), (value, None, None), note="" if told else verdict.untested)
    difference, low, high = shown_difference(verdict.difference, verdict.digits)
    return Cell(f"{difference} ({low} to {high})", verdict.difference[:3])


def _p_cell(p: float | None) -> Cell:
    return Cell("–" if p is None else shown_p(p), (p,))


def negative(group: Group) -> Section:
    """The section on tasks where a method is below the Baseline, or shows no difference from it."""
    key, title = f"{group.key}-negative", "Where it does not help"
    if group.reference is None:
        what = (
            "There are no runs of the baseline here"
            if group.baseline is None
            else "There are only runs of the baseline"
        )
        told = f"{what}, so the effect of an objective is unknown."
        return Section(key, title, (told,), over=group.name)
    found = {m: negative_lines(m, group.reference, v.tasks) for m, v in group.against_baseline.items()}
    blocks = tuple(Lines(m, lines, folded=len(lines) > MOST_LINES) for m, (_, lines) in found.items() if lines)
    return Section(key, title, tuple(told for told, _ in found.values()), blocks, over=group.name)


def negative_lines(method: str, reference: str, verdicts: Sequence[Verdict]) -> tuple[str, tuple[Line, ...]]:
    """The counts of tasks by verdict, with a sentence for each task on which the method is not above."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    untested = len(verdicts) - counts["above"] - counts["below"] - counts["consistent"]
    told = (
        f"{method} is above {reference} on {counts['above']} of {count(len(verdicts), 'task')} and below on "
        f"{counts['below']}; on {counts['consistent']} no difference shows"
    )
    told += f", and {untested} {'has' if untested == 1 else 'have'} no verdict." if untested else "."
    worst = sorted((v for v in verdicts if v.outcome != "above"), key=lambda v: (v.outcome != "below", v.task))
    return told, tuple(Line(v.sentence, "below" if v.outcome == "below" else "unsure") for v in worst)
