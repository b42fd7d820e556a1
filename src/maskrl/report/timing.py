"""The section on the time of runs."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from maskrl.recipes.published import training_hours
from maskrl.report.document import Block, Chart, Section
from maskrl.report.facts import RunFacts
from maskrl.report.groups import CASE_FIELDS, Case, Cases, order_of
from maskrl.report.tables import NOTHING, Cell, Column, Field, Table, number, tabulated


def timing(runs: Cases, *, papers: bool) -> Section | None:
    """The section on time."""
    timed = {case: [fact for fact in facts if fact.seconds > 0] for case, facts in runs.items()}
    found = {case: facts for case, facts in timed.items() if facts}
    if not found:
        return None
    parts = list(dict.fromkeys(part for facts in found.values() for fact in facts for part in fact.timing))
    told = ["Seconds of training over all sessions, evaluations included. They depend on the machine and its load."]
    suites = {case.task.partition("/")[0] for case in found}
    blocks: tuple[Block, ...] = (*_bars(found, parts), _table(found, parts))
    return Section("time", "Time", (*told, *(_papers_hours(suites) if papers else [])), blocks)


def _table(found: Cases, parts: Sequence[str]) -> Table:
    finished = {case: [fact for fact in facts if fact.finished] for case, facts in found.items()}
    seconds = {case: _mean_seconds(facts, parts) for case, facts in found.items()}

    def hours(case: Case) -> Cell:
        spent = [fact.seconds for fact in finished[case]]
        return number(math.fsum(spent) / len(spent) / 3600 if spent else None, 2)

    def speed(case: Case) -> Cell:
        frames, spent = (
            math.fsum(values) for values in zip(*((f.frames, f.seconds) for f in found[case]), strict=True)
        )
        return number(frames / spent, 1)

    def share(part: str) -> Field[Case]:
        note = "share of the time that was split"
        return Column(part, ("",), note=note), lambda case: _share_cell(seconds[case], part)

    fields: list[Field[Case]] = [
        *CASE_FIELDS,
        (Column("runs", ("",)), lambda case: number(len(found[case]), 0)),
        (Column("finished", ("",)), lambda case: number(len(finished[case]), 0)),
        (Column("hours per run", ("",), note="finished runs only"), hours),
        (Column("frames per second", ("",)), speed),
        *map(share, parts),
    ]
    return tabulated("time", "Time", fields, found)


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
        together[case.setting, case.method] += [fact for fact in facts if fact.finished]
    rows = [
        {"name": method, "group": setting, "values": [round(v, 3) for v in _mean_seconds(facts, parts).values()]}
        for (setting, method), facts in sorted(together.items(), key=lambda item: (item[0][0], order_of(item[0][1])))
        if any(fact.timing for fact in facts)
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
