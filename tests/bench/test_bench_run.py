"""What `maskrl bench run` computes from what it times. How long anything takes is asserted nowhere."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.optim import Adam

from conftest import Typed
from maskrl import recipes
from maskrl.bench import run
from maskrl.bench.run import PARTS, bench_run, compare_runs, shortened
from maskrl.nn.augment import Augment, View
from maskrl.nn.momentum import Momentum
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Replay
from maskrl.runs import loop, state
from tiny_runs import tiny_rainbow, tiny_recipe


def silent(_: str) -> None:
    pass


def replaced() -> tuple[object, ...]:
    """What is replaced by timed functions while a run is timed."""
    methods = Replay.add, Replay.begin_episode, View.pixels, Augment.forward, Momentum.update, Adam.step
    return state.build_agent, loop._evaluate, *methods


def test_processes_side_by_side_are_one_result():
    """0.5 and 0.25 seconds a decision: 2 + 4 decisions a second. Parts are means; a part that one has not is 0 there."""
    seconds = [{"critic": 0.3, "drawing": 0.1, "other": 0.1}, {"critic": 0.1, "other": 0.15}]
    values = run._result(tiny_recipe(), 9, seconds).values
    assert (values["processes"], values["decisions"]) == (2, 9)
    assert values["decisions_per_second_of_each"] == pytest.approx([2.0, 4.0])
    assert values["decisions_per_second"] == pytest.approx(6)
    assert values["seconds_by_part"] == pytest.approx({"drawing": 0.05, "critic": 0.2, "other": 0.125})
    assert values["share_by_part"]["critic"] == pytest.approx(0.2 / 0.375)
    assert values["share_outside_networks_and_renderer"] == pytest.approx(0.125 / 0.375)


def test_a_comparison_is_made_round_by_round(monkeypatch: pytest.MonkeyPatch):
    speeds = iter([1.0, 2.0, 3.0, 9.0, 2.0, 5.0])

    def timed(recipe: Recipe, **_: object) -> run.Result:
        return run._result(recipe, 9, [{"other": 1 / next(speeds)}])

    monkeypatch.setattr(run, "bench_run", timed)
    result = compare_runs(tiny_recipe(), tiny_recipe(), ["seed=3"], rounds=3, tell=silent)
    assert result.values["ratio"].median == pytest.approx(2.5)  # of 2, 3 and 2.5
    assert result.values["decisions_per_second"].median == pytest.approx(2)
    assert result.values["decisions_per_second_compared"].median == pytest.approx(5)
    assert result.values["seconds_by_part"] == {"other": pytest.approx((1 + 1 / 3 + 1 / 2) / 3)}


def test_a_run_is_cut_to_the_decisions_that_are_timed():
    recipe = recipes.find("dmcontrol/cheetah-run", "paper")
    short = shortened(recipe, 30)
    assert short.agent.warmup_decisions == 200
    assert short.frames == 4 * (200 + 5 + 30)
    assert (short.objective, short.checkpoint_every) == (recipe.objective, recipe.checkpoint_every)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [tiny_recipe(threads=1), tiny_rainbow(threads=1)], ids=lambda recipe: recipe.name)
def test_the_parts_of_a_run_are_all_of_it_and_nothing_stays(recipe: Recipe, tmp_path: Path):
    Adam([torch.zeros(1)])  # torch itself replaces `step` when the first one is made
    before = replaced()
    values = bench_run(replace(recipe, checkpoint_every=20), decisions=30, tell=silent).values
    assert values["decisions"] == 30
    assert values["decisions_per_second"] * sum(values["seconds_by_part"].values()) == pytest.approx(1)
    assert set(values["seconds_by_part"]) == set(PARTS) - {"physics"}
    assert all(seconds > 0 for seconds in values["seconds_by_part"].values())
    assert replaced() == before
    assert not list(tmp_path.glob("maskrl-*"))


@pytest.mark.slow
def test_typed_a_run(typed: Typed, tmp_path: Path):
    small = ["agent.warmup_decisions=60", "agent.batch_size=8", "agent.auxiliary.clips=1", "agent.encoder.filters=4"]
    code, out, _ = typed("run", "toy/reach", *small, "--decisions", "10", "--json")
    assert code == 0
    value = json.loads(out)
    assert (value["recipe"], value["decisions"], value["processes"]) == ("toy/reach", 10, 1)
    assert sum(value["share_by_part"].values()) == pytest.approx(1)
    assert 0 < value["share_outside_networks_and_renderer"] < 1
    compared = ["--decisions", "5", "--compare", "agent.batch_size=16", "--rounds", "2"]
    code, out, err = typed("run", "toy/reach", *small, *compared)
    assert code == 0
    assert "agent.batch_size=16" in out
    assert "ratio" in out
    assert "Round 2 of 2" in err
    assert not list(tmp_path.glob("maskrl-*"))


def test_a_comparison_with_an_unknown_field_is_refused(typed: Typed):
    code, _, err = typed("run", "toy/reach", "--compare", "overlab=true")
    assert code == 2
    assert "overlap" in err


@pytest.mark.slow
def test_the_environment_in_a_process_of_its_own_and_two_runs_at_once(tmp_path: Path):
    recipe = tiny_recipe()
    words, options = ["overlap=true"], {"decisions": 10, "processes": 2}
    values = compare_runs(recipe, replace(recipe, overlap=True), words, rounds=1, tell=silent, **options).values
    rates = values["decisions_per_second"], values["decisions_per_second_compared"]
    assert values["ratio"].median == pytest.approx(rates[1].median / rates[0].median)
    assert "drawing" in values["seconds_by_part"]
    assert "drawing" not in values["seconds_compared_by_part"]  # it is waited for, not watched
    assert not list(tmp_path.glob("maskrl-*"))
