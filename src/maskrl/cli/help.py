"""Help that fits into 80 columns, with examples, and completion for shells."""

import csv
import inspect
from collections.abc import Callable
from importlib import resources
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])


def split_examples(text: str | None) -> tuple[str, list[str]]:
    """Split help into its prose and its examples, which are the paragraphs whose lines begin with "$ "."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    examples = [paragraph for paragraph in paragraphs if paragraph.startswith("$ ")]
    prose = "\n\n".join(paragraph for paragraph in paragraphs if paragraph not in examples)
    return prose, [line.removeprefix("$ ") for paragraph in examples for line in paragraph.splitlines()]


def _write_examples(examples: list[str], formatter: Any) -> None:
    """Write each example on a line of its own: a wrapped command cannot be copied."""
    with formatter.section("Examples"):
        for line in examples:
            formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Command(TyperCommand):
    """A command whose help shows no Python types and ends with the examples of its docstring."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.help, self.examples = split_examples(self.help)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                is_argument = param.param_type_name == "argument"
                name = param.metavar or str(param.name).upper() if is_argument else record[0]
                sections[param.param_type_name].append((name, record[1]))
        for kind, rows in sections.items():
            if rows:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_examples(self.examples, formatter)
        super().format_epilog(ctx, formatter)


class Group(TyperGroup):
    """A group of commands whose help ends with examples."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.help, self.examples = split_examples(self.help)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_examples(self.examples, formatter)
        super().format_epilog(ctx, formatter)


class App(typer.Typer):
    """The application, with this help for all commands."""

    def __init__(self, **options: Any) -> None:
        # Without Rich: its boxes cut long defaults at 80 columns and show a type for flags.
        super().__init__(**{"cls": Group, "rich_markup_mode": None, "add_completion": False, **options})

    def command(self, *arguments: Any, **options: Any) -> Callable[[Function], Function]:
        return super().command(*arguments, **{"cls": Command, **options})


# ── Completion ────────────────────────────────────────────────────────────────────────────────────────────────────────

# Recipes without a score in the paper's tables.
UNPUBLISHED = ("dmcontrol/reacher-hard", "dmcontrol/walker-run", "toy/reach", "toy/catch")


def complete_recipe(incomplete: str) -> list[str]:
    """The names of recipes that complete the typed text."""
    return [name for name in recipe_names() if name.startswith(incomplete)]


def recipe_names() -> list[str]:
    """All names of recipes, from the published tables: `maskrl.recipes` would import torch, which takes seconds."""
    data = resources.files("maskrl") / "recipes" / "data"
    tables = {"dmcontrol.csv": ("dmcontrol", "task"), "atari100k.csv": ("atari", "game")}
    found = [
        f"{suite}/{row[column]}"
        for file, (suite, column) in tables.items()
        for row in csv.DictReader((data / file).read_text(encoding="utf-8").splitlines())
    ]
    return list(dict.fromkeys([*found, *UNPUBLISHED]))
