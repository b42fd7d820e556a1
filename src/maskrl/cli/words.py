"""Shared by the commands: options for a recipe, refusals, commands to copy, rows and tables. `options` has those for many runs."""

import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from maskrl.cli.help import complete_recipe
from maskrl.files import EnvironmentFailedError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from maskrl.recipes.schema import Recipe

Profile = Literal["auto", "paper", "lite"]
NOT_COMPARABLE = "not comparable: lite profile"

RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="Such as dmcontrol/cartpole-swingup, atari/pong or toy/reach.",
        autocompletion=complete_recipe,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Overrides, such as seed=3 objective.mask.ratio=0.3."),
]
ProfileOption = Annotated[
    Profile,
    typer.Option(help="paper: as published. lite: scaled to a laptop. auto: paper with a CUDA device, otherwise lite."),
]
MethodOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="mlr (default), baseline (the agent alone), …: `maskrl recipes list methods`."),
]
AgentOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The agent of a method, with the recipe's objective.")
]
ObjectiveOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The objective of a method; none for the agent alone.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is not an earlier output of this command.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run the code of the run's environment, though you did not train it on this machine."),
]
OtherEnv = Annotated[
    str | None,
    typer.Option("--env", metavar="FILE.py:FUNCTION", help="Play in this environment, not in the run's own."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]


class Refusal(Exception):  # noqa: N818, it is not a bug of maskrl
    """Something that the user can fix; the message says how."""


@contextmanager
def refusing(*errors: type[Exception]) -> Iterator[None]:
    """Turn errors whose message is meant for the user into a refusal."""
    try:
        yield
    except EnvironmentFailedError:  # some are ValueErrors, too
        raise
    except errors as error:
        words = str(error)
        if isinstance(error, OSError) and error.strerror:
            words = f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
        raise Refusal(words) from error


class Asked(NamedTuple):
    """A recipe as typed."""

    name: str
    overrides: Sequence[str] | None = None
    profile: Profile = "auto"
    method: str | None = None
    agent: str | None = None
    objective: str | None = None

    def recipe(self) -> "Recipe":
        from maskrl import recipes

        halves = {"method": self.method, "agent": self.agent, "objective": self.objective}
        with refusing(ValueError):
            return recipes.resolve(self.name, self.overrides or (), profile=self.profile, **halves)

    def command(self, run_dir: Path | None = None, log: Sequence[str] = ()) -> str:
        """The command that trains it, without defaults."""
        return paste("train", *self.words(run_dir=run_dir, log=",".join(log) or None))

    def words(self, **options: object) -> list[str]:
        """The arguments of `maskrl train` for it, without defaults."""
        chosen = {"profile": None if self.profile == "auto" else self.profile, "method": self.method}
        return typed(
            self.name, *(self.overrides or ()), **chosen, agent=self.agent, objective=self.objective, **options
        )


def consented(recipe: "Recipe", env: str | None, trust: bool) -> "Recipe":
    """The recipe of a run, with the user's consent to its environment (--trust), or with another environment (--env)."""
    from dataclasses import replace

    with refusing(ValueError):
        if env is not None:
            other: Any = recipe.env.made_from(env)
            return replace(recipe, env=other)
        if trust:
            recipe.env.allow()
        return recipe


def command(*words: str, **options: object) -> str:
    """A command to paste into the user's shell, without options that are None or False."""
    return paste(*typed(*words, **options))


def paste(*words: str) -> str:
    """A line for the user's shell, with quotes where needed."""
    return shlex.join([*program(), *words])


def shown(text: str) -> str:
    """A text with its control characters escaped: a stranger's names must not steer the terminal."""
    return "".join(letter if letter.isprintable() or letter in "\n\t\u00a0" else repr(letter)[1:-1] for letter in text)


def runnable(text: str) -> str:
    """A text in which every command between backticks can be pasted into the user's shell."""
    return text.replace("`maskrl ", f"`{shlex.join(program())} ")


def program() -> list[str]:
    """The words that start maskrl: its name if the PATH leads to this installation, otherwise its path."""
    python = Path(sys.executable)
    script, on_path = python.with_name("maskrl"), shutil.which("maskrl")
    started = Path(sys.argv[0])
    if started.name != "maskrl" and started.parts[-2:] != ("maskrl", "__main__.py"):
        return ["maskrl"]  # called from Python: there is no shell to paste into
    if on_path and script.exists() and script.samefile(on_path):
        return ["maskrl"]
    if python.is_relative_to(Path.cwd()):
        script, python = (path.relative_to(Path.cwd()) for path in (script, python))
    return [str(script)] if script.exists() else [str(python), "-m", "maskrl"]


def typed(*words: str, **options: object) -> list[str]:
    """The words of a command line, without options that are None or False."""
    # A word that begins with a dash would count as an option; here it is always a path.
    line = [f"./{word}" if word.startswith("-") else word for word in words]
    for name, value in options.items():
        if value is not None and value is not False:
            line += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return line


def print_rows(rows: dict[str, str], *, wrap: bool = False) -> None:
    """Print rows, wrapped for a terminal if `wrap`. Do not wrap rows with commands, so that they can be copied."""
    width = max(40, shutil.get_terminal_size().columns) if wrap and sys.stdout.isatty() else sys.maxsize
    wrapper = textwrap.TextWrapper(width, subsequent_indent=13 * " ", break_long_words=False, break_on_hyphens=False)
    for name, words in rows.items():
        wrapper.initial_indent = f"  {name:<11}"
        print(wrapper.fill(words))


def console() -> "Console":
    """A console for the standard output that does not cut lines in a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


@contextmanager
def telling(*, stderr: bool = False) -> Iterator[Callable[[str], None]]:
    """Report progress: in place on a terminal, otherwise line by line."""
    from rich.console import Console
    from rich.text import Text

    out = Console(stderr=stderr, highlight=False)
    if out.is_terminal:
        with out.status("") as status:
            yield lambda text: status.update(Text(shown(text)))  # names may look like markup
    else:
        yield lambda text: print(shown(text), file=out.file, flush=True)


def table(
    headings: Sequence[str], rows: "Iterable[Sequence[str | Text]]" = (), *, left: int, folds: Sequence[str] = ()
) -> "Table":
    """A table: the first `left` and the folding columns are left-aligned, the others right-aligned. Folding columns share the
    remaining width.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        justify: Literal["left", "right"] = "left" if place < left or heading in folds else "right"
        made.add_column(heading, justify=justify, no_wrap=heading not in folds, overflow="fold")
    for row in rows:
        made.add_row(*(Text(shown(cell)) if isinstance(cell, str) else cell for cell in row))  # not markup
    return made


def listed(words: str | None) -> list[str] | None:
    """The names in an option, separated by commas."""
    return None if words is None else [word.strip() for word in words.split(",") if word.strip()]
