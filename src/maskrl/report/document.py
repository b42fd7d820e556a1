"""The parts of a page, as plain values: sections of tables, charts and sentences. `page.render` writes them as HTML."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from maskrl.report.tables import Mark, Table

ChartKind = Literal["curves", "intervals", "profile", "bars"]


@dataclass(frozen=True)
class Chart:
    """A chart that the page draws from JSON data, whose meaning depends on its kind (page/page.js)."""

    key: str
    kind: ChartKind
    title: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """A sentence and its mark. `lead`: the beginning that the page prints in bold."""

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
    """A heading and its content. `over`: the runs it is about, if not all."""

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
    facts: tuple[tuple[str, str], ...]  # (number, label)
    headline: tuple[Lines, ...]  # the findings for each group of runs
    sections: tuple[Section, ...]
    methods: tuple[str, ...]  # in order of colour
    problems: tuple[str, ...] = ()
    in_short: str = ""  # the headline in one sentence

    @property
    def tables(self) -> list[Table]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Table)]

    @property
    def charts(self) -> list[Chart]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Chart)]
