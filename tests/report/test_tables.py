import csv
import io
import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from maskrl.report import exports
from maskrl.report.exports import as_csv, latex, markdown
from maskrl.report.tables import Cell, Column, Field, Table, key_of, number, short_digests, spread, tabulated
from maskrl.runs.directory import write_whole

SCORES = Table(
    "scores",
    "Scores",
    (Column("task"), Column("mlr", ("mean", "std")), Column("verdict")),
    (
        (Cell("walker-walk"), Cell("643 ± 114", (643.0, 114.0)), Cell("consistent")),
        (Cell("reacher_easy"), Cell("866", (866.25, None), note="one run"), Cell("above")),
    ),
    notes=("At 100,000 frames.",),
    summary=((Cell("mean", strong=True), Cell("754.6", (754.625, None)), Cell("–")),),
)
SPECIAL = st.sampled_from("|\\`*_<>&[]{}$#%^~\"'-,?!=+@ \n\r\t")  # of which any letter alone is rarely one
ANY_TEXT = st.text(SPECIAL | st.characters(exclude_categories=("Cs",)), max_size=12)


def one_cell(text: str) -> Table:
    return Table("key", "Title", (Column("name"), Column("x", ("",))), ((Cell(text), number(1.0)),))


# ── Numbers and texts ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_mean_and_spread_have_the_same_digits() -> None:
    assert spread(907, 58) == "907 ± 58"
    assert spread(99, 250.4) == "99 ± 250"
    assert spread(0.5, None) == spread(0.5, float("nan")) == "0.500"


def test_a_sha256_is_shortened_to_eight_digits() -> None:
    digest = "a86972db" + "0123456789abcdef" * 3 + "01234567"
    assert short_digests(f"env.sha256={digest} · x, {digest}") == "env.sha256=a86972db · x, a86972db"
    assert short_digests(f"{digest}0 {digest[1:]}") == f"{digest}0 {digest[1:]}"


def test_a_row_must_fit_its_columns() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2"):
        Table("k", "t", (Column("a"), Column("b")), ((Cell("1"),),))
    with pytest.raises(ValueError, match="in the column b"):
        Table("k", "t", (Column("b", ("mean", "std")),), ((number(1.0),),))


def test_a_table_has_a_row_for_every_item_and_a_column_for_every_field() -> None:
    fields: list[Field[int]] = [
        (Column("n"), lambda n: Cell(f"{n}", strong=True)),
        (Column("square", ("",)), lambda n: number(n**2, 0)),
    ]
    table = tabulated("key", "Title", fields, [2, 3], ["a note"], [10])
    assert [column.name for column in table.columns] == ["n", "square"]
    assert [[cell.text for cell in row] for row in table.rows] == [["2", "4"], ["3", "9"]]
    assert ([cell.text for row in table.summary for cell in row], table.notes) == (["10", "100"], ("a note",))


def test_a_key_is_a_file_name() -> None:
    assert key_of("DMControl · lite", "../A b") == "dmcontrol-lite-a-b"
    assert key_of("…") == "table"
    assert key_of("a" * 99 + " b", "c") == "a" * 99  # no hyphen at the end
    assert key_of("a" * 300) == "a" * 100


# ── Formats ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_markdown() -> None:
    assert markdown(SCORES) == (
        "**Scores**\n\n"
        "| task | mlr | verdict |\n"
        "| :--- | ---: | :--- |\n"
        "| walker-walk | 643 ± 114 | consistent |\n"
        "| reacher\\_easy | 866 | above |\n"
        "| **mean** | 754.6 | – |\n\n"
        "- At 100,000 frames.\n"
        "- mlr of reacher\\_easy: one run\n"
    )


def test_latex() -> None:
    assert latex(SCORES).splitlines()[3:] == [
        r"\caption{Scores. At 100,000 frames. mlr of reacher\_easy: one run}",
        r"\begin{tabular}{lrl}",
        r"\toprule",
        r"\textbf{task} & \textbf{mlr} & \textbf{verdict} \\",
        r"\midrule",
        r"walker-walk & 643 $\pm$ 114 & consistent \\",
        r"reacher\_easy & 866 & above \\",
        r"\midrule",
        r"\textbf{mean} & 754.6 & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_csv_has_the_numbers_and_not_what_people_read() -> None:
    assert as_csv(SCORES) == (
        "task,mlr mean,mlr std,verdict\n"
        "walker-walk,643.0,114.0,consistent\n"
        "reacher_easy,866.25,,above\n"
        "mean,754.625,,–\n"
    )


def test_cells_with_the_same_note_are_told_of_together() -> None:
    rows = tuple((Cell(name), Cell("above", note="uncorrected")) for name in "ab")
    table = Table("k", "t", (Column("task"), Column("verdict", note="by p")), rows)
    assert exports.all_notes(table) == ["verdict: by p", "verdict of a, b: uncorrected"]


def test_rows_that_begin_alike_are_named_once_in_a_note() -> None:
    rows = tuple((Cell("reach"), Cell(method), Cell("0.9", note="lite")) for method in ("mlr", "baseline"))
    table = Table("k", "t", (Column("task"), Column("method"), Column("cosine")), rows)
    assert exports.all_notes(table) == ["cosine of reach: lite"]


# ── Names of strangers ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "−1", "\r=1"])
def test_a_spreadsheet_gets_no_formula(text: str) -> None:
    first = next(csv.reader(io.StringIO(as_csv(one_cell(text)).splitlines()[1])))[0]
    assert first[0] in "' "


def test_a_negative_number_stays_one() -> None:
    table = Table("k", "t", (Column("x", ("",)),), ((number(-1.5),),))
    assert as_csv(table) == "x\n-1.5\n"


@given(ANY_TEXT)
@example("a|b")
@example("a\\|b\n<c>")
def test_whatever_a_name_is_a_row_stays_one_row(text: str) -> None:
    table = one_cell(text)
    body = markdown(table).splitlines()[4:]
    assert len(body) == 1
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", body[0])) == 3  # pipes that are not escaped
    assert "<" not in body[0]
    assert len(list(csv.reader(io.StringIO(as_csv(table))))) == 2


@given(ANY_TEXT)
@example("[a]_{b}$c&d#e%f^g~h\\i--j''k")
def test_whatever_a_name_is_latex_compiles(text: str) -> None:
    (line,) = [line for line in latex(one_cell(text)).splitlines() if line.endswith(r"& 1.000 \\")]
    name = line.removesuffix(r" & 1.000 \\")
    known = r"\\text(backslash|asciitilde|asciicircum|less|greater|bar)\{\}|\\ldots\{\}|\\[{}$&#_%]|\$[^$]*\$|\{\}"
    rest = re.sub(known, " ", name)
    assert not re.search(r"[\\{}$&#_%^<>|\"]", rest)
    assert not re.search(r"--|,,|''|``|[?!]`", re.sub("''|``|---?", "", rest) if set(text) & set('"“”–—') else rest)
    assert all(letter.isascii() or "À" <= letter <= "ÿ" for letter in rest)
    assert not rest.startswith(("[", "*")) or name.startswith("{}")


def test_all_formats_of_all_tables_are_written(tmp_path: Path) -> None:
    files = exports.write([SCORES, one_cell("a")], tmp_path / "new" / "folder")
    assert sorted(file.name for file in files) == [
        "key.csv",
        "key.md",
        "key.tex",
        "scores.csv",
        "scores.md",
        "scores.tex",
    ]
    assert (tmp_path / "new" / "folder" / "scores.csv").read_text() == as_csv(SCORES)
    assert {file.name for file in (tmp_path / "new" / "folder").iterdir()} == {file.name for file in files}


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    aside = tmp_path / f"a.{os.getpid()}.new"
    aside.mkdir()
    with pytest.raises(OSError, match=re.escape(aside.name)):
        write_whole(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"


def test_what_is_no_text_is_written_as_its_number(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "run\udcff ü")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "run\\udcff ü"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_nothing_is_left_aside_whatever_goes_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a", "new")
    assert list(tmp_path.iterdir()) == []
