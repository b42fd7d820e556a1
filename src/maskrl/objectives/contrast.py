"""Objectives that compare every clip of a batch with every other one."""

from collections.abc import Mapping
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from maskrl.objectives.base import Loss, Objective, Views

V = TypeVar("V", bound=Views)


class Contrast(Objective[V], Generic[V]):
    """A loss in two halves: `embed` and `targets` treat each clip separately, `compare` couples them.

    The batch is never split: four contrasts over 128 are not one over 512. Memory is saved by gradient caching (Gao et al., 2021)
    instead, which is exact: embed all pieces without a graph, take the gradient of the comparison at the embeddings, and send it
    through the pieces one after the other. It costs one more forward pass of the encoder; targets are computed once.
    """

    separable = False

    def embed(self, views: V) -> tuple[Tensor, ...]:
        """Tensors (B, …); row b depends on clip b only. Deterministic."""
        raise NotImplementedError

    def targets(self, views: V) -> tuple[Tensor, ...]:
        """Tensors (B, …) without a gradient, row by row as in `embed`."""
        return ()

    def compare(self, *embeddings: Tensor) -> Loss:
        raise NotImplementedError

    def loss(self, views: V) -> Loss:
        with torch.no_grad():
            targets = self.targets(views)
        return self.compare(*self.embed(views), *targets)

    @property
    def splits(self) -> bool:
        return True  # by gradient caching

    def add_gradient(self, views: V, *, micro_batch: int | None = None, weights: Tensor | None = None) -> Loss:
        size = len(views) if micro_batch is None else max(1, micro_batch // max(1, self.needs.clip_length))
        pieces = list(views.split(size)) if size < len(views) else [views]
        with torch.set_grad_enabled(len(pieces) == 1):
            embedded = [self.embed(piece) for piece in pieces]
        with torch.no_grad():
            targets = [self.targets(piece) for piece in pieces]
        whole, fixed = ([torch.cat(parts) for parts in zip(*each, strict=True)] for each in (embedded, targets))
        cut = [part.detach().requires_grad_(part.is_floating_point()) for part in whole]
        leaves = whole if len(pieces) == 1 else cut
        loss = self.compare(*leaves, *fixed)
        per_clip = loss.per_clip if weights is None else weights * loss.per_clip
        torch.autograd.backward(self.weight * per_clip.mean())
        if len(pieces) > 1:
            self._send_back(pieces, leaves, size)
        return loss._replace(per_clip=loss.per_clip.detach())

    def _send_back(self, pieces: list[V], leaves: list[Tensor], size: int) -> None:
        """Backpropagate the gradients at the embeddings through the pieces."""
        for number, piece in enumerate(pieces):
            rows = slice(number * size, (number + 1) * size)
            pairs = [
                (part, leaf.grad[rows])
                for part, leaf in zip(self.embed(piece), leaves, strict=True)
                if leaf.grad is not None and part.requires_grad
            ]
            torch.autograd.backward([part for part, _ in pairs], [gradient for _, gradient in pairs])


def check_count(counts: Mapping[str, int | None]) -> None:
    """Raise ValueError for fewer than 2 to compare. `counts`: by their setting or what they are, None for no limit."""
    for name, count in counts.items():
        if count is not None and count < 2:
            raise ValueError(
                f"{name}={count}: a contrast compares the members of a batch with each other and needs at least 2. Raise it."
            )


def info_nce(logits: Tensor) -> Tensor:
    """(B, B) → (B,): cross-entropy of every row with its own column."""
    check_count({"observations": len(logits)})
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device), reduction="none")
