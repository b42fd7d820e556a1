"""`maskrl probe` and `maskrl pretrain` as they are typed, on the toy suite."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from maskrl import cli
from maskrl.recipes import find
from maskrl.recipes.published import representation_cosines
from maskrl.recipes.schema import Budget, Evaluation
from maskrl.runs.directory import Run
from tiny_runs import tiny_recipe, trained


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskrl.representation.probe.DECISIONS", 400)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    toy = find("toy/reach")  # whose frames and clips these runs have, too, with networks that learn in seconds
    agent = replace(tiny_recipe().agent, augment=toy.agent.augment)
    settings = {
        "env": toy.env,
        "agent": agent,
        "budget": Budget(frames=100),
        "evaluation": Evaluation(every=100, episodes=1),
    }
    objectives = {"mlr": toy.objective, "baseline": None}
    return {
        name: trained(folder / name, tiny_recipe(**settings, objective=objective))[0]
        for name, objective in objectives.items()
    }


def typed(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    assert not end.value.code
    return tuple(capsys.readouterr())


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    assert end.value.code == 2
    return capsys.readouterr().err


def test_help_names_every_option(capsys):
    assert all(word in typed(capsys, "probe", "--help")[0] for word in ("RUN", "--clips", "--json", "probe.json"))
    shown = typed(capsys, "pretrain", "--help")[0]
    assert all(word in shown for word in ("RUN", "--out", "--transitions", "--updates", "Decisions"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlr", "baseline"])
def test_a_probe_is_printed_in_words_and_as_json(finished, name, capsys):
    run = finished[name]
    out, err = typed(capsys, "probe", run.path)
    assert "fewer than 10,000" in err
    found = json.loads((run.path / "probe.json").read_text())
    assert f"cosine {found['encoder_cosine']:.3f} of masked and original" in out
    assert ("none: there is no objective" in out) == (name == "baseline")
    assert ("masks (its own)" in out) == (name == "mlr")
    assert ("those of the task's MLR): cube, 4 × 8 × 8" in out) == (name == "baseline")  # of toy/reach
    assert "the paper has it only for dmcontrol/cheetah-run and dmcontrol/reacher-easy" in out
    assert re.search(r"linear +R² -?\d\.\d{3} of the true state", out)
    printed = json.loads(typed(capsys, "probe", run.path, "--json")[0])
    assert printed.items() >= {**found, "method": name, "recipe": "toy/reach", "seed": 1}.items()
    out, err = typed(capsys, "probe", run.path, "--clips", 2)
    assert "16 observations of the replay, in 2 clips of 8" in out
    assert err == ""


def test_the_papers_cosine_stands_beside_that_of_its_task_and_lite_says_that_it_is_another():
    from maskrl.cli.representation import _rows

    found = {
        **dict.fromkeys(("encoder_cosine", "encoder_cosine_centred", "rank", "dead", "dead_channels"), 0.5),
        **{"observations": 16, "clips": 1, "clip_length": 16, "decoder_cosine": None, "linear": None},
        **{"linear_reason": "nobody knows", "mask": {"strategy": "cube", "cube": (8, 10, 10), "ratio": 0.5}},
    }
    for method, printed in (("mlr", "MLR"), ("baseline", "Baseline")):
        paper = representation_cosines()[printed, "dmcontrol/cheetah-run"]
        rows = {p: _rows(find("dmcontrol/cheetah-run", p, method), found, "") for p in ("paper", "lite")}
        assert rows["paper"]["encoder"].endswith(f"(paper, Table 10: {paper})")
        assert rows["lite"]["encoder"].endswith(f"(paper, Table 10: {paper}; not comparable: lite profile)")
        assert rows["lite"]["linear"] == "none: nobody knows"


def test_an_encoder_is_made_and_a_baseline_begins_with_it(finished, tmp_path, capsys):
    out, err = typed(
        capsys, "pretrain", finished["baseline"].path, "--out", tmp_path / "e", "--transitions", 40, "--updates", 3
    )
    assert err == ""
    assert "collecting: 40 of 40 decisions (100%)" in out
    assert "learning: 3 of 3 updates (100%)" in out
    file = tmp_path / "e" / "encoder.safetensors"
    assert f"begin with maskrl train toy/reach encoder_from={file} --method baseline\n" in out
    again, _ = typed(
        capsys, "pretrain", finished["baseline"].path, "--out", tmp_path / "e", "--transitions", 40, "--updates", 3
    )
    assert "collecting" not in again
    assert str(file) in again
    small = [
        "agent.encoder.filters=4",
        "agent.hidden=16",
        "budget.frames=20",
        "evaluation.every=20",
        "checkpoint_every=20",
    ]
    error = refused(
        capsys, "train", "toy/reach", "objective=none", *small, f"encoder_from={file}", "--run-dir", tmp_path / "r"
    )
    assert "does not fit the recipe" in error  # that of the run has a latent of 10
    assert not (tmp_path / "r").exists()
    error = refused(capsys, "train", "toy/reach", "encoder_from=nowhere", "--run-dir", tmp_path / "r")
    assert "There is no file nowhere" in error
    assert not (tmp_path / "r").exists()


def test_a_run_with_the_objective_may_collect_but_is_told_apart_from_the_papers(finished, tmp_path, capsys):
    out, _ = typed(
        capsys, "pretrain", finished["mlr"].path, "--out", tmp_path / "e", "--transitions", 40, "--updates", 1
    )
    assert "the paper collects with a Baseline" in out


def test_what_cannot_be_done_is_refused_without_a_traceback(finished, tmp_path, capsys):
    assert "holds no run" in refused(capsys, "probe", tmp_path)
    assert "holds no run" in refused(capsys, "pretrain", tmp_path, "--out", tmp_path / "e")
    assert "no checkpoint yet" in refused(capsys, "probe", Run.create(tmp_path / "new", tiny_recipe()).path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    assert "Choose another --out" in refused(capsys, "pretrain", finished["baseline"].path, "--out", tmp_path / "full")


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_goes_on(finished, tmp_path):
    command = [sys.executable, "-m", "maskrl", "pretrain", str(finished["baseline"].path), "--out", str(tmp_path / "e")]
    command += ["--transitions", "40", "--updates", "100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    metrics, deadline = tmp_path / "e" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:  # an update was logged
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.rstrip().endswith(" ".join(["maskrl", *command[3:]]))
    assert not (tmp_path / "e" / "encoder.safetensors").exists()
    assert len(list((tmp_path / "e" / "checkpoints").glob("*.safetensors"))) == 2  # of the turn, and of the stop
