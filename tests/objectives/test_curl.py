"""CURL: what its paper and its released code say, as arithmetic."""

import math

import pytest
import torch
import torch.nn.functional as F

from maskrl.agents.base import Spaces
from maskrl.agents.sac import SAC
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.encoders import ControlEncoder
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Host, Material, PolicyBatch
from maskrl.objectives.curl import CURL, CURLConfig
from maskrl.recipes import find
from maskrl.testing import _random_replay, tiny_host, tiny_material

TINY = CURLConfig(augment=AugmentConfig(crop=24, intensity=0.0))


@pytest.mark.parametrize(("batch", "mean", "spread", "seen"), [(128, 36.4, 1.45, 38.5), (512, 42.5, 0.83, 41.8)])
def test_the_first_loss_of_normalised_latents_is_far_above_the_logarithm_of_the_batch(
    batch: int, mean: float, spread: float, seen: float
):
    """With W ~ U[0, 1) and latents after a layer norm, logits have a standard deviation of √(50² / 12) = 14.4: none is tamed.

    `mean` and `spread` are of 200 draws of W and of the latents; `seen` is one draw with the released code's modules.
    """
    encoder = ControlEncoder((3, 24, 24), filters=4, latent_dim=50)
    losses = []
    for seed in range(30):
        torch.manual_seed(seed)
        curl = CURLConfig().build(Host(encoder, 50, 1, target_encoder=Momentum(encoder, 0.95)))
        anchors, positives = (F.layer_norm(torch.randn(batch, 50), (50,)) for _ in range(2))
        losses.append(curl.compare(anchors, positives).per_clip.mean().item())
    assert sum(losses) / len(losses) == pytest.approx(mean, abs=3 * spread / math.sqrt(30))
    assert seen == pytest.approx(mean, abs=2 * spread)
    assert mean > 6 * math.log(batch)


def test_the_loss_is_the_cross_entropy_of_every_anchor_with_its_own_positive():
    host = tiny_host()
    curl = TINY.build(host)
    material = tiny_material(curl.needs)
    views = curl.views(material)
    anchors = host.encoder(views.anchor.pixels())
    positives = host.target_encoder(views.positive.pixels())
    for row in range(5):
        logits = [anchors[row] @ curl.product @ positives[column] for column in range(5)]
        highest = max(logits)
        loss = highest + sum((logit - highest).exp() for logit in logits).log() - logits[row]
        assert curl.loss(views).per_clip[row].item() == pytest.approx(loss.item(), rel=1e-12)


def test_the_anchor_is_the_critics_view_and_the_positive_another_crop_of_what_was_stored():
    curl = TINY.build(tiny_host())
    obs = torch.randint(256, (4, 3, 28, 28), dtype=torch.uint8)
    view = AugmentConfig(crop=24, intensity=0.0).build()(obs, torch.float64)
    views = curl.views(Material(batch=PolicyBatch(obs, view)))
    assert views.anchor is view
    assert views.positive.obs.shape == view.obs.shape
    assert not torch.equal(views.positive.obs, view.obs)
    for place, crop in enumerate(views.positive.obs):  # each lies somewhere in its observation
        windows = obs[place].unfold(1, 24, 1).unfold(2, 24, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
        assert (windows == crop).flatten(1).all(dim=1).any()


def test_w_and_the_encoder_learn_and_the_target_encoder_does_not():
    host = tiny_host()
    curl = TINY.build(host)
    material = tiny_material(curl.needs)
    torch.autograd.backward(curl(batch=material.batch).per_clip.mean())
    assert curl.product.grad is not None
    assert any(parameter.grad is not None for parameter in host.encoder.parameters())
    assert all(parameter.grad is None for parameter in host.target_encoder.parameters())
    assert [name for name, _ in curl.named_parameters()] == ["product"]


def test_equal_observations_count_as_negatives_of_each_other():
    """Indices are drawn with replacement, so duplicates occur, and the released code does not look for them."""
    curl = TINY.build(tiny_host())
    same = torch.randn(1, 10, dtype=torch.float64).expand(4, -1)
    assert curl.compare(same, same).per_clip.tolist() == pytest.approx([math.log(4)] * 4)


def test_a_batch_of_one_is_refused():
    curl = TINY.build(tiny_host())
    with pytest.raises(ValueError, match="at least 2 observations"):
        curl.compare(torch.zeros(1, 10, dtype=torch.float64), torch.zeros(1, 10, dtype=torch.float64))


def test_it_runs_last_in_the_update_after_the_slow_copies_have_moved():
    recipe = find("toy/reach", objective="curl")
    spaces = Spaces((9, 32, 32), 2, discrete=False)
    agent = recipe.agent.build(spaces, recipe.objective, torch.device("cpu"))
    assert isinstance(agent, SAC)
    assert isinstance(agent.objective, CURL)
    order: list[str] = []

    def noted(name: str, function):  # type: ignore[no-untyped-def]
        def call(*arguments):  # type: ignore[no-untyped-def]
            order.append(name)
            return function(*arguments)

        return call

    agent.update_critic = noted("critic", agent.update_critic)  # type: ignore[method-assign]
    agent.update_actor_and_temperature = noted("actor", agent.update_actor_and_temperature)  # type: ignore[method-assign]
    agent.target_encoder.update = noted("slow encoder", agent.target_encoder.update)  # type: ignore[method-assign]
    agent.auxiliary.learn = noted("objective", agent.auxiliary.learn)  # type: ignore[method-assign, union-attr]
    agent.update(_random_replay(spaces, 3, None))
    assert order == ["critic", "actor", "slow encoder", "objective"]


def test_the_recipe_has_its_authors_values():
    recipe = find("dmcontrol/cheetah-run", "paper", "curl")
    assert (recipe.method, recipe.preset) == ("curl", "curl_sac")
    assert recipe.agent.encoder.filters == 32
    assert recipe.agent.encoder.linear_init == "orthogonal"
    assert recipe.agent.batch_size == 512
    auxiliary = recipe.agent.auxiliary
    assert (auxiliary.learning_rate, auxiliary.schedule, auxiliary.max_grad_norm) == (2e-4, "constant", None)
    assert find("dmcontrol/walker-walk", "paper", "curl").agent.auxiliary.learning_rate == 1e-3
    # On the Baseline's network it is another system, with a name of its own.
    assert find("dmcontrol/cheetah-run", "paper", objective="curl").method == "curl64"


def test_rainbow_does_not_run_it_last():
    with pytest.raises(ValueError, match=r"objective\.when=last.*rainbow"):
        CURLConfig(augment=AugmentConfig(crop=None, intensity=0.0)).check(
            find("toy/catch").env, find("toy/catch").agent
        )
