"""Tables as plain values, and functions that build them.

A cell has a text and numbers: Markdown and LaTeX print the text, CSV writes the numbers, and the page sorts by the first number.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from numpy.typing import ArrayLike

from maskrl.analysis.statistics import Estimate, Summary
from maskrl.analysis.verdict import digits_for, shown

LONGEST_KEY = 100  # characters of one name; a file's name has two of them and a suffix

# The meaning of a cell, for its colour and sign on the page.
Mark = Literal["", "above", "below", "consistent", "unsure", "apart", "good", "bad", "warn", "quiet"]


@dataclass(frozen=True)
class Cell:
    """The text of a cell and its numbers."""

    text: str
    numbers: tuple[float | None, ...] = ()  # one per part of its column; none in a column of text
    note: str = ""  # a tooltip on the page, a footnote elsewhere
    mark: Mark = ""
    strong: bool = False


@dataclass(frozen=True)
class Column:
    """A heading, and the names of its cells' numbers, such as ("mean", "std"). A column of text has none."""

    name: str
    parts: tuple[str, ...] = ()
    mark: Mark = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its title; `key` is its name in files and links."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    summary: tuple[tuple[Cell, ...], ...] = ()  # rows that stay last when sorted, such as the mean over tasks

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
Field = tuple[Column, Callable[[T], Cell]]  # a column, and the function that gives its cell for an item


def tabulated(
    key: str,
    title: str,
    fields: Sequence[Field[T]],
    items: Iterable[T],
    notes: Sequence[str] = (),
    last: Iterable[T] = (),
) -> Table:
    """A table with a row per item and a column per field. `last`: items whose rows stay last."""
    rows, summary = (tuple(tuple(make(item) for _, make in fields) for item in part) for part in (items, last))
    return Table(key, title, tuple(column for column, _ in fields), rows, tuple(notes), summary)


def number(value: float | None, digits: int | None = None, *, note: str = "", mark: Mark = "") -> Cell:
    """A cell with one number; a dash for None or a number that is not finite."""
    return Cell(shown(value, digits), (value,), note, mark)


def spread(mean: float, std: float | None, digits: int | None = None) -> str:
    """Such as "907 ± 58", both with the digits suited to the larger one."""
    if std is None or not math.isfinite(std):
        return shown(mean, digits)
    if digits is None:
        digits = digits_for(max(abs(mean), std))
    return f"{shown(mean, digits)} ± {shown(std, digits)}"


def summary_cell(values: ArrayLike) -> Cell:
    """The mean, standard deviation and number of runs."""
    mean, std, runs = Summary.of(values)
    return Cell(f"{spread(mean, std)} ({runs})", (mean, None if math.isnan(std) else std, runs))


def as_printed(text: str, numbers: tuple[float | None, ...], misprint: str | None) -> Cell:
    """A number from the paper, with an asterisk if it is misprinted."""
    return Cell(f"{text} *", numbers, misprint, "warn") if misprint else Cell(text, numbers, mark="quiet")


def estimate_cell(estimate: Estimate) -> Cell:
    """A number with its interval, if there is one. One of zero width is left out: a few runs that agree prove nothing."""
    value, low, high = (float(part) for part in estimate)
    ends = shown(low, 3), shown(high, 3)
    if ends[0] == ends[1]:
        return Cell(shown(value, 3), (value, math.nan, math.nan))
    return Cell(f"{shown(value, 3)} ({ends[0]} to {ends[1]})", (value, low, high))


def short_digests(text: str) -> str:
    """Shorten every SHA-256 in a text to its first eight digits, which tell files apart."""
    return re.sub(r"\b([0-9a-f]{8})[0-9a-f]{56}\b", r"\1", text)


def key_of(*names: str) -> str:
    """A name for files and links: lower-case letters, digits and hyphens, short enough for a file system."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in "-".join(names).lower())
    return "-".join(part for part in letters.split("-") if part)[:LONGEST_KEY].rstrip("-") or "table"
