"""The command line. Torch and modules that need it are imported inside the commands, so that `--help` is fast.

Exit codes: 0 done, 1 the run failed (a loss is not finite, an environment raised an error), 2 something that the user can fix,
129 a closed terminal, 130 Ctrl-C, 143 SIGTERM.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from maskrl import __version__
from maskrl.cli import (
    bench,
    check,
    doctor,
    export,
    licences,
    pictures,
    plan,
    play,
    recipes,
    report,
    representation,
    results,
    sweep,
    train,
)
from maskrl.cli.help import App
from maskrl.cli.words import Refusal, runnable, shown
from maskrl.files import EnvironmentFailedError, RunError

# Errors caused by paths from the command line.
UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EROFS)

LONGEST = 5000  # maximum characters of a refusal, which may repeat user input


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit code. Unexpected errors keep their traceback."""
    for name in ("stdout", "stderr"):  # None if the shell closed it: >&-
        setattr(sys, name, getattr(sys, name) or open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # an ASCII stream gets escapes for other characters
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError, ValueError):  # closed or redirected
                stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else arguments
    if any(map(_names_a_module, words)) and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # at the end: a file in this folder must not replace an installed package
    try:
        try:
            app([_as_path(word) for word in words], prog_name="maskrl")
        finally:
            sys.stdout.flush()  # an output that cannot be written fails here, not when the interpreter ends
    except (Refusal, RunError) as refusal:
        told = shown(runnable(str(refusal)))
        print(f"maskrl: {told if len(told) <= LONGEST else told[:LONGEST] + '…'}", file=sys.stderr)
        raise SystemExit(2) from None
    except EnvironmentFailedError as error:
        told = f"{shown(str(error))}\nCorrect the environment, then run the same command. `maskrl check ENV` plays it alone."
        print(f"maskrl: {runnable(told)}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EPIPE):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in its buffer
            if error.errno == errno.ENOSPC:
                print("maskrl: The output cannot be written: its disk is full. Write it elsewhere.", file=sys.stderr)
            raise SystemExit(1 if error.errno == errno.EPIPE else 2) from None
        if error.errno not in UNUSABLE:
            raise
        print(f"maskrl: {error.filename}: {error.strerror}.", file=sys.stderr)
        raise SystemExit(2) from None


def _names_a_module(word: str) -> bool:
    """Whether the user names a module to import, as in gym/my_package:MyEnv-v0. It may be in the current folder."""
    return (word.startswith("gym/") and ":" in word) or word.startswith("env.wrappers=")


def _as_path(word: str) -> str:
    """Turn the name of an existing file or folder that begins with one dash into a path, not an option."""
    is_path = word.startswith("-") and not word.startswith("--") and len(word) > 2 and os.path.lexists(word)
    return f"./{word}" if is_path else word


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


HELP = """Sample-efficient reinforcement learning from pixels, with Mask-based Latent Reconstruction (MLR).

`maskrl COMMAND --help` explains a command.

$ maskrl doctor
$ maskrl train first --video
$ maskrl recipes list
$ maskrl --install-completion
"""

app = App(
    help=HELP,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(options)
app.command()(train.train)
app.command()(train.extend)
app.command()(train.evaluate)
app.command()(export.export)
app.command()(check.check)
app.command()(play.play)
app.command()(representation.probe)
app.command()(representation.pretrain)
app.command()(pictures.masks)
app.command()(report.report)
app.command()(results.results)
app.command()(doctor.doctor)
app.command()(licences.licences)
app.add_typer(recipes.app, name="recipes")
app.add_typer(sweep.app, name="sweep")
app.command()(plan.plan)
app.add_typer(bench.app, name="bench")
