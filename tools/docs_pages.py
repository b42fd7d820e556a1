"""A hook of MkDocs: adds the pages that are made from the program, and the project's own files, when the site is built.

reference-cli.md            every command, from its help
reference-recipes.md        the recipes with the paper's scores, the methods, and the source of every value
reference-fields.md         every field of a recipe with its type, default and comment
reference-exit-codes.md     from maskrl.cli.exit_codes
contributing.md, …          CONTRIBUTING.md, CHANGELOG.md and SECURITY.md with their links turned
"""

import ast
import inspect
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from io import StringIO
from pathlib import Path
from typing import Any, get_args

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OWN = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs calls this before it reads pages."""
    for name, make in PAGES.items():
        files.append(File.generated(config, name, content=make()))
    for name, source in OWN.items():
        files.append(File.generated(config, name, content=turned((ROOT / source).read_text())))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links to files outside docs/, which have no page, by the names of the files."""
    return turned(markdown)


def turned(markdown: str) -> str:
    """The text of a file of the project with links as the site has them."""
    for page, source in OWN.items():
        markdown = re.sub(rf"\]\((\.\./)?{source}(#[^)]*)?\)", rf"]({page}\2)", markdown)
    markdown = re.sub(r"\]\((?:\.\./)?README\.md\)", "](index.md)", markdown)
    markdown = markdown.replace("](docs/", "](")
    files = r"\[`?([^\]`]+)`?\]\((?:\.\./)?((?:examples|src|tests|studies|results|tools|fuzz)/[^)]*|LICENSE|CITATION\.cff)\)"
    return re.sub(files, lambda found: _file(*found.groups()), markdown)


def _file(words: str, path: str) -> str:
    return f"`{path}`" if words.endswith(path.rpartition("/")[2]) else f"{words} (`{path}`)"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """In Markdown."""
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in (headings, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:], ""])


def _cell(value: object) -> str:
    """The value on one line. A bar is escaped, except within inline code."""
    parts = str(value).replace("\n", " ").split("`")
    return "`".join(part if number % 2 else part.replace("|", "\\|") for number, part in enumerate(parts))


def code(text: object) -> str:
    """Inline code; nothing for nothing."""
    return f"`{text}`" if str(text) else ""


# ── The command line ──────────────────────────────────────────────────────────────────────────────────────────────────


def cli_page() -> str:
    from maskrl.cli import app

    top = typer.main.get_command(app)
    commands = list(_commands(top, "maskrl"))
    head = ["# Command line", "", "Made from the program: `maskrl COMMAND --help` prints the same.", ""]
    index = [
        table(("command", "what it does"), ((f"[`{path}`](#{_anchor(path)})", _first(one)) for path, one in commands))
    ]
    return "\n".join([*head, *index, *(_command(path, one) for path, one in commands)])


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None or (command.callback is not None and command.invoke_without_command and path != "maskrl"):
        yield path, command
    for name, one in (inner or {}).items():
        if not one.hidden:
            yield from _commands(one, path if name == "start" else f"{path} {name}")  # `maskrl sweep NAME` starts one


def _anchor(path: str) -> str:
    return path.replace(" ", "-")


def _first(command: Any) -> str:
    return _plain(command.help or "").split("\n\n")[0].replace("\n", " ")


def _plain(text: str) -> str:
    return inspect.cleandoc(text.replace("\b", "")).replace("[", "\\[")


def _command(path: str, command: Any) -> str:
    shown = [one for one in command.params if not getattr(one, "hidden", False) and "--help" not in one.opts]
    records = [_parameter(one) for one in shown]
    usage = [_usage(one) for one in shown if one.param_type_name == "argument"] + ["[OPTIONS]"]
    parts = [f"## `{path}` {{#{_anchor(path)}}}", "", *_prose(command.help or ""), "", "```text"]
    parts += [" ".join([path, *usage]), "```", ""]
    if records:
        parts += [table(("argument or option", "default", "what it does"), records)]
    parts += ["```sh", *command.examples, "```", "", *_prose(command.epilog or "")]
    return "\n".join([*parts, ""])


def _usage(one: Any) -> str:
    """An argument in a usage line."""
    return f"{_placeholder(one) if one.required else f'[{_placeholder(one)}]'}{'...' if one.nargs != 1 else ''}"


def _prose(text: str) -> Iterator[str]:
    """Paragraphs of a help text."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        yield from [paragraph.replace("[", "\\["), ""]


def _parameter(one: Any) -> tuple[str, str, str]:
    is_flag = getattr(one, "is_flag", False)
    names = _placeholder(one) if one.param_type_name == "argument" else ", ".join(one.opts)
    if one.param_type_name != "argument" and not is_flag:
        names += f" {_placeholder(one)}"
    default = "" if one.default is None or is_flag or callable(one.default) else one.default
    return code(names), code(default), " ".join((one.help or "").split())


def _placeholder(one: Any) -> str:
    """What stands for the value in a usage line."""
    choices = get_args(one.type_descriptor.annotation)
    return one.metavar or ("|".join(map(str, choices)) if choices else one.name.upper())


# ── Recipes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def recipes_page() -> str:
    from maskrl import recipes

    parts = [
        "# Recipes and their sources",
        "",
        "Made from the program. `maskrl recipes list`, `maskrl recipes list methods` and `maskrl recipes show RECIPE --why` print "
        "the same, for every recipe, profile and method. [Fidelity](fidelity.md) has the reasons behind every disagreement.",
        "",
        "## Names",
        "",
        "The paper's scores after 100,000 frames (DMControl) or 100,000 decisions (Atari).",
        "",
        table(("recipe", "paper: MLR", "paper: Baseline"), _names(recipes)),
        "Every other task of the DeepMind Control Suite and every other one-player game of the Arcade Learning Environment is "
        "known by its name, too.",
        "",
        "## Methods",
        "",
        table(("`--method`", "suite", "agent", "objective", "source"), _methods(recipes)),
    ]
    for name in ("dmcontrol/walker-walk", "atari/pong"):
        rows = [
            (code(path), code(recipes.schema.as_override(value)), source, conflict or "")
            for path, value, source, conflict in recipes.explain(recipes.find(name, "paper"))
        ]
        parts += ["", f"## Every value of {name}", "", "In the paper profile, with MLR.", ""]
        parts += [table(("path", "value", "source", "who disagrees"), rows)]
    return "\n".join(parts)


def _names(recipes: Any) -> Iterator[tuple[str, ...]]:
    for name in recipes.names():
        scores = []
        for method in ("mlr", "baseline"):
            recipe = recipes.find(name, "paper", method)
            found = recipes.published_for(recipe, recipe.frames)
            numbers = () if found is None else (found.mean, found.std or 0.0)
            scores.append(" ± ".join(f"{number:,.1f}".removesuffix(".0") for number in numbers) or "–")
        yield code(name), *scores


def _methods(recipes: Any) -> Iterator[tuple[str, ...]]:
    for name, method in recipes.METHODS.items():
        for suite, pair in method.pairs.items():
            halves = pair.agent or "the suite's own", pair.objective or "none"
            yield code(name), suite, *halves, method.source


# ── Fields ────────────────────────────────────────────────────────────────────────────────────────────────────────────


SECTIONS = ("env", "agent", "objective", "budget", "evaluation", "replay")  # of a recipe: each has its own table


def fields_page() -> str:
    from maskrl.envs import AnyEnv
    from maskrl.recipes import schema

    parts = [
        "# Recipe fields",
        "",
        "Made from the sources. Every field can be set by its path after a recipe's name, such as `objective.mask.ratio=0.3`. The "
        "default is the class's; `maskrl recipes show RECIPE --why` prints what a recipe has, and why.",
        "",
        *_fields_of("A recipe", "", schema.Recipe),
        *_fields_of("Budget", "budget", schema.Budget),
        *_fields_of("Evaluation", "evaluation", schema.Evaluation),
        *_fields_of("Replay", "replay", schema.ReplayConfig),
    ]
    for words, path, union in (
        ("Environment", "env", AnyEnv),
        ("Agent", "agent", schema.AnyAgent),
        ("Objective", "objective", schema.AnyObjective),
    ):
        for member in schema.members_of(union):
            parts += _fields_of(f"{words}: {member.__name__}", path, member)
    return "\n".join(parts)


def _fields_of(heading: str, path: str, config: Any) -> list[str]:
    rows = list(_rows(path, config))
    words = inspect.getdoc(config) or ""
    return [f"## {heading}", "", words.split("\n\n")[0], "", table(("path", "type", "default", "what it is"), rows)]


def _rows(path: str, config: Any) -> Iterator[tuple[str, ...]]:
    comments = _comments(config)
    for field in fields(config):
        here = f"{path}.{field.name}".lstrip(".")
        annotation, words = comments.get(field.name, ("", ""))
        if field.name in SECTIONS and not path:
            continue
        factory = field.default_factory
        if factory is not MISSING and path and is_dataclass(value := factory()):
            yield from _nested(here, value)
        else:
            yield code(here), code(annotation), code(_default(field)), words


def _nested(path: str, value: Any) -> Iterator[tuple[str, ...]]:
    """The fields of a config within a config, with the values that it has there."""
    comments = _comments(type(value))
    for field in fields(value):
        inner = getattr(value, field.name)
        annotation, words = comments.get(field.name, ("", ""))
        if is_dataclass(inner):
            yield from _nested(f"{path}.{field.name}", inner)
        else:
            yield code(f"{path}.{field.name}"), code(annotation), code(_shown(inner)), words


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        return "" if field.default_factory is MISSING else "see below"
    return _shown(field.default)


def _shown(value: object) -> str:
    from maskrl.recipes.schema import as_override

    return as_override(value)


def _comments(config: type) -> dict[str, tuple[str, str]]:
    """Field → its annotation and the comment beside or above it, bases included."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(config.__mro__):
        if is_dataclass(base):
            found |= _comments_in(textwrap.dedent(inspect.getsource(base)))
    return found


def _comments_in(source: str) -> dict[str, tuple[str, str]]:
    lines = {
        token.start[0]: (token.string.lstrip("# "), not token.line[: token.start[1]].strip())
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found: dict[str, tuple[str, str]] = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        words = [lines[line][0] for line in range(node.lineno, (node.end_lineno or 0) + 1) if line in lines]
        line = node.lineno - 1
        while line in lines and lines[line][1]:
            words.insert(0, lines[line][0])
            line -= 1
        found[node.target.id] = _type(ast.unparse(node.annotation)), " ".join(words)
    return found


def _type(annotation: str) -> str:
    """As a reader writes it: Literal['a', 'b'] is a | b."""
    return re.sub(r"Literal\[([^]]*)\]", lambda found: found[1].replace("'", "").replace(", ", " | "), annotation)


# ── Exit codes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def exit_codes_page() -> str:
    from maskrl.cli.exit_codes import EXIT_CODES

    return "\n".join(
        [
            "# Exit codes",
            "",
            "Of every `maskrl` command; made from the program.",
            "",
            table(("code", "meaning"), EXIT_CODES.items()),
            "`make` replaces any code but 0 by its own, and prints a line that names the real one.",
        ]
    )


PAGES = {
    "reference-cli.md": cli_page,
    "reference-recipes.md": recipes_page,
    "reference-fields.md": fields_page,
    "reference-exit-codes.md": exit_codes_page,
}
