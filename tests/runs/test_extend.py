"""A run with a larger budget: the same, bit for bit, as one that had it from the start."""

import json
from dataclasses import replace

import pytest

from maskrl.cli import main
from maskrl.recipes.schema import Budget, Evaluation, ReplayConfig
from maskrl.runs.directory import Run, RunError
from maskrl.runs.extend import extend, plan
from tiny_runs import events, same_end, tiny_rainbow, tiny_recipe, trained


@pytest.mark.parametrize("tiny", [tiny_recipe, tiny_rainbow])
def test_an_extended_run_is_the_longer_run(tmp_path, tiny):
    unit = "frames" if tiny is tiny_recipe else "decisions"
    # One that throws away frames all along, and one that grows with the budget.
    replay = ReplayConfig(capacity=80 if tiny is tiny_rainbow else 100_000)
    long = tiny(replay=replay, budget=Budget(**{unit: 200}))
    whole, _ = trained(tmp_path / "whole", long)
    run, _ = trained(tmp_path / "run", replace(long, budget=Budget(**{unit: 100})))
    extension = plan(run, [f"budget.{unit}=200"])
    assert extension.recipe == long
    assert extension.differences == ()
    longer = extend(run, extension.recipe)
    assert (longer.status, Run.open(longer.path).recipe) == ("stopped", long)
    trained(longer.path, long)
    assert Run.open(longer.path).status == "done"
    assert same_end(whole, longer)
    assert events(whole) == events(longer)


def test_a_full_replay_stays_as_large_as_it_is_and_that_is_said(tmp_path):
    agent = replace(tiny_recipe().agent, warmup_decisions=400)  # nothing learns: only the replay matters
    short = tiny_recipe(budget=Budget(frames=400), evaluation=Evaluation(every=400, episodes=1), mlr=False, agent=agent)
    run, _ = trained(tmp_path / "run", short)
    extension = plan(run, ["budget.frames=480"])
    assert extension.recipe.replay.capacity == 400
    assert "its replay keeps 400 decisions" in extension.differences[0]
    longer = extend(run, extension.recipe)
    trained(longer.path, extension.recipe)
    assert Run.open(longer.path).status == "done"


def test_an_evaluation_that_the_longer_run_would_not_have_is_told(tmp_path):
    short = tiny_recipe(budget=Budget(frames=80), evaluation=Evaluation(every=50, episodes=1), mlr=False)
    run, _ = trained(tmp_path / "run", short)
    (words,) = plan(run, ["budget.frames=200"]).differences
    assert "an evaluation at 80 frames" in words


def test_what_is_no_larger_budget_is_refused(tmp_path, capsys):
    run, _ = trained(tmp_path / "run", tiny_recipe(budget=Budget(frames=70), mlr=False))
    before = (run.path / "recipe.json").read_text()
    for overrides, words in (
        (["budget.frames=70"], "Name a larger one"),
        (["seed=3"], "only the budget"),
        (["budget.frames=many"], "expected a whole number"),
    ):
        with pytest.raises(RunError, match=words):
            plan(run, overrides)
    with pytest.raises(SystemExit):
        main(["extend", str(run.path)])
    assert "Name a larger budget" in capsys.readouterr().err
    assert (run.path / "recipe.json").read_text() == before


def test_a_killed_run_is_not_running(tmp_path):
    run, _ = trained(tmp_path / "run", tiny_recipe(budget=Budget(frames=70), mlr=False))
    run.set_status("running")
    assert run.status == "stopped"
    with run.locked():
        assert Run.open(run.path).status == "running"
    assert json.loads((run.path / "status.json").read_text())["status"] == "running"
