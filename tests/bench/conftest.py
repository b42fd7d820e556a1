"""What the tests of the benchmarks share."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from maskrl import cli
from maskrl.bench import ceiling

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary directories are made here, where it shows if one is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are tried but once: how fast they are is asserted nowhere."""
    monkeypatch.setattr(ceiling, "MOMENT", 0.0)


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Types `maskrl bench` and these words: the exit code, what is printed, and progress."""

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["bench", *words])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run
