"""What the commands share: arguments and options that mean the same everywhere, refusals, and words about a recipe."""

import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

if TYPE_CHECKING:
    from maskrl.recipes.schema import Recipe

Profile = Literal["auto", "paper", "lite"]

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="Such as dmcontrol/cartpole-swingup, atari/pong or toy/reach.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as seed=3 objective.mask.ratio=0.3."),
]
ProfileOption = Annotated[
    Profile,
    typer.Option(help="paper: to the number. lite: scaled to a laptop. auto: paper with a CUDA device, else lite."),
]
MethodOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="mlr (default), baseline (the agent alone), …: `maskrl recipes list methods`."),
]
AgentOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The agent's half of a method, beside the recipe's objective.")
]
ObjectiveOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The objective's half of a method; none for the agent alone.")
]

# Of commands about many runs.
SeedsOption = Annotated[int | None, typer.Option(metavar="N", help="Seeds 1 to N (default: as many as the paper has).")]
MethodsOption = Annotated[
    str | None, typer.Option(metavar="A,B", help="Such as mlr,baseline: `maskrl recipes list methods`.")
]
TasksOption = Annotated[
    str | None, typer.Option(metavar="A,B", help="Tasks of the suite instead of all of the paper's.")
]
GRID_HELP = (
    "Overrides for all runs that have the key. With several values, each is run: objective.mask.ratio=0.1,0.5. Values that have "
    "commas themselves are separated by semicolons, 'objective.mask.cube=4,10,10;8,10,10', or the key is given again. "
    "threads=N: of torch in every run, which is 1 in a sweep."
)


class Refusal(Exception):  # noqa: N818, what it says is not an error of ours
    """Something that the user can put right; the message says how."""


@contextmanager
def refusing(*errors: type[Exception]) -> Iterator[None]:
    """Turn errors whose message is meant for the user into a refusal."""
    try:
        yield
    except errors as error:
        words = str(error)
        if isinstance(error, OSError) and error.strerror:
            words = f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
        raise Refusal(words) from error


class Asked(NamedTuple):
    """A recipe as it was typed."""

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
        """The command that trains it, defaults left out."""
        words = ["maskrl", "train", self.name, *(self.overrides or ())]
        words += ["--profile", self.profile] if self.profile != "auto" else []
        for option in ("method", "agent", "objective"):
            words += [f"--{option}", value] if (value := getattr(self, option)) is not None else []
        words += ["--run-dir", str(run_dir)] if run_dir is not None else []
        return shlex.join(words + (["--log", ",".join(log)] if log else []))


def budget(recipe: "Recipe") -> tuple[str, int]:
    """The unit of a budget, and how many of it."""
    budget = recipe.budget
    return ("decisions", budget.decisions) if budget.decisions is not None else ("frames", recipe.frames)


def print_rows(rows: dict[str, str], *, wrap: bool = False) -> None:
    """Wrapped for a terminal if asked; never a row with a command, which is there to be copied."""
    width = shutil.get_terminal_size().columns if wrap and sys.stdout.isatty() else sys.maxsize
    for name, words in rows.items():
        indent = 13 * " "
        lines = textwrap.wrap(
            words, max(40, width), initial_indent=indent, subsequent_indent=indent, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        print("\n".join([f"  {name:<11}{lines[0].lstrip()}", *lines[1:]]))


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(words: str | None) -> list[str] | None:
    """What an option names, between commas."""
    return None if words is None else [word.strip() for word in words.split(",") if word.strip()]
