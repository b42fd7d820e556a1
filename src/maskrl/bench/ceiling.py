"""The speed limit of an update: the machine's best speed on the agent's own layers."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskrl.agents.base import Agent
from maskrl.cost.operations import UpdateCost
from maskrl.cost.timing import seconds_each

PIECES = (16, 32, 64, 128)  # observations per batch of the timed convolutions
ROWS = 512  # of the matrix products
MOMENT = 0.05  # minimum seconds to time a layer


class Layer(NamedTuple):
    """A convolution or a matrix product of the agent, with its input."""

    name: str
    is_convolution: bool
    flops: int  # per call
    call: Callable[[], Tensor]

    @torch.no_grad()
    def rate(self, device: torch.device) -> float:
        """FLOP per second, the best of several tries."""
        repeats = max(1, round(2e8 / self.flops))  # a few milliseconds, long enough for a clock
        self.call()
        begun, best = time.perf_counter(), 0.0
        while not best or time.perf_counter() - begun < MOMENT:
            best = max(best, self.flops / seconds_each(self.call, repeats, device))
        return best


@torch.no_grad()
def layers_of(agent: Agent, obs: tuple[int, int, int], device: torch.device) -> Iterator[Layer]:
    """The encoder's convolutions for observations of this shape, in batches of `PIECES`, and all distinct matrix products."""
    shape = agent.policy().centre(torch.zeros(1, *obs, dtype=torch.uint8)).shape[1:]
    for module in agent.encoder.modules():
        if isinstance(module, nn.Conv2d):
            fan_out, fan_in, height, width = module.weight.shape
            name = f"convolution {fan_in} → {fan_out} of {height} × {width}, stride {module.stride[0]}"
            for batch in PIECES:
                x = torch.randn(batch, *shape, device=device).contiguous(memory_format=torch.channels_last)
                maps = module(x)
                yield Layer(name, True, 2 * maps.numel() * module.weight[0].numel(), partial(module, x))
            shape = maps.shape[1:]
    modules = [part for part in (*vars(agent).values(), agent.objective) if isinstance(part, nn.Module)]
    weights = [weight.detach() for module in modules for weight in module.parameters()]
    for weight in {weight.shape: weight for weight in weights if weight.ndim == 2}.values():
        fan_out, fan_in = weight.shape
        x = torch.randn(ROWS, fan_in, device=device)
        yield Layer(f"product {fan_in} → {fan_out}", False, 2 * ROWS * fan_in * fan_out, partial(F.linear, x, weight))


def best_layers(agent: Agent, obs: tuple[int, int, int], device: torch.device) -> list[Layer]:
    """The fastest convolution and the fastest matrix product."""
    best: dict[bool, tuple[float, Layer]] = {}
    for layer in layers_of(agent, obs, device):
        rate = layer.rate(device)
        if rate > best.get(layer.is_convolution, (0.0, layer))[0]:
            best[layer.is_convolution] = rate, layer
    return [layer for _, layer in best.values()]


def ceiling(cost: UpdateCost, layers: Sequence[Layer], rates: Sequence[float]) -> float:
    """FLOP per second if each kind of layer ran at its best speed, from the added seconds of both kinds."""
    by_kind = {layer.is_convolution: rate for layer, rate in zip(layers, rates, strict=True)}
    return cost.flops / (cost.convolutions / by_kind[True] + (cost.flops - cost.convolutions) / by_kind[False])
