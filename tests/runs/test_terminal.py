import io
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from maskrl import recipes
from maskrl.clock import Clock
from maskrl.recipes.schema import Budget, Evaluation
from maskrl.runs.directory import Run
from maskrl.runs.terminal import Progress, Terminal, picture


def run_of_1000(path: Path) -> Run:
    """1000 frames of one decision each, evaluated every 500; nothing has happened yet."""
    recipe = recipes.find("toy/reach")
    recipe = replace(recipe, budget=Budget(frames=1000), evaluation=Evaluation(every=500, episodes=2))
    return Run.create(path / "run", recipe)


def clock(decisions: int, seconds: float, *, updates: int | None = None) -> Clock:
    return Clock(decisions, decisions, decisions if updates is None else updates, seconds)


START = clock(0, 0.0)


def begun(path: Path) -> Progress:
    progress = Progress(run_of_1000(path))
    progress.write({}, START)
    return progress


def live(
    logger: Progress | Terminal,
    decisions: range,
    *,
    rate: float,
    points: Mapping[str, float] | None = None,
    updates: int | None = None,
) -> None:
    """These decisions at a steady rate, each with an update that is logged."""
    for n in decisions:
        logger.write({**(points or {}), "time/critic": 0.5 * n / rate}, clock(n, n / rate, updates=updates))


def scored(score: float, spread: float = 0.0) -> dict[str, float]:
    return {"evaluation/score": score, "evaluation/spread": spread}


def ended(episodes: int) -> dict[str, float]:
    return {"evaluation/ended": episodes, "evaluation/episodes": 2}


# ── What there is to show ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_time_to_go_and_the_shares_of_time_follow_the_clock(tmp_path: Path):
    progress = begun(tmp_path)
    live(progress, range(1, 601), rate=10)
    assert progress.seconds_left == pytest.approx(40)  # 400 decisions; an evaluation has taken no time yet
    assert progress.shares_of_time() == pytest.approx({"critic": 0.5, "other": 0.5})


def test_shares_of_time_do_not_change_until_the_times_are_told_again(tmp_path: Path):
    progress = begun(tmp_path)
    progress.write({"time/critic": 5.0}, clock(100, 10.0))
    progress.write({}, clock(200, 20.0))
    assert progress.shares_of_time() == pytest.approx({"critic": 0.5, "other": 0.5})


def test_the_warm_up_says_nothing_about_the_time_to_go(tmp_path: Path):
    progress = begun(tmp_path)
    live(progress, range(1, 101), rate=100, updates=0)
    assert progress.seconds_left is None
    assert progress.phase == "warming up"


def test_evaluations_are_part_of_the_time_to_go(tmp_path: Path):
    progress = begun(tmp_path)
    live(progress, range(1, 501), rate=10)
    progress.write({**scored(2.0, 1.0), "time/evaluation": 20.0}, clock(500, 70.0))
    for n in range(501, 521):
        progress.write({}, clock(n, 70 + (n - 500) / 10))
    assert progress.seconds_left == pytest.approx(48 + 20)  # 480 decisions and the last evaluation


def test_a_continued_run_knows_its_scores_and_episodes(tmp_path: Path):
    run = run_of_1000(tmp_path)
    run.log("random", clock(0, 0.0), {"score": 9.0, "returns": [9.0]})
    run.log("evaluation", clock(0, 0.0), {"score": 12.0, "returns": [10.0, 14.0]})
    run.log("episode", clock(300, 0.0), {"return": 7.0, "length": 300})
    run.log("evaluation", clock(500, 0.0), {"score": 11.0, "returns": [11.0, 11.0]})
    progress = Progress(run)
    progress.write({}, clock(500, 50.0))
    assert progress.best == (0, 12.0, 2.0)
    assert progress.scores[-1] == (500, 11.0, 0.0)
    assert progress.random_score == 9.0
    assert (progress.episodes, progress.episode_return) == (1, 7.0)


def test_a_part_that_learns_now_and_then_keeps_its_last_loss(tmp_path: Path):
    progress = begun(tmp_path)
    progress.write({"critic/loss": 1.0, "mlr/loss": 2.0}, clock(1, 1.0))
    progress.write({"critic/loss": 3.0, "critic/q": 9.0}, clock(2, 2.0))
    assert progress.losses == {"critic": 3.0, "mlr": 2.0}


def test_the_phase_counts_the_episodes_of_an_evaluation_from_none_again(tmp_path: Path):
    progress = begun(tmp_path)
    assert progress.phase == "evaluating, 0 of 2 episodes"
    progress.write(ended(1), START)
    assert progress.phase == "evaluating, 1 of 2 episodes"
    progress.write(scored(2.0), START)
    assert progress.phase == "warming up"
    live(progress, range(1, 501), rate=10)
    assert progress.phase == "evaluating, 0 of 2 episodes"
    progress.write(scored(2.0), clock(500, 50.0))
    assert progress.phase == "learning"
    live(progress, range(501, 1001), rate=10)
    progress.write(scored(2.0), clock(1000, 100.0))
    assert progress.phase == "done"


def test_every_part_that_is_timed_is_shown_by_its_name(tmp_path: Path):
    progress = begun(tmp_path)
    parts = ("environment", "replay", "critic", "a user's own", "evaluation", "checkpoint")
    progress.write({f"time/{part}": 1.0 for part in parts}, clock(1, 10.0))
    assert progress.shares_of_time() == pytest.approx({**dict.fromkeys(parts, 0.1), "other": 0.4})


# ── Lines ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    shown = Terminal(run_of_1000(tmp_path))  # the standard output of a test is no terminal
    shown.write({}, START)
    return shown


@pytest.mark.parametrize(
    ("rate", "frames"),
    [
        (2.0, ["60", "120", "180"]),  # 30 seconds are 60 frames, 1 % is 10
        (0.1, [str(n) for n in range(10, 201, 10)]),  # 30 seconds are 3 frames
    ],
)
def test_plain_lines_come_at_the_rarer_of_time_and_share(terminal: Terminal, rate: float, frames: list[str], capsys):
    live(terminal, range(1, 201), rate=rate, points={"critic/loss": 0.25})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" of ")[0] for line in lines] == frames


def test_a_plain_line_has_speed_time_to_go_losses_and_time(terminal: Terminal, capsys: pytest.CaptureFixture[str]):
    terminal.write({"training/return": 7.5, "training/length": 50}, clock(0, 0.0))
    live(terminal, range(1, 61), rate=2, points={"critic/loss": 0.25})
    assert capsys.readouterr().out == (
        "60 of 1,000 frames (6%) | 2 decisions/s, 7 min 50 s to go | return 7.5 | losses: critic 0.25 | "
        "time: critic 50%  other 50%\n"
    )


def test_every_evaluation_has_a_plain_line(terminal: Terminal, capsys: pytest.CaptureFixture[str]):
    terminal.write({"random/score": 9.0, **scored(12.0, 2.0)}, START)
    terminal.write(scored(2.0, 1.0), clock(500, 9.0))
    assert capsys.readouterr().out.splitlines() == [
        "random actions: score 9",
        "0 frames: score 12.0 ± 2 over 2 episodes",
        "500 frames: score 2 ± 1 over 2 episodes, best 12.0 at 0",
    ]


def test_a_continued_run_says_where_it_continues_and_a_new_one_does_not(tmp_path: Path, capsys):
    run = run_of_1000(tmp_path)
    run.log("evaluation", clock(0, 0.0), {"score": 12.0, "returns": [10.0, 14.0]})
    for decisions in (0, 500):
        terminal = Terminal(run)
        terminal.write({}, clock(decisions, decisions / 10))
        terminal.write({}, clock(decisions + 1, decisions / 10))
    assert capsys.readouterr().out == "continues at 500 of 1,000 frames\n"
    terminal.write(scored(2.0, 1.0), clock(501, 51.0))
    assert "best 12.0 at 0" in capsys.readouterr().out


def test_a_note_has_its_frames(terminal: Terminal, capsys: pytest.CaptureFixture[str]):
    terminal.note("The [red]disk[/red] is slow.", clock(1500, 9.0))
    assert capsys.readouterr().out == "1,500 frames: The [red]disk[/red] is slow.\n"


def test_a_reader_who_leaves_does_not_stop_the_run(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    for frames in (0, 500):
        terminal.write(scored(1.0), clock(frames, 0.0))
    assert len(terminal.progress.scores) == 2
    sys.stdout.close()


# ── The picture ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [100, 44])
def test_the_picture_has_all_words_at_any_width(tmp_path: Path, width: int):
    screen = io.StringIO()
    terminal = Terminal(run_of_1000(tmp_path), Console(file=screen, width=width, force_terminal=True))
    terminal.write({}, START)
    terminal.write({"random/score": 9.0, **scored(12.0, 2.0)}, START)
    live(terminal, range(1, 251), rate=10, points={"mlr/loss": 0.5})
    terminal.write({"training/return": 7.5, "training/length": 50}, clock(250, 25.0))
    shown = Console(file=io.StringIO(), width=width)
    shown.print(picture(terminal.progress))
    terminal.note("The disk is slow.", clock(250, 25.0))
    terminal.close()
    lines = shown.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    words = " ".join(" ".join(lines).split())
    for expected in (
        "250 of 1,000 frames (25%)",
        "10.0 decisions/s",
        "1 min 15 s to go",
        "last 12.0 ± 2",
        "random 9",
        "return 7.5, episode 1",
        "mlr 0.5",
        "critic 50%",
        "learning",
    ):
        assert expected in words
    assert "[bold" not in screen.getvalue()
    assert "0 frames: score 12.0 ± 2" in screen.getvalue()
    assert "250 frames: The disk is slow." in screen.getvalue()


def test_the_picture_is_redrawn_at_most_four_times_a_second_and_at_every_ended_episode(tmp_path: Path):
    screen = io.StringIO()
    terminal = Terminal(run_of_1000(tmp_path), Console(file=screen, width=100, force_terminal=True))

    def drawn() -> int:
        return screen.getvalue().count("toy/reach")

    terminal.write(scored(12.0), START)
    before = drawn()
    live(terminal, range(1, 101), rate=100)
    assert 3 <= drawn() - before <= 4
    before = drawn()
    for episodes in (0, 1, 2):
        terminal.write(ended(episodes), clock(500, 1.0))
    assert drawn() - before == 3


@pytest.mark.slow
def test_a_terminal_that_is_closed_does_not_stop_the_run(tmp_path: Path):
    """No hang-up is sent here, so the run goes on to its end."""
    screen, theirs = pty.openpty()
    code = "import sys, maskrl.cli; maskrl.cli.main(sys.argv[1:])"
    small = ["budget.frames=120", "evaluation.every=120", "evaluation.episodes=1", "agent.warmup_decisions=60"]
    with subprocess.Popen(
        [sys.executable, "-c", code, "train", "toy/reach", *small, "--run-dir", str(tmp_path / "run"), "--log", "none"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
    ) as process:
        os.close(theirs)
        seen = b""
        while b"evaluating" not in seen:
            seen += os.read(screen, 65536)
        os.close(screen)
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors.decode()) == (0, "")
    assert Run.open(tmp_path / "run").status == "done"
    assert not list(Run.open(tmp_path / "run").events("note"))
