"""What `maskrl bench update` and `maskrl bench scale` compute from what they time. How long anything takes is asserted nowhere."""

import json
import mmap
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builders import tiny_mlr
from maskrl import cli
from maskrl.agents.base import Spaces
from maskrl.bench import scaling
from maskrl.bench.speed import (
    PHASES,
    Layer,
    Measured,
    Tried,
    Wrap,
    _reset_peak,
    bench_update,
    ceiling,
    layers_of,
    noise_replay,
    resident,
    seconds_each,
    updates_in_a_round,
    watched,
)
from maskrl.clock import Stopwatch
from maskrl.cost.operations import spaces_of, update_cost
from maskrl.recipes.schema import Recipe
from tiny_runs import tiny_rainbow, tiny_recipe

CPU = torch.device("cpu")
SMALL = ["agent.batch_size=8", "agent.hidden=16", "agent.encoder.filters=4", "agent.auxiliary.clips=2"]


def silent(_: str) -> None:
    pass


def built(recipe: Recipe) -> Any:
    return recipe.agent.build(spaces_of(recipe), recipe.objective, CPU)


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


# ── Arithmetic ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_measurement_is_its_median_with_its_extremes():
    assert Measured.of([3.0, 1.0, 10.0]) == (3.0, 1.0, 10.0)


def test_a_ratio_is_taken_round_by_round():
    """In the second round all was ten times as slow; 20 / 3 would come of the medians."""
    assert Measured.ratio([2.0, 20.0, 6.0], [1.0, 10.0, 3.0]) == (2.0, 2.0, 2.0)


def test_the_ceiling_adds_up_the_seconds_of_both_kinds_of_layers():
    """3 GFLOP at 3 GFLOP/s and 1 GFLOP at 1 GFLOP/s are 4 GFLOP in 2 seconds."""
    cost = replace(update_cost(tiny_recipe()), phases={"critic": 4e9}, convolutions=3e9)
    convolution, product = Tried(Layer((4, 3, 3, 3), (3, 9, 9), 2), 16), Tried(Layer((5, 7), (7,)), 512)
    assert ceiling(cost, {convolution: 3e9, product: 1e9}) == pytest.approx(2e9)


def test_layers_have_the_flop_of_their_places():
    first, inner = Layer((64, 9, 3, 3), (9, 84, 84), 2), Layer((64, 64, 3, 3), (64, 41, 41), 1)
    assert first.flops == 2 * 41**2 * 9 * 64 * 9
    assert inner.flops == 2 * 39**2 * 64 * 64 * 9
    assert Layer((50, 39200), (39200,)).flops == 2 * 50 * 39200
    assert first.name == "convolution 9 → 64 of 3 × 3, stride 2"
    assert Layer((100, 50), (50,)).name == "product 50 → 100"


def test_the_layers_of_an_agent():
    """Four convolutions on 24 × 24, of which the last three differ in their input alone; no product twice."""
    layers = layers_of(built(tiny_recipe()), (9, 24, 24))
    assert [layer.input for layer in layers if layer.stride] == [(9, 24, 24), (4, 11, 11), (4, 9, 9), (4, 7, 7)]
    products = [layer.weight for layer in layers if layer.stride is None]
    assert (10, 4 * 5 * 5) in products  # the encoder's
    assert (16, 16) in products  # the actor's and the critic's
    assert (20, 10) in products  # the decoder's
    assert len(products) == len(set(products))


def test_an_agent_without_an_objective_has_products_all_the_same():
    """Those of noisy layers."""
    layers = layers_of(built(tiny_rainbow(mlr=False)), (4, 28, 28))
    assert {layer.stride is None for layer in layers} == {True, False}


def test_a_rate_is_flop_by_seconds():
    """Of a layer whose product is tiny: positive, finite, and within reason."""
    assert 1e5 < Tried(Layer((5, 7), (7,)), 16).rate(CPU) < 1e15
    assert 1e5 < Tried(Layer((4, 3, 3, 3), (3, 9, 9), 2), 16).rate(CPU) < 1e15


def test_seconds_of_each_call():
    calls = []
    seconds = seconds_each(lambda: calls.append(time.sleep(0.02)), 3, CPU)
    assert len(calls) == 3
    assert seconds >= 0.02


@pytest.mark.parametrize(
    ("flops", "turn", "times"),
    [(3.6e12, 1, 1), (3.6e12, 2, 2), (12.7e9, 1, 4), (3.9e9, 2, 10), (1e6, 1, 5), (25e9, 1, 2)],
)
def test_small_updates_are_measured_some_turns_at_a_time(flops: float, turn: int, times: int):
    assert updates_in_a_round(flops, turn) == times


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
    wrap = Wrap(watch)
    wrap(sleeper, ["outer", "there is no such function"], "outer")
    wrap(sleeper, ["inner"], "inner")
    start = time.perf_counter()
    assert sleeper.outer() == "slept, and slept"
    whole = time.perf_counter() - start
    assert watch.seconds["outer"] >= 0.06
    assert watch.seconds["inner"] >= 0.03
    assert watch.seconds["outer"] + watch.seconds["inner"] <= whole
    wrap.undo()
    assert not vars(sleeper)


def test_methods_of_a_class_are_put_back():
    before, watch = vars(Sleeper)["inner"], Stopwatch()
    wrap = Wrap(watch)
    wrap(Sleeper, ["inner"], "inner")
    assert Sleeper().inner() == "and slept"
    wrap.undo()
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


@pytest.mark.parametrize("recipe", [tiny_recipe(threads=1), tiny_rainbow(threads=1)], ids=lambda recipe: recipe.name)
def test_one_round_of_an_update_adds_up(recipe: Recipe):
    told: list[str] = []
    bench = bench_update(recipe, rounds=1, tell=told.append)
    assert set(bench.phases) == {*PHASES, "other"}
    assert sum(bench.phases.values()) == pytest.approx(bench.seconds.median)
    assert min(bench.phases.values()) >= 0  # "other" is a difference
    assert bench.rate.median == pytest.approx(bench.cost.flops / bench.seconds.median)
    assert bench.utilisation.median == pytest.approx(bench.rate.median / bench.ceiling.median)
    assert bench.plain is not None
    assert bench.speed_up is not None
    assert bench.speed_up.median == pytest.approx(bench.plain.median / bench.seconds.median)
    assert bench.cost == update_cost(recipe)
    assert bench.memory is None or bench.memory >= 0
    assert bench.note is None
    assert any("Round 1 of 1" in text for text in told)
    assert json.loads(json.dumps(bench.as_dict()))["utilisation"]["median"] == bench.utilisation.median


def test_the_kernels_of_an_update_are_named_when_asked_for():
    """A mean over whole turns: with `every=2` a decoder's products are in half of the updates."""
    recipe = tiny_recipe(threads=1)
    assert recipe.agent.kind == "sac"
    assert recipe.objective is not None
    recipe = replace(recipe, objective=replace(recipe.objective, every=2))
    bench = bench_update(recipe, rounds=1, plain=False, kernels=True, tell=silent)
    assert bench.kernels is not None
    assert [kernel.seconds for kernel in bench.kernels] == sorted((k.seconds for k in bench.kernels), reverse=True)
    calls = {kernel.name: kernel.calls for kernel in bench.kernels}
    # Adam's steps: the critic's in each update, the actor's in half (`actor_every=2`), the objective's in half.
    assert calls["aten::_fused_adam_"] == 2
    assert json.loads(json.dumps(bench.as_dict()))["kernels"][0]["name"] == bench.kernels[0].name


def test_a_variant_without_a_plain_version_says_so():
    bench = bench_update(tiny_recipe(objective=tiny_mlr(decoder_width=6), threads=1), rounds=1, tell=silent)
    assert (bench.plain, bench.speed_up) == (None, None)
    assert bench.note == "not written for this variant of the objective"


def test_the_replay_of_noise_has_whole_episodes():
    recipe = tiny_recipe()
    replay = noise_replay(recipe, spaces_of(recipe), transitions=60, decisions=20)
    assert len(replay) == 60
    batch = replay.transitions(replay.spread(60), discount=1.0)
    assert (batch.discounts == 1).all()  # cut off, not over
    assert len(np.unique(batch.obs.numpy())) == 256


@pytest.mark.skipif(resident("VmHWM") is None, reason="the system does not tell")
def test_memory_that_was_given_back_is_forgotten():
    size = 200_000_000
    with mmap.mmap(-1, size) as block:  # from the system itself: the C library may keep what it has
        block.write(bytes(size))
        peak = resident("VmHWM") or 0
    if not _reset_peak(CPU):
        pytest.skip("the peak cannot be forgotten here")
    after = resident("VmHWM") or 0
    assert size < peak
    assert 0 < after < peak - 0.75 * size


def test_typed_an_update_prints_a_table_or_an_object(capsys: pytest.CaptureFixture[str]):
    code, out, err = typed(capsys, "bench", "update", "toy/reach", *SMALL, "--rounds", "1", "--no-plain", "--json")
    assert code == 0
    value = json.loads(out)
    assert (value["recipe"], value["method"], value["rounds"], value["threads"]) == ("toy/reach", "mlr", 1, 1)
    assert (value["speed_up"], value["note"]) == (None, "not asked for")
    assert "Round 1 of 1" in err
    code, out, err = typed(capsys, "bench", "update", "toy/reach", *SMALL, "--rounds", "1", "--no-plain")
    assert code == 0
    for word in (
        "sizes",
        "9 × 28 × 28",
        "2 clips of 8",
        "utilisation",
        "GFLOP/s",
        "momentum",
        "optimizer",
        "not asked for",
    ):
        assert word in out
    assert "speed-up" not in out
    assert "kernel" not in out


def test_typed_kernels_follow_the_phases(capsys: pytest.CaptureFixture[str]):
    words = ["bench", "update", "toy/reach", *SMALL, "--rounds", "1", "--no-plain", "--kernels"]
    code, out, _ = typed(capsys, *words)
    assert code == 0
    table = out[out.index("kernel") :].split("\n\n")[0].splitlines()
    assert table[0].split() == ["kernel", "ms", "an", "update", "share", "calls"]
    assert table[-1].lstrip().startswith("others (")
    shares = [float(line.split("%")[0].split()[-1]) for line in table[1:]]
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares) + 0.01)
    assert all(share >= 0.95 for share in shares[:-1])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["update", "toy/raech"], "did you mean toy/reach"),
        (["update", "toy/reach", "agent.hiden=3"], "did you mean hidden"),
        (["scale", "toy/reach", "objective=none"], "no objective"),
        (["pieces", "toy/reach", "--sizes", "0,4"], "the least is 1"),
        (["scale", "toy/reach", "--figure", "growth.svg"], ".png"),
        (["scale", "toy/reach", "--figure", "nowhere/growth.png"], "there is no folder"),
    ],
    ids=lambda words: " ".join(words[:3]) if isinstance(words, list) else None,
)
def test_what_cannot_be_measured_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], expected: str):
    code, _, err = typed(capsys, "bench", *words)
    assert code == 2
    assert expected in err


# ── Growth ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_exponent_of_a_power_law():
    values = [2, 4, 8, 16]
    assert scaling.exponent(values, [3 * value**1.5 for value in values]) == pytest.approx(1.5)
    assert scaling.exponent(values, [7.0] * 4) == pytest.approx(0)


@pytest.mark.parametrize("recipe", [tiny_recipe(), tiny_rainbow()], ids=["SAC", "Rainbow"])
def test_sizes_are_varied_one_at_a_time(recipe: Recipe):
    base, spaces = scaling.small(recipe), spaces_of(recipe)
    plain, seen = scaling.varied(base, spaces, **scaling.BASE)
    assert seen == replace(spaces, obs=(spaces.obs[0], 48, 48))
    reference = update_cost(plain, seen)
    for name, factor in {"clips": 2, "K": 2, "filters": 2, "decoder width": 2, "image size": 1.25}.items():
        larger = update_cost(*scaling.varied(base, spaces, **scaling.BASE | {name: int(factor * scaling.BASE[name])}))
        assert larger.flops > reference.flops
        if name == "clips":  # the heads and the decoder have but one cost: by the clip
            assert larger.objective["decoder"] == 2 * reference.objective["decoder"]
            assert larger.phases["critic"] == reference.phases["critic"]


def test_growth_is_timed_counted_and_drawn(tmp_path: Path):
    growths = scaling.bench_scale(
        replace(tiny_recipe(), threads=1), rounds=2, grid={"clips": (2, 4), "K": (4, 8)}, tell=silent
    )
    assert [(growth.name, [point.value for point in growth.points]) for growth in growths] == [
        ("clips", [2, 4]),
        ("K", [4, 8]),
    ]
    # 4 clips of 8 is the base, in both.
    assert growths[0].points[1] == growths[1].points[1]._replace(value=4)
    for growth in growths:
        assert all(point.seconds > 0 for point in growth.points)
        assert 0 < growth.flops_exponent < 1.2
    scaling.draw(growths, "growth", tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["growth.png"]


@pytest.mark.slow
def test_typed_growth(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    figure = tmp_path / "growth.png"
    code, out, _ = typed(capsys, "bench", "scale", "toy/reach", "--rounds", "1", "--figure", str(figure), "--json")
    assert code == 0
    value = json.loads(out)
    assert [growth["varied"] for growth in value["growth"]] == list(scaling.GRID)
    assert figure.exists()


@pytest.mark.parametrize("recipe", [tiny_recipe(), tiny_rainbow()], ids=["SAC", "Rainbow"])
def test_pieces_are_timed_in_turn_and_compared_with_the_largest(recipe: Recipe, monkeypatch: pytest.MonkeyPatch):
    built: list[int | None] = []

    class Clock(scaling._Timer):  # instead of seconds, which are noise: half of the size of the pieces
        def __init__(self, recipe: Recipe, spaces: Spaces) -> None:
            super().__init__(recipe, spaces)
            built.append(recipe.agent.micro_batch)
            self.seconds = [built[-1] / 2]

        def go_on(self) -> None:
            self._agent.update(self._replay)

    monkeypatch.setattr(scaling, "_Timer", Clock)
    done = scaling.bench_pieces(replace(recipe, threads=1), [4, 2], rounds=2, tell=silent)
    assert built == [2, 4, 2, 4]
    assert [(each.micro_batch, each.seconds.median, each.speed.median) for each in done] == [
        (2, 1.0, 2.0),
        (4, 2.0, 1.0),
    ]


def test_typed_pieces(capsys: pytest.CaptureFixture[str]):
    words = ("bench", "pieces", "toy/reach", "--sizes", "16,32", "--rounds", "1")
    code, out, _ = typed(capsys, *words)
    assert code == 0
    assert re.search(r"by that of 32, in the same round\.\nThe fastest here: agent\.micro_batch=(16|32)\.", out)
    code, out, _ = typed(capsys, *words, "--json")
    assert [row["micro_batch"] for row in json.loads(out)["pieces"]] == [16, 32]
