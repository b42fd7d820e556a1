"""Every command on an environment of one's own: sweep, Ray, report, plan, masks, probe; and environments that misbehave."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_own_environment import SAC, config, own

import maskrl
import own_env
from calling import called
from maskrl.files import EnvironmentFailedError
from maskrl.runs.directory import Run
from sweeps import maskrl as started
from tiny_runs import trained

__all__ = ["config"]  # a fixture
NAME = f"{Path(own_env.__file__)}:make_env"
SWEEP = ["sweep", NAME, *SAC, "--methods", "mlr,baseline", "--seeds", "1", "--profile", "lite"]


def swept(tmp_path: Path, *words: str) -> Path:
    process = started(*SWEEP, *words, "--out", str(tmp_path / "sweep"))
    printed, _ = process.communicate(timeout=500)
    assert process.returncode == 0, printed
    return tmp_path / "sweep"


def succeeds(*words: str) -> str:
    code, printed = called(list(words), seconds=300)
    assert code == 0, printed
    return printed


def test_a_sweep_is_reported_probed_planned_and_shown(tmp_path: Path):
    sweep = swept(tmp_path)
    runs = sorted(path.parent for path in sweep.rglob("recipe.json"))
    assert [Run.open(run).status for run in runs] == ["done", "done"]
    assert {Run.open(run).recipe.method for run in runs} == {"mlr", "baseline"}
    assert succeeds("sweep", "status", str(sweep)).count("done") >= 2
    page = tmp_path / "report.html"
    succeeds("report", str(sweep), "--out", str(page))
    assert "own_env.py:make_env" in page.read_text()
    mlr = next(run for run in runs if Run.open(run).recipe.objective is not None)
    succeeds("probe", str(mlr), "--clips", "2")
    assert (mlr / "probe.json").exists()
    succeeds("masks", str(mlr), "--out", str(tmp_path / "masks.html"))
    assert "decisions" in succeeds("plan", NAME, *SAC, "--seeds", "2", "--profile", "lite", "--quick")


@pytest.mark.slow
def test_a_sweep_runs_on_ray(tmp_path: Path):
    pytest.importorskip("ray")
    sweep = swept(tmp_path, "--backend", "ray", "--address", "local")
    assert [Run.open(path.parent).status for path in sweep.rglob("recipe.json")] == ["done", "done"]


PRINTS = [NAME, *SAC, "env.kwargs.fault=prints", "budget.frames=20", "evaluation.every=20", "agent.warmup_decisions=10"]


@pytest.mark.parametrize("way", ["overlap=false", "overlap=true"])
def test_what_an_environment_prints_does_not_come_between_the_lines_of_training(tmp_path: Path, way: str):
    words = ["train", *PRINTS, way, "--profile", "lite", "--run-dir", str(tmp_path / "run"), "--log", "none"]
    ended = subprocess.run(
        [sys.executable, "-m", "maskrl", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "Done: gym/own_env.py:make_env" in ended.stdout
    assert "moving" not in ended.stdout
    assert "moving" in ended.stderr


def test_what_an_environment_prints_does_not_come_between(tmp_path: Path):
    run, _ = trained(tmp_path / "run", own(*SAC, "env.kwargs.fault=prints", "budget.frames=20", "evaluation.every=20"))
    process = started("evaluate", str(run.path), "--episodes", "1", "--json", "--trust")
    printed = process.communicate(timeout=300)[0]
    assert process.returncode == 0, printed
    assert json.loads(printed.splitlines()[-1])["frames"] == 20


BREAKS = """
import os
import numpy as np
import own_env

class Breaks(own_env.Dot):
    def step(self, action):
        if os.path.exists(__file__ + ".broken") and self.steps == 3:
            np.stack([np.zeros(1), np.zeros(2)])
        return super().step(action)

    def state(self):  # for the probe, which plays only if there is one
        return {"x": float(self.x)}
"""
PLAYING = [
    ["evaluate", "run"],
    ["export", "run", "--out", "policy.pt2"],
    ["play", "run", "--out", "play.gif"],
    ["probe", "run", "--clips", "2"],
    ["masks", "run", "--out", "masks.html"],
]


def test_an_error_of_the_environment_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The error is one of numpy, and the place is the user's line that led to it."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(BREAKS)
    short = ("budget.frames=30", "evaluation.every=30", "checkpoint_every=30")
    trained(tmp_path / "run", maskrl.recipe("mine.py:Breaks", *SAC, *short, profile="lite"))
    Path("mine.py.broken").touch()
    before = sorted(tmp_path.rglob("*"))
    place = rf"mine.py:Breaks failed in step\(\): ValueError: all input arrays.* \({tmp_path / 'mine.py'}, line 9\)"
    for words in PLAYING:
        code, printed = called(words, seconds=100)
        assert code == 1, printed
        assert re.search(place, printed), printed
        assert "Correct the environment, then run the same command" in printed
        assert "Traceback" not in printed
        assert sorted(tmp_path.rglob("*")) == before
    code, printed = called(["check", "mine.py:Breaks", "--json"], seconds=100)
    assert code == 1
    assert re.search(place, json.loads(printed)["findings"][0]["seen"])


def test_a_reward_that_is_no_number_stops_a_run_and_loses_nothing(tmp_path: Path):
    recipe = own(*SAC, "env.kwargs.fault=nan", "checkpoint_every=2")
    with pytest.raises(EnvironmentFailedError, match="the reward is nan, and must be a finite number"):
        trained(tmp_path / "run", recipe)
    run = Run.open(tmp_path / "run")
    assert run.status == "failed"
    assert run.newest(lambda _: None, older=True)["position"]["decisions"] == 6  # all that was before it


def test_the_run_of_a_stranger_is_probed_shown_and_pretrained_in_ones_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The refusal names --env, so every command that it ends must take it; only a run's own environment can continue it."""
    monkeypatch.chdir(tmp_path)
    Path("theirs.py").write_text(BREAKS)
    Path("mine.py").write_text(BREAKS + "\nopen('played', 'w').close()\n")
    short = ("budget.frames=30", "evaluation.every=30", "checkpoint_every=30")
    trained(tmp_path / "run", maskrl.recipe("theirs.py:Breaks", *SAC, *short, profile="lite"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "stranger"))
    for words in (
        ["probe", "run", "--clips", "2"],
        ["masks", "run", "--out", "masks.html"],
        ["pretrain", "run", "--out", "encoder", "--transitions", "30", "--updates", "2"],
    ):
        monkeypatch.setenv("MASKRL_CONSENT", "")
        code, printed = called(words, seconds=100)
        assert code == 2, printed
        assert "--env FILE.py:FUNCTION" in printed
        succeeds(*words, "--env", "mine.py:Breaks")
    assert Path("played").exists()
    monkeypatch.setenv("MASKRL_CONSENT", "")
    code, printed = called(["extend", "run", "budget.frames=40"])
    assert code == 2, printed
    assert "--trust" in printed
    assert "--env" not in printed
    succeeds("extend", "run", "budget.frames=40", "--trust", "--log", "none")
