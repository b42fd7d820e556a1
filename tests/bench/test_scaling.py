"""What `maskrl bench scale` and `pieces` compute from what they time. How long anything takes is asserted nowhere."""

import json
import re
from dataclasses import replace

import pytest

from conftest import Typed
from maskrl.bench import scaling
from maskrl.cost.operations import spaces_of, update_cost
from maskrl.recipes.schema import Recipe
from tiny_runs import tiny_rainbow, tiny_recipe


def silent(_: str) -> None:
    pass


def test_the_exponent_of_a_power_law():
    values = [2, 4, 8, 16]
    assert scaling.exponent(values, [3 * value**1.5 for value in values]) == pytest.approx(1.5)
    assert scaling.exponent(values, [7.0] * 4) == pytest.approx(0)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [tiny_recipe(), tiny_rainbow()], ids=["SAC", "Rainbow"])
def test_sizes_are_varied_one_at_a_time(recipe: Recipe):
    spaces = spaces_of(recipe)
    plain, seen = scaling.varied(recipe, spaces, scaling.BASE)
    assert seen == replace(spaces, obs=(spaces.obs[0], 48, 48))
    reference = update_cost(plain, seen)
    for name, factor in {"clips": 2, "K": 2, "filters": 2, "decoder width": 2, "image size": 1.25}.items():
        larger = update_cost(*scaling.varied(recipe, spaces, scaling.BASE | {name: int(factor * scaling.BASE[name])}))
        assert larger.flops > reference.flops
        if name == "clips":  # every part of the objective has a cost by the clip, and no other part has
            assert larger.phases["objective"] == 2 * reference.phases["objective"]
            assert larger.phases["critic"] == reference.phases["critic"]


def test_growth_is_timed_and_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scaling, "GRID", {"clips": (2, 4)})
    result = scaling.bench_scale(replace(tiny_recipe(), threads=1), rounds=1, tell=silent)
    rows = result.values["growth"]
    assert [(row["varied"], row["value"]) for row in rows] == [("clips", 2), ("clips", 4)]
    assert 1 < rows[1]["flop"] / rows[0]["flop"] < 2
    for row in rows:
        assert row["seconds"] > 0
        assert 0 < row["work_exponent"] < 1.2
    assert "GFLOP" in result.text()


@pytest.mark.slow
def test_typed_growth(typed: Typed):
    code, out, _ = typed("scale", "toy/reach", "--rounds", "1", "--json")
    assert code == 0
    assert list(dict.fromkeys(row["varied"] for row in json.loads(out)["growth"])) == list(scaling.GRID)


@pytest.mark.parametrize("recipe", [tiny_recipe(), tiny_rainbow()], ids=["SAC", "Rainbow"])
def test_pieces_are_timed_in_turns_and_compared_with_the_largest(recipe: Recipe, monkeypatch: pytest.MonkeyPatch):
    built: list[int] = []

    class Clock(scaling.Learner):  # instead of seconds, which are noise: half of the size of the pieces
        def seconds(self, turns: int = 1) -> float:
            super().seconds(turns)
            built.append(self.recipe.agent.micro_batch)
            return self.recipe.agent.micro_batch / 2

    monkeypatch.setattr(scaling, "Learner", Clock)
    pieces = scaling.bench_pieces(replace(recipe, threads=1), [4, 2], rounds=2, tell=silent).values["pieces"]
    assert built == [2, 4, 2, 4]  # the first updates, which `Learner` makes, are not timed
    assert [(each["micro_batch"], each["seconds"].median, each["speed"].median) for each in pieces] == [
        (2, 1.0, 2.0),
        (4, 2.0, 1.0),
    ]


@pytest.mark.slow
def test_typed_pieces(typed: Typed):
    words = ("pieces", "toy/reach", "--sizes", "16,32", "--rounds", "1")
    code, out, _ = typed(*words)
    assert code == 0
    assert re.search(
        r"relative to 32 in the same round\.\nThe fastest on this machine: agent\.micro_batch=(16|32)\.", out
    )
    code, out, _ = typed(*words, "--json")
    assert [row["micro_batch"] for row in json.loads(out)["pieces"]] == [16, 32]
