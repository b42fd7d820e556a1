"""The same bits on the same machine; and where the machine has changed, the run and its report say so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders import Silent
from maskrl.runs.directory import Run, versions
from maskrl.runs.signals import Stopped
from tiny_runs import events, tiny_recipe, trained

pytestmark = pytest.mark.faults

CONTINUE = """
import sys; sys.path[:0] = {path!r}
from pathlib import Path
from builders import Silent
from maskrl.runs.directory import Run
from tiny_runs import tiny_recipe, trained
watcher = Silent()
run, _ = trained(Path({run!r}), tiny_recipe(), watcher)
import json, torch; print(json.dumps({{"notes": watcher.notes, "threads": torch.get_num_threads()}}))
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("whole"), tiny_recipe())[0]


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    with pytest.raises(Stopped):
        trained(tmp_path / "run", tiny_recipe(), Silent(interrupt_at=70))
    return tmp_path / "run"


def continued(run: Path, **settings: str) -> dict[str, object]:
    """Continue a run in a process with other settings: what it noted, and its threads."""
    code = CONTINUE.format(path=[str(Path(__file__).parents[1])], run=str(run))
    kept = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY")}
    process = subprocess.run(
        [sys.executable, "-c", code], env=kept | settings, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr
    found: dict[str, object] = json.loads(process.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("threads", ["1", "2", "7"])
def test_the_number_of_threads_is_that_with_which_the_run_was_made(stopped: Path, whole: Run, threads: str):
    found = continued(stopped, OMP_NUM_THREADS=threads)
    assert found == {"notes": [], "threads": 1}  # as the tests have one
    assert events(Run.open(stopped)) == events(whole)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ATEN_CPU_CAPABILITY": "default"}, "→ DEFAULT"),
        ({"ONEDNN_MAX_CPU_ISA": "SSE41"}, "ONEDNN_MAX_CPU_ISA=SSE41"),
    ],
)
def test_other_instructions_are_told_of_and_stand_in_the_report(stopped: Path, settings: dict[str, str], words: str):
    (note,) = continued(stopped, **settings)["notes"]  # type: ignore[misc]
    assert "Versions changed since the run began, so results may differ: instructions " in note
    assert words in note
    out = stopped.parent / "report.html"
    subprocess.run(
        [sys.executable, "-m", "maskrl", "report", str(stopped), "--out", str(out)], check=True, capture_output=True
    )
    assert "Versions changed since the run began" in out.read_text()


def test_what_may_change_a_bit_is_recorded(tmp_path: Path):
    written = versions(tiny_recipe())
    assert {"cpu", "instructions", "torch build", "driver", "renderer"} <= written.keys()
    assert written["instructions"]
    assert json.loads((Run.create(tmp_path, tiny_recipe()).path / "versions.json").read_text())["threads"] == 1


def test_a_lost_record_of_versions_is_told_of(stopped: Path):
    (stopped / "versions.json").unlink()
    watcher = Silent()
    trained(stopped, tiny_recipe(), watcher)
    assert watcher.notes == ["versions.json is lost, so it is unknown whether versions or threads have changed."]
