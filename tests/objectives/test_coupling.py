"""Losses that couple clips, by contrast or by batch norm: the order of clips and the pieces of a batch must not matter.

Over batches of 2 to 5 clips that end anywhere, importance weights, pieces of any size and all orders.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from maskrl.nn.augment import AugmentConfig
from maskrl.nn.clip import Clip
from maskrl.nn.encoders import NatureEncoder
from maskrl.nn.masking import MaskConfig
from maskrl.objectives.base import Host, Material, Objective, ObjectiveConfig, PolicyBatch
from maskrl.objectives.curl import CURLConfig, Head
from maskrl.objectives.mooss import MOOSSConfig
from maskrl.objectives.playvirtual import PlayVirtualConfig
from maskrl.objectives.spr import SPRConfig
from maskrl.testing import tiny_host

CROPPED, SHIFTED = AugmentConfig(crop=24), AugmentConfig(crop=None, shift=2)
VECTORS: dict[str, Any] = {"steps": 2, "hidden": 8, "head_width": 6, "augment": CROPPED}
MAPS = VECTORS | {
    "transition": "map", "projection": "q", "prediction": "linear", "momentum": 0.0, "momentum_init": "copy",
    "augment": SHIFTED,
}  # fmt: skip
CYCLES: dict[str, Any] = {"cycle_steps": 2, "cycles": 1, "ramp_length": 5}

CONTRASTS: dict[str, ObjectiveConfig] = {
    "CURL": CURLConfig(augment=CROPPED),
    "CURL on Atari": CURLConfig(
        augment=CROPPED, shares_view=False, head=(16, 8), momentum=0.999, scale=0.1, joins_priorities=True, weight=0.5
    ),
    "MOOSS": MOOSSConfig(
        clip_length=4,
        mask=MaskConfig(strategy="walk", cube=(2, 4, 4)),
        augment=CROPPED,
        heads=2,
        head_width=12,
        levels=3,
    ),
}
BATCH_NORMS: dict[str, ObjectiveConfig] = {
    "SPR": SPRConfig(**MAPS),
    "SPR from the critic's view": SPRConfig(**MAPS, shares_view=True, last_step=False),
    "PlayVirtual": PlayVirtualConfig(**MAPS, **CYCLES),
}
SEPARABLE: dict[str, ObjectiveConfig] = {
    "SPR of vectors": SPRConfig(**VECTORS),
    "PlayVirtual of vectors": PlayVirtualConfig(**VECTORS, **CYCLES),
}
COUPLED = CONTRASTS | BATCH_NORMS


def of(configs: dict[str, ObjectiveConfig]) -> Any:
    return pytest.mark.parametrize("config", configs.values(), ids=configs.keys())


def host_for(config: ObjectiveConfig) -> tuple[Host, int]:
    """A host that fits, and the size of stored frames."""
    if config not in BATCH_NORMS.values():
        return tiny_host(), 28
    encoder = NatureEncoder((3, 16, 16), filters=(8, 8), kernels=(4, 3), strides=(2, 2)).double()  # maps of 3 × 3
    projection = torch.nn.Linear(encoder.latent_dim, 8).double()
    stream = torch.Generator().manual_seed(1)
    host = Host(encoder, encoder.latent_dim, 2, q_projection=projection, discrete=True, generator=stream)
    return host, 16


def example(config: ObjectiveConfig, seed: int, lengths: list[int]) -> tuple[Objective[Any], Any]:
    """An objective, and views of as many clips as `lengths` names; each is cut off after its length."""
    torch.manual_seed(1)  # always the same weights: a few filters drawn by chance may all be dead
    host, frame = host_for(config)
    objective, count, steps = config.build(host), len(lengths), config.needs.clip_length
    for head in (module for module in objective.modules() if isinstance(module, Head)):
        for layer in head.layers:  # the released weights, all positive, make all embeddings almost the same
            layer.reset_parameters()
    torch.manual_seed(seed)
    obs = torch.randint(256, (count, max(1, steps), 3, frame, frame), dtype=torch.uint8)
    clip = Clip(obs, torch.rand(count, steps, 2, dtype=torch.float64) * 2 - 1) if steps else None
    if clip is not None:
        for row, length in enumerate(lengths):
            clip.valid[row, length:] = False
    seen = (CROPPED if frame == 28 else SHIFTED).build()(obs[:, 0], torch.float64)
    return objective, objective.views(Material(clip, PolicyBatch(obs[:, 0], seen), updates=3))


def changed(views: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The views with every tensor changed; those that all clips share stay."""
    new = {}
    for field in fields(views):
        value = getattr(views, field.name)
        if not isinstance(value, Tensor):
            new[field.name] = changed(value, change)
        else:
            new[field.name] = value if len(value) == 1 else change(value)
    return replace(views, **new)


def gradients(objective: Objective[Any], add: Callable[[], Any]) -> tuple[dict[str, Tensor], Any]:
    trained = {f"host {place}": parameter for place, parameter in enumerate(objective.host.parameters())}
    trained |= dict(objective.named_parameters())
    for parameter in trained.values():
        parameter.grad = None
    result = add()
    return {name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None}, result


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    assert largest > 0
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-9 * largest, msg=name)


# At least three steps of every clip count, so that each has a loss, without its episode's last step, too.
seeds, batches = st.integers(0, 1000), st.lists(st.integers(3, 4), min_size=2, max_size=5)
few = settings(  # without shrinking, which would take minutes
    max_examples=8, deadline=None, phases=[Phase.generate]
)


@of(COUPLED)
@few
@given(seed=seeds, lengths=batches, data=st.data())
def test_the_losses_of_permuted_clips_are_the_permuted_losses_and_the_gradient_is_the_same(
    config: ObjectiveConfig, seed: int, lengths: list[int], data: st.DataObject
):
    objective, views = example(config, seed, lengths)
    order = torch.tensor(data.draw(st.permutations(range(len(lengths)))))
    permuted = changed(views, lambda tensor: tensor[order])
    expected, straight = gradients(objective, lambda: objective.add_gradient(views))
    found, mixed = gradients(objective, lambda: objective.add_gradient(permuted))
    torch.testing.assert_close(mixed.per_clip, straight.per_clip[order], rtol=1e-9, atol=1e-12)
    assert_same(found, expected)


@of(COUPLED | SEPARABLE)
@few
@given(seed=seeds, lengths=batches, data=st.data())
def test_any_pieces_give_the_gradient_of_the_weighted_mean_over_the_whole_batch(
    config: ObjectiveConfig, seed: int, lengths: list[int], data: st.DataObject
):
    objective, views = example(config, seed, lengths)
    micro_batch = data.draw(st.integers(1, len(lengths) * max(1, config.needs.clip_length)))
    weights = torch.tensor(
        data.draw(st.lists(st.floats(0.1, 1), min_size=len(lengths), max_size=len(lengths)))
    ).double()
    whole = objective.loss(views)
    mean = objective.weight * (weights * whole.per_clip).sum() / len(lengths)
    expected, _ = gradients(objective, lambda: torch.autograd.backward(mean))
    found, loss = gradients(objective, lambda: objective.add_gradient(views, micro_batch=micro_batch, weights=weights))
    assert_same(found, expected)
    torch.testing.assert_close(loss.per_clip, whole.per_clip.detach(), rtol=1e-9, atol=1e-12)
    assert (loss.priorities is None) == (whole.priorities is None)
    if whole.priorities is not None:
        torch.testing.assert_close(loss.priorities, whole.priorities, rtol=1e-9, atol=1e-12)


def losses_with_another_clip(
    config: ObjectiveConfig, seed: int, lengths: list[int], place: int
) -> tuple[Tensor, Tensor]:
    """The losses before and after the pictures of one clip become their negatives."""

    def negative(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor[place] = 255 - tensor[place] if tensor.dtype == torch.uint8 else tensor[place]
        return tensor

    objective, views = example(config, seed, lengths)
    return objective.loss(views).per_clip, objective.loss(changed(views, negative)).per_clip


@of(COUPLED)
@few
@given(seed=seeds, lengths=batches, data=st.data())
def test_another_clip_changes_the_losses_of_all_others(
    config: ObjectiveConfig, seed: int, lengths: list[int], data: st.DataObject
):
    before, after = losses_with_another_clip(config, seed, lengths, data.draw(st.integers(0, len(lengths) - 1)))
    assert ((after - before).abs() > 1e-9 * before.abs()).all()


@of(SEPARABLE)
@few
@given(seed=seeds, lengths=batches, data=st.data())
def test_without_contrast_and_batch_norm_another_clip_changes_its_own_loss_only(
    config: ObjectiveConfig, seed: int, lengths: list[int], data: st.DataObject
):
    place = data.draw(st.integers(0, len(lengths) - 1))
    before, after = losses_with_another_clip(config, seed, lengths, place)
    moved = (after - before).abs() > 1e-9 * before.abs()
    assert moved.tolist() == [row == place for row in range(len(lengths))]
