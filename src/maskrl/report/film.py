"""The clip of the mask explorer, from random actions, a run's agent, or a run's replay."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskrl.agents.base import Spaces
from maskrl.envs.base import episode_seed, rows_of
from maskrl.nn.encoders import Encoder
from maskrl.objectives.mlr import MLRConfig
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import NothingToDrawError
from maskrl.runs.build import build_agent, build_replay
from maskrl.runs.directory import Run, RunError
from maskrl.runs.evaluate import Env
from maskrl.runs.loop import EVALUATION_SEED
from maskrl.runs.policy import policy_of
from maskrl.runs.state import as_arrays

EPISODES = 100  # to search for a clip


@dataclass(frozen=True)
class Footage:
    """K consecutive observations of an episode, and where they come from."""

    obs: Tensor  # (K, C, H, W) uint8
    source: str  # "Random actions, seed 1."
    features: Tensor | None = None  # (K, h, w) in [0, 1]: the encoder's map, mean over channels; only for MLR-F

    def __post_init__(self) -> None:
        if self.obs.ndim != 4 or self.obs.dtype != torch.uint8:
            raise ValueError(f"Footage is uint8 (K, C, H, W); got {self.obs.dtype} of shape {tuple(self.obs.shape)}.")


def film_random(recipe: Recipe, *, start: int = 24) -> Footage:
    """Film random actions in the training environment. The clip begins `start` decisions after a reset, or as late as possible."""
    with closing(recipe.env.make(seed=recipe.seed, training=True)) as env:
        spaces, chance = Spaces.of(env), np.random.default_rng(recipe.seed)
        obs = _film(env, recipe.seed, objective_of(recipe).clip_length, start, lambda *_: spaces.random_action(chance))
        return _footage(recipe, obs, f"Random actions, seed {recipe.seed}.", lambda: build_agent(recipe, env).encoder)


def film_agent(run: Run, recipe: Recipe, state: Mapping[str, Any], *, start: int = 24) -> Footage:
    """Film a checkpoint's agent, without exploration, in an evaluation environment. `recipe` may have other masks."""
    with closing(recipe.env.make(seed=recipe.seed, training=False)) as env:
        policy, seed = policy_of(run.recipe, dict(state)), recipe.seed + EVALUATION_SEED
        length = objective_of(recipe).clip_length
        obs = _film(env, seed, length, start, lambda obs, rows: policy.network.act(obs[None], rows)[0])
        source = f"The agent of {run.path}, trained for {policy.clock.frames:,} frames."
        return _footage(recipe, obs, source, lambda: policy.network.encoder)


def film_replay(run: Run, recipe: Recipe, state: Mapping[str, Any]) -> Footage:
    """Take a clip from the middle of the run's replay. Does not change its files."""
    folder, length = run.path / "replay", objective_of(recipe).clip_length
    places = [""] if run.recipe.env.parallel == 1 else [f"{place}-" for place in range(run.recipe.env.parallel)]
    on_disk = run.recipe.replay.storage == "disk"
    files = [place + name for place in places for name in ("frames.u8", "stamps.u32")] if on_disk else []
    if not all((folder / name).exists() for name in files):
        raise RunError(f"{folder} is gone. Film the agent or random actions instead.")
    with closing(recipe.env.make(seed=recipe.seed, training=True)) as env:
        replay = build_replay(run.recipe, env, run, mend=False)
        replay.load_state_dict(as_arrays(state["replay"]))
        draw = replay.spread(3, span=length)
        if not len(draw):
            raise NothingToDrawError(f"No stored episode of {run.path} has {length} decisions in a row.")
        middle = type(draw)(draw.starts[len(draw) // 2 :][:1], draw.weights[:1])
        source = f"From the replay of {run.path}, frame {int(middle.starts[0]):,} on."
        obs = replay.clips(middle, length=length).obs[0]
        return _footage(recipe, obs, source, lambda: policy_of(run.recipe, dict(state)).network.encoder)


def _film(env: Env, seed: int, length: int, start: int, policy: Callable[..., Any]) -> Tensor:
    """`length` consecutive observations of an episode, `start` decisions after its beginning; the end of a shorter episode."""
    best: list[NDArray[np.uint8]] = []
    for number in range(EPISODES):
        obs, info = env.reset(seed=episode_seed(seed, number))
        taken, over = [obs], False
        while not over and len(taken) < start + length:
            obs, _, terminated, truncated, info = env.step(policy(obs, rows_of(info)))
            over = terminated or truncated
            taken += [] if over else [obs]  # the last observation has no action, so it cannot be in a clip
        best = max(best, taken, key=len)
        if len(best) >= length:
            return torch.from_numpy(np.stack(best[-length:]))
    raise NothingToDrawError(
        f"No episode of {EPISODES} has {length} decisions: the longest has {len(best)}. Lower objective.clip_length."
    )


@torch.no_grad()
def _footage(recipe: Recipe, obs: Tensor, source: str, encoder_of: Callable[[], Encoder]) -> Footage:
    """The clip and, if features are masked, the mean over channels of the encoder's last convolution, scaled to [0, 1].

    The encoder gets the middle of every observation.
    """
    objective = objective_of(recipe)
    if objective.corrupt != "features":
        return Footage(obs, source)
    encoder = encoder_of()
    like, crop = next(encoder.parameters()), objective.augment.crop or obs.shape[-1]
    edge = (obs.shape[-1] - crop) // 2
    middle = obs[..., edge : edge + crop, edge : edge + crop]
    maps = encoder.features(middle.to(like.device, like.dtype) / 255).mean(dim=1).cpu()
    return Footage(obs, source, (maps - maps.min()) / (maps.max() - maps.min()).clamp(min=1e-9))


def objective_of(recipe: Recipe) -> MLRConfig:
    # The page explains only MLR, its variants and their settings.
    if not isinstance(recipe.objective, MLRConfig):
        raise ValueError(
            f"{recipe.name} has method {recipe.method}, which hides no cubes; the page shows MLR's cubes. Use method mlr."
        )
    return recipe.objective
