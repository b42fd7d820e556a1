"""`maskrl doctor`."""

import json
from pathlib import Path
from typing import Annotated

import typer


def doctor(
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where runs are to live.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for a bug report.")] = False,
) -> None:
    """Check this machine: versions, OpenGL, games, torch, memory, disk. Exit code 2 if `train` would not work."""
    from rich.console import Console

    from maskrl import doctor as examination

    checks = examination.examine(run_dir)
    done = list(checks) if as_json else examination.show(checks, Console())
    if as_json:
        print(json.dumps(examination.as_dict(done), indent=2))
    if not examination.verdict(done).works:
        raise typer.Exit(2)
