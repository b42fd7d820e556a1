"""Shell blocks of the pages run, or say why not; every command in them is one that maskrl understands, with its values."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calling import called
from maskrl import recipes
from maskrl.cli.words import listed
from maskrl.runs.directory import Run
from maskrl.runs.loop import train
from maskrl.studies.jobs import expand
from test_docs import DOCUMENTS, ROOT, blocks, found_command
from tiny_runs import tiny_recipe

SHELL = [page for page in DOCUMENTS if blocks(page, "sh")]
RUN = [
    pytest.param(code, id=page.name, marks=[pytest.mark.slow] if "runs" in code else [])
    for page in SHELL
    for is_marked, code in blocks(page, "sh")
    if not is_marked
]
ENDS_SOON = {"recipes", "report", "evaluate", "probe", "masks", "export"}  # on a toy. Others train, measure or install.
BEFORE = {"do", "then", "--", "srun"}  # a command begins after one of these, after an assignment, or after punctuation


def commands(code: str) -> Iterator[list[str]]:
    """The words of every `maskrl …` in a block; a variable's value is 1."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line.replace("$seed", "1"), posix=True, punctuation_chars=True)
        words.whitespace_split = True
        began: list[str] | None = None
        last = ""
        for word in words:
            if set(word) <= set("();<>|&"):
                if began:
                    yield began
                began, last = None, ""
            elif began is not None:
                began.append(word)
            elif word == "maskrl" and (not last or last in BEFORE or "=" in last):
                began = []
            else:
                last = word
        if began:
            yield began


def understood(words: list[str]) -> None:
    """Parse a command as the program does, and resolve what it names: a recipe with overrides, or the runs of a sweep."""
    if words[0].startswith("--"):
        assert words in (["--help"], ["--install-completion"])
        return
    command, arguments = found_command(words)
    if hasattr(command, "commands"):
        raise ValueError(f"maskrl {' '.join(words)}: there is no such command.")
    given: dict[str, Any] = command.make_context(words[0], list(arguments)).params
    if "grid" in given:
        only = {name: listed(given[name]) for name in ("methods", "tasks")}
        seeds = given["seeds"] and 1  # which are alike; a study allows none
        assert expand(given["name"], seeds=seeds, **only, grid=given["grid"] or (), profile=given["profile"])
    elif "overrides" in given:
        name = next(given[place] for place in ("recipe", "source", "env") if place in given)
        if not name.startswith("runs/"):
            halves = {half: given.get(half) for half in ("method", "agent", "objective")}
            recipes.resolve(name, given["overrides"] or (), profile=given.get("profile", "auto"), **halves)


def test_commands_are_found_where_a_shell_would_find_them():
    code = """A=1 maskrl one x=$seed  # maskrl two
for seed in 1 2; do maskrl three > log & done
srun ray -- \\
  maskrl four --out there | grep -v maskrl && maskrl five
pip install maskrl
"""
    assert [*commands(code)] == [["one", "x=1"], ["three"], ["four", "--out", "there"], ["five"]]


@pytest.mark.parametrize(
    "words",
    [
        "train-it toy/reach",
        "train toy/reach --metod mlr",
        "train toy/reach objective.mask.rato=0.3",
        "train toy/reac",
        "evaluate RUN --episodes many",
        "sweep toy --methods mrl",
        "sweep dmcontrol/walker-walk objective.mask.rato=0.3,0.5",
        "plan studies/lite-nothing",
        "bench run dmcontrol/cheetah-rum",
        "bench update --rounds",
        "masks toy/reach --film",
    ],
)
def test_a_command_with_a_slip_is_not_understood(words: str):
    with pytest.raises(Exception, match=r"rgument|option|command|not known|not a field|integer|no file|cannot be read"):
        understood(words.split())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what a clone has, and with a user's environment."""
    for name in ("studies", "results", "examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "tests" / "own_env.py", tmp_path / "my_env.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", SHELL, ids=lambda path: path.name)
@pytest.mark.usefixtures("desk")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Box2D, which crashes if its warnings are errors
def test_every_command_of_a_shell_block_is_understood_with_its_recipe_and_overrides(document: Path):
    for _, code in blocks(document, "sh"):
        for words in commands(code):
            understood(words)


def test_every_shell_block_runs_or_is_marked_with_a_reason():
    """Those without a mark are run below, which only commands of ours can be that end soon."""
    assert len(RUN) >= 5
    for page in SHELL:
        for is_marked, code in blocks(page, "sh"):
            is_run = all(line.split()[:1] == ["maskrl"] and line.split()[1] in ENDS_SOON for line in code.splitlines())
            assert is_marked or is_run, f"{page.name}: mark it with <!-- not run: reason -->\n{code}"
        for mark in re.findall(r"<!-- not run:(.*?)-->", page.read_text()):
            assert len(mark.split()) >= 2, f"{page.name}: a reason says more than {mark!r}"


def test_every_shell_block_begins_at_the_margin():
    """An indented block would be read neither here nor by the test of commands."""
    for page in DOCUMENTS:
        assert not re.findall(r"^ +```sh", page.read_text(), flags=re.MULTILINE), page.name


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run.create(tmp_path_factory.mktemp("trained") / "run", tiny_recipe())
    train(run.recipe, run)
    return run.path


@pytest.mark.parametrize("code", RUN)
def test_a_shell_block_without_a_mark_runs(code: str, desk: Path, request: pytest.FixtureRequest):
    """As printed. The runs that it names are a trained toy."""
    for path in {word for words in commands(code) for word in words if re.match(r"runs(/|$)", word)}:
        shutil.copytree(request.getfixturevalue("trained"), desk / path / ("toy" if path == "runs" else ""))
    shutil.copy(ROOT / "results" / "toy-reach" / "scores.csv", desk / "scores.csv")
    for words in commands(code):
        assert words[0] in ENDS_SOON
        end, printed = called(words)
        assert end == 0, f"maskrl {' '.join(words)}\n{printed}"
        assert printed
