"""Clips from TorchRL's replay. Needs no import of TorchRL: a batch is anything with keys.

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
    """A batch of slices, one after the other or (B, K) as `reshape` leaves it, as a clip.

    `pixels` are uint8 (…, C, H, W) or (…, H, W, C). `actions`: how many there are, where `action` holds their numbers; leave it
    out for one-hot and continuous ones. `end` is where an episode's end is marked: an end within a slice is refused.
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
            f"The batch has {steps} steps, which are not whole slices of {length}. Sample slices of equal length: "
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
            f"the same end_key={key!r}, and length the slices' length."
        )


def _read(batch: Any, key: Key) -> Tensor:
    value = batch
    for name in [key] if isinstance(key, str) else key:
        value = value[name]
    return torch.as_tensor(value)
