"""Counted costs against arithmetic, and against torch's own counter in real runs.

Arithmetic is in multiply-accumulates, as in the paper's world: two FLOP each.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode

from maskrl import recipes
from maskrl.agents.base import Spaces
from maskrl.cost import operations
from maskrl.cost.operations import UpdateCost, _Counter, run_cost, spaces_of
from maskrl.nn.augment import View
from maskrl.nn.pixels import PixelDecoder
from maskrl.recipes.schema import Budget, Evaluation, Recipe
from tiny_runs import tiny_rainbow, tiny_recipe, trained

CARTPOLE, PONG = Spaces((9, 100, 100), 1, discrete=False), Spaces((4, 84, 84), 6, discrete=True)

HALF_CHEETAH = Spaces((9, 100, 100), 6, discrete=False)

# The layers of the paper's agents, forward, for one observation.
CONTROL = 41**2 * 9 * 64 * 9 + (39**2 + 37**2 + 35**2) * 9 * 64 * 64  # convolutions: 160.41 M
LINEAR = 64 * 35**2 * 50
POLICY = 50 * 1024 + 1024**2 + 1024 * 2
Q = 2 * ((50 + 1) * 1024 + 1024**2 + 1024)
NATURE = 20**2 * 4 * 32 * 64 + 9**2 * 32 * 64 * 16 + 7**2 * 64 * 64 * 9  # 7.74 M
FIRST_LAYER = 41**2 * 9 * 64 * 9, 20**2 * 4 * 32 * 64  # its backward pass needs no gradient of the pixels


@cache  # of the paper's sizes, it takes most of a second
def update_cost(recipe: Recipe, spaces: Spaces | None = None) -> UpdateCost:
    return operations.update_cost(recipe, spaces)


def decoder(clips: int, steps: int, d: int, actions: int) -> int:
    """Forward. Of its two blocks, the second works out the states alone, from the keys and values of all tokens."""
    tokens, states = 2 * clips * steps, clips * steps
    first = tokens * 8 * d**2 + tokens * 2 * steps * d * 2  # query, key, value, projection, two layers of 2d; attention
    last = tokens * 2 * d**2 + states * 6 * d**2 + states * 2 * steps * d * 2
    return states * actions * d + first + last


def test_an_update_of_the_papers_sac():
    cost = update_cost(recipes.find("dmcontrol/cartpole-swingup", "paper"), CARTPOLE)
    encoder, back = CONTROL + LINEAR, 2 * (CONTROL + LINEAR) - FIRST_LAYER[0]
    # π and Q̄ at the next observations, Q at the observations and back.
    critic = 512 * (encoder + POLICY + encoder + Q + encoder + back + 3 * Q)
    # The convolutions once, Q's and π's linear layers, the latter without a gradient of the maps; Q only passes gradients on.
    actor = 512 * (CONTROL + LINEAR + 2 * LINEAR + 3 * POLICY + 2 * Q)
    heads = 2048 * (
        3 * 2 * 10_000 + 10_000
    )  # projection and prediction and back, the momentum projection: 50 × 100 × 50
    decoding = 3 * decoder(128, 16, 50, 1) - 2048 * 50  # but for the gradient of the actions
    encoding = 2048 * (2 * encoder + back)
    assert cost.phases == {"critic": 2 * critic, "objective": 2 * (heads + decoding + encoding), "actor": actor}
    # Three passes and the way back for the critic, two and the way back for MLR; one for the actor, every second update.
    convolving = 512 * (3 * CONTROL) + 2048 * (2 * CONTROL) + (512 + 2048) * (2 * CONTROL - FIRST_LAYER[0])
    assert cost.convolutions == 2 * convolving + 512 * CONTROL
    assert cost.act == 2 * (encoder + POLICY)
    assert cost.flops / 2e9 == pytest.approx(1797, rel=1e-3)
    # The released code runs the actor's convolutions twice, every second update: with these it is the 1839 G of its count.
    assert (cost.flops + 512 * CONTROL) / 2e9 == pytest.approx(1839, rel=2e-3)


def test_an_update_of_the_papers_rainbow():
    cost = update_cost(recipes.find("atari/pong", "paper"), PONG)
    d, states = 3136, 512
    wide = 3 * decoder(32, 16, d, 6) - states * 6 * d
    encoding = states * (2 * NATURE + 2 * NATURE - FIRST_LAYER[1])
    # The Q head's first layers, two of 256, project and learn; the momentum projection; and a prediction as wide as both.
    heads = states * (3 * d * 512 + d * 512 + 3 * 512**2)
    assert cost.phases["objective"] == 2 * (wide + encoding + heads)
    assert cost.phases["critic"] / 2e9 == pytest.approx(0.92 + 0.51, rel=0.02)
    # Its last block spares query, projection, two layers and attention of the action tokens. With them, it is the 504 G of
    # the released code's count.
    spared = 3 * states * (6 * d**2 + 32 * d * 2)
    assert cost.flops / 2e9 == pytest.approx(413, rel=1e-3)
    assert (cost.flops / 2 + spared) / 1e9 == pytest.approx(504, rel=1e-3)


@pytest.mark.parametrize(("repeat", "updates", "released"), [(8, 11_500, 42), (4, 24_000, 88), (2, 49_000, 180)])
def test_the_papers_runs_in_petaflop(repeat: int, updates: int, released: float):
    recipe = recipes.resolve("dmcontrol/cartpole-swingup", [f"env.action_repeat={repeat}"], profile="paper")
    cost = run_cost(recipe, CARTPOLE, update_cost(recipes.find("dmcontrol/cartpole-swingup", "paper"), CARTPOLE))
    assert (cost.updates, cost.decisions, cost.chosen) == (updates, 100_000 // repeat, 100_000 // repeat - 1000)
    assert cost.episodes == 210  # 21 evaluations
    assert cost.learning == updates * cost.update.flops
    assert cost.learning / 1e15 * 1839 / 1797 == pytest.approx(released, rel=0.01)


def test_what_is_done_now_and_then_counts_for_its_share():
    recipe = recipes.find("toy/reach")
    assert recipe.objective is not None
    every = update_cost(recipe)
    third = update_cost(replace(recipe, objective=replace(recipe.objective, every=3)))
    assert third.phases["objective"] == pytest.approx(every.phases["objective"] / 3)
    always = update_cost(replace(recipe, agent=replace(recipe.agent, actor_every=1)))  # type: ignore[arg-type]
    assert always.phases["actor"] == 2 * every.phases["actor"]
    assert always.phases["critic"] == third.phases["critic"] == every.phases["critic"]


def test_an_update_is_counted_as_after_the_burst():
    """In a burst the actor learns at every update, later at every second."""
    recipe = tiny_recipe(objective=None)
    later = replace(recipe, agent=replace(recipe.agent, actor_every=2))  # type: ignore[arg-type]
    burst = replace(later, agent=replace(later.agent, burst=1000))  # type: ignore[arg-type]
    assert update_cost(burst) == update_cost(later)


def test_micro_batches_cost_the_same_and_take_less_memory():
    whole = recipes.find("toy/reach")
    pieces = replace(whole, agent=replace(whole.agent, micro_batch=16))  # type: ignore[arg-type]
    small, large = update_cost(pieces), update_cost(whole)
    assert replace(small, memory=large.memory) == large
    assert small.memory < large.memory


@pytest.mark.parametrize("name", ["variants/MLR-F", "masking/MLR-Pixel", "variants/MLR-MoDec"])
def test_every_variant_is_counted(name: str):
    recipe = recipes.ablation(name, profile="paper")
    plain = recipes.find(recipe.name, "paper")
    spaces = replace(CARTPOLE, action_dim=6)
    ours, reference = (update_cost(each, spaces).phases["objective"] for each in (recipe, plain))
    if name == "variants/MLR-F":
        assert ours == reference
    elif name == "masking/MLR-Pixel":  # no momentum encoder, no heads, but a decoder to pixels
        with FlopCounterMode(display=False) as drawing, torch.device("meta"):
            PixelDecoder(50, (9, 84, 84))(torch.empty(1, 50))
        encoding, heads = CONTROL + LINEAR, 3 * 2 * 10_000 + 10_000
        assert ours - reference == 2048 * (3 * drawing.get_total_flops() - 2 * (encoding + heads))
    else:  # once more, forwards, through the decoder
        assert ours - reference == 2 * decoder(128, 16, 50, 6)


def uncounted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*args: Any) -> Tensor:
        with _disable_current_modes():
            return function(*args)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [tiny_recipe(), tiny_rainbow()], ids=lambda recipe: recipe.name)
def test_a_real_run_computes_what_was_counted(tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch):
    """20 decisions after a warm-up of 60; two evaluations of one episode."""
    monkeypatch.setattr(
        "maskrl.runs.state.cheap_probe", lambda *_: None
    )  # a look at the encoder, beside acting and learning
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # torch's counter does not know its fused convolutions
    monkeypatch.setattr(View, "pixels", uncounted(View.pixels))  # its product with a diagonal matrix is a copy
    unit = "frames" if recipe.budget.decisions is None else "decisions"
    recipe = replace(recipe, budget=Budget(**{unit: 80}), evaluation=Evaluation(every=80, episodes=1))
    recipe = replace(recipe, threads=1)  # otherwise the encoder's operations are counted to choose them
    with FlopCounterMode(display=False) as real, sdpa_kernel(SDPBackend.MATH):  # torch's counter sees no other here
        trained(tmp_path / "run", recipe)
    with FlopCounterMode(display=False) as building:  # Rainbow tries its projection once, for its width
        recipe.agent.build(spaces_of(recipe), recipe.objective, torch.device("cpu"))
    cost, length = run_cost(recipe), {"toy/reach": 40, "toy/catch": 39}[recipe.name]
    assert real.get_total_flops() - building.get_total_flops() == cost.learning + cost.acting(length)


def test_counting_changes_nothing_and_needs_no_memory():
    before = torch.get_rng_state()
    cost = operations.update_cost(recipes.find("atari/pong", "paper"), PONG)  # its decoder has 161 M parameters
    assert cost.flops > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_device() == torch.device("cpu")


def test_the_memory_of_what_is_alive_at_once():
    with _Counter() as counter:
        a = torch.empty(1000, device="meta")
        b = a.view(10, 100) + 1  # the view takes nothing
        del a
        b.mul_(2)
        torch.empty(500, device="meta")
        assert b.shape == (10, 100)
    assert counter.peak == 8000  # a and b; later b and half of it


def test_the_weights_and_their_moments_are_in_the_memory_of_an_update():
    cost = update_cost(recipes.find("atari/pong", "paper"), PONG)
    assert 4 * 4 * 161e6 < cost.memory < 6 * 4 * 161e6  # weights, gradients, two moments; and a temporary copy or so


@pytest.mark.parametrize("name", ["toy/reach", "toy/catch"])
def test_every_system_can_be_counted_before_it_runs(name: str):
    for method in recipes.METHODS:
        if recipes.pair_on(name, method) is None:
            continue
        recipe = recipes.find(name, method=method)
        cost = run_cost(recipe)
        assert cost.updates == recipe.agent.updates_by(recipe.frames)
        phases = (
            {"critic"} | ({"objective"} if recipe.objective else set()) | ({"actor"} if name == "toy/reach" else set())
        )
        assert phases <= {phase for phase, flops in cost.update.phases.items() if flops > 0}, method
        assert cost.memory > 0


def test_two_objectives_cost_what_both_cost():
    def objective(name: str) -> float:
        return operations.update_cost(recipes.find("toy/reach", objective=name)).phases["objective"]

    assert objective("mlr+spr") == objective("mlr") + objective("spr")


def test_two_views_cost_the_critic_twice_its_encoders_work():
    """DrQ: of every observation two views, of which the actor sees one."""
    plain = recipes.resolve("dmcontrol/walker-walk", ["agent.views=1"], profile="paper", method="drq")
    one, two = (
        update_cost(each, Spaces((9, 84, 84), 6, False)) for each in (plain, recipes.find(plain.name, "paper", "drq"))
    )
    assert two.phases["critic"] == 2 * one.phases["critic"]
    assert two.phases["actor"] == one.phases["actor"]


@pytest.mark.parametrize(("method", "images"), [("curl64", 512), pytest.param("mooss", 2048, marks=pytest.mark.slow)])
def test_a_contrast_in_pieces_costs_one_more_pass_of_the_encoder_and_less_than_2_gb(method: str, images: int):
    """At the paper's sizes; the passes of MOOSS include its decoder and prediction."""
    whole, pieces = (
        update_cost(recipes.resolve("dmcontrol/cheetah-run", lines, profile="paper", method=method), HALF_CHEETAH)
        for lines in ((), ("agent.micro_batch=128",))
    )
    width = 64 if method == "mooss" else 50
    encoder = CONTROL + 64 * 35**2 * width
    more = pieces.phases["objective"] - whole.phases["objective"]
    assert more == pytest.approx(2 * images * encoder, rel=1e-9 if method == "curl64" else 0.02)
    assert pieces.memory < 2e9
