"""The mask explorer: a page that shows the masked clips that the encoder gets.

The page only draws: its masks come from the masker used in training, its crops and gains from the augmentation, several per
setting. A mask is stored as one bit per cube.
"""

import base64
import io
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskrl.envs.base import require_extra
from maskrl.files import write_whole
from maskrl.nn.augment import Augment
from maskrl.nn.masking import CubeMasker, MaskConfig
from maskrl.objectives.mlr import MLRConfig
from maskrl.recipes.schema import Recipe
from maskrl.report.film import Footage, objective_of

Of = Literal["pixels", "features"]
Shape = tuple[int, int, int]  # steps, height, width

STRATEGIES: tuple[Literal["cube", "spatial", "temporal"], ...] = ("cube", "spatial", "temporal")
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DRAWS = 6  # masks per setting
FINEST = 20  # maximum cells along a side; the recipe's own patch may be finer


def explore(recipe: Recipe, footage: Footage, *, note: str = "", command: str = "") -> dict[str, Any]:
    """The data of the page, as plain values. `command`: the beginning of the command that trains with the masks shown."""
    objective = objective_of(recipe)
    mask, of = objective.mask, objective.corrupt
    pictures, stacks = _without_repeats(footage.obs, recipe.env.frame_stack)
    height, width = footage.obs.shape[-2:] if footage.features is None else footage.features.shape[-2:]
    return {
        "name": recipe.name,
        "profile": recipe.profile,
        "source": footage.source,
        "note": note,
        "command": command,
        "steps": len(footage.obs),
        "stack": recipe.env.frame_stack,
        "repeat": recipe.env.action_repeat,
        "of": of,
        "reconstruct": objective.reconstruct,
        "action_tokens": objective.action_tokens,
        "size": list(footage.obs.shape[-2:]),
        "frames": {"sheet": _png(pictures), "count": len(pictures), "of_step": stacks},
        "features": None if footage.features is None else _features(footage.features),
        "mask_size": [height, width],
        "fill": mask.fill if of == "pixels" else 0,
        "strategies": list(STRATEGIES),
        **_choices(mask, of, (len(footage.obs), height, width)),
        "draws": DRAWS,
        "own_patch": list(mask.cube[1:]),
        "own": _own_words(objective),
        "augment": _augmentation(objective, footage.obs),
    }


def _choices(mask: MaskConfig, of: Of, shape: Shape) -> dict[str, Any]:
    """The choices on the page, including the recipe's own values, and the masks of every choice."""
    steps, *sides = shape
    divisors = [depth for depth in range(1, steps + 1) if steps % depth == 0]
    depths = sorted({*divisors, mask.cube[0]})  # even if it does not divide them: spatial masks ignore it
    squares = [n for n in range(1, min(sides) // 2 + 1) if not any(side % n for side in sides)]
    coarse = [[n, n] for n in squares if max(sides) // n <= FINEST]
    own = list(mask.cube[1:]) if of == "pixels" else [mask.feature_patch, mask.feature_patch]
    patches = sorted(coarse if own in coarse else [*coarse, own])
    ratios = sorted({*RATIOS, mask.ratio})
    return {
        "ratios": ratios,
        "ratio_keys": list(map(str, ratios)),  # as in the keys of masks and in commands
        "depths": depths,
        "patches": patches,
        "masks": dict(_masks(mask, of, shape, itertools.product(ratios, depths, patches))),
        "chosen": {"strategy": mask.strategy, "ratio": mask.ratio, "depth": mask.cube[0], "patch": own},
    }


def _masks(
    mask: MaskConfig, of: Of, shape: Shape, settings: Iterable[tuple[float, int, Sequence[int]]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The masks of every setting by key. A setting that the masker rejects has its error instead."""
    seen = set[str]()
    for ratio, depth, (height, width) in settings:
        # A key lacks values that its strategy ignores: spatial masks are one step deep, temporal ones a frame wide.
        ignoring = {"cube": f"{depth}/{height}x{width}", "spatial": f"{height}x{width}", "temporal": f"{depth}"}
        for strategy in STRATEGIES:
            key = f"{strategy}/{ratio}/{ignoring[strategy]}"
            if key not in seen:
                seen.add(key)
                side = {"feature_patch": height} if of == "features" else {}
                yield key, _drawn(mask, of, shape, strategy=strategy, ratio=ratio, cube=(depth, height, width), **side)


def _drawn(mask: MaskConfig, of: Of, shape: Shape, **setting: Any) -> dict[str, Any]:
    try:
        masker = replace(mask, **setting).build(of=of)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about patches that do not divide the picture: the page shows it
            return draw_masks(masker, shape, DRAWS)
    except ValueError as error:
        return {"refused": str(error)}


def draw_masks(masker: CubeMasker, shape: Shape, draws: int) -> dict[str, Any]:
    """Draw masks of one setting for clips of K × H × W: the grid, and a bit per cube, 1 = visible."""
    grid = masker.grid(*shape)
    keeps = replace(masker, per_clip=True)(torch.empty(()).expand(draws, shape[0], 1, *shape[1:]))[:, :, 0].numpy()
    cells = keeps[np.ix_(range(draws), *map(first_of_cells, shape, grid))]
    return {"grid": list(grid), "keep": [base64.b64encode(np.packbits(cell).tobytes()).decode() for cell in cells]}


def first_of_cells(length: int, cells: int) -> list[int]:
    """The first pixel of each cell along a side. The masker puts pixel p into cell p · cells // length."""
    return [-(-cell * length // cells) for cell in range(cells)]


def _own_words(objective: MLRConfig) -> list[str]:
    """Notes on this recipe's masks."""
    mask = objective.mask
    share = "Every clip of a batch has its own mask." if mask.per_clip else "All clips of a batch share one mask."
    words = [f"{share} A new one is drawn for every update."]
    if mask.strategy != "temporal":
        words.append(
            "Every block of steps hides the same number of cubes."
            if mask.balanced
            else "The ratio holds over the whole clip, so blocks of steps differ."
        )
    words.append(f"The number of hidden cubes is rounded {'down' if mask.rounding == 'floor' else 'up'}.")
    if objective.masked_input_scale == "raw255":
        words.append("The masked observations are not divided by 255, as in the released Atari code.")
    return words


def _augmentation(objective: MLRConfig, obs: Tensor) -> dict[str, Any]:
    """The window and the gain of each observation, from the real augmentation applied to a map of positions."""
    augment: Augment = objective.augment.build()
    steps, (height, width) = len(obs), obs.shape[-2:]
    rows, columns = torch.arange(height)[:, None].expand(height, width), torch.arange(width).expand(height, width)
    view = augment(torch.stack([rows, columns]).expand(steps, 2, height, width))
    tall, wide = view.obs.shape[-2:]
    # No border is repeated in the middle of a picture, so the position there shows the shift of the whole.
    moved = view.obs[:, :, tall // 2, wide // 2] - torch.tensor([tall // 2, wide // 2])
    crop, shift, intensity = objective.augment.crop, objective.augment.shift, objective.augment.intensity
    words = [f"a random crop of {crop} × {crop} pixels"] if crop is not None else []
    words += [f"a random shift of up to {shift} pixels each way"] if shift is not None else []
    words += [f"a brightness of {1 - 2 * intensity:.3g} to {1 + 2 * intensity:.3g} times"] if intensity else []
    return {"size": [tall, wide], "moved": moved.tolist(), "gains": view.gain.tolist(), "words": words}


def _without_repeats(obs: Tensor, stack: int) -> tuple[NDArray[np.uint8], list[list[int]]]:
    """The distinct frames (N, H, W, 3), and the indices of each step's stack, oldest first."""
    steps, channels, height, width = obs.shape
    frames = obs.numpy().reshape(steps * stack, channels // stack, height, width)
    numbers: dict[bytes, int] = {}
    order = [numbers.setdefault(frame.tobytes(), len(numbers)) for frame in frames]
    distinct = np.stack([frames[order.index(number)] for number in range(len(numbers))])
    colour = np.broadcast_to(distinct, (len(distinct), 3, height, width))  # grey: three equal channels
    return colour.transpose(0, 2, 3, 1), np.array(order).reshape(steps, stack).tolist()


def _features(maps: Tensor) -> dict[str, Any]:
    grey = (maps * 255).round().to(torch.uint8).numpy()
    return {"sheet": _png(np.repeat(grey[..., None], 3, axis=-1)), "size": list(maps.shape[-2:])}


def _png(pictures: NDArray[np.uint8]) -> str:
    """(N, H, W, 3) → one picture with all of them below each other, as a data URL. Lossless, because pixels are compared."""
    require_extra("PIL", "report")
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pictures.reshape(-1, *pictures.shape[2:]))).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def write_page(data: Mapping[str, Any], path: Path) -> None:
    """Write the page as one self-contained file; the whole file or nothing."""
    require_extra("jinja2", "report")
    from jinja2 import Environment

    template = (resources.files("maskrl.report") / "page" / "masks.html").read_text(encoding="utf-8")
    text = Environment(autoescape=True).from_string(template).render(data=data)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
