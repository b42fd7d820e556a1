"""What can be read of a run's directory: by programs, and without its recipe."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import maskrl
from builders import Silent
from maskrl.clock import Clock
from maskrl.runs import directory
from maskrl.runs.directory import Run, RunFiles
from maskrl.runs.signals import Stopped
from tiny_runs import tiny_recipe, trained


@pytest.fixture
def evaluated(tmp_path: Path) -> Run:
    run = Run.create(tmp_path / "run", tiny_recipe())
    run.log("random", Clock(0, 0, 0, 0.0), {"score": 1.0, "returns": [1.0]})
    for frames, returns in ((50, [1.0, 3.0]), (100, [4.0, 4.0])):
        run.log("evaluation", Clock(frames, frames, 10, 2.5), {"score": float(np.mean(returns)), "returns": returns})
    return run


# ── Scores and videos ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_scores_are_the_evaluations_in_order(evaluated: Run):
    assert evaluated.scores == [
        {"frames": 50, "decisions": 50, "updates": 10, "seconds": 2.5, "score": 2.0, "spread": 1.0, "episodes": 2},
        {"frames": 100, "decisions": 100, "updates": 10, "seconds": 2.5, "score": 4.0, "spread": 0.0, "episodes": 2},
    ]


def test_a_frame_has_a_row_for_every_evaluation_and_its_columns_before_the_first(evaluated: Run, tmp_path: Path):
    pytest.importorskip("pandas")
    frame = evaluated.frame()
    assert list(frame.columns) == ["frames", "decisions", "updates", "seconds", "score", "spread", "episodes"]
    assert frame.to_dict("records") == evaluated.scores
    empty = Run.create(tmp_path / "new", tiny_recipe()).frame()
    assert (len(empty), list(empty.columns)) == (0, list(frame.columns))


def test_without_pandas_a_frame_says_what_to_install(evaluated: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'maskrl\[report\]'"):
        evaluated.frame()


def test_videos_are_found_in_the_directory_and_its_folders(evaluated: Run):
    assert evaluated.videos == []
    (evaluated.path / "videos").mkdir()
    for name in ("agent.mp4", "videos/early.GIF", "curve.png"):
        (evaluated.path / name).touch()
    assert evaluated.videos == [evaluated.path / "agent.mp4", evaluated.path / "videos" / "early.GIF"]


# ── Without a recipe ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_directory_whose_recipe_cannot_be_read_can_be_looked_at(evaluated: Run):
    (evaluated.path / "recipe.json").write_text("{")
    evaluated.set_status("failed", "ValueError: no")
    files = RunFiles(evaluated.path)
    assert (files.status, files.why, files.is_locked) == ("failed", "ValueError: no", False)
    assert files.scores == evaluated.scores
    assert files.versions() == evaluated.versions() != {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '"done"', '{"status": []}', "[" * 100_000])
def test_a_status_that_cannot_be_read_is_that_of_a_run_that_was_stopped(tmp_path: Path, text: str):
    (tmp_path / "status.json").write_text(text)
    assert RunFiles(tmp_path).status == "stopped"
    assert RunFiles(tmp_path).why == "status.json cannot be read"
    assert RunFiles(tmp_path / "nothing").status == "new"


# ── Which maskrl ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def _source_is_read_again():
    directory.source.cache_clear()
    yield
    directory.source.cache_clear()


def installed(site: Path, monkeypatch: pytest.MonkeyPatch, direct_url: str | None) -> None:
    """A wheel as pip leaves it: the package, and beside it the record of version 9.8.7."""
    record = site / "maskrl-9.8.7.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: maskrl\nVersion: 9.8.7\n")
    if direct_url is not None:
        (record / "direct_url.json").write_text(direct_url)
    (site / "maskrl").symlink_to(Path(maskrl.__file__).parent)
    monkeypatch.syspath_prepend(site)


@pytest.mark.usefixtures("_source_is_read_again")
@pytest.mark.parametrize(
    ("direct_url", "source"),
    [
        (None, "9.8.7"),
        ('{"url": "https://host/maskrl.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b2c"}}', "9.8.7 0a1b2c"),
        (
            '{"url": "file:///a.whl", "archive_info": {"hash": "sha256=0f", "hashes": {"sha256": "0f"}}}',
            "9.8.7 sha256=0f",
        ),
        ('{"url": "file:///a.whl", "archive_info": {"hashes": {"sha256": "0f"}}}', "9.8.7 sha256=0f"),
        ('{"url": "file:///folder", "dir_info": {}}', "9.8.7"),
        ('{"vcs_info": 3}', "9.8.7"),
        ("not JSON", "9.8.7"),
    ],
)
def test_an_installed_wheel_is_known_by_its_version_and_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct_url: str | None, source: str
):
    installed(tmp_path, monkeypatch, direct_url)
    assert directory.source() == source
    assert Run.create(tmp_path / "run", tiny_recipe()).versions()["source"] == source


@pytest.mark.usefixtures("_source_is_read_again")
def test_a_checkout_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "src" / "maskrl"
    (package / "runs").mkdir(parents=True)
    monkeypatch.setattr(directory, "__file__", str(package / "runs" / "directory.py"))
    assert directory.source() is None  # no repository

    def git(*words: str) -> str:
        told = subprocess.run(["git", "-C", tmp_path, *words], check=True, capture_output=True, text=True)
        return told.stdout.strip()

    git("init", "-q")
    (package / "file.py").write_text("1")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "commit", "-qm", "First")
    directory.source.cache_clear()
    commit = directory.source()
    assert commit
    assert git("rev-parse", "HEAD").startswith(commit)
    (package / "file.py").write_text("2")
    assert directory.source() == commit  # the code that is loaded
    directory.source.cache_clear()
    assert directory.source() == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    directory.source.cache_clear()
    assert directory.source() is None  # no git


@pytest.mark.slow
@pytest.mark.parametrize(("begun", "told"), [("another", True), ("the same", False), (None, False)])
def test_a_run_that_other_code_began_is_told_of(tmp_path: Path, begun: str | None, told: bool):
    with pytest.raises(Stopped):
        trained(tmp_path, tiny_recipe(mlr=False), Silent(interrupt_at=70))
    file, now = tmp_path / "versions.json", directory.source()
    versions = json.loads(file.read_text())
    assert versions.pop("source") == now
    earlier = (
        {} if begun is None else {"source": now if begun == "the same" else "0a1b2c"}
    )  # None: before it was recorded
    file.write_text(json.dumps(versions | earlier))
    watcher = Silent()
    trained(tmp_path, tiny_recipe(mlr=False), watcher)
    assert [f"source 0a1b2c → {now}" in note for note in watcher.notes] == [True] * told
