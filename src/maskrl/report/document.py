"""The parts of a page, as plain values: sections of tables, charts and sentences. `page.render` makes HTML of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from maskrl.report.tables import Mark, Table

ChartKind = Literal["curves", "intervals", "profile", "bars"]


@dataclass(frozen=True)
class Chart:
    """A picture that the page draws itself: its data are JSON, whose meaning depends on its kind (page/page.js)."""

    key: str
    kind: ChartKind
    title: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """A sentence and its mark. `lead` is the part of its beginning that the page prints in bold."""

    text: str
    mark: Mark = ""
    lead: str = ""


@dataclass(frozen=True)
class Lines:
    """Sentences under a small heading, folded or open."""

    title: str
    lines: tuple[Line, ...]
    folded: bool = False


Block = Table | Chart | Lines


@dataclass(frozen=True)
class Section:
    """A heading with what is below it. `over` says which runs it is about, if not all of them."""

    key: str
    title: str
    words: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    over: str = ""


@dataclass(frozen=True)
class Report:
    """One page."""

    title: str
    subtitle: str
    facts: tuple[tuple[str, str], ...]  # (number, what it counts)
    headline: tuple[Lines, ...]  # what can be claimed, of each group of runs
    sections: tuple[Section, ...]
    methods: tuple[str, ...]  # in the order of their colours
    problems: tuple[str, ...] = ()
    in_short: str = ""  # the headline in one sentence

    @property
    def tables(self) -> list[Table]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Table)]

    @property
    def charts(self) -> list[Chart]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Chart)]
