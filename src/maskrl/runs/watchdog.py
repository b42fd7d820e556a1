"""Warn if an environment in this process hangs, and end the process if a signal arrives meanwhile.

An environment in a separate process is killed and restored (see envs/subprocess.py). For one in this process that is impossible:
the main thread waits until it returns. So another thread watches it. If the simulator holds Python's global lock, that thread does
not run, and only SIGKILL ends the process. In both cases the run continues from its newest checkpoint.
"""

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from maskrl.runs.directory import Run

LOOK = 0.5  # seconds between two checks
GRACE = 3.0  # seconds that an environment has to answer after a signal


class Waits(Protocol):
    """An object that waits for environments: the world, and the players of an evaluation."""

    waiting: float | None  # time.monotonic() since which it waits; None: it does not wait


@contextmanager
def watchdog(run: Run, waiters: Sequence[Waits], timeout: float) -> Iterator[None]:
    """Watch environments within the context, which must be in the main thread to get signals."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    in_main = threading.current_thread() is threading.main_thread()
    # The wake-up descriptor reports a signal at once; Python's handlers wait until the environment returns.
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False) if in_main else -1
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(run, waiters, timeout, ours, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        if in_main:
            signal.set_wakeup_fd(before)
        ended.set()
        theirs.send(b"\0")  # wakes the thread
        thread.join()
        ours.close()
        theirs.close()


def _watch(run: Run, waiters: Sequence[Waits], timeout: float, pipe: socket.socket, ended: threading.Event) -> None:
    asked: tuple[int, float] | None = None  # the first signal, and when it came
    said = False
    while not ended.is_set():
        if select.select([pipe], [], [], LOOK)[0]:
            numbers = [number for number in pipe.recv(4096) if number in _stopping_signals()]
            asked = asked or ((numbers[0], time.monotonic()) if numbers else None)
        since, now = min((one.waiting for one in waiters if one.waiting is not None), default=None), time.monotonic()
        if since is None:
            continue
        if asked is not None and now - max(since, asked[1]) > GRACE and not ended.is_set():
            _leave(run, asked[0])
        if now - since > timeout and not said:
            said = True
            _say(
                f"maskrl: the environment has not answered for {timeout:g} seconds (env.timeout). Stop the run with Ctrl-C or "
                "SIGTERM, and continue it with the same command. overlap=true or another env.timeout puts the "
                "environment into a separate process, which is killed and restored when it hangs."
            )


def _leave(run: Run, number: int) -> None:
    """End the process at once; the main thread cannot run."""
    with suppress(Exception):
        run.set_status("stopped")
    _say(
        f"\nmaskrl: stopped by {signal.Signals(number).name} without saving: the environment did not answer. The same command "
        "continues from the newest checkpoint."
    )
    os._exit(128 + number)


def _say(text: str) -> None:
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _stopping_signals() -> list[int]:
    """The signals that stop a run, as far as this system has them."""
    return [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
