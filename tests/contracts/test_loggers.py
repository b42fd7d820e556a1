"""What every logger must do. A new one is tested by being listed here."""

import importlib.util
import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from builders import Silent
from maskrl import Logger
from maskrl.clock import Clock
from maskrl.runs.directory import Run
from maskrl.runs.loggers import Loggers, TensorBoard, WandB
from maskrl.runs.signals import Stopped
from maskrl.runs.terminal import Terminal
from tiny_runs import tiny_rainbow, tiny_recipe, trained


class Own(Logger):
    """The least that a logger must have."""

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        pass


class Unrelated:
    """The same methods without the base class."""

    def write(self, points: Mapping[str, float], clock: Clock) -> None: ...
    def note(self, text: str, clock: Clock) -> None: ...
    def close(self) -> None: ...


class Picture(Terminal):
    """The terminal that draws."""

    name = "picture"

    def __init__(self, run: Run) -> None:
        super().__init__(run, Console(file=io.StringIO(), force_terminal=True))


LOGGERS: dict[str, Callable[[Run], Logger]] = {
    "lines": Terminal,
    "picture": Picture,
    "tensorboard": TensorBoard,
    "wandb": WandB,  # offline, see below
    "own": lambda _: Own(),
    "unrelated": lambda _: Unrelated(),
}
MISSING = [name for name in ("tensorboard", "wandb") if importlib.util.find_spec(name) is None]

each_logger = pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=pytest.mark.skipif(name in MISSING, reason=f"{name} is not installed"))
        for name, make in LOGGERS.items()
    ],
)


def all_loggers(run: Run) -> list[Logger]:
    """One of each that is installed: a run tells each of them the same, and names in a note each that fails."""
    return [make(run) for name, make in LOGGERS.items() if name not in MISSING]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


def strict(logger: Logger) -> Loggers:
    """A logger that fails fails the test."""
    return Loggers([logger], lambda text, _: pytest.fail(text))


START = Clock(0, 0, 0, 0.0)


def test_a_whole_run_is_taken_without_an_error(tmp_path: Path):
    run = Run.create(tmp_path, tiny_rainbow())
    trained(tmp_path, tiny_rainbow(), *all_loggers(run))
    assert list(run.events("note")) == []
    assert run.status == "done"


def test_a_run_that_is_stopped_and_continued_is_taken_without_an_error(tmp_path: Path):
    recipe = tiny_recipe()
    run = Run.create(tmp_path, recipe)
    with pytest.raises(Stopped):
        trained(tmp_path, recipe, *all_loggers(run), Silent(interrupt_at=97))
    trained(tmp_path, recipe, *all_loggers(run))
    assert list(run.events("note")) == []
    assert [event["frames"] for event in run.events("evaluation")] == [0, 50, 100, 150]


@each_logger
def test_no_points_unknown_points_and_what_is_no_number_are_taken(tmp_path: Path, make):
    loggers = strict(make(Run.create(tmp_path, tiny_recipe())))
    for points in ({}, {"a name of my own": 1.0}, {"critic/loss": float("nan")}, {"critic/q": float("inf")}, {"n": 3}):
        loggers.write(points, START)
    loggers.close()


@each_logger
def test_points_are_left_as_they_are(tmp_path: Path, make):
    logger, points = make(Run.create(tmp_path, tiny_recipe())), {"critic/loss": 0.5, "time/critic": 1.0}
    logger.write(points, START)
    logger.close()
    assert points == {"critic/loss": 0.5, "time/critic": 1.0}


@each_logger
def test_a_note_is_taken_at_any_time(tmp_path: Path, make):
    loggers = strict(make(Run.create(tmp_path, tiny_recipe())))
    loggers.note("Before anything, with [brackets] and ± signs.", START)
    loggers.write({}, START)
    loggers.note("Two\nlines.", replace(START, frames=10))
    loggers.close()


@each_logger
@pytest.mark.parametrize("writes", [0, 3])
def test_it_can_be_closed_twice_and_before_it_is_used(tmp_path: Path, make, writes: int):
    logger = make(Run.create(tmp_path, tiny_recipe()))
    for n in range(writes):
        logger.write({"critic/loss": 1.0}, Clock(n, n, n, float(n)))
    logger.close()
    logger.close()


@each_logger
def test_it_begins_again_at_a_later_or_an_earlier_clock(tmp_path: Path, make):
    run = Run.create(tmp_path, tiny_recipe())
    for begin in (0, 50, 100, 50):
        loggers = strict(make(run))
        for n in range(begin, begin + 20):
            loggers.write({"critic/loss": float(n)} if n % 5 == 0 else {}, Clock(n, n, n, float(n)))
        loggers.close()
