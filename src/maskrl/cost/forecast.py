"""Forecast the memory and disk of a run before it starts."""

import shutil
import sys
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch

from maskrl.agents.base import Agent, Spaces
from maskrl.machine import free_memory
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Replay
from maskrl.runs import checkpoint, encoder_file
from maskrl.runs.build import device_of, replay_size
from maskrl.runs.directory import RunError, encoder_path
from maskrl.runs.trial import require_numerics
from maskrl.words import size

META = torch.device("meta")


@dataclass(frozen=True)
class Forecast:
    """The bytes that a run will take. Free amounts are None if the system does not report them."""

    replay: int
    disk: int  # in addition to the present run directory, including checkpoints
    disk_free: int
    memory: int
    memory_free: int | None


def forecast(recipe: Recipe, path: Path) -> Forecast:
    """Forecast a run from its environment and a blank agent; raise RunError if it cannot run on this machine."""
    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise RunError("device=cuda, but torch sees no CUDA device here. Use device=cpu, or install torch with CUDA.")
    with closing(recipe.env.make(seed=recipe.seed, training=True)) as env:
        spaces = Spaces.of(env)
    agent = blank_agent(recipe, spaces)
    takes = takes_of(recipe, spaces, agent)
    if (encoder := encoder_path(recipe)) is not None and not checkpoint.checkpoints(path / "checkpoints"):
        encoder_file.fitting(encoder, agent.encoder)  # also raises its errors

    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    disk_free, memory_free = shutil.disk_usage(there).free, free_memory()
    had = sum(file.stat().st_size for file in (path / "replay").glob("*")) if recipe.replay.storage == "disk" else 0
    needs = Forecast(takes.replay, takes.disk - min(had, takes.replay), disk_free, takes.memory, memory_free)
    advice = "Lower replay.capacity (the paper keeps 100,000 decisions) or the budget."
    if needs.memory_free is not None and needs.memory > needs.memory_free:
        raise RunError(
            f"The replay will take {size(needs.memory)} of memory, twice its size while a checkpoint is made; "
            f"{size(needs.memory_free)} is free. {advice} Or use replay.storage=disk."
        )
    if needs.disk > needs.disk_free:
        raise RunError(
            f"The replay and the checkpoints will take {size(needs.disk)} on the disk of {there}, which has "
            f"{size(needs.disk_free)} free. "
            f"{advice} Or choose a --run-dir on a larger disk."
        )
    _require_room_for_a_batch(recipe, spaces, memory_free)
    require_numerics(recipe, device_of(recipe).type)
    return needs


def _require_room_for_a_batch(recipe: Recipe, spaces: Spaces, free: int | None) -> None:
    """Raise RunError if the frames of one batch do not fit into memory."""
    length = recipe.objective.needs.clip_length if recipe.objective is not None else 0
    decisions = recipe.frames // recipe.env.action_repeat
    stored = min(decisions, recipe.replay.capacity)
    if length > stored and recipe.agent.updates_by(decisions) > 0:
        raise RunError(
            f"Clips of {length:,} decisions cannot be drawn from a replay that holds {stored:,}. Lower objective.clip_length, or "
            "raise the budget and replay.capacity."
        )
    piece = min(recipe.agent.batch_size, recipe.agent.micro_batch or sys.maxsize)  # becomes float32, once
    frames = (recipe.agent.batch_size * 2 + length + 4 * piece) * prod(spaces.obs)
    if free is not None and frames > free:
        raise RunError(
            f"agent.batch_size={recipe.agent.batch_size:,}"
            + (f" and clips of {length:,}" if length else "")
            + f": the frames of one update alone take {size(frames)} of memory; {size(free)} is free. Lower them."
        )


def blank_agent(recipe: Recipe, spaces: Spaces) -> Agent:
    """The agent on torch's meta device, without data, which takes no time and no memory."""
    with META:
        return recipe.agent.build(spaces, recipe.objective, META)


class Takes(NamedTuple):
    """The bytes of a whole run."""

    replay: int
    disk: int  # the replay, if on disk, and checkpoints
    memory: int  # of the replay only


def takes_of(recipe: Recipe, spaces: Spaces, agent: Agent) -> Takes:
    """The bytes of a run. The agent may be on torch's meta device: only sizes are read."""
    replay = Replay.forecast(**replay_size(recipe, spaces))
    # Weights with two moments each; while a checkpoint is written, the kept ones exist, too.
    saved = 3 * checkpoint.nbytes(agent.state_dict()) * (checkpoint.KEPT + 1)
    if recipe.replay.storage == "disk":
        return Takes(replay, replay + saved, 0)
    return Takes(replay, (checkpoint.KEPT + 1) * replay + saved, 2 * replay)  # a checkpoint holds a copy of the frames
