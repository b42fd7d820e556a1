"""The long counts add up over slices, and the page has their sums."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def test_the_page_has_the_sums_of_the_results():
    text = counts.PAGE.read_text()
    assert text.count(counts.BEGIN) == text.count(counts.END) == 1
    assert not counts.FILE.exists() or f"{counts.BEGIN}\n{counts.page()}\n\n{counts.END}" in text, "run tools/counts.py"
