"""Arguments and options that the commands about many runs share."""

from typing import Annotated, Literal

import typer

from maskrl.cli.words import AsJson, ProfileOption

__all__ = ["AsJson", "Backend", "Grid", "Methods", "ProfileOption", "Seeds", "SweepName", "Tasks", "Workers"]

SWEEP_HELP = (
    "dmcontrol-100k, dmcontrol-500k, atari-100k, toy, ablations, ablations/STUDY (see `maskrl recipes list ablations`), a "
    "recipe such as dmcontrol/cheetah-run, or the page of a study such as studies/lite-dmcontrol."
)
GRID_HELP = (
    "Overrides for all runs that have the key. With several values, each is run: objective.mask.ratio=0.1,0.5. Separate values "
    "that contain commas by semicolons, 'objective.mask.cube=4,10,10;8,10,10', or give the key again. "
    "threads=N: torch's threads in every run (default in a sweep: 1)."
)
BACKEND_HELP = (
    "local: processes on this machine. ray: tasks on a Ray cluster. print: the commands, to run them yourself."
)

SweepName = Annotated[str, typer.Argument(metavar="NAME", help=SWEEP_HELP)]
Grid = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE,...", help=GRID_HELP)]
Backend = Annotated[Literal["local", "ray", "print"], typer.Option(help=BACKEND_HELP)]
Seeds = Annotated[
    int | None, typer.Option(metavar="N", max=10_000, help="Seeds 1 to N (default: as many as the paper has).")
]
Methods = Annotated[str | None, typer.Option(metavar="A,B", help="Methods, such as mlr,der (default: mlr,baseline).")]
Tasks = Annotated[str | None, typer.Option(metavar="A,B", help="Tasks of the suite (default: the paper's).")]
Workers = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=10_000, help="Runs at a time (default: what fits here).")
]
