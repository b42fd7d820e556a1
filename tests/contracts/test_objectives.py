"""What every variant of MLR in the paper must do. A new variant is tested by being listed here."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from builders import CROP, FRAME, shrink_pixel_decoder, tiny_clip, tiny_host, tiny_mask, tiny_mlr
from maskrl import AugmentConfig, AuxiliaryStep, Clip, MLRConfig, Objective
from maskrl.objectives.base import Material
from maskrl.objectives.step import AuxiliaryConfig
from maskrl.testing import check_objective

VARIANTS: dict[str, MLRConfig] = {
    "MLR": tiny_mlr(),
    "MLR-S": tiny_mlr(mask=tiny_mask(strategy="spatial")),
    "MLR-T": tiny_mlr(mask=tiny_mask(strategy="temporal")),
    "MLR-F": tiny_mlr(corrupt="features"),
    "MLR-F, spatial": tiny_mlr(corrupt="features", mask=tiny_mask(strategy="spatial")),
    "MLR-Pixel": tiny_mlr(reconstruct="pixels"),
    "MLR-Pixel, hidden pixels": tiny_mlr(reconstruct="pixels", pixel_loss_on="hidden"),
    "MLR-F, pixels": tiny_mlr(corrupt="features", reconstruct="pixels"),
    "MLR w.o. ActTok": tiny_mlr(action_tokens=False),
    "MLR-MoDec": tiny_mlr(momentum_decoder=True),
    "L=1": tiny_mlr(decoder_depth=1),
    "L=4": tiny_mlr(decoder_depth=4),
    "L=8": tiny_mlr(decoder_depth=8),
    "1-cos": tiny_mlr(distance="1-cos"),
    "MSE": tiny_mlr(distance="mse"),
    "no heads": tiny_mlr(projection="none", prediction="none"),
    "prediction only": tiny_mlr(projection="none"),
    "projection only": tiny_mlr(prediction="none"),
    "Q projection (Atari)": tiny_mlr(projection="q", prediction="linear", init="torch", momentum=0.0),
    "raw255 masked branch (Atari)": tiny_mlr(masked_input_scale="raw255"),
    "K=4": tiny_mlr(clip_length=4),
    "K=12": tiny_mlr(clip_length=12),
    "ratio 0.25": tiny_mlr(mask=tiny_mask(ratio=0.25)),
    "ratio 0.9, ceil": tiny_mlr(mask=tiny_mask(ratio=0.9, rounding="ceil")),
    "cube depth 2": tiny_mlr(mask=tiny_mask(cube=(2, 7, 7))),
    "cube 14": tiny_mlr(mask=tiny_mask(cube=(4, 14, 14))),
    "over the whole clip": tiny_mlr(mask=tiny_mask(balanced=False)),
    "one mask per clip": tiny_mlr(mask=tiny_mask(per_clip=True)),
    "one mask per clip, features": tiny_mlr(mask=tiny_mask(per_clip=True), corrupt="features"),
    "white cubes": tiny_mlr(mask=tiny_mask(fill=255)),
    "shift": tiny_mlr(augment=AugmentConfig(crop=CROP, shift=2)),
    "no augmentation but the crop": tiny_mlr(augment=AugmentConfig(crop=CROP, intensity=0.0)),
    "narrow decoder": tiny_mlr(decoder_width=4),
    "independent momentum": tiny_mlr(momentum_init="independent"),
    "past the end counts": tiny_mlr(count_past_end=True),
}

# Those that differ from another one by a number, or combine two: `make check` leaves most of their tests out.
ALIKE = {
    *(
        "MLR-F, spatial",
        "MLR-Pixel",
        "MLR-F, pixels",
        "L=1",
        "L=4",
        "1-cos",
        "prediction only",
        "projection only",
        "K=4",
    ),
    *("ratio 0.25", "cube depth 2", "cube 14", "one mask per clip, features", "no augmentation but the crop"),
}

each_variant = pytest.mark.parametrize(
    "config",
    [pytest.param(c, id=name, marks=[pytest.mark.slow] if name in ALIKE else []) for name, c in VARIANTS.items()],
)


@pytest.fixture(autouse=True)
def _small_pixel_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_pixel_decoder(monkeypatch)


def build(config: MLRConfig) -> Objective:
    return config.build(tiny_host()).double()


def clip_for(config: MLRConfig, clips: int = 5) -> Clip:
    return tiny_clip(clips, config.clip_length)


def cut_short(clip: Clip) -> Clip:
    """The same clip, whose first episode ends after two steps."""
    valid = clip.valid.clone()
    valid[0, 2:] = False
    return replace(clip, valid=valid)


def trained(objective: Objective) -> dict[str, nn.Parameter]:
    """What the objective may move: the host's parameters and its own that are not frozen."""
    host = objective.host
    named = {f"encoder.{name}": p for name, p in host.encoder.named_parameters()}
    named |= {f"q_projection.{name}": p for name, p in host.q_projection.named_parameters()}
    return named | {name: p for name, p in objective.named_parameters() if p.requires_grad}


@each_variant
def test_a_variant_keeps_the_contract_of_objectives(config: MLRConfig):
    check_objective(config, frame=FRAME, size=CROP)


@each_variant
def test_the_metrics_tell_the_loss_which_differs_from_draw_to_draw(config: MLRConfig):
    objective, clip = build(config), clip_for(config)
    first, second = objective(clip), objective(clip)
    assert {"mlr/loss", "mlr/hidden"} <= first.metrics.keys()
    torch.testing.assert_close(first.metrics["mlr/loss"], first.per_clip.detach().mean())
    assert not torch.equal(first.per_clip, second.per_clip)


def test_the_variants_that_are_left_out_of_the_fast_tests_exist():
    assert VARIANTS.keys() > ALIKE


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_variant_is_not_plain_mlr(config: MLRConfig):
    """From the same seed, a field that does nothing would leave the losses of two updates as they are."""

    def losses(config: MLRConfig) -> list[float]:
        torch.manual_seed(3)
        objective = config.build(tiny_host())
        clip = cut_short(clip_for(config))
        found = []
        for _ in range(2):
            torch.manual_seed(6)
            found += objective(clip).per_clip.tolist()
            with torch.no_grad():
                for parameter in trained(objective).values():
                    parameter.mul_(1.5)
            objective.update_momentum()
        return found

    assert (losses(config) == losses(VARIANTS["MLR"])) == (config == VARIANTS["MLR"])


@each_variant
def test_one_step_moves_what_is_trained_and_nothing_else(config: MLRConfig):
    objective = build(config)
    step = AuxiliaryStep(objective, AuxiliaryConfig(learning_rate=1e-3, schedule="constant", momentum_every=2))
    step.updates = 1  # an update after which no momentum copy moves
    everything = {**dict(objective.named_parameters()), **trained(objective)}
    before = {name: p.detach().clone() for name, p in everything.items()}
    metrics = step(clip_for(config))
    moved = {name for name, p in everything.items() if not torch.equal(p, before[name])}
    with_gradient = {name for name, p in trained(objective).items() if p.grad is not None and p.grad.any()}
    assert moved == with_gradient
    assert {f"encoder.{name}" for name, _ in objective.host.encoder.named_parameters()} <= moved
    assert not any("sigma" in name for name in moved)
    assert any(name.startswith("q_projection.") for name in moved) == (config.projection == "q")
    assert metrics["mlr/gradient_norm"] > 0


@each_variant
def test_update_momentum_moves_every_copy_and_nothing_else(config: MLRConfig):
    objective = build(config)
    with torch.no_grad():
        for parameter in trained(objective).values():
            parameter.add_(1.0)
    before = {
        name: p.detach().clone() for name, p in {**dict(objective.named_parameters()), **trained(objective)}.items()
    }
    objective.update_momentum()
    for name, p in {**dict(objective.named_parameters()), **trained(objective)}.items():
        assert torch.equal(p, before[name]) == p.requires_grad, name


@each_variant
def test_the_loss_of_a_clip_depends_neither_on_its_place_nor_on_other_clips(config: MLRConfig):
    # Without augmentation, and with one mask for all, the draws do not depend on the order of the clips.
    still = replace(
        config,
        augment=AugmentConfig(crop=None, intensity=0.0),
        mask=replace(config.mask, per_clip=False, cube=(4, 6, 6)),
    )
    objective, clip, order = build(still), clip_for(config), torch.tensor([3, 0, 4, 1, 2])
    clip = cut_short(replace(clip, obs=clip.obs[..., :CROP, :CROP]))
    torch.manual_seed(1)
    views = objective.views(Material(clip))
    straight = objective.loss(views).per_clip
    torch.manual_seed(1)
    permuted = objective(Clip(clip.obs[order], clip.actions[order], clip.valid[order])).per_clip
    torch.testing.assert_close(permuted, straight[order], rtol=0, atol=1e-10)
    in_pieces = torch.cat([objective.loss(piece).per_clip for piece in views.split(2)])
    torch.testing.assert_close(in_pieces, straight, rtol=0, atol=1e-10)


@each_variant
def test_what_happens_past_the_end_of_an_episode_does_not_change_the_loss(config: MLRConfig):
    objective, clip = build(config), cut_short(clip_for(config))
    actions, obs = clip.actions.clone(), clip.obs.clone()
    actions[0, 2:], obs[0, 2:] = 0.7, 99
    losses = []
    for variation in (clip, replace(clip, obs=obs, actions=actions)):
        torch.manual_seed(1)
        losses.append(objective(variation).per_clip)
    unchanged = (losses[0] - losses[1]).abs() < 1e-12
    assert unchanged[1:].all()
    assert unchanged[0] != config.count_past_end
