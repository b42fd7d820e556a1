"""`maskrl results`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from maskrl.cli.words import Force, command, refusing
from maskrl.words import count


def results(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS", help="Run directories, and folders of them.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write scores.csv, probes.csv and about.json.")],
    add: Annotated[bool, typer.Option("--add", help="Keep the runs that DIR has already.")] = False,
    force: Force = False,
) -> None:
    """Write the scores of finished runs as small files. Keep them in a repository; `maskrl report DIR` reads them.

    $ maskrl results sweeps/toy --out results/toy
    $ maskrl results sweeps/more --out results/toy --add
    """
    from maskrl.analysis.results import ResultsError, publish
    from maskrl.outputs import OutputError
    from maskrl.runs.directory import RunError
    from maskrl.studies.sweep import SweepError, read_manifest

    with refusing(ResultsError, RunError, SweepError, OutputError, OSError):
        sweeps = [read_manifest(path)[0]["sweep"] for path in runs if (path / "sweep.json").is_file()]
        commands = [shlex.join(["maskrl", "sweep", sweep]) for sweep in sweeps]
        done, unfinished = publish(runs, out, commands=commands, add=add, force=force)
    for line in unfinished:
        print(f"{line}: left out.")
    print(f"{count(done, 'run')} in {out}. Next: {command('report', str(out))}")
