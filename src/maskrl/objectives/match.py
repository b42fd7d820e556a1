"""Match predicted latent states with momentum projections of the true observations, by their direction (BYOL, SPR, MLR)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskrl.nn.augment import View
from maskrl.nn.clip import over_time
from maskrl.nn.layers import mlp
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Host

Distance = Callable[[Tensor, Tensor], Tensor]  # (…, p), (…, p) → (…)


@dataclass(frozen=True)
class CosineDistance:
    """scale · ‖n(ŷ) − n(ȳ)‖² with n(v) = v / max(‖v‖, floor): 2 − 2cos for scale 1, 1 − cos for scale ½, above the floor.

    The floor is active early on, when predictions are tiny, and bounds the gradient there.
    """

    scale: float = 1.0
    floor: float = 1e-3

    def __call__(self, predicted: Tensor, target: Tensor) -> Tensor:
        difference = F.normalize(predicted, dim=-1, eps=self.floor) - F.normalize(target, dim=-1, eps=self.floor)
        return self.scale * difference.square().sum(dim=-1)


def squared_distance(predicted: Tensor, target: Tensor) -> Tensor:
    return (predicted - target).square().mean(dim=-1)


class Match(nn.Module):
    """ŷ = q(g(ŝ)) must match ȳ = ḡ(f̄(o)): g projects, q predicts, f̄ and ḡ are momentum copies of the encoder and of g."""

    def __init__(
        self,
        *,
        encoder: Momentum,
        projection: nn.Module,
        momentum_projection: Momentum,
        prediction: nn.Module,
        distance: Distance,
    ) -> None:
        super().__init__()
        self.encoder, self.projection, self.momentum_projection = encoder, projection, momentum_projection
        self.prediction, self.distance = prediction, distance

    def predict(self, states: Tensor) -> Tensor:
        """ŷ (B, K, p) of predicted states (B, K, d)."""
        return over_time(self.prediction, over_time(self.projection, states))

    @torch.no_grad()
    def target(self, original: View) -> Tensor:
        """ȳ (B, K, p) of observations (B, K, C, H, W)."""
        return over_time(self.momentum_projection, over_time(self.encoder, original.pixels()))

    def metrics(self, predicted: Tensor, target: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Means over the valid steps (B, K)."""
        direction = F.normalize(target, dim=-1)
        cosine = (F.normalize(predicted, dim=-1) * direction).sum(dim=-1)
        share = valid / valid.sum().clamp(min=1)  # the weight of each step in the means below
        mean_direction = (direction * share[..., None]).sum(dim=(0, 1))
        mean_square = (direction.square().sum(dim=-1) * share).sum()  # 1, except for targets that are exactly 0
        return {
            "cosine": mean_over_valid(cosine, valid).sum() / valid.any(dim=1).sum().clamp(min=1),
            # The standard deviation of unit vectors: 1 when they point everywhere, 0 when all agree: the first sign of collapse.
            "target_std": (mean_square - mean_direction.square().sum()).clamp(min=0).sqrt(),
        }


def mean_over_valid(values: Tensor, valid: Tensor) -> Tensor:
    """(B, K), (B, K) → (B,); 0 for a clip without a valid step."""
    return (values * valid).sum(dim=1) / valid.sum(dim=1).clamp(min=1)


# ── Heads by the names in a config─────────────────────────────────────────────────────────────────────────────────────

Projection = Literal["mlp", "q", "none"]  # q: the host's own Q layers
Prediction = Literal["mlp", "linear", "none"]


def projection_of(host: Host, kind: Projection, head_width: int) -> tuple[nn.Module, int]:
    """The projection head g and the width of its output."""
    d = host.latent_dim
    if kind == "none":
        return nn.Identity(), d
    if kind == "mlp":
        return mlp(d, head_width, d), d
    if host.q_projection is None:
        raise ValueError(
            "projection='q' projects by the first layers of the host's Q head, but Host.q_projection is None. "
            "Pass them, or use projection='mlp'."
        )
    with torch.no_grad():
        like = next(host.q_projection.parameters())
        return host.q_projection, host.q_projection(like.new_zeros(1, d)).shape[-1]


def prediction_of(kind: Prediction, width: int, head_width: int) -> nn.Module:
    heads: dict[str, Callable[[], nn.Module]] = {
        "mlp": lambda: mlp(width, head_width, width),
        "linear": lambda: nn.Linear(width, width),
        "none": nn.Identity,
    }
    return heads[kind]()
