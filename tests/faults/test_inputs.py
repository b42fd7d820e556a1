"""What people type, and what their terminals are: never a traceback, and no directory before every number has been looked at."""

import io
import json
import math
import os
import pty
import shlex
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from rich.console import Console

from calling import called
from maskrl import recipes
from maskrl.clock import Clock
from maskrl.config import LARGEST, MOST
from maskrl.cost.forecast import forecast
from maskrl.files import RunError
from maskrl.outputs import MASKS, REPORT, VIDEO, OutputError, require_output
from maskrl.recipes.schema import Recipe, leaves
from maskrl.runs.directory import Run
from maskrl.runs.terminal import Progress, picture
from maskrl.runs.trial import failure, require_numerics
from sweeps import TINY
from tiny_runs import tiny_recipe, trained
from written import write_run

pytestmark = pytest.mark.faults

RECIPES = [
    ("dmcontrol/cartpole-swingup", "mlr"),
    ("dmcontrol/cartpole-swingup", "curl"),
    ("atari/pong", "mlr"),
    ("toy/reach", "mlr"),
    ("toy/catch", "baseline"),
]
HUGE = ["1e30", "1e308", str(2**63), str(2**64), "9" * 5000, "-1e30", "NaN", "Infinity", "100_000_000_000_000"]


def numbers(recipe: Recipe) -> list[str]:
    """The paths of all values that are numbers or lists of them."""
    kinds = (int, float, tuple, type(None))
    return [path for path, value in leaves(recipe).items() if isinstance(value, kinds) and not isinstance(value, bool)]


@pytest.mark.parametrize(("name", "method"), RECIPES)
def test_no_number_is_taken_that_is_larger_than_anybody_needs(name: str, method: str):
    recipe, taken = recipes.resolve(name, profile="lite", method=method), []
    assert len(numbers(recipe)) > 30
    for path in numbers(recipe):
        if path in ("objective", "preset", "encoder_from"):
            continue
        for value in HUGE:
            try:
                made = recipes.resolve(name, [f"{path}={value}"], profile="lite", method=method)
            except ValueError:
                continue
            found = leaves(made).get(path)
            if not isinstance(found, int | float) or abs(found) > MOST.get(path.rpartition(".")[2], LARGEST):
                taken.append(f"{path}={value[:20]} became {found}")
    assert not taken


@pytest.mark.parametrize(
    "override",
    [
        *("agent.batch_size=1000000", "objective.clip_length=1000000", "env.size=4096", "env.frame_stack=256"),
        *(
            "agent.hidden=65536",
            "agent.encoder.filters=65536",
            "agent.encoder.latent_dim=65536",
            "replay.capacity=1000000000000",
        ),
        *(
            "budget.frames=1000000000000",
            "evaluation.side_by_side=65536",
            "threads=1024",
            "objective.mask.cube=1000000,1,1",
        ),
    ],
)
def test_the_largest_numbers_are_refused_before_a_directory_is_made_or_fit(tmp_path: Path, override: str):
    """What a machine can hold is not a matter of the number alone."""
    with suppress(ValueError, RunError):
        forecast(recipes.resolve("toy/reach", [override], profile="lite"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["train", "toy/reach", "agent=" + "[" * 100_000],
        ["train", "toy/reach", "agent=" + '{"a":' * 10_000],
        ["train", "toy/reach", ".".join(["a"] * 10_000) + "=1"],
        ["train", "toy/reach", "seed=" + "9" * 10_000],
        ["train", "toy/reach", "--run-dir", "x" * 300],
        ["train", "toy/reach", "--run-dir", "/dev/null/run"],
        ["train", "toy/reach", "encoder_from=" + "x" * 300],
        ["train", "toy/reach", "encoder_from=/dev/zero"],
        ["train", "[/red]"],
        ["train", "x" * 100_000],
        ["evaluate", "x" * 300],
        ["evaluate", "/dev/zero"],
        ["report", "/dev/zero"],
        ["report", "x" * 5000],
        ["probe", ""],
        ["masks", "[/red]=1"],
        ["sweep", "toy", "seed=" + ",".join(map(str, range(200_000)))],
        ["sweep", "toy", "--seeds", "1000000000"],
        ["sweep", "status", "x" * 300],
        ["plan", "[/red]"],
        ["recipes", "show", "[/red]"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_nothing_that_one_can_type_ends_in_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
):
    monkeypatch.chdir(tmp_path)
    code, printed = called(words)
    assert code == 2
    assert len(printed) < 20_000
    assert not list(tmp_path.iterdir())


def test_a_folder_whose_name_begins_with_a_dash_is_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "-dash", tiny_recipe(), {0: 1.0, 150: 2.0})
    assert called(["report", "-dash", "--out", "page.html"])[0] == 0
    code, printed = called(["evaluate", "-dash"])
    assert code == 2
    assert "-dash has reached 150 frames, but its checkpoints are gone" in printed


def test_a_checkpoint_without_an_agent_is_refused(tmp_path: Path):
    run = Run.create(tmp_path / "run", tiny_recipe())
    run.save({"position": {"decisions": 60, "seconds": 1.0}, "spaces": {"obs": [9, 28, 28], "action_dim": 2}})
    code, printed = called(["evaluate", str(run.path)])
    assert code == 2
    assert "The checkpoint does not fit the recipe beside it" in printed
    with pytest.raises(RunError, match="cannot be continued from its checkpoint"):
        trained(run.path, tiny_recipe())


def test_markup_in_names_is_text(tmp_path: Path):
    folder = tmp_path / "[/red][bold]"
    write_run(folder / "[/red]", tiny_recipe(), {0: 1.0, 150: 2.0})
    (folder / "sweep.json").write_text(
        '{"asked": {"sweep": "[/red]"}, "runs": [{"directory": "[/red]", "frames": 150, "command": "[/x]"}]}'
    )
    code, printed = called(["sweep", "status", str(folder)])
    assert code == 0
    assert "[/red]" in printed
    assert called(["report", str(folder), "--out", str(tmp_path / "page.html")])[0] == 0


# ── Terminals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def maskrl(*words: str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "maskrl", *words]
    return subprocess.run(command, capture_output=True, env={**os.environ, **environment}, timeout=300)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-16"])
def test_every_encoding_of_the_output_will_do(tmp_path: Path, encoding: str):
    write_run(tmp_path / "ümlaut ☃", tiny_recipe(), {0: 1.0, 150: 2.0})
    done = maskrl("report", str(tmp_path / "ümlaut ☃"), "--out", str(tmp_path / "page.html"), PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    refused = maskrl("evaluate", str(tmp_path / "ümlaut ☃"), PYTHONIOENCODING=encoding)
    assert refused.returncode == 2
    assert b"Traceback" not in refused.stderr


def test_a_run_is_trained_on_a_terminal_that_shows_ascii_alone(tmp_path: Path):
    tiny = [word for word in TINY if not word.startswith("objective")]
    words = ["train", "toy/reach", *tiny, "--method", "baseline", "--run-dir", str(tmp_path / "ümlaut ☃")]
    done = maskrl(*words, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


@pytest.mark.parametrize("width", [1, 20, 39])
def test_a_narrow_terminal_shows_a_run(tmp_path: Path, width: int):
    run = Run.create(tmp_path, tiny_recipe())
    progress = Progress(run)
    progress.write({"evaluation/score": 1.0, "evaluation/spread": 0.5, "critic/loss": 1.0}, Clock(50, 50, 1, 1.0))
    text = io.StringIO()
    Console(file=text, width=width, force_terminal=True).print(picture(progress))
    assert text.getvalue()


def test_a_terminal_of_twenty_columns_shows_tables(tmp_path: Path):
    """A real one."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "maskrl", "recipes", "list", "methods"]
    process = subprocess.Popen(
        words, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "20", "TERM": "xterm"}
    )
    os.close(theirs)
    out = b""
    with closing(os.fdopen(ours, "rb", buffering=0)) as screen:
        try:
            while block := screen.read(4096):
                out += block
        except OSError:  # the other side is closed
            pass
    assert process.wait(60) == 0
    assert b"mlr" in out
    assert b"Traceback" not in out


@pytest.mark.parametrize("words", [["recipes", "list"], ["recipes", "show", "toy/reach"], ["--help"]], ids=" ".join)
def test_a_closed_output_is_no_error_of_ours(words: list[str]):
    """As in `maskrl recipes list | head -1`."""
    process = subprocess.Popen([sys.executable, "-m", "maskrl", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait(60)


@pytest.mark.parametrize("override", ["objective.clip_length=1000000", "replay.capacity=4"])
def test_clips_longer_than_the_replay_are_refused_before_a_directory_is_made(override: str, tmp_path: Path):
    code, printed = called(["train", "toy/reach", override, "--run-dir", str(tmp_path / "run")])
    assert (code, (tmp_path / "run").exists()) == (2, False)
    assert "cannot be drawn from a replay that holds" in " ".join(printed.split())


@pytest.mark.parametrize("target", ["closed", "/dev/full"])
@pytest.mark.parametrize("words", [["recipes", "list"], ["licences"]])
def test_an_output_that_cannot_be_written_is_no_traceback(words: list[str], target: str):
    """As in `maskrl recipes list >&-`, and on a full disk."""
    line = f"{shlex.join([sys.executable, '-m', 'maskrl', *words])} {'>&-' if target == 'closed' else '> /dev/full'}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert (done.returncode, "disk is full" in done.stderr) == ((0, False) if target == "closed" else (2, True))


STEERING = "\x1b]0;owned\x07\x1b[2J\x1b[31mred"


def test_names_of_strangers_do_not_steer_the_terminal(tmp_path: Path):
    """Escape sequences set the title of a window, clear it, or hide text."""
    run = write_run(tmp_path / "run", tiny_recipe(), {0: 1.0})
    recipe = json.loads((run / "recipe.json").read_text())
    (run / "recipe.json").write_text(json.dumps(recipe | {"name": STEERING}))
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    (sweep / "sweep.json").write_text(json.dumps({"asked": {"sweep": STEERING}, "runs": []}))
    (tmp_path / STEERING.replace("/", "")).mkdir()
    for words in (
        ["report", str(run), "--out", str(tmp_path / "page.html")],
        ["sweep", "status", str(sweep)],
        ["evaluate", str(tmp_path / STEERING)],
    ):
        _, printed = called(words)
        assert "owned" in printed
        assert not {"\x1b", "\x07"} & set(printed), words


# ── Outputs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_output_replaces_an_earlier_one_and_nothing_else(tmp_path: Path):
    run = write_run(tmp_path / "run", tiny_recipe(), {0: 1.0, 150: 2.0})
    out = tmp_path / "page.html"
    for _ in range(2):
        assert called(["report", str(run), "--out", str(out), "--tables", str(tmp_path / "tables")])[0] == 0
    out.write_text("a poem")
    code, printed = called(["report", str(run), "--out", str(out)])
    assert (code, out.read_text()) == (2, "a poem")
    assert "exists already and is not an earlier output of this command" in printed
    assert called(["report", str(run), "--out", str(out), "--force"])[0] == 0
    assert REPORT in out.read_bytes()
    mine = next((tmp_path / "tables").glob("*.md"))
    mine.write_text("my notes")
    assert called(["report", str(run), "--out", str(out), "--tables", str(tmp_path / "tables")])[0] == 2
    assert mine.read_text() == "my notes"


def test_devices_and_the_files_of_a_run_are_never_replaced(tmp_path: Path):
    run = write_run(tmp_path / "run", tiny_recipe(), {0: 1.0, 150: 2.0})
    (run / "checkpoints").mkdir()
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "link.html").symlink_to(run / "recipe.json")
    before = (run / "recipe.json").read_bytes()
    kept = ["recipe.json", "metrics.jsonl", "status.json", "checkpoints/new.html", "replay/frames.u8", "lock"]
    for place in [*(run / name for name in kept), Path("/dev/null"), tmp_path / "pipe.html", tmp_path / "link.html"]:
        for mark in (REPORT, MASKS, VIDEO):
            with pytest.raises(OutputError, match=r"is not overwritten"):
                require_output(place, mark, force=True)
        assert called(["report", str(run), "--out", str(place), "--force"])[0] == 2
    assert (run / "recipe.json").read_bytes() == before
    require_output(run / "report.html", REPORT)  # a new file beside them will do


def test_a_page_of_another_kind_is_not_replaced(tmp_path: Path):
    (tmp_path / "masks.html").write_bytes(MASKS)
    require_output(tmp_path / "masks.html", MASKS)
    with pytest.raises(OutputError, match="not an earlier output"):
        require_output(tmp_path / "masks.html", REPORT)


# ── What a machine cannot compute ─────────────────────────────────────────────────────────────────────────────────────


def test_an_instruction_that_is_missing_is_a_refusal_with_the_reason():
    assert failure("import os, signal; os.kill(os.getpid(), signal.SIGILL)") == (
        "a trial was ended by SIGILL (the processor lacks an instruction)"
    )
    assert failure("raise RuntimeError('no compiler')") == "RuntimeError: no compiler"
    assert failure("pass") is None


def test_a_compilation_without_a_compiler_is_refused_before_a_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(RunError, match=r"compile=true does not work on this machine: .*Use compile=false\."):
        require_numerics(tiny_recipe(compile=True), "cpu")


def test_bfloat16_that_works_is_let_through():
    require_numerics(tiny_recipe(precision="bfloat16"), "cpu")


def test_the_bounds_leave_room_for_what_the_paper_does():
    assert MOST["frames"] > 10**9
    assert all(math.isfinite(most) for most in MOST.values())
