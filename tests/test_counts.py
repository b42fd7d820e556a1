"""The long counts add up over slices, and the page has their sums."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import counts  # noqa: E402


def test_slices_add_up_and_a_repeated_one_counts_once(tmp_path: Path):
    file = tmp_path / "counts.json"
    with ThreadPoolExecutor(8) as pool:  # side by side
        list(pool.map(lambda seed: counts.keep("kills", f"seed {seed}", {"a": {"SIGKILL": seed}}, file), range(20)))
    counts.keep("kills", "seed 3", {"a": {"SIGKILL": 4, "runs": 1}, "b": {"SIGTERM": 2}}, file)
    assert counts.sums("kills", file) == {"a": {"SIGKILL": sum(range(20)) + 1, "runs": 1}, "b": {"SIGTERM": 2}}
    assert counts.sums("fuzz", file) == {}


def test_the_tables_have_the_sums(tmp_path: Path):
    file = tmp_path / "counts.json"
    run = {"SIGKILL": 900, "SIGINT": 200, "runs": 55, "ended before": 3}
    counts.keep("kills", "seed 1", {"toy/reach, SAC": run}, file)
    counts.keep("sequences", "seed 1", {"SAC": {"sequences": 7, "log lost": 2}}, file)
    counts.keep("fuzz", "csv, seed 1", {"csv": {"cases": 1_000_000, "crashes": 0}}, file)
    page = counts.page(file)
    assert "**1,100 kills**" in page
    assert "| toy/reach, SAC | 1,100 | 900 | 0 | 200 | 0 | 55 | 0 |" in page
    assert "| all | 1,100 | 900 | 0 | 200 | 0 | 55 | 0 |" in page
    assert "**7 fault sequences**" in page
    assert "| log lost | 2 |" in page
    assert "| csv | 1,000,000 | 0 |" in page


def test_a_part_without_slices_says_so(tmp_path: Path):
    page = counts.page(tmp_path / "counts.json")
    assert page.count("No slices yet.") == 3
    assert "|" not in page


def test_a_kill_while_a_slice_is_written_loses_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "counts.json"
    counts.keep("kills", "seed 1", {"a": {"SIGKILL": 1}}, file)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", torn)
        with pytest.raises(KeyboardInterrupt):
            counts.keep("kills", "seed 2", {"a": {"SIGKILL": 2}}, file)
    assert counts.sums("kills", file) == {"a": {"SIGKILL": 1}}
    counts.keep("kills", "seed 2", {"a": {"SIGKILL": 2}}, file)
    assert counts.sums("kills", file) == {"a": {"SIGKILL": 3}}
    assert list(tmp_path.iterdir()) == [file]


def torn(path: Path, text: str, encoding: str) -> None:
    path.write_bytes(text[:5].encode(encoding))
    raise KeyboardInterrupt


@pytest.mark.parametrize("page", ["", counts.BEGIN, counts.END, counts.END + counts.BEGIN])
def test_a_page_without_marks_is_refused(page: str):
    with pytest.raises(SystemExit, match="put them back"):
        counts.with_tables(page, "tables")


def test_a_check_does_not_write_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old = f"before\n{counts.BEGIN}old{counts.END}after\n"
    monkeypatch.setattr(counts, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(sys, "argv", ["counts.py", "--check"])
    counts.PAGE.write_text(old)
    with pytest.raises(SystemExit, match="other sums"):
        counts.main()
    assert counts.PAGE.read_text() == old
    counts.PAGE.write_text(new := counts.with_tables(old, counts.page()))
    os.utime(counts.PAGE, (1, 1))
    counts.main()
    assert (counts.PAGE.read_text(), counts.PAGE.stat().st_mtime) == (new, 1)


def test_the_page_has_the_sums_of_the_results():
    text = counts.PAGE.read_text()
    assert text.count(counts.BEGIN) == text.count(counts.END) == 1
    assert counts.with_tables(text, counts.page()) == text, "run tools/counts.py"
