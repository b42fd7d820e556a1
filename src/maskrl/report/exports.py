"""Export tables as Markdown, LaTeX and CSV. Texts may come from untrusted folders, so every format escapes all of them."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from maskrl.files import write_whole
from maskrl.outputs import LATEX, MARKDOWN, require_output
from maskrl.report.tables import Cell, Column, Table


def markdown(table: Table) -> str:
    """The table as Markdown, numbers right-aligned, with the title above and the notes below."""
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


# booktabs rules if it is loaded, otherwise plain lines.
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
    """The table as a LaTeX float that compiles with or without booktabs."""
    heads = [rf"\textbf{{{_in_latex(column.name)}}}" for column in table.columns]
    notes = [_in_latex(note) for note in all_notes(table)]
    body, last = (
        [rf"{' & '.join(map(_strong_latex, row))} \\" for row in rows] for rows in (table.rows, table.summary)
    )
    caption = rf"\caption{{{' '.join([_in_latex(table.title) + '.', *notes])}}}"
    columns = rf"\begin{{tabular}}{{{''.join('r' if column.parts else 'l' for column in table.columns)}}}"
    lines = [r"\begin{table}[htbp]", r"\centering", RULES, caption, columns, r"\toprule", rf"{' & '.join(heads)} \\"]
    lines += [r"\midrule", *body, *([r"\midrule", *last] if last else []), r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", r"\end{table}", ""])


def _strong_latex(cell: Cell) -> str:
    # A table line that begins with a bracket would be read as an option of the \\ before it.
    text = _in_latex(cell.text)
    return rf"\textbf{{{text}}}" if cell.strong else f"{{}}{text}" if text[:1] in ("[", "*") else text


def _in_latex(text: str) -> str:
    letters = _one_line(text)
    # Some pairs of characters form a ligature: -- a dash, '' a quotation mark, ?` an inverted question mark.
    return "".join(
        ("{}" if before in JOINING and letter in JOINING else "") + _tex_letter(letter)
        for before, letter in zip(f" {letters}", letters, strict=False)
    )


def _tex_letter(letter: str) -> str:
    """A character that every engine can print; for others, the code point."""
    if letter in TEX:
        return TEX[letter]
    accented = "À" <= letter <= "ÿ" and letter.isalpha() and letter not in "ÐðÞþ"
    return letter if letter.isascii() or accented else f"[U+{ord(letter):04X}]"


def as_csv(table: Table) -> str:
    """The table as CSV: full numbers, a column per part. Text that a spreadsheet would read as a formula gets an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = [f"{column.name} {part}".strip() for column in table.columns for part in column.parts or ("",)]
    writer.writerow(map(_harmless, names))
    for row in table.all_rows:
        cells = zip(row, table.columns, strict=True)
        writer.writerow([field for cell, column in cells for field in _fields(cell, column)])
    return file.getvalue()


def _fields(cell: Cell, column: Column) -> list[str]:
    if not column.parts:
        return [_harmless(cell.text)]
    values = cell.numbers or (None,) * len(column.parts)
    return ["" if value is None or not math.isfinite(value) else repr(value) for value in values]


def _harmless(text: str) -> str:
    text = _one_line(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "−") else text


FORMATS: Mapping[str, Callable[[Table], str]] = {"md": markdown, "tex": latex, "csv": as_csv}


def write(tables: Iterable[Table], folder: Path, *, force: bool = False) -> list[Path]:
    """Write every table to `folder/key.md`, `.tex` and `.csv`. Replaces earlier exports; other files only with `force`."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {folder / f"{table.key}.{ending}": form(table) for table in tables for ending, form in FORMATS.items()}
    marks = {".md": MARKDOWN, ".tex": LATEX}
    for path, text in texts.items():  # check all before writing any
        require_output(path, marks.get(path.suffix) or text.partition("\n")[0].encode(), force=force)
    for path, text in texts.items():
        mark = marks.get(path.suffix, b"").decode()  # a CSV has no comments: its heading marks it
        write_whole(path, f"{text}\n{mark}\n" if mark else text)
    return list(texts)


def all_notes(table: Table) -> list[str]:
    """The notes of the table, its headings and its cells; cells of a column with the same note share a line."""
    of_columns = [f"{column.name}: {column.note}" for column in table.columns if column.note]
    of_cells: dict[tuple[str, str], dict[str, None]] = {}  # rows may begin with the same text: each is named once
    for row in table.all_rows:
        for cell, column in zip(row, table.columns, strict=True):
            if cell.note:
                of_cells.setdefault((column.name, cell.note), {})[row[0].text] = None
    told = [f"{name} of {', '.join(rows)}: {note}" for (name, note), rows in of_cells.items()]
    return list(dict.fromkeys([*table.notes, *of_columns, *told]))


def _one_line(text: str) -> str:
    """Replace line breaks and other invisible characters by spaces."""
    return "".join(letter if letter.isprintable() or letter == "\u00a0" else " " for letter in text)
