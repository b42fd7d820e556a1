"""The command line in this process."""

import contextlib
import io
import signal

from maskrl import cli


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
