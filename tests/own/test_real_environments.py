"""Real environments of other packages, each all the way: checked, trained, killed, resumed, evaluated, exported."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

import maskrl
from maskrl.runs.directory import Run

pytestmark = pytest.mark.slow


class Case(NamedTuple):
    name: str
    overrides: tuple[str, ...]
    agent: str
    repeats: bool = True


ROOT = Path(__file__).parent
CASES = [
    Case("gym/CarRacing-v3", ("env.time_limit=60",), "sac"),
    Case("gym/MiniGrid-Empty-5x5-v0", ("env.wrappers=minigrid.wrappers:RGBImgPartialObsWrapper",), "rainbow"),
    Case("gym/VizdoomBasic-v1", ("env.time_limit=60",), "rainbow"),
    # Crafter draws from sets of objects, whose order is that of addresses: now and then, a replay differs.
    Case(f"{ROOT / 'crafter_env.py'}:make_env", ("env.time_limit=60",), "rainbow", repeats=False),
    Case("gym/ALE/Breakout-v5", ("env.time_limit=60", "env.colour=grey", "env.max_of_two=true"), "rainbow"),
]
SHORT = (
    *("budget.frames=200", "evaluation.every=200", "evaluation.episodes=1", "checkpoint_every=40", "threads=1"),
    *("agent.warmup_decisions=40", "agent.batch_size=8", "agent.hidden=32", "env.size=36", "env.action_repeat=1"),
    *("objective.clip_length=8", "objective.mask.cube=8,6,6"),
)
SMALL = {"sac": ("agent.auxiliary.clips=2",), "rainbow": ("agent.clips=2", "agent.micro_batch=none")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.rpartition("/")[2])
def test_from_the_environment_to_a_policy_in_use(case, tmp_path):
    words = [case.name, *case.overrides, *SHORT, *SMALL[case.agent], "--profile", "lite"]
    checked = json.loads(run("check", case.name, *case.overrides, "--json", cwd=tmp_path))
    assert checked["usable"], checked
    if case.repeats:
        assert any("a resume should be exact" in row["seen"] for row in checked["findings"])
    killed_in_the_middle(["train", *words, "--log", "none", "--run-dir", "run"], tmp_path)
    run("train", *words, "--log", "none", "--run-dir", "run", cwd=tmp_path)
    made = Run.open(tmp_path / "run")
    assert (made.status, made.recipe.agent.kind) == ("done", case.agent)
    notes = [event["text"] for event in made.events("note")]
    if case.repeats:
        assert not any("was not restored" in note for note in notes)
    assert json.loads(run("evaluate", "run", "--episodes", "1", "--json", cwd=tmp_path))["frames"] == 200
    told = run("export", "run", "--out", "policy.onnx", "--observations", "40", "--episodes", "1", cwd=tmp_path)
    assert "40 observations of its own play" in told
    if case.repeats:
        assert "the same returns over 1 episode" in told
    played = subprocess.run([sys.executable, "-c", PLAY], cwd=tmp_path, env=_environment(tmp_path), check=False)
    assert played.returncode == 0


# In a process of its own, as all else: Box2D's module warns when it is imported, and ends a process whose warnings are errors.
PLAY = """
from pathlib import Path

import maskrl
from maskrl.runs.directory import Run

env, policy = Run.open(Path("run")).recipe.env.open(), maskrl.load("run")
seen, _ = env.reset(seed=1)
assert policy.act(seen) in env.action_space
"""


def run(*words: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "maskrl", *words], cwd=cwd, env=_environment(cwd), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def killed_in_the_middle(words: list[str], cwd: Path) -> None:
    """Kill -9 once there is a checkpoint."""
    process = subprocess.Popen(
        [sys.executable, "-m", "maskrl", *words], cwd=cwd, env=_environment(cwd), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    while process.poll() is None and not list((cwd / "run" / "checkpoints").glob("00000[12]-*")):
        time.sleep(0.05)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert Run.open(cwd / "run").status == "stopped"


def _environment(cwd: Path) -> dict[str, str]:
    return os.environ | {
        "XDG_CONFIG_HOME": str(cwd / "config"), "SDL_VIDEODRIVER": "dummy",
        "PYTHONPATH": str(Path(maskrl.__file__).parents[1]),
    }  # fmt: skip
