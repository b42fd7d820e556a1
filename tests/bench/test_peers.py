"""What `maskrl bench peers` puts beside ours has the recipe's values. How long anything takes is asserted nowhere."""

from dataclasses import replace

import pytest

pytest.importorskip("stable_baselines3")

from maskrl import AugmentConfig
from maskrl.bench import peers
from maskrl.bench.peers import PEERS, Peer, Timed, bench_peers, build_peer
from maskrl.integrations.sb3 import FrameReplayBuffer, PixelSACPolicy
from maskrl.recipes.schema import Recipe
from tiny_runs import tiny_rainbow, tiny_recipe

ALL = PEERS[-1]


def built(recipe: Recipe, peer: Peer):
    return build_peer(recipe, recipe.env.make(seed=0, training=True), peer, capacity=100)


def count(module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("recipe", [tiny_recipe(), tiny_rainbow()], ids=["sac", "rainbow"])
def test_a_peer_has_the_recipes_encoder_batch_and_replay(recipe: Recipe):
    model, callback = built(recipe, ALL)
    shape = model.observation_space.shape
    owner = model.critic if recipe.agent.kind == "sac" else model.q_net
    assert count(owner.features_extractor) == count(recipe.agent.encoder.build(shape))
    assert model.batch_size == recipe.agent.batch_size
    assert isinstance(model.replay_buffer, FrameReplayBuffer)
    assert callback is not None
    assert callback.objective.clip_length == recipe.objective.clip_length
    if recipe.agent.kind == "sac":
        assert isinstance(model.policy, PixelSACPolicy)
    plain, none = built(recipe, PEERS[0])
    assert none is None
    assert not isinstance(plain.replay_buffer, FrameReplayBuffer)


def test_operations_are_means_over_the_updates_that_an_objective_skips():
    """Whichever of two decisions comes first: an objective at every second update costs half of what it costs at every one."""

    def counted(every: int, peer: Peer = ALL) -> list[float]:
        recipe = whole_frames()
        model, callback = built(replace(recipe, objective=replace(recipe.objective, every=every)), peer)
        model.learn(recipe.agent.warmup_decisions + 20, callback=callback)
        ahead = peers.flop_per_decision(model, callback)
        model.learn(1, callback=callback, reset_num_timesteps=False)
        return [ahead, peers.flop_per_decision(model, callback)]

    alone, often, seldom = counted(1, PEERS[1]), counted(1), counted(2)
    assert alone[0] == alone[1] < often[0] == often[1]
    assert seldom == [(alone[0] + often[0]) / 2] * 2


def test_a_row_has_the_medians_of_its_rounds():
    taken = [Timed(2.0, 10, 5, 7.0, 0.01), Timed(4.0, 30, 5, 7.0, 0.03), Timed(3.0, 20, 5, 7.0, 0.02)]
    row = peers._row(tiny_recipe(), "SB3", taken)
    assert row["decisions_per_second"].median == 3
    assert row["bytes_of_process"] == 30
    assert row["share_of_callback"].median == 0.02
    assert peers._row(tiny_recipe(), "SB3", [Timed(2.0, 10, 5, 7.0)])["share_of_callback"] is None


def whole_frames() -> Recipe:
    """SB3 has no crop, so neither may a recipe have one that is compared with it."""
    recipe, shifts = tiny_recipe(), AugmentConfig(crop=None, shift=2, intensity=0.0)
    agent, objective = replace(recipe.agent, augment=shifts), replace(recipe.objective, augment=shifts)
    return replace(recipe, agent=agent, objective=objective)


def test_a_recipe_that_crops_is_refused():
    with pytest.raises(ValueError, match="crops its frames to 24, and SB3 has no crop"):
        bench_peers([tiny_recipe()], decisions=3, rounds=1)


@pytest.mark.slow
def test_all_peers_are_timed():
    values = bench_peers([whole_frames()], decisions=3, rounds=1, tell=lambda text: None).values
    assert [row["agent"] for row in values["agents"]] == ["maskrl", "maskrl, MLR", *(peer.name for peer in PEERS)]
    assert all(row["flop_per_decision"] > 0 for row in values["agents"])
    assert [row["replay"] for row in values["draws"]] == ["SB3", "ours", "ours, shifted by up to 2"]
