"""Small building blocks and the two initialisations of the paper's networks."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
Affine = tuple[Tensor, Tensor]  # weight and bias of a linear layer


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of the given widths with ReLU between them; 50, 100, 50 is a head of 10 150 parameters."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def joined(states: Tensor, vectors: Tensor | None) -> Tensor:
    """Latent states (N, d) with the vector observations (N, V) appended, if there are any: (N, d + V)."""
    return states if vectors is None else torch.cat([states, vectors], dim=-1)


def rescaled(units: Tensor, epsilon: float) -> Tensor:
    """Every row of (N, d) from its smallest to its largest unit, in [0, 1).

    The released code divides by zero when all units of a row are the same; with the epsilon the result is a zero vector.
    """
    low, high = units.amin(dim=1, keepdim=True), units.amax(dim=1, keepdim=True)
    return (units - low) / (high - low + epsilon)


class Convolutions(nn.Sequential):
    """Unpadded convolutions in channels last, with a ReLU after each: nn.Conv2d, nn.ReLU, nn.Conv2d, …

    On a CPU in float32 both are fused, which saves one read and write of each map, and all layers are one node of the graph. The
    values are the same bit for bit. Where fusing is not possible, the layers run one by one, as in nn.Sequential.
    """

    def forward(self, input: Tensor) -> Tensor:
        layers: list[Any] = list(self)
        if not (_suits(input) and _are_pairs(layers) and self._is_finite()):
            maps: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
            return maps
        if not torch.is_grad_enabled():  # no map is kept for the backward pass
            for layer in layers[::2]:
                input = _with_relu(input, layer.weight, layer.bias, layer.stride)
            return input
        parameters = [each for layer in layers[::2] for each in (layer.weight, layer.bias)]
        strides = [layer.stride for layer in layers[::2]]
        fused: Tensor = _ConvolutionsAndReLUs.apply(strides, input, *parameters)  # type: ignore[no-untyped-call]
        return fused

    def _is_finite(self) -> bool:
        """Whether all weights are finite. A fused ReLU turns NaN into 0 and would hide a broken weight; torch's keeps NaN."""
        total: Any = sum(parameter.detach().sum() for parameter in self.parameters())
        return bool(total.isfinite())


def _suits(x: Tensor) -> bool:
    mkldnn: Any = torch.backends.mkldnn
    if x.device.type != "cpu" or x.dtype != torch.float32 or not (mkldnn.is_available() and mkldnn.enabled):
        return False
    # Autocast would miss a fused layer, a compiler does its own fusing, and for one image torch may choose another kernel.
    return not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling() and len(x) > 1


def _are_pairs(layers: Sequence[nn.Module]) -> bool:
    return len(layers) % 2 == 0 and all(
        isinstance(convolution, nn.Conv2d)
        and isinstance(relu, nn.ReLU)
        and convolution.weight.dtype == torch.float32
        and (convolution.padding, convolution.dilation, convolution.groups) == ((0, 0), (1, 1), 1)
        for convolution, relu in zip(layers[::2], layers[1::2], strict=True)
    )


def _with_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, int]) -> Tensor:
    y: Tensor = torch.ops.mkldnn._convolution_pointwise(x, weight, bias, (0, 0), stride, (1, 1), 1, "relu", [], None)
    return y


class _ConvolutionsAndReLUs(torch.autograd.Function):
    """All layers in one function; its arguments alternate weights and biases.

    Nothing else uses the gradients between layers, so the backward pass of a ReLU overwrites them.
    """

    @staticmethod
    def forward(ctx: Any, strides: Sequence[tuple[int, int]], x: Tensor, *parameters: Tensor) -> Tensor:
        maps = [x]
        for stride, weight, bias in zip(strides, parameters[::2], parameters[1::2], strict=True):
            maps.append(_with_relu(maps[-1], weight, bias, stride))
        ctx.strides = strides
        ctx.save_for_backward(*maps, *parameters)
        return maps[-1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        depth, wanted = len(ctx.strides), ctx.needs_input_grad[1:]
        maps, parameters = ctx.saved_tensors[: depth + 1], ctx.saved_tensors[depth + 1 :]
        if torch.is_grad_enabled():  # for a second derivative, which torch's own layers support
            return None, *_differentiable(ctx.strides, [maps[0], *parameters], wanted, gradient)
        found: list[Tensor | None] = []
        gradient = torch.ops.aten.threshold_backward(gradient, maps[-1], 0)
        for layer in reversed(range(depth)):
            weight, stride = parameters[2 * layer], ctx.strides[layer]
            needs = (layer > 0 or wanted[0], *wanted[1 + 2 * layer : 3 + 2 * layer])
            gradient, of_weight, of_bias = torch.ops.aten.convolution_backward(
                gradient, maps[layer], weight, [len(weight)], stride, (0, 0), (1, 1), False, (0, 0), 1, needs
            )
            found = [of_weight, of_bias, *found]
            if layer > 0:
                torch.ops.aten.threshold_backward.grad_input(gradient, maps[layer], 0, grad_input=gradient)
        return None, gradient, *found


def _differentiable(
    strides: Sequence[tuple[int, int]], inputs: Sequence[Tensor], wanted: Sequence[bool], gradient: Tensor
) -> list[Tensor | None]:
    """The requested gradients of the pixels, weights and biases, differentiable themselves."""
    maps = inputs[0]
    for stride, weight, bias in zip(strides, inputs[1::2], inputs[2::2], strict=True):
        maps = F.conv2d(maps, weight, bias, stride).relu()
    asked = [each for each, want in zip(inputs, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(maps, asked, gradient, create_graph=True))
    return [next(found) if want else None for want in wanted]


def orthogonal_init(module: M, *, delta: bool = True) -> M:
    """SAC's initialisation: orthogonal linears, convolutions with gain √2, biases 0.

    `delta` (CURL's choice) puts the orthogonal matrix into the centre tap of a kernel and zeros elsewhere.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight)
        elif isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            gain, (height, width) = nn.init.calculate_gain("relu"), layer.kernel_size
            taps = torch.zeros(layer.weight.shape)  # orthogonal_ does not support channels-last weights
            if delta:
                taps[:, :, height // 2, width // 2] = nn.init.orthogonal_(torch.empty(taps.shape[:2]), gain)
            else:
                nn.init.orthogonal_(taps, gain)
            with torch.no_grad():
                layer.weight.copy_(taps)
        else:
            continue
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return module


def truncated_normal_init(module: M) -> M:
    """The released MLR initialisation: linears N(0, 0.02²) cut at ±0.02 (so a realised std of 0.0108), biases 0, norms (1, 0)."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02, a=-0.02, b=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.LayerNorm):
            layer.reset_parameters()
    return module


class NoisyLinear(nn.Module):
    """A linear layer whose weights carry learned, factorised Gaussian noise (Fortunato et al., 2018).

    The noise stays the same until `resample()`. Evaluation mode and `mean()` use the mean weights.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, fan_in: int, fan_out: int, sigma: float = 0.1) -> None:
        super().__init__()
        bound = 1 / math.sqrt(fan_in)
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(fan_out).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((fan_out, fan_in), sigma / math.sqrt(fan_in)))
        self.bias_sigma = nn.Parameter(torch.full((fan_out,), sigma / math.sqrt(fan_out)))
        self.register_buffer("noise_in", torch.zeros(fan_in))
        self.register_buffer("noise_out", torch.zeros(fan_out))
        self.resample()

    def resample(self, generator: torch.Generator | None = None) -> None:
        resample([self], generator)

    def mean(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        ((weight, bias),) = with_noise([self])
        return F.linear(x, weight, bias)


def with_noise(layers: Iterable[nn.Module]) -> list[Affine]:
    """Weight and bias of every layer; of noisy ones in training with their noise, all of them in few operations."""
    layers = list(layers)
    noisy = [layer for layer in layers if isinstance(layer, NoisyLinear) and layer.training]
    if not noisy:
        return [(layer.weight, layer.bias) for layer in layers]  # type: ignore[misc]
    means: list[Tensor] = [mean for layer in noisy for mean in (layer.weight, layer.bias)]
    sigmas: list[Tensor] = [sigma for layer in noisy for sigma in (layer.weight_sigma, layer.bias_sigma)]
    noises = [noise for layer in noisy for noise in (layer.noise_out.outer(layer.noise_in), layer.noise_out)]
    sums = torch._foreach_add(means, torch._foreach_mul(sigmas, noises))
    return list(zip(sums[::2], sums[1::2], strict=True))


def resample(layers: Iterable[NoisyLinear], generator: torch.Generator | None = None) -> None:
    """Draw new noise for all layers: sign(n)·√|n|, n ~ N(0, 1)."""
    noises = [noise for layer in layers for noise in (layer.noise_in, layer.noise_out)]
    for noise in noises:
        noise.normal_(generator=generator)
    if noises:
        roots = torch._foreach_abs(noises)
        torch._foreach_sqrt_(roots)
        torch._foreach_copy_(noises, torch._foreach_mul(torch._foreach_sign(noises), roots))
