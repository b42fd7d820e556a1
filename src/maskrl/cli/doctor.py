"""`maskrl doctor`."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskrl import __version__
from maskrl.cli.words import AsJson

if TYPE_CHECKING:
    from rich.console import Console

    from maskrl.doctor import Check

STYLES = {"ok": "green", "warning": "yellow", "missing": "dim", "failed": "bold red"}
WORDS = {"ready": "would train", "missing": "is not installed", "broken": "would not train: see "}


def doctor(
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="The directory for runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Check whether this machine can train, and list what to fix. Exit code 2 if it cannot.

    $ maskrl doctor
    $ maskrl doctor --json
    """
    from rich.console import Console

    from maskrl.doctor import examine, verdict, works

    checks = list(examine(run_dir)) if as_json else show(examine(run_dir), Console())
    if as_json:
        print(json.dumps(as_dict(checks), indent=2))
    if not works(verdict(checks)):
        raise typer.Exit(2)


def as_dict(checks: Sequence["Check"]) -> dict[str, Any]:
    """The checks as plain values, always with the same keys."""
    from maskrl.doctor import verdict, works

    families, rows = verdict(checks), [asdict(check) for check in checks]
    judged = {family: it._asdict() for family, it in families.items()}
    return {"maskrl": __version__, "works": works(families), "families": judged, "checks": rows}


def show(checks: Iterable["Check"], console: "Console") -> list["Check"]:
    """Print each check when it is done, with the command that fixes it on a separate line, then the families that would train."""
    from rich.markup import escape

    from maskrl.doctor import verdict

    done: list[Check] = []
    for check in checks:
        done.append(check)
        state = f"[{STYLES[check.state]}]{check.state:<9}[/]"
        console.print(f"{check.name:<15}{state}{escape(check.found)}", highlight=False, soft_wrap=True)
        if check.fix:
            console.print(f"{'':15}{'do':<9}{check.fix}", markup=False, highlight=False, soft_wrap=True)
    console.print("\nRecipes:")
    for family, judged in verdict(done).items():
        see = ", ".join(judged.because) if judged.state == "broken" else ""
        console.print(f"  {family:<13}{WORDS[judged.state]}{see}", highlight=False, soft_wrap=True)
    return done
