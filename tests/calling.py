"""The command line in this process."""

import contextlib
import io
import signal
from collections.abc import Iterator
from typing import Any

import typer

from maskrl import cli


def commands() -> dict[str, Any]:
    """Every command of the command line's own table, by its name, such as "sweep status"."""

    def below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        for each in inner or ():
            yield from below(inner[each], f"{name} {each}".strip())

    return dict(below(typer.main.get_command(cli.app), ""))


def called(words: list[str], seconds: float = 60.0) -> tuple[int, str]:
    """The exit code of a command in this process, and what it printed. It must not hang."""

    def ring(*_: object) -> None:
        raise AssertionError(f"{words} hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            cli.main(words)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return code, printed.getvalue()
