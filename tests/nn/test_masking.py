import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskrl import CubeMasker


def clip_like(steps: int, size: int, clips: int = 3) -> Tensor:
    return torch.zeros(clips, steps, 2, size, size, dtype=torch.uint8)


@pytest.mark.parametrize(("size", "patch", "cells"), [(100, 10, 100), (84, 12, 49)])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("rounding", ["floor", "ceil"])
def test_the_ratio_is_the_hidden_share_of_every_frame(size: int, patch: int, cells: int, ratio: float, rounding: str):
    keep = CubeMasker((8, patch, patch), ratio=ratio, rounding=rounding)(clip_like(16, size))
    exact = {(49, 0.1): (4, 5), (49, 0.5): (24, 25), (49, 0.9): (44, 45)}  # 4.9, 24.5 and 44.1 cells
    hidden_cells = exact.get((cells, ratio), (round(ratio * 100),) * 2)[rounding == "ceil"]
    assert keep.shape == (1, 16, 1, size, size)
    assert ((~keep).sum(dim=(2, 3, 4)) == hidden_cells * patch**2).all()


def test_the_papers_mask_on_dmcontrol_hides_5000_pixels_of_every_frame_in_two_blocks_of_eight():
    keep = CubeMasker((8, 10, 10))(clip_like(16, 100))[0, :, 0]
    assert ((~keep).sum(dim=(1, 2)) == 5000).all()
    assert (keep[:8] == keep[0]).all()
    assert (keep[8:] == keep[8]).all()
    assert (keep[0] != keep[8]).any()


def test_the_papers_mask_on_atari_shows_24_of_49_cells():
    keep = CubeMasker((8, 12, 12), rounding="ceil")(clip_like(16, 84))
    assert keep.double().mean().item() == 24 / 49


def test_a_spatial_mask_is_drawn_for_every_step():
    masker = CubeMasker.spatial(10)
    keep = masker(clip_like(16, 100))[0, :, 0]
    assert masker.cube == (1, 10, 10)
    assert ((~keep).sum(dim=(1, 2)) == 5000).all()
    assert all((keep[i] != keep[i + 1]).any() for i in range(15))


@pytest.mark.parametrize(("depth", "hidden_steps"), [(8, 8), (4, 8), (2, 8)])
def test_a_temporal_mask_hides_whole_segments(depth: int, hidden_steps: int):
    keep = CubeMasker.temporal(depth)(clip_like(16, 100))[0, :, 0]
    shown = keep.flatten(1).all(dim=1)
    assert torch.equal(shown, keep.flatten(1).any(dim=1))  # a frame is all visible or all hidden
    assert (~shown).sum() == hidden_steps
    assert torch.equal(shown, shown[::depth].repeat_interleave(depth))


def test_a_mask_over_the_whole_clip_is_exact_over_the_clip_but_not_in_every_block():
    masker = CubeMasker((8, 10, 10), balanced=False)
    hidden = torch.stack([(~masker(clip_like(16, 100)))[0, [0, 8]].sum(dim=(1, 2, 3)) for _ in range(20)])
    assert (hidden.sum(dim=1) == 2 * 5000).all()
    assert (hidden[:, 0] != 5000).any()


def test_one_mask_serves_the_batch_unless_every_clip_asks_for_its_own():
    assert len(CubeMasker((8, 10, 10))(clip_like(16, 100))) == 1
    keep = CubeMasker((8, 10, 10), per_clip=True)(clip_like(16, 100))
    assert len(keep) == 3
    assert (keep[0] != keep[1]).any()


@pytest.mark.parametrize("fill", [0, 127, 255])
def test_what_is_hidden_shows_the_fill_and_what_is_kept_is_untouched(fill: int):
    obs = torch.randint(1, 255, (3, 16, 2, 20, 20), dtype=torch.uint8)
    masker = CubeMasker((8, 10, 10), fill=fill)
    keep = masker(obs)
    hidden = masker.hide(obs, keep)
    everywhere = keep.expand_as(obs)
    assert hidden.dtype == torch.uint8
    assert (hidden[~everywhere] == fill).all()
    assert torch.equal(hidden[everywhere], obs[everywhere])


def test_the_same_seed_draws_the_same_mask():
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(CubeMasker()(clip_like(16, 100)))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_every_cube_is_hidden_equally_often():
    torch.manual_seed(0)
    masker = CubeMasker((1, 10, 10), ratio=0.25, per_clip=True)
    draws = 4000
    hidden = (~masker(torch.zeros(draws, 1, 1, 20, 20))).double().mean(dim=0)[0, 0, ::10, ::10]
    assert (hidden - 0.25).abs().max() < 4 * (0.25 * 0.75 / draws) ** 0.5  # four standard errors


@given(
    blocks=st.integers(1, 4),
    depth=st.integers(1, 4),
    rows=st.integers(2, 6),
    columns=st.integers(2, 6),
    patch=st.integers(1, 5),
    ratio=st.floats(0.26, 0.74),
    per_clip=st.booleans(),
    balanced=st.booleans(),
    seed=st.integers(0, 100),
)
def test_any_mask_is_made_of_whole_cubes_and_hides_its_share(
    blocks: int,
    depth: int,
    rows: int,
    columns: int,
    patch: int,
    ratio: float,
    per_clip: bool,
    balanced: bool,
    seed: int,
):
    torch.manual_seed(seed)
    masker = CubeMasker((depth, patch, patch), ratio=ratio, per_clip=per_clip, balanced=balanced)
    keep = masker(torch.zeros(2, blocks * depth, 1, rows * patch, columns * patch))[:, :, 0]
    cubes = keep[:, ::depth, ::patch, ::patch]
    rebuilt = cubes.repeat_interleave(depth, 1).repeat_interleave(patch, 2).repeat_interleave(patch, 3)
    assert torch.equal(keep, rebuilt)
    hidden = (~cubes).flatten(1 if not balanced else 2).sum(dim=-1)
    total = rows * columns * (1 if balanced else blocks)
    assert (hidden == int(round(ratio * total, 9))).all()
    assert masker.hidden_fraction(blocks, rows * columns) == hidden.flatten()[0].item() / total


def test_a_ratio_that_floating_point_cannot_hold_is_not_rounded_twice():
    assert 0.29 * 100 < 29  # the trap
    assert CubeMasker((1, 1, 1), ratio=0.29).hidden_fraction(1, 100) == 0.29
    assert 0.07 * 100 > 7  # and its mirror image
    assert CubeMasker((1, 1, 1), ratio=0.07, rounding="ceil").hidden_fraction(1, 100) == 0.07


def test_a_patch_that_does_not_divide_the_frame_is_stretched_and_says_so():
    masker = CubeMasker((8, 12, 12))
    with pytest.warns(UserWarning, match=re.escape("8 × 8 cells are 12.5 × 12.5 pixels on average, and 50.0% of them")):
        keep = masker(clip_like(16, 100))[0, 0, 0]
    corners = torch.arange(8) * 100 // 8 + 1
    assert (~keep[corners][:, corners]).sum() == 32  # of 64 cells
    assert 0.4 < 1 - keep.double().mean() < 0.6


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"ratio": 0.0}, "ratio=0.0 must lie strictly between 0"),
        ({"ratio": 1.0}, "ratio=1.0 must lie strictly between 0"),
        ({"ratio": -0.5}, "ratio=-0.5"),
        ({"ratio": float("nan")}, "ratio=nan"),
        ({"cube": (0, 10, 10)}, "every side at least 1"),
        ({"cube": (8, 10)}, "must be (steps, height, width)"),
        ({"cube": 8}, "cube=8 must be (steps, height, width)"),
        ({"rounding": "round"}, "'floor' or 'ceil'"),
        ({"fill": 256}, "fill=256 must be a pixel value"),
    ],
)
def test_an_impossible_masker_is_refused(options: dict[str, object], seen: str):
    with pytest.raises(ValueError, match=re.escape(seen)):
        CubeMasker(**options)  # type: ignore[arg-type]


def test_only_clips_are_masked():
    with pytest.raises(ValueError, match=re.escape("takes clips of shape (B, K, C, H, W); got (3, 2, 20, 20)")):
        CubeMasker()(torch.zeros(3, 2, 20, 20))


@pytest.mark.parametrize(
    ("masker", "seen"),
    [
        (CubeMasker((5, 10, 10)), "clip_length=16 is not a multiple of the cube's depth 5"),
        (CubeMasker((32, 10, 10)), "A cube of 32 steps is longer than the clip of 16"),
        (CubeMasker((8, 101, 10)), "A cube of 101 × 10 pixels is larger than the frame of 100 × 100"),
        (CubeMasker((8, 50, 50), ratio=0.1), "hides 0: nothing is left to predict"),
        (CubeMasker((8, 50, 50), ratio=0.9, rounding="ceil"), "hides 4: nothing is left to see"),
        (CubeMasker.temporal(16), "ratio=0.5 of 1 cubes"),
    ],
)
def test_a_mask_that_does_not_fit_the_clip_is_refused(masker: CubeMasker, seen: str):
    with pytest.raises(ValueError, match=re.escape(seen)):
        masker(clip_like(16, 100))
