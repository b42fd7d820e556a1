import math

import pytest
import torch

from builders import parameters_of
from maskrl.nn.layers import NoisyLinear, mlp, truncated_normal_init


def test_a_head_has_10_150_parameters():
    assert parameters_of(mlp(50, 100, 50)) == 10_150


def test_the_truncated_normal_resets_biases_and_norms_too():
    layers = torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.LayerNorm(400))
    torch.nn.init.ones_(layers[1].bias)
    truncated_normal_init(layers)
    assert layers[0].weight.std().item() == pytest.approx(0.0108, abs=1e-4)
    assert not layers[0].bias.any()
    assert not layers[1].bias.any()


def test_a_noisy_layer_starts_with_the_published_scales():
    layer = NoisyLinear(400, 100, sigma=0.5)
    assert layer.weight_sigma.unique().tolist() == pytest.approx([0.5 / 20])
    assert layer.bias_sigma.unique().tolist() == pytest.approx([0.5 / 10])
    assert layer.weight.abs().max().item() <= 1 / 20


def test_noise_stays_until_it_is_drawn_again_and_is_off_in_evaluation():
    layer, x = NoisyLinear(8, 6), torch.randn(3, 8)
    first = layer(x)
    assert torch.equal(first, layer(x))
    layer.resample()
    assert not torch.equal(first, layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer.mean(x))
    torch.testing.assert_close(layer.mean(x), x @ layer.weight.T + layer.bias)


def test_factorised_noise_has_the_variance_of_the_paper():
    """With f(x) = sign(x)·√|x|, E f² = E|x| = √(2/π), so a product of two has variance 2/π."""
    layer = NoisyLinear(300, 300)
    product = layer.noise_out.outer(layer.noise_in)
    assert product.var().item() == pytest.approx(2 / math.pi, rel=0.1)


def test_the_mean_passes_no_gradient_to_the_noise_scales():
    layer = NoisyLinear(8, 6)
    layer.mean(torch.randn(3, 8)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight_sigma.grad is None
