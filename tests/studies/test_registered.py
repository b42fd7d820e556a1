"""A registered study stays as it was when it was registered, before its runs."""

import csv
import re
import subprocess
from pathlib import Path
from statistics import fmean

import pytest

ROOT = Path(__file__).parents[2]


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.mark.parametrize("study", sorted((ROOT / "studies").glob("*.md")), ids=lambda path: path.stem)
def test_a_registered_study_is_never_changed(study: Path):
    path = study.relative_to(ROOT).as_posix()
    if git("rev-parse", "--is-shallow-repository") != "false" or not (added := git("log", "--format=%H", "--", path)):
        pytest.skip("needs the history of the project's repository")
    assert git("show", f"{added.splitlines()[-1]}:{path}") == study.read_text(encoding="utf-8").strip()


def added(path: str) -> tuple[str, str]:
    """The commit that added a file, and its time."""
    lines = git("log", "--diff-filter=A", "--format=%H %ad", "--date=format:%d %b %Y, %H:%M", "--", path).splitlines()
    commit, _, time = lines[-1].partition(" ")
    return commit, time


def test_the_page_has_the_times_of_all_plans_which_came_before_their_results():
    if git("rev-parse", "--is-shallow-repository") != "false" or not git("log", "-1", "--format=%H", "--", "studies"):
        pytest.skip("needs the history of the project's repository")
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([\w-]+) \| (\d\d \w+ \d{4}, [\d:]{5}) \| (\d\d \w+ \d{4}, [\d:]{5}) \| `(\w+)` \|$", page, re.MULTILINE
    )
    assert sorted(name for name, *_ in rows) == sorted(path.stem for path in (ROOT / "studies").glob("*.md"))
    for name, planned, published, program in rows:
        (plan, at), (results, later) = added(f"studies/{name}.md"), added(f"results/{name}/scores.csv")
        assert (name, planned, published) == (name, at, later)
        assert plan != results
        assert git("merge-base", plan, results) == plan
        assert git("cat-file", "-t", program) == "commit"


def test_the_runs_of_lite_sb3_were_repeated_with_the_same_scores():
    if not (text := git("show", "cbded71:results/lite-sb3/scores.csv")):
        pytest.skip("needs the history of the project's repository")
    now = (ROOT / "results" / "lite-sb3" / "scores.csv").read_text()
    before, after = (
        [[row[name] for name in ("seed", "frames", "score")] for row in csv.DictReader(lines.splitlines())]
        for lines in (text, now)
    )
    assert before == after


def test_the_runs_of_lite_cost_were_repeated_to_the_last_digit_but_not_their_times():
    """Processor time then, over the Baseline's: 1.23 with the objective in every fourth update, 1.45 in every second."""
    if not (text := git("show", "cee92f6:results/lite-cost/scores.csv")):
        pytest.skip("needs the history of the project's repository")
    before, now = (
        list(csv.DictReader(lines.splitlines()))
        for lines in (text, (ROOT / "results/lite-cost/scores.csv").read_text())
    )
    scores = [
        {tuple(row[key] for key in ("method", "task", "seed", "frames", "score")) for row in rows}
        for rows in (before, now)
    ]
    assert scores[0] == scores[1]
    seconds: dict[str, list[float]] = {}
    for row in before:
        if row["frames"] == "60000":
            seconds.setdefault(row["method"], []).append(float(row["cpu_seconds"]))
    prices = {method: round(fmean(each) / fmean(seconds["baseline"]), 2) for method, each in seconds.items()}
    assert (prices["mlr objective.every=4"], prices["mlr"]) == (1.23, 1.45)
