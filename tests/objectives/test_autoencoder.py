"""SAC+AE's autoencoder: its target, its decoder and its loss, as arithmetic."""

import pytest
import torch

from builders import parameters_of
from maskrl.nn.encoders import ControlEncoder
from maskrl.objectives.autoencoder import AutoencoderConfig, dequantised
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


def test_the_loss_is_the_mean_square_and_a_small_penalty():
    host = tiny_host()
    built = AutoencoderConfig(latent_penalty=0.1).build(host)
    views = built.views(tiny_material(built.needs))
    for row, loss in enumerate(built.loss(views).per_clip.tolist()):
        state = host.encoder(views.obs.pixels()[row : row + 1])
        drawn = built.decoder(state)[0]
        error = sum(
            (a - b) ** 2 for a, b in zip(drawn.flatten().tolist(), views.target[row].flatten().tolist(), strict=True)
        )
        penalty = 0.1 * 0.5 * sum(value**2 for value in state[0].tolist())
        assert loss == pytest.approx(error / drawn.numel() + penalty, rel=1e-9)


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
