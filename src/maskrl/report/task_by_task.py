"""Every task: scores beside the paper's, verdicts with the numbers behind them, and where a method does not help."""

from collections import Counter
from collections.abc import Mapping, Sequence

from maskrl.analysis.scores import Scores
from maskrl.analysis.statistics import CONFIDENCE, holm
from maskrl.analysis.verdict import GAIN, Verdict, Verdicts, against_paper, digits_for, versus
from maskrl.recipes.published import PublishedScore
from maskrl.report.document import Line, Lines, Section
from maskrl.report.groups import Group, in_order, short
from maskrl.report.tables import (
    NOTHING,
    Cell,
    Column,
    Field,
    Mark,
    Table,
    counted,
    key_of,
    number,
    shown,
    spread,
    summary_cell,
    tabulated,
    words,
)

MOST_LINES = 12  # of sentences that are not folded
RUNS = ("mean", "std", "runs")
MARKS: Mapping[str, Mark] = {
    "above": "above",
    "below": "below",
    "consistent": "consistent",
    "not enough seeds": "unsure",
}


def comparisons(group: Group, *, papers: bool) -> tuple[dict[str, Verdicts], dict[str, Verdicts]]:
    """Method → its verdicts against the paper, and against the Baseline."""
    plain, reference, why = Scores(group.runs.runs), group.reference, group.not_the_papers
    printed = [method for method in group.methods if any(group.paper(task, method) for task in group.tasks)]
    comparable = papers and (not why or group.mixed) and "lite" not in why
    with_paper = {
        method: against_paper(plain, method, at=group.at, mixed=group.mixed)
        for method in (printed if comparable else ())
    }
    with_baseline = {
        method: versus(plain, method, reference, at=group.at, mixed=group.mixed, papers=papers)
        for method in group.methods
        if reference is not None and method != reference
    }
    return with_paper, with_baseline


def task_by_task(
    group: Group, with_paper: Mapping[str, Verdicts], with_baseline: Mapping[str, Verdicts], *, papers: bool
) -> Section:
    """Every task: ours, the paper's column beside it, and the verdict."""
    blocks: list[Table | Lines] = [_scores_table(group, with_paper, papers=papers)]
    for ending, reference, found in (("paper", "the paper", with_paper), ("baseline", group.reference, with_baseline)):
        for method, verdicts in found.items():
            if verdicts.tasks:
                key = f"{group.key}-{key_of(method)}-{ending}"
                blocks += verdict_blocks(key, f"{method} against {reference}, {group.name}", verdicts)
    told = ["Mean ± standard deviation over runs, and how many runs in brackets. The unit of replication is the run."]
    if papers and group.not_the_papers and _papers_methods(group):
        told.append(
            f"The paper’s numbers are {group.not_the_papers}. They stand here for orientation and no verdict is given."
        )
    return Section(f"{group.key}-tasks", "Task by task", tuple(told), tuple(blocks), over=group.name)


def _papers_methods(group: Group) -> list[str]:
    """Of the paper's columns those that a reader looks for: its own methods, and what we have runs of."""
    wanted = in_order({*GAIN, *group.methods})
    found = [group.paper(task, method) for method in wanted for task in group.tasks]
    return list(dict.fromkeys(cell.method for cell in found if cell is not None))


def _scores_table(group: Group, with_paper: Mapping[str, Verdicts], *, papers: bool) -> Table:
    why, printed = group.not_the_papers, _papers_methods(group) if papers else []
    theirs = {name.lower(): name for name in printed}
    fields: list[Field[str]] = [(Column("task"), lambda task: words(short(task), strong=True))]

    def add_paper(name: str) -> None:
        column = Column(f"paper: {name}", RUNS, "apart" if why else "quiet", why)
        fields.append((column, lambda task: papers_cell(group.paper(task, name))))

    def add_ours(method: str) -> None:
        fields.append((Column(method, RUNS), lambda task: our_cell(group, method, task)))
        if method.lower() in theirs:
            add_paper(theirs[method.lower()])
            verdicts = with_paper.get(method)
            fields.append((Column(f"{method}: verdict"), lambda task: _short_verdict(verdicts, task, why)))

    for method in group.methods:
        add_ours(method)
    ours = {method.lower() for method in group.methods}
    for name in (name for name in printed if name.lower() not in ours):
        add_paper(name)
    time = " and ".join(f"{time:,}" for time in group.times) or "no"
    notes = [f"Scores at {time} {group.unit}."] + ([f"Beside the paper’s numbers: {why}."] if printed and why else [])
    return tabulated(f"{group.key}-scores", f"Scores, {group.name}", fields, group.tasks, notes)


def our_cell(group: Group, method: str | None, task: str) -> Cell:
    """The final scores of a method's runs on a task, or why there are none."""
    if method is None:
        return NOTHING
    values = group.final.values(method, task)
    if len(values):
        return summary_cell(values)
    started = sum((run.method, run.task) == (method, task) for run in group.runs.runs)
    return words("–", note=f"{counted(started, 'run')} not there yet" if started else "no runs")


def papers_cell(cell: PublishedScore | None, *, quiet: bool = True, strong: bool = False) -> Cell:
    """A score as the paper prints it, with its seeds, and with an asterisk if it is misprinted."""
    if cell is None:
        return NOTHING
    text = spread(cell.mean, cell.std, 0 if cell.unit == "frames" else 1)
    text += (f" ({cell.seeds})" if cell.seeds else "") + (" *" if cell.misprint else "")
    mark: Mark = "warn" if cell.misprint else "quiet" if quiet else ""
    return Cell(text, (cell.mean, cell.std, cell.seeds), cell.misprint or "", mark, strong)


def _short_verdict(verdicts: Verdicts | None, task: str, why: str) -> Cell:
    if why and verdicts is None:
        return words(why, mark="apart")
    found = next((verdict for verdict in verdicts.tasks if verdict.task == task), None) if verdicts else None
    return words("not compared", mark="quiet") if found is None else outcome_cell(found)


def outcome_cell(verdict: Verdict, *, corrected: float | None = None) -> Cell:
    text: str = verdict.outcome
    if verdict.outcome == "not enough seeds" and verdict.needed is not None:
        text = f"not enough seeds: about {verdict.needed} needed"
    elif verdict.outcome == "consistent" and verdict.needed is None:
        text = "no difference shows"
    lost = verdict.outcome in ("above", "below") and corrected is not None and corrected >= 1 - CONFIDENCE
    return words(text, mark=MARKS[verdict.outcome], note="not after the correction for several tests" if lost else "")


def in_words(verdicts: Sequence[Verdict]) -> tuple[Line, ...]:
    return tuple(Line(verdict.sentence, MARKS[verdict.outcome]) for verdict in verdicts)


def verdict_blocks(key: str, title: str, verdicts: Verdicts) -> list[Table | Lines]:
    """The numbers behind the verdicts, and the same in words."""
    sentences = in_words((*verdicts.overall, *verdicts.tasks))
    folded = len(sentences) > MOST_LINES
    return [_verdict_table(key, title, verdicts), Lines(f"In words: {title}", sentences, folded)]


def _verdict_table(key: str, title: str, verdicts: Verdicts) -> Table:
    tested = [verdict for verdict in verdicts.tasks if verdict.difference is not None]
    p_values = {verdict.task: verdict.difference.p for verdict in tested if verdict.difference is not None}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    fields: list[Field[Verdict]] = [
        (Column("task"), lambda verdict: words(short(verdict.task) or verdict.task, strong=True)),
        (Column("verdict"), lambda verdict: outcome_cell(verdict, corrected=corrected.get(verdict.task))),
        (Column("difference", ("", "low", "high")), _difference_cell),
        (Column("p", ("",)), lambda verdict: _p_cell(verdict.difference and verdict.difference.p)),
        (Column("p, Holm", ("",)), lambda verdict: _p_cell(corrected.get(verdict.task))),
        (Column("p, permutation", ("",)), lambda verdict: _p_cell(verdict.permutation_p)),
        (Column("effect size", ("",)), lambda verdict: number(verdict.effect, 2)),
        (Column("runs", ("",)), lambda verdict: number(verdict.runs, 0)),
    ]
    if all(verdict.permutation_p is None for verdict in verdicts.tasks):
        fields = [field for field in fields if field[0].name != "p, permutation"]
    gauged = any(verdict.needed is not None for verdict in (*verdicts.tasks, *verdicts.overall))
    gauge = (
        "That none shows counts as consistent only if there are seeds enough to have found the paper’s own gain of MLR over "
        "its Baseline."
        if gauged
        else "That none shows does not say that there is none."
    )
    notes = (
        f"p is Welch’s; p, Holm is corrected for the {counted(len(tested), 'test')} of this table. The effect size is Cohen’s d.",
        f"The verdict goes by p as it is: above or below if it is less than 0.05. {gauge}",
    )
    return tabulated(key, title, fields, verdicts.tasks, notes, verdicts.overall)


def _difference_cell(verdict: Verdict) -> Cell:
    if verdict.difference is None:
        value = verdict.mean - verdict.reference
        return Cell(shown(value, sign=True), (value, None, None), note="one run has no spread to test with")
    value, low, high, _ = verdict.difference
    digits = digits_for(max(abs(verdict.mean), abs(verdict.reference)))
    text = f"{shown(value, digits, sign=True)} ({shown(low, digits)} to {shown(high, digits)})"
    return Cell(text, (value, low, high))


def _p_cell(p: float | None) -> Cell:
    return Cell("–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}", (p,))


def negative(group: Group, with_baseline: Mapping[str, Verdicts]) -> Section:
    """Tasks on which a method is below the Baseline, or cannot be told from it."""
    key, title = f"{group.key}-negative", "Where it does not help"
    if group.reference is None:
        what = "There are no runs of the baseline here" if group.baseline is None else "There is the baseline alone"
        told = f"{what}, so nothing can be said about what an objective adds."
        return Section(key, title, (told,), over=group.name)
    found = {method: negative_lines(method, group.reference, v.tasks) for method, v in with_baseline.items()}
    blocks = [
        Lines(method, lines, folded=len(lines) > MOST_LINES) for method, (_, lines) in found.items() if len(lines)
    ]
    return Section(key, title, tuple(told for told, _ in found.values()), tuple(blocks), over=group.name)


def negative_lines(method: str, reference: str, verdicts: Sequence[Verdict]) -> tuple[str, tuple[Line, ...]]:
    """How many tasks went which way, and a sentence for each on which the method is not above."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    unsure = counts["consistent"] + counts["not enough seeds"]
    told = (
        f"{method} is above {reference} on {counts['above']} of {counted(len(verdicts), 'task')}, below on "
        f"{counts['below']}, and cannot be told from it on {unsure}."
    )
    worst = sorted((v for v in verdicts if v.outcome != "above"), key=lambda v: (v.outcome != "below", v.task))
    return told, tuple(Line(v.sentence, "below" if v.outcome == "below" else "unsure") for v in worst)
