"""How torch's threads wait, in real processes, and how many a run gets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import maskrl
from maskrl import threads
from maskrl.machine import physical_cores
from maskrl.recipes import resolve
from maskrl.runs import threads as of_runs
from maskrl.runs.directory import Run
from maskrl.runs.loop import train
from maskrl.runs.threads import threads_of
from maskrl.studies.backends import attempt
from maskrl.studies.jobs import Job
from maskrl.studies.sweep import log_of
from tiny_runs import tiny_recipe

gnu = pytest.mark.skipif(
    sys.platform != "linux", reason="torch has another OpenMP here, which does not show its settings"
)


def python(code, **environment):
    """A fresh Python whose OpenMP shows its settings when it is loaded: what it printed, and what it complained of."""
    inherited = {name: value for name, value in os.environ.items() if name not in {*threads.NAMES, "OMP_NUM_THREADS"}}
    settings = inherited | {"OMP_DISPLAY_ENV": "VERBOSE"} | environment
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@gnu
@pytest.mark.parametrize(
    ("environment", "spins"),
    [({}, "5000"), ({"GOMP_SPINCOUNT": "7000"}, "7000"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "30000000000")],
    ids=["nobody asked", "a count", "a policy"],
)
def test_threads_wait_passively_unless_the_user_says_otherwise(environment, spins):
    out, settings = python("import maskrl, torch; print(maskrl.threads.SPINS)", **environment)
    assert out == "False"
    assert f"GOMP_SPINCOUNT = '{spins}'" in settings


@gnu
def test_openmp_reads_its_settings_when_torch_is_loaded_so_later_is_too_late():
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'])"  # is told in time
    out, settings = python(
        f"import torch, maskrl; print(maskrl.threads.SPINS, maskrl.threads.usual_threads()); {child}"
    )
    assert out == "True 1"
    assert [line.split("'")[1] for line in settings.splitlines() if "GOMP_SPINCOUNT" in line] == ["300000", "5000"]


@gnu
def test_the_command_line_waits_passively():
    out, settings = python("from maskrl.cli import main; main(['recipes', 'show', 'toy/reach'])")
    assert "threads" in out
    assert "GOMP_SPINCOUNT = '5000'" in settings


@gnu
def test_a_run_of_a_sweep_waits_passively(tmp_path, monkeypatch):
    for name in threads.NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_DISPLAY_ENV", "VERBOSE")
    job = Job("toy/reach", ("budget.frames=nonsense",), "lite", "mlr", tiny_recipe(), "run")  # ends before it trains
    attempt(job, tmp_path)
    assert "GOMP_SPINCOUNT = '5000'" in log_of(tmp_path, "run").read_text()


def test_a_run_that_names_no_threads_has_a_core_each_up_to_a_limit(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for cores, physical, threads_there in ((2, 2, 2), (8, 4, 4), (3, 8, 3), (64, 64, threads.MOST)):
        monkeypatch.setattr(threads, "cores_allowed", lambda cores=cores: cores)
        monkeypatch.setattr(threads, "physical_cores", lambda physical=physical: physical)
        assert threads.usual_threads() == threads_there
    for asked, given in (("3", 3), ("3,2", 3), ("100", threads.MOST), ("0", threads.MOST), ("many", threads.MOST)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert threads.usual_threads() == given


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "cores_allowed", lambda: 4)
    monkeypatch.setattr(threads, "physical_cores", lambda: 4)


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("name", "profile", "overrides", "expected"),
    [
        ("dmcontrol/cheetah-run", "lite", [], 1),
        ("atari/pong", "lite", [], 1),
        ("dmcontrol/cheetah-run", "lite", ["threads=2"], 2),  # the user has decided
        ("dmcontrol/cheetah-run", "lite", ["agent.encoder.filters=32"], 4),  # measured: does not lose on busy cores
        ("dmcontrol/cheetah-run", "paper", [], 4),
        ("atari/pong", "paper", [], 4),
    ],
)
def test_small_layers_get_one_thread(name, profile, overrides, expected):
    assert threads_of(resolve(name, overrides, profile=profile)) == expected


@pytest.mark.usefixtures("four_cores")
def test_an_encoder_of_unknown_size_is_not_taken_for_small():
    assert threads_of(maskrl.recipe("toy/reach", "threads=none", encoder=torch.nn.Identity)) == 4


def test_the_work_of_a_piece_is_that_of_its_convolutions_and_products():
    """By hand, for observations of 24 × 24: four layers of 3 × 3 with 4 filters, the first with stride 2, and a linear layer."""
    convolutions = [(9, 11), (4, 9), (4, 7), (4, 5)]  # input channels, side of the output
    flops = sum(2 * 9 * channels * 4 * side * side for channels, side in convolutions) + 2 * 4 * 5 * 5 * 10
    recipe = tiny_recipe(mlr=False)
    at_once = recipe.agent.workload(None, torch.device("cpu")).at_once
    assert of_runs.piece_flops(recipe) == at_once * flops


def test_two_halves_of_a_core_count_as_one(tmp_path):
    for number, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"sys/devices/system/cpu/cpu{number}/topology").mkdir(parents=True)
        (tmp_path / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list").write_text(f"{siblings}\n")
    allowed = os.sched_getaffinity(0)
    assert physical_cores(tmp_path) == len({number % 2 if number < 4 else number for number in allowed})
    assert physical_cores(Path("/nowhere")) == len(allowed)


# ── A run keeps its threads ───────────────────────────────────────────────────────────────────────────────────────────


def noted(run):
    return [event["text"] for event in run.events("note")]


def test_a_run_keeps_the_threads_that_it_was_made_with(tmp_path, monkeypatch):
    monkeypatch.setattr(of_runs, "SMALL", 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert Run.create(tmp_path / "a", tiny_recipe()).threads == 1
    monkeypatch.setattr(threads, "cores_allowed", lambda: 2)
    monkeypatch.setattr(threads, "physical_cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    made = Run.create(tmp_path / "b", tiny_recipe())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert (Run.create(tmp_path / "b", tiny_recipe()).threads, Run.open(tmp_path / "b").threads) == (2, 2)
    train(made.recipe, made)
    assert torch.get_num_threads() == 2
    assert not noted(made)
    assert Run.create(tmp_path / "c", tiny_recipe(threads=3)).threads == 3


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("stored", [0, -1, 10**9, "2", True, None, [2]])
def test_threads_that_no_run_has_stored_are_not_taken(tmp_path, monkeypatch, stored):
    run = Run.create(tmp_path / "run", tiny_recipe())
    (run.path / "versions.json").write_text(json.dumps({"threads": stored}))
    assert run.threads == 1  # its layers are small
    monkeypatch.setattr(of_runs, "SMALL", 0)
    assert run.threads == 4


def test_a_run_whose_threads_spin_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "SPINS", True)
    assert of_runs.note_of(tiny_recipe(), 1) is None  # it has one thread in any case: its layers are small
    assert of_runs.note_of(tiny_recipe(threads=1), 1) is None
    monkeypatch.setattr(of_runs, "SMALL", 0)
    run = Run.create(tmp_path / "run", tiny_recipe())
    assert run.threads == 1
    train(run.recipe, run)
    assert len(noted(run)) == 1
    assert "Import maskrl before torch" in noted(run)[0]
    assert "2 threads spin" in threads.advice(2)


def test_a_run_with_more_threads_than_cores_says_so(monkeypatch):
    monkeypatch.setattr(threads, "cores_allowed", lambda: 2)
    assert threads.advice(2) is None
    assert "4 threads" in threads.advice(4)
    assert "2 cores" in threads.advice(4)


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
