"""Augmentation. Geometry works on uint8, on any number of channels; intensity is a gain applied when pixels become float.

A geometric augmentation is any module (N, C, H, W) uint8 → (N, C, H', W') uint8 that treats every image on its own. Compose
with `nn.Sequential`; `nn.Identity()` leaves images as they are. All draw from the generator passed to them, or from torch's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from maskrl.config import Config


class RandomCrop(nn.Module):
    """Crop each image to `size` × `size` at a random position; all (H − size + 1)·(W − size + 1) positions are equally likely."""

    def __init__(self, size: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.size, self.generator = _positive("size", size), generator

    def forward(self, images: Tensor) -> Tensor:
        top, left = self.corners(images)
        return _windows(images, top, left, self.size, self.size)

    def corners(self, images: Tensor) -> Tensor:
        """Draw the position of each image's crop: (2, N), rows and columns."""
        n, _, height, width = _large_enough(images, self.size).shape
        rooms = (height - self.size + 1, width - self.size + 1)
        return torch.stack(
            [torch.randint(room, (n,), generator=self.generator, device=images.device) for room in rooms]
        )


class CenterCrop(nn.Module):
    """Crop to the middle `size` × `size` window: the input for acting when an agent learns from random crops."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = _positive("size", size)

    def forward(self, images: Tensor) -> Tensor:
        height, width = _large_enough(images, self.size).shape[-2:]
        top, left = (height - self.size) // 2, (width - self.size) // 2
        return images[..., top : top + self.size, left : left + self.size]


class RandomShift(nn.Module):
    """Shift every image by up to `pad` pixels each way, repeating its border; the size stays.

    `inplace`: the images may be overwritten, which saves a copy.
    """

    def __init__(self, pad: int = 4, generator: torch.Generator | None = None, *, inplace: bool = False) -> None:
        super().__init__()
        self.pad, self.generator, self.inplace = _positive("pad", pad), generator, inplace

    def forward(self, images: Tensor) -> Tensor:
        n, _, height, width = images.shape
        shifts = torch.randint(-self.pad, self.pad + 1, (2, n), generator=self.generator, device=images.device)
        if images.device.type == "cpu" and images.dtype == torch.uint8 and self.pad < min(height, width):
            images = images.contiguous()
            down, right = shifts.tolist()  # one call: calls into torch are slow with a cold cache
            return _shifted(images, down, right, out=images if self.inplace else torch.empty_like(images))
        top, left = shifts + self.pad
        return _windows(images, top, left, height, width, border=self.pad)


class RandomPlace(nn.Module):
    """Place each image at a random position in a frame of `size` × `size`, filled by repeating the image's border."""

    def __init__(self, size: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.size, self.generator = _positive("size", size), generator

    def forward(self, images: Tensor) -> Tensor:
        n, _, height, width = images.shape
        room = self.size - min(height, width)
        if room < 0:
            raise ValueError(
                f"Frames of {height} × {width} do not fit into {self.size} × {self.size}. Raise enlarge, or lower the crop."
            )
        top, left = torch.randint(room + 1, (2, n), generator=self.generator, device=images.device)
        return _windows(images, top, left, self.size, self.size, border=room)


class Intensity(nn.Module):
    """A brightness gain 1 + scale · clamp(n, −2, 2), n ~ N(0, 1); with scale 0.05 it lies in [0.9, 1.1]. Scale 0: no gain."""

    def __init__(self, scale: float = 0.05, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if not 0 <= scale < 0.5:
            raise ValueError(
                f"intensity={scale} must be in [0, 0.5): from 0.5 on, the gain could reach 0. The paper uses 0.05."
            )
        self.scale, self.generator = scale, generator

    def forward(self, shape: torch.Size, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        if self.scale == 0:
            return torch.ones(shape, dtype=dtype, device=device)
        noise = torch.randn(shape, generator=self.generator, dtype=dtype, device=device)
        return 1 + self.scale * noise.clamp_(-2, 2)


@dataclass(frozen=True)
class View:
    """Augmented observations, still uint8, each with the gain to apply when it becomes float."""

    obs: Tensor  # (…, C, H, W) uint8
    gain: Tensor  # (…,) float

    def __getitem__(self, rows: slice) -> "View":
        return View(self.obs[rows], self.gain[rows])

    def pixels(self) -> Tensor:
        """(…, C, H, W) float: [0, 1] times the gain; channels last in memory, the encoders' layout."""
        images, scale = self.obs.flatten(0, -4), (self.gain / 255).reshape(-1, 1, 1, 1)
        # Permute axes while a pixel is one byte: permuting floats would move four times as much.
        turned = images.contiguous(memory_format=torch.channels_last)
        pixels = turned.to(scale.dtype).mul_(scale)
        return pixels.view(*self.gain.shape, *pixels.shape[1:])  # splits the first axis only, so the layout stays


@dataclass(frozen=True)
class LateView:
    """A view whose crops are cut, and masked, only when they are asked for. In pieces, no copy of the whole batch is kept."""

    whole: Tensor  # (…, C, H, W) uint8, before the crop
    corner: Tensor  # (…, 2), top and left of each crop
    gain: Tensor  # (…,) float
    keep: Tensor  # (…, 1, H', W') bool, False at hidden pixels; an axis of 1 is shared
    paint: Tensor  # like `keep`, uint8: what hidden pixels show, 0 at all others

    @property
    def shape(self) -> torch.Size:
        """Of `obs`."""
        return self.whole.shape[:-2] + self.keep.shape[-2:]

    @property
    def obs(self) -> Tensor:
        """(…, C, H', W') uint8."""
        top, left = self.corner.flatten(0, -2).T
        cut = _windows(self.whole.flatten(0, -4), top, left, self.shape[-2], self.shape[-1])
        return cut.view(self.shape).mul_(self.keep).add_(self.paint)

    def pixels(self) -> Tensor:
        return View(self.obs, self.gain).pixels()

    def hidden(self, keep: Tensor, paint: Tensor) -> "LateView":
        """The same view through a mask."""
        return replace(self, keep=keep, paint=paint)


class Augment(nn.Module):
    """Move each observation separately and draw its gain: (…, C, H, W) uint8 → View. The frames of a stack move together."""

    def __init__(self, geometry: nn.Module, intensity: Intensity) -> None:
        super().__init__()
        self.geometry, self.intensity = geometry, intensity

    def forward(self, obs: Tensor, dtype: torch.dtype = torch.float32) -> View:
        return View(self.move(obs), self.intensity(obs.shape[:-3], dtype=dtype, device=obs.device))

    def late(self, obs: Tensor, dtype: torch.dtype = torch.float32) -> LateView:
        """The view of `forward`, from the same draws; a random crop that is the only geometry is cut later."""
        crop = self.geometry[0] if isinstance(self.geometry, nn.Sequential) and len(self.geometry) == 1 else None
        if isinstance(crop, RandomCrop):
            corners, height, width = crop.corners(obs.flatten(0, -4)), crop.size, crop.size
        else:
            obs = self.move(obs)
            *_, height, width = obs.shape
            corners = torch.zeros(2, obs.shape[:-3].numel(), dtype=torch.long, device=obs.device)
        gain = self.intensity(obs.shape[:-3], dtype=dtype, device=obs.device)
        keep = torch.ones(*[1] * (obs.ndim - 2), height, width, dtype=torch.bool, device=obs.device)
        return LateView(obs, corners.T.view(*gain.shape, 2), gain, keep, torch.zeros_like(keep, dtype=torch.uint8))

    def move(self, obs: Tensor) -> Tensor:
        """Apply the geometric augmentation, without a gain."""
        moved: Tensor = self.geometry(obs.flatten(0, -4))
        return moved.view(*obs.shape[:-3], *moved.shape[1:])


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(Config):
    """The paper's augmentation on DMControl; on Atari it is AugmentConfig(crop=None, shift=4)."""

    crop: int | None = 84  # side of a random crop
    shift: int | None = None  # largest random shift
    intensity: float = 0.05
    enlarge: int | None = None  # side of a frame in which the crop is placed at random (CURL on Atari)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.build()  # raises ValueError for impossible values

    def build(self, generator: torch.Generator | None = None, *, inplace: bool = False) -> Augment:
        """`inplace`: the observations may be overwritten."""
        crop = [] if self.crop is None else [RandomCrop(self.crop, generator)]
        shift = [] if self.shift is None else [RandomShift(self.shift, generator, inplace=inplace)]
        place = [] if self.enlarge is None else [RandomPlace(self.enlarge, generator)]
        return Augment(nn.Sequential(*crop, *shift, *place), Intensity(self.intensity, generator))

    def side(self, size: int) -> int:
        """The side of frames of this size after augmentation."""
        return self.enlarge or self.crop or size


def _windows(images: Tensor, top: Tensor, left: Tensor, height: int, width: int, *, border: int = 0) -> Tensor:
    """Cut the window at (top, left) out of each image, after widening it on all sides by `border` copies of its border."""
    n, here = len(images), images.device
    if here.type == "cpu":
        # Copy windows row by row: a gather by index copies byte by byte and is several times slower.
        images = _repeat_border(images, border) if border else images
        by_image, *strides = images.stride()
        starts = torch.arange(n) * by_image + top * strides[1] + left * strides[2]
        places = [images.storage_offset() + start for start in starts.tolist()]
        return torch.stack([images.as_strided((images.shape[1], height, width), strides, place) for place in places])
    lines = _lines.__wrapped__ if here.type == "meta" else _lines  # counts must not depend on earlier counts
    rows, columns = lines(images.shape[2:], (height, width), border, here)
    which = torch.arange(n, device=here).view(n, 1, 1)
    # One gather, whose result has its channels last in memory, as the encoders want them.
    return images[which, :, rows[top], columns[left]].permute(0, 3, 1, 2)


@lru_cache(maxsize=16)
def _lines(sides: tuple[int, int], window: tuple[int, int], border: int, device: torch.device) -> list[Tensor]:
    """The rows (tops, height, 1) and columns (lefts, 1, width) of an image that a window shows at each of its places."""
    found = []
    for side, length, shape in zip(sides, window, ((-1, window[0], 1), (-1, 1, window[1])), strict=True):
        starts = torch.arange(-border, side + border - length + 1, device=device)
        lines = starts[:, None] + torch.arange(length, device=device)
        found.append(lines.clamp_(0, side - 1).view(shape))
    return found


def _shifted(images: Tensor, down: Sequence[int], right: Sequence[int], *, out: Tensor) -> Tensor:
    """Shift images without building padded ones: move each image as one run of bytes, then fill its border.

    Works on flat numpy arrays, whose slices are cheaper than a tensor's. `out` may be the images themselves: the runs are copied by
    memmove, and the border is filled from moved pixels.
    """
    _, channels, height, width = images.shape
    maps, flat = out.numpy(), out.view(-1).numpy()
    old, new = images.view(-1).numpy().data, flat.data
    first, size = 0, channels * height * width
    for image, rows, columns in zip(maps, down, right, strict=True):
        end, start = first + size, rows * width + columns
        if start > 0:
            new[first : end - start] = old[first + start : end]
        else:
            new[first - start : end] = old[first : end + start]
        # Only the border holds pixels from a neighbouring row or another channel.
        if columns > 0:
            edge = flat[first + width - columns - 1 : end : width]
            for column in range(first + width - columns, first + width):
                flat[column:end:width] = edge
        elif columns < 0:
            edge = flat[first - columns : end : width]
            for column in range(first, first - columns):
                flat[column:end:width] = edge
        if rows > 0:
            image[:, height - rows :] = image[:, height - rows - 1, None]
        elif rows < 0:
            image[:, :-rows] = image[:, -rows, None]
        first = end
    return out


def _repeat_border(images: Tensor, pad: int) -> Tensor:
    """F.pad(mode="replicate") for uint8, which torch does not support."""
    n, channels, height, width = images.shape
    padded = images.new_empty(n, channels, height + 2 * pad, width + 2 * pad)
    rows = padded[:, :, pad : pad + height]
    rows[..., pad : pad + width] = images
    rows[..., :pad], rows[..., pad + width :] = images[..., :1], images[..., -1:]
    padded[:, :, :pad], padded[:, :, pad + height :] = rows[:, :, :1], rows[:, :, -1:]
    return padded


def _large_enough(images: Tensor, size: int) -> Tensor:
    height, width = images.shape[-2:]
    if min(height, width) < size:
        raise ValueError(
            f"Cannot crop {size} × {size} from frames of {height} × {width}. Render larger frames, crop less, or use a shift."
        )
    return images


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name}={value} must be at least 1 pixel; use None for no augmentation.")
    return value
