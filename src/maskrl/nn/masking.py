"""Masks of space-time cubes of a clip (paper, section 3.2 (i), and its ablation of masking strategies)."""

import math
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import torch
from torch import Tensor

from maskrl.config import Config


class Masker(Protocol):
    """Draws a mask `keep` for a clip, and paints over the pixels that are not kept."""

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, K, C, H, W) → keep (1 or B, K, 1, H, W) bool, True = visible."""
        ...

    def hide(self, x: Tensor, keep: Tensor) -> Tensor:
        """`x`, painted over where `keep` is False."""
        ...


@dataclass(frozen=True)
class CubeMasker:
    """Cut the clip into cubes of k steps × h × w pixels and hide a random share of them.

    The three strategies of the paper are three shapes of cube: `CubeMasker((8, 10, 10))`, `CubeMasker.spatial(10)` and
    `CubeMasker.temporal(8)`. All channels, and so all frames of a stack, share a cube.
    """

    cube: tuple[int, int | None, int | None] = (8, 10, 10)  # k × h × w; None is the whole side of the frame
    ratio: float = 0.5  # η, the hidden share of the cubes
    balanced: bool = True  # hide exactly η in every block of k steps (released code); False: η of the whole clip
    rounding: Literal["floor", "ceil"] = "floor"  # of η · number of cubes
    per_clip: bool = False  # False: one mask shared by the batch (released code); True: one for every clip
    fill: int = 0  # value of hidden pixels in 0..255; white in the paper's figure, black in its code

    def __post_init__(self) -> None:
        sides = self.cube if isinstance(self.cube, tuple | list) else ()
        if len(sides) != 3 or any(side is not None and side < 1 for side in sides) or sides[0] is None:
            raise ValueError(
                f"cube={self.cube} must be (steps, height, width) with every side at least 1 "
                "(height and width may be None, the whole frame)."
            )
        if not 0 < self.ratio < 1:
            raise ValueError(
                f"ratio={self.ratio} must lie strictly between 0 (nothing hidden) and 1 (everything hidden); the paper uses 0.5."
            )
        if self.rounding not in ("floor", "ceil"):
            raise ValueError(f"rounding={self.rounding!r} must be 'floor' or 'ceil'.")
        if not 0 <= self.fill <= 255:
            raise ValueError(f"fill={self.fill} must be a pixel value from 0 (black) to 255 (white).")

    @classmethod
    def spatial(cls, patch: int, **options: object) -> "CubeMasker":
        """MLR-S: patches drawn separately for each step."""
        return cls((1, patch, patch), **options)  # type: ignore[arg-type]

    @classmethod
    def temporal(cls, depth: int, **options: object) -> "CubeMasker":
        """MLR-T: whole segments of `depth` steps. One cube fills a block, so the ratio holds over the whole clip."""
        return cls((depth, None, None), balanced=False, **options)  # type: ignore[arg-type]

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, K, C, H, W) → keep (1 or B, K, 1, H, W) bool, True = visible. Default generator: torch's own."""
        if x.ndim != 5:
            raise ValueError(f"A masker takes clips of shape (B, K, C, H, W); got {tuple(x.shape)}.")
        clips, steps, _, height, width = x.shape
        grid = blocks, rows, columns = self.grid(steps, height, width)
        draws = clips if self.per_clip else 1
        shape = (draws, blocks, rows * columns) if self.balanced else (draws, blocks * rows * columns)
        order = (
            torch.rand(shape, generator=generator, device=x.device).argsort(dim=-1).argsort(dim=-1)
        )  # a random rank for every cube
        keep = (order >= self._hidden_cubes(shape[-1])).flatten(1)
        return keep[:, _cube_of((steps, height, width), grid, x.device)].unsqueeze(2)

    def hide(self, x: Tensor, keep: Tensor) -> Tensor:
        """`x` with `fill` wherever `keep` is False. Any dtype: pixels, or feature maps when fill is 0."""
        # For fill 0, multiply: about 20 times faster on a CPU than torch.where.
        return x * keep if self.fill == 0 else torch.where(keep, x, self.fill)

    def grid(self, steps: int, height: int, width: int) -> tuple[int, int, int]:
        """The number of cubes along time, height and width. A patch that does not divide a side is stretched to fit."""
        blocks = self.blocks(steps)
        tall, wide = self.cube[1] or height, self.cube[2] or width
        if tall > height or wide > width:
            raise ValueError(
                f"A cube of {tall} × {wide} pixels is larger than the frame of {height} × {width}. Lower mask.cube."
            )
        rows, columns = height // tall, width // wide
        if height % tall or width % wide:
            hidden = self.hidden_fraction(blocks, rows * columns)
            warnings.warn(
                f"A patch of {tall} × {wide} does not divide the frame of {height} × {width}: its {rows} × {columns} cells are "
                f"{height / rows:.4g} × {width / columns:.4g} pixels on average, and {hidden:.1%} of them are hidden.",
                stacklevel=3,
            )
        return blocks, rows, columns

    def blocks(self, steps: int) -> int:
        """The number of cubes along a clip of `steps` steps."""
        depth = self.cube[0]
        if depth > steps:
            raise ValueError(
                f"A cube of {depth} steps is longer than the clip of {steps}. Lower mask.cube[0] or raise clip_length."
            )
        if steps % depth:
            raise ValueError(
                f"clip_length={steps} is not a multiple of the cube's depth {depth}, so the last block would be cut. "
                f"Use a depth that divides {steps}, or a clip_length of {steps // depth * depth} or "
                f"{(steps // depth + 1) * depth}."
            )
        return steps // depth

    def hidden_fraction(self, blocks: int, cells: int) -> float:
        """The true hidden share of `blocks` temporal blocks of `cells` cubes each, after rounding."""
        cubes = cells if self.balanced else blocks * cells
        return self._hidden_cubes(cubes) / cubes

    def _hidden_cubes(self, cubes: int) -> int:
        # 0.29 · 100 is 28.999… in floating point: remove that error before rounding down or up.
        exact = round(self.ratio * cubes, 9)
        hidden = math.floor(exact) if self.rounding == "floor" else math.ceil(exact)
        if not 0 < hidden < cubes:
            raise ValueError(
                f"ratio={self.ratio} of {cubes} cubes, rounded by {self.rounding}, hides {hidden}: nothing is left to "
                f"{'predict' if hidden == 0 else 'see'}. Use smaller cubes, another ratio or the other rounding."
            )
        return hidden


@dataclass(frozen=True)
class WalkMasker(CubeMasker):
    """MOOSS's mask: a random walk over the cubes hides those that it visits. All clips of a batch share one walk.

    It starts in the middle and moves to any of the 26 neighbours, or stays. So the hidden cubes are connected in space and time,
    while those of `CubeMasker` are scattered.
    """

    cube: tuple[int, int | None, int | None] = (8, 7, 7)
    balanced: bool = False

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        _, steps, _, height, width = x.shape
        grid = self.grid(steps, height, width)
        keep = torch.ones(math.prod(grid), dtype=torch.bool)
        where = torch.device("cpu") if x.is_meta else x.device  # a meta tensor has no device for the draws
        keep[self._visited(grid, generator, where)] = False
        return keep.to(x.device)[_cube_of((steps, height, width), grid, x.device)][None, :, None]

    def _visited(
        self, grid: tuple[int, int, int], generator: torch.Generator | None, device: torch.device
    ) -> list[int]:
        """The first cubes of the walk, up to the number to hide."""
        (blocks, rows, columns), wanted = grid, self._hidden_cubes(math.prod(grid))
        block, row, column = (side // 2 for side in grid)
        seen = {(block * rows + row) * columns + column: None}
        while len(seen) < wanted:
            moves = torch.randint(-1, 2, (1024, 3), generator=generator, device=device).tolist()
            for down, across, along in moves:
                there = (block + down, row + across, column + along)
                # A step off the grid is drawn again, so all neighbours that exist are equally likely.
                if 0 <= there[0] < blocks and 0 <= there[1] < rows and 0 <= there[2] < columns:
                    block, row, column = there
                    seen[(block * rows + row) * columns + column] = None
                    if len(seen) == wanted:
                        break
        return list(seen)


@dataclass(frozen=True, kw_only=True)
class MaskConfig(Config):
    """Settings of a mask; see `CubeMasker`."""

    strategy: Literal["cube", "spatial", "temporal", "walk"] = "cube"  # MLR, MLR-S, MLR-T, MOOSS
    cube: tuple[int, int, int] = (8, 10, 10)  # k × h × w; spatial ignores k, temporal h and w
    ratio: float = 0.5  # η
    balanced: bool = True  # η in every block of k steps; temporal masks and walks are always drawn over the clip
    rounding: Literal["floor", "ceil"] = "floor"
    per_clip: bool = False
    fill: int = 0
    feature_patch: int = 5  # side of a cube when feature maps are masked: 5 map cells ≙ 10 pixels at stride 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.build()  # raises ValueError for impossible values
        self.build(of="features")

    def build(self, *, of: Literal["pixels", "features"] = "pixels") -> CubeMasker:
        depth, height, width = self.cube if of == "pixels" else (self.cube[0], self.feature_patch, self.feature_patch)
        sides: dict[str, tuple[int, int | None, int | None]] = {
            "cube": (depth, height, width),
            "spatial": (1, height, width),
            "temporal": (depth, None, None),
            "walk": (depth, height, width),
        }
        kind = WalkMasker if self.strategy == "walk" else CubeMasker
        return kind(
            sides[self.strategy],
            ratio=self.ratio,
            balanced=self.balanced and self.strategy not in ("temporal", "walk"),
            rounding=self.rounding,
            per_clip=self.per_clip,
            fill=self.fill if of == "pixels" else 0,
        )


@lru_cache(maxsize=16)
def _cube_of(sides: tuple[int, int, int], grid: tuple[int, int, int], device: torch.device) -> Tensor:
    """The index of each pixel's cube, (K, H, W), by nearest neighbour, as the released code enlarges its grid."""
    step, row, column = (
        torch.arange(side, device=device) * cells // side for side, cells in zip(sides, grid, strict=True)
    )
    return (step[:, None, None] * grid[1] + row[:, None]) * grid[2] + column
