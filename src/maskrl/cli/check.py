"""`maskrl check`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from maskrl.cli.words import AsJson, Force, Overrides, command, console, refusing, table

NAME_HELP = "gym/CarRacing-v3, gym/my_package:MyEnv-v0 or my_env.py:make_env; or any other recipe."


def check(
    env: Annotated[str, typer.Argument(metavar="ENV", help=NAME_HELP)],
    overrides: Overrides = None,
    sheet: Annotated[Path | None, typer.Option(metavar="FILE", help="Where the pictures go: a .png file.")] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=10**6, help="Seconds to wait for an answer.")
    ] = 60.0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Check your environment with random actions. Lists what to fix; it plays in a separate process.

    $ maskrl check gym/CarRacing-v3 --sheet sheet.png
    $ maskrl check my_env.py:make_env
    """
    from maskrl.envs.base import require_extra
    from maskrl.outputs import SHEET, OutputError, require_output
    from maskrl.runs.check import check_env, contact_sheet

    with refusing(OutputError, ModuleNotFoundError, OSError):
        if sheet is not None:
            require_extra("PIL", "video")
            require_output(sheet, SHEET, force=force)
    recipe, sample, found = check_env(env, *(overrides or ()), timeout=timeout)
    bad = any(finding.verdict == "bad" for finding in found)
    if sheet is not None and recipe is not None and sample is not None:
        with refusing(OSError, ValueError):
            sheet.parent.mkdir(parents=True, exist_ok=True)
            contact_sheet(recipe, sample, sheet)
    if as_json:
        print(json.dumps({"env": env, "usable": not bad, "findings": [finding._asdict() for finding in found]}))
        raise typer.Exit(1 if bad else 0)
    marks = {"good": "✓", "look": "!", "bad": "✗"}
    rows = [(marks[finding.verdict], finding.what, finding.seen, finding.fix) for finding in found]
    console().print(table(("", "", "seen", "what to do"), rows, left=2, folds=("seen", "what to do")))
    if sheet is not None and sample is not None:
        print(f"\nPictures, the network's frames, and the mask: {sheet}")
    elif sample is not None:
        print(f"\nTo see the network's frames: {command('check', env, *(overrides or ()), sheet='sheet.png')}")
    raise typer.Exit(1 if bad else 0)
