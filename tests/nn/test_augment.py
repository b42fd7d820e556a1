import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from maskrl import AugmentConfig
from maskrl.nn.augment import Augment, CenterCrop, Intensity, RandomCrop, RandomPlace, RandomShift, View
from maskrl.nn.masking import CubeMasker


def coordinates(n: int, size: int) -> Tensor:
    """Images whose two channels hold the row and the column of every pixel."""
    axis = torch.arange(size, dtype=torch.uint8)
    return torch.stack(torch.meshgrid(axis, axis, indexing="ij")).expand(n, 2, size, size).contiguous()


def test_random_crops_reach_all_17_by_17_places_and_no_others():
    corners = RandomCrop(84)(coordinates(6000, 100))[:, :, 0, 0]
    assert {tuple(corner) for corner in corners.tolist()} == {(y, x) for y in range(17) for x in range(17)}


def test_random_shifts_reach_all_9_by_9_places_and_repeat_the_border():
    images = coordinates(3000, 84)
    shifted = RandomShift(4)(images).int()
    offset = shifted[:, :, 40, 40] - 40
    assert {tuple(o) for o in offset.tolist()} == {(y, x) for y in range(-4, 5) for x in range(-4, 5)}
    axis = torch.arange(84)
    assert torch.equal(shifted[:, 0, :, 0], (axis + offset[:, :1]).clamp(0, 83).int())
    assert torch.equal(shifted[:, 1, 0, :], (axis + offset[:, 1:]).clamp(0, 83).int())


@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    pad=st.integers(1, 10),
    n=st.integers(1, 6),
    seed=st.integers(0, 50),
    inplace=st.booleans(),
)
def test_a_shift_is_a_window_of_the_image_with_its_border_repeated(
    height: int, width: int, pad: int, n: int, seed: int, inplace: bool
):
    torch.manual_seed(seed)
    images = torch.randint(256, (n, 3, height, width), dtype=torch.uint8)
    given = images.clone()
    torch.manual_seed(seed)
    shifted = RandomShift(pad, inplace=inplace)(given)
    assert inplace or torch.equal(given, images)
    torch.manual_seed(seed)
    down, right = (torch.randint(-pad, pad + 1, (n,)) for _ in range(2))
    for image, moved, dy, dx in zip(images, shifted, down, right, strict=True):
        rows, columns = (torch.arange(height) + dy).clamp(0, height - 1), (torch.arange(width) + dx).clamp(0, width - 1)
        assert torch.equal(moved, image[:, rows][:, :, columns])


def test_the_centre_crop_of_100_to_84_starts_at_8():
    assert CenterCrop(84)(coordinates(1, 100))[0, :, 0, 0].tolist() == [8, 8]


@given(size=st.integers(1, 12), extra=st.integers(0, 6), n=st.integers(1, 5), seed=st.integers(0, 50))
def test_a_crop_is_a_window_of_its_image(size: int, extra: int, n: int, seed: int):
    torch.manual_seed(seed)
    images = torch.randint(256, (n, 3, size + extra, size + extra + 1), dtype=torch.uint8)
    where = torch.stack(torch.meshgrid(torch.arange(size + extra), torch.arange(size + extra + 1), indexing="ij"))
    cropped = RandomCrop(size)(torch.cat([images, where.to(torch.uint8).expand(n, -1, -1, -1)], dim=1))
    for image, crop in zip(images, cropped, strict=True):
        top, left = crop[3:, 0, 0].tolist()
        assert torch.equal(crop[:3], image[:, top : top + size, left : left + size])


@pytest.mark.parametrize("make", [lambda: RandomCrop(20), lambda: CenterCrop(20), lambda: RandomShift(4)])
def test_geometry_keeps_uint8_and_takes_any_number_of_channels(make: Callable[[], nn.Module]):
    for channels in (1, 4, 9):
        moved = make()(torch.zeros(2, channels, 24, 24, dtype=torch.uint8))
        assert moved.dtype == torch.uint8
        assert moved.shape[:2] == (2, channels)


def test_intensity_is_a_gain_between_0_9_and_1_1_around_1():
    gain = Intensity(0.05)(torch.Size([20_000]), dtype=torch.float64, device=torch.device("cpu"))
    assert (gain.min().item(), gain.max().item()) == (pytest.approx(0.9), pytest.approx(1.1))
    assert gain.mean().item() == pytest.approx(1, abs=0.002)
    assert gain.unique().numel() > 10_000  # one for every observation


def test_no_intensity_is_a_gain_of_1_and_draws_nothing():
    before = torch.get_rng_state()
    gain = Intensity(0)(torch.Size([2, 3]), dtype=torch.float64, device=torch.device("cpu"))
    assert gain.tolist() == [[1] * 3] * 2
    assert gain.dtype == torch.float64
    assert torch.equal(torch.get_rng_state(), before)


def test_images_are_shifted_where_they_lie_if_that_is_allowed():
    images = torch.zeros(2, 3, 1, 8, 8, dtype=torch.uint8)
    elsewhere, there = (AugmentConfig(crop=None, shift=2).build(inplace=inplace)(images) for inplace in (False, True))
    assert elsewhere.obs.data_ptr() != images.data_ptr()
    assert there.obs.data_ptr() == images.data_ptr()


def test_a_view_becomes_float_only_when_asked():
    view = View(torch.full((2, 3, 1, 4, 4), 51, dtype=torch.uint8), torch.tensor([[1.0, 2.0, 0.5]] * 2))
    assert view.pixels()[:, :, 0, 0, 0].tolist() == [[pytest.approx(x) for x in (0.2, 0.4, 0.1)]] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_are_bytes_times_their_gain_to_the_last_bit_and_channels_last(dtype: torch.dtype):
    obs = torch.arange(256, dtype=torch.uint8).repeat(2 * 5 * 9).view(2, 5, 9, 16, 16)
    view = View(obs.transpose(0, 1), torch.rand(5, 2, dtype=dtype) + 0.5)
    expected = view.obs.to(dtype) * (view.gain / 255)[..., None, None, None]
    assert torch.equal(view.pixels(), expected)
    assert view.pixels().flatten(0, 1).is_contiguous(memory_format=torch.channels_last)


def test_a_view_of_nothing_and_one_whose_gain_learns():
    assert View(torch.zeros(0, 9, 4, 4, dtype=torch.uint8), torch.zeros(0)).pixels().shape == (0, 9, 4, 4)
    gain = torch.ones(2, requires_grad=True)
    View(torch.full((2, 3, 4, 4), 255, dtype=torch.uint8), gain).pixels().sum().backward()
    assert gain.grad.tolist() == [48, 48]


def test_every_observation_of_a_clip_moves_on_its_own_and_its_channels_together():
    obs = coordinates(1, 100)[None].expand(8, 16, 2, 100, 100)
    view = AugmentConfig(crop=84).build()(torch.cat([obs, obs], dim=2))
    corners = view.obs[..., 0, 0]
    assert torch.equal(corners[:, :, :2], corners[:, :, 2:])
    assert len({tuple(c) for c in corners[:, :, :2].flatten(0, 1).tolist()}) > 60  # of 128 draws from 289 places
    assert view.gain.shape == (8, 16)


@pytest.mark.parametrize(
    "config", [AugmentConfig(crop=5), AugmentConfig(crop=5, shift=2), AugmentConfig(crop=None)], ids=str
)
def test_a_view_that_is_cut_late_has_the_same_draws_and_the_same_bits(config: AugmentConfig):
    obs = torch.randint(256, (4, 3, 2, 9, 8), dtype=torch.uint8)
    given, generators = obs.clone(), [torch.Generator().manual_seed(3) for _ in range(2)]
    now, late = config.build(generators[0])(obs), config.build(generators[1]).late(obs)
    assert torch.equal(*(generator.get_state() for generator in generators))
    assert late.shape == now.obs.shape
    assert torch.equal(late.obs, now.obs)
    assert torch.equal(late.pixels(), now.pixels())
    assert torch.equal(obs, given)


def test_only_crops_are_cut_late_and_they_need_no_copy():
    obs = torch.zeros(4, 3, 2, 9, 9, dtype=torch.uint8)
    assert AugmentConfig(crop=5).build().late(obs).whole is obs


@pytest.mark.parametrize("fill", [0, 90])
def test_a_late_view_shows_the_paint_where_it_is_masked(fill: int):
    obs = torch.randint(256, (4, 3, 2, 9, 9), dtype=torch.uint8)
    late = AugmentConfig(crop=6).build().late(obs)
    masker = CubeMasker((3, 2, 2), fill=fill)
    keep = masker(late.obs)
    masked = late.hidden(keep, masker.hide(torch.zeros_like(keep, dtype=torch.uint8), keep))
    assert torch.equal(masked.obs, torch.where(keep, late.obs, fill))


def test_a_crop_is_put_at_any_place_of_a_larger_frame_with_its_border_repeated():
    """CURL on Atari: a crop of 80, a border of 4, a crop of 84: 5 × 5 places."""
    image = coordinates(1, 80)
    placed = AugmentConfig(crop=None, enlarge=84, intensity=0.0).build()(image.expand(400, 2, 80, 80)).obs
    assert placed.shape == (400, 2, 84, 84)
    corners = {tuple(corner) for corner in placed[..., 10, 10].tolist()}
    assert len(corners) == 25
    for one in placed[:20]:
        top, left = (10 - int(part) for part in one[:, 10, 10])
        assert 0 <= top <= 4
        assert 0 <= left <= 4
        assert torch.equal(one[:, top : top + 80, left : left + 80], image[0])
        assert torch.equal(one[:, 0], one[:, top])
        assert torch.equal(one[:, :, -1], one[:, :, left + 79])
    assert AugmentConfig(crop=80, enlarge=84).side(84) == 84
    assert (AugmentConfig(crop=84).side(100), AugmentConfig(crop=None).side(48)) == (84, 48)


def test_no_augmentation_is_a_value():
    augment = AugmentConfig(crop=None, intensity=0.0).build()
    obs = torch.randint(256, (2, 3, 1, 8, 8), dtype=torch.uint8)
    assert isinstance(augment, Augment)
    torch.testing.assert_close(augment(obs).pixels(), obs.float() / 255)


@pytest.mark.parametrize(
    ("attempt", "seen"),
    [
        (lambda: RandomCrop(84)(torch.zeros(1, 1, 64, 100)), "Cannot crop 84 × 84 from frames of 64 × 100"),
        (lambda: CenterCrop(84)(torch.zeros(1, 1, 100, 64)), "Cannot crop 84 × 84 from frames of 100 × 64"),
        (lambda: RandomCrop(0), "size=0 must be at least 1"),
        (lambda: RandomShift(0), "pad=0 must be at least 1"),
        (lambda: RandomPlace(64)(torch.zeros(1, 1, 80, 80)), "Frames of 80 × 80 do not fit into 64 × 64"),
        (lambda: Intensity(0.5), "intensity=0.5 must be in [0, 0.5)"),
        (lambda: Intensity(-0.1), "intensity=-0.1"),
    ],
)
def test_an_impossible_augmentation_is_refused(attempt: Callable[[], object], seen: str):
    with pytest.raises(ValueError, match=re.escape(seen)):
        attempt()
