"""Help, completion, and commands that can be pasted."""

import inspect
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from calling import called
from maskrl import cli, recipes
from maskrl.cli.help import Group, recipe_names, split_examples

ROOT = get_command(cli.app)
SCRIPT = Path(sys.executable).with_name("maskrl")


def commands(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    yield " ".join(path), command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *path, name)


ALL = dict(commands(ROOT))


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")


def help_of(path: str) -> str:
    code, shown = called([*path.split(), "--help"])
    assert code == 0
    return shown


# ── Help ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ALL)
def test_help_fits_into_80_columns_with_every_default_and_nothing_cut(path: str):
    shown, command = help_of(path), ALL[path]
    together = " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    assert not {"<bool>", "<str>", "<list[str]>", "╭"} & set(shown.split())
    assert not [
        word for word in shown.split() if word.endswith("...") and not word.endswith(("]...", ",...", "RUNS..."))
    ]
    if isinstance(command, Group):
        return
    for param in command.params:
        names = param.opts if param.param_type_name == "option" else [param.metavar]
        assert any(name in shown for name in names)
        if param.default not in (None, False) and not param.required:
            assert f"[default: {param.default}" in together, param.name


def test_a_list_of_commands_has_whole_sentences():
    for path, command in ALL.items():
        if isinstance(command, Group) and path != "sweep":  # `maskrl sweep --help` is that of `maskrl sweep start`
            for name, inner in command.commands.items():
                first = inspect.cleandoc(inner.help).partition(". ")[0].partition("\n")[0].removesuffix(".")
                assert f"  {name:<{max(map(len, command.commands))}}  {first}.\n" in help_of(path)


@pytest.mark.parametrize("path", ALL)
def test_help_has_examples_that_the_command_understands(path: str):
    lines = help_of(path).partition("\nExamples:\n")[2].splitlines()
    examples = [line.strip() for line in lines if line.startswith("  maskrl ")]
    assert examples
    for example in examples:
        assert example.startswith(f"maskrl {path}".removesuffix(" start").strip())
        words = shlex.split(example)[1:]
        if words[0].startswith("--"):
            assert words[0] in help_of("")
            continue
        params = parsed(words)
        name = params.get("recipe")
        if name and name != "first":
            assert recipes.resolve(name, params.get("overrides") or [], method=params.get("method"))


def parsed(words: list[str]) -> dict[str, Any]:
    """What a command would be called with."""
    command, context, name = ROOT, None, "maskrl"
    while isinstance(command, Group):
        context = command.make_context(name, words, parent=context)
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    return command.make_context(name, words, parent=context).params


def test_examples_are_the_paragraphs_of_commands():
    prose, examples = split_examples("Do it.\n\n  $ maskrl a\n  $ maskrl b\n\n  And more.")
    assert (prose, examples) == ("Do it.\n\nAnd more.", ["maskrl a", "maskrl b"])


# ── Commands that can be pasted ───────────────────────────────────────────────────────────────────────────────────────


def printed_command(words: list[str], cwd: Path, path: str) -> str:
    """The command that `recipes list ablations` shows, in a shell with this PATH."""
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        [*words, "recipes", "list", "ablations"], capture_output=True, text=True, cwd=cwd, env=environment
    )
    assert done.returncode == 0, done.stderr
    return next(line.strip() for line in done.stdout.splitlines() if " train dmcontrol/cheetah-run " in line)


@pytest.mark.skipif(not SCRIPT.exists(), reason="maskrl is not installed beside this Python")
def test_a_printed_command_can_be_pasted_whether_the_environment_is_active_or_not(tmp_path: Path):
    project, tools = SCRIPT.parents[2], os.defpath
    script = SCRIPT.relative_to(project)
    assert printed_command([str(script)], project, tools).startswith(f"{script} train ")
    assert printed_command([str(SCRIPT)], tmp_path, tools).startswith(f"{SCRIPT} train ")
    assert printed_command(["maskrl"], tmp_path, f"{SCRIPT.parent}:{tools}").startswith("maskrl train ")
    assert printed_command([sys.executable, "-m", "maskrl"], tmp_path, tools).startswith(f"{SCRIPT} train ")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__main__.py").write_text("import sys\nfrom maskrl import cli\ncli.main(sys.argv[1:])\n")
    assert printed_command([sys.executable, "-m", "theirs"], tmp_path, tools).startswith("maskrl train ")


@pytest.mark.skipif(not SCRIPT.exists(), reason="maskrl is not installed beside this Python")
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["recipes", "show", "dmcontrol/wakler-walk"], "recipes list` has"),
        (["evaluate", "nowhere"], "train` makes one"),
        (["recipes", "list"], "recipes show RECIPE prints one"),
    ],
)
def test_a_command_in_a_sentence_can_be_pasted(asked: list[str], told: str, tmp_path: Path):
    environment = {**os.environ, "PATH": os.defpath}
    done = subprocess.run([str(SCRIPT), *asked], capture_output=True, text=True, cwd=tmp_path, env=environment)
    printed = done.stdout + done.stderr
    assert f"{SCRIPT} {told}" in " ".join(printed.split())


# ── Completion ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_completion_knows_every_recipe_without_importing_torch():
    assert sorted(recipe_names()) == sorted(recipes.names())
    code = "import sys; from maskrl.cli.help import recipe_names; recipe_names(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


COMPLETE = """
source ~/.bashrc
COMP_WORDS=({words}) COMP_CWORD={place}
$(complete -p maskrl | sed 's/.*-F \\([^ ]*\\) .*/\\1/') maskrl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(not SCRIPT.exists(), reason="maskrl is not installed beside this Python")
def test_completion_is_installed_into_a_real_bash(tmp_path: Path):
    home = {**os.environ, "HOME": str(tmp_path), "PATH": f"{SCRIPT.parent}:{os.defpath}"}
    (tmp_path / ".bashrc").write_text("KEPT=yes\n")

    def bash(script: str) -> str:
        done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, env=home)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "completion installed" in bash("maskrl --install-completion; exit $?")  # in a shell: its parent is asked for
    assert "KEPT=yes" in (tmp_path / ".bashrc").read_text()

    def completed(*words: str) -> list[str]:
        typed = " ".join(shlex.quote(word) for word in words)
        return bash(COMPLETE.format(words=typed, place=len(words) - 1)).split()

    assert completed("maskrl", "tra") == ["train"]
    assert completed("maskrl", "train", "atari/po") == ["atari/pong"]
    assert "--profile" in completed("maskrl", "train", "toy/reach", "--pro")
    assert completed("maskrl", "train", "toy/reach", "--profile", "li") == ["lite"]
    assert completed("maskrl", "evaluate", "run") == []  # bash then completes the names of files


@pytest.mark.skipif(not (SCRIPT.exists() and shutil.which("fish")), reason="needs fish, and maskrl beside this Python")
def test_completion_is_installed_into_a_real_fish(tmp_path: Path):
    home = {**os.environ, "HOME": str(tmp_path), "PATH": f"{SCRIPT.parent}:{os.defpath}", "XDG_CONFIG_HOME": ""}

    def fish(script: str) -> list[str]:
        done = subprocess.run([str(shutil.which("fish")), "-c", script], capture_output=True, text=True, env=home)
        assert done.returncode == 0, done.stderr
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    assert any("fish completion installed" in line for line in fish("maskrl --install-completion; exit $status"))
    assert fish("complete -C 'maskrl tra'") == ["train"]
    assert fish("complete -C 'maskrl train atari/po'") == ["atari/pong"]
    assert fish("complete -C 'maskrl train toy/reach --profile li'") == ["lite"]
