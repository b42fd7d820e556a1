"""The textbook and the agents, from the same weights, seeds and replay: the same numbers must come out."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from builders import tiny_mask, tiny_mlr
from maskrl.agents.base import Agent
from maskrl.bench.noise import noise_replay
from maskrl.bench.reference import StackedReplay, copied, plain_update, sac_update
from maskrl.cost.operations import spaces_of
from maskrl.recipes.schema import Recipe
from tiny_runs import tiny_rainbow, tiny_recipe

UPDATES = 8  # in which the actor has its turn, and so have all slow copies, that of Rainbow every 7th time

RECIPES = {
    "SAC with MLR": tiny_recipe(),
    "SAC with MLR in grey": tiny_recipe(objective=tiny_mlr(mask=tiny_mask(fill=128), distance="1-cos", weight=0.3)),
    "SAC": tiny_recipe(mlr=False),
    "Rainbow with MLR": tiny_rainbow(),
    "Rainbow": tiny_rainbow(mlr=False),
}


def built(recipe: Recipe) -> Any:
    torch.manual_seed(3)
    return recipe.agent.build(spaces_of(recipe), recipe.objective, torch.device("cpu"))


def weights(agent: Agent) -> dict[str, torch.Tensor]:
    """Everything that was learnt, slow copies included, by name."""

    def leaves(path: str, value: Any) -> dict[str, torch.Tensor]:
        if isinstance(value, torch.Tensor):
            return {path: value}
        inner = value.items() if isinstance(value, dict) else ()
        return {name: leaf for key, child in inner for name, leaf in leaves(f"{path}/{key}", child).items()}

    return leaves("", {key: value for key, value in agent.state_dict().items() if "optimizer" not in key})


@pytest.mark.parametrize("name", RECIPES)
def test_the_plain_update_computes_the_same(name: str):
    recipe = RECIPES[name]
    spaces = spaces_of(recipe)
    agent = built(recipe)
    twin, theirs = copied(agent), noise_replay(recipe, spaces)
    update, replay = plain_update(twin, theirs), noise_replay(recipe, spaces)
    assert update is not None
    before = {path: value.clone() for path, value in weights(agent).items()}
    for number in range(UPDATES):
        torch.manual_seed(number)
        ours = agent.update(replay)
        torch.manual_seed(number)
        plainly = update()
        assert plainly.keys() <= ours.keys()
        assert {"critic/loss"} <= plainly.keys()
        for key, value in plainly.items():
            torch.testing.assert_close(
                value, ours[key], rtol=1e-5, atol=1e-6, msg=lambda words, key=key: f"{key} {words}"
            )
    assert ("mlr/loss" in plainly) == (recipe.objective is not None)
    learnt, taught = weights(agent), weights(twin)
    assert learnt.keys() == taught.keys()
    assert sum(not torch.equal(learnt[path], before[path]) for path in before) > len(before) / 2  # they did learn
    for path, value in learnt.items():
        # Adam's first steps are about its learning rate in size, whatever a gradient is: an error of rounding is magnified there.
        torch.testing.assert_close(
            taught[path], value, rtol=1e-4, atol=1e-5, msg=lambda words, path=path: f"{path} {words}"
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"corrupt": "features"},
        {"reconstruct": "pixels"},
        {"momentum_decoder": True},
        {"decoder_width": 6},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_variants_that_it_does_not_know_are_left_alone(changes: dict[str, Any]):
    recipe = tiny_recipe(objective=tiny_mlr(**changes))
    assert plain_update(built(recipe), noise_replay(recipe, spaces_of(recipe))) is None


def test_steps_past_the_end_count_if_they_do_in_ours():
    recipe = tiny_rainbow()
    assert recipe.objective is not None
    recipe = replace(recipe, objective=replace(recipe.objective, count_past_end=True))
    # Games of 10 decisions, of which clips of 8 often see the end.
    agent, spaces = built(recipe), spaces_of(recipe)
    twin = copied(agent)
    replays = [noise_replay(recipe, spaces, decisions=10) for _ in range(2)]
    update = plain_update(twin, replays[1])
    assert update is not None
    torch.manual_seed(0)
    ours = agent.update(replays[0])
    torch.manual_seed(0)
    torch.testing.assert_close(update()["mlr/loss"], ours["mlr/loss"], rtol=1e-5, atol=1e-6)


def test_a_copy_is_told_apart_from_a_wrong_one():
    """The comparison above can fail: a batch drawn by another seed is noticed in the loss."""
    recipe = RECIPES["SAC"]
    agent, spaces = built(recipe), spaces_of(recipe)
    theirs = noise_replay(replace(recipe, seed=2), spaces)
    plainly = sac_update(copied(agent), theirs, StackedReplay(theirs))
    ours = agent.update(noise_replay(recipe, spaces))
    assert not torch.isclose(plainly["critic/loss"], ours["critic/loss"], rtol=1e-5)


def test_the_stacked_replay_holds_every_transition_with_both_its_stacks():
    recipe = RECIPES["SAC"]
    replay = noise_replay(recipe, spaces_of(recipe))
    stacks, draw = StackedReplay(replay), replay.draw(64)
    expected, stacked = replay.transitions(draw, discount=0.5), stacks.transitions(draw, 0.5)
    for name in ("obs", "actions", "rewards", "next_obs", "discounts"):
        torch.testing.assert_close(getattr(stacked, name), getattr(expected, name), rtol=0, atol=0)
    draw = replay.draw(64, span=8)
    torch.testing.assert_close(stacks.clips(draw, 8).obs, replay.clips(draw, length=8).obs, rtol=0, atol=0)
    # 6 frames for every transition, where the replay has one.
    assert stacks.all.obs.nbytes + stacks.all.next_obs.nbytes == 6 * len(replay) * 3 * 28 * 28
