"""`maskrl doctor`."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskrl import __version__
from maskrl.cli.words import AsJson, table

if TYPE_CHECKING:
    from rich.console import Console

    from maskrl.doctor import Check

STYLES = {"ok": "green", "warning": "yellow", "missing": "dim", "failed": "bold red"}
WORDS = {"ready": "would train", "missing": "is not installed", "broken": "would not train: see "}


def doctor(
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where runs are to live.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Check this machine: versions, OpenGL, games, torch, memory, disk. Exit code 2 if `train` would not work."""
    from rich.console import Console

    from maskrl.doctor import examine, verdict, works

    checks = list(examine(run_dir)) if as_json else show(examine(run_dir), Console())
    if as_json:
        print(json.dumps(as_dict(checks), indent=2))
    if not works(verdict(checks)):
        raise typer.Exit(2)


def as_dict(checks: "Sequence[Check]") -> dict[str, Any]:
    """Plain values, always with the same keys."""
    from maskrl.doctor import verdict, works

    families, rows = verdict(checks), [asdict(check) for check in checks]
    judged = {family: it._asdict() for family, it in families.items()}
    return {"maskrl": __version__, "works": works(families), "families": judged, "checks": rows}


def show(checks: "Iterable[Check]", console: "Console") -> "list[Check]":
    """A table that grows as the checks are made; then the commands, each on a line of its own that can be copied."""
    from rich.live import Live
    from rich.markup import escape

    from maskrl.doctor import verdict

    made = table(("check", "state", "found"), left=3, folds=("found",))
    done: list[Check] = []
    with Live(made, console=console, transient=True):
        for check in checks:
            done.append(check)
            made.add_row(check.name, f"[{STYLES[check.state]}]{check.state}[/]", escape(check.found))
    console.print(made)

    def listed(heading: str, rows: dict[str, str]) -> None:
        lines = ["", f"{heading}:", *(f"  {name:<17}{words}" for name, words in rows.items())]
        if rows:
            console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)

    for heading, states in (("To put right", ("failed", "warning")), ("To add, if you want it", ("missing",))):
        listed(heading, {check.name: check.fix for check in done if check.fix and check.state in states})
    judged = verdict(done).items()
    see = {family: ", ".join(it.because) if it.state == "broken" else "" for family, it in judged}
    listed("Recipes", {family: WORDS[it.state] + see[family] for family, it in judged})
    return done
