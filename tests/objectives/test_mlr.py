import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from builders import (
    CROP,
    FRAME,
    STEPS,
    QProjection,
    parameters_of,
    shrink_pixel_decoder,
    tiny_clip,
    tiny_host,
    tiny_mask,
    tiny_mlr,
)
from by_hand import check_gradient, check_update
from maskrl import AugmentConfig, AuxiliaryStep, Clip, ControlEncoder, Host, MaskConfig, MLRConfig, NatureEncoder
from maskrl.nn.decoder import LatentDecoder
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Material
from maskrl.objectives.mlr import MLR, CosineDistance, MLRViews, squared_distance


@pytest.fixture(autouse=True)
def _small_pixel_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_pixel_decoder(monkeypatch)


# ── The numbers of the paper ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_defaults_are_the_papers_numbers_on_dmcontrol():
    config = MLRConfig()
    assert (config.weight, config.clip_length, config.decoder_depth, config.momentum) == (1.0, 16, 2, 0.95)
    assert (config.mask.cube, config.mask.ratio) == ((8, 10, 10), 0.5)
    assert (config.augment.crop, config.augment.intensity) == (84, 0.05)


def test_on_dmcontrol_the_objective_adds_61_thousand_parameters_to_the_encoder():
    mlr = MLRConfig().build(Host(ControlEncoder(), latent_dim=50, action_dim=6))
    own = sum(p.numel() for p in mlr.parameters() if p.requires_grad)
    assert own == 2 * 20_400 + (50 * 6 + 50) + 2 * 10_150  # decoder, action embedding, two heads


def smooth_images(*shape: int) -> Tensor:
    """Blobs instead of white noise, as uint8."""
    *batch, height, width = shape
    coarse = torch.rand(1, torch.Size(batch).numel(), 8, 8)
    return (F.interpolate(coarse, (height, width), mode="bilinear") * 255).to(torch.uint8).reshape(shape)


def test_the_first_dmcontrol_step_has_the_released_codes_loss_gradient_and_learning_rate():
    """The norm floor is active at first, so the loss is near 1 and not 2; the clip to 10 is active by far."""
    encoder = ControlEncoder(linear_init="truncated_normal")
    config = MLRConfig(momentum_init="independent")
    step = AuxiliaryStep(config.build(Host(encoder, latent_dim=50, action_dim=6)), micro_batch=16)
    metrics = step(Clip(smooth_images(4, 16, 9, 100, 100), torch.rand(4, 16, 6) * 2 - 1))
    assert 0.9 < metrics["mlr/loss"] < 1.2
    assert metrics["mlr/gradient_norm"] == pytest.approx(1.9e3, rel=0.25)
    assert metrics["mlr/learning_rate"] == pytest.approx(2.5e-7)
    assert metrics["mlr/hidden"] == 0.5


@pytest.mark.slow
def test_the_first_atari_loss_and_gradients_are_the_released_codes():
    """157 million parameters of decoder; about 3 GB of memory for a moment."""
    encoder = NatureEncoder()
    host = Host(encoder, latent_dim=3136, action_dim=4, q_projection=QProjection(3136, 256))
    config = MLRConfig(
        mask=MaskConfig(cube=(8, 12, 12), rounding="ceil"),
        augment=AugmentConfig(crop=None, shift=4),
        masked_input_scale="raw255",
        projection="q",
        prediction="linear",
        momentum=0.0,
        init="torch",
    )
    mlr = config.build(host)
    assert parameters_of(mlr.target.prediction) == 262_656
    assert parameters_of(mlr.decoder.blocks) == 2 * 78_701_056
    actions = F.one_hot(torch.randint(4, (2, 16)), 4).float()
    loss = mlr(Clip(smooth_images(2, 16, 4, 84, 84), actions))
    loss.per_clip.mean().backward()
    assert loss.per_clip.mean().item() == pytest.approx(1.95, abs=0.1)
    norms = [
        nn.utils.get_total_norm([p.grad for p in part if p.grad is not None]).item()
        for part in (host.parameters(), mlr.decoder.blocks.parameters(), mlr.target.prediction.parameters())
    ]
    assert norms == pytest.approx([7.2, 6.3, 2.9], rel=0.2)  # the first is 7.4 to 8.4 over four seeds


# ── What the encoder sees ─────────────────────────────────────────────────────────────────────────────────────────────


def coordinate_clip() -> Clip:
    """Channels: row + 1, column + 1, and white; so nothing visible is 0."""
    axis = torch.arange(1, FRAME + 1, dtype=torch.uint8)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    obs = torch.stack([rows, columns, torch.full_like(rows, 255)]).expand(5, STEPS, 3, FRAME, FRAME)
    return Clip(obs.contiguous(), torch.zeros(5, STEPS, 2, dtype=torch.float64))


def corners(obs: Tensor) -> list[tuple[int, ...]]:
    """Where a crop of the coordinate clip was taken, from pixels that are visible."""
    position = torch.arange(CROP)
    offset = torch.stack([obs[:, :, 0].int() - 1 - position[:, None], obs[:, :, 1].int() - 1 - position], dim=-1)
    visible = obs[:, :, 2] == 255
    return [
        tuple(o[v][0].tolist()) for o, v in zip(offset.flatten(0, 1), visible.flatten(0, 1), strict=True) if v.any()
    ]


def test_the_masked_and_the_original_view_are_cropped_and_lit_independently():
    views = tiny_mlr().build(tiny_host()).views(Material(coordinate_clip()))
    masked, original = corners(views.masked.obs), corners(views.original.obs)
    assert len(masked) == len(original) == 5 * STEPS
    assert sum(a == b for a, b in zip(masked, original, strict=True)) < 10  # of 40; chance is 1 in 25
    assert len(set(masked)) > 10  # every observation has a crop of its own
    assert not torch.equal(views.masked.gain, views.original.gain)
    assert views.masked.gain.unique().numel() > 30  # of 40; some are cut at 0.9 or 1.1


def test_the_original_view_is_whole_and_the_masked_one_has_holes():
    views = tiny_mlr().build(tiny_host()).views(Material(coordinate_clip()))
    assert (views.original.obs[:, :, 2] == 255).all()
    hidden = (views.masked.obs == 0).all(dim=2)
    assert 0.4 < hidden.double().mean() < 0.6
    assert torch.equal(hidden, (views.masked.obs == 0).any(dim=2))  # all channels share the hole


def test_masking_comes_before_the_crop_so_the_crop_cuts_the_grid_at_any_phase():
    views = tiny_mlr().build(tiny_host()).views(Material(coordinate_clip()))
    columns_changed = (views.masked.obs[:, :, 2, :, 1:] != views.masked.obs[:, :, 2, :, :-1]).any(
        dim=2
    )  # (5, K, CROP - 1)
    phases = {(x + 1) % 7 for x in columns_changed.nonzero()[:, 2].tolist()}
    assert len(phases) == 5  # offsets 0 to 4 against a grid of 7


def test_pixel_reconstruction_aligns_the_three_images_and_changes_no_brightness():
    config = tiny_mlr(reconstruct="pixels", pixel_loss_on="hidden")
    views = config.build(tiny_host()).views(Material(coordinate_clip()))
    visible = views.keep.expand_as(views.masked.obs)
    assert torch.equal(views.masked.obs[visible], views.original.obs[visible])
    assert not views.masked.obs[~visible].any()
    assert torch.equal(views.masked.gain, torch.ones(5, STEPS))
    assert len(set(corners(views.original.obs))) > 10


def test_the_pixel_loss_is_the_mean_squared_error_over_all_channels_and_pixels():
    mlr = tiny_mlr(reconstruct="pixels").build(tiny_host())
    views = mlr.views(Material(tiny_clip()))
    decoded = torch.rand(5, STEPS, 10, dtype=torch.float64)
    error, _ = mlr.target(decoded, views)
    drawn = mlr.target.decoder(decoded[2, 3][None])[0]
    expected = (drawn - views.original.obs[2, 3].double() / 255).square().mean()
    torch.testing.assert_close(error[2, 3], expected)


def test_hidden_only_pixel_loss_ignores_what_was_visible():
    mlr = tiny_mlr(reconstruct="pixels", pixel_loss_on="hidden").build(tiny_host()).double()
    views = mlr.views(Material(tiny_clip()))
    visible = views.keep.expand_as(views.original.obs)
    inverted = torch.where(visible, 255 - views.original.obs, views.original.obs)
    changed = replace(views, original=replace(views.original, obs=inverted))
    assert torch.equal(mlr.loss(views).per_clip, mlr.loss(changed).per_clip)
    inverted = torch.where(visible, views.original.obs, 255 - views.original.obs)
    changed = replace(views, original=replace(views.original, obs=inverted))
    assert not torch.equal(mlr.loss(views).per_clip, mlr.loss(changed).per_clip)


def test_feature_masking_shows_the_encoder_whole_frames_and_hides_half_of_its_map():
    host = tiny_host()
    views = tiny_mlr(corrupt="features").build(host).views(Material(coordinate_clip()))
    assert (views.masked.obs[:, :, 2] == 255).all()
    assert views.keep.shape == (1, STEPS, 1, 5, 5)
    assert ((~views.keep).sum(dim=(2, 3, 4)) == 12).all()  # floor of half of 25


def test_hidden_cells_of_a_feature_map_do_not_reach_the_latent_state():
    host = tiny_host()
    mlr = tiny_mlr(corrupt="features").build(host)
    views = mlr.views(Material(tiny_clip()))
    features = torch.rand(5, STEPS, 4, 5, 5, dtype=torch.float64)
    host.encoder.features = lambda pixels: features.flatten(0, 1)  # whatever the pixels
    before = mlr.corruption.encode(host.encoder, views)
    for where, same in ((~views.keep, True), (views.keep, False)):
        changed = torch.where(where, features + 1, features)
        host.encoder.features = lambda pixels, changed=changed: changed.flatten(0, 1)
        assert torch.equal(mlr.corruption.encode(host.encoder, views), before) == same


@pytest.mark.parametrize(
    ("changes", "cube", "balanced"),
    [
        ({}, (4, 7, 7), True),
        ({"strategy": "spatial"}, (1, 7, 7), True),
        ({"strategy": "temporal"}, (4, None, None), False),
        ({"balanced": False}, (4, 7, 7), False),
    ],
)
def test_a_strategy_is_a_shape_of_cube(changes: dict[str, object], cube: tuple[object, ...], balanced: bool):
    masker = tiny_mask(**changes).build()
    assert (masker.cube, masker.balanced) == (cube, balanced)


def test_every_field_of_the_mask_reaches_the_masker():
    masker = MaskConfig(ratio=0.3, rounding="ceil", per_clip=True, fill=9, feature_patch=3).build()
    assert (masker.ratio, masker.rounding, masker.per_clip, masker.fill) == (0.3, "ceil", True, 9)
    features = MaskConfig(fill=9, feature_patch=3).build(of="features")
    assert (features.cube, features.fill) == ((8, 3, 3), 0)


def test_the_fields_of_mlr_reach_their_parts():
    mlr = tiny_mlr(
        norm_floor=0.2,
        momentum=0.7,
        momentum_decoder=True,
        prediction="linear",
        decoder_depth=3,
        decoder_width=6,
        weight=5.0,
    ).build(tiny_host())
    slow = [module for module in mlr.modules() if isinstance(module, Momentum)]
    assert len(slow) == 3
    assert {module.momentum for module in slow} == {0.7}
    assert mlr.target.distance == CosineDistance(1.0, 0.2)
    assert isinstance(mlr.target.prediction, nn.Linear)
    assert (len(mlr.decoder.decoder.blocks), mlr.decoder.narrow.out_features, mlr.weight) == (3, 6, 5.0)
    assert tiny_mlr(distance="1-cos").build(tiny_host()).target.distance == CosineDistance(0.5, 1e-3)
    assert tiny_mlr(distance="mse").build(tiny_host()).target.distance is squared_distance


def test_the_raw_scale_of_the_released_atari_code_is_255_times_the_unit_scale():
    views = []
    for scale in ("unit", "raw255"):
        torch.manual_seed(1)
        views.append(tiny_mlr(masked_input_scale=scale).build(tiny_host()).views(Material(tiny_clip())))
    torch.testing.assert_close(views[1].masked.pixels(), 255 * views[0].masked.pixels())
    assert torch.equal(views[1].original.pixels(), views[0].original.pixels())


# ── The loss ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def losses_by_hand(mlr: MLR, views: MLRViews) -> list[Tensor]:
    """One clip after the other, each observation encoded and each state projected by itself."""
    target, losses = mlr.target, []
    for b, (masked, original) in enumerate(zip(views.masked.pixels(), views.original.pixels(), strict=True)):
        states = torch.cat([mlr.host.encoder(pixels[None]) for pixels in masked])
        decoded, errors = mlr.decoder(states[None], views.actions[b : b + 1], views.valid[b : b + 1])[0], []
        for k in range(int(views.valid[b].sum())):
            predicted = target.prediction(target.projection(decoded[k : k + 1]))[0]
            projected = target.momentum_projection.copy(target.encoder.copy(original[k : k + 1]))[0].detach()
            p, y = (vector / vector.norm().clamp(min=1e-3) for vector in (predicted, projected))
            errors.append((p - y).square().sum())
        losses.append(sum(errors) / len(errors))
    return losses


def cut_short() -> Clip:
    """The first clip ends after five steps."""
    clip = tiny_clip()
    clip.valid[0, 5:] = False
    return clip


def test_the_loss_is_the_papers_equations_written_out():
    mlr = tiny_mlr().build(tiny_host()).double()
    views = mlr.views(Material(cut_short()))
    expected = torch.stack(losses_by_hand(mlr, views))
    torch.testing.assert_close(mlr.loss(views).per_clip, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("projection", ["mlp", "q"])
@pytest.mark.parametrize("micro_batch", [None, 2 * STEPS])
def test_gradient_and_update_are_the_papers_equations_written_out(micro_batch: int | None, projection: str):
    for check in (check_gradient, check_update):
        host = replace(tiny_host(), generator=torch.Generator().manual_seed(1))
        mlr = tiny_mlr(weight=0.5, projection=projection).build(host).double()
        check(mlr, Material(cut_short()), losses_by_hand, micro_batch=micro_batch)


def test_above_the_floor_the_distance_is_2_minus_2_cos_or_1_minus_cos():
    a, b = torch.randn(2, 6, 10, dtype=torch.float64)
    cosine = F.cosine_similarity(a, b, dim=-1)
    torch.testing.assert_close(CosineDistance()(a, b), 2 - 2 * cosine)
    torch.testing.assert_close(CosineDistance(0.5)(a, b), 1 - cosine)
    assert CosineDistance()(a, 3 * a).abs().max() < 1e-12


def test_below_the_floor_a_vector_counts_by_its_length():
    a, b = torch.tensor([[1e-4, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert CosineDistance()(a, b).item() == pytest.approx(0.1**2 + 1)


def test_the_squared_distance_is_a_mean_over_features():
    assert squared_distance(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 0.0]])).item() == 5.0


def test_a_perfect_prediction_costs_nothing_and_shows_a_cosine_of_one():
    """Nothing hidden, a decoder that passes its input on, no heads, and a momentum copy equal to the encoder."""
    host = tiny_host()
    config = tiny_mlr(
        projection="none", prediction="none", augment=AugmentConfig(crop=None), mask=tiny_mask(cube=(4, 6, 6))
    )
    mlr, clip = config.build(host).double(), tiny_clip()
    views = mlr.views(Material(replace(clip, obs=clip.obs[..., :CROP, :CROP])))
    mlr.decoder = Passing(2, 2)
    loss = mlr.loss(replace(views, masked=views.original))
    assert loss.per_clip.abs().max() < 1e-12
    assert loss.metrics["mlr/cosine"].item() == pytest.approx(1)


class Passing(LatentDecoder):
    def forward(self, states: Tensor, actions: Tensor, valid: Tensor | None = None) -> Tensor:
        return states


def test_collapsed_targets_raise_the_alarm():
    mlr = tiny_mlr().build(tiny_host())
    assert mlr(tiny_clip()).metrics["mlr/target_std"] > 0.05
    for parameter in mlr.target.momentum_projection.parameters():
        nn.init.zeros_(parameter)
    assert mlr(tiny_clip()).metrics["mlr/target_std"] == 0  # all zero
    nn.init.ones_(mlr.target.momentum_projection.copy[-1].bias)  # the same projection, whatever the observation
    assert mlr(tiny_clip()).metrics["mlr/target_std"] < 1e-6


def test_metrics_do_not_count_steps_past_the_end():
    mlr, clip = tiny_mlr().build(tiny_host()), tiny_clip()
    valid = clip.valid.clone()
    valid[:, 4:] = False
    views = mlr.views(Material(replace(clip, valid=valid)))
    moved = views.original.obs.clone()
    moved[:, 4:] = 0
    metrics = [mlr.loss(v).metrics for v in (views, replace(views, original=replace(views.original, obs=moved)))]
    for name in ("mlr/cosine", "mlr/target_std", "mlr/loss"):
        torch.testing.assert_close(metrics[0][name], metrics[1][name], rtol=0, atol=1e-12)


def test_the_hidden_share_is_reported_and_not_the_visible_one():
    assert tiny_mlr(mask=tiny_mask(ratio=0.25)).build(tiny_host())(tiny_clip()).metrics["mlr/hidden"] == 0.25


def test_momentum_copies_start_as_copies_unless_asked_to_start_apart():
    for config, equal in ((tiny_mlr(), True), (tiny_mlr(momentum_init="independent"), False)):
        host = tiny_host()
        target = config.build(host).double().target
        slow, fast = target.encoder.copy, host.encoder
        assert torch.equal(slow.linear.weight, fast.linear.weight) == equal
        assert torch.equal(slow.convolutions[0].weight, fast.convolutions[0].weight)  # convolutions always do
        assert torch.equal(target.momentum_projection.copy[0].weight, target.projection[0].weight) == equal


def test_decoder_and_heads_start_truncated_normal_or_as_torch_makes_them():
    for init, largest in (("truncated_normal", 0.02), ("torch", 1.0)):
        mlr = tiny_mlr(init=init).build(tiny_host())
        linears = [m for m in (*mlr.decoder.modules(), *mlr.target.prediction.modules()) if isinstance(m, nn.Linear)]
        weights = torch.cat([m.weight.detach().flatten() for m in linears]).abs()
        assert (weights.max() <= 0.02) == (init == "truncated_normal")
        assert weights.max() < largest


# ── In somebody else's hands ──────────────────────────────────────────────────────────────────────────────────────────


def test_any_module_from_pixels_to_vectors_can_be_the_encoder():
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Flatten(), nn.LazyLinear(17))
    encoder(torch.zeros(1, 3, CROP, CROP))
    mlr = tiny_mlr().build(Host(encoder, latent_dim=17, action_dim=2))
    clip = tiny_clip()
    loss = mlr(replace(clip, actions=clip.actions.float())).per_clip.mean()
    loss.backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_a_joint_loss_needs_no_auxiliary_step():
    host, clip = tiny_host(), tiny_clip()
    mlr = tiny_mlr().build(host).double()
    own = [p for p in mlr.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD([*host.encoder.parameters(), *own], lr=1e-3)  # no parameter twice
    before = host.encoder.linear.weight.detach().clone()
    (host.encoder(clip.obs[:, 0, :, :CROP, :CROP].double() / 255).mean() + mlr(clip).per_clip.mean()).backward()
    optimizer.step()
    mlr.update_momentum()
    assert not torch.equal(before, host.encoder.linear.weight)


# ── Bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"distance": "cosine"}, "distance='cosine' is not a choice of MLRConfig: use one of '2-2cos', '1-cos', 'mse'"),
        ({"projection": "yes"}, "projection='yes' is not a choice"),
        ({"clip_length": 1}, "clip_length=1 must be at least 2"),
        ({"clip_length": 6}, "clip_length=6 is not a multiple of the cube's depth 4"),
        ({"clip_length": 2}, "A cube of 4 steps is longer than the clip of 2"),
        ({"norm_floor": 0.0}, "norm_floor=0.0 must be positive"),
        ({"weight": -3.0}, "weight=-3.0 must be positive"),
        ({"head_width": 0}, "head_width=0 must be positive"),
        ({"decoder_width": 0}, "decoder_width=0 must be positive"),
        ({"decoder_depth": 0}, "decoder_depth=0 must be positive"),
        ({"momentum": 1.0}, "momentum=1.0 must be in [0, 1)"),
        ({"corrupt": "features", "reconstruct": "pixels", "pixel_loss_on": "hidden"}, "Use pixel_loss_on='all'"),
    ],
)
def test_an_impossible_config_is_refused_when_it_is_made(changes: dict[str, object], seen: str):
    with pytest.raises(ValueError, match=re.escape(seen)):
        tiny_mlr(**changes)


def test_a_bad_mask_or_augmentation_is_refused_with_its_own_config():
    with pytest.raises(ValueError, match=re.escape("ratio=1.5 must lie strictly between 0")):
        MaskConfig(ratio=1.5)
    with pytest.raises(ValueError, match=re.escape("cube=(8, 0, 0) must be (steps, height, width)")):
        MaskConfig(feature_patch=0)
    with pytest.raises(ValueError, match=re.escape("clip_length=8.0 of MLRConfig must be a whole number")):
        tiny_mlr(clip_length=8.0)
    with pytest.raises(ValueError, match=re.escape("weight=inf of MLRConfig must be finite")):
        tiny_mlr(weight=float("inf"))
    with pytest.raises(ValueError, match="size=0 must be at least 1 pixel; use None for no augmentation"):
        AugmentConfig(crop=0)


@pytest.mark.parametrize(
    ("changes", "host_changes", "seen"),
    [
        ({"projection": "q"}, {"q_projection": None}, "Host.q_projection is None"),
        ({"reconstruct": "pixels"}, {"obs_shape": None}, "pass Host(obs_shape=(C, H, W))"),
        ({"corrupt": "features"}, {"encoder": nn.Flatten()}, "needs an encoder in two halves"),
    ],
)
def test_a_host_that_lends_too_little_is_told_what_is_missing(
    changes: dict[str, object], host_changes: dict[str, object], seen: str
):
    with pytest.raises((ValueError, TypeError), match=re.escape(seen)):
        tiny_mlr(**changes).build(replace(tiny_host(), **host_changes))


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda c: Clip(c.obs[:, :4], c.actions[:, :4]), "built for clips of 8 steps; got 4"),
        (lambda c: Clip(c.obs, c.actions[..., :1]), "Clip.actions are 1 wide, but Host.action_dim is 2"),
        (lambda c: Clip(c.obs[..., :21, :21], c.actions), "Cannot crop 24 × 24 from frames of 21 × 21"),
    ],
)
def test_a_clip_that_does_not_fit_is_refused(change: object, seen: str):
    with pytest.raises(ValueError, match=re.escape(seen)):
        tiny_mlr().build(tiny_host())(change(tiny_clip()))


def test_an_encoder_of_another_width_is_refused():
    encoder = tiny_host().encoder
    with pytest.raises(ValueError, match="latent_dim=12, but the encoder's own latent_dim is 10"):
        Host(encoder, latent_dim=12, action_dim=2)
    anonymous = nn.Sequential(encoder)
    mlr = tiny_mlr().build(Host(anonymous, latent_dim=12, action_dim=2)).double()
    with pytest.raises(
        ValueError, match=re.escape("must return latent states (N, d) = (N, 12); it returned (5, 8, 10)")
    ):
        mlr(tiny_clip())
    maps = tiny_mlr().build(Host(nn.Sequential(encoder, nn.Unflatten(1, (1, 10))), latent_dim=10, action_dim=2))
    with pytest.raises(ValueError, match=re.escape("it returned (5, 8, 1, 10)")):
        maps(tiny_clip())


def test_pixels_of_another_shape_than_announced_are_refused_and_not_broadcast():
    for shape in ((1, CROP, CROP), (3, 1, CROP), (3, CROP + 1, CROP)):
        mlr = tiny_mlr(reconstruct="pixels").build(replace(tiny_host(), obs_shape=shape))
        with pytest.raises(ValueError, match=re.escape("Pass Host(obs_shape=(3, 24, 24))")):
            mlr(tiny_clip())


def test_a_clip_in_another_precision_or_on_another_device_is_refused():
    mlr, clip = tiny_mlr().build(tiny_host()), tiny_clip()
    with pytest.raises(ValueError, match=re.escape("but the encoder is torch.float64. Pass actions.to(torch.float64)")):
        mlr(replace(clip, actions=clip.actions.float()))
    on_meta = tiny_mlr().build(replace(tiny_host(), encoder=tiny_host().encoder.to("meta")))
    with pytest.raises(ValueError, match=re.escape("The clip is on cpu, the encoder on meta. Use Clip.to('meta')")):
        on_meta(clip)


def test_an_objective_is_built_where_its_host_is_and_in_its_precision():
    for place in ({"device": "meta"}, {"dtype": torch.float16}):
        host = replace(tiny_host(), encoder=tiny_host().encoder.to(**place))
        like = next(host.encoder.parameters())
        built = {(p.device, p.dtype) for p in tiny_mlr().build(host).parameters()}
        assert built == {(like.device, like.dtype)}


def test_a_feature_map_that_cannot_be_masked_is_refused_when_building():
    with pytest.raises(ValueError, match="hides 0: nothing is left to predict"):
        tiny_mlr(corrupt="features", mask=tiny_mask(feature_patch=5)).build(tiny_host())


def test_a_host_without_width_is_refused():
    with pytest.raises(ValueError, match="latent_dim=0 and action_dim=2 must both be at least 1"):
        Host(nn.Identity(), latent_dim=0, action_dim=2)
