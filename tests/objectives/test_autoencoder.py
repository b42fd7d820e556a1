"""SAC+AE's autoencoder: its target, its decoder and its loss, as arithmetic."""

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from builders import parameters_of
from by_hand import check_update
from maskrl.nn.encoders import ControlEncoder
from maskrl.objectives.autoencoder import Autoencoder, AutoencoderConfig, AutoencoderViews, dequantised
from maskrl.objectives.base import Host
from maskrl.testing import tiny_host, tiny_material


def test_the_target_has_five_bits_and_noise_of_one_step():
    obs = torch.arange(256, dtype=torch.uint8)
    low, high = dequantised(obs, torch.zeros(256)), dequantised(obs, torch.full((256,), 0.999))
    assert low.tolist() == [value // 8 / 32 - 0.5 for value in range(256)]
    assert (high - low).tolist() == pytest.approx([0.999 / 32] * 256, abs=1e-6)
    assert (low.min(), high.max()) == (-0.5, pytest.approx(0.5, abs=1e-4))


def test_the_decoder_is_as_large_as_the_released_one_and_starts_with_odd_rows_and_columns():
    encoder = ControlEncoder((9, 84, 84), filters=32)
    built = AutoencoderConfig().build(Host(encoder, 50, 1, obs_shape=(9, 84, 84)))
    assert parameters_of(built.decoder) == 2_029_545
    touched = (built.decoder(torch.randn(20, 50)) != 0).any(dim=0).any(dim=0)
    assert touched.any()
    rows, columns = touched.nonzero().unbind(dim=1)
    assert set((rows % 2).tolist()) == set((columns % 2).tolist()) == {1}


@pytest.mark.parametrize(("size", "strides"), [(84, (2, 1, 1, 1)), (48, (2, 2, 1)), (47, (2, 2, 1)), (53, (3, 2, 1))])
def test_any_size_that_the_encoder_takes_comes_back(size: int, strides: tuple[int, ...]):
    encoder = ControlEncoder((3, size, size), filters=4, strides=strides)
    built = AutoencoderConfig().build(Host(encoder, 50, 1, obs_shape=(3, size, size)))
    assert built.decoder(torch.randn(2, 50)).shape == (2, 3, size, size)


@pytest.mark.parametrize("sides", [(side, side) for side in range(4, 31)] + [(24, 25), (25, 24), (23, 24), (24, 26)])
def test_observations_that_the_encoder_was_not_built_for_are_refused_when_it_is_built(sides: tuple[int, int]):
    """Of 23 and of 24 pixels, with a stride of 2, the encoder's map is 5 × 5: either comes back."""
    host = replace(tiny_host(), obs_shape=(3, *sides))
    if {*sides} <= {23, 24}:
        assert AutoencoderConfig().build(host).decoder(torch.randn(2, 10).double()).shape == (2, 3, *sides)
        return
    rows, columns = ((side - 3) // 2 + 1 - 6 for side in sides)
    message = f"map is 5 × 5, but of observations (3, {sides[0]}, {sides[1]}) it would be {rows} × {columns}. Pass the obs_shape"
    with pytest.raises(ValueError, match=re.escape(message)):
        AutoencoderConfig().build(host)


def test_another_number_of_channels_is_refused_when_it_is_built():
    with pytest.raises(
        ValueError, match=r"takes 3 channels, but observations \(9, 24, 24\) have 9\. Pass the obs_shape"
    ):
        AutoencoderConfig().build(replace(tiny_host(), obs_shape=(9, 24, 24)))


def test_views_of_another_size_are_refused_by_the_loss():
    """23 pixels give the same map as 24, so that only the decoder's picture tells them apart."""
    built = AutoencoderConfig().build(replace(tiny_host(), obs_shape=(3, 23, 23)))
    with pytest.raises(
        ValueError, match=r"draws \(3, 23, 23\), but observations are \(3, 24, 24\)\. Build the objective"
    ):
        built.loss(built.views(tiny_material(built.needs)))


def losses_by_hand(built: Autoencoder, views: AutoencoderViews) -> list[Tensor]:
    losses = []
    for pixels, target in zip(views.obs.pixels(), views.target, strict=True):
        state = built.host.encoder(pixels[None])
        drawn = built.decoder(state)[0]
        error = sum(((drawn[c] - target[c]) ** 2).sum() for c in range(len(target))) / target.numel()
        losses.append(error + built.latent_penalty * 0.5 * sum(value**2 for value in state[0]))
    return losses


def test_the_loss_is_the_mean_square_and_a_small_penalty():
    built = AutoencoderConfig(latent_penalty=0.1).build(tiny_host())
    views = built.views(tiny_material(built.needs))
    expected = torch.stack(losses_by_hand(built, views))
    torch.testing.assert_close(built.loss(views).per_clip, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_an_update_is_the_released_one_written_out(micro_batch: int | None):
    """With a decay that shows, which is part of the decoder's gradient before Adam."""
    built = AutoencoderConfig(latent_penalty=0.1, weight_decay=0.01).build(tiny_host())
    check_update(built, tiny_material(built.needs), losses_by_hand, micro_batch=micro_batch, max_grad_norm=None)


def test_only_the_decoder_has_a_weight_decay():
    built = AutoencoderConfig().build(tiny_host())
    (group,) = built.parameter_groups()
    assert group.weight_decay == 1e-7
    assert {id(parameter) for parameter in group.parameters} == {
        id(parameter) for parameter in built.decoder.parameters()
    }


def test_another_encoder_is_refused():
    with pytest.raises(TypeError, match=r"ControlEncoder.*Flatten"):
        AutoencoderConfig().build(Host(torch.nn.Flatten(), 10, 1, obs_shape=(3, 24, 24)))
