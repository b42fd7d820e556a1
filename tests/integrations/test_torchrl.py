"""Clips of TorchRL's own SliceSampler."""

import pytest
import torch

from maskrl.integrations.torchrl import clip_of_slices

LENGTH = 4


def slices(episodes: int = 6, steps: int = 9, **changes: torch.Tensor):
    """A replay of episodes whose pixels say where they are, sampled in slices."""
    tensordict = pytest.importorskip("tensordict")
    data = pytest.importorskip("torchrl.data")
    episode = torch.arange(episodes).repeat_interleave(steps)
    step = torch.arange(steps).repeat(episodes)
    pixels = torch.stack([episode, step], dim=1).to(torch.uint8)[:, :, None, None].expand(-1, -1, 8, 8).contiguous()
    batch = tensordict.TensorDict(
        {
            "pixels": pixels,
            "action": torch.nn.functional.one_hot(step % 3, 3),
            "next": {"done": (step == steps - 1)[:, None]},
            **changes,
        },
        [len(episode)],
    )
    replay = data.ReplayBuffer(
        storage=data.LazyTensorStorage(len(episode)),
        sampler=data.SliceSampler(slice_len=LENGTH, end_key=("next", "done")),
        batch_size=8 * LENGTH,
    )
    replay.extend(batch)
    return replay


def test_a_batch_of_slices_becomes_clips_of_one_episode_each():
    clip = clip_of_slices(slices().sample(), length=LENGTH)
    assert clip.obs.shape == (8, LENGTH, 2, 8, 8)
    episode, step = clip.obs[..., 0, 0].unbind(dim=-1)
    assert (episode == episode[:, :1]).all()
    assert (step.int().diff(dim=1) == 1).all()
    assert (clip.actions.argmax(dim=-1) == step % 3).all()


def mapping(steps: int, **changes: torch.Tensor) -> dict[str, object]:
    """A batch need be no TensorDict."""
    pixels = torch.arange(steps, dtype=torch.uint8)[:, None, None, None].expand(-1, 8, 8, 3)
    ends = torch.zeros(steps, 1, dtype=torch.bool)
    return {"pixels": pixels, "action": torch.zeros(steps, dtype=torch.int64), "next": {"done": ends}, **changes}


def test_numbers_of_actions_become_one_hot_and_channels_come_first():
    clip = clip_of_slices(mapping(8), length=LENGTH, actions=5)
    assert clip.obs.shape == (2, LENGTH, 3, 8, 8)
    assert clip.actions.tolist() == [[[1, 0, 0, 0, 0]] * LENGTH] * 2


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (mapping(9), "9 steps, not a multiple of the slice length 4"),
        (mapping(8, pixels=torch.zeros(8, 3, 8, 8)), "must be uint8 pictures"),
        (mapping(8, next={"done": torch.arange(8) == 5}), r"1 of 2 slices run over an episode's end"),
    ],
    ids=["part of a slice", "floats", "an end within"],
)
def test_what_is_no_clip_is_refused(batch: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        clip_of_slices(batch, length=LENGTH, actions=3)
