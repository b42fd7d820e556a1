"""Every option that names an output, from the command line's own table: it destroys nothing that is not an earlier output."""

from collections.abc import Callable
from pathlib import Path

import pytest

import own_env
from calling import called, commands
from maskrl.runs.directory import Run
from tiny_runs import tiny_recipe, trained

pytestmark = pytest.mark.faults

Words = Callable[[Path, Path], list[str]]  # of a run and an output

# How each command is called, and the ending of its file.
FILES: dict[tuple[str, str], tuple[str, Words]] = {
    ("check", "--sheet"): (
        ".png",
        lambda run, out: ["check", f"{Path(own_env.__file__)}:make_env", "--sheet", str(out)],
    ),
    ("evaluate", "--video"): (".gif", lambda run, out: ["evaluate", str(run), "--episodes", "1", "--video", str(out)]),
    ("export", "--out"): (".pt2", lambda run, out: ["export", str(run), "--out", str(out), "--episodes", "0"]),
    ("masks", "--out"): (".html", lambda run, out: ["masks", str(run), "--out", str(out)]),
    ("play", "--out"): (".gif", lambda run, out: ["play", str(run), "--out", str(out)]),
    ("report", "--out"): (".html", lambda run, out: ["report", str(run), "--out", str(out)]),
}
# How each is called, and a file that a folder of one's own may have.
FOLDERS: dict[tuple[str, str], tuple[str, Words]] = {
    ("pretrain", "--out"): ("poem.txt", lambda run, out: ["pretrain", str(run), "--out", str(out)]),
    ("report", "--tables"): (
        "runs.md",
        lambda run, out: ["report", str(run), "--out", f"{out}.html", "--tables", str(out)],
    ),
    ("results", "--out"): ("scores.csv", lambda run, out: ["results", str(run), "--out", str(out)]),
    ("sweep start", "--out"): ("poem.txt", lambda run, out: ["sweep", "toy/reach", "--out", str(out)]),
    ("train", "--run-dir"): ("poem.txt", lambda run, out: ["train", "toy/reach", "--run-dir", str(out)]),
}
NOT_WRITTEN = {("doctor", "--run-dir")}  # it tries a file of its own there


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("run") / "run", tiny_recipe())[0]


def test_every_option_that_names_an_output_is_in_this_test():
    found = {
        (name, next(word for word in param.opts if word.startswith("--")))
        for name, command in commands().items()
        for param in command.params
        if param.param_type_name == "option" and param.metavar in ("FILE", "DIR")
    }
    assert found == {*FILES, *FOLDERS, *NOT_WRITTEN}


@pytest.mark.parametrize("option", FILES, ids=" ".join)
def test_a_file_of_somebody_is_kept_and_so_are_those_of_a_run(tmp_path: Path, run: Run, option: tuple[str, str]):
    ending, words = FILES[option]
    poem, within = tmp_path / f"poem{ending}", run.checkpoints / f"new{ending}"
    poem.write_text("a poem")
    code, printed = called(words(run.path, poem))
    assert (code, poem.read_text()) == (2, "a poem"), printed
    assert "is not an earlier output of this command" in " ".join(printed.split())
    code, printed = called([*words(run.path, within), "--force"])
    assert (code, within.exists()) == (2, False), printed
    assert "is a file of the run in" in " ".join(printed.split())


@pytest.mark.parametrize("option", FOLDERS, ids=" ".join)
def test_a_folder_of_somebody_is_kept(tmp_path: Path, run: Run, option: tuple[str, str]):
    name, words = FOLDERS[option]
    (tmp_path / "folder").mkdir()
    poem = tmp_path / "folder" / name
    poem.write_text("a poem")
    code, printed = called(words(run.path, tmp_path / "folder"))
    assert (code, poem.read_text()) == (2, "a poem"), printed
    assert [path.name for path in (tmp_path / "folder").iterdir()] == [name]
