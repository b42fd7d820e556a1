"""Checks for a user's own encoder: find early what would fail at the first update or learn nothing.

host = maskrl.host_for(config, encoder, obs_shape=(4, 84, 84), action_dim=6)
mlr = maskrl.AuxiliaryStep(config.build(host))
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from maskrl.nn.augment import AugmentConfig, View
from maskrl.objectives.base import Host, ObjectiveConfig

WORDS = {
    "policy_batch": "the observations of the critic's batch",
    "target_encoder": "the slow encoder of the critic's targets",
    "q_projection": "the first layers of a Q head",
    "latent_maps": "latent states that are feature maps",
}


def host_for(
    config: ObjectiveConfig,
    encoder: nn.Module,
    *,
    obs_shape: tuple[int, int, int],  # (C, H, W) of an observation
    action_dim: int,
    discrete: bool = False,  # whether actions are one-hot; only used by objectives that draw actions
    generator: torch.Generator | None = None,
) -> Host:
    """Check the encoder and return a `Host` for an objective that needs clips only."""
    missing = [need for need in WORDS if getattr(config.needs, need)]
    if missing or not config.needs.clip_length:
        needed = " and ".join(WORDS[need] for need in missing) or "no clips"
        # No value makes an objective learn without the critic's batch, so none is advised then.
        advice = "" if config.needs.policy_batch else config.advice(missing)
        raise ValueError(
            f"The objective {config.kind} needs {needed}, but host_for offers clips only. "
            f"Use one that needs only clips, such as mlr{advice}."
        )
    view = _view(config, obs_shape, next(encoder.parameters()).device)
    latents = _encoded(encoder, view, obs_shape)
    if latents.ndim != 2:
        raise ValueError(
            f"The encoder returned {tuple(latents.shape)} for 2 observations {obs_shape}; expected (2, d), a latent state each. "
            "Flatten its output."
        )
    channels, height, width = view.obs.shape[1:]
    return Host(
        *(encoder, latents.shape[1], action_dim),
        obs_shape=(channels, height, width),
        discrete=discrete,
        generator=generator,
    )


def _view(config: ObjectiveConfig, obs_shape: tuple[int, int, int], device: torch.device) -> View:
    """Two observations after the objective's augmentation and mask; raise ValueError if these do not fit."""
    draws = torch.Generator(device).manual_seed(0)
    clip = torch.randint(256, (2, config.needs.clip_length, *obs_shape), generator=draws, device=device).to(torch.uint8)
    if config.masks is not None:
        config.masks.build()(clip, draws)  # raises ValueError if a cube is larger than the frame
    augment = getattr(config, "augment", None)
    if not isinstance(augment, AugmentConfig):
        return View(clip[:, 0], torch.ones(2, device=device))
    if augment.crop is not None and augment.crop == min(obs_shape[1:]) and augment.shift is None:
        warnings.warn(
            f"augment.crop={augment.crop} is the whole frame of {obs_shape[1]} × {obs_shape[2]} pixels, so nothing moves. Use "
            "AugmentConfig(crop=None, shift=4) for random shifts, or larger frames.",
            stacklevel=3,
        )
    if augment.shift is not None and augment.shift >= min(obs_shape[1:]):
        raise ValueError(
            f"augment.shift={augment.shift} can move a whole frame of {obs_shape[1]} × {obs_shape[2]} pixels out of sight. Lower "
            "it: DrQ shifts 84 × 84 pixels by up to 4."
        )
    built: Callable[[Tensor], View] = augment.build(draws)
    return built(clip[:, 0])


@torch.no_grad()
def _encoded(encoder: nn.Module, view: View, obs_shape: tuple[int, ...]) -> Tensor:
    pixels, was_training = view.pixels(), encoder.training
    encoder.eval()  # so that a batch norm keeps its statistics
    try:
        with _Divisions(pixels.shape) as divisions:
            latents: Tensor = encoder(pixels)
    except RuntimeError as error:
        seen, given = tuple(pixels.shape[1:]), tuple(obs_shape)
        advice = (
            "The objective's augment.crop changes their size: use augment=AugmentConfig(crop=None, shift=4), which keeps it."
            if seen != given
            else "Build the encoder for this shape."
        )
        raise ValueError(
            f"The encoder fails on observations {seen}, the result of the objective's augmentation of {given}. {advice} "
            f"(torch: {error})"
        ) from error
    finally:
        encoder.train(was_training)
    if divisions.found:
        raise ValueError(
            "The encoder divides its pixels by 255, but they are in [0, 1] already: it would see almost black frames. Remove "
            "the division from the encoder, and divide where the agent calls it."
        )
    return latents


class _Divisions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records whether a tensor of the pixels' shape is divided by 255, or multiplied by 1/255."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shape, self.found = tuple(shape), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "overloadpacket", func)
        scale = {torch.ops.aten.div: 255.0, torch.ops.aten.mul: 1 / 255}.get(name)
        if scale is not None and len(args) == 2 and isinstance(args[0], Tensor) and tuple(args[0].shape) == self.shape:
            by = args[1]
            number = by.item() if isinstance(by, Tensor) and by.numel() == 1 else by
            self.found |= isinstance(number, int | float) and math.isclose(number, scale, rel_tol=1e-5)
        return func(*args, **(kwargs or {}))
