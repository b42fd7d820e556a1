"""The textbook and the agents, from the same weights, seeds and replay: the same numbers must come out."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from builders import tiny_mask, tiny_mlr
from maskrl.agents.base import Agent
from maskrl.bench.noise import noise_replay
from maskrl.bench.reference import is_known, plain_update
from maskrl.cost.operations import spaces_of
from maskrl.recipes.schema import Recipe
from tiny_runs import tiny_rainbow, tiny_recipe

CPU = torch.device("cpu")
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
    return recipe.agent.build(spaces_of(recipe), recipe.objective, CPU)


def weights(agent: Agent) -> dict[str, torch.Tensor]:
    """Everything that was learnt, slow copies included, by name."""

    def leaves(path: str, value: Any) -> dict[str, torch.Tensor]:
        if isinstance(value, torch.Tensor):
            return {path: value}
        inner = value.items() if isinstance(value, dict) else ()
        return {name: leaf for key, child in inner for name, leaf in leaves(f"{path}/{key}", child).items()}

    return leaves("", {key: value for key, value in agent.state_dict().items() if "optimizer" not in key})


def channels_last(weight: torch.Tensor, maps: tuple[int, int, int]) -> torch.Tensor:
    """Where it has a column for every unit of the maps, with the columns in our order."""
    if weight.ndim < 2 or weight.shape[1] != math.prod(maps):
        return weight
    return weight.unflatten(1, maps).permute(0, 2, 3, 1).flatten(1)


@pytest.mark.parametrize("name", RECIPES)
def test_the_plain_update_computes_the_same(name: str):
    recipe = RECIPES[name]
    spaces = spaces_of(recipe)
    agent = built(recipe)
    twin = copy.deepcopy(agent)
    update, replay = plain_update(twin, noise_replay(recipe, spaces)), noise_replay(recipe, spaces)
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
    learnt, taught, shape = weights(agent), weights(twin), agent.encoder.feature_shape
    assert learnt.keys() == taught.keys()
    assert sum(not torch.equal(learnt[path], before[path]) for path in before) > len(before) / 2  # they did learn
    for path, value in learnt.items():
        theirs = taught[path] if agent.encoder.latent_order is not None else channels_last(taught[path], shape)
        # Adam's first steps are about its learning rate in size, whatever a gradient is: an error of rounding is magnified there.
        torch.testing.assert_close(theirs, value, rtol=1e-4, atol=1e-5, msg=lambda words, path=path: f"{path} {words}")


@pytest.mark.parametrize(
    "changes",
    [
        {"corrupt": "features"},
        {"reconstruct": "pixels"},
        {"momentum_decoder": True},
        {"decoder_width": 6},
        {"when": "last"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_variants_that_it_does_not_know_are_left_alone(changes: dict[str, Any]):
    assert not is_known(tiny_recipe(objective=tiny_mlr(**changes)), CPU)


@pytest.mark.parametrize("name", RECIPES)
def test_it_is_written_for_a_cpu(name: str):
    assert is_known(RECIPES[name], CPU)
    assert not is_known(RECIPES[name], torch.device("cuda"))


def test_steps_past_the_end_count_if_they_do_in_ours():
    recipe = tiny_rainbow()
    assert recipe.objective is not None
    recipe = replace(recipe, objective=replace(recipe.objective, count_past_end=True))
    # Games of 10 decisions, of which clips of 8 often see the end.
    agent, spaces = built(recipe), spaces_of(recipe)
    replays = [noise_replay(recipe, spaces, decisions=10) for _ in range(2)]
    update = plain_update(copy.deepcopy(agent), replays[1])
    torch.manual_seed(0)
    ours = agent.update(replays[0])
    torch.manual_seed(0)
    torch.testing.assert_close(update()["mlr/loss"], ours["mlr/loss"], rtol=1e-5, atol=1e-6)


def test_a_copy_is_told_apart_from_a_wrong_one():
    """The comparison above can fail: a batch drawn by another seed is noticed in the loss."""
    recipe = RECIPES["SAC"]
    agent, spaces = built(recipe), spaces_of(recipe)
    theirs = noise_replay(replace(recipe, seed=2), spaces)
    plainly = plain_update(copy.deepcopy(agent), theirs)()
    ours = agent.update(noise_replay(recipe, spaces))
    assert not torch.isclose(plainly["critic/loss"], ours["critic/loss"], rtol=1e-5)
