"""PlayVirtual (Yu et al., NeurIPS 2021): SPR plus cycles over virtual actions.

In addition to SPR's predictions, a second model predicts backwards in time. From the first latent state, roll M sequences of random
actions forward, then back with the same actions in reverse order; the result must match the first observation. Cycles need no
rewards and no true next states, so they cost no data. Their weight rises over the first 50 000 frames (Atari: decisions), while the
models are still too inaccurate to close a cycle.

Departures from the released code (reasons in docs/fidelity-systems.md):

- Those of SPR.
- All cycles count; the released Atari code leaves out those that begin at the last step of an episode (`last_step=False`).
- The ramp counts updates, because an objective does not see the environment's steps. The recipe gives the step of the first update
  and the number of steps between two updates.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from maskrl.nn.augment import View
from maskrl.nn.transition import MapTransition, VectorTransition, rollout
from maskrl.objectives.base import Group, Host, Loss, Material, on_host
from maskrl.objectives.spr import SPR, SPRConfig, SPRViews


@dataclass(frozen=True)
class PlayVirtualViews(SPRViews):
    virtual_actions: Tensor  # (B, M, K', A)
    origins: View  # (B, M, C, H', W'): the first observation, augmented again for each cycle
    begins: Tensor  # (B,) bool: whether the cycles of a clip count
    ramp: Tensor  # (1,): the current weight of the cycles


class PlayVirtual(SPR[PlayVirtualViews]):
    name = "playvirtual"

    def __init__(
        self,
        host: Host,
        *,
        backward: VectorTransition | MapTransition,
        cycle_steps: int,
        cycles: int,
        ramp: "Ramp",
        **spr: Any,
    ) -> None:
        super().__init__(host, **spr)
        self.backward_transition, self.cycle_steps, self.cycles, self.ramp = backward, cycle_steps, cycles, ramp

    def _models(self) -> list[Group]:
        return [*super()._models(), Group(list(self.backward_transition.parameters()), f"{self.name}_backward")]

    @torch.no_grad()
    def views(self, material: Material) -> PlayVirtualViews:
        views, clip = super().views(material), self.clip_of(material)
        known = {part.name: getattr(views, part.name) for part in fields(SPRViews)}
        origins = clip.obs[:, :1].expand(-1, self.cycles, -1, -1, -1)
        return PlayVirtualViews(
            **known,
            virtual_actions=self._random_actions(clip.actions),
            origins=self.augment(origins, clip.actions.dtype),
            begins=self.counted(clip)[:, 0],
            ramp=clip.actions.new_full((1,), self.ramp(material.updates)),
        )

    def _random_actions(self, like: Tensor) -> Tensor:
        """(B, M, K', A): uniform in [−1, 1), or one-hot."""
        (clips, _, width), stream = like.shape, self.host.generator
        shape = (clips, self.cycles, self.cycle_steps)
        if self.host.discrete:
            chosen = torch.randint(width, shape, generator=stream, device=like.device)
            return torch.nn.functional.one_hot(chosen, width).to(like.dtype)
        return 2 * torch.rand(*shape, width, generator=stream, dtype=like.dtype, device=like.device) - 1

    def loss(self, views: PlayVirtualViews) -> Loss:
        state: Tensor = self.host.encoder(views.first.pixels())  # z (B, d)
        predicted, metrics = self.prediction_loss(state, views)
        cycle = self.cycle_loss(state, views) * views.begins
        # λ multiplies the predictions by K; the weight of a cycle is 1.
        per_clip = predicted + views.ramp / self.weight * cycle
        metrics |= {"cycle_loss": cycle.mean(), "ramp": views.ramp.squeeze()}
        return Loss(per_clip, {f"{self.name}/{key}": value.detach() for key, value in metrics.items()})

    def cycle_loss(self, state: Tensor, views: PlayVirtualViews) -> Tensor:
        """(B,): the mean distance of M cycles."""
        actions = views.virtual_actions.flatten(0, 1)  # (B·M, K', A)
        start = state.repeat_interleave(self.cycles, dim=0)  # (B·M, d)
        far = rollout(self.transition, start, actions)[:, -1]
        back = rollout(self.backward_transition, far, actions.flip(1))[:, -1]
        returned = self.match.predict(back.view(len(state), self.cycles, -1))  # (B, M, p)
        distance: Tensor = self.match.distance(returned, self.match.target(views.origins)).mean(dim=1)
        return distance


@dataclass(frozen=True)
class Ramp:
    """exp(−5·(1 − (s + 1)/length)²) at step s, and 1 from step `length` on: 0.029 at 8000 of 50 000."""

    length: float  # steps of the environment
    start: float  # at the first update
    stride: float  # from one update to the next

    def __call__(self, updates: int) -> float:
        left = max(0.0, 1 - (self.start + self.stride * updates + 1) / self.length)
        return math.exp(-5 * left**2)


@dataclass(frozen=True, kw_only=True)
class PlayVirtualConfig(SPRConfig):
    """PlayVirtual on DMControl; `recipes.atari` has its values on Atari."""

    recordable: ClassVar[bool] = False  # the host computes the ramp

    kind: Literal["playvirtual"] = "playvirtual"  # type: ignore[assignment]
    cycle_steps: int = 6
    cycles: float = 10  # M; with discrete actions, M for every action
    ramp_length: float = 50_000  # steps until cycles have their full weight
    ramp_start: float = 1000  # the step of the first update
    ramp_stride: float = 1  # steps from one update to the next

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("cycle_steps", "cycles", "ramp_length", "ramp_stride")
        self.require_at_least(0, "ramp_start")

    def paced(self, start: float, stride: float) -> "PlayVirtualConfig":
        return replace(self, ramp_start=start, ramp_stride=stride)

    def build(self, host: Host) -> PlayVirtual:
        virtual = PlayVirtual(
            host,
            **self.parts(host),
            backward=self.make_transition(host),
            cycle_steps=self.cycle_steps,
            cycles=math.floor(self.cycles * (host.action_dim if host.discrete else 1)),
            ramp=Ramp(self.ramp_length, self.ramp_start, self.ramp_stride),
        )
        return on_host(virtual, host)
