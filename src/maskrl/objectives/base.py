"""The base of every objective: a self-supervised loss that trains an encoder borrowed from a host agent.

An objective says what it `needs`, whether its loss may be split, which parameters it owns and how they are optimised. Agents use
these answers and never test for a particular objective.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from maskrl.config import Config
from maskrl.nn.augment import AugmentConfig, View
from maskrl.nn.clip import Clip
from maskrl.nn.masking import MaskConfig
from maskrl.nn.momentum import Momentum

V = TypeVar("V", bound="Views")

# When an objective runs in an agent's update: in one loss with the agent's, after the critic's step, or after everything else.
When = Literal["joint", "after_critic", "last"]


@dataclass(frozen=True)
class Needs:
    """The inputs and modules that an objective needs from an agent."""

    clip_length: int = 0  # K; 0: no clips
    policy_batch: bool = False  # the observations of the critic's batch
    target_encoder: bool = False  # the slow encoder behind the agent's Bellman targets
    q_projection: bool = False  # the first layers of a Q head
    latent_maps: bool = False  # an encoder whose latent states are its feature map


@dataclass(frozen=True)
class Offers:
    """The places and inputs that an agent offers to objectives."""

    places: tuple[When, ...]  # where it can run an objective; the first is the default
    lacks: tuple[str, ...] = ()  # the fields of `Needs` that it does not offer


@dataclass(frozen=True)
class Host:
    """The modules that an agent lends to an objective. The objective neither re-initialises nor registers them."""

    encoder: nn.Module  # (N, C, H, W) float in [0, 1] → (N, d)
    latent_dim: int  # d
    action_dim: int  # A: width of a continuous action, or number of discrete ones (one-hot)
    q_projection: nn.Module | None = None  # (N, d) → (N, p): first layers of a Q head, the paper's projection on Atari
    obs_shape: tuple[int, int, int] | None = None  # (C, H, W) after augmentation; only used to reconstruct pixels
    target_encoder: nn.Module | None = None  # a slow copy of `encoder`, without a gradient
    discrete: bool = False  # whether actions are one-hot; only used by objectives that draw actions
    generator: torch.Generator | None = None  # for all draws of `views`, on the update's device; None: torch's own

    def __post_init__(self) -> None:
        if self.latent_dim < 1 or self.action_dim < 1:
            raise ValueError(f"latent_dim={self.latent_dim} and action_dim={self.action_dim} must both be at least 1.")
        width = getattr(self.encoder, "latent_dim", self.latent_dim)
        if width != self.latent_dim:
            raise ValueError(
                f"latent_dim={self.latent_dim}, but the encoder's own latent_dim is {width}. Pass {width}."
            )

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that an objective trains but does not own."""
        borrowed = [self.encoder] if self.q_projection is None else [self.encoder, self.q_projection]
        return iter(dict.fromkeys(chain.from_iterable(module.parameters() for module in borrowed)))


@dataclass(frozen=True)
class PolicyBatch:
    """The observations of an update of the critic."""

    obs: Tensor  # (N, C, H, W) uint8, as stored
    view: View  # (N, C, H', W'), as the critic saw them


@dataclass(frozen=True)
class Material:
    """The inputs of one update of an objective: only those that its `needs` name."""

    clip: Clip | None = None
    batch: PolicyBatch | None = None
    updates: int = 0  # updates made so far, for schedules; the agent's or the objective's, see `AgentConfig.pace`


@dataclass(frozen=True)
class Views:
    """The result of `Objective.views`, the random half, and the input of `Objective.loss`, the differentiable half.

    Every field is a tensor whose first axis is the clip (or 1, when all clips share it), or a dataclass of such tensors.
    """

    def __len__(self) -> int:
        return max(value.shape[0] for value in _tensors(self))

    def split(self: V, clips: int) -> Iterator[V]:
        """Pieces of at most `clips` clips, in order."""
        if clips >= len(self):
            yield self
            return
        for start in range(0, len(self), clips):
            piece: V = _slice(self, start, start + clips)
            yield piece


class Loss(NamedTuple):
    """What an objective returns for a batch of B clips."""

    per_clip: Tensor  # (B,) unreduced: the host applies importance weights and takes the mean
    metrics: dict[str, Tensor]  # detached scalars, keys "<objective>/<what>"
    priorities: Tensor | None = None  # (B,) detached: added to the priorities of a prioritised replay


@dataclass(frozen=True)
class Group:
    """Parameters of an objective that share the optimiser's options."""

    parameters: list[nn.Parameter]
    name: str | None = None  # the metric of its gradient norm; None: not reported
    clipped: bool = True  # whether its gradient is clipped, at the agent's max_grad_norm
    with_agent: bool = False  # whether it is clipped in one norm with the agent's own gradient, not apart from others
    learning_rate: float | None = None  # None: the optimiser's
    weight_decay: float = 0.0


class Objective(nn.Module, Generic[V]):
    """`views` is random and has no gradient; `loss` is deterministic and differentiable.

    If no term of the loss couples two clips (`separable`), a learner may run `loss` on `views.split(n)` and add up the gradients:
    the result is the same, in pieces that fit the cache. Otherwise (contrast, batch norm) the loss runs on the whole batch.
    """

    name: ClassVar[str]  # prefix of its metrics
    separable: bool = True  # whether no term of the loss couples two clips
    masked_scale: float = 1.0  # the factor on masked pixels, if it masks any

    def __init__(self, host: Host, *, needs: Needs, weight: float = 1.0) -> None:
        super().__init__()
        self.host = host  # a plain dataclass, so the encoder is not registered as a submodule
        self.needs = needs
        self.weight = weight  # λ, the weight of this loss beside others; not applied in `Loss.per_clip`
        for name in ("target_encoder", "q_projection"):
            if getattr(needs, name) and getattr(host, name) is None:
                raise ValueError(f"The objective {self.name} needs Host.{name}, which is None. Pass it.")

    def views(self, material: Material) -> V:
        raise NotImplementedError

    def loss(self, views: V) -> Loss:
        raise NotImplementedError

    def forward(self, clip: Clip | None = None, batch: PolicyBatch | None = None) -> Loss:
        return self.loss(self.views(Material(clip, batch)))

    def decode(self, states: Tensor, actions: Tensor, valid: Tensor) -> Tensor | None:
        """Latent states predicted from the states (B, K, d) of a clip, for probes; None if the objective predicts none."""
        return None

    def parameter_groups(self) -> list[Group]:
        """All trainable parameters that the objective owns, each in one group."""
        return [Group(self.own_parameters(), self.name)]

    def own_parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def update_momentum(self) -> None:
        """Update every momentum copy by one step."""
        for module in self.modules():
            if isinstance(module, Momentum):
                module.update()

    @property
    def splits(self) -> bool:
        """Whether `add_gradient` uses a `micro_batch`."""
        return self.separable

    def add_gradient(self, views: V, *, micro_batch: int | None = None, weights: Tensor | None = None) -> Loss:
        """Add the gradient of λ times the mean loss, each clip weighted by `weights` (B,) if given; return the loss, detached.

        `micro_batch`: observations per piece. Metrics are means over pieces, weighted by their number of clips.
        """
        clips = len(views)
        if micro_batch is not None and self.splits:
            clips = max(1, micro_batch // max(1, self.needs.clip_length))
        losses, start = list[Loss](), 0
        for piece in views.split(clips):
            loss = self.loss(piece)
            per_clip, stop = loss.per_clip, start + len(piece)
            if weights is not None:
                per_clip = weights[start:stop] * per_clip
            torch.autograd.backward(self.weight * per_clip.sum() / len(views))
            losses.append(loss._replace(per_clip=loss.per_clip.detach()))
            start = stop
        return losses[0] if len(losses) == 1 else _together(losses)

    # ── checks of its inputs ───────────────────────────────────────────────────────────────────────────────────────

    def clip_of(self, material: Material) -> Clip:
        """The clip; raise ValueError if it does not fit this objective and its host."""
        clip = material.clip
        if clip is None:
            raise ValueError(f"The objective {self.name} needs clips of {self.needs.clip_length} steps; got none.")
        if clip.length != self.needs.clip_length:
            raise ValueError(
                f"This objective was built for clips of {self.needs.clip_length} steps; got {clip.length}. "
                "Draw clips of that length, or build it with another clip_length."
            )
        if clip.actions.shape[-1] != self.host.action_dim:
            raise ValueError(
                f"Clip.actions are {clip.actions.shape[-1]} wide, but Host.action_dim is {self.host.action_dim}. "
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
        return clip

    def batch_of(self, material: Material) -> PolicyBatch:
        """The critic's batch; raise ValueError if there is none."""
        if material.batch is None:
            raise ValueError(
                f"The objective {self.name} needs the observations of the critic's batch; got none. "
                "Pass PolicyBatch(obs, view)."
            )
        return material.batch


# ── Configuration ─────────────────────────────────────────────────────────────────────────────────────────────────────


class EnvSize(Protocol):
    """The fields of an environment's config that an objective reads."""

    @property
    def size(self) -> int: ...


class Learner(Protocol):
    """The fields of an agent's config that an objective reads."""

    @property
    def kind(self) -> str: ...
    @property
    def augment(self) -> AugmentConfig: ...
    @property
    def offers(self) -> Offers: ...


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Config):
    """The base of every objective's config, the `objective` of a recipe."""

    kind: str
    weight: float = 1.0  # λ
    every: int = 1  # updates of the agent per update of the objective
    when: When | None = None  # when in the update; None: the agent's default

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("weight", "every")

    @property
    def name(self) -> str:
        """The objective's part of a method's name."""
        return self.kind

    # The initialisation of the encoder's linear layer, for methods whose released code draws that layer again.
    linear_init: ClassVar[Literal["orthogonal", "truncated_normal"]] = "orthogonal"

    @property
    def needs(self) -> Needs:
        raise NotImplementedError

    @property
    def splits(self) -> bool:
        """Whether a batch may be split into pieces."""
        return True

    # Whether an update can be recorded and replayed: the device's work depends on no value on the host.
    recordable: ClassVar[bool] = True

    @property
    def masks(self) -> MaskConfig | None:
        """The masks of its frames, for probes; None if it masks nothing."""
        return None

    def paced(self, start: float, stride: float) -> "ObjectiveConfig":
        """The config with its schedule, if it has one, at an agent's pace: the step of the first update, and steps per update."""
        return self

    def build(self, host: Host) -> Objective[Any]:
        raise NotImplementedError

    def check(self, env: EnvSize, agent: Learner) -> None:
        """Raise ValueError for settings that would fail at the first update. Subclasses may add checks."""
        offers = agent.offers
        if self.when is not None and self.when not in offers.places:
            raise ValueError(
                f"objective.when={self.when}, but agent {agent.kind} runs objectives {' or '.join(offers.places)}. "
                "Use one of these, or none for the agent's default."
            )
        missing = [name for name in offers.lacks if getattr(self.needs, name)]
        if missing:
            words = ", ".join(missing).replace("clip_length", "clips").replace("_", " ")
            raise ValueError(
                f"objective {self.kind} needs {words}, which agent {agent.kind} does not offer. Choose another agent, or an "
                f"objective without it{self.advice(missing)}."
            )

    def advice(self, missing: Sequence[str]) -> str:
        """Settings that avoid the missing needs, as the end of a sentence."""
        return ""


Built = TypeVar("Built", bound="Objective[Any]")


def on_host(objective: Built, host: Host) -> Built:
    """Move the objective to the device and the dtype of the host's encoder."""
    like = next(host.encoder.parameters(), None)
    return objective if like is None else objective.to(device=like.device, dtype=like.dtype)


def check_crops(objective: AugmentConfig, env: EnvSize, agent: Learner) -> None:
    """Raise ValueError if the objective's views and the agent's differ in size: one encoder sees both."""
    size, crop = env.size, agent.augment.crop
    if objective.side(size) != (crop or size):
        raise ValueError(
            f"objective.augment.crop={objective.crop} and agent.augment.crop={crop} must be the same: one encoder sees both."
        )


def _together(losses: Sequence[Loss]) -> Loss:
    """The loss of a batch from those of its pieces."""
    per_clip = torch.cat([loss.per_clip for loss in losses])
    total = dict[str, Tensor]()
    for loss in losses:
        share = len(loss.per_clip) / len(per_clip)
        total = {key: total.get(key, 0) + share * value for key, value in loss.metrics.items()}
    return Loss(per_clip, total, _joined([loss.priorities for loss in losses]))


def _joined(parts: Iterable[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None


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
