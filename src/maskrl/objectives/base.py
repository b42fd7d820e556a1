"""What every self-supervised objective is: a loss on clips that shapes an encoder it borrows from a host agent."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from maskrl.config import Config
from maskrl.nn.clip import Clip
from maskrl.nn.momentum import Momentum

V = TypeVar("V", bound="Views")


@dataclass(frozen=True)
class Host:
    """What an agent, ours or yours, lends to an objective. Lent is not given: nothing here is re-initialised or re-registered."""

    encoder: nn.Module  # (N, C, H, W) float in [0, 1] → (N, d)
    latent_dim: int  # d
    action_dim: int  # A: width of a continuous action, or number of discrete ones (one-hot)
    q_projection: nn.Module | None = (
        None  # (N, d) → (N, p): first layers of a Q head (SPR's projection, the paper's on Atari)
    )
    obs_shape: tuple[int, int, int] | None = None  # (C, H, W) after augmentation; only pixel reconstruction asks for it

    def __post_init__(self) -> None:
        if self.latent_dim < 1 or self.action_dim < 1:
            raise ValueError(f"latent_dim={self.latent_dim} and action_dim={self.action_dim} must both be at least 1.")
        width = getattr(self.encoder, "latent_dim", self.latent_dim)
        if width != self.latent_dim:
            raise ValueError(
                f"latent_dim={self.latent_dim}, but the encoder's own latent_dim is {width}. Pass {width}."
            )

    def parameters(self) -> Iterator[nn.Parameter]:
        """What an objective trains without owning it."""
        borrowed = [self.encoder] if self.q_projection is None else [self.encoder, self.q_projection]
        return iter(dict.fromkeys(chain.from_iterable(module.parameters() for module in borrowed)))


@dataclass(frozen=True)
class Views:
    """What the random half of an objective hands to the differentiable half.

    Every field is a tensor whose first axis is the clip (or 1, when all clips share it), or a dataclass of such tensors.
    """

    def __len__(self) -> int:
        return max(value.shape[0] for value in _tensors(self))

    def split(self: V, clips: int) -> Iterator[V]:
        """Pieces of at most so many clips, in order."""
        for start in range(0, len(self), clips):
            piece: V = _slice(self, start, start + clips)
            yield piece


class Loss(NamedTuple):
    per_clip: Tensor  # (B,) unreduced: the host applies importance weights, then means
    metrics: dict[str, Tensor]  # detached scalars, keys "<objective>/<what>"


class Objective(nn.Module, Generic[V]):
    """`views` is random and has no gradient; `loss` is deterministic, differentiable and separable over clips.

    No term couples two clips, so a learner may run `loss` on `views.split(n)` and add up the gradients: the same
    mathematics in cache-sized pieces. A user who does not care calls the objective on a clip.
    """

    name: ClassVar[str]
    clip_length: int  # K
    weight: float  # λ, for whoever adds this loss to others; `Loss.per_clip` comes without it

    def __init__(self, host: Host, *, clip_length: int, weight: float = 1.0) -> None:
        super().__init__()
        self.host = host  # a plain dataclass, so the encoder is not registered as a part of the objective
        self.clip_length, self.weight = clip_length, weight

    def views(self, clip: Clip) -> V:
        raise NotImplementedError

    def loss(self, views: V) -> Loss:
        raise NotImplementedError

    def forward(self, clip: Clip) -> Loss:
        return self.loss(self.views(clip))

    @property
    def core(self) -> nn.Module:
        """The part whose gradient a joint optimiser clips by itself, as in the released Atari code; all of it, unless said."""
        return self

    def update_momentum(self) -> None:
        """Let every momentum copy follow its source by one step."""
        for module in self.modules():
            if isinstance(module, Momentum):
                module.update()

    def add_gradient(
        self, views: V, *, micro_batch: int | None = None, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Add the gradient of λ times the mean loss, each clip by its weight (B,) if there are some, in pieces of so many clips.

        Returns the metrics: means over pieces, by their clips.
        """
        total, start = dict[str, Tensor](), 0
        for piece in views.split(micro_batch or len(views)):
            per_clip, metrics = self.loss(piece)
            if weights is not None:
                per_clip = weights[start : start + len(piece)] * per_clip
            torch.autograd.backward(self.weight * per_clip.sum() / len(views))
            share, start = len(piece) / len(views), start + len(piece)
            total = {key: total.get(key, torch.zeros_like(value)) + share * value for key, value in metrics.items()}
        return total

    def check(self, clip: Clip) -> None:
        """Refuse a clip that does not fit this objective or its host."""
        if clip.length != self.clip_length:
            raise ValueError(
                f"This objective was built for clips of {self.clip_length} steps; got {clip.length}. "
                "Draw clips of that length, or build it with another clip_length."
            )
        if clip.actions.shape[-1] != self.host.action_dim:
            raise ValueError(
                f"Clip.actions are {clip.actions.shape[-1]} wide, but the host said action_dim={self.host.action_dim}. "
                "Discrete actions must be one-hot, as wide as there are actions."
            )
        like = next(self.host.encoder.parameters(), None)
        if like is not None and like.device != clip.obs.device:
            raise ValueError(
                f"The clip is on {clip.obs.device}, the encoder on {like.device}. Use Clip.to({str(like.device)!r})."
            )
        if like is not None and like.dtype != clip.actions.dtype:
            raise ValueError(
                f"Pixels become {clip.actions.dtype}, the dtype of Clip.actions, but the encoder is {like.dtype}. "
                f"Pass actions.to({like.dtype})."
            )


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


class AuxiliaryStep:
    """Optimise an objective by itself, as the paper does on DMControl: Adam of its own, warm-up, clipping, momentum updates.

    The defaults are the released code's on DMControl. The encoder is thus moved by two optimisers, the agent's and this one;
    a call clears the gradients of all it trains, the encoder's included, and leaves its own behind.
    """

    def __init__(
        self,
        objective: Objective[Any],
        *,
        learning_rate: float = 5e-4,
        schedule: Schedule = "unit_peak",
        warmup_updates: int = 6000,
        max_grad_norm: float = 10.0,
        momentum_every: int = 2,  # updates; the paper says 1, the released code does 2
        micro_batch: int | None = None,  # clips per piece; None: the whole batch at once
    ) -> None:
        # The same refusals, whether a step is made by hand or by a recipe.
        AuxiliaryConfig(
            learning_rate=learning_rate,
            schedule=schedule,
            warmup_updates=warmup_updates,
            max_grad_norm=max_grad_norm,
            momentum_every=momentum_every,
        )
        if micro_batch is not None and micro_batch < 1:
            raise ValueError(f"micro_batch={micro_batch} must be at least 1 clip, or None for the whole batch.")
        self.objective = objective
        self.learning_rate = learning_rate
        self.schedule, self.warmup_updates = SCHEDULES[schedule], warmup_updates
        self.max_grad_norm, self.momentum_every, self.micro_batch = max_grad_norm, momentum_every, micro_batch
        own = (parameter for parameter in objective.parameters() if parameter.requires_grad)
        self.parameters = [*objective.host.parameters(), *own]
        self.optimizer = torch.optim.Adam(self.parameters, lr=learning_rate, fused=True)
        self.updates = 0

    def __call__(self, clip: Clip) -> dict[str, Tensor]:
        """One update on one batch of clips; returns what is worth watching."""
        views = self.objective.views(clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * self.schedule(self.updates, self.warmup_updates)
        self.optimizer.zero_grad()
        metrics = self.objective.add_gradient(views, micro_batch=self.micro_batch)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        if not norm.isfinite():
            raise FloatingPointError(
                f"The gradient of {self.objective.name} has norm {norm.item()} at update {self.updates}; the weights were left as "
                "they were. Lower learning_rate, and look for non-finite weights in the encoder."
            )
        self.optimizer.step()
        if self.updates % self.momentum_every == 0:
            self.objective.update_momentum()
        self.updates += 1
        name, used = self.objective.name, torch.tensor(self.optimizer.param_groups[0]["lr"])
        return metrics | {f"{name}/gradient_norm": norm, f"{name}/learning_rate": used}

    def state_dict(self) -> dict[str, Any]:
        """Everything but the host's own weights, which are the host's to save."""
        return {
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]


@dataclass(frozen=True, kw_only=True)
class AuxiliaryConfig(Config):
    """How an agent optimises an objective by itself; see `AuxiliaryStep`."""

    clips: int = 128  # B
    learning_rate: float = 5e-4
    schedule: Schedule = "unit_peak"
    warmup_updates: int = 6000
    max_grad_norm: float = 10.0
    momentum_every: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("clips", "learning_rate", "warmup_updates", "max_grad_norm", "momentum_every"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive.")

    def build(self, objective: Objective[Any], *, micro_batch: int | None = None) -> AuxiliaryStep:
        return AuxiliaryStep(
            objective,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            warmup_updates=self.warmup_updates,
            max_grad_norm=self.max_grad_norm,
            momentum_every=self.momentum_every,
            micro_batch=micro_batch,
        )


def _tensors(views: Any) -> Iterator[Tensor]:
    for field in fields(views):
        value = getattr(views, field.name)
        yield from [value] if isinstance(value, Tensor) else _tensors(value)


def _slice(views: Any, start: int, stop: int) -> Any:
    def piece(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return _slice(value, start, stop)
        return value if value.shape[0] == 1 else value[start:stop]

    return replace(views, **{field.name: piece(getattr(views, field.name)) for field in fields(views)})
