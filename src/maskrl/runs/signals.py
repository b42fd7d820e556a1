"""Stop a run by a signal, or by an event from another thread. Its state is saved first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(Exception):  # noqa: N818, it is not an error
    """The run was stopped and its state saved; the same call continues it."""

    def __init__(self, signal_number: int | None, *, saved: bool = True) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number  # None: stopped by an event
        self.saved = saved  # False: its environment did not answer, so the run will continue from an earlier checkpoint


class InterruptedEvaluation(BaseException):
    """An evaluation was interrupted to stop the run; the next session repeats it. Not an error, like KeyboardInterrupt."""


class Stop(list[int]):
    """The signals received so far. True once there is one, or once the event is set."""

    def __init__(self, event: threading.Event | None = None) -> None:
        super().__init__()
        self._event = event

    def __bool__(self) -> bool:
        return len(self) > 0 or (self._event is not None and self._event.is_set())

    @property
    def signal_number(self) -> int | None:
        return self[0] if len(self) else None


@contextmanager
def stopping(event: threading.Event | None = None) -> Iterator[Stop]:
    """Stop the run between two decisions on a signal or when the event is set.

    Signals are Ctrl-C, SIGTERM from a scheduler, and SIGHUP from a closed terminal, unless `nohup` ignores it. Python delivers
    them to the main thread only; in other threads only the event works. A second Ctrl-C exits without saving.
    """
    stop = Stop(event)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def heed(number: int, _: object) -> None:
        if len(stop) and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.append(number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heeded = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, heed) for number in heeded}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
