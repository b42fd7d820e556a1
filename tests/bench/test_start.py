"""What keeps the start short: nothing is imported, built or parsed that the command does not need."""

import json
import subprocess
import sys

import pytest

from maskrl.bench.start import bench_start, make_full
from maskrl.runs.directory import Run
from maskrl.runs.loop import train
from tiny_runs import tiny_recipe

# Counts, in the real command, how often an agent with data in its weights is built, and how often overrides are parsed.
COUNTED = """
import atexit, json, sys
calls = {"agents": 0, "parsed": 0}
def count(frame, event, _):
    if event == "call":
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if name == "__init__" and file.endswith("agents/base.py") and "policy" in frame.f_locals:
            calls["agents"] += frame.f_locals["device"].type != "meta"
        calls["parsed"] += name == "with_overrides" and file.endswith("recipes/overrides.py")
atexit.register(lambda: print(json.dumps(calls)))
sys.setprofile(count)
from maskrl.cli import main
main()
"""


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["--version"]], ids=" ".join)
def test_help_loads_neither_torch_nor_any_other_large_package(words):
    code = "import sys, atexit; atexit.register(lambda: print(*sys.modules)); from maskrl.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "typer" in loaded
    large = {"torch", "numpy", "gymnasium", "maskrl.doctor", "maskrl.recipes", "maskrl.runs.directory"}
    assert not loaded & large


def test_a_command_builds_its_agent_once_and_parses_its_overrides_once(tmp_path):
    sizes = ["budget.frames=80", "agent.warmup_decisions=40", "agent.batch_size=4", "agent.auxiliary.clips=2"]
    few = ["evaluation.episodes=1", "evaluation.every=80", "checkpoint_every=40", "threads=1"]
    words = ["train", "toy/reach", *sizes, *few, "--run-dir", str(tmp_path / "run"), "--log", "none"]

    def counted():
        done = subprocess.run([sys.executable, "-c", COUNTED, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    assert counted() == {"agents": 1, "parsed": 1}
    (tmp_path / "run/status.json").write_text('{"status": "stopped"}')
    newest = max((tmp_path / "run/checkpoints").iterdir(), key=lambda path: path.name)
    newest.unlink()  # so that there is something left to do
    assert counted() == {"agents": 1, "parsed": 1}
    assert counted() == {"agents": 0, "parsed": 1}  # it is finished


def test_a_full_run_can_be_continued_to_its_end(tmp_path):
    run = Run.create(tmp_path / "run", tiny_recipe())
    decisions = make_full(run.recipe, run)
    assert run.status == "stopped"
    assert decisions == run.recipe.frames // run.recipe.env.action_repeat - 1
    train(run.recipe, run)
    assert (run.status, run.scores[-1]["decisions"]) == ("done", decisions + 1)


@pytest.mark.slow
def test_what_one_waits_for_is_measured_in_real_commands():
    from maskrl import recipes

    words = ["toy/reach", "budget.frames=200", "evaluation.every=200", "checkpoint_every=200"]
    result = bench_start(recipes.resolve(*words[:1], words[1:]), words, rounds=1, tell=lambda text: None)
    times = [
        result.values[name].median for name in ("seconds_of_help", "seconds_to_first_frame", "seconds_to_continue")
    ]
    assert all(seconds > 0 for seconds in times)
    assert times[0] < times[1]
