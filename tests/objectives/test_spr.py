"""SPR and PlayVirtual: what their papers and released code say, as arithmetic, and loops that a reader can follow."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from builders import parameters_of
from by_hand import check_gradient, check_update
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.encoders import NatureEncoder
from maskrl.nn.transition import MapTransition, VectorTransition, rollout
from maskrl.objectives.base import Host, Material
from maskrl.objectives.playvirtual import PlayVirtual, PlayVirtualConfig, PlayVirtualViews, Ramp
from maskrl.objectives.spr import SPR, SPRConfig, SPRViews
from maskrl.testing import tiny_host, tiny_material

CROPPED = AugmentConfig(crop=24)
SPR_TINY = SPRConfig(steps=3, hidden=16, head_width=12, augment=CROPPED)
VIRTUAL_TINY = PlayVirtualConfig(steps=3, cycle_steps=2, cycles=4, hidden=16, head_width=12, augment=CROPPED)


# ── Transition models ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("actions", "parameters"), [(1, 53_298), (2, 53_810), (6, 55_858)])
def test_a_transition_of_vectors_is_as_large_as_the_released_one(actions: int, parameters: int):
    assert parameters_of(VectorTransition(50, actions)) == parameters


@pytest.mark.parametrize(("actions", "parameters"), [(4, 76_288), (18, 84_352)])
def test_a_transition_of_maps_is_as_large_as_the_released_one(actions: int, parameters: int):
    assert parameters_of(MapTransition((64, 7, 7), actions)) == parameters


def advance(transition: VectorTransition | MapTransition, states: Tensor, actions: Tensor) -> Tensor:
    """The next latent states of a batch, layer by layer."""
    if isinstance(transition, VectorTransition):
        first, norm, _, last = transition.layers
        hidden = first(torch.cat([states, actions], dim=1))
        centred = hidden - hidden.mean(dim=1, keepdim=True)
        scaled = centred / (hidden.var(dim=1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        out: Tensor = last(torch.relu(scaled * norm.weight + norm.bias))  # type: ignore[operator]
        return out
    # Channels last in the latent state, a constant plane for every action beside them, zeros around.
    channels, height, width = transition.channels, transition.height, transition.width
    maps = states.view(-1, height, width, channels).permute(0, 3, 1, 2)
    planes = torch.stack(
        [torch.stack([torch.full_like(maps[0, 0], value) for value in row]) for row in actions.tolist()]
    )
    mix, norm, refine = transition.mix, transition.norm, transition.refine
    mixed = torch.relu(torch.conv2d(torch.cat([maps, planes], 1), mix.weight, mix.bias, padding=1))
    centred = mixed - mixed.mean(dim=(0, 2, 3), keepdim=True)
    scaled = centred / (mixed.var(dim=(0, 2, 3), unbiased=False, keepdim=True) + 1e-5).sqrt()
    normed = scaled * norm.weight[:, None, None] + norm.bias[:, None, None]
    out = torch.relu(torch.conv2d(normed, refine.weight, refine.bias, padding=1))
    units = out.permute(0, 2, 3, 1).reshape(len(states), -1)
    low, high = units.min(dim=1, keepdim=True).values, units.max(dim=1, keepdim=True).values
    return (units - low) / (high - low + 1e-5)


def test_a_map_transition_sees_the_actions_everywhere_and_rescales_its_map():
    transition = MapTransition((4, 3, 3), 2).double()
    states, actions = torch.rand(6, 36, dtype=torch.float64), torch.eye(2, dtype=torch.float64).repeat(3, 1)
    following = transition(states, actions)
    assert following.shape == states.shape
    assert following.amin(dim=1).tolist() == [0] * 6
    assert following.amax(dim=1).tolist() == pytest.approx([1] * 6, abs=1e-3)
    torch.testing.assert_close(following, advance(transition, states, actions), rtol=1e-9, atol=1e-9)


def test_batch_norm_keeps_no_statistics_so_a_checkpoint_cannot_lack_them():
    """It uses those of the batch in training and in evaluation mode alike; a weight that is missing is named."""
    transition = MapTransition((4, 3, 3), 2)
    assert not list(transition.buffers())
    states, actions = torch.rand(6, 36), torch.eye(2).repeat(3, 1)
    assert torch.equal(transition(states, actions), transition.eval()(states, actions))
    state = transition.state_dict()
    del state["norm.weight"]
    with pytest.raises(RuntimeError, match=r"norm\.weight"):
        MapTransition((4, 3, 3), 2).load_state_dict(state)


# ── SPR ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def unit(vector: Tensor) -> Tensor:
    return vector / vector.norm().clamp(min=1e-3)


def errors_by_hand(spr: SPR, views: SPRViews) -> list[list[Tensor]]:  # type: ignore[type-arg]
    """The squared distance of every clip and step, one observation after the other."""
    match, errors = spr.match, [[] for _ in views.actions]  # type: ignore[var-annotated]
    states = torch.cat([spr.host.encoder(pixels[None]) for pixels in views.first.pixels()])
    for step in range(spr.steps):
        states = advance(spr.transition, states, views.actions[:, step])  # a batch norm sees all clips
        for row, state in enumerate(states):
            target = match.momentum_projection.copy(match.encoder.copy(views.following.pixels()[row, step][None]))[0]
            predicted = match.prediction(match.projection(state[None]))[0]
            errors[row].append((unit(predicted) - unit(target.detach())).square().sum() * views.valid[row, step])
    return errors


def losses_by_hand(spr: SPR, views: SPRViews) -> list[Tensor]:  # type: ignore[type-arg]
    return [sum(row) / spr.steps for row in errors_by_hand(spr, views)]  # type: ignore[misc]


def cut_short(material: Material, **changes: object) -> Material:
    """The first clip ends after two steps."""
    assert material.clip is not None
    material.clip.valid[0, 2:] = False
    return replace(material, **changes)  # type: ignore[arg-type]


def test_the_loss_is_a_rollout_matched_step_by_step():
    spr = SPR_TINY.build(tiny_host())
    views = spr.views(cut_short(tiny_material(spr.needs)))
    assert [error.item() for error in errors_by_hand(spr, views)[0]][1:] == [0.0, 0.0]
    expected = torch.stack(losses_by_hand(spr, views))
    torch.testing.assert_close(spr.loss(views).per_clip, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("settings", [{"max_grad_norm": 0.1, "second_encoder_rate": 2.0**-8}, {"max_grad_norm": None}])
@pytest.mark.parametrize("micro_batch", [None, 8])
def test_an_update_is_the_released_one_written_out(micro_batch: int | None, settings: dict[str, float]):
    spr = SPR_TINY.build(tiny_host())
    check_update(spr, cut_short(tiny_material(spr.needs)), losses_by_hand, micro_batch=micro_batch, **settings)


def test_the_last_step_of_an_episode_can_be_left_out_as_in_the_released_atari_code():
    """Five observations show four steps with what ends them. The episode of clip 0 ends by the action at step 2."""
    spr = replace(SPR_TINY, last_step=False).build(tiny_host())
    assert spr.needs.clip_length == 5
    material = tiny_material(spr.needs)
    material.clip.valid[0, 3:] = False
    views = spr.views(material)
    assert views.valid[0].tolist() == [True, False, False]
    assert views.valid[1:].all()
    expected = torch.stack(losses_by_hand(spr, views))
    torch.testing.assert_close(spr.loss(views).per_clip, expected, rtol=1e-9, atol=0)


def test_cycles_from_the_last_step_of_an_episode_are_left_out_with_it():
    virtual = replace(VIRTUAL_TINY, last_step=False).build(tiny_host())
    material = replace(tiny_material(virtual.needs), updates=20_000)
    material.clip.valid[0, 1:] = False  # the first action ends it
    views = virtual.views(material)
    loss = virtual.loss(views).per_clip
    cycle = virtual.cycle_loss(virtual.host.encoder(views.first.pixels()), views)
    assert loss[0] == 0
    assert cycle[0] > 0
    whole = (
        virtual.prediction_loss(virtual.host.encoder(views.first.pixels()), views)[0]
        + views.ramp / virtual.weight * cycle
    )
    torch.testing.assert_close(loss[1:], whole[1:], rtol=1e-9, atol=1e-12)


def test_k_times_the_mean_over_steps_is_their_sum():
    spr = replace(SPR_TINY, weight=3.0).build(tiny_host())
    views = spr.views(tiny_material(spr.needs))
    spr.add_gradient(views)
    added = [parameter.grad.clone() for parameter in spr.host.encoder.parameters()]
    spr.host.encoder.zero_grad()
    predicted = spr.match.predict(rollout(spr.transition, spr.host.encoder(views.first.pixels()), views.actions))
    torch.autograd.backward(spr.match.distance(predicted, spr.match.target(views.following)).sum(dim=1).mean())
    for one, other in zip(added, spr.host.encoder.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad, rtol=1e-9, atol=1e-12)


def test_gradients_flow_through_the_predictions_and_not_through_the_targets():
    spr = SPR_TINY.build(tiny_host())
    torch.autograd.backward(spr(tiny_material(spr.needs).clip).per_clip.mean())
    for module in (spr.host.encoder, spr.transition, spr.match.projection, spr.match.prediction):
        assert any(parameter.grad is not None and parameter.grad.any() for parameter in module.parameters())
    for module in (spr.match.encoder, spr.match.momentum_projection):
        assert all(parameter.grad is None for parameter in module.parameters())


def test_on_dmcontrol_the_target_head_is_drawn_anew_and_the_encoder_is_copied():
    match = SPR_TINY.build(tiny_host()).match
    online, slow = match.projection.state_dict(), match.momentum_projection.copy.state_dict()
    assert not torch.equal(online["0.weight"], slow["0.weight"])
    match = replace(SPR_TINY, momentum_init="copy").build(tiny_host()).match
    assert torch.equal(
        match.projection.state_dict()["0.weight"], match.momentum_projection.copy.state_dict()["0.weight"]
    )


SHIFTED = AugmentConfig(crop=None, shift=2)
ON_MAPS = {
    "transition": "map", "projection": "q", "prediction": "linear", "momentum": 0.0, "momentum_init": "copy",
    "shares_view": True, "augment": SHIFTED,
}  # fmt: skip


def atari_host() -> Host:
    encoder = NatureEncoder((3, 36, 36), filters=(4, 4, 4)).double()
    projection = torch.nn.Linear(encoder.latent_dim, 8).double()
    stream = torch.Generator().manual_seed(1)
    return Host(encoder, encoder.latent_dim, 3, q_projection=projection, discrete=True, generator=stream)


def atari_material(spr: SPR) -> Material:  # type: ignore[type-arg]
    return cut_short(tiny_material(spr.needs, frame=36, size=36, action_dim=3), updates=20_000)


def test_on_atari_gradient_and_update_are_the_released_ones_written_out():
    for check in (check_gradient, check_update):
        torch.manual_seed(2)
        spr = replace(SPR_TINY, **ON_MAPS).build(atari_host())
        check(spr, atari_material(spr), losses_by_hand, micro_batch=8)  # which a batch norm does not heed


def test_batch_norm_is_never_split():
    spr = replace(SPR_TINY, **ON_MAPS).build(atari_host())
    assert not spr.separable
    assert not spr.splits
    assert SPR_TINY.build(tiny_host()).splits


def test_a_map_transition_refuses_an_encoder_of_vectors():
    with pytest.raises(TypeError, match=r"ControlEncoder.*transition='vector'"):
        replace(SPR_TINY, transition="map").build(tiny_host())


def test_clips_of_another_length_are_refused():
    spr = SPR_TINY.build(tiny_host())
    short = tiny_material(replace(spr.needs, clip_length=3))
    with pytest.raises(ValueError, match=r"clips of 4 steps; got 3"):
        spr.views(short)


# ── PlayVirtual ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_ramp_is_the_released_one():
    ramp = Ramp(50_000, start=8000, stride=8)
    assert ramp(0) == pytest.approx(math.exp(-5 * (1 - 8001 / 50_000) ** 2)) == pytest.approx(0.029, abs=5e-4)
    assert ramp((50_000 - 8000) // 8) == 1
    assert ramp(10**6) == 1
    assert Ramp(50_000, start=2000, stride=0.5)(0) == pytest.approx(0.010, abs=5e-4)  # Atari, two updates a decision


def virtual_losses_by_hand(virtual: PlayVirtual, views: PlayVirtualViews) -> list[Tensor]:
    match, count = virtual.match, virtual.cycles
    every = [(row, cycle) for row in range(len(views.actions)) for cycle in range(count)]
    states = torch.cat([virtual.host.encoder(views.first.pixels()[row][None]) for row, _ in every])
    sequences = torch.stack([views.virtual_actions[row, cycle] for row, cycle in every])
    for step in range(virtual.cycle_steps):
        states = advance(virtual.transition, states, sequences[:, step])
    for step in reversed(range(virtual.cycle_steps)):
        states = advance(virtual.backward_transition, states, sequences[:, step])
    cycles = [torch.zeros((), dtype=torch.float64) for _ in views.actions]
    for (row, cycle), state in zip(every, states, strict=True):
        target = match.momentum_projection.copy(match.encoder.copy(views.origins.pixels()[row, cycle][None]))[0]
        distance = (unit(match.prediction(match.projection(state[None]))[0]) - unit(target.detach())).square().sum()
        cycles[row] = cycles[row] + distance / count * views.begins[row]
    predicted = losses_by_hand(virtual, views)  # type: ignore[arg-type]
    return [one + views.ramp.item() * cycle / virtual.weight for one, cycle in zip(predicted, cycles, strict=True)]


def test_a_cycle_goes_forward_and_back_with_the_same_actions():
    virtual = VIRTUAL_TINY.build(tiny_host())
    views = virtual.views(cut_short(tiny_material(virtual.needs), updates=20_000))
    assert 0 < views.ramp.item() < 1
    expected = torch.stack(virtual_losses_by_hand(virtual, views))
    torch.testing.assert_close(virtual.loss(views).per_clip, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("micro_batch", [None, 8])
def test_an_update_with_cycles_is_the_released_one_written_out(micro_batch: int | None):
    """With a ramp that rises from update to update."""
    virtual = replace(VIRTUAL_TINY, ramp_length=5, ramp_start=1).build(tiny_host())
    settings = {"max_grad_norm": 0.1, "second_encoder_rate": 2.0**-8}
    material = cut_short(tiny_material(virtual.needs))
    check_update(virtual, material, virtual_losses_by_hand, micro_batch=micro_batch, **settings)


def test_on_atari_cycles_have_gradient_and_update_of_the_released_ones_written_out():
    """The batch norm of the forward model sees the true batch, and then the virtual one."""
    for check in (check_gradient, check_update):
        torch.manual_seed(2)
        config = replace(VIRTUAL_TINY, cycles=1, ramp_length=5, ramp_start=1, last_step=False, **ON_MAPS)
        virtual = config.build(atari_host())
        check(virtual, atari_material(virtual), virtual_losses_by_hand, micro_batch=8)


def test_the_backward_model_learns_from_cycles_alone():
    virtual = VIRTUAL_TINY.build(tiny_host())
    views = virtual.views(replace(tiny_material(virtual.needs), updates=40_000))
    state = virtual.host.encoder(views.first.pixels())
    torch.autograd.backward(virtual.prediction_loss(state, views)[0].mean(), retain_graph=True)
    assert all(parameter.grad is None for parameter in virtual.backward_transition.parameters())
    torch.autograd.backward(virtual.cycle_loss(state, views).mean())
    assert any(parameter.grad.any() for parameter in virtual.backward_transition.parameters())


def test_virtual_actions_are_uniform_or_one_hot():
    virtual = VIRTUAL_TINY.build(tiny_host())
    actions = virtual.views(tiny_material(virtual.needs)).virtual_actions
    assert actions.shape == (5, 4, 2, 2)
    assert -1 <= actions.min() < -0.5
    assert 0.5 < actions.max() < 1
    discrete = replace(VIRTUAL_TINY, cycles=2).build(replace(tiny_host(), discrete=True))
    chosen = discrete.views(tiny_material(discrete.needs)).virtual_actions
    assert chosen.shape == (5, 4, 2, 2)  # 2 for each of 2 actions
    assert torch.equal(chosen.sum(dim=-1), torch.ones(5, 4, 2, dtype=torch.float64))


def test_every_cycle_ends_at_a_view_of_its_own():
    virtual = VIRTUAL_TINY.build(tiny_host())
    origins = virtual.views(tiny_material(virtual.needs)).origins
    assert not torch.equal(origins.obs[:, 0], origins.obs[:, 1])
    assert len(origins.gain[0].unique()) == 4
