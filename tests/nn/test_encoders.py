import re

import pytest
import torch
from torch import nn

from builders import parameters_of
from maskrl import ControlEncoder, NatureEncoder
from maskrl.nn.encoders import flat
from maskrl.nn.layers import Convolutions


def test_the_control_encoder_has_the_papers_4_036_182_parameters():
    encoder = ControlEncoder((9, 84, 84), filters=64)
    assert parameters_of(encoder) == 4_036_182
    assert encoder.feature_shape == (64, 35, 35)
    assert parameters_of(ControlEncoder((9, 84, 84), filters=32)) == 1_990_518


def test_the_nature_encoder_has_77_984_parameters_and_3136_latents():
    encoder = NatureEncoder((4, 84, 84))
    assert parameters_of(encoder) == 77_984
    assert encoder.feature_shape == (64, 7, 7)
    assert encoder.latent_dim == 3136


@pytest.mark.parametrize("strides", [(2, 1, 1, 1), (2, 2, 1, 1), (2, 2)])
def test_the_announced_shapes_are_the_real_ones(strides: tuple[int, ...]):
    encoder = ControlEncoder((3, 40, 32), filters=5, latent_dim=7, strides=strides)
    pixels = torch.rand(2, 3, 40, 32)
    features = encoder.features(pixels)
    assert features.shape == (2, *encoder.feature_shape)
    assert encoder(pixels).shape == (2, 7)
    assert torch.equal(encoder(pixels), encoder.embed(features))


@pytest.mark.parametrize("encoder", [ControlEncoder((3, 40, 40), filters=5), NatureEncoder((3, 40, 40))])
def test_maps_are_flattened_without_a_copy(encoder: ControlEncoder | NatureEncoder):
    features = encoder.features(torch.rand(2, 3, 40, 40))
    assert flat(features).data_ptr() == features.data_ptr()
    assert torch.equal(flat(features)[1].sort().values, features[1].flatten().sort().values)


def test_a_latent_state_is_normalised_and_not_squashed():
    encoder = ControlEncoder((3, 40, 40), filters=5)
    torch.nn.init.constant_(encoder.norm.weight, 3.0)
    latent = encoder(torch.rand(8, 3, 40, 40))
    torch.testing.assert_close(latent.std(dim=1, unbiased=False), torch.full((8,), 3.0), atol=0.1, rtol=0)
    assert latent.abs().max() > 1  # no tanh at the end


def test_delta_orthogonal_convolutions_are_orthogonal_in_the_centre_and_zero_elsewhere():
    weight = ControlEncoder(filters=16).convolutions[2].weight.detach()  # 16 → 16
    centre = weight[:, :, 1, 1]
    torch.testing.assert_close(centre @ centre.T, 2 * torch.eye(16))  # gain √2
    weight[:, :, 1, 1] = 0
    assert not weight.any()


def test_orthogonal_convolutions_are_orthogonal_over_the_whole_kernel():
    weight = ControlEncoder(filters=16, convolution_init="orthogonal").convolutions[2].weight.detach().flatten(1)
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(16))


def test_the_linear_layer_is_orthogonal_or_a_truncated_normal_of_std_0_0108():
    orthogonal = ControlEncoder().linear.weight.detach()
    torch.testing.assert_close(orthogonal @ orthogonal.T, torch.eye(50), atol=1e-5, rtol=0)
    assert not ControlEncoder().linear.bias.any()
    assert not ControlEncoder().convolutions[0].bias.any()
    assert orthogonal.std().item() == pytest.approx(0.0036, abs=5e-5)  # 1/√78400
    truncated = ControlEncoder(linear_init="truncated_normal").linear
    assert truncated.weight.std().item() == pytest.approx(0.0108, abs=5e-5)
    assert truncated.weight.abs().max().item() <= 0.02
    assert not truncated.bias.any()


def test_nature_latents_fill_the_unit_interval_for_every_observation():
    latent = NatureEncoder()(torch.rand(3, 4, 84, 84) * torch.tensor([1.0, 0.1, 10.0])[:, None, None, None])
    torch.testing.assert_close(latent.amin(dim=1), torch.zeros(3))
    torch.testing.assert_close(latent.amax(dim=1), torch.ones(3), atol=1e-2, rtol=0)


def test_a_dead_map_is_zero_and_not_nan():
    encoder = NatureEncoder()
    with torch.no_grad():
        for layer in encoder.convolutions[::2]:
            layer.bias.fill_(-100.0)
    pixels = torch.rand(2, 4, 84, 84)
    assert not encoder(pixels).any()
    encoder(pixels).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())


@pytest.mark.parametrize("encoder", [ControlEncoder((9, 30, 30), filters=8), NatureEncoder((4, 84, 84))])
def test_a_relu_within_its_convolution_changes_no_bit(encoder: ControlEncoder | NatureEncoder):
    layers, channels = encoder.convolutions, encoder.convolutions[0].in_channels
    side = 30 if channels == 9 else 84
    pixels = torch.rand(5, channels, side, side).contiguous(memory_format=torch.channels_last).requires_grad_()

    def values() -> list[torch.Tensor]:
        maps = layers(pixels)
        return [maps, *torch.autograd.grad((maps**2).sum(), [pixels, *layers.parameters()])]

    fused = values()
    assert "ConvolutionsAndReLUs" in fused[0].grad_fn.name()  # or this test compares nothing
    plain = nn.Sequential(*layers)(pixels)
    apart = [plain, *torch.autograd.grad((plain**2).sum(), [pixels, *layers.parameters()])]
    for ours, theirs in zip(fused, apart, strict=True):
        assert torch.equal(ours, theirs)


def test_the_way_back_leaves_the_gradient_that_it_is_given_and_layers_that_do_not_learn():
    layers = ControlEncoder((3, 20, 20), filters=4, convolution_init="orthogonal").convolutions
    layers[0].requires_grad_(False)
    maps = layers(torch.rand(3, 3, 20, 20))
    assert "ConvolutionsAndReLUs" in maps.grad_fn.name()
    given = torch.randn_like(maps)
    before = given.clone()
    maps.backward(given)
    assert torch.equal(given, before)
    assert layers[0].weight.grad is None
    assert layers[2].weight.grad.any()


def test_a_second_derivative_is_that_of_the_layers():
    layers = ControlEncoder((3, 20, 20), filters=4, convolution_init="orthogonal").convolutions
    pixels = torch.rand(3, 3, 20, 20, requires_grad=True)

    def of_gradients(function: nn.Module) -> list[torch.Tensor]:
        (slope,) = torch.autograd.grad(function(pixels).square().sum(), pixels, create_graph=True)
        return list(torch.autograd.grad(slope.square().sum(), [layers[0].weight, layers[2].weight]))

    for ours, theirs in zip(of_gradients(layers), of_gradients(nn.Sequential(*layers)), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("layer", [0, 2, 4, 6])
def test_a_weight_that_is_not_a_number_shows_in_the_latents(layer: int):
    encoder = ControlEncoder((3, 20, 20), filters=4)
    with torch.no_grad():
        encoder.convolutions[layer].weight[0, 0, 1, 1] = torch.nan
    assert encoder(torch.rand(3, 3, 20, 20)).isnan().all()


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()],
        [nn.Conv2d(3, 4, 3, dilation=2), nn.ReLU()],
        [nn.Conv2d(3, 6, 3, groups=3), nn.ReLU()],
        [nn.Conv2d(3, 4, 3)],
        [nn.Conv2d(3, 4, 3), nn.Tanh()],
        [nn.Conv2d(3, 4, 3, bias=False), nn.ReLU()],
    ],
    ids=["padding", "dilation", "groups", "no ReLU", "another activation", "no bias"],
)
def test_other_layers_are_what_they_are(layers: list[nn.Module]):
    pixels = torch.rand(3, 3, 9, 9)
    assert torch.equal(Convolutions(*layers)(pixels), nn.Sequential(*layers)(pixels))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_not_fused(dtype: torch.dtype):
    encoder = ControlEncoder((9, 30, 30), filters=8)
    if dtype == torch.float64:
        maps = encoder.double().features(torch.rand(2, 9, 30, 30, dtype=dtype))
    else:
        with torch.autocast("cpu", dtype):
            maps = encoder.features(torch.rand(2, 9, 30, 30))
    assert maps.dtype == dtype


def test_frames_too_small_for_the_convolutions_are_refused():
    with pytest.raises(ValueError, match=re.escape("(3, 8, 8) are too small for this encoder")):
        ControlEncoder((3, 8, 8))
