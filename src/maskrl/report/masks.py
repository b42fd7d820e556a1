"""The mask explorer: a page that shows what the encoder sees of a clip when MLR hides a part of it.

The page draws and never decides: every mask in it was drawn by the masker that trains, every crop and every gain by the
augmentation, each setting several times. A mask is kept as one bit per cube.
"""

import base64
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskrl.agents.base import Agent, Spaces
from maskrl.envs.base import episode_seed, require_extra
from maskrl.nn.augment import Augment
from maskrl.nn.masking import CubeMasker, MaskConfig
from maskrl.objectives.mlr import MLRConfig
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import NothingToDrawError, Replay
from maskrl.runs.build import build_agent, replay_size
from maskrl.runs.directory import Run, RunError, write_whole
from maskrl.runs.evaluate import Env
from maskrl.runs.loop import EVALUATION_SEED

STRATEGIES: tuple[Literal["cube", "spatial", "temporal"], ...] = ("cube", "spatial", "temporal")
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DRAWS = 6  # masks of every setting
FINEST = 20  # cells along a side, at most; the recipe's own patch may be finer
EPISODES = 100  # in which a clip is looked for


@dataclass(frozen=True)
class Footage:
    """K consecutive observations of an episode, and where they come from."""

    obs: Tensor  # (K, C, H, W) uint8
    source: str  # "random actions in the training environment, seed 1"
    features: Tensor | None = None  # (K, h, w) in [0, 1]: the encoder's map, a mean over its channels; of MLR-F alone

    def __post_init__(self) -> None:
        if self.obs.ndim != 4 or self.obs.dtype != torch.uint8:
            raise ValueError(f"Footage is uint8 (K, C, H, W); got {self.obs.dtype} of shape {tuple(self.obs.shape)}.")


# ── Where a clip comes from ───────────────────────────────────────────────────────────────────────────────────────────


def film_random(recipe: Recipe, *, start: int = 24) -> Footage:
    """Random actions in the training environment; the clip begins so many decisions after a reset, or as late as it can."""
    env = recipe.env.make(seed=recipe.seed, training=True)
    try:
        spaces, chance = Spaces.of(env), np.random.default_rng(recipe.seed)
        obs = _film(env, recipe.seed, _length(recipe), start, lambda _: spaces.random_action(chance))
        features = _feature_maps(recipe, obs, build_agent(recipe, env)) if _masks_features(recipe) else None
    finally:
        env.close()
    return Footage(obs, f"Random actions, seed {recipe.seed}.", features)


def film_agent(run: Run, recipe: Recipe, state: Mapping[str, Any], *, start: int = 24) -> Footage:
    """The agent of a checkpoint acts, without exploring, in an evaluation environment. `recipe` may have other masks."""
    env = recipe.env.make(seed=recipe.seed, training=False)
    try:
        agent = _agent_of(run, env, state)
        seed = recipe.seed + EVALUATION_SEED
        obs = _film(env, seed, _length(recipe), start, lambda obs: agent.policy().act(obs[None])[0])
        features = _feature_maps(recipe, obs, agent) if _masks_features(recipe) else None
    finally:
        env.close()
    frames = state["position"]["decisions"] * recipe.env.action_repeat
    return Footage(obs, f"The agent of {run.path}, trained for {frames:,} frames, acts.", features)


def film_replay(run: Run, recipe: Recipe, state: Mapping[str, Any]) -> Footage:
    """A clip from the middle of what the run has stored. Its files are read and left as they are."""
    env = recipe.env.make(seed=recipe.seed, training=True)
    try:
        replay = _open_replay(run, env, state)
        draw = replay.spread(3, span=_length(recipe))
        if not len(draw):
            raise NothingToDrawError(f"No stored episode of {run.path} has {_length(recipe)} decisions in a row.")
        middle = type(draw)(draw.starts[len(draw) // 2 :][:1], draw.weights[:1])
        obs = replay.clips(middle, length=_length(recipe)).obs[0]
        features = _feature_maps(recipe, obs, _agent_of(run, env, state)) if _masks_features(recipe) else None
    finally:
        env.close()
    return Footage(obs, f"From the replay of {run.path}, frame {int(middle.starts[0]):,} on.", features)


def _agent_of(run: Run, env: Env, state: Mapping[str, Any]) -> Agent:
    agent = build_agent(run.recipe, env)
    try:
        agent.load_state_dict(dict(state["agent"]))
    except (RuntimeError, KeyError, ValueError) as error:
        raise RunError(
            f"The agent of {run.path} was saved by another version of maskrl and cannot be built here: {error}\n"
            "Film its replay or random actions instead."
        ) from error
    return agent


def _open_replay(run: Run, env: Env, state: Mapping[str, Any]) -> Replay:
    recipe, folder = run.recipe, run.path / "replay"
    stored = recipe.replay.storage == "disk"
    if stored and not all((folder / name).exists() for name in ("frames.u8", "stamps.u32")):
        raise RunError(f"{folder} is gone. Film the agent or random actions instead.")
    replay = Replay(
        **replay_size(recipe, Spaces.of(env)),
        seed=recipe.seed,
        directory=folder if stored else None,
        pad=recipe.env.pad,
    )
    content = {name: value.numpy() if isinstance(value, Tensor) else value for name, value in state["replay"].items()}
    replay.load_state_dict(content)
    return replay


def _film(env: Env, seed: int, length: int, start: int, policy: Callable[[NDArray[np.uint8]], Any]) -> Tensor:
    """The first `length` observations in a row of which `start` come before, within an episode, or the end of a shorter one."""
    best: list[NDArray[np.uint8]] = []
    for number in range(EPISODES):
        obs, _ = env.reset(seed=episode_seed(seed, number))
        taken, over = [obs], False
        while not over and len(taken) < start + length:
            obs, _, terminated, truncated, _ = env.step(policy(obs))
            over = terminated or truncated
            taken += [] if over else [obs]  # a clip has an action for each of its observations: the last has none
        best = max(best, taken, key=len)
        if len(best) >= length:
            return torch.from_numpy(np.stack(best[-length:]))
    raise NothingToDrawError(
        f"No episode of {EPISODES} has {length} decisions: the longest has {len(best)}. Lower objective.clip_length."
    )


def _length(recipe: Recipe) -> int:
    return _objective(recipe).clip_length


def _objective(recipe: Recipe) -> MLRConfig:
    # The page explains MLR, its variants and their settings; no other objective has them.
    if not isinstance(recipe.objective, MLRConfig):
        raise ValueError(
            f"{recipe.name} is with {recipe.method} here, which hides nothing; the page shows the masks of MLR. Use method mlr."
        )
    return recipe.objective


def _masks_features(recipe: Recipe) -> bool:
    return _objective(recipe).corrupt == "features"


@torch.no_grad()
def _feature_maps(recipe: Recipe, obs: Tensor, agent: Agent) -> Tensor:
    """(K, h, w) in [0, 1]: the mean over channels of the encoder's last convolution, of the middle of every observation."""
    like = next(agent.encoder.parameters())
    crop = _objective(recipe).augment.crop or obs.shape[-1]
    edge = (obs.shape[-1] - crop) // 2
    middle = obs[..., edge : edge + crop, edge : edge + crop]
    maps = agent.encoder.features(middle.to(like.device, like.dtype) / 255).mean(dim=1).cpu()
    return (maps - maps.min()) / (maps.max() - maps.min()).clamp(min=1e-9)


# ── What the page knows ───────────────────────────────────────────────────────────────────────────────────────────────


def explore(recipe: Recipe, footage: Footage, *, note: str = "", command: str = "") -> dict[str, Any]:
    """All that the page draws, as plain values. `command`: what begins the line that trains with the masks on show."""
    objective = _objective(recipe)
    steps, stack = len(footage.obs), recipe.env.frame_stack
    pictures, stacks = _without_repeats(footage.obs, stack)
    of = objective.corrupt
    height, width = footage.obs.shape[-2:] if footage.features is None else footage.features.shape[-2:]
    patches = _patches(objective.mask, of, (height, width))
    divisors = [depth for depth in range(1, steps + 1) if steps % depth == 0]
    depths = sorted({*divisors, objective.mask.cube[0]})  # whether or not it divides them: spatial masks do not ask
    ratios = sorted({*RATIOS, objective.mask.ratio})
    return {
        "name": recipe.name,
        "profile": recipe.profile,
        "source": footage.source,
        "note": note,
        "command": command,
        "steps": steps,
        "stack": stack,
        "repeat": recipe.env.action_repeat,
        "of": of,
        "reconstruct": objective.reconstruct,
        "action_tokens": objective.action_tokens,
        "size": list(footage.obs.shape[-2:]),
        "frames": {"sheet": _png(pictures), "count": len(pictures), "of_step": stacks},
        "features": None if footage.features is None else _features(footage.features),
        "mask_size": [height, width],
        "fill": objective.mask.fill if of == "pixels" else 0,
        "strategies": list(STRATEGIES),
        "ratios": ratios,
        "ratio_keys": list(map(str, ratios)),  # as the keys of the masks and a command have them
        "depths": depths,
        "patches": patches,
        "draws": DRAWS,
        "masks": dict(_masks(objective.mask, of, (steps, height, width), ratios, depths, patches)),
        "chosen": _chosen(objective.mask, of),
        "own_patch": list(objective.mask.cube[1:]),
        "own": _own_words(objective),
        "augment": _augmentation(objective, footage.obs),
    }


def _patches(mask: MaskConfig, of: Literal["pixels", "features"], sides: tuple[int, int]) -> list[list[int]]:
    """Squares that divide the picture, and the recipe's own whether or not it does."""
    own = list(mask.cube[1:]) if of == "pixels" else [mask.feature_patch, mask.feature_patch]
    squares = [n for n in range(1, min(sides) // 2 + 1) if not any(side % n for side in sides)]
    coarse = [[n, n] for n in squares if max(sides) // n <= FINEST]
    return sorted(coarse if own in coarse else [*coarse, own])


def _chosen(mask: MaskConfig, of: Literal["pixels", "features"]) -> dict[str, Any]:
    patch = list(mask.cube[1:]) if of == "pixels" else [mask.feature_patch, mask.feature_patch]
    return {"strategy": mask.strategy, "ratio": mask.ratio, "depth": mask.cube[0], "patch": patch}


def _masks(
    mask: MaskConfig,
    of: Literal["pixels", "features"],
    shape: tuple[int, int, int],
    ratios: Sequence[float],
    depths: Sequence[int],
    patches: Sequence[Sequence[int]],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every setting by its key. A setting that the masker refuses has its words instead."""
    for ratio in ratios:
        for depth in depths:
            for height, width in patches:
                # What a strategy ignores is left out of its key: spatial masks are one step deep, temporal ones a frame wide.
                keys = {"cube": f"cube/{ratio}/{depth}/{height}x{width}"}
                keys |= {"spatial": f"spatial/{ratio}/{height}x{width}"} if depth == depths[0] else {}
                keys |= {"temporal": f"temporal/{ratio}/{depth}"} if [height, width] == list(patches[0]) else {}
                for strategy in STRATEGIES:
                    if strategy in keys:
                        side = {"feature_patch": height} if of == "features" else {}
                        cube = (depth, height, width)
                        yield keys[strategy], _drawn(mask, of, shape, strategy=strategy, ratio=ratio, cube=cube, **side)


def _drawn(
    mask: MaskConfig, of: Literal["pixels", "features"], shape: tuple[int, int, int], **setting: Any
) -> dict[str, Any]:
    try:
        masker = replace(mask, **setting).build(of=of)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a patch does not divide the picture: the page shows it
            return draw_masks(masker, shape, DRAWS)
    except ValueError as error:
        return {"refused": str(error)}


def draw_masks(masker: CubeMasker, shape: tuple[int, int, int], draws: int) -> dict[str, Any]:
    """So many masks of one setting for clips of K × H × W: the grid, and a bit for every cube, 1 = visible."""
    grid = masker.grid(*shape)
    keeps = replace(masker, per_clip=True)(torch.empty(()).expand(draws, shape[0], 1, *shape[1:]))[:, :, 0].numpy()
    cells = keeps[np.ix_(range(draws), *map(first_of_cells, shape, grid))]
    return {"grid": list(grid), "keep": [_bits(cell) for cell in cells]}


def first_of_cells(length: int, cells: int) -> list[int]:
    """Where each cell begins along a side. The masker puts place p into cell p · cells // length."""
    return [-(-cell * length // cells) for cell in range(cells)]


def _bits(cells: NDArray[np.bool_]) -> str:
    return base64.b64encode(np.packbits(cells).tobytes()).decode()


def _own_words(objective: MLRConfig) -> list[str]:
    """What else a reader should know of this recipe's masks."""
    mask = objective.mask
    share = "Every clip of a batch has its own mask." if mask.per_clip else "All clips of a batch share one mask."
    words = [f"{share} It is drawn anew for every update."]
    if mask.strategy != "temporal":
        words.append(
            "Every block of steps hides the same number of cubes."
            if mask.balanced
            else "The share is kept over the whole clip, so blocks of steps differ."
        )
    words.append(f"The number of hidden cubes is rounded {'down' if mask.rounding == 'floor' else 'up'}.")
    if objective.masked_input_scale == "raw255":
        words.append("The masked observations are not divided by 255, as in the released Atari code.")
    return words


def _augmentation(objective: MLRConfig, obs: Tensor) -> dict[str, Any]:
    """Where the augmentation has looked at each observation, and how bright: asked of the real one, by a map of places."""
    augment: Augment = objective.augment.build()
    steps, (height, width) = len(obs), obs.shape[-2:]
    rows, columns = torch.arange(height)[:, None].expand(height, width), torch.arange(width).expand(height, width)
    view = augment(torch.stack([rows, columns]).expand(steps, 2, height, width))
    tall, wide = view.obs.shape[-2:]
    # In the middle of a picture no border is repeated, so the place seen there tells how far the whole was moved.
    moved = view.obs[:, :, tall // 2, wide // 2] - torch.tensor([tall // 2, wide // 2])
    settings = objective.augment
    words = [
        *([f"a random crop of {settings.crop} × {settings.crop} pixels"] if settings.crop is not None else []),
        *([f"a random shift of up to {settings.shift} pixels each way"] if settings.shift is not None else []),
        *([f"a brightness of {1 - 2 * settings.intensity:.3g} to {1 + 2 * settings.intensity:.3g} times"]
          if settings.intensity else []),
    ]  # fmt: skip
    return {"size": [tall, wide], "moved": moved.tolist(), "gains": view.gain.tolist(), "words": words}


# ── Pictures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _without_repeats(obs: Tensor, stack: int) -> tuple[NDArray[np.uint8], list[list[int]]]:
    """The distinct frames (N, H, W, 3), and which of them each step's stack has, oldest first."""
    steps, channels, height, width = obs.shape
    frames = obs.numpy().reshape(steps * stack, channels // stack, height, width)
    numbers: dict[bytes, int] = {}
    order = [numbers.setdefault(frame.tobytes(), len(numbers)) for frame in frames]
    distinct = np.stack([frames[order.index(number)] for number in range(len(numbers))])
    colour = np.broadcast_to(distinct, (len(distinct), 3, height, width)).transpose(
        0, 2, 3, 1
    )  # grey is thrice the same
    return colour, np.array(order).reshape(steps, stack).tolist()


def _features(maps: Tensor) -> dict[str, Any]:
    grey = (maps * 255).round().to(torch.uint8).numpy()
    return {"sheet": _png(np.repeat(grey[..., None], 3, axis=-1)), "size": list(maps.shape[-2:])}


def _png(pictures: NDArray[np.uint8]) -> str:
    """(N, H, W, 3) → one picture of them, below each other, as a data address. Without loss: pixels are compared."""
    require_extra("PIL", "report")
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pictures.reshape(-1, *pictures.shape[2:]))).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


# ── The page ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_page(data: Mapping[str, Any], path: Path) -> None:
    """One file that needs no other; all of it or nothing."""
    require_extra("jinja2", "report")
    from jinja2 import Environment

    template = (resources.files("maskrl.report") / "page" / "masks.html").read_text(encoding="utf-8")
    text = Environment(autoescape=True).from_string(template).render(data=data)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
