"""Objectives that are not MLR, as a user would write them: one contrasts clips, one learns from the critic's batch."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from builders import STEPS
from maskrl import AugmentConfig, Host, Loss, Objective
from maskrl.nn.augment import View
from maskrl.nn.clip import over_time
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Group, Material, Needs, ObjectiveConfig, PolicyBatch, Views
from maskrl.objectives.contrast import Contrast, info_nce


@dataclass(frozen=True)
class Pair(Views):
    """Two views of every clip."""

    anchor: View  # (B, K, C, H, W)
    positive: View


class Pairs(Contrast[Pair]):
    """Which of all clips is this one? By the mean latent of a clip, and a bilinear product with a slow encoder's."""

    name = "pairs"

    def __init__(self, host: Host, needs: Needs, *, augment: AugmentConfig, weight: float) -> None:
        super().__init__(host, needs=needs, weight=weight)
        self.augment, self.slow = augment.build(), Momentum(host.encoder, 0.9)
        self.product = nn.Parameter(torch.eye(host.latent_dim, dtype=next(host.encoder.parameters()).dtype))
        self.pieces: list[int] = []  # clips that were embedded at once

    @torch.no_grad()
    def views(self, material: Material) -> Pair:
        clip = self.clip_of(material)
        anchor, positive = (self.augment(clip.obs, clip.actions.dtype) for _ in range(2))
        return Pair(anchor, positive)

    def embed(self, views: Pair) -> tuple[Tensor, ...]:
        self.pieces.append(len(views))
        anchor = over_time(self.host.encoder, views.anchor.pixels()).mean(dim=1)
        return anchor, over_time(self.slow, views.positive.pixels()).mean(dim=1)

    def compare(self, *embeddings: Tensor) -> Loss:
        anchor, positive = embeddings
        per_clip = info_nce(anchor @ self.product @ positive.T)
        return Loss(per_clip, {"pairs/loss": per_clip.detach().mean()}, priorities=per_clip.detach())


@dataclass(frozen=True, kw_only=True)
class PairsConfig(ObjectiveConfig):
    """See `Pairs`."""

    kind: Literal["pairs"] = "pairs"
    clip_length: int = STEPS
    augment: AugmentConfig

    @property
    def needs(self) -> Needs:
        return Needs(self.clip_length)

    def build(self, host: Host) -> Pairs:
        return Pairs(host, self.needs, augment=self.augment, weight=self.weight)


@dataclass(frozen=True)
class Seen(Views):
    """The critic's view."""

    view: View  # (N, C, H, W)


class Centred(Objective[Seen]):
    """Latents of the critic's batch, as unlike their mean as can be: a loss that couples them and that nobody can cache."""

    name, separable = "centred", False

    def __init__(self, host: Host, needs: Needs, *, weight: float) -> None:
        super().__init__(host, needs=needs, weight=weight)
        self.scale = nn.Parameter(torch.ones(host.latent_dim, dtype=next(host.encoder.parameters()).dtype))
        self.seen: list[Material] = []
        self.pieces: list[int] = []

    def views(self, material: Material) -> Seen:
        self.seen.append(material)
        return Seen(self.batch_of(material).view)

    def loss(self, views: Seen) -> Loss:
        self.pieces.append(len(views))
        states = self.scale * self.host.encoder(views.view.pixels())
        per_clip = -(states - states.mean(dim=0)).square().mean(dim=1)
        return Loss(per_clip, {"centred/loss": per_clip.detach().mean()})

    def parameter_groups(self) -> list[Group]:
        return [Group([self.scale], "scale", learning_rate=0.25, weight_decay=0.125)]


@dataclass(frozen=True, kw_only=True)
class CentredConfig(ObjectiveConfig):
    """See `Centred`."""

    kind: Literal["centred"] = "centred"
    target_encoder: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(policy_batch=True, target_encoder=self.target_encoder)

    def build(self, host: Host) -> Centred:
        return Centred(host, self.needs, weight=self.weight)


def batch_of(count: int, size: int, dtype: torch.dtype = torch.float64) -> PolicyBatch:
    obs = torch.randint(256, (count, 3, size, size), dtype=torch.uint8)
    return PolicyBatch(obs, View(obs, torch.ones(count, dtype=dtype)))
