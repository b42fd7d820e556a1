import re

import pytest
import torch

from maskrl import Clip
from maskrl.nn.clip import over_time

OBS = torch.zeros(2, 3, 1, 4, 4, dtype=torch.uint8)
ACTIONS = torch.zeros(2, 3, 5)


def test_a_clip_without_valid_is_valid_everywhere():
    clip = Clip(OBS, ACTIONS)
    assert clip.valid.shape == (2, 3)
    assert clip.valid.all()
    assert (len(clip), clip.length) == (2, 3)


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"obs": OBS.float()}, "got torch.float32 of shape (2, 3, 1, 4, 4)"),
        ({"obs": OBS[0]}, "got torch.uint8 of shape (3, 1, 4, 4)"),
        ({"obs": OBS[:0], "actions": ACTIONS[:0]}, "without an empty axis"),
        ({"actions": ACTIONS.long()}, "One-hot encode discrete actions"),
        ({"actions": ACTIONS[:, :2]}, "(2, 3, A) to go with obs (2, 3, 1, 4, 4); got torch.float32 of shape (2, 2, 5)"),
        ({"actions": ACTIONS[:1]}, "got torch.float32 of shape (1, 3, 5)"),  # would broadcast
        ({"actions": ACTIONS[..., :0]}, "of shape (2, 3, 0)"),
        ({"actions": ACTIONS + torch.nan}, "30 of 30 values are NaN or infinite"),
        ({"valid": torch.ones(2, 3)}, "Clip.valid must be bool of shape (B, K) = (2, 3); got torch.float32"),
        ({"valid": torch.ones(2, 1, dtype=torch.bool)}, "of shape (2, 1)"),
        ({"valid": torch.tensor([[True] * 3, [False] * 3])}, "clips [1] have none"),
        ({"actions": ACTIONS.to("meta")}, "must share a device; got obs on cpu, actions on meta"),
    ],
)
def test_a_bad_clip_is_refused_at_the_door(change: dict[str, torch.Tensor], seen: str):
    with pytest.raises(ValueError, match=re.escape(seen)):
        Clip(**({"obs": OBS, "actions": ACTIONS} | change))


def test_lists_and_arrays_are_refused_by_name():
    with pytest.raises(
        TypeError, match=re.escape("Clip.actions must be a torch tensor; got list. Use torch.as_tensor")
    ):
        Clip(OBS, [[0.0]])


def test_a_clip_goes_elsewhere_only_if_it_is_not_there():
    clip = Clip(OBS, ACTIONS)
    assert clip.to("cpu") is clip
    with pytest.raises(RuntimeError, match="meta tensors"):  # of which no value can be checked
        clip.to("meta")


def test_over_time_applies_a_module_to_every_step():
    x = torch.arange(2 * 3 * 4.0).reshape(2, 3, 4)
    assert torch.equal(over_time(lambda rows: rows[:, :2] + 1, x), x[..., :2] + 1)
