"""Tables as plain values, and how they are made.

A cell has a text for people and numbers for machines: Markdown and LaTeX print the text, CSV writes the numbers, and the page
sorts by the first of them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from numpy.typing import ArrayLike

from maskrl.analysis.statistics import Estimate, Summary
from maskrl.analysis.verdict import digits_for

LONGEST_KEY = 100  # of one name; two of them and an ending are the name of a file

# What a cell means, for its colour and sign on the page.
Mark = Literal["", "above", "below", "consistent", "unsure", "apart", "good", "bad", "warn", "quiet"]


@dataclass(frozen=True)
class Cell:
    """What one field shows, and the numbers behind it."""

    text: str
    numbers: tuple[float | None, ...] = ()  # one for each part of its column; none in a column of words
    note: str = ""  # shown on the page when the cell is pointed at, and as a footnote elsewhere
    mark: Mark = ""
    strong: bool = False


@dataclass(frozen=True)
class Column:
    """A heading, and what the numbers of its cells are: ("mean", "std"). A column of words has no parts."""

    name: str
    parts: tuple[str, ...] = ()
    mark: Mark = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its title; the key is its name in files and links."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    summary: tuple[tuple[Cell, ...], ...] = ()  # rows that stay last, such as the mean over tasks

    def __post_init__(self) -> None:
        for row in (*self.rows, *self.summary):
            if len(row) != len(self.columns):
                raise ValueError(f"{self.key}: a row of {len(row)} cells in a table of {len(self.columns)} columns.")
            for cell, column in zip(row, self.columns, strict=True):
                if len(cell.numbers) not in (0, len(column.parts)):
                    raise ValueError(f"{self.key}: {cell.numbers} in the column {column.name} of {column.parts}.")

    @property
    def all_rows(self) -> tuple[tuple[Cell, ...], ...]:
        return (*self.rows, *self.summary)


NOTHING = Cell("–")

T = TypeVar("T")
Field = tuple[Column, Callable[[T], Cell]]  # a heading, and how it makes the cell of an item


def tabulated(
    key: str,
    title: str,
    fields: Sequence[Field[T]],
    items: Iterable[T],
    notes: Sequence[str] = (),
    last: Iterable[T] = (),
) -> Table:
    """A row for every item, a column for every field. `last`: items whose rows stay last."""
    rows, summary = (tuple(tuple(make(item) for _, make in fields) for item in part) for part in (items, last))
    return Table(key, title, tuple(column for column, _ in fields), rows, tuple(notes), summary)


def number(value: float | None, digits: int | None = None, *, note: str = "", mark: Mark = "") -> Cell:
    """A cell with one number; none, or one that is not finite, is a dash."""
    return Cell(shown(value, digits), (value,), note, mark)


def shown(value: float | None, digits: int | None = None, *, sign: bool = False) -> str:
    """A number for people: whole from 100 on, three digits below 10, a real minus sign."""
    if value is None or not math.isfinite(value):
        return "–"
    if digits is None:
        digits = digits_for(abs(value))
    return f"{value:{'+' if sign else ''},.{digits}f}".replace("-", "−")


def spread(mean: float, std: float | None, digits: int | None = None) -> str:
    """Such as "907 ± 58", both with the digits that the larger of them calls for."""
    if std is None or not math.isfinite(std):
        return shown(mean, digits)
    if digits is None:
        digits = digits_for(max(abs(mean), std))
    return f"{shown(mean, digits)} ± {shown(std, digits)}"


def summary_cell(values: ArrayLike) -> Cell:
    """Mean and standard deviation of runs, and how many they are."""
    mean, std, runs = Summary.of(values)
    return Cell(f"{spread(mean, std)} ({runs})", (mean, None if math.isnan(std) else std, runs))


def as_printed(text: str, numbers: tuple[float | None, ...], misprint: str | None) -> Cell:
    """A number of the paper's, with an asterisk if it is misprinted."""
    return Cell(f"{text} *", numbers, misprint, "warn") if misprint else Cell(text, numbers, mark="quiet")


def estimate_cell(estimate: Estimate) -> Cell:
    """A number with its interval, if it has one. One of zero width is left out: agreement of a few runs does not prove
    certainty.
    """
    value, low, high = (float(part) for part in estimate)
    ends = shown(low, 3), shown(high, 3)
    if ends[0] == ends[1]:
        return Cell(shown(value, 3), (value, math.nan, math.nan))
    return Cell(f"{shown(value, 3)} ({ends[0]} to {ends[1]})", (value, low, high))


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def key_of(*names: str) -> str:
    """A name for files and links: small letters, digits and hyphens, not too many of them for a file system."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in "-".join(names).lower())
    return "-".join(part for part in letters.split("-") if part)[:LONGEST_KEY].rstrip("-") or "table"
