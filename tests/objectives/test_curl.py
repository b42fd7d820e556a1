"""CURL: what its paper and its released code say, as arithmetic."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from by_hand import check_gradient, check_update
from maskrl.agents.base import Spaces
from maskrl.agents.sac import SAC
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.encoders import ControlEncoder, NatureEncoder
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Host, Material, PolicyBatch
from maskrl.objectives.curl import CURL, CURLConfig, CURLViews
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


def losses_by_hand(curl: CURL, views: CURLViews) -> list[Tensor]:
    """One anchor after the other, each with every positive."""
    anchors = [curl.host.encoder(pixels[None])[0] for pixels in views.anchor.pixels()]
    positives = [curl.host.target_encoder(pixels[None])[0].detach() for pixels in views.positive.pixels()]  # type: ignore[misc]
    losses = []
    for row, anchor in enumerate(anchors):
        logits = [anchor @ curl.product @ positive for positive in positives]
        highest = max(logit.item() for logit in logits)
        losses.append(highest + sum((logit - highest).exp() for logit in logits).log() - logits[row])  # type: ignore[union-attr]
    return losses


def test_the_loss_is_the_cross_entropy_of_every_anchor_with_its_own_positive():
    curl = TINY.build(tiny_host())
    views = curl.views(tiny_material(curl.needs))
    expected = torch.stack(losses_by_hand(curl, views))
    torch.testing.assert_close(curl.loss(views).per_clip, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("second", [None, 2.0**-8])
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_an_update_is_the_released_one_written_out(micro_batch: int | None, second: float | None):
    curl = TINY.build(tiny_host())
    settings = {"max_grad_norm": None, "second_encoder_rate": second}
    check_update(curl, tiny_material(curl.needs), losses_by_hand, micro_batch=micro_batch, **settings)


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
    with pytest.raises(
        ValueError, match=r"^observations=1: a contrast compares the members of a batch .* needs at least 2. Raise it.$"
    ):
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


# ── On Atari ──────────────────────────────────────────────────────────────────────────────────────────────────────────

ATARI = replace(
    TINY, when=None, shares_view=False, head=(8, 4), momentum=0.999, scale=0.1, joins_priorities=True, weight=0.5
)


def atari_losses_by_hand(curl: CURL, views: CURLViews) -> list[Tensor]:
    """The mean of all losses, for every transition."""

    def norm(vector: Tensor) -> Tensor:
        return (vector - vector.mean()) / (vector.var(unbiased=False) + 1e-5).sqrt()

    def embedded(pixels, encoder, head):  # type: ignore[no-untyped-def]
        first, last = head.layers
        return norm(last(torch.relu(norm(first(encoder(pixels[None])[0])))))

    anchors = [embedded(pixels, curl.host.encoder, curl.head) for pixels in views.anchor.pixels()]
    positives = [embedded(p, curl.slow_encoder.copy, curl.slow_head.copy) for p in views.positive.pixels()]  # type: ignore[union-attr]
    losses = []
    for row, anchor in enumerate(anchors):
        logits = torch.stack([anchor @ curl.product @ positive.detach() for positive in positives])
        logits = 0.1 * (logits - logits.max().detach())
        losses.append(logits.exp().sum().log() - logits[row])
    return [sum(losses) / len(losses)] * len(losses)  # type: ignore[list-item]


def atari_curl() -> CURL:
    curl = ATARI.build(tiny_host())
    for module in (curl.slow_encoder, curl.slow_head):  # slow copies that differ, so that a mix-up would show
        for parameter in module.parameters():  # type: ignore[union-attr]
            parameter.data.mul_(1.1)
    return curl


def test_on_atari_a_head_embeds_both_and_every_transition_has_the_mean_loss():
    curl = atari_curl()
    views = curl.views(tiny_material(curl.needs))
    expected = torch.stack(atari_losses_by_hand(curl, views))
    loss = curl.loss(views)
    torch.testing.assert_close(loss.per_clip, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(loss.priorities, 0.5 * expected.detach(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_on_atari_gradient_and_update_are_the_released_ones_written_out(micro_batch: int | None):
    for check in (check_gradient, check_update):
        curl = atari_curl()
        check(curl, tiny_material(curl.needs), atari_losses_by_hand, micro_batch=micro_batch)


def test_on_atari_heads_begin_uniform_and_views_are_its_own():
    torch.manual_seed(0)
    curl = CURLConfig(head=(256, 128), momentum=0.999, shares_view=False).build(Host(NatureEncoder(filters=(32, 64),
        kernels=(5, 5), strides=(5, 5), renormalise=False), 576, 4))  # fmt: skip
    for layer in curl.head.layers:
        assert 0 <= layer.weight.min() < 0.01
        assert 0.99 < layer.weight.max() < 1
        assert not layer.bias.any()
    assert curl.product.shape == (128, 128)
    assert not curl.needs.target_encoder
    tiny = ATARI.build(tiny_host())
    material = tiny_material(tiny.needs)
    assert not torch.equal(tiny.views(material).anchor.obs, material.batch.view.obs)


def test_the_recipe_on_atari_has_its_authors_values():
    recipe = find("atari/pong", "paper", "curl")
    agent, curl = recipe.agent, recipe.objective
    assert (recipe.method, recipe.preset, curl.weight) == ("curl", "curl_rainbow", 0.01)
    assert find("atari/alien", "paper", "curl").objective.weight == 1
    assert (agent.encoder.filters, agent.encoder.kernels, agent.encoder.strides) == ((32, 64), (5, 5), (5, 5))
    assert not agent.encoder.renormalise
    assert agent.encoder.build((4, 84, 84)).latent_dim == 576
    assert (agent.hidden, agent.noisy_std, agent.n_step, agent.target_every) == (256, 0.1, 20, 2000)
    assert (agent.warmup_decisions, agent.updates_per_decision, agent.priority) == (1600, 1, "cross_entropy")
    assert agent.stratified
    assert agent.augment == AugmentConfig(crop=None, shift=None, intensity=0.0)
    assert (curl.augment.crop, curl.augment.enlarge, curl.head, curl.momentum) == (80, 84, (256, 128), 0.999)
    assert (recipe.env.noops, recipe.env.least_noops, recipe.env.shrink_first) == (29, 0, True)


def test_priorities_are_the_cross_entropy_and_the_objectives_mean():
    recipe = find("toy/catch", method="curl")
    objective = replace(recipe.objective, weight=0.5)
    spaces = Spaces((4, 32, 32), 3, discrete=True)
    agent = recipe.agent.build(spaces, objective, torch.device("cpu"))
    seen: list[Tensor] = []
    straight = agent.returns.loss

    def noted(outputs: Tensor, target: Tensor) -> Tensor:
        seen[:] = [outputs.detach(), target]
        return straight(outputs, target)

    agent.returns.loss = noted  # type: ignore[method-assign]
    drawn = agent.reading(_random_replay(spaces, 4, 0.5), 0)()
    learned = agent.learn(drawn)
    outputs, target = seen
    expected = [
        -sum(share * (value - row.logsumexp(dim=0)) for share, value in zip(shares, row, strict=True))
        for shares, row in zip(target, outputs, strict=True)
    ]
    count, mean = recipe.agent.clips, learned.metrics["curl/loss"]
    assert mean > 0.1  # an objective that shows beside the cross-entropies
    assert 0 < count <= len(expected)
    joined = [error + 0.5 * mean if row < count else error for row, error in enumerate(expected)]
    torch.testing.assert_close(learned.errors, torch.stack(joined), rtol=1e-5, atol=1e-6)
    assert learned.errors.min() > 0
    assert learned.errors[:count].min() > 0.5 * mean
