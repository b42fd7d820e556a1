"""Links, paths, commands, options, recipes and overrides of the pages exist; Python blocks run; the site builds strictly."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from maskrl import cli, recipes

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
docs_pages = pytest.importorskip("docs_pages", reason="the site needs Python 3.11 and the extra docs")

PAGES = sorted((ROOT / "docs").glob("*.md"))
OWN = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
DOCUMENTS = [*PAGES, *OWN[:3]]  # the changelog also names what is gone
GENERATED = {*docs_pages.PAGES, *docs_pages.OWN}

BLOCK = re.compile(r"(<!-- not run: [^>]+-->\n+)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def blocks(document: Path, language: str) -> list[tuple[bool, str]]:
    """Whether it is marked as not run, and the code."""
    return [(bool(mark), code) for mark, found, code in BLOCK.findall(document.read_text()) if found == language]


def spans(document: Path) -> list[str]:
    """Inline code, joined where it runs over a line's end."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", BLOCK.sub("", document.read_text()))]


WITH_PYTHON = [page for page in PAGES if any(not marked for marked, _ in blocks(page, "python"))]
TRAINS = ("train(", "run_cost")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.name,
            marks=[pytest.mark.slow] if any(word in page.read_text() for word in TRAINS) else [],
        )
        for page in WITH_PYTHON
    ],
)
def test_the_python_blocks_of_a_page_run_one_after_the_other(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    for marked, code in blocks(page, "python"):
        if not marked:
            exec(compile(code, page.name, "exec"), known)


@each_document
def test_every_block_of_code_is_run_or_marked_with_why_not(document: Path):
    """sh: tests/test_shell.py. sweep: a study, which `maskrl plan` reads. Blocks without a language are output."""
    run = {"sh", "sweep", ""} | ({"python"} if document in PAGES or document.name == "README.md" else set())
    unknown = [
        language for mark, language, _ in BLOCK.findall(document.read_text()) if not mark and language not in run
    ]
    assert unknown == []


@each_document
def test_every_link_leads_to_a_file_or_to_a_page_of_the_site(document: Path):
    for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", BLOCK.sub("", document.read_text())):
        there = (document.parent / link).exists() or (document in PAGES and link in GENERATED)
        assert there, f"{document.name} links to {link}"


FOLDERS = ("src", "tests", "examples", "tools", "fuzz", "docs", "studies", "results", ".ci")
FILES = re.compile(rf"(?:^|(?<=[\s=]))(?:\./)?((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*\w)")


@each_document
def test_every_path_of_the_project_exists(document: Path):
    """In sentences and shell blocks. The folder that a command writes, after --out, need not be there."""
    lines = [line for _, block in blocks(document, "sh") for line in block.splitlines()]
    for text in [*spans(document), *lines]:
        for path in FILES.findall(re.sub(r"--out[ =]\S+", "", text)):
            study = path.startswith("studies/") and (ROOT / f"{path}.md").exists()  # the name in a command
            assert study or (ROOT / path).exists() or "NAME" in path, f"{document.name} names {path}"


def commands(document: Path) -> Iterator[list[str]]:
    """The words of every `maskrl …`, in blocks, sentences and marks of figures; placeholders such as [agent.…] left out."""
    lines = [line for _, block in blocks(document, "sh") for line in block.splitlines()]
    figures = re.findall(r"<!-- figure: (.+?) -->", document.read_text())
    for text in [*lines, *spans(document), *figures]:
        found = re.search(r"(?:^|\s)maskrl ((?:[a-z]|--).*)", text)
        if found and not text.lstrip().startswith(("#", "from ", "import ", "pip ")):
            line = re.split(r"\s[#>|&]|\$\(|\[|…", found[1])[0]
            yield shlex.split(line.rstrip("\\ "))


def found_command(words: list[str]) -> tuple[Any, list[str]]:
    """The command of ours that the words call, and its arguments."""
    command = typer.main.get_command(cli.app)
    while inner := getattr(command, "commands", None):
        if words and words[0] in inner:
            command, words = inner[words[0]], words[1:]
        elif "start" in inner:  # `maskrl sweep NAME`
            command = inner["start"]
        else:
            break
    return command, words


@each_document
def test_every_command_exists_with_its_options(document: Path):
    for words in commands(document):
        command, arguments = found_command(words)
        known = {"--help", "-h", *(name for one in command.params for name in (*one.opts, *one.secondary_opts))}
        asked = {word.partition("=")[0] for word in arguments if re.match(r"--[a-z]", word)}
        is_known = words[0].startswith("--") or words[0] in typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
        assert is_known, f"{document.name}: maskrl {' '.join(words)}"
        assert asked <= known, f"{document.name}: maskrl {' '.join(words)}"


NAMED = re.compile(r"(dmcontrol|atari|toy)/\S+")
HALVES = ("profile", "method", "agent", "objective")


@each_document
def test_every_recipe_can_be_had_with_the_overrides_beside_it(document: Path):
    for words in commands(document):
        if words[0] not in ("train", "recipes", "bench", "masks", "check") or not any(
            NAMED.fullmatch(word) for word in words
        ):
            continue
        name = next(word for word in words if NAMED.fullmatch(word))
        options = {word[2:]: words[at + 1] for at, word in enumerate(words[:-1]) if word[2:] in HALVES}
        overrides = [word for word in words if re.match(r"[a-z_.]+=[^$]*$", word)]
        if "NAME" not in options.values() and "RECIPE" not in words:
            recipes.resolve(name, overrides, **options)  # type: ignore[arg-type]


MEASURED = re.compile(r"(?<![\w.,])\d[\d,.]*\s?(?:ms|s|min|[KMG]B|[GT]FLOP|%|(?:decisions|frames)/s)(?![\w/])")
COMMAND = re.compile(
    r"(?:`|<!-- figure: |<!-- evidence: |^)(?:\S*bin/)?(?:maskrl|make|pytest|python|grep) ", re.MULTILINE
)
LIMITS = {"## Promises", "### Hangs"}  # values that we chose, not figures that we measured


@each_document
def test_figures_stand_beside_the_command_that_prints_them(document: Path):
    """Two numbers with a unit make a section one of figures."""
    for section in re.split(r"^(?=#+ )", document.read_text(), flags=re.MULTILINE):
        heading = section.split("\n")[0]
        figures = MEASURED.findall(section)
        named = len(figures) < 2 or heading in LIMITS or COMMAND.search(section)
        assert named, f"{document.name}, {heading}: {figures} without a command that prints them"


NUMBER = re.compile(r"[-+−]?\d[\d., ]*\s?(?:×|%|ms|s|k|[kMG]B|GFLOP)?(?: \([^)]*\))?")
SETTINGS = {"## Letters"}  # tables of values that the sources chose; so are those of the fidelity pages


@each_document
def test_tables_of_numbers_stand_beside_the_command_or_the_code_that_prints_them(document: Path):
    """Scores have no unit, so the test above does not see them."""
    for section in re.split(r"^(?=#+ )", document.read_text(), flags=re.MULTILINE):
        heading = section.split("\n")[0]
        rows = [line for line in section.splitlines() if line.startswith("|")]
        numbers = [cell for row in rows for cell in row.strip("|").split("|") if NUMBER.fullmatch(cell.strip())]
        is_chosen = heading in SETTINGS or document.name.startswith("fidelity-")
        named = is_chosen or len(numbers) < 4 or COMMAND.search(section) or "print(" in section
        assert named, f"{document.name}, {heading}: {numbers} without a command that prints them"


def field_paths() -> set[str]:
    return set(re.findall(r"^\| `([\w.]+)`", docs_pages.fields_page(), flags=re.MULTILINE))


def test_every_field_that_a_page_names_exists():
    known = field_paths()
    inner = {path.replace("objective.", f"objective.{place}.", 1) for path in known for place in ("first", "second")}
    named = {
        (document.name, path)
        for document in DOCUMENTS
        for span in spans(document)
        for path in re.findall(r"^((?:agent|objective|env|budget|evaluation|replay)\.[a-z_.]*[a-z_])(?:=|$)", span)
    }
    sections = {path.rpartition(".")[0] for path in known}
    assert {
        one for one in named if one[1] not in known | inner | sections and not one[1].startswith("env.kwargs.")
    } == set()


@each_document
def test_comments_beside_code_fit_into_the_column_of_the_site(document: Path):
    """A long line scrolls; a comment beside it would be cut off unseen."""
    code = [block for language in ("sh", "python") for _, block in blocks(document, language)]
    long = [line for block in code for line in block.splitlines() if len(line) > 88]
    assert [line for line in long if re.search(r"\s# ", line)] == []


NOT_PUBLISHED = re.compile(r"pip install \S*maskrl\b")


@each_document
def test_maskrl_is_installed_from_a_clone(document: Path):
    """`pip install maskrl` asks a package index, which knows nothing of this clone."""
    assert NOT_PUBLISHED.findall(document.read_text()) == []


@each_document
def test_every_make_target_exists(document: Path):
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    text = [*spans(document), *(line for _, block in blocks(document, "sh") for line in block.splitlines())]
    asked = {found[1] for line in text if (found := re.match(r"make ([a-z-]+)", line))}
    assert asked <= set(targets)


def test_the_changelog_lists_breaking_new_fixed_and_performance_in_this_order():
    versions = re.split(r"^## ", OWN[3].read_text(), flags=re.MULTILINE)[1:]
    assert versions
    for version in versions:
        headings = re.findall(r"^### (.*)$", version, flags=re.MULTILINE)
        assert headings == [kind for kind in ("Breaking", "New", "Fixed", "Performance") if kind in headings]


def test_every_public_name_is_in_the_reference():
    import maskrl

    written = "\n".join(page.read_text() for page in PAGES if page.name.startswith("api"))
    missing = [
        name for name in maskrl.__all__ if not re.search(rf"^::: maskrl\.[\w.]+\.{name}$", written, re.MULTILINE)
    ]
    assert not missing


def test_every_exit_code_in_the_sources_is_in_the_reference():
    from maskrl.cli.exit_codes import EXIT_CODES

    sources = "\n".join(path.read_text() for path in (ROOT / "src" / "maskrl" / "cli").glob("*.py"))
    used = {int(code) for code in re.findall(r"(?:typer\.Exit|SystemExit)\((\d+)\)", sources)}
    assert used <= set(EXIT_CODES)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path):
    """Dead links, dead anchors and pages outside the navigation are warnings."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    built = "\n".join(page.read_text() for page in (tmp_path / "site").glob("*.html"))
    assert not re.findall(
        r"<(?:script|link|img)[^>]+(?:src|href)=\"?https?://[^\" >]+", built
    )  # nothing from the network
