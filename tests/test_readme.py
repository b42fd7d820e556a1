"""What the README, the start page and the examples show is run as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from maskrl import cli
from maskrl.runs.directory import Run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=block.splitlines()[0], marks=[pytest.mark.slow] if "train(" in block else [])
        for block in BLOCKS
    ],
)
def test_every_python_block_of_the_readme_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


def test_the_readme_fits_on_a_screen_and_a_half():
    shown = re.sub(r"```.*?```|<!--.*?-->|\]\([^)]*\)", " ", README, flags=re.DOTALL)
    assert len(re.findall(r"\w[\w'.,-]*", shown)) <= 450


def test_the_plug_in_example_is_five_lines():
    code = [line for line in BLOCKS[0].splitlines() if line and not line.startswith(("import", "from"))]
    assert len(code) == 5


def test_every_make_command_of_the_readme_exists():
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE)) <= set(targets)


START = (ROOT / "docs" / "index.md").read_text()
SHELL = "".join(re.findall(r"```sh\n(.*?)```", README + START, flags=re.DOTALL))
COMMANDS = re.findall(r"^maskrl (.*)$", SHELL, flags=re.MULTILINE)


def test_the_start_page_has_commands():
    assert len(COMMANDS) >= 7


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "toy"
    maskrl("train", "toy/reach", *SHORT, "--run-dir", str(path))
    return path


SHORT = (
    "budget.frames=120",
    "agent.warmup_decisions=60",
    "evaluation.every=60",
    "evaluation.episodes=1",
    "agent.batch_size=8",
)


def maskrl(*arguments: str, cwd: Path | None = None) -> str:
    command = [sys.executable, "-m", "maskrl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd).stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_maskrl_command_of_the_start_page_exists_with_its_options(
    command: str, capsys: pytest.CaptureFixture[str]
):
    words = command.split("#")[0].split()
    names = words[:2] if words[0] == "recipes" else words[:1]
    with pytest.raises(SystemExit) as end:
        cli.main([*names, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert [word for word in words if word.startswith("--") and word not in shown] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_maskrl_command_of_the_start_page_runs_as_printed_on_the_toy(command: str, toy_run: Path, tmp_path: Path):
    on_toy = {"RUN": str(toy_run), "sweeps/mine": str(toy_run), "dmcontrol-100k": "toy/reach", "5": "1"}
    words = [on_toy.get(word, word) for word in command.split("#")[0].split()]
    if words[0] == "train":
        words = [*("toy/reach" if word.startswith("dmcontrol/") else word for word in words), *SHORT]
    words += {"plan": ["--quick"], "sweep": [*SHORT, "--methods", "mlr", "--out", "there"]}.get(words[0], [])
    assert maskrl(*words, cwd=tmp_path)


@pytest.mark.slow
def test_the_own_loop_example_raises_the_cosine_of_masked_and_unmasked_latents():
    command = [sys.executable, ROOT / "examples" / "own_loop.py", "--updates", "60"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    plain, centred = (
        [float(number) for number in re.search(rf"{name}\s+(\S+) -> (\S+)", printed).groups()]
        for name in ("as in the paper", "mean latent removed")
    )
    assert plain[1] > plain[0]  # which is high from the start: all latents have much in common
    assert centred[1] > centred[0] + 0.3


@pytest.mark.slow
@pytest.mark.parametrize("example", ["own_objective.py", "own_logger.py"])
def test_an_example_of_ones_own_trains(example: str, tmp_path: Path):
    words = [sys.executable, str(ROOT / "examples" / example), str(tmp_path / "run"), "400"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert Run.open(tmp_path / "run").status == "done"


def test_the_example_of_an_own_objective_fits_on_a_screen():
    assert len((ROOT / "examples" / "own_objective.py").read_text().splitlines()) <= 60
