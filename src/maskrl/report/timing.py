"""The section on the time of runs."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from maskrl.analysis.verdict import GAIN
from maskrl.recipes.published import training_hours
from maskrl.report.document import Block, Chart, Section
from maskrl.report.facts import RunFacts
from maskrl.report.groups import CASE_FIELDS, Case, Cases, order_of
from maskrl.report.tables import NOTHING, Cell, Column, Field, Table, number, tabulated

FINISHED = "mean of finished runs"


def timing(runs: Cases, *, papers: bool) -> Section | None:
    """The section on time."""
    timed = {case: [fact for fact in facts if fact.seconds > 0 or fact.cpu_seconds > 0] for case, facts in runs.items()}
    found = {case: facts for case, facts in timed.items() if facts}
    if not found:
        return None
    every = [fact for facts in found.values() for fact in facts]
    parts = list(dict.fromkeys(part for fact in every for part in fact.timing))
    told = _told_of_evaluations(every)
    if any(fact.cpu_seconds > 0 for fact in every):
        told.append(
            "Processor time is that of the training process in all its threads. It depends little on other programs."
        )
    if any(fact.published for fact in every):
        told.append("Published results do not say where the time went.")
    suites = {case.task.partition("/")[0] for case in found}
    blocks: tuple[Block, ...] = (*_bars(found, parts), _table(found, parts))
    return Section("time", "Time", (*told, *(_papers_hours(suites) if papers else [])), blocks)


def _told_of_evaluations(facts: Sequence[RunFacts]) -> list[str]:
    """What the times include. Only `maskrl results` is known to publish times with evaluations."""
    known = [fact.evaluations_timed for fact in facts]
    included = "The time of whole runs over all sessions, evaluations included"
    depends = "It depends on the machine and its load."
    if all(known):
        return [f"{included}. {depends}"]
    return [
        f"{included} unless the table says “unknown”. {depends}"
        if any(known)
        else f"The time of whole runs. {depends}",
        "Published scores without decisions and updates in every row do not say whether their times include evaluations. Such "
        "times are not compared with the Baseline’s.",
    ]


def _table(found: Cases, parts: Sequence[str]) -> Table:
    finished = {case: [fact for fact in facts if fact.finished] for case, facts in found.items()}
    seconds = {case: _mean_seconds(facts, parts) for case, facts in found.items()}
    hours = {case: _mean([fact.seconds / 3600 for fact in facts]) for case, facts in finished.items()}
    processor = {case: _mean([fact.cpu_seconds / 3600 for fact in facts]) for case, facts in finished.items()}
    unknown = {case for case, facts in found.items() if not all(fact.evaluations_timed for fact in facts)}
    costs = _costs({case: value for case, value in processor.items() if case not in unknown})

    def speed(case: Case) -> Cell:
        timed = [fact for fact in found[case] if fact.frames > 0 and fact.seconds > 0]
        spent = math.fsum(fact.seconds for fact in timed)
        return number(math.fsum(fact.frames for fact in timed) / spent if timed else None, 1)

    def share(part: str) -> Field[Case]:
        note = "share of the time that was split"
        return Column(part, ("",), note=note), lambda case: _share_cell(seconds[case], part)

    fields: list[Field[Case]] = [
        *CASE_FIELDS,
        (Column("runs", ("",)), lambda case: number(len(found[case]), 0)),
        (Column("finished", ("",)), lambda case: number(len(finished[case]), 0)),
    ]
    if unknown:
        note = "whether the times include them"
        fields.append(
            (Column("evaluations", note=note), lambda case: Cell("unknown" if case in unknown else "included"))
        )
    if any(fact.seconds > 0 for facts in found.values() for fact in facts):
        fields.append((Column("hours per run", ("",), note=FINISHED), lambda case: number(hours[case], 2)))
        fields.append((Column("frames per second", ("",)), speed))
    if any(value is not None for value in processor.values()):
        fields.append((Column("processor hours", ("",), note=FINISHED), lambda case: number(processor[case], 2)))
    if costs:
        note = "processor hours as a multiple of the Baseline’s on the same task"
        fields.append((Column("× baseline", ("",), note=note), lambda case: number(costs.get(case), 2)))
    return tabulated("time", "Time", [*fields, *map(share, parts)], found)


def _mean(values: Sequence[float]) -> float | None:
    """The mean of the known values; None if there are none."""
    known = [value for value in values if value > 0]
    return math.fsum(known) / len(known) if known else None


def _costs(processor: Mapping[Case, float | None]) -> dict[Case, float]:
    """The processor time of each case beside that of the Baseline with the same task and protocol, where both are known."""
    baseline = {
        case[:2]: hours for case, hours in processor.items() if case.method.lower() == GAIN[1].lower() and hours
    }
    if len({case.method for case in processor}) < 2:
        return {}
    return {case: hours / baseline[case[:2]] for case, hours in processor.items() if hours and case[:2] in baseline}


def _mean_seconds(facts: Sequence[RunFacts], parts: Sequence[str]) -> dict[str, float]:
    """Part → mean seconds over runs."""
    return {part: math.fsum(fact.timing.get(part, 0.0) for fact in facts) / len(facts) for part in parts}


def _share_cell(seconds: Mapping[str, float], part: str) -> Cell:
    total = math.fsum(seconds.values())
    return Cell(f"{seconds[part] / total:.0%}", (seconds[part] / total,)) if total else NOTHING


def _bars(found: Cases, parts: Sequence[str]) -> list[Chart]:
    """The time of finished runs by part: a bar per method and protocol. The table has every task."""
    together = defaultdict[tuple[str, str], list[RunFacts]](list)
    for case, facts in found.items():
        together[case.setting, case.method] += [fact for fact in facts if fact.finished and fact.timing]
    rows = [
        {"name": method, "group": setting, "values": [round(v, 3) for v in _mean_seconds(facts, parts).values()]}
        for (setting, method), facts in sorted(together.items(), key=lambda item: (item[0][0], order_of(item[0][1])))
        if facts
    ]
    title = "Where the time goes, mean of the finished runs of a method"
    return [Chart("time-chart", "bars", title, {"parts": parts, "rows": rows, "unit": "seconds"})] if rows else []


def _papers_hours(suites: set[str]) -> list[str]:
    hours: dict[str, list[str]] = defaultdict(list)
    for (suite, method), value in training_hours().items():
        hours[suite].append(f"{method} {value:g}")
    return [
        f"The paper, for {suite} on one RTX 3090, in hours: {', '.join(hours[suite])} (Appendix B.2)."
        for suite in sorted(suites & set(hours))
    ]
