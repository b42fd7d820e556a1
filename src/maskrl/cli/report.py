"""`maskrl report`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from maskrl.cli.words import Force, Refusal, refusing, shown
from maskrl.words import count

if TYPE_CHECKING:
    from maskrl.report.document import Report


RUNS_HELP = "Run directories, published results, folders of them, and CSV files: method, task, seed, frames or decisions, score."
AT_HELP = "Take scores at this time (frames; on Atari decisions), not at the end."


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUNS", help=RUNS_HELP),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the page.")] = Path("report.html"),
    against: Annotated[
        Literal["published", "none"], typer.Option(help="Put the paper's numbers beside yours, or nothing.")
    ] = "published",
    at: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=10**15,
            help=AT_HELP,
        ),
    ] = None,
    mixed: Annotated[
        bool,
        typer.Option("--mixed", help="Average runs of different protocols together, not in separate sections."),
    ] = False,
    tables: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write every table there as Markdown, LaTeX and CSV.")
    ] = None,
    force: Force = False,
) -> None:
    """Write one HTML page with the scores of runs beside the paper's. The page needs no server and no network.

    $ maskrl report runs
    $ maskrl report sweeps/toy --out toy.html --tables tables
    $ maskrl report runs results.csv --against none --at 50000
    """
    from maskrl.analysis.scores import ScoresError
    from maskrl.files import write_whole
    from maskrl.outputs import REPORT, OutputError, require_output
    from maskrl.report import report as gather
    from maskrl.report.exports import write
    from maskrl.report.page import render

    missing = [str(path) for path in runs or () if not path.exists()]
    if not runs or missing:
        seen = f"{', '.join(missing)} does not exist" if missing else "No runs were named"
        raise Refusal(f"{seen}. Name run directories, the folder of a sweep, or a CSV file.")
    if out.is_dir():
        raise Refusal(f"--out {out} is a folder: name a file, such as {out / 'report.html'}.")
    with refusing(ScoresError, OutputError, ModuleNotFoundError, OSError):
        require_output(out, REPORT, force=force)
        out.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(out.parent, os.W_OK):  # check before reading all runs
            raise Refusal(f"Cannot write to {out.parent}. Choose another --out.")
        page = gather(runs, against=against, at=at, mixed=mixed)
        write_whole(out, render(page))
        written = write(page.tables, tables, force=force) if tables is not None else []
    _tell(page)
    _print(f"\nThe page: {out} ({out.stat().st_size / 1e6:.1f} MB). Open it in a browser.")
    if tables is not None:
        _print(f"Tables: {count(len(written), 'file')} in {tables}.")


def _print(text: str) -> None:
    """Print, with control characters and invalid bytes of names escaped."""
    print(shown(text))


def _tell(page: "Report") -> None:
    """Print a short version of the page."""
    _print(f"{page.title}: {', '.join(f'{number} {what}' for number, what in page.facts)}")
    for group in page.headline:
        _print(f"\n{group.title}" if group.title else "")
        for line in group.lines:
            _print(f"  {line.text}")
    if page.problems:
        _print(f"\n{count(len(page.problems), 'problem')}:")
        for problem in page.problems[:10]:
            _print("  " + problem.replace("\n", "\n    "))
        if len(page.problems) > 10:
            _print(f"  … and {len(page.problems) - 10:,} more: the page has them all, under Gaps.")
