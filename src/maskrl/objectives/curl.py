"""Contrastive Unsupervised Representations for Reinforcement Learning (CURL; Laskin, Srinivas and Abbeel, ICML 2020).

Two random crops of one observation belong together, crops of two observations do not. The anchor is the very view that the critic
learned from. The positive is another crop of the same stored observation, encoded by the slow encoder behind the critic's targets.
A bilinear product compares every anchor with every positive of the batch, and cross-entropy asks each anchor for its own.

Departures from the released code (docs/fidelity.md has them with their reasons):

- One Adam steps the encoder and W. The released code steps the encoder twice with the same gradient, by two optimisers.
- Crops reach every place of the frame. The released code never draws the last row and column.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from maskrl.nn.augment import Augment, AugmentConfig, View
from maskrl.objectives.base import (
    EnvSize,
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
from maskrl.objectives.contrast import Contrast, info_nce


@dataclass(frozen=True)
class CURLViews(Views):
    """Two views of each observation."""

    anchor: View  # (B, C, H', W'), what the critic saw
    positive: View  # (B, C, H', W'), drawn anew


class CURL(Contrast[CURLViews]):
    name = "curl"

    def __init__(self, host: Host, *, augment: Augment, weight: float = 1.0) -> None:
        super().__init__(host, needs=Needs(policy_batch=True, target_encoder=True), weight=weight)
        self.augment = augment
        self.product = nn.Parameter(torch.rand(host.latent_dim, host.latent_dim))  # W ~ U[0, 1), as released

    @torch.no_grad()
    def views(self, material: Material) -> CURLViews:
        batch = self.batch_of(material)
        return CURLViews(anchor=batch.view, positive=self.augment(batch.obs, batch.view.gain.dtype))

    def embed(self, views: CURLViews) -> tuple[Tensor, Tensor]:
        anchors: Tensor = self.host.encoder(views.anchor.pixels())  # (B, d)
        with torch.no_grad():
            positives: Tensor = self.target_encoder(views.positive.pixels())  # (B, d)
        return anchors, positives

    def compare(self, anchors: Tensor, positives: Tensor) -> Loss:  # type: ignore[override]
        logits = anchors @ self.product @ positives.T  # (B, B): no temperature, no normalisation
        per_clip = info_nce(logits)
        found = logits.argmax(dim=1) == torch.arange(len(logits), device=logits.device)
        metrics = {"curl/loss": per_clip.mean().detach(), "curl/accuracy": found.to(logits.dtype).mean()}
        return Loss(per_clip, metrics)

    @property
    def target_encoder(self) -> nn.Module:
        assert self.host.target_encoder is not None  # see `needs`
        return self.host.target_encoder


@dataclass(frozen=True, kw_only=True)
class CURLConfig(ObjectiveConfig):
    """CURL on DMControl. The batch is the critic's."""

    kind: Literal["curl"] = "curl"
    when: When | None = "last"  # after the slow copies were updated, as released
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig(intensity=0.0))  # of the positive

    @property
    def needs(self) -> Needs:
        return Needs(policy_batch=True, target_encoder=True)

    def check(self, env: EnvSize, agent: Learner) -> None:
        super().check(env, agent)
        check_crops(self.augment, env, agent)

    def build(self, host: Host) -> CURL:
        return on_host(CURL(host, augment=self.augment.build(host.generator), weight=self.weight), host)
