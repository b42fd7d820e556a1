"""The command line. Torch and all that needs it is imported inside the commands, so that `--help` answers at once.

Exit codes: 0 done, 1 the run failed (a loss is not finite, an environment raised an error), 2 something its user can put right,
129 a closed terminal, 130 Ctrl-C, 143 SIGTERM.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from maskrl import __version__
from maskrl.cli import bench, doctor, pictures, plan, recipes, report, representation, sweep, train
from maskrl.cli.words import Refusal
from maskrl.files import RunError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit code. Unexpected errors keep their traceback."""
    try:
        app(None if arguments is None else list(arguments), prog_name="maskrl")
    except (Refusal, RunError) as refusal:
        print(f"maskrl: {refusal}", file=sys.stderr)
        raise SystemExit(2) from None


def _print_version(asked: bool) -> None:
    if asked:
        print(f"maskrl {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


app = typer.Typer(
    help="Sample-efficient reinforcement learning from pixels by Mask-based Latent Reconstruction (MLR).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(options)
app.command()(train.train)
app.command()(train.evaluate)
app.command()(representation.probe)
app.command()(representation.pretrain)
app.command()(pictures.masks)
app.command()(report.report)
app.command()(doctor.doctor)
app.add_typer(recipes.app, name="recipes")
app.add_typer(sweep.app, name="sweep")
app.command()(plan.plan)
app.add_typer(bench.app, name="bench")
