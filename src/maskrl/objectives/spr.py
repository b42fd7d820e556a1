"""Self-Predictive Representations (SPR; Schwarzer et al., ICLR 2021).

Encode the first observation of a clip, let a transition model predict the K latent states that follow from the actions taken, and
match each with the momentum projection of the true observation, by cosine. Gradients flow through the predictions into the encoder.

There is no official SPR on DMControl. PlayVirtual's repository has two, which differ in `weight`: 6 times the mean over steps
(its `cycdm_sac`, mode fp; here `spr`), or the mean (its `spr_sac`; here `spr_mean`).

Departures from the released code (reasons in docs/fidelity-systems.md):

- The last step of an episode counts. The released Atari code drops it, although its observation is valid (`last_step=False`).
- On DMControl one Adam steps the encoder. PlayVirtual's repository steps it twice with the same gradient, by two optimisers.
- Constant maps do not divide by zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from maskrl.nn.augment import Augment, AugmentConfig, View
from maskrl.nn.clip import Clip
from maskrl.nn.encoders import Encoder
from maskrl.nn.momentum import Borrowed, Momentum
from maskrl.nn.transition import MapTransition, VectorTransition, rollout
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
    check_crops,
    on_host,
)
from maskrl.objectives.match import CosineDistance, Match, Prediction, Projection, prediction_of, projection_of


@dataclass(frozen=True)
class SPRViews(Views):
    """A clip after augmentation."""

    first: View  # (B, C, H', W'), where the predictions start
    following: View  # (B, K, C, H', W'), what the targets are computed from
    actions: Tensor  # (B, K, A), one before each following observation
    valid: Tensor  # (B, K) bool: the following observations inside the episode


V = TypeVar("V", bound=SPRViews)


def _length(steps: int, last_step: bool) -> int:
    """The length of a clip. Without last steps it is one longer, because the step after shows whether an episode ended."""
    return steps + 1 if last_step else steps + 2


class SPR(Objective[V], Generic[V]):
    name = "spr"

    def __init__(
        self,
        host: Host,
        *,
        steps: int,
        transition: VectorTransition | MapTransition,
        match: Match,
        augment: Augment,
        shares_view: bool,
        last_step: bool = True,
        weight: float = 1.0,
    ) -> None:
        super().__init__(host, needs=Needs(_length(steps, last_step), policy_batch=shares_view), weight=weight)
        self.steps, self.transition, self.match, self.augment = steps, transition, match, augment
        self.shares_view, self.last_step = shares_view, last_step
        # A batch norm sees all clips at once.
        self.separable = not any(isinstance(module, nn.BatchNorm2d) for module in self.modules())

    def parameter_groups(self) -> list[Group]:
        """The transition, clipped as a group of its own, and the prediction head, not clipped, as in the released Atari code."""
        models, heads = self._models(), {id(parameter) for parameter in self.match.parameters()}
        rest = [parameter for parameter in self.own_parameters() if id(parameter) in heads]
        return [*models, Group(rest, clipped=False)]

    def _models(self) -> list[Group]:
        return [Group(list(self.transition.parameters()), self.name)]

    @torch.no_grad()
    def views(self, material: Material) -> Any:
        clip = self.clip_of(material)
        dtype = clip.actions.dtype
        first = self.batch_of(material).view if self.shares_view else self.augment(clip.obs[:, 0], dtype)
        return SPRViews(
            first=first,
            following=self.augment(clip.obs[:, 1 : 1 + self.steps], dtype),  # drawn for each observation
            actions=clip.actions[:, : self.steps],
            valid=self.counted(clip)[:, 1:],
        )

    def counted(self, clip: Clip) -> Tensor:
        """(B, K + 1) bool: the steps inside the episode, without its last one if `last_step` is False."""
        return clip.valid if self.last_step else clip.valid[:, :-1] & clip.valid[:, 1:]

    def loss(self, views: V) -> Loss:
        state: Tensor = self.host.encoder(views.first.pixels())  # z (B, d), with its gradient
        per_clip, metrics = self.prediction_loss(state, views)
        return Loss(per_clip, {f"{self.name}/{key}": value.detach() for key, value in metrics.items()})

    def prediction_loss(self, state: Tensor, views: V) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss over all K steps, with 0 for steps past the end of the episode, and metrics."""
        predicted = self.match.predict(rollout(self.transition, state, views.actions))  # ŷ (B, K, p)
        target = self.match.target(views.following)  # ȳ (B, K, p)
        per_clip = (self.match.distance(predicted, target) * views.valid).mean(dim=1)
        watched = self.match.metrics(predicted.detach(), target, views.valid)
        return per_clip, {"loss": per_clip.mean(), **watched}


@dataclass(frozen=True, kw_only=True)
class SPRConfig(ObjectiveConfig):
    """SPR on DMControl, as in PlayVirtual's repository; `recipes.atari` has the SPR authors' values for Atari."""

    kind: Literal["spr"] = "spr"
    weight: float = 6.0  # λ: K times the mean is the sum over steps
    steps: int = 6  # K
    transition: Literal["vector", "map"] = "vector"  # map: convolutions over the encoder's feature map (Atari)
    hidden: int = 512  # of a vector transition
    projection: Projection = "mlp"  # q: the host's own Q layers (Atari)
    prediction: Prediction = "mlp"  # linear: Atari
    head_width: int = 100
    norm_floor: float = 1e-3
    momentum: float = 0.95  # m; 0 on Atari
    momentum_init: Literal["copy", "independent"] = "independent"  # of ḡ; independent: as the released DMControl code
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    shares_view: bool = False  # True: start from the critic's view (Atari)
    last_step: bool = True  # False: the last step of an episode does not count, as in the released Atari code

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("steps", "hidden", "head_width", "norm_floor")
        if not 0 <= self.momentum < 1:
            raise ValueError(
                f"momentum={self.momentum} must be in [0, 1); 0.95 on DMControl and 0 on Atari as released."
            )

    @property
    def needs(self) -> Needs:
        return Needs(
            _length(self.steps, self.last_step),
            policy_batch=self.shares_view,
            q_projection=self.projection == "q",
            latent_maps=self.transition == "map",
        )

    @property
    def splits(self) -> bool:
        return self.transition != "map"  # a map transition has a batch norm

    def advice(self, missing: Sequence[str]) -> str:
        values = {"q_projection": "objective.projection=mlp", "latent_maps": "objective.transition=vector"}
        return ": " + ", ".join(values[name] for name in missing if name in values)

    def check(self, env: EnvSize, agent: Learner) -> None:
        super().check(env, agent)
        check_crops(self.augment, env, agent)

    def build(self, host: Host) -> SPR[Any]:
        return on_host(SPR(host, **self.parts(host)), host)

    def parts(self, host: Host) -> dict[str, Any]:
        """The arguments of SPR and its subclasses."""
        return {
            "steps": self.steps,
            "transition": self.make_transition(host),
            "match": self._match(host),
            "augment": self.augment.build(host.generator),
            "shares_view": self.shares_view,
            "last_step": self.last_step,
            "weight": self.weight,
        }

    def make_transition(self, host: Host) -> VectorTransition | MapTransition:
        if self.transition == "vector":
            return VectorTransition(host.latent_dim, host.action_dim, hidden=self.hidden)
        encoder = host.encoder
        if not isinstance(encoder, Encoder) or encoder.latent_order is None:
            raise TypeError(
                f"transition='map' needs an encoder whose latent state is its feature map; got {type(encoder).__name__}. "
                "Use transition='vector'."
            )
        return MapTransition(encoder.feature_shape, host.action_dim)

    def _match(self, host: Host) -> Match:
        projection, width = projection_of(host, self.projection, self.head_width)
        slow = Momentum(projection, self.momentum)
        if self.momentum_init == "independent":
            slow.copy.load_state_dict(projection_of(host, self.projection, self.head_width)[0].state_dict())
        return Match(
            encoder=Momentum(host.encoder, self.momentum),
            projection=Borrowed(projection) if self.projection == "q" else projection,
            momentum_projection=slow,
            prediction=prediction_of(self.prediction, width, self.head_width),
            distance=CosineDistance(1.0, self.norm_floor),
        )
