"""Contrastive Unsupervised Representations for Reinforcement Learning (CURL; Laskin, Srinivas and Abbeel, ICML 2020).

Two random crops of one observation must be similar, crops of two observations must not. The anchor is the critic's own view. The
positive is another crop of the same stored observation, encoded by the slow encoder of the critic's targets. A bilinear product
compares every anchor with every positive of the batch, and cross-entropy takes each anchor's own positive as the right class.

On Atari, with Rainbow, the critic's view is not augmented, so the anchor is a separate crop. A head of two layers embeds both, and
slow copies of encoder and head embed the positive. The mean loss is part of the loss and of the priority of every transition.

Departures from the released code (reasons in docs/fidelity-systems.md):

- One Adam steps the encoder and W. The released DMControl code steps the encoder twice with the same gradient, by two optimisers
  (`agent.auxiliary.second_encoder_rate`).
- Crops cover the whole frame. The released code never includes the last row and column.
- On Atari, the slow copies move before the optimiser's step, as in our Rainbow with any objective, and not after it.
- On Atari, the two streams of the Q head send 1/√2 of their gradient into the encoder, as in our Rainbow; the released head sends
  all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskrl.nn.augment import Augment, AugmentConfig, View
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import (
    EnvSize,
    Group,
    Host,
    Learner,
    Loss,
    Material,
    Needs,
    ObjectiveConfig,
    Views,
    When,
    check_crops,
    on_host,
)
from maskrl.objectives.contrast import Contrast, check_count, info_nce


@dataclass(frozen=True)
class CURLViews(Views):
    """Two views of each observation."""

    anchor: View  # (B, C, H', W'): the critic's view, or a crop of its own
    positive: View  # (B, C, H', W'): a second crop


class Head(nn.Module):
    """Two linear layers, each with a norm without parameters: (N, d) → (N, p). Weights ~ U[0, 1), as released on Atari."""

    def __init__(self, latent_dim: int, widths: tuple[int, int]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(latent_dim, widths[0]), nn.Linear(*widths))
        for layer in self.layers:
            nn.init.uniform_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, states: Tensor) -> Tensor:
        first, last = self.layers
        hidden = F.relu(F.layer_norm(first(states), first.bias.shape))  # type: ignore[arg-type]
        return F.layer_norm(last(hidden), last.bias.shape)  # type: ignore[arg-type]


class CURL(Contrast[CURLViews]):
    name = "curl"

    def __init__(
        self,
        host: Host,
        *,
        needs: Needs,
        augment: Augment,
        width: int,
        head: nn.Module | None = None,
        momentum: float | None = None,
        shares_view: bool = True,
        scale: float = 1.0,
        joins_priorities: bool = False,
        weight: float = 1.0,
    ) -> None:
        super().__init__(host, needs=needs, weight=weight)
        self.augment, self.shares_view, self.scale, self.joins_priorities = (
            augment,
            shares_view,
            scale,
            joins_priorities,
        )
        self.head = head or nn.Identity()
        self.slow_encoder = None if momentum is None else Momentum(host.encoder, momentum)
        self.slow_head = None if momentum is None else Momentum(self.head, momentum)
        self.product = nn.Parameter(torch.rand(width, width))  # W ~ U[0, 1), as released

    def parameter_groups(self) -> list[Group]:
        """One group, clipped together with the agent: the released code takes one norm of the whole network."""
        return [Group(self.own_parameters(), self.name, with_agent=True)]

    @torch.no_grad()
    def views(self, material: Material) -> CURLViews:
        batch = self.batch_of(material)
        dtype = batch.view.gain.dtype
        anchor = batch.view if self.shares_view else self.augment(batch.obs, dtype)
        return CURLViews(anchor=anchor, positive=self.augment(batch.obs, dtype))

    def embed(self, views: CURLViews) -> tuple[Tensor]:
        return (self.head(self.host.encoder(views.anchor.pixels())),)  # (B, p)

    def targets(self, views: CURLViews) -> tuple[Tensor]:
        head = self.head if self.slow_head is None else self.slow_head
        return (head(self.target_encoder(views.positive.pixels())),)  # (B, p)

    def compare(self, anchors: Tensor, positives: Tensor) -> Loss:  # type: ignore[override]
        logits = self.scale * (anchors @ self.product @ positives.T)  # (B, B): no normalisation
        per_clip = info_nce(logits)
        found = logits.argmax(dim=1) == torch.arange(len(logits), device=logits.device)
        metrics = {"curl/loss": per_clip.mean().detach(), "curl/accuracy": found.to(logits.dtype).mean()}
        if not self.joins_priorities:
            return Loss(per_clip, metrics)
        mean = per_clip.mean().expand(len(per_clip))  # as released: the batch's mean for every transition
        return Loss(mean, metrics, self.weight * mean.detach())

    @property
    def target_encoder(self) -> nn.Module:
        if self.slow_encoder is not None:
            return self.slow_encoder
        assert self.host.target_encoder is not None  # see `needs`
        return self.host.target_encoder


@dataclass(frozen=True, kw_only=True)
class CURLConfig(ObjectiveConfig):
    """CURL on DMControl; `recipes.atari` has its values on Atari. The batch is the critic's."""

    kind: Literal["curl"] = "curl"
    when: When | None = "last"  # after the update of the slow copies, as released
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig(intensity=0.0))  # of the positive
    shares_view: bool = True  # whether the anchor is the critic's view; False on Atari
    head: tuple[int, int] | None = None  # widths of the head; None: compare latent states directly
    momentum: float | None = None  # of its own slow copies; None: use the agent's target encoder
    scale: float = 1.0  # of the logits; 0.1 on Atari
    joins_priorities: bool = False  # whether the mean loss is added to all priorities (Atari)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("scale")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum} must be in [0, 1); 0.999 on Atari as released.")

    @property
    def needs(self) -> Needs:
        return Needs(policy_batch=True, target_encoder=self.momentum is None)

    def advice(self, missing: Sequence[str]) -> str:
        return ": objective.momentum=0.95" if "target_encoder" in missing else ""

    def check(self, env: EnvSize, agent: Learner) -> None:
        super().check(env, agent)
        check_crops(self.augment, env, agent)
        check_count({f"agent.{name}": getattr(agent, name, None) for name in ("batch_size", "clips")})

    def build(self, host: Host) -> CURL:
        curl = CURL(
            host,
            needs=self.needs,
            augment=self.augment.build(host.generator),
            width=host.latent_dim if self.head is None else self.head[1],
            head=None if self.head is None else Head(host.latent_dim, self.head),
            momentum=self.momentum,
            shares_view=self.shares_view,
            scale=self.scale,
            joins_priorities=self.joins_priorities,
            weight=self.weight,
        )
        return on_host(curl, host)
