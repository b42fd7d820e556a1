"""Optimise an objective with its own Adam, separate from the agent's optimisers."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from maskrl.config import Config
from maskrl.nn.clip import Clip
from maskrl.nn.guard import Guard
from maskrl.objectives.base import Group, Material, Objective, PolicyBatch

Schedule = Literal["unit_peak", "printed", "constant"]


def unit_peak(update: int, warmup: int) -> float:
    """The released code's factor: from 5e-4 linearly to 1 over the warm-up, then √(warmup / update)."""
    return 5e-4 + (1 - 5e-4) * update / warmup if update < warmup else math.sqrt(warmup / update)


def printed(update: int, warmup: int) -> float:
    """The paper's printed formula, which peaks at 1/√warmup instead of 1: min(n^-½, n·warmup^-1.5) for n = 1, 2, …"""
    return float(min((update + 1) ** -0.5, (update + 1) * warmup**-1.5))


def constant(update: int, warmup: int) -> float:
    return 1.0


SCHEDULES: dict[Schedule, Callable[[int, int], float]] = {
    "unit_peak": unit_peak,
    "printed": printed,
    "constant": constant,
}


@dataclass(frozen=True, kw_only=True)
class AuxiliaryConfig(Config):
    """Settings of an objective's own optimiser; the defaults are the released code's on DMControl."""

    clips: int = 128  # B
    learning_rate: float = 5e-4
    schedule: Schedule = "unit_peak"
    warmup_updates: int = 6000
    max_grad_norm: float | None = 10.0  # None: gradients are not clipped
    momentum_every: int = 2  # updates; 1 in the paper, 2 in the released code
    # Learning rate of a second Adam that steps the encoder with the same gradient, as in CURL's and PlayVirtual's code; None: off
    second_encoder_rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("clips", "learning_rate", "warmup_updates", "max_grad_norm", "momentum_every")
        self.require_positive("second_encoder_rate")


def optimizer_groups(
    parameters: Iterable[nn.Parameter], groups: Iterable[Group], learning_rate: float
) -> list[dict[str, Any]]:
    """Torch's parameter groups: parameters with equal options together, in their order."""
    options = {
        parameter: (learning_rate if group.learning_rate is None else group.learning_rate, group.weight_decay)
        for group in groups
        for parameter in group.parameters
    }
    alike: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in parameters:
        alike.setdefault(options.get(parameter, (learning_rate, 0.0)), []).append(parameter)
    return [{"params": members, "lr": rate, "weight_decay": decay} for (rate, decay), members in alike.items()]


class AuxiliaryStep:
    """Train an objective with its own Adam, warm-up, clipping and momentum updates, as the paper does on DMControl.

    Two optimisers therefore train the encoder: the agent's and this one. A call clears the gradients of all parameters that it
    trains, including the encoder's, and leaves its own gradients in them.
    """

    def __init__(
        self, objective: Objective[Any], config: AuxiliaryConfig | None = None, *, micro_batch: int | None = None
    ) -> None:
        """`micro_batch`: observations per piece; None: the whole batch at once."""
        if micro_batch is not None and micro_batch < 1:
            raise ValueError(f"micro_batch={micro_batch} must be at least 1 observation, or None for the whole batch.")
        self.objective, self.config, self.micro_batch = objective, config or AuxiliaryConfig(), micro_batch
        self.parameters = [*objective.host.parameters(), *objective.own_parameters()]
        groups = optimizer_groups(self.parameters, objective.parameter_groups(), self.config.learning_rate)
        self.optimizer = torch.optim.Adam(groups, lr=self.config.learning_rate, fused=True)
        self.optimizers, second = [self.optimizer], self.config.second_encoder_rate
        self._encoder = [*objective.host.encoder.parameters()] if second is not None else []
        if second is not None:
            self.optimizers += [torch.optim.Adam(self._encoder, lr=second, fused=True)]
        device = self.parameters[0].device
        self._rates = [group["lr"] for group in self._groups()]
        # In tensors on the device, so that a recorded update stays valid when the rates change.
        self._used_rates = [torch.full((), rate, dtype=torch.float32, device=device) for rate in self._rates]
        self._lend_rates()
        self.updates = 0
        self.guard_by(Guard(device))

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def _lend_rates(self) -> None:
        for group, rate in zip(self._groups(), self._used_rates, strict=True):
            group["lr"] = rate

    def guard_by(self, guard: Guard) -> None:
        """Share an agent's guard, so that a non-finite value stops both."""
        self.guard = guard
        guard.protect(self.optimizers, [self.objective])

    def __call__(self, clip: Clip | None = None, batch: PolicyBatch | None = None) -> dict[str, Tensor]:
        """Make one update on one batch; return its metrics."""
        self.guard.begin(self.updates)
        self.begin()
        metrics = self.learn(clip, batch)
        self.updates += 1
        return metrics

    def begin(self) -> None:
        """Set the learning rates of the next update."""
        factor = SCHEDULES[self.config.schedule](self.updates, self.config.warmup_updates)
        for used, rate in zip(self._used_rates, self._rates, strict=True):
            used.fill_(rate * factor)

    @property
    def moves_copies(self) -> bool:
        """Whether the next update also updates the momentum copies."""
        return self.updates % self.config.momentum_every == 0

    def learn(self, clip: Clip | None = None, batch: PolicyBatch | None = None) -> dict[str, Tensor]:
        """The device's part of an update. Call `begin` before it, and count the update afterwards."""
        name, config = self.objective.name, self.config
        views = self.objective.views(Material(clip, batch, self.updates))
        self.optimizer.zero_grad()
        metrics = self.objective.add_gradient(views, micro_batch=self.micro_batch).metrics
        limit = math.inf if config.max_grad_norm is None else config.max_grad_norm
        if self._encoder:  # as released: clip the encoder first, then everything
            nn.utils.clip_grad_norm_(self._encoder, limit)
        norm = nn.utils.clip_grad_norm_(self.parameters, limit)
        advice = "Lower learning_rate, and look for non-finite weights in the encoder."
        self.guard.watch(f"The gradient of {name} has norm", norm, advice)
        for optimizer in reversed(self.optimizers):
            optimizer.step()
        if self.moves_copies:
            self.objective.update_momentum()
        used = self._used_rates[0].clone()
        return metrics | {f"{name}/gradient_norm": norm, f"{name}/learning_rate": used}

    def state_dict(self) -> dict[str, Any]:
        """Everything but the host's own weights, which the host saves."""
        self.guard.check()
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        groups = [group for state in states for group in state["param_groups"]]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate  # `begin` computes the scheduled rate
        named = dict(zip(("optimizer", "second_optimizer"), states, strict=False))
        return {"objective": self.objective.state_dict(), **named, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.objective.load_state_dict(state["objective"])
        for optimizer, name in zip(self.optimizers, ("optimizer", "second_optimizer"), strict=False):
            optimizer.load_state_dict(state[name])
        self._lend_rates()
        self.updates = int(state["updates"])
