"""SPR and PlayVirtual: what their papers and released code say, as arithmetic, and loops that a reader can follow."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from builders import parameters_of
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.encoders import NatureEncoder
from maskrl.nn.transition import MapTransition, VectorTransition, rollout
from maskrl.objectives.base import Host
from maskrl.objectives.playvirtual import PlayVirtualConfig, Ramp
from maskrl.objectives.spr import SPR, SPRConfig
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


def test_a_map_transition_sees_the_actions_everywhere_and_rescales_its_map():
    transition = MapTransition((4, 3, 3), 2).double()
    states, actions = torch.rand(6, 36, dtype=torch.float64), torch.eye(2, dtype=torch.float64).repeat(3, 1)
    following = transition(states, actions)
    assert following.shape == states.shape
    assert following.amin(dim=1).tolist() == [0] * 6
    assert following.amax(dim=1).tolist() == pytest.approx([1] * 6, abs=1e-3)
    # By hand: channels last in the latent state, a constant plane for every action beside them, zeros around.
    maps = states.view(6, 3, 3, 4).permute(0, 3, 1, 2)
    planes = (
        torch.stack([torch.full((3, 3), float(value)) for row in actions for value in row]).view(6, 2, 3, 3).double()
    )
    mixed = torch.relu(
        torch.conv2d(torch.cat([maps, planes], 1), transition.mix.weight, transition.mix.bias, padding=1)
    )
    centred = mixed - mixed.mean(dim=(0, 2, 3), keepdim=True)
    normed = centred / (mixed.var(dim=(0, 2, 3), unbiased=False, keepdim=True) + 1e-5).sqrt()
    out = torch.relu(torch.conv2d(normed, transition.refine.weight, transition.refine.bias, padding=1))
    units = out.permute(0, 2, 3, 1).reshape(6, 36)
    low, high = units.min(dim=1, keepdim=True).values, units.max(dim=1, keepdim=True).values
    torch.testing.assert_close(following, (units - low) / (high - low + 1e-5), rtol=1e-9, atol=1e-9)


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
    return vector / max(vector.norm().item(), 1e-3)


def prediction_by_hand(spr: SPR, views) -> list[list[float]]:  # type: ignore[no-untyped-def, type-arg]
    """The squared distance of every clip and step, one observation after the other."""
    match, out = spr.match, []
    for row in range(len(views.actions)):
        state, errors = spr.host.encoder(views.first.pixels()[row : row + 1]), []
        for step in range(spr.steps):
            state = spr.transition(state, views.actions[row : row + 1, step])
            predicted = match.prediction(match.projection(state))[0]
            slow = match.encoder.copy(views.following.pixels()[row, step][None])
            target = match.momentum_projection.copy(slow)[0]
            errors.append((unit(predicted) - unit(target)).square().sum().item() * views.valid[row, step].item())
        out.append(errors)
    return out


def test_the_loss_is_a_rollout_matched_step_by_step():
    host = tiny_host()
    spr = SPR_TINY.build(host)
    material = tiny_material(spr.needs)
    material.clip.valid[0, 2:] = False
    views = spr.views(material)
    errors = prediction_by_hand(spr, views)
    expected = [sum(row) / 3 for row in errors]
    assert errors[0][1:] == [0.0, 0.0]
    assert spr.loss(views).per_clip.tolist() == pytest.approx(expected, rel=1e-9)


def test_the_last_step_of_an_episode_can_be_left_out_as_in_the_released_atari_code():
    """Five observations show four steps with what ends them. The episode of clip 0 ends by the action at step 2."""
    spr = replace(SPR_TINY, last_step=False).build(tiny_host())
    assert spr.needs.clip_length == 5
    material = tiny_material(spr.needs)
    material.clip.valid[0, 3:] = False
    views = spr.views(material)
    assert views.valid[0].tolist() == [True, False, False]
    assert views.valid[1:].all()
    expected = [sum(row) / 3 for row in prediction_by_hand(spr, views)]
    assert spr.loss(views).per_clip.tolist() == pytest.approx(expected, rel=1e-9)


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


def atari_host() -> Host:
    encoder = NatureEncoder((4, 36, 36), filters=(4, 4, 4))
    return Host(encoder, encoder.latent_dim, 3, q_projection=torch.nn.Linear(encoder.latent_dim, 8), discrete=True)


def test_batch_norm_is_never_split():
    spr = replace(SPR_TINY, transition="map", projection="q", prediction="linear", momentum_init="copy").build(
        atari_host()
    )
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


def test_a_cycle_goes_forward_and_back_with_the_same_actions():
    virtual = VIRTUAL_TINY.build(tiny_host())
    views = virtual.views(replace(tiny_material(virtual.needs), updates=20_000))
    match, weight = virtual.match, virtual.weight
    predicted = prediction_by_hand(virtual, views)
    for row in range(len(views.actions)):
        distances = []
        for cycle in range(4):
            state = virtual.host.encoder(views.first.pixels()[row : row + 1])
            actions = views.virtual_actions[row, cycle]
            for action in actions:
                state = virtual.transition(state, action[None])
            for action in reversed(actions):
                state = virtual.backward_transition(state, action[None])
            target = match.momentum_projection.copy(match.encoder.copy(views.origins.pixels()[row, cycle][None]))[0]
            distances.append((unit(match.prediction(match.projection(state))[0]) - unit(target)).square().sum().item())
        expected = weight * sum(predicted[row]) / 3 + views.ramp.item() * sum(distances) / 4
        assert (weight * virtual.loss(views).per_clip[row]).item() == pytest.approx(expected, rel=1e-9)


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
