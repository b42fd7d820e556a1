"""Clips from TorchRL's replay. Does not import TorchRL: a batch is any mapping.

replay = ReplayBuffer(storage=..., sampler=SliceSampler(num_slices=32, end_key=("next", "done")), batch_size=32 * 16)
clip = clip_of_slices(replay.sample(), length=16)
"""

from typing import Any

import torch
from torch import Tensor

from maskrl.nn.clip import Clip

Key = str | tuple[str, ...]


def clip_of_slices(
    batch: Any,
    *,
    length: int,
    pixels: Key = "pixels",
    action: Key = "action",
    end: Key | None = ("next", "done"),
    actions: int | None = None,
) -> Clip:
    """Convert a batch of slices, concatenated or (B, K), to a clip.

    `pixels`: uint8 (…, C, H, W) or (…, H, W, C). `actions`: the number of actions, if `action` holds indices; leave it out for
    one-hot and continuous actions. `end`: the key that marks an episode's end; raises ValueError for an end within a slice.
    """
    obs, taken = _read(batch, pixels), _read(batch, action)
    if obs.dtype != torch.uint8 or obs.ndim < 4:
        raise ValueError(
            f"{pixels!r} must be uint8 pictures (…, C, H, W); got {obs.dtype} of shape {tuple(obs.shape)}. Store raw pixels, and "
            "leave ToTensorImage to the encoder's side."
        )
    steps = obs.shape[:-3].numel()
    if length < 1 or steps % length:
        raise ValueError(
            f"The batch has {steps} steps, not a multiple of the slice length {length}. Sample slices of equal length: "
            f"SliceSampler(slice_len={length}, strict_length=True)."
        )
    obs = obs.reshape(-1, length, *obs.shape[-3:])
    if min(obs.shape[-3:]) == obs.shape[-1]:
        obs = obs.movedim(-1, -3)
    if actions is not None:
        taken = torch.nn.functional.one_hot(taken.reshape(steps).long(), actions)
    if end is not None:
        _refuse_ends(_read(batch, end).reshape(-1, length), end)
    return Clip(obs.contiguous(), taken.reshape(len(obs), length, -1).float())


def _refuse_ends(ends: Tensor, key: Key) -> None:
    within = ends[:, :-1].bool().any(dim=1)
    if within.any():
        raise ValueError(
            f"{int(within.sum())} of {len(ends)} slices run over an episode's end ({key!r} within the slice). Give the sampler "
            f"the same end_key={key!r}, and pass the slices' length as length."
        )


def _read(batch: Any, key: Key) -> Tensor:
    value = batch
    for name in [key] if isinstance(key, str) else key:
        value = value[name]
    return torch.as_tensor(value)
