"""Updates of an objective, written out: the gradient of a loss in loops, clipping, Adam and momentum copies."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Material, Objective
from maskrl.objectives.step import AuxiliaryConfig, AuxiliaryStep

Losses = Callable[[Any, Any], list[Tensor]]  # an objective and its views → the loss of every clip
RATE, UPDATES = 2.0**-10, 3  # a rate without rounding; enough updates for moments, copies and ramps to differ


def check_gradient(objective: Objective[Any], material: Material, losses: Losses, **options: Any) -> None:
    """`add_gradient` with importance weights adds the gradient of the mean of `losses`, in float64 to 1e-9."""
    views, parameters = objective.views(material), _trained(objective)
    weights = torch.rand(len(views), dtype=torch.float64) + 0.5
    terms = [weight * loss for weight, loss in zip(weights, losses(objective, views), strict=True)]
    mean = objective.weight * torch.stack(terms).mean()
    expected = torch.autograd.grad(mean, parameters, allow_unused=True)
    objective.add_gradient(views, weights=weights, **options)
    assert any(each is not None and each.any() for each in expected)
    for parameter, gradient in zip(parameters, expected, strict=True):
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(
            found, torch.zeros_like(found) if gradient is None else gradient, rtol=1e-9, atol=1e-9
        )


def check_update(
    objective: Objective[Any], material: Material, losses: Losses, *, micro_batch: int | None = None, **settings: Any
) -> None:
    """Three updates of `AuxiliaryStep` equal those written out here with the mean of `losses`, in float64 to 1e-9.

    `settings` are of AuxiliaryConfig. Everything that learns or follows is compared: weights and momentum copies.
    """
    twin = copy.deepcopy(objective)
    config = AuxiliaryConfig(**({"learning_rate": RATE, "schedule": "constant"} | settings))
    step = AuxiliaryStep(objective, config, micro_batch=micro_batch)
    for _ in range(UPDATES):
        step(material.clip, material.batch)
    _update_by_hand(twin, material, losses, config)
    pairs = list(zip(_followed(objective), _followed(twin), strict=True))
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def _update_by_hand(objective: Objective[Any], material: Material, losses: Losses, config: AuxiliaryConfig) -> None:
    parameters, encoder = _trained(objective), [*objective.host.encoder.parameters()]
    decay = {id(p): group.weight_decay for group in objective.parameter_groups() for p in group.parameters}
    rates = [(parameters, config.learning_rate)]
    if config.second_encoder_rate is not None:
        rates = [(encoder, config.second_encoder_rate), *rates]
    moments = [{id(p): (torch.zeros_like(p), torch.zeros_like(p)) for p in members} for members, _ in rates]
    for update in range(UPDATES):
        mean = torch.stack(losses(objective, objective.views(replace(material, updates=update)))).mean()
        gradients = torch.autograd.grad(objective.weight * mean, parameters, allow_unused=True)
        known = {id(p): g for p, g in zip(parameters, gradients, strict=True) if g is not None}
        for members, _ in rates:  # with a second Adam, the encoder is clipped first and then with everything
            _clip(known, [id(p) for p in members], config.max_grad_norm)
        for (members, rate), of_adam in zip(rates, moments, strict=True):
            for p in members:
                if id(p) in known:
                    decayed = known[id(p)] + (decay.get(id(p), 0.0) * p.detach() if members is parameters else 0)
                    adam(p, decayed, of_adam[id(p)], rate, update + 1)
        if update % config.momentum_every == 0:
            for slow in (module for module in objective.modules() if isinstance(module, Momentum)):
                for own, online in zip(slow.copy.parameters(), slow._online[0].parameters(), strict=True):
                    own.data = slow.momentum * own.data + (1 - slow.momentum) * online.data


def _clip(gradients: dict[int, Tensor], members: list[int], limit: float | None) -> None:
    norm = sum(gradients[each].square().sum() for each in members if each in gradients) ** 0.5
    if limit is not None and norm > limit:
        for each in members:
            if each in gradients:
                gradients[each] = gradients[each] * (limit / (norm + 1e-6))


def adam(
    parameter: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    rate: float,
    count: int,
    beta: float = 0.9,
    epsilon: float = 1e-8,
) -> None:
    """The step number `count` of Adam, from 1; `beta` is β1."""
    mean, square = moments
    mean.copy_(beta * mean + (1 - beta) * gradient)
    square.copy_(0.999 * square + 0.001 * gradient**2)
    root = (square / (1 - 0.999**count)).sqrt()
    parameter.data = parameter.data - rate * (mean / (1 - beta**count)) / (root + epsilon)


def _trained(objective: Objective[Any]) -> list[Tensor]:
    return [*objective.host.parameters(), *objective.own_parameters()]


def _followed(objective: Objective[Any]) -> list[Tensor]:
    """Everything that an update changes."""
    return [*objective.host.parameters(), *objective.parameters()]
