import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from maskrl import Logger
from maskrl.clock import Clock
from maskrl.recipes.schema import Budget
from maskrl.runs.directory import Run
from maskrl.runs.loggers import Loggers, Speed, TensorBoard, WandB, choose_loggers
from tiny_runs import events, tiny_rainbow, tiny_recipe, trained


def clock(decisions: int, seconds: float, *, updates: int | None = None) -> Clock:
    return Clock(decisions, decisions, decisions if updates is None else updates, seconds)


def silent(text: str, clock: Clock) -> None:
    pass


class Listed(Logger):
    """A user's own: keeps all it is given."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.written: list[tuple[dict[str, float], Clock]] = []
        self.notes: list[str] = []
        self.closed = 0

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        self.written.append((dict(points), clock))

    def note(self, text: str, clock: Clock) -> None:
        self.notes.append(text)

    def close(self) -> None:
        self.closed += 1

    def points(self, name: str) -> list[tuple[int, float]]:
        """The values of this name, and the frames they belong to."""
        return [(clock.frames, points[name]) for points, clock in self.written if name in points]


class Raising(Listed):
    """Fails in one of its methods, from this call on."""

    def __init__(self, method: str, after: int = 0) -> None:
        super().__init__()
        self.calls = 0
        working = getattr(self, method)

        def fails(*arguments: object) -> None:
            self.calls += 1
            if self.calls > after:
                raise ConnectionError("the cable is cut")
            working(*arguments)

        setattr(self, method, fails)


# ── What a logger is told ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def listened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Listed]:
    logger = Listed()
    run, _ = trained(tmp_path_factory.mktemp("listened"), tiny_recipe(), logger)
    return run, logger


def test_a_logger_is_told_every_decision_once_in_order(listened: tuple[Run, Listed]):
    _, logger = listened
    assert [clock.decisions for points, clock in logger.written if not points] == list(range(151))  # 0: at the start
    moments = [(clock.decisions, clock.updates, clock.seconds) for _, clock in logger.written]
    assert [decisions for decisions, _, _ in moments] == sorted(decisions for decisions, _, _ in moments)


def test_a_logger_is_told_what_the_log_has(listened: tuple[Run, Listed]):
    run, logger = listened
    for name, kind, key in (
        ("critic/loss", "update", "critic/loss"),
        ("mlr/loss", "update", "mlr/loss"),
        ("training/return", "episode", "return"),
        ("training/length", "episode", "length"),
        ("evaluation/score", "evaluation", "score"),
        ("random/score", "random", "score"),
    ):
        logged = [(event["frames"], event[key]) for event in run.events(kind) if key in event]
        assert logger.points(name) == logged
        assert logged
    assert all(isinstance(value, float | int) for points, _ in logger.written for value in points.values())
    assert [frames for frames, _ in logger.points("evaluation/spread")] == [0, 50, 100, 150]


def test_a_logger_is_told_of_every_episode_of_an_evaluation_once(listened: tuple[Run, Listed]):
    _, logger = listened
    # Two episodes: at the start of random actions and then of the agent, later of the agent alone.
    counted = [ended for frames, ended in logger.points("evaluation/ended") if frames == 0]
    assert counted == [0, 1, 2, 0, 1, 2]
    assert [ended for frames, ended in logger.points("evaluation/ended") if frames == 50] == [0, 1, 2]
    assert {episodes for _, episodes in logger.points("evaluation/episodes")} == {2}


def test_the_times_are_of_all_parts_and_only_grow(listened: tuple[Run, Listed]):
    run, logger = listened
    for part in ("critic", "environment", "evaluation", "checkpoint"):
        seconds = [seconds for _, seconds in logger.points(f"time/{part}")]
        assert len(seconds) > 1
        assert seconds == sorted(seconds)
    _, evaluation = logger.points("time/evaluation")[-1]
    assert evaluation == pytest.approx(sum(event["parts"]["evaluation"] for event in run.events("timing")), abs=0.01)


@pytest.mark.slow
def test_every_logged_update_is_told_with_several_updates_for_a_decision(tmp_path: Path):
    logger = Listed()
    run, _ = trained(tmp_path, tiny_rainbow(), logger)
    updates = [clock.updates for points, clock in logger.written if "critic/loss" in points]
    assert updates == [event["updates"] for event in run.events("update")] == [1, 51, 101, 151]


def test_loggers_change_nothing_about_a_run(tmp_path: Path, listened: tuple[Run, Listed]):
    assert events(trained(tmp_path, tiny_recipe())[0]) == events(listened[0])


def test_loggers_are_closed_however_a_run_ends(tmp_path: Path, listened: tuple[Run, Listed], monkeypatch):
    assert listened[1].closed == 1
    logger = Listed()
    monkeypatch.setattr("maskrl.runs.state.World", lambda *_: {}["no world"])
    with pytest.raises(KeyError, match="no world"):
        trained(tmp_path, tiny_recipe(), logger)
    assert logger.closed == 1


def test_a_log_that_cannot_be_written_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Run, "log", full)
    with pytest.raises(OSError, match="No space left"):
        trained(tmp_path, tiny_recipe(), Listed())


# ── Loggers that fail ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("method", ["write", "close"])
def test_a_logger_that_fails_is_reported_once_and_the_run_goes_on(tmp_path: Path, method: str):
    broken, after = Raising(method, after=70 if method == "write" else 0), Listed()
    run, _ = trained(tmp_path, tiny_recipe(), broken, after)
    assert run.status == "done"
    assert broken.calls == (71 if method == "write" else 1)
    assert broken.closed == (method == "write")  # closed all the same
    assert len(after.points("evaluation/score")) == 4
    (note,) = run.events("note")
    assert "'Raising' failed" in note["text"]
    assert "ConnectionError: the cable is cut" in note["text"]
    assert "not affected" in note["text"]
    assert after.notes == [note["text"]]


def test_all_loggers_may_fail(tmp_path: Path):
    one, other = Raising("write"), Raising("write", after=1)
    one.name, other.name = "one", "other"
    run, _ = trained(tmp_path, tiny_recipe(budget=Budget(frames=50)), one, other)
    assert ["'one'" in note["text"] for note in run.events("note")] == [True, False]


def test_a_logger_that_cannot_take_the_note_about_another_is_reported_too():
    told: list[str] = []
    first, second, third = Raising("write"), Raising("note"), Listed("third")
    first.name, second.name = "first", "second"
    loggers = Loggers([first, second, third], lambda text, _: told.append(text))
    loggers.write({}, clock(1, 0.1))
    loggers.note("Something else.", clock(1, 0.2))
    assert ["first" in told[0], "second" in told[1], len(told)] == [True, True, 2]
    assert sorted(third.notes) == sorted([*told, "Something else."])
    assert second.written == []  # it failed before its turn came


def test_an_interrupt_in_a_logger_is_not_an_error_of_the_logger():
    class Interrupted(Listed):
        def write(self, points: Mapping[str, float], clock: Clock) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Loggers([Interrupted()], silent).write({}, clock(0, 0.0))


def test_a_failed_logger_may_fail_again_when_it_is_closed():
    told: list[str] = []
    broken = Raising("write")
    broken.close = lambda: {}["nothing to close"]  # type: ignore[method-assign]
    loggers = Loggers([broken], lambda text, _: told.append(text))
    loggers.write({}, clock(0, 0.0))
    loggers.close()
    assert len(told) == 1


# ── What is refused ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_loggers_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"'Listed'.*another `name`"):
        Loggers([Listed(), Listed()], silent)
    Loggers([Listed(), Listed("another")], silent)


def test_what_is_no_logger_is_refused_before_the_run_starts(tmp_path: Path):
    class Half:
        def write(self, points: Mapping[str, float], clock: Clock) -> None: ...

    with pytest.raises(TypeError, match=r"Half.*note, close.*Subclass maskrl\.Logger"):
        trained(tmp_path / "half", tiny_recipe(), Half())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Listed is a class.*Pass Listed\("):
        trained(tmp_path / "class", tiny_recipe(), Listed)  # type: ignore[arg-type]
    assert not (tmp_path / "half" / "metrics.jsonl").exists()


def test_a_logger_without_write_is_told_so():
    told: list[str] = []
    Loggers([Logger()], lambda text, _: told.append(text)).write({}, clock(0, 0.0))
    assert "Logger needs a method write(points, clock)" in told[0]


@pytest.mark.parametrize(
    ("names", "kinds"),
    [(["none"], []), ([], []), (["tensorboard"], [TensorBoard]), (["tensorboard", "tensorboard"], [TensorBoard])],
)
def test_loggers_are_chosen_by_name(names: list[str], kinds: list[type[Logger]]):
    if kinds:
        pytest.importorskip("tensorboard")
    assert choose_loggers(names) == kinds


def test_tensorboard_is_the_default_where_it_is_installed(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("tensorboard")
    assert choose_loggers(None) == [TensorBoard]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert choose_loggers(None) == []


@pytest.mark.parametrize(("kind", "package"), [(TensorBoard, "tensorboard"), (WandB, "wandb")])
def test_a_missing_package_is_named_before_the_run_starts(tmp_path: Path, kind, package: str, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=f"pip install {package}.*leave {package} out of --log"):
        choose_loggers([package])
    with pytest.raises(ModuleNotFoundError, match=f"pip install {package}"):
        kind(Run.create(tmp_path, tiny_recipe()))


# ── Speed ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_speed_follows_the_clock():
    speed = Speed()
    assert speed.decisions_per_second is None
    for n in range(601):
        speed.add({}, clock(n, n / 10))
    assert speed.decisions_per_second == pytest.approx(10)


def test_the_speed_is_of_the_last_minute():
    speed = Speed()
    for n in range(601):
        speed.add({}, clock(n, n / 10))
    for n in range(1, 62):  # ten times slower, for a minute and a second
        speed.add({}, clock(600 + n, 60.0 + n))
    assert speed.decisions_per_second == pytest.approx(1)


def test_the_speed_forgets_the_warm_up():
    speed = Speed()
    for n in range(101):
        speed.add({}, clock(n, n / 100, updates=0))
    for n in range(101, 121):  # learning, 50 times slower
        speed.add({}, clock(n, 1 + (n - 100) / 2, updates=n - 100))
    assert speed.decisions_per_second == pytest.approx(2)


@pytest.mark.parametrize("part", ["evaluation", "checkpoint"])
def test_evaluations_and_checkpoints_do_not_count_as_slowness(part: str):
    speed = Speed()
    for n in range(501):
        speed.add({}, clock(n, n / 10))
    speed.add({f"time/{part}": 20.0}, clock(500, 70.0))
    for n in range(501, 521):
        speed.add({}, clock(n, 70 + (n - 500) / 10))
    assert speed.decisions_per_second == pytest.approx(10)


def test_time_without_a_decision_is_no_speed_yet():
    speed = Speed()
    for seconds in (0.0, 1.0, 2.0):
        speed.add({}, clock(97, seconds))
    assert speed.decisions_per_second is None
    speed.add({}, clock(98, 4.0))
    assert speed.decisions_per_second == pytest.approx(1 / 4)


def test_the_speed_is_told_with_the_times():
    logger = Listed()
    loggers = Loggers([logger], silent)
    for n in range(100):
        loggers.write({"time/critic": 1.0, "critic/loss": 0.5} if n % 50 == 49 else {}, clock(n, n / 10))
    assert logger.points("speed/decisions_per_second") == [(49, pytest.approx(10)), (99, pytest.approx(10))]


# ── TensorBoard ───────────────────────────────────────────────────────────────────────────────────────────────────────


def curves(run: Run) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    return {name: [(point.step, point.value) for point in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_tensorboard_has_the_numbers_of_the_log_against_frames(tmp_path: Path):
    pytest.importorskip("tensorboard")
    run = Run.create(tmp_path, tiny_recipe())
    trained(tmp_path, tiny_recipe(), TensorBoard(run))
    found = curves(run)
    for name, kind, key in (("evaluation/score", "evaluation", "score"), ("critic/loss", "update", "critic/loss")):
        logged = [(event["frames"], event[key]) for event in run.events(kind)]
        assert found[name] == [(frames, pytest.approx(value, rel=1e-5)) for frames, value in logged]
    assert {"training/return", "random/score", "time/critic"} <= found.keys()
    assert not {"evaluation/ended", "evaluation/episodes"} & found.keys()


def test_what_is_done_again_is_shown_once(tmp_path: Path):
    pytest.importorskip("tensorboard")
    run = Run.create(tmp_path, tiny_recipe())
    for start in (0, 60):
        board = TensorBoard(run)
        for n in range(start, 100, 20):
            board.write({"critic/loss": n + start}, clock(n, float(n)))
        board.close()
    assert curves(run)["critic/loss"] == [(0, 0.0), (20, 20.0), (40, 40.0), (60, 120.0), (80, 140.0)]
