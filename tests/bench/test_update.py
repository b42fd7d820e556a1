"""What `maskrl bench update` computes from what it times. How long anything takes is asserted nowhere."""

import json
import math
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from builders import tiny_mlr
from conftest import Typed
from maskrl.bench.ceiling import PIECES, Layer, best_layers, ceiling, layers_of
from maskrl.bench.noise import Learner, noise_replay
from maskrl.bench.parts import PHASES, Wrap, watched
from maskrl.bench.reference import is_known
from maskrl.bench.update import bench_update, first_losses, kernels_of, trained, turns_in_a_round
from maskrl.clock import Stopwatch
from maskrl.cost.operations import spaces_of, update_cost
from maskrl.recipes import find
from maskrl.recipes.schema import Recipe
from tiny_runs import tiny_rainbow, tiny_recipe

CPU = torch.device("cpu")
SMALL = ["agent.batch_size=8", "agent.hidden=16", "agent.encoder.filters=4", "agent.auxiliary.clips=2"]


def silent(_: str) -> None:
    pass


def built(recipe: Recipe) -> Any:
    return recipe.agent.build(spaces_of(recipe), recipe.objective, CPU)


# ── The ceiling ───────────────────────────────────────────────────────────────────────────────────────────────────────


def layer(*, is_convolution: bool) -> Layer:
    return Layer("one", is_convolution, 1000, partial(torch.zeros, 1))


def test_the_ceiling_adds_up_the_seconds_of_both_kinds_of_layers():
    """3 GFLOP at 3 GFLOP/s and 1 GFLOP at 1 GFLOP/s are 4 GFLOP in 2 seconds."""
    cost = replace(update_cost(tiny_recipe()), phases={"critic": 4e9}, convolutions=3e9)
    layers = [layer(is_convolution=True), layer(is_convolution=False)]
    assert ceiling(cost, layers, [3e9, 1e9]) == pytest.approx(2e9)


def test_the_layers_of_an_agent():
    """Four convolutions on 24 × 24, each in batches of four sizes, with the FLOP of their places; no product twice."""
    agent = built(tiny_recipe())
    layers = list(layers_of(agent, spaces_of(tiny_recipe()).obs, CPU))
    convolutions = [layer for layer in layers if layer.is_convolution]
    places = [11, 9, 7, 5]
    weights = [4 * channels * 3 * 3 for channels in (9, 4, 4, 4)]
    assert [layer.flops for layer in convolutions] == [
        2 * batch * side**2 * weight for side, weight in zip(places, weights, strict=True) for batch in PIECES
    ]
    assert convolutions[0].name == "convolution 9 → 4 of 3 × 3, stride 2"
    products = {layer.name: layer.flops for layer in layers if not layer.is_convolution}
    assert products["product 100 → 10"] == 2 * 512 * 100 * 10  # the encoder's
    assert "product 16 → 16" in products  # the actor's and the critic's
    assert "product 10 → 20" in products  # the decoder's
    assert len(products) == len(layers) - len(convolutions)


def test_an_agent_without_an_objective_has_products_all_the_same():
    """Those of noisy layers. The best of both kinds are found, and their rates are within reason."""
    recipe = tiny_rainbow(mlr=False)
    best = best_layers(built(recipe), spaces_of(recipe).obs, CPU)
    assert {layer.is_convolution for layer in best} == {True, False}
    assert all(1e5 < layer.rate(CPU) < 1e15 for layer in best)


@pytest.mark.parametrize(
    ("flops", "turns"),
    [(3.6e12, 1), (12.7e9, 4), (7.8e9, 5), (1e6, 5), (25e9, 2)],
)
def test_small_updates_are_measured_some_turns_at_a_time(flops: float, turns: int):
    assert turns_in_a_round(flops) == turns


# ── Timing from outside ───────────────────────────────────────────────────────────────────────────────────────────────


class Sleeper:
    def outer(self) -> str:
        time.sleep(0.06)
        return f"slept, {self.inner()}"

    def inner(self) -> str:
        time.sleep(0.03)
        return "and slept"


def test_wrapped_functions_do_the_same_and_inner_parts_are_not_counted_twice():
    watch, sleeper = Stopwatch(), Sleeper()
    with Wrap(watch) as wrap:
        wrap(sleeper, ["outer", "there is no such function"], "outer")
        wrap(sleeper, ["inner"], "inner")
        start = time.perf_counter()
        assert sleeper.outer() == "slept, and slept"
        whole = time.perf_counter() - start
    assert watch.seconds["outer"] >= 0.06
    assert watch.seconds["inner"] >= 0.03
    assert watch.seconds["outer"] + watch.seconds["inner"] <= whole
    assert not vars(sleeper)


def test_methods_of_a_class_are_put_back():
    before, watch = vars(Sleeper)["inner"], Stopwatch()
    with Wrap(watch) as wrap:
        wrap(Sleeper, ["inner"], "inner")
        assert Sleeper().inner() == "and slept"
    assert vars(Sleeper)["inner"] is before
    assert watch.seconds["inner"] >= 0.03


@pytest.mark.parametrize(
    "recipe", [tiny_recipe(), tiny_rainbow(), tiny_recipe(mlr=False)], ids=lambda r: f"{r.name} {r.method}"
)
def test_the_phases_of_an_update_are_told_apart_and_nothing_stays_wrapped(recipe: Recipe):
    agent, replay = built(recipe), noise_replay(recipe, spaces_of(recipe))
    kept, before = agent.watch, {name: set(vars(getattr(agent, name))) for name in ("augment", "target_encoder")}
    start = time.perf_counter()
    with watched(agent, replay) as watch:
        agent.update(replay)
    whole = time.perf_counter() - start
    expected = set(PHASES) - ({"actor"} if recipe.agent.kind == "rainbow" else set())
    expected -= {"objective"} if recipe.objective is None else set()
    assert {part for part, seconds in watch.seconds.items() if seconds > 0} == expected
    assert 0.5 * whole < sum(watch.seconds.values()) <= whole
    assert agent.watch is kept
    assert not {"draw", "transitions", "clips", "reprioritise"} & set(vars(replay))
    assert {name: set(vars(getattr(agent, name))) for name in before} == before


# ── An update ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "recipe",
    [tiny_recipe(threads=1), pytest.param(tiny_rainbow(threads=1), marks=pytest.mark.slow)],
    ids=["SAC", "Rainbow"],
)
@pytest.mark.slow
def test_one_round_of_an_update_adds_up(recipe: Recipe):
    told: list[str] = []
    result = bench_update(recipe, rounds=1, tell=told.append)
    values, cost = result.values, update_cost(recipe)
    seconds, rate = values["seconds_per_update"].median, values["flop_per_second"].median
    assert set(values["seconds_by_phase"]) == {*PHASES, "other"}
    assert sum(values["seconds_by_phase"].values()) == pytest.approx(seconds)
    assert min(values["seconds_by_phase"].values()) >= 0  # "other" is a difference
    assert sum(values["share_by_phase"].values()) == pytest.approx(1)
    assert (values["flop_per_update"], values["flop_by_phase"]) == (cost.flops, dict(cost.phases))
    assert rate == pytest.approx(cost.flops / seconds)
    assert values["utilisation"].median == pytest.approx(rate / values["ceiling_flop_per_second"].median)
    assert values["speed_up"].median == pytest.approx(values["plain_seconds_per_update"].median / seconds)
    assert {"critic", "mlr"} <= set(values["first_loss"])
    assert 0 < values["bytes_of_program"] <= values["bytes_of_process"]
    assert values["bytes_of_replay"] == noise_replay(recipe, spaces_of(recipe)).nbytes
    assert any("Round 1 of 1" in text for text in told)
    assert json.loads(result.json())["utilisation"]["median"] == values["utilisation"].median


def test_the_first_loss_is_that_of_a_new_agent():
    """CURL's contrast of 64 with weights from U[0, 1) begins far above ln 64, as its released code's."""
    recipe = find("toy/reach", method="curl")
    torch.manual_seed(1)
    losses = first_losses(Learner(recipe, spaces_of(recipe)).first)
    torch.manual_seed(1)
    metrics = built(recipe).update(noise_replay(recipe, spaces_of(recipe)))
    assert losses == {name: float(metrics[f"{name}/loss"]) for name in ("critic", "actor", "curl")}
    assert losses["curl"] > 2 * math.log(64)


def test_trained_parameters_are_counted_once_whoever_steps_them():
    """The encoder is stepped by the critic's Adam and by the objective's."""
    recipe = tiny_recipe()
    agent = recipe.agent.build(spaces_of(recipe), recipe.objective, CPU)
    parts = [agent.encoder.parameters(), agent.critic.parameters(), agent.actor.parameters()]
    expected = sum(p.numel() for part in parts for p in part) + 1  # the temperature
    expected += sum(p.numel() for p in agent.objective.own_parameters())
    assert sum(parameter.numel() for parameter in trained(agent)) == expected


@pytest.mark.parametrize(
    ("name", "method", "known"),
    [
        *[("toy/reach", "mlr", True), ("toy/reach", "baseline", True), ("toy/reach", "drq", False)],
        *[("toy/reach", "sac_pixel", False), ("toy/reach", "drqv2", False), ("toy/reach", "spr", False)],
        *[("toy/catch", "baseline", True), ("toy/catch", "curl", False), ("toy/catch", "spr_dropout", False)],
    ],
)
def test_plain_updates_are_written_for_the_papers_two_methods(name: str, method: str, known: bool):
    assert is_known(find(name, method=method), CPU) == known


def test_kernels_are_named_the_longest_first_if_they_take_a_hundredth_of_the_time():
    matrix, vector = torch.ones(300, 300), torch.ones(300)
    kernels = kernels_of(lambda: (matrix @ matrix @ matrix, vector + 1), 4, CPU)
    assert kernels[0]["name"] == "aten::mm"
    assert kernels[0]["calls"] == 2
    assert [kernel["seconds"] for kernel in kernels] == sorted((k["seconds"] for k in kernels), reverse=True)
    assert all(kernel["share"] >= 0.01 for kernel in kernels)
    assert 0.5 < sum(kernel["share"] for kernel in kernels) <= 1.001


@pytest.mark.slow
def test_a_variant_without_a_plain_version_says_so():
    recipe = tiny_recipe(objective=tiny_mlr(decoder_width=6), threads=1)
    result = bench_update(recipe, rounds=1, tell=silent)
    assert (result.values["plain_seconds_per_update"], result.values["speed_up"]) == (None, None)
    assert "There is no plain update for this agent, objective or device" in result.text()


def test_the_replay_of_noise_has_whole_episodes():
    recipe = tiny_recipe()
    replay = noise_replay(recipe, spaces_of(recipe), transitions=60, decisions=20)
    assert len(replay) == 60
    batch = replay.transitions(replay.spread(60), discount=1.0)
    assert (batch.discounts == 1).all()  # cut off, not over
    assert len(np.unique(batch.obs.numpy())) == 256
    assert len(np.unique(batch.next_obs.numpy(), axis=0)) == 60  # no two alike


@pytest.mark.slow
def test_typed_an_update_prints_a_table_or_an_object(typed: Typed):
    code, out, err = typed("update", "toy/reach", *SMALL, "--rounds", "1", "--no-plain", "--json")
    assert code == 0
    value = json.loads(out)
    assert (value["recipe"], value["method"], value["rounds"], value["threads"]) == ("toy/reach", "mlr", 1, 1)
    assert value["speed_up"] is None
    assert "Round 1 of 1" in err
    code, out, err = typed("update", "toy/reach", *SMALL, "--rounds", "1", "--no-plain")
    assert code == 0
    for word in ("utilisation", "GFLOP/s", "momentum", "optimizer", "Medians"):
        assert word in out
    assert "speed up" not in out
    assert "kernel" not in out


@pytest.mark.slow
def test_typed_kernels_follow_the_phases(typed: Typed):
    words = ["update", "toy/reach", *SMALL, "--rounds", "1", "--no-plain", "--kernels"]
    code, out, _ = typed(*words)
    assert code == 0
    table = next(block for block in out.split("\n\n") if block.startswith("name ")).splitlines()
    assert table[0].split() == ["name", "calls", "seconds", "share"]
    shares = [float(line.split("%")[0].split()[-1]) for line in table[1:]]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] >= 1
    assert sum(shares) < 100


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["update", "toy/raech"], "did you mean toy/reach"),
        (["update", "toy/reach", "agent.hiden=3"], "did you mean hidden"),
        (["scale", "toy/reach", "objective=none"], "no objective"),
        (["pieces", "toy/reach", "--sizes", "0,4"], "whole numbers from 1"),
    ],
    ids=lambda words: " ".join(words[:3]) if isinstance(words, list) else None,
)
def test_what_cannot_be_measured_is_refused(typed: Typed, words: list[str], expected: str):
    code, _, err = typed(*words)
    assert code == 2
    assert expected in err
