"""The examples for other people's agents run as they are, only shorter."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(example: str, *words: str, cwd: Path) -> str:
    command = [sys.executable, str(EXAMPLES / example), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", ["dqn_single_file.py", "sac_single_file.py"])
def test_mlr_is_three_marked_lines(example: str):
    lines = (EXAMPLES / example).read_text().splitlines()
    assert [line.split("── MLR ")[1][:6] for line in lines if "── MLR " in line] == ["1 of 3", "2 of 3", "3 of 3"]


@pytest.mark.slow
@pytest.mark.parametrize("example", ["dqn_single_file.py", "sac_single_file.py"])
def test_a_single_file_agent_trains(example: str, tmp_path: Path):
    printed = run(example, "steps=90", "learning_starts=40", "evaluate_every=45", "batch_size=8", cwd=tmp_path)
    assert printed.count("mlr cosine") == 2
    assert "return at the end" in printed


@pytest.mark.slow
def test_car_racing_trains_and_goes_on_from_its_files(tmp_path: Path):
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("Box2D")
    for _ in range(2):
        run("sb3_car_racing.py", "20", cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"car_racing.zip", "car_racing.mlr.safetensors"}


@pytest.mark.slow
def test_an_atari_game_trains(tmp_path: Path):
    pytest.importorskip("stable_baselines3")
    run("sb3_atari.py", "40", cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"pong.zip", "pong.mlr.safetensors"}


@pytest.mark.slow
def test_the_study_writes_every_score_at_once_and_goes_on_after_a_kill(tmp_path: Path):
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("dm_control")
    out = tmp_path / "study"
    words = [str(out), "dmcontrol/cartpole-swingup", "1", "sb3+mlr", "agent.warmup_decisions=20", "agent.batch_size=8"]
    words += ["evaluation.every=320", "evaluation.episodes=1", "agent.auxiliary.clips=2", "budget.frames=640"]
    command = [sys.executable, str(EXAMPLES / "sb3_study.py"), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as begun:
        assert begun.stdout is not None
        assert "frames 320" in begun.stdout.readline()
        begun.kill()
    printed = run("sb3_study.py", *words, cwd=tmp_path)
    assert printed.count("frames 640") == 1
    head, *rows = csv.reader((out / "scores.csv").read_text().splitlines())
    assert head[:6] == ["method", "task", "seed", "frames", "decisions", "updates"]
    told = ["sb3+mlr", "dmcontrol/cartpole-swingup", "1"]
    assert [row[:6] for row in rows] == [
        [*told, "320", "40", "20"],
        [*told, "640", "80", "60"],
    ]  # 20 decisions of warm-up
    first, last = ([float(row[head.index(name)]) for name in ("seconds", "cpu_seconds")] for row in rows)
    assert all(0 < before <= after for before, after in zip(first, last, strict=True))
    assert run("sb3_study.py", *words, cwd=tmp_path).count("\n") == 1  # the table alone: nothing is trained again
    about = json.loads((out / "about.json").read_text())
    assert about["commands"] == [" ".join(["python examples/sb3_study.py OUT", *words[1:]])]
    (entry,) = about["recipes"]
    assert (about["runs"], entry["method"], entry["recipe"]["objective"]["kind"]) == (1, "sb3+mlr", "mlr")
    assert entry["note"].endswith(", q_momentum, augment.shift, auxiliary.")


def test_published_agents_of_sb3_have_the_recipe_that_the_study_gives_them(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("stable_baselines3")
    monkeypatch.syspath_prepend(EXAMPLES)
    import sb3_study  # type: ignore[import-not-found]

    for study, changed in (("lite-sb3", ["evaluation.episodes=20"]), ("sb3-cartpole-balance", [])):
        about = json.loads((EXAMPLES.parent / "results" / study / "about.json").read_text())
        for entry in about["recipes"]:
            recipe = sb3_study.recipe_of(entry["method"], entry["task"], "budget.frames=60000", *changed)
            expected = sb3_study.described(entry["method"], recipe)
            for told in (entry, expected):
                told["recipe"] |= {"seed": 0, "threads": None, "device": "auto"}
            assert entry == expected
