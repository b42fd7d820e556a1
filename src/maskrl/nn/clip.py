"""The one data structure of the objectives: a clip of consecutive observations with their actions.

Letters used everywhere: B clips, K steps, C channels, H W pixels, d latent, A action.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maskrl.nn.transfer import HOSTS, pinned, sent


@dataclass(frozen=True)
class Clip:
    """B stretches of K consecutive steps, each within an episode; `actions[:, k]` was taken at `obs[:, k]`.

    Other code relies on the checks here. Shapes are always checked, values only on the host: checking them on an accelerator would
    mean waiting for it.
    """

    obs: Tensor  # (B, K, C, H, W) uint8, the frames of a stack on the channel axis
    actions: Tensor  # (B, K, A) float, one-hot if discrete; pixels get the same dtype
    valid: Tensor = None  # type: ignore[assignment]  # (B, K) bool, False past the end of the episode; all True if left out

    def __post_init__(self) -> None:
        obs, actions = self.obs, self.actions
        for name, value in (("obs", obs), ("actions", actions), ("valid", self.valid)):
            if not isinstance(value, Tensor | None):
                raise TypeError(
                    f"Clip.{name} must be a torch tensor; got {type(value).__name__}. Use torch.as_tensor(...)."
                )
        if obs.dtype != torch.uint8 or obs.ndim != 5 or 0 in obs.shape:
            raise ValueError(
                f"Clip.obs must be uint8 of shape (B, K, C, H, W) without an empty axis; got {obs.dtype} of shape "
                f"{tuple(obs.shape)}. Pass raw frames (0..255), clips first and channels before height and width."
            )
        steps = tuple(obs.shape[:2])
        if (
            not actions.is_floating_point()
            or actions.ndim != 3
            or tuple(actions.shape[:2]) != steps
            or 0 in actions.shape
        ):
            raise ValueError(
                f"Clip.actions must be floating point of shape (B, K, A) = ({steps[0]}, {steps[1]}, A) to go with obs "
                f"{tuple(obs.shape)}; got {actions.dtype} of shape {tuple(actions.shape)}. "
                "One-hot encode discrete actions: torch.nn.functional.one_hot(actions, A).float()."
            )
        if self.valid is None:
            object.__setattr__(self, "valid", torch.ones(steps, dtype=torch.bool, device=obs.device))
        if self.valid.dtype != torch.bool or tuple(self.valid.shape) != steps:
            raise ValueError(
                f"Clip.valid must be bool of shape (B, K) = {steps}; got {self.valid.dtype} of shape "
                f"{tuple(self.valid.shape)}. Leave it out when every step is inside its episode."
            )
        if not obs.device == actions.device == self.valid.device:
            raise ValueError(
                f"The tensors of a clip must share a device; got obs on {obs.device}, actions on {actions.device}, "
                f"valid on {self.valid.device}. Build the clip on one device, then use Clip.to(device)."
            )
        if obs.device.type in HOSTS:
            self._check_values()

    def _check_values(self) -> None:
        actions = self.actions
        if not actions.isfinite().all():
            raise ValueError(
                f"Clip.actions must be finite; {int((~actions.isfinite()).sum())} of {actions.numel()} values are NaN or "
                "infinite. Check the policy or the replay that produced them."
            )
        if not self.valid.any(dim=1).all():
            empty = (~self.valid.any(dim=1)).nonzero().flatten().tolist()
            raise ValueError(
                f"Every clip needs at least one valid step; clips {empty} have none. Draw their starts inside an episode."
            )

    def __len__(self) -> int:
        return self.obs.shape[0]

    @property
    def length(self) -> int:
        """K, the number of steps."""
        return self.obs.shape[1]

    def to(self, device: torch.device | str) -> "Clip":
        """The clip on the device; the same object if it is there already."""
        return self if self.obs.device == torch.device(device) else self._with(sent, device)

    def pinned(self, device: torch.device | str) -> "Clip":
        """The clip in pinned memory, for a copy to the device without waiting."""
        return self._with(pinned, device)

    def _with(self, move: Callable[[Tensor, torch.device | str], Tensor], device: torch.device | str) -> "Clip":
        return replace(
            self, obs=move(self.obs, device), actions=move(self.actions, device), valid=move(self.valid, device)
        )


def over_time(module: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a per-image or per-vector module to every step: (B, K, …) → (B·K, …) → (B, K, …)."""
    y = module(x.flatten(0, 1))
    return y.reshape(*x.shape[:2], *y.shape[1:])
