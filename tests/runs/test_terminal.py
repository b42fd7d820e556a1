import io
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from maskrl import agents, recipes
from maskrl.runs.evaluate import EpisodeReturns
from maskrl.runs.terminal import LiveProgress, PlainProgress, Progress, Record, duration, make_watcher, number
from maskrl.recipes.schema import Budget, Evaluation
from maskrl.clock import Clock
from maskrl.runs.directory import Run


def run_of_1000(path: Path) -> Run:
    """1000 frames of one decision each, evaluated every 500; nothing has happened yet."""
    recipe = recipes.find("toy/reach")
    recipe = replace(recipe, budget=Budget(frames=1000), evaluation=Evaluation(every=500, episodes=2))
    return Run.create(path / "run", recipe)


def clock(decisions: int, seconds: float, *, updates: int | None = None) -> Clock:
    return Clock(decisions, decisions, decisions if updates is None else updates, seconds)


def live(watcher, decisions: range, *, rate: float, metrics=None, updates: int | None = None) -> None:
    """So many decisions at a steady rate."""
    for n in decisions:
        watcher.decision(clock(n, n / rate, updates=updates), metrics or {}, {"critic": 0.5 * n / rate})


def test_the_speed_and_the_time_to_go_follow_the_clock(tmp_path: Path):
    progress = Progress(run_of_1000(tmp_path))
    progress.begin(clock(0, 0.0, updates=0))
    live(progress, range(1, 601), rate=10)
    assert progress.decisions_per_second == pytest.approx(10)
    assert progress.seconds_left == pytest.approx(40)  # 400 decisions; an evaluation has taken no time yet
    assert progress.shares_of_time() == pytest.approx({"critic": 0.5, "other": 0.5})


def test_the_warm_up_says_nothing_about_the_time_to_go(tmp_path: Path):
    progress = Progress(run_of_1000(tmp_path))
    progress.begin(clock(0, 0.0, updates=0))
    live(progress, range(1, 101), rate=100, updates=0)
    assert progress.seconds_left is None
    assert progress.phase == "warming up"
    for n in range(101, 121):  # learning, 50 times slower
        progress.decision(clock(n, 1 + (n - 100) / 2, updates=n - 100), {}, {})
    assert progress.decisions_per_second == pytest.approx(2)


def test_evaluations_do_not_count_as_slowness_but_are_part_of_the_time_to_go(tmp_path: Path):
    progress = Progress(run_of_1000(tmp_path))
    progress.begin(clock(0, 0.0, updates=0))
    live(progress, range(1, 501), rate=10)
    progress.evaluation(clock(500, 70.0), EpisodeReturns((1.0, 3.0)))  # took 20 s
    for n in range(501, 521):
        progress.decision(clock(n, 70 + (n - 500) / 10), {}, {"evaluation": 20.0})
    assert progress.decisions_per_second == pytest.approx(10)
    assert progress.seconds_left == pytest.approx(48 + 20)  # 480 decisions and the last evaluation


def test_a_continued_run_knows_its_scores(tmp_path: Path):
    run = run_of_1000(tmp_path)
    run.log("random", clock(0, 0.0), {"score": 9.0, "returns": [9.0]})
    run.log("evaluation", clock(0, 0.0), {"score": 12.0, "returns": [10.0, 14.0]})
    run.log("evaluation", clock(500, 0.0), {"score": 11.0, "returns": [11.0, 11.0]})
    progress = Progress(run)
    progress.begin(clock(500, 50.0))
    assert progress.best == (0, 12.0, 2.0)
    assert progress.scores[-1] == (500, 11.0, 0.0)
    assert progress.random_score == 9.0


def test_a_part_that_learns_now_and_then_keeps_its_last_loss(tmp_path: Path):
    progress = Progress(run_of_1000(tmp_path))
    progress.decision(clock(1, 1.0), {"critic/loss": torch.tensor(1.0), "mlr/loss": torch.tensor(2.0)}, {})
    progress.decision(clock(2, 2.0), {"critic/loss": torch.tensor(3.0), "critic/q": torch.tensor(9.0)}, {})
    assert progress.loss_values() == {"critic": 3.0, "mlr": 2.0}


def test_plain_lines_come_at_the_rarer_of_time_and_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plain = PlainProgress(run_of_1000(tmp_path), every_seconds=30, every_share=0.1)
    plain.begin(plain.progress.recipe, clock(0, 0.0, updates=0))
    live(plain, range(1, 401), rate=2, metrics={"critic/loss": torch.tensor(0.25)})  # 10 % of the frames take 50 s
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" of ")[0] for line in lines] == ["100", "200", "300", "400"]
    assert (
        "200 of 1,000 frames (20%) | 2 decisions/s, 6 min 40 s to go | losses: critic 0.25 | time: critic 50%"
        in lines[1]
    )


def test_every_evaluation_has_a_plain_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plain = PlainProgress(run_of_1000(tmp_path))
    plain.evaluation(clock(0, 0.0), EpisodeReturns((10.0, 14.0)))
    plain.evaluation(clock(500, 9.0), EpisodeReturns((1.0, 3.0)))
    assert capsys.readouterr().out.splitlines() == [
        "0 frames: score 12.0 ± 2 over 2 episodes",
        "500 frames: score 2 ± 1 over 2 episodes, best 12.0 at 0",
    ]


def test_a_long_evaluation_says_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plain = PlainProgress(run_of_1000(tmp_path), every_seconds=0.0)
    for ended in (1, 2):
        plain.evaluating(clock(500, 9.0), ended, 2)
    plain.evaluation(clock(500, 9.5), EpisodeReturns((1.0, 3.0)))
    assert capsys.readouterr().out.splitlines() == [
        "500 frames: evaluating, 1 of 2 episodes",
        "500 frames: score 2 ± 1 over 2 episodes",
    ]


def test_a_quick_evaluation_says_its_score_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plain = PlainProgress(run_of_1000(tmp_path), every_seconds=30.0)
    plain.evaluating(clock(500, 9.0), 1, 2)
    assert capsys.readouterr().out == ""


def test_the_phase_counts_the_episodes_of_an_evaluation_from_none_again(tmp_path: Path):
    progress = Progress(run_of_1000(tmp_path))
    progress.begin(clock(0, 0.0, updates=0))
    assert progress.phase == "evaluating, 0 of 2 episodes"
    progress.evaluating(clock(0, 0.0, updates=0), 1, 2)
    assert progress.phase == "evaluating, 1 of 2 episodes"
    progress.evaluation(clock(0, 0.0, updates=0), EpisodeReturns((1.0, 3.0)))
    assert progress.phase == "warming up"
    live(progress, range(1, 501), rate=10)
    assert progress.phase == "evaluating, 0 of 2 episodes"
    progress.evaluation(clock(500, 50.0), EpisodeReturns((1.0, 3.0)))
    assert progress.phase == "learning"


def test_every_part_that_an_agent_times_is_shown_by_its_name(tmp_path: Path):
    progress = Progress(run_of_1000(tmp_path))
    parts = ("environment", "replay", "critic", "objective", "optimizer", "actor", "evaluation", "checkpoint")
    progress.begin(clock(0, 0.0, updates=0))
    progress.decision(clock(1, 10.0), {}, dict.fromkeys(parts, 1.0))
    assert progress.shares_of_time() == pytest.approx({**dict.fromkeys(parts, 0.1), "other": 0.2})
    for agent in ("sac", "rainbow"):
        source = (Path(agents.__file__).parent / f"{agent}.py").read_text()
        assert set(re.findall(r"watch\(\"(\w+)\"\)", source)) <= set(parts)


def test_a_reader_who_leaves_does_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    plain = PlainProgress(run_of_1000(tmp_path))
    for frames in (0, 500):
        plain.evaluation(clock(frames, 0.0), EpisodeReturns((1.0,)))
    assert len(plain.progress.scores) == 2
    sys.stdout.close()


@pytest.mark.parametrize("width", [100, 44])
def test_the_live_picture_has_all_words_at_any_width(tmp_path: Path, width: int):
    screen = io.StringIO()
    with LiveProgress(run_of_1000(tmp_path), Console(file=screen, width=width, force_terminal=True)) as shown:
        shown.begin(shown.progress.recipe, clock(0, 0.0, updates=0))
        shown.evaluation(clock(0, 0.0, updates=0), EpisodeReturns((10.0, 14.0)))
        live(shown, range(1, 251), rate=10, metrics={"mlr/loss": torch.tensor(0.5)})
        shown.episode(clock(250, 25.0), 7.5)
        picture = Console(file=io.StringIO(), width=width)
        picture.print(shown.picture())
    lines = picture.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    words = " ".join(" ".join(lines).split())
    for expected in (
        "250 of 1,000 frames (25%)",
        "10.0 decisions/s",
        "1 min 15 s to go",
        "last 12.0 ± 2",
        "7.5",
        "mlr 0.5",
    ):
        assert expected in words
    assert "0 frames: score 12.0 ± 2" in screen.getvalue()


def test_tensorboard_has_the_scores_against_frames(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = run_of_1000(tmp_path)
    with make_watcher(run, tty=False) as watcher:
        watcher.begin(run.recipe, clock(0, 0.0, updates=0))
        watcher.evaluation(clock(0, 0.0, updates=0), EpisodeReturns((10.0, 14.0)))
        live(watcher, range(1, 101), rate=10, metrics={"critic/loss": torch.tensor(0.25)})
        watcher.evaluation(clock(500, 9.0), EpisodeReturns((1.0, 3.0)))
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert [(point.step, point.value) for point in events.Scalars("evaluation/score")] == [(0, 12.0), (500, 2.0)]
    assert [point.step for point in events.Scalars("critic/loss")] == [1, 51]


@pytest.mark.parametrize("updates_per_decision", [2, 8])
def test_tensorboard_has_losses_with_several_updates_for_a_decision(tmp_path: Path, updates_per_decision: int):
    points: list[tuple[list[str], int]] = []
    record = Record(run_of_1000(tmp_path), lambda written, frames: points.append((list(written), frames)))
    record.begin(record.progress.recipe, clock(0, 0.0, updates=0))
    for n in range(1, 101):
        loss = {"critic/loss": torch.tensor(0.25)}
        record.decision(clock(n, float(n), updates=updates_per_decision * n), loss, {})
    # Updates 1, 51, 101, … are logged: the decisions in which they were made.
    assert [frames for _, frames in points] == [
        -(-update // updates_per_decision) for update in range(1, 100 * updates_per_decision, 50)
    ]
    assert all("critic/loss" in names for names, _ in points)


def test_wandb_gets_the_same_points_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    points, ended = [], []
    there = SimpleNamespace(log=points.append, finish=lambda: ended.append(True), define_metric=lambda *_, **__: None)
    fake = SimpleNamespace(init=lambda **_: there, __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = run_of_1000(tmp_path)
    with make_watcher(run, tty=False, wandb=True) as watcher:
        watcher.begin(run.recipe, clock(0, 0.0, updates=0))
        watcher.evaluation(clock(500, 9.0), EpisodeReturns((1.0, 3.0)))
    assert points[0]["evaluation/score"] == 2.0
    assert points[0]["frames"] == 500
    assert ended == [True]


@pytest.mark.parametrize(
    ("seconds", "words"), [(5.4, "5 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (273600, "3 d 04 h")]
)
def test_durations_are_read_at_a_glance(seconds: float, words: str):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (0.12345, "0.123"), (12.34, "12.3"), (876.5, "876"), (1234.5, "1,234"), (1e-5, "1.00e-05")],
)
def test_numbers_have_three_digits(value: float, words: str):
    assert number(value) == words
