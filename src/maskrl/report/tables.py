"""One table, four ways to print it: Markdown, LaTeX, CSV, and the HTML of the page, which its template makes.

A cell has a text for people and numbers for machines: Markdown and LaTeX print the text, CSV writes the numbers, and the page
sorts by the first of them. Every text may come from a stranger's folder, so every format escapes all of it.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from numpy.typing import ArrayLike

from maskrl.analysis.statistics import Estimate, Summary
from maskrl.analysis.verdict import digits_for
from maskrl.runs.directory import write_whole

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
    summary: Iterable[T] = (),
) -> Table:
    """A row for every item, a column for every field."""

    def rows(of: Iterable[T]) -> tuple[tuple[Cell, ...], ...]:
        return tuple(tuple(make(item) for _, make in fields) for item in of)

    columns = tuple(column for column, _ in fields)
    return Table(key, title, columns, rows(items), tuple(notes), rows(summary))


def words(text: str, *, note: str = "", mark: Mark = "", strong: bool = False) -> Cell:
    """A cell without numbers."""
    return Cell(text, note=note, mark=mark, strong=strong)


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


def estimate_cell(estimate: Estimate | None) -> Cell:
    """A number with its interval, if it has one."""
    if estimate is None:
        return NOTHING
    value, low, high = (float(part) for part in estimate)
    text = shown(value, 3) if math.isnan(low) else f"{shown(value, 3)} ({shown(low, 3)} to {shown(high, 3)})"
    return Cell(text, (value, low, high))


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# ── Markdown ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def markdown(table: Table) -> str:
    """With pipes, numbers to the right; the title above and the notes below."""
    heads = [_in_markdown(column.name) for column in table.columns]
    lines = [[_strong_markdown(cell) for cell in row] for row in table.all_rows]
    rule = ["---:" if column.parts else ":---" for column in table.columns]
    rows = [f"| {' | '.join(line)} |" for line in (heads, rule, *lines)]
    notes = [f"- {_in_markdown(note)}" for note in all_notes(table)]
    return "\n".join([f"**{_in_markdown(table.title)}**", "", *rows, *([""] if notes else []), *notes, ""])


def _strong_markdown(cell: Cell) -> str:
    return f"**{_in_markdown(cell.text)}**" if cell.strong else _in_markdown(cell.text)


def _in_markdown(text: str) -> str:
    escaped = "".join(f"\\{letter}" if letter in "\\`*_[]|~" else letter for letter in _one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# ── LaTeX ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

# Rules of booktabs where it is loaded, plain lines where it is not.
RULES = "".join(rf"\providecommand{{\{name}rule}}{{\hline}}" for name in ("top", "mid", "bottom"))

TEX: Mapping[str, str] = {
    **{letter: f"\\{letter}" for letter in "{}$&#_%"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"},
    **{"±": r"$\pm$", "−": r"$-$", "–": "--", "—": "---", "×": r"$\times$", "→": r"$\to$", "…": r"\ldots{}", "·": r"$\cdot$"},
    **{"²": "$^2$", "≥": r"$\geq$", "≤": r"$\leq$", "≈": r"$\approx$", "▲": r"$\uparrow$", "▼": r"$\downarrow$"},
    **{"λ": r"$\lambda$", "η": r"$\eta$", "σ": r"$\sigma$", "’": "'", "“": "``", "”": "''", "\u202f": "~", "\u00a0": "~"},
}  # fmt: skip
JOINING = "-',`?!"


def latex(table: Table) -> str:
    """A float that any LaTeX compiles, with booktabs or without."""
    heads = [rf"\textbf{{{_in_latex(column.name)}}}" for column in table.columns]
    notes = [_in_latex(note) for note in all_notes(table)]
    body = [[_strong_latex(cell) for cell in row] for row in table.rows]
    last = [[_strong_latex(cell) for cell in row] for row in table.summary]
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering",
            RULES,
            rf"\caption{{{' '.join([_in_latex(table.title) + '.', *notes])}}}",
            rf"\begin{{tabular}}{{{''.join('r' if column.parts else 'l' for column in table.columns)}}}",
            r"\toprule",
            rf"{' & '.join(heads)} \\",
            r"\midrule",
            *(rf"{' & '.join(line)} \\" for line in body),
            *([r"\midrule"] if last else []),
            *(rf"{' & '.join(line)} \\" for line in last),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _strong_latex(cell: Cell) -> str:
    # A line of a table that begins with a bracket would be taken for an option of the \\ before it.
    text = _in_latex(cell.text)
    return rf"\textbf{{{text}}}" if cell.strong else f"{{}}{text}" if text[:1] in ("[", "*") else text


def _in_latex(text: str) -> str:
    letters = _one_line(text)
    # Two of some signs in a row would become another: -- a dash, '' a quotation mark, ?` a turned question mark.
    return "".join(
        ("{}" if before in JOINING and letter in JOINING else "") + _tex_letter(letter)
        for before, letter in zip(f" {letters}", letters, strict=False)
    )


def _tex_letter(letter: str) -> str:
    """A letter that every engine has a glyph for; of others, their number."""
    if letter in TEX:
        return TEX[letter]
    accented = "À" <= letter <= "ÿ" and letter.isalpha() and letter not in "ÐðÞþ"
    return letter if letter.isascii() or accented else f"[U+{ord(letter):04X}]"


# ── CSV ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def as_csv(table: Table) -> str:
    """The numbers in full, a column for each part. A text that a spreadsheet would take for a formula gets an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_harmless(name) for column in table.columns for name in _headings(column)])
    for row in table.all_rows:
        writer.writerow(
            [field for cell, column in zip(row, table.columns, strict=True) for field in _fields(cell, column)]
        )
    return file.getvalue()


def _headings(column: Column) -> list[str]:
    return [f"{column.name} {part}".strip() for part in column.parts] or [column.name]


def _fields(cell: Cell, column: Column) -> list[str]:
    if not column.parts:
        return [_harmless(cell.text)]
    values = cell.numbers or (None,) * len(column.parts)
    return ["" if value is None or not math.isfinite(value) else repr(value) for value in values]


def _harmless(text: str) -> str:
    text = _one_line(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "−") else text


# ── All of them ───────────────────────────────────────────────────────────────────────────────────────────────────────

LONGEST_KEY = 100  # of one name; two of them and an ending are the name of a file
FORMATS: Mapping[str, Callable[[Table], str]] = {"md": markdown, "tex": latex, "csv": as_csv}


def write(tables: Iterable[Table], folder: Path) -> list[Path]:
    """Every table in every format: `folder/key.md`, `.tex` and `.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables:
        for ending, form in FORMATS.items():
            path = folder / f"{table.key}.{ending}"
            write_whole(path, form(table))
            written.append(path)
    return written


def key_of(*names: str) -> str:
    """A name for files and links: small letters, digits and hyphens, not too many of them for a file system."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in "-".join(names).lower())
    return "-".join(part for part in letters.split("-") if part)[:LONGEST_KEY].rstrip("-") or "table"


def all_notes(table: Table) -> list[str]:
    """Those of the table, of its headings and of its cells; cells of a column with the same note are named together."""
    of_columns = [f"{column.name}: {column.note}" for column in table.columns if column.note]
    of_cells: dict[tuple[str, str], list[str]] = {}
    for row in table.all_rows:
        for cell, column in zip(row, table.columns, strict=True):
            if cell.note:
                of_cells.setdefault((column.name, cell.note), []).append(row[0].text)
    told = [f"{name} of {', '.join(rows)}: {note}" for (name, note), rows in of_cells.items()]
    return list(dict.fromkeys([*table.notes, *of_columns, *told]))


def _one_line(text: str) -> str:
    """Line breaks and other signs that cannot be seen become spaces."""
    return "".join(letter if letter.isprintable() or letter == "\u00a0" else " " for letter in text)
