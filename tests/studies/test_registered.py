"""A registered study stays as it was when it was registered, before its runs."""

import subprocess
from pathlib import Path

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
