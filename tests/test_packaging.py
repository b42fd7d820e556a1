"""What is in the wheel and the sdist, and that the wheel works away from the clone. `make dist-check`: in an empty environment."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import maskrl

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import dist_check  # noqa: E402

SOURCES = ROOT / "src" / "maskrl"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.suffix: path for path in folder.iterdir()}


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def test_the_wheel_has_every_source_and_nothing_else(built: dict[str, Path]):
    with zipfile.ZipFile(built[".whl"]) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (path for path in SOURCES.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert packed == {f"maskrl/{path.relative_to(SOURCES).as_posix()}" for path in files}
    assert "maskrl/py.typed" in packed


def test_the_sdist_has_what_its_tests_and_its_site_need(built: dict[str, Path]):
    with tarfile.open(built[".gz"]) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("docs", "examples", "tests", "tools", "fuzz", "studies")
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and not {"__pycache__", "found"} & set(path.parts)
        and not path.name.startswith(("crash-", "."))
    }
    named = {
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "LICENSE",
        "Makefile",
        "mkdocs.yml",
        "constraints.txt",
        "requirements.lock",
    }
    assert wanted | named <= packed


def test_the_metadata_are_true(built: dict[str, Path]):
    found = message_from_string(metadata(built[".whl"]))
    assert found["Version"] == maskrl.__version__
    assert f"version: {maskrl.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {maskrl.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    extras = set(found.get_all("Provides-Extra") or [])
    page = (ROOT / "docs" / "install.md").read_text()
    assert {extra for extra in extras if f"| `{extra}` |" not in page} <= {"dev", "fuzz"}
    versions = [line.rpartition(" ")[2] for line in found.get_all("Classifier") or [] if "Python :: 3." in line]
    assert versions == ["3.10", "3.11", "3.12", "3.13"]


@pytest.mark.slow
def test_the_wheel_works_away_from_the_clone(built: dict[str, Path], tmp_path: Path):
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "lib"),
    ]
    subprocess.run([*install, str(built[".whl"])], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "lib"), "XDG_CONFIG_HOME": str(tmp_path / "config")}

    def python(*words: str) -> str:
        command = [sys.executable, *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=300
        ).stdout

    assert str(tmp_path / "lib") in python("-c", "import maskrl; print(maskrl.__file__)")
    for name in dist_check.EXAMPLES:
        shutil.copy(ROOT / "examples" / name, tmp_path)
    printed = {words: python(*words) for words in dist_check.COMMANDS}
    _, listed, trained, _, own, exported, played = printed.values()
    assert "dmcontrol/walker-walk" in listed
    assert "score" in trained
    assert "gym/my_env.py:make_env" in own
    assert "40 observations of its own play: largest difference of an action 0" in exported
    assert "the same returns over 2 episodes" in exported
    assert re.fullmatch(r"episode 0: \d+\.0\n", played)
