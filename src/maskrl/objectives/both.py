"""Two objectives at once, each with its weight: their losses are added up, and one optimiser steps the encoder and both.

Each keeps its own views, its own way of splitting a batch and its own clipped groups. Clips have the longer of the two lengths;
the other objective gets their first steps. Both run at the same point of the update.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from maskrl.nn.clip import Clip
from maskrl.nn.masking import MaskConfig
from maskrl.objectives.base import (
    EnvSize,
    Group,
    Host,
    Learner,
    Loss,
    Material,
    Needs,
    Objective,
    ObjectiveConfig,
    Views,
)


@dataclass(frozen=True)
class BothViews(Views):
    first: Views
    second: Views


class Both(Objective[BothViews]):
    name = "both"
    separable = False  # the two may have batches of different sizes

    def __init__(self, host: Host, first: Objective[Any], second: Objective[Any]) -> None:
        super().__init__(host, needs=together(first.needs, second.needs))
        self.first, self.second = first, second
        self.masked_scale = first.masked_scale if first.masked_scale != 1 else second.masked_scale

    @property
    def splits(self) -> bool:
        return self.first.splits and self.second.splits

    def views(self, material: Material) -> BothViews:
        return BothViews(*(part.views(_first_steps(material, part.needs.clip_length)) for part in self._parts()))

    def loss(self, views: BothViews) -> Loss:
        return self._sum(self.first.loss(views.first), self.second.loss(views.second))

    def add_gradient(self, views: BothViews, *, micro_batch: int | None = None, weights: Tensor | None = None) -> Loss:
        first = self.first.add_gradient(views.first, micro_batch=micro_batch, weights=weights)
        return self._sum(first, self.second.add_gradient(views.second, micro_batch=micro_batch, weights=weights))

    def _sum(self, first: Loss, second: Loss) -> Loss:
        ours, theirs = self.first.weight * first.per_clip, self.second.weight * second.per_clip
        if len(ours) != len(theirs):  # the smaller batch adds its mean to every row of the larger one
            ours, theirs = (
                part if len(part) == max(len(ours), len(theirs)) else part.mean() for part in (ours, theirs)
            )
        known = [loss.priorities for loss in (first, second) if loss.priorities is not None]
        priorities = torch.stack(known).sum(dim=0) if known else None
        return Loss(ours + theirs, first.metrics | second.metrics, priorities)

    def decode(self, states: Tensor, actions: Tensor, valid: Tensor) -> Tensor | None:
        decoded = (part.decode(states, actions, valid) for part in self._parts())
        return next((found for found in decoded if found is not None), None)

    def parameter_groups(self) -> list[Group]:
        return [group for part in self._parts() for group in part.parameter_groups()]

    def _parts(self) -> tuple[Objective[Any], Objective[Any]]:
        return self.first, self.second


def together(first: Needs, second: Needs) -> Needs:
    """The needs of both."""
    return Needs(
        max(first.clip_length, second.clip_length),
        first.policy_batch or second.policy_batch,
        first.target_encoder or second.target_encoder,
        first.q_projection or second.q_projection,
        first.latent_maps or second.latent_maps,
    )


def _first_steps(material: Material, length: int) -> Material:
    clip = material.clip
    if clip is None or clip.length <= length or length == 0:
        return material
    return replace(material, clip=Clip(clip.obs[:, :length], clip.actions[:, :length], clip.valid[:, :length]))


@dataclass(frozen=True, kw_only=True)
class BothConfig(ObjectiveConfig):
    """Two objectives; `--objective mlr+spr` names one. Each has its own `weight`; `when` and `every` are for both."""

    kind: Literal["both"] = "both"
    first: ObjectiveConfig
    second: ObjectiveConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first.kind == self.second.kind:
            raise ValueError(
                f"first and second are both {self.first.kind}: the two must differ. Raise the weight of one instead."
            )
        if self.weight != 1:
            raise ValueError(
                f"weight={self.weight}: each of two objectives has its own. Use objective.first.weight and second.weight."
            )
        for name, part in (("first", self.first), ("second", self.second)):
            if part.when is not None or part.every != 1:
                raise ValueError(
                    f"{name}.when={part.when} and {name}.every={part.every}: both run at the same time. Set objective.when and "
                    "objective.every instead."
                )

    @property
    def name(self) -> str:
        return f"{self.first.name}+{self.second.name}"

    @property
    def needs(self) -> Needs:
        return together(self.first.needs, self.second.needs)

    @property
    def splits(self) -> bool:
        return self.first.splits and self.second.splits

    @property
    def recordable(self) -> bool:  # type: ignore[override]
        return self.first.recordable and self.second.recordable

    @property
    def masks(self) -> MaskConfig | None:
        return self.first.masks or self.second.masks

    @property
    def linear_init(self) -> Literal["orthogonal", "truncated_normal"]:  # type: ignore[override]
        drawn_anew = "truncated_normal" in (self.first.linear_init, self.second.linear_init)
        return "truncated_normal" if drawn_anew else "orthogonal"

    def paced(self, start: float, stride: float) -> "BothConfig":
        return replace(self, first=self.first.paced(start, stride), second=self.second.paced(start, stride))

    def check(self, env: EnvSize, agent: Learner) -> None:
        super().check(env, agent)
        for part in (self.first, self.second):
            part.check(env, agent)

    def build(self, host: Host) -> Both:
        return Both(host, self.first.build(host), self.second.build(host))
