"""Every command as it is typed, on the toy suite."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

import maskrl
from builders import require_drawing
from maskrl import cli, recipes
from maskrl.cli.train import FIRST as FIRST_TASK
from maskrl.cli.train import FIRST_GAME, first
from maskrl.cost.forecast import forecast
from maskrl.recipes.schema import ReplayConfig
from maskrl.runs.build import build_replay

SMALL = [
    "budget.frames=80",
    "agent.warmup_decisions=50",
    "agent.batch_size=8",
    "agent.hidden=16",
    "agent.encoder.filters=4",
]
SMALL += ["evaluation.every=40", "evaluation.episodes=1", "checkpoint_every=20", "agent.auxiliary.clips=1"]
LONG = [*SMALL[1:], "budget.frames=100000"]  # that nobody waits for

# Catch, by a Rainbow that decides as often as it is asked to and has one update for each decision.
CATCH = [
    "budget.frames=none",
    "budget.decisions=80",
    "agent.warmup_decisions=50",
    "agent.batch_size=8",
    "agent.hidden=8",
]
CATCH += ["agent.encoder.filters=4,4", "evaluation.every=40", "evaluation.episodes=3", "checkpoint_every=20"]
CATCH += ["agent.clips=1", "objective.decoder_width=8"]

COMMAND = [sys.executable, "-m", "maskrl"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def typed(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as a user would."""
    return subprocess.run([*COMMAND, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120)


def answered(*arguments: object, cwd: Path) -> str:
    """What a command that succeeds prints, in this process to save the start of another."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.chdir(cwd)
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
    assert end.value.code == 0
    return printed.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A small run that is done, and what it printed on the way."""
    here = tmp_path_factory.mktemp("here")
    printed = answered("train", "toy/reach", *SMALL, cwd=here)
    return next((here / "runs").rglob("recipe.json")).parent, printed


def refused(arguments: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    """The one message on stderr of a command that ends with exit code 2, in this process to save the start of another."""

    def began(*_: object) -> None:
        raise AssertionError("the command was not refused: it began to learn")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("maskrl.agents.sac.SAC.update", began)
        patch.setattr("maskrl.agents.rainbow.Rainbow.update", began)
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
    assert end.value.code == 2
    assert not isinstance(end.value.__cause__, Exception)
    return capsys.readouterr().err


# ── Start ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_help_does_not_wait_for_torch():
    code = "import sys, maskrl.cli; maskrl.cli.main(sys.argv[1:])"
    check = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, 'numpy' in sys.modules)); "
    for arguments in (
        ["--help"],
        ["train", "--help"],
        ["evaluate", "--help"],
        ["recipes", "show", "--help"],
        ["--version"],
    ):
        shown = subprocess.run(
            [sys.executable, "-c", check + code, *arguments], capture_output=True, text=True, check=True
        )
        assert shown.stdout.splitlines()[-1] == "False False"


def test_help_names_every_command_and_option(capsys: pytest.CaptureFixture[str]):
    def shown(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            cli.main([*arguments, "--help"])
        assert end.value.code == 0
        return capsys.readouterr().out

    assert all(word in shown() for word in ("train", "evaluate", "recipes", "--version"))
    assert all(
        word in shown("train") for word in ("RECIPE", "KEY=VALUE", "--profile", "--method", "--run-dir", "--log")
    )
    assert all(word in shown("evaluate") for word in ("RUN", "--episodes", "--video", "--json"))
    assert all(word in shown("recipes") for word in ("list", "show"))
    assert all(word in shown("recipes", "show") for word in ("--profile", "--method", "--why", "--json"))


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"maskrl {maskrl.__version__}\n"


def test_the_package_has_its_names_without_having_imported_them():
    assert set(maskrl.__all__) <= set(dir(maskrl))
    homes = [name for names in maskrl._HOMES.values() for name in names]
    assert sorted(homes) == sorted(maskrl.__all__)
    assert all(getattr(maskrl, name).__name__ == name for name in maskrl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'MRL'"):
        maskrl.MRL  # noqa: B018


# ── Recipes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("arguments", [["recipes"], ["recipes", "list"]])
def test_recipes_are_listed(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.main(arguments)
    printed = capsys.readouterr().out
    assert all(name in printed for name in recipes.names())
    assert re.search(r"cartpole-swingup +806 ± 48 +784 ± 63", printed)
    assert re.search(r"atari/pong +4\.9 ± 3\.1 +-3\.1 ± 11\.5", printed)
    assert re.search(r"atari/kung_fu_master +10,652 ± 971\.8 +10,517\.3 ± 5,026\.9", printed)
    assert re.search(r"toy/catch +– +–", printed)
    assert "100,000 decisions on Atari" in printed


def test_a_recipe_is_shown_with_its_overrides_and_sources(capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        cli.main(["recipes", "show", "toy/reach", "objective.mask.ratio=0.25", "--why"])
    printed = capsys.readouterr().out
    assert re.search(r"objective\.mask\.ratio +0\.25 +override", printed)


def test_a_recipe_is_shown_as_json(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.main(["recipes", "show", "toy/reach", "seed=7", "--method", "baseline", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["seed"] == 7
    assert shown["objective"] is None


# ── Training ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_says_what_it_will_take_and_what_came_out(finished: tuple[Path, str]):
    run, printed = finished
    assert re.match(r"runs/toy/reach/mlr/seed-1-[0-9a-f]{8}$", str(run.relative_to(run.parents[4])))
    for words in ("80 frames = 80 decisions × 1", "on disk", " free", "not the paper's", "random actions: score"):
        assert words in printed
    for frames in (0, 40, 80):
        assert f"\n{frames} frames: score " in printed
    assert re.search(r"score +[\d.]+ ± 0 over 1 episode\b", printed)
    assert "maskrl report runs/toy" in printed
    assert "maskrl evaluate runs/toy" in printed
    assert "\x1b" not in printed  # nobody to show colours to


@pytest.fixture(scope="module")
def caught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A small run of Rainbow that is done, and what it printed on the way."""
    here = tmp_path_factory.mktemp("here")
    printed = answered("train", "toy/catch", *CATCH, cwd=here)
    return next((here / "runs").rglob("recipe.json")).parent, printed


def test_rainbow_says_what_it_will_take_and_what_came_out(caught: tuple[Path, str]):
    run, printed = caught
    assert re.match(r"runs/toy/catch/mlr/seed-1-[0-9a-f]{8}$", str(run.relative_to(run.parents[4])))
    for words in (
        "80 frames = 80 decisions × 1",
        "evaluated every 40 frames over 3 episodes",
        "random actions: score -",
    ):
        assert words in printed
    for frames in (0, 40, 80):
        assert f"\n{frames} frames: score -" in printed
    assert re.search(r"score +-[\d.]+ ± [\d.]+ over 3 episodes\b", printed)


def test_a_finished_run_shows_its_result_again(finished: tuple[Path, str]):
    run, printed = finished
    again = answered("train", "toy/reach", *SMALL, cwd=run.parents[4])
    assert "finished already" in again
    assert printed.endswith(again[again.index("Done") :])


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_continue_and_does(number: signal.Signals, code: int, tmp_path: Path, capsys):
    arguments = ["train", "toy/reach", *SMALL, "budget.frames=160", "--run-dir", "run"]
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    seen = next(line for line in process.stdout if line.startswith("40 frames"))
    process.send_signal(number)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    stopped_at = int(re.search(r"saved at (\d+) frames", printed)[1])  # type: ignore[index]
    assert stopped_at >= 40
    assert f"maskrl {' '.join(arguments)}" in printed
    with pytest.raises(SystemExit):
        cli.main(arguments)
    continued = capsys.readouterr().out
    assert f"continues at {stopped_at} of 160 frames" in continued
    assert "Done" in continued
    assert seen not in continued  # evaluated once
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [event["frames"] for event in events if event["kind"] == "evaluation"] == [0, 40, 80, 120, 160]


@pytest.mark.slow
def test_a_terminal_gets_a_live_display(tmp_path: Path):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    arguments = ["train", "toy/reach", *LONG, "--run-dir", "run"]
    process = subprocess.Popen([*COMMAND, *arguments], cwd=tmp_path, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    screen, deadline = "", time.monotonic() + 60
    while not ("objective " in screen and "decisions/s" in screen) and time.monotonic() < deadline:
        if select.select([ours], [], [], 1)[0]:
            screen += os.read(ours, 65536).decode(errors="replace")
    process.send_signal(signal.SIGINT)
    while process.poll() is None and select.select([ours], [], [], 30)[0]:
        try:
            screen += os.read(ours, 65536).decode(errors="replace")
        except OSError:  # the other end is closed
            break
    os.close(ours)
    assert process.wait(30) == 130
    words = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    for expected in (
        "of 100,000 frames",
        "decisions/s",
        "to go",
        "last ",
        "best ",
        "losses",
        "critic",
        "objective",
        "actor",
    ):
        assert expected in words
    assert "\x1b[?25h" in screen  # the cursor is back
    assert "Continue with:" in words


# ── A first run ───────────────────────────────────────────────────────────────────────────────────────────────────────

LIBRARIES = [
    f"lib{name}.so{version}"
    for name in ("EGL", "OSMesa", "GL", "OpenGL", "GLESv2", "glfw")
    for version in ("", *(f".{number}" for number in range(9)))
]
FIRST = [
    "budget.frames=none",
    "budget.decisions=6",
    "evaluation.every=24",
    "evaluation.episodes=1",
    "env.max_frames=80",
]


def test_a_first_run_is_a_game_where_no_library_draws_and_says_how_to_change_that(tmp_path: Path):
    pytest.importorskip("ale_py")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for name in LIBRARIES:  # found before the system's, and no library: as if there were none
        (hidden / name).touch()
    bare = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "MASKRL_GL", "DISPLAY")}
    done = subprocess.run(
        [*COMMAND, "train", "first", *FIRST, "checkpoint_every=24", "threads=1"],
        cwd=tmp_path,
        env=bare | {"LD_LIBRARY_PATH": str(hidden)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "DMControl cannot draw on this machine. No OpenGL backend draws here:\n  egl: " in done.stdout
    assert "On Debian or Ubuntu, install one of: libegl1 for egl, libosmesa6 for osmesa" in done.stdout
    assert f"So the first run is {FIRST_GAME}, which needs no OpenGL." in done.stdout
    (run,) = (tmp_path / "runs" / FIRST_GAME).glob("*/*/recipe.json")
    assert json.loads(run.read_text())["name"] == FIRST_GAME


def test_a_first_run_is_of_dmcontrol_where_it_can_be_drawn(capsys: pytest.CaptureFixture[str]):
    require_drawing()
    assert first() == FIRST_TASK
    assert capsys.readouterr().out == ""


# ── Evaluation ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_evaluation_repeats_the_score_of_the_run(finished: tuple[Path, str]):
    run, _ = finished
    result = json.loads(answered("evaluate", run, "--json", "--video", run / "agent.mp4", cwd=run))
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert result["score"] == [event["score"] for event in events if event["kind"] == "evaluation"][-1]
    assert result["frames"] == 80
    assert len(result["returns"]) == 1
    assert Path(result["video"]).stat().st_size > 1000


def test_an_evaluation_repeats_the_score_of_rainbow_one_by_one_and_side_by_side(caught: tuple[Path, str]):
    run, _ = caught
    result = json.loads(answered("evaluate", run, "--json", cwd=run))
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    returns = [event["returns"] for event in events if event["kind"] == "evaluation"][-1]
    assert result["returns"] == returns
    assert [result[key] for key in ("recipe", "method", "frames")] == ["toy/catch", "mlr", 80]
    filmed = json.loads(answered("evaluate", run, "--json", "--video", run / "agent.gif", cwd=run))
    assert filmed["returns"] == returns
    assert Path(filmed["video"]).stat().st_size > 1000


def test_an_evaluation_in_words(finished: tuple[Path, str], tmp_path: Path):
    printed = answered("evaluate", finished[0], "--episodes", 3, cwd=tmp_path)
    assert re.search(r"checkpoint at 80 frames\n +score +[\d.]+ ± [\d.]+ over 3 episodes\n", printed)


# ── What cannot be done ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_mistake_ends_with_code_2_and_without_a_traceback(tmp_path: Path):
    done = typed("train", "toy/reech", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean toy/reach" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "toy/reach", "sed=3"], "did you mean seed?"),
        (["train", "toy/reach", "seed"], "path=value"),
        (["train", "toy/reach", "budget.frames=many"], "budget.frames=many"),
        (["train", "toy/reach", "--profile", "large"], "'lite'"),
        (["train", "toy/reach", "--method", "mrl"], "did you mean mlr? There are mlr, baseline, "),
        (["train", "toy/reach", "frames=80"], "did you mean budget.frames?"),
        (["train", "atari/pnog"], "did you mean atari/pong, "),
        (["train", "pong"], "did you mean atari/pong?"),
        (["train", "atari/Pong-ram-v5"], "not pixels: use 'pong'"),
        (["train", "atari/pong", "budget.frames=400000"], "a budget has one unit. Set the other to none."),
        (["train", "toy/reach", "--method", "der"], "not for toy/reach. Choose one of mlr, baseline, curl, "),
        (["train", "atari/pong", "--method", "otrr"], "did you mean otr?"),
        (["train", "toy/reach", "env.kind=toy_arcade", "env.task=catch"], "Use agent kind rainbow"),
        (["train", "toy/catch", "env.kind=toy_control", "env.task=reach"], "Use agent kind sac"),
        (["train", "toy/reach", "--log", "tensorbord,wandb"], "choose from tensorboard, wandb and none"),
        (["train", "toy/reach", "--log", "csv"], "choose from tensorboard, wandb and none"),
        (["train", "toy/reach", "--wandb"], "No such option"),
        (["train"], "RECIPE"),
        (["recipes", "show", "dmcontrol/cartpole-swingupp"], "did you mean dmcontrol/cartpole-swingup, "),
        (["evaluate", "nowhere"], "holds no run"),
        (["evaluate", "nowhere", "--episodes", "0"], "'--episodes'"),
    ],
)
def test_bad_input_is_answered_with_what_would_be_right(arguments: list[object], words: str, capsys):
    assert words in " ".join(refused(arguments, capsys).split())


def test_the_directory_of_another_recipe_is_left_alone(finished: tuple[Path, str], capsys: pytest.CaptureFixture[str]):
    before = (finished[0] / "recipe.json").read_text()
    message = refused(["train", "toy/reach", *SMALL, "seed=2", "--run-dir", finished[0]], capsys)
    assert "seed: 1 -> 2" in message
    assert (finished[0] / "recipe.json").read_text() == before


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").touch()
    assert "is a file" in refused(["train", "toy/reach", "--run-dir", tmp_path / "file"], capsys)
    assert "Cannot write" in refused(["train", "toy/reach", "--run-dir", tmp_path / "file" / "run"], capsys)


@pytest.mark.parametrize(
    ("storage", "advice"), [("disk", "--run-dir on a larger disk"), ("memory", "replay.storage=disk")]
)
def test_a_replay_that_cannot_fit_is_refused_with_its_size(storage: str, advice: str, tmp_path: Path, capsys):
    capacity = 10**12  # of 3 · 32 · 32 bytes each, and a little more
    size = [f"budget.frames={capacity}", f"replay.capacity={capacity}", f"replay.storage={storage}"]
    message = refused(["train", "toy/reach", *size, "--run-dir", tmp_path / "run"], capsys)
    assert re.search(r"[36],\d\d\d TB", message)
    assert advice in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["toy/reach", "toy/catch"])
def test_the_forecast_counts_what_training_allocates(name: str, tmp_path: Path):
    recipe = replace(recipes.find(name), replay=ReplayConfig(capacity=500))
    needs = forecast(recipe, tmp_path)
    env = recipe.env.make(seed=1, training=True)
    run = maskrl.runs.directory.Run.create(tmp_path / "run", recipe)
    assert needs.replay == build_replay(recipe, env, run).nbytes


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install wandb" in refused(
        ["train", "toy/reach", "--log", "wandb", "--run-dir", tmp_path / "run"], capsys
    )
    assert "maskrl[dmcontrol]" in refused(["train", "dmcontrol/cheetah-run", "--run-dir", tmp_path / "run"], capsys)
    assert "maskrl[atari]" in refused(["train", "atari/pong", "--run-dir", tmp_path / "run"], capsys)
    assert not (tmp_path / "run").exists()


def test_no_opengl_is_said_before_anything_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    def nothing_draws() -> None:
        raise RuntimeError("No OpenGL backend draws here: ...")

    monkeypatch.setattr("maskrl.envs.dmcontrol.choose_gl", nothing_draws)
    assert "No OpenGL" in refused(["train", "dmcontrol/cheetah-run", "--run-dir", tmp_path / "run"], capsys)
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_checkpoint(tmp_path: Path, capsys, monkeypatch):
    from maskrl.agents.sac import SAC

    update = SAC.update

    def fails_later(self: SAC, replay: object) -> object:
        if self.updates == 10:
            raise FloatingPointError("The critic loss is nan at update 10.")
        return update(self, replay)  # type: ignore[arg-type]

    monkeypatch.setattr(SAC, "update", fails_later)
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "toy/reach", *SMALL, "--run-dir", str(tmp_path / "run")])
    assert end.value.code == 1
    message = capsys.readouterr().err
    assert "nan at update 10" in message
    assert (
        "The last good checkpoint is kept. Once the cause is removed, continue from it with:\n  maskrl train" in message
    )
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "failed"
    assert list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("maskrl.runs.loop.train", lambda *_: {}["bug"])
    with pytest.raises(KeyError, match="bug"):
        cli.main(["train", "toy/reach", *SMALL, "--run-dir", str(tmp_path / "run")])


@pytest.mark.slow
def test_a_first_checkpoint_that_was_interrupted_is_no_obstacle(tmp_path: Path, capsys):
    arguments = ["train", "toy/reach", *SMALL, "--run-dir", "run"]
    process = subprocess.Popen([*COMMAND, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    next(line for line in process.stdout if line.startswith("0 frames"))
    process.kill()
    process.communicate()
    unfinished = tmp_path / "run" / "checkpoints" / "unfinished"
    unfinished.mkdir(parents=True, exist_ok=True)
    (unfinished / "next.safetensors").write_bytes(b"half a check")
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 0
    assert "Done" in capsys.readouterr().out
