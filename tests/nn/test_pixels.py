"""Decoders from latent states to observations."""

import pytest
import torch

from builders import parameters_of
from maskrl.nn.pixels import PixelDecoder, ReversedEncoder


def test_the_pixel_decoder_has_396_553_parameters_and_draws_84_by_84():
    decoder = PixelDecoder(50, (9, 84, 84))
    assert parameters_of(decoder) == 396_553
    pixels = decoder(torch.randn(2, 50) * 10)
    assert pixels.shape == (2, 9, 84, 84)
    assert 0 <= pixels.min() <= pixels.max() <= 1


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 37, 50)])
def test_the_pixel_decoder_draws_any_size(shape: tuple[int, int, int]):
    assert PixelDecoder(5, shape)(torch.randn(1, 5)).shape == (1, *shape)


def test_the_reversed_encoder_has_2_029_545_parameters_and_draws_a_quarter_of_the_pixels_at_first():
    decoder = ReversedEncoder(50, (9, 84, 84), (32, 35, 35), [2, 1, 1, 1])
    assert parameters_of(decoder) == 2_029_545
    drawn = decoder(torch.randn(1, 50))
    assert drawn.shape == (1, 9, 84, 84)
    assert drawn.count_nonzero() <= 9 * 42 * 42
