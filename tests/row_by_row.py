"""An agent's networks, augmentation and Adam, written out for one observation at a time, in float64."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from by_hand import adam
from maskrl.agents.base import Agent, Spaces
from maskrl.replay.buffer import Replay, Transitions
from maskrl.testing import _random_replay

Weights = dict[str, Tensor]  # by the names that a module gives them
SPACES = Spaces((9, 20, 20), 2, discrete=False)
ROWS = 5


# ── An agent and its data in float64 ──────────────────────────────────────────────────────────────────────────────────


def agent_in_double(build: Callable[..., Any]) -> Any:
    """A tiny agent of float64 with weights that are all different from 0: delta-orthogonal filters would leave some dead."""
    torch.manual_seed(5)
    agent = build(SPACES, None, torch.device("cpu"))
    for module in agent.modules.values():
        module.double()
    for online in (agent.encoder, agent.actor, agent.critic):
        for parameter in online.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    for slow in (part for part in agent.modules.values() if hasattr(part, "copy")):  # away from what they follow
        for parameter in slow.copy.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    augment = agent.augment
    agent.augment = lambda obs: augment(obs, torch.float64)
    return agent


def replay_in_double() -> tuple[Replay, list[Transitions]]:
    """A replay whose batches are of float64, and a list to which it adds a copy of each: an agent may overwrite its own."""
    replay, seen = _random_replay(SPACES, 3, None), []
    read = replay.transitions

    def transitions(*args: Any, **options: Any) -> Transitions:
        batch = read(*args, **options)
        numbers = {name: getattr(batch, name).double() for name in ("actions", "rewards", "discounts")}
        batch = replace(batch, **numbers)
        seen.append(replace(batch, obs=batch.obs.clone(), next_obs=batch.next_obs.clone()))
        return batch

    replay.transitions = transitions  # type: ignore[method-assign]
    return replay, seen


def stream_of(agent: Agent) -> torch.Generator:
    """A generator that draws the numbers which the agent's augmentation is going to draw."""
    return torch.Generator().set_state(agent.generators.augment.get_state())  # type: ignore[union-attr]


def pieces(micro_batch: int | None) -> list[range]:
    """The rows of each piece: a piece draws its noise after the one before it."""
    size = micro_batch or ROWS
    return [range(start, min(start + size, ROWS)) for start in range(0, ROWS, size)]


def check_same(module: nn.Module, weights: Weights) -> None:
    """The module's weights equal those written out to 1e-9; the absolute tolerance is for weights that are nearly 0."""
    found = {name: parameter.detach() for name, parameter in module.named_parameters()}
    expected = {name: weight.detach() for name, weight in weights.items()}
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


# ── Augmentation ──────────────────────────────────────────────────────────────────────────────────────────────────────


def shifted(obs: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Every image moved by up to `pad` pixels each way; a pixel from outside is the nearest one of the border."""
    (n, _, height, width), moved = obs.shape, torch.empty(obs.shape, dtype=torch.float64)
    down, right = torch.randint(-pad, pad + 1, (2, n), generator=generator).tolist()
    for row in range(n):
        for y in range(height):
            for x in range(width):
                from_y, from_x = min(max(y + down[row], 0), height - 1), min(max(x + right[row], 0), width - 1)
                moved[row, :, y, x] = obs[row, :, from_y, from_x].double() / 255
    return moved


def cropped(obs: Tensor, size: int, generator: torch.Generator) -> Tensor:
    n, _, height, width = obs.shape
    tops = torch.randint(height - size + 1, (n,), generator=generator).tolist()
    lefts = torch.randint(width - size + 1, (n,), generator=generator).tolist()
    windows = [obs[row, :, tops[row] : tops[row] + size, lefts[row] : lefts[row] + size] for row in range(n)]
    return torch.stack(windows).double() / 255


# ── Networks, of one observation ──────────────────────────────────────────────────────────────────────────────────────


def weights_of(module: nn.Module) -> Weights:
    return {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}


def maps(encoder: Weights, pixels: Tensor) -> Tensor:
    """(C, H, W) → (F, h, w): four 3 × 3 convolutions, of which the first has stride 2, each followed by a ReLU."""
    for layer, stride in ((0, 2), (2, 1), (4, 1), (6, 1)):
        windows = pixels.unfold(1, 3, stride).unfold(2, 3, stride)  # (C, h, w, 3, 3)
        sums = torch.einsum("chwij,fcij->fhw", windows, encoder[f"convolutions.{layer}.weight"])
        pixels = (sums + encoder[f"convolutions.{layer}.bias"][:, None, None]).relu()
    return pixels


def embedded(weights: Weights, linear: str, norm: str, features: Tensor, *, squash: bool) -> Tensor:
    """A linear layer of the map, channels innermost, and a layer norm; a tanh, if it squashes."""
    x = weights[f"{linear}.weight"] @ features.permute(1, 2, 0).flatten() + weights[f"{linear}.bias"]
    centred = x - x.sum() / len(x)
    scaled = centred / ((centred**2).sum() / len(x) + 1e-5).sqrt()
    state = scaled * weights[f"{norm}.weight"] + weights[f"{norm}.bias"]
    return state.tanh() if squash else state


def state_of(encoder: Weights, features: Tensor, *, squash: bool) -> Tensor:
    return embedded(encoder, "linear", "norm", features, squash=squash)


def layers(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Three linear layers with ReLUs between them."""
    for layer in (0, 2):
        x = (weights[f"{name}.{layer}.weight"] @ x + weights[f"{name}.{layer}.bias"]).relu()
    return weights[f"{name}.4.weight"] @ x + weights[f"{name}.4.bias"]


def both_q(critic: Weights, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cat([state, action])
    return layers(critic, "q1", both)[0], layers(critic, "q2", both)[0]


# ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Adam:
    """Adam's step for the gradient of a loss."""

    def __init__(self, parts: Iterable[Weights], rate: float, beta: float = 0.9) -> None:
        self.parameters = [parameter for part in parts for parameter in part.values()]
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        self.rate, self.beta, self.count = rate, beta, 0

    def step(self, loss: Tensor) -> None:
        self.count += 1
        gradients = torch.autograd.grad(loss, self.parameters)
        assert all(gradient.any() for gradient in gradients)  # or the comparison would say nothing
        for parameter, gradient, moments in zip(self.parameters, gradients, self.moments, strict=True):
            adam(parameter, gradient, moments, self.rate, self.count, self.beta)


def follow(slow: Weights, online: Weights, momentum: float) -> None:
    for name, parameter in slow.items():
        parameter.data = momentum * parameter.data + (1 - momentum) * online[name].data


def mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).sum() / len(values)
