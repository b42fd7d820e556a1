"""Two objectives at once: their gradients add up by their weights, whatever batches they learn from."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from builders import tiny_mlr
from maskrl.agents.base import Spaces
from maskrl.nn.augment import AugmentConfig
from maskrl.objectives.base import Material, ObjectiveConfig
from maskrl.objectives.both import BothConfig
from maskrl.objectives.curl import CURLConfig
from maskrl.objectives.spr import SPRConfig
from maskrl.recipes import explain, find, resolve
from maskrl.recipes.overrides import from_json
from maskrl.recipes.schema import as_json
from maskrl.testing import _random_replay, tiny_host, tiny_material

CROPPED = AugmentConfig(crop=24, intensity=0.0)
MLR, SPR = tiny_mlr(weight=0.5), SPRConfig(steps=3, hidden=8, head_width=8, augment=CROPPED, weight=2.0)
CURL = CURLConfig(when=None, augment=CROPPED, weight=3.0)
TASKS = ("dmcontrol/walker-walk", "atari/pong", "toy/reach", "toy/catch")


def gradient(host) -> list[Tensor]:  # type: ignore[no-untyped-def]
    found = [parameter.grad.clone() for parameter in host.encoder.parameters()]
    host.encoder.zero_grad()
    return found


@pytest.mark.parametrize(("first", "second"), [(MLR, SPR), (SPR, MLR), (MLR, CURL)])
@pytest.mark.parametrize("micro_batch", [None, 16])
def test_the_gradient_is_the_weighted_sum_of_both(first: ObjectiveConfig, second: ObjectiveConfig, micro_batch):
    host = tiny_host()
    both = BothConfig(first=first, second=second).build(host)
    clip, batch = (tiny_material(both.needs) for _ in range(2))
    material = Material(clip.clip, batch.batch)
    views = both.views(material)
    both.add_gradient(views, micro_batch=micro_batch)
    together = gradient(host)
    alone = []
    for config, part, own in ((first, both.first, views.first), (second, both.second, views.second)):
        torch.autograd.backward(part.loss(own).per_clip.mean())
        alone.append([config.weight * each for each in gradient(host)])
    for one, a, b in zip(together, *alone, strict=True):
        torch.testing.assert_close(one, a + b, rtol=1e-9, atol=1e-12)


def test_batches_of_different_sizes_keep_their_means():
    both = BothConfig(first=MLR, second=CURL).build(tiny_host())
    clip, batch = tiny_material(replace(both.needs, policy_batch=False)).clip, tiny_material(both.needs).batch
    fewer = Material(type(clip)(clip.obs[:2], clip.actions[:2], clip.valid[:2]), batch)
    views = both.views(fewer)
    loss = both.loss(views)
    expected = 0.5 * both.first.loss(views.first).per_clip.mean() + 3 * both.second.loss(views.second).per_clip.mean()
    assert loss.per_clip.mean().item() == pytest.approx(expected.item(), rel=1e-12)
    assert {"mlr/loss", "curl/loss"} <= loss.metrics.keys()


def test_the_shorter_one_sees_the_first_steps_of_a_clip():
    both = BothConfig(first=MLR, second=SPR).build(tiny_host())
    assert both.needs.clip_length == 8
    material = tiny_material(both.needs)
    assert torch.equal(both.views(material).second.actions, material.clip.actions[:, :3])


@pytest.mark.parametrize("name", TASKS)
def test_any_two_of_a_recipe_can_be_named_and_written_down(name: str):
    recipe = resolve(name, ["objective.second.weight=2"], profile="lite", objective="mlr+spr")
    assert recipe.method == f"{find(name).agent.kind}+mlr+spr"
    assert recipe.objective.second.weight == 2
    assert from_json(as_json(recipe)) == recipe
    assert not any(line.source.startswith("ours: the paper has no") for line in explain(recipe))
    assert resolve(name, ["objective=mlr+spr", "objective.second.weight=2"], profile="lite") == recipe


@pytest.mark.parametrize("objective", ["mlr+spr", "spr+curl", "curl+mlr", "playvirtual+mlr"])
@pytest.mark.parametrize("name", ["toy/reach", "toy/catch"])
def test_an_agent_learns_from_both(name: str, objective: str):
    recipe = find(name, objective=objective)
    size, stack = recipe.env.size, recipe.env.frame_stack
    spaces = Spaces((9 if name == "toy/reach" else 4, size, size), 3, discrete=name == "toy/catch")
    agent = recipe.agent.build(spaces, recipe.objective, torch.device("cpu"))
    metrics = agent.update(_random_replay(spaces, stack, recipe.agent.replay_needs().priority_exponent))
    assert {f"{part}/loss" for part in objective.split("+")} <= metrics.keys()
    assert all(torch.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(
    ("asked", "overrides", "message"),
    [
        ("mlr+mlr", (), "first and second are both mlr.*Raise the weight"),
        ("mlr+spr+curl", (), "at most two objectives learn at once"),
        ("mlr+sprr", (), "objective 'sprr' is not known: did you mean spr"),
        ("mlr+none", (), "objective 'none' is not known"),
        ("mlr+spr", ("objective.weight=2",), "^objective.weight=2: .*objective.first.weight and second.weight"),
        ("mlr+spr", ("objective.first.every=2",), "^objective.first.every=2: .*Set objective.when and objective.every"),
        ("mlr+spr", ("objective.first.wait=2",), "^objective.first.wait=2"),
        ("mlr+spr", ("objective=mlr+spr+curl",), "^objective=mlr"),
    ],
)
def test_what_cannot_be_combined_is_refused(asked: str, overrides: tuple[str, ...], message: str):
    with pytest.raises(ValueError, match=message):
        resolve("toy/reach", overrides, objective=asked)


def test_what_an_agent_cannot_serve_is_refused_in_a_pair_too():
    with pytest.raises(ValueError, match=r"needs target encoder, which agent drqv2 does not offer"):
        find("dmcontrol/walker-walk", "lite", agent="drqv2", objective="mlr+curl")
