"""Mask-enhanced Temporal Contrastive Learning for smooth state evolution (MOOSS; Sun et al., WACV 2025), a successor of MLR.

Hide the cubes that a random walk through the clip visits, encode the masked observations, and let a causal transformer with action
tokens predict every latent state. A prediction must be closer to the true states of its own clip than to those of other clips, and
within its clip closer to those closer in time. There is one contrast per distance in time, with a temperature that grows.

Departures from the released code (reasons in docs/fidelity-systems.md):

- Pixels are in [0, 1]. The released code leaves them in 0..255.
- Random crops cover the whole frame.
- Steps past the end of an episode count neither as predictions nor as candidates.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maskrl.nn.augment import Augment, AugmentConfig, LateView
from maskrl.nn.clip import over_time
from maskrl.nn.decoder import CausalDecoder
from maskrl.nn.layers import mlp
from maskrl.nn.masking import MaskConfig, Masker
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import (
    EnvSize,
    Host,
    Learner,
    Loss,
    Material,
    Needs,
    ObjectiveConfig,
    Views,
    check_crops,
    on_host,
)
from maskrl.objectives.contrast import Contrast, check_count


@dataclass(frozen=True)
class MOOSSViews(Views):
    masked: LateView  # (B, K, C, H', W'), what the online encoder sees
    original: LateView  # (B, K, C, H', W'), what the momentum encoder sees
    actions: Tensor  # (B, K, A)
    valid: Tensor  # (B, K) bool


class MOOSS(Contrast[MOOSSViews]):
    name = "mooss"

    def __init__(
        self,
        host: Host,
        *,
        clip_length: int,
        masker: Masker,
        augment: Augment,
        decoder: CausalDecoder,
        prediction: nn.Module,
        momentum: float,
        temperatures: tuple[float, ...],
        weight: float,
    ) -> None:
        super().__init__(host, needs=Needs(clip_length), weight=weight)
        self.masker, self.augment, self.decoder, self.prediction = masker, augment, decoder, prediction
        self.encoder, self.temperatures = Momentum(host.encoder, momentum), temperatures
        self.product = nn.Parameter(torch.rand(host.latent_dim, host.latent_dim))  # W ~ U[0, 1), as released

    @torch.no_grad()
    def views(self, material: Material) -> MOOSSViews:
        """Augment first, then mask, so that the mask covers the same share of every crop.

        Both views are cut later: at the paper's size, each would be a copy of 130 MB.
        """
        clip = self.clip_of(material)
        visible, original = (self.augment.late(clip.obs, clip.actions.dtype) for _ in range(2))
        keep = self.masker(clip.obs.new_empty(()).expand(visible.shape), self.host.generator)
        paint = self.masker.hide(torch.zeros_like(keep, dtype=torch.uint8), keep)
        return MOOSSViews(visible.hidden(keep, paint), original, clip.actions, clip.valid)

    def embed(self, views: MOOSSViews) -> tuple[Tensor]:
        states = over_time(self.host.encoder, views.masked.pixels())  # (B, K, d)
        return (over_time(self.prediction, self.decode(states, views.actions, views.valid)),)  # (B, K, d)

    def targets(self, views: MOOSSViews) -> tuple[Tensor, Tensor]:
        return over_time(self.encoder, views.original.pixels()), views.valid  # (B, K, d), (B, K)

    def decode(self, states: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
        decoded: Tensor = self.decoder(states, actions, valid)
        return decoded

    def compare(self, predicted: Tensor, targets: Tensor, valid: Tensor) -> Loss:  # type: ignore[override]
        check_count({"clips": len(predicted)})
        asked, answers = (F.normalize(states, dim=-1).flatten(0, 1) for states in (predicted, targets))  # (B·K, d)
        similar = asked @ self.product @ answers.T  # (B·K, B·K)
        per_step = temporal_contrast(similar, valid, self.temperatures)  # (B, K)
        per_clip = (per_step * valid).sum(dim=1) / valid.sum(dim=1)
        found = similar.detach().argmax(dim=1) == torch.arange(len(similar), device=similar.device)
        metrics = {"loss": per_clip.mean().detach(), "accuracy": found.to(similar.dtype).mean()}
        return Loss(per_clip, {f"{self.name}/{key}": value for key, value in metrics.items()})


def temporal_contrast(similar: Tensor, valid: Tensor, temperatures: tuple[float, ...]) -> Tensor:
    """(B·K, B·K) similarities, (B, K) → (B, K): the mean over levels l of −log(Σ positives / Σ candidates).

    At level l the positives are the same clip's states at a distance of exactly l steps, and the candidates are its states at l or
    more and all states of other clips. Levels without a positive do not count.
    """
    clips, steps = valid.shape
    time, clip = torch.arange(steps, device=similar.device).repeat(clips), torch.arange(clips, device=similar.device)
    owner = clip.repeat_interleave(steps)
    same = owner[:, None] == owner
    apart = (time[:, None] - time).abs()
    known = valid.flatten()  # which targets count
    total, levels = similar.new_zeros(len(similar)), similar.new_zeros(len(similar))
    for level, temperature in enumerate(temperatures):
        positive = same & (apart == level) & known
        candidate = (~same | (apart >= level)) & known
        counts = positive.any(dim=1)
        # The backward pass computes a level again, so that only one level's matrices are kept at a time.
        asked = (similar, temperature, candidate, positive | ~counts[:, None])
        ratio = checkpoint(_log_ratio, *asked, use_reentrant=False, preserve_rng_state=False)
        total = total + torch.where(counts, ratio, 0)
        levels = levels + counts
    return (total / levels.clamp(min=1)).view(clips, steps)


def _log_ratio(similar: Tensor, temperature: float, candidate: Tensor, positive: Tensor) -> Tensor:
    """(N, N) → (N,): log(Σ candidates / Σ positives)."""
    scaled = similar / temperature
    of_all, of_positives = (scaled.masked_fill(~each, -torch.inf).logsumexp(dim=1) for each in (candidate, positive))
    return of_all - of_positives


@dataclass(frozen=True, kw_only=True)
class MOOSSConfig(ObjectiveConfig):
    """MOOSS on DMControl. Its authors use latent states of 64 numbers."""

    recordable: ClassVar[bool] = False  # the host computes the walk
    # `masks` stays None: the walk hides parts of crops, but probes hide parts of whole frames, the same in every run.

    kind: Literal["mooss"] = "mooss"
    weight: float = 0.1  # λ
    clip_length: int = 16  # K
    mask: MaskConfig = field(default_factory=lambda: MaskConfig(strategy="walk", cube=(8, 7, 7)))
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    decoder_depth: int = 2
    heads: int = 4
    head_width: int = 100
    momentum: float = 0.95
    levels: int = 6  # distances in time, from 0 on
    temperature: float = 0.07  # of level 0
    temperature_step: float = 0.075  # added per level

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("decoder_depth", "heads", "head_width", "levels", "temperature")
        self.require_at_least(0, "temperature_step")
        if self.levels > self.clip_length:
            raise ValueError(
                f"levels={self.levels}: a clip of {self.clip_length} steps has no states that far apart. Lower levels, or raise "
                "clip_length."
            )
        self.mask.build().blocks(self.clip_length)

    @property
    def needs(self) -> Needs:
        return Needs(self.clip_length)

    def check(self, env: EnvSize, agent: Learner) -> None:
        super().check(env, agent)
        check_crops(self.augment, env, agent)
        check_count({"agent.auxiliary.clips": getattr(getattr(agent, "auxiliary", None), "clips", None)})

    def build(self, host: Host) -> MOOSS:
        d = host.latent_dim
        mooss = MOOSS(
            host,
            clip_length=self.clip_length,
            masker=self.mask.build(),
            augment=self.augment.build(host.generator),
            decoder=CausalDecoder(d, host.action_dim, depth=self.decoder_depth, heads=self.heads),
            prediction=mlp(d, self.head_width, d),
            momentum=self.momentum,
            temperatures=tuple(self.temperature + level * self.temperature_step for level in range(self.levels)),
            weight=self.weight,
        )
        return on_host(mooss, host)
