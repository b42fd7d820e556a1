"""What `maskrl bench methods` computes from what it times. How long anything takes is asserted nowhere."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from builders import tiny_mlr
from conftest import Typed
from maskrl.bench import methods
from maskrl.bench.measure import Measured
from maskrl.cost.operations import update_cost
from maskrl.recipes import METHODS, pair_on
from maskrl.recipes.schema import Recipe
from tiny_runs import tiny_recipe


def silent(_: str) -> None:
    pass


def tiny_methods() -> dict[str, Recipe]:
    """MLR at every second update, beside the agent alone and beside one with a burst."""
    mlr = tiny_recipe(objective=tiny_mlr(every=2), threads=1)
    alone = replace(mlr, objective=None)
    return {"mlr": mlr, "baseline": alone, "burst": replace(alone, agent=replace(alone.agent, burst=1000))}  # type: ignore[arg-type]


def test_every_method_is_timed_after_mlr_and_compared_with_it_in_the_same_round(monkeypatch: pytest.MonkeyPatch):
    """Instead of seconds, which are noise: MLR takes 4 s in the first round and, on a busier machine, 8 s in the second."""
    order: list[str] = []

    class Clock(methods.Learner):
        def seconds(self, turns: int = 1) -> float:
            assert turns % 2 == 0  # so that what happens at every second update counts with its share
            order.append("mlr" if self.recipe.objective else "alone")
            busy = 1 if len(order) <= 6 else 2
            return busy * (4 if self.recipe.objective else 1)

    monkeypatch.setattr(methods, "Learner", Clock)
    recipes = tiny_methods()
    rows = methods.bench_methods(recipes, rounds=2, tell=silent).values["methods"]
    assert order == 2 * ["mlr", "mlr", "mlr", "alone", "mlr", "alone"]
    flops = {name: update_cost(recipe).flops for name, recipe in recipes.items()}
    for row in rows:
        work = flops[row["method"]]
        took = 4 if row["method"] == "mlr" else 1
        assert row["flop_per_update"] == work
        assert row["seconds_per_update"] == Measured(1.5 * took, took, 2 * took)
        assert row["flop_per_second"].high == work / took
        ratio = (work / took) / (flops["mlr"] / 4)
        speed = row["speed_relative_to_mlr"]
        assert [speed.median, speed.low, speed.high] == pytest.approx([ratio] * 3)
        assert row["flop_per_torch_call"] * row["torch_calls_per_update"] == pytest.approx(work)
    mlr, alone, burst = rows
    assert mlr["parameters_of_agent"] == alone["parameters_of_agent"]
    assert mlr["parameters_of_objective"] > 0
    assert mlr["first_loss"] > 0
    assert alone["parameters_of_objective"] is alone["first_loss"] is None
    assert burst["flop_per_update"] == alone["flop_per_update"]  # as after the burst


def test_torch_calls_are_counted_as_the_mean_of_two_turns():
    x = torch.ones(3)

    class Twice:  # a sum and a product in every first of two updates, nothing in the second
        turn, updates = 2, 0

        def update(self) -> None:
            self.updates += 1
            if self.updates % 2:
                (x + x) * x

    learner: Any = Twice()
    assert methods.torch_calls(learner) == 1
    assert learner.updates == 4


@pytest.mark.slow
def test_typed_every_method_of_the_recipe_is_measured(typed: Typed):
    small = ["agent.batch_size=8", "agent.hidden=16", "agent.encoder.filters=4"]
    code, out, err = typed("methods", "toy/reach", *small, "--rounds", "1", "--json")
    assert code == 0
    value = json.loads(out)
    assert [row["method"] for row in value["methods"]] == [name for name in METHODS if pair_on("toy/reach", name)]
    assert (value["recipe"], value["profile"], value["rounds"], value["threads"]) == ("toy/reach", "lite", 1, 1)
    assert "Round 1 of 1" in err


def test_a_recipe_that_does_not_exist_is_refused(typed: Typed):
    code, _, err = typed("methods", "toy/raech")
    assert code == 2
    assert "did you mean toy/reach" in err
