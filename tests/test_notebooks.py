"""The notebooks run from top to bottom, with fewer frames than a reader's."""

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks are tested on Python 3.11 and newer")
nbclient = pytest.importorskip("nbclient")

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# Jupyter's own: sockets that its kernel leaves to the garbage collector, and a warning about their encryption.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::RuntimeWarning")
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MASKRL_NOTEBOOK_FRAMES", "500")
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = nbformat.read(path, 4)
    client = nbclient.NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env={**os.environ})
    assert list(tmp_path.glob("runs/*/checkpoints/*"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_has_no_path_of_the_machine_that_ran_it(path: Path):
    text = path.read_text()
    assert len(text) < 300_000
    assert str(Path.home()) not in text
    assert "/tmp/" not in text
