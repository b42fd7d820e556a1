"""Plain English: rules for the sentences of the sources, documents and notebooks. `make lint` checks the spelling of files."""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "studies").glob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")),
]
REGISTERED = ("how much of its gain can be had for less?",)  # in a study: what was registered stays as it is


class Rule(NamedTuple):
    """What to avoid, what to write, and a sentence of each kind."""

    pattern: str
    instead: str
    bad: str
    good: str


RULES = [
    Rule(r"\bso many\b", "this many, n", "At most so many letters.", "At most n letters."),
    Rule(
        r"(?:^|[.,;:(] |\bor )[Ee]lse\b",
        "otherwise",
        "MUJOCO_GL if it is set, else egl.",
        "It takes no lock, or anything else.",
    ),
    Rule(
        r"(?i)\b(?:whoever|whomever|somebody|nobody|anybody|everybody)\b",
        "the user, the caller, another process, the passive",
        "Whoever trains it holds the lock.",
        "The process that trains it holds the lock.",
    ),
    Rule(
        r"(?:^|[.] )(?:With|In|By|Of|From|To|Under|On) (?:what|which|whom)\b",
        "begin with the noun: the unit of …, the versions of …",
        "In which unit the tables count.",
        "The unit of the tables. A run in which nothing changed.",
    ),
    Rule(
        r"(?:^|[.;,] )(?:[Nn]or|Never|Only then|Such) (?:is|are|does|do|has|have|can|must|was|did|will)\b",
        "subject first: it does not …, either",
        "It has no lock, nor does it need one.",
        "It has neither a lock nor a log.",
    ),
    Rule(
        r"\b[Ww]hat (?:(?!\b(?:and|or|but|if)\b)[^.;:,()`|]){1,60}? "
        r"(?:is|are) (?:what|told|said|left|shown|counted|refused|known|drawn)\b",
        "name the thing: lost frames are left out",
        "What is damaged is left out.",
        "Damaged frames are left out. It says what was seen.",
    ),
    Rule(
        r"(?<!there )(?<!There )\b(?:is|are|was|were) no (?!longer\b|more\b|other\b|better\b)[a-z]",
        "is not a …",
        "A count of episodes is no curve.",
        "A count is not a curve. There is no lock, and it is no longer needed.",
    ),
    Rule(r"\bone's own\b", "your own, a user's", "A config of one's own.", "Your own config."),
    Rule(
        r"\b(?:heed(?:s|ed)?|hiccups?|in a hurry|puts? (?:it )?right|front door|liv(?:e|es|ed|ing) through|many a (?!run)\w+|"
        r"without a word|heard of|h(?:e|o)ld (?:it )?against|can(?:not)? be had|all the same[,.]|sittings?|come to be|"
        r"by the way|so to speak|tells? (?:of|nothing))\b",
        "the plain verb: obeys, fixes, replays, compares with",
        "An update that heeds the flag.",
        "An update that checks the flag.",
    ),
]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of docstrings, comments and messages in the text of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, " ".join(node.value.split())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a document outside code."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        is_code ^= line.lstrip().startswith("```")
        if not is_code:
            yield number, re.sub(r"`[^`]*`|\"[^\"]*\"", "`code`", line).lstrip("-*| ")


def found(text: str) -> list[Rule]:
    return [rule for rule in RULES if re.search(rule.pattern, text)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.bad)
def test_a_rule_finds_what_it_forbids_and_lets_plain_words_pass(rule: Rule):
    assert rule in found(rule.bad)
    assert found(rule.good) == []


@pytest.mark.parametrize(
    "package", sorted(path.name for path in (ROOT / "src" / "maskrl").iterdir() if path.name != "__pycache__")
)
def test_the_sources_are_written_plainly(package: str):
    home = ROOT / "src" / "maskrl" / package
    problems = [
        f"{path.relative_to(ROOT)}:{number}: {text}\n  instead: {rule.instead}"
        for path in (sorted(home.rglob("*.py")) if home.is_dir() else [home] if home.suffix == ".py" else [])
        for number, text in prose(path.read_text(encoding="utf-8"))
        for rule in found(text)
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "script", sorted((*(ROOT / "examples").glob("*.py"), *(ROOT / "tools").glob("*.py"))), ids=lambda path: path.name
)
def test_examples_and_tools_are_written_plainly(script: Path):
    problems = [
        f"{script.name}:{number}: {text}\n  instead: {rule.instead}"
        for number, text in prose(script.read_text(encoding="utf-8"))
        for rule in found(text)
    ]
    assert not problems, "\n".join(problems)


PAGES = sorted((ROOT / "src" / "maskrl").rglob("page/*.*"))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_pages_of_reports_are_written_plainly(page: Path):
    """Texts between tags, in attributes, in strings of JavaScript and in comments, a line at a time."""
    problems = [
        f"{page.name}:{number}: {text}\n  instead: {rule.instead}"
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
        for text in re.split(r"<[^>]*>|[\"'`]|//|/\*|\*/", line)
        for rule in found(re.sub(r"\b(?:if|else)\b.*[=({;].*", "", text.strip()))  # code
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_documents_are_written_plainly(document: Path):
    problems = [
        f"{document.name}:{number}: {text}\n  instead: {rule.instead}"
        for number, text in sentences(document.read_text(encoding="utf-8"))
        if not text.endswith(REGISTERED)
        for rule in found(text)
    ]
    assert not problems, "\n".join(problems)


NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(notebook: Path) -> Iterator[tuple[str, str]]:
    """The kind and the text of every cell, without its output."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        yield cell["cell_type"], "".join(cell["source"])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_are_written_plainly(notebook: Path):
    problems = [
        f"{notebook.name}, cell {at}: {text}\n  instead: {rule.instead}"
        for at, (kind, source) in enumerate(cells(notebook), start=1)
        for _, text in (sentences if kind == "markdown" else prose)(source)
        for rule in found(text)
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_are_spelled_correctly(notebook: Path):
    """Only their cells: a picture in an output is letters, too, and would be full of mistakes."""
    text = "\n".join(source for _, source in cells(notebook))
    assert "maskrl" in text
    command = [sys.executable, "-m", "codespell_lib", "-"]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
