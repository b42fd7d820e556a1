"""Runs of one task, one protocol and one method: the most that probes and times are averaged over."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from maskrl.report.facts import RunFacts
from maskrl.report.groups import order_of, protocol_names


class Case(NamedTuple):
    """What its runs share."""

    task: str
    setting: str  # the name of their protocol: "DMControl · paper profile · 100,000 frames"
    method: str

    @property
    def place(self) -> str:
        """Such as "dmcontrol/walker-walk, paper profile · 100,000 frames": the task has the suite."""
        return f"{self.task}, {self.setting.partition(' · ')[2]}"


Cases = Mapping[Case, Sequence[RunFacts]]


def cases(facts: Sequence[RunFacts]) -> Cases:
    """The runs of each, in order. Runs of different protocols are never averaged here, mixed or not."""
    names, found = protocol_names(facts), defaultdict[Case, list[RunFacts]](list)
    for fact in facts:
        found[Case(fact.task, names[fact.source], fact.method)].append(fact)
    return dict(sorted(found.items(), key=lambda item: (item[0].task, item[0].setting, order_of(item[0].method))))
