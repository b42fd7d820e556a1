"""What a run will take of memory and disk, before it is begun."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from maskrl.agents.base import Agent, Spaces
from maskrl.machine import free_memory
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Replay
from maskrl.runs import checkpoint
from maskrl.runs.build import build_agent, device_of, load_encoder, replay_size
from maskrl.runs.directory import RunError
from maskrl.words import size


@dataclass(frozen=True)
class Forecast:
    """What a run will take, in bytes. An amount that is free is None where the system does not tell."""

    replay: int
    disk: int  # beyond what the run directory already has, checkpoints included
    disk_free: int
    memory: int
    memory_free: int | None


def forecast(recipe: Recipe, path: Path) -> Forecast:
    """Make the environment and the agent once, for their sizes and complaints, and refuse a run that cannot be."""
    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise RunError("device=cuda, but torch sees no CUDA device here. Use device=cpu, or install torch with CUDA.")
    env = recipe.env.make(seed=recipe.seed, training=True)
    agent = build_agent(recipe, env)
    takes = takes_of(recipe, Spaces.of(env), agent)
    env.close()
    if recipe.encoder_from is not None and not checkpoint.checkpoints(path / "checkpoints"):
        load_encoder(recipe, agent)  # for its complaints, too

    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    disk_free, memory_free = shutil.disk_usage(there).free, free_memory()
    had = sum(file.stat().st_size for file in (path / "replay").glob("*")) if recipe.replay.storage == "disk" else 0
    needs = Forecast(takes.replay, takes.disk - min(had, takes.replay), disk_free, takes.memory, memory_free)
    advice = "Set replay.capacity lower (the paper keeps 100,000 decisions), or the budget."
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
    return needs


class Takes(NamedTuple):
    """Bytes that a run takes from its beginning to its end."""

    replay: int
    disk: int  # the replay, if it is there, and checkpoints
    memory: int  # of the replay alone


def takes_of(recipe: Recipe, spaces: Spaces, agent: Agent) -> Takes:
    """The agent may be on torch's meta device: its weights are not looked at."""
    replay = Replay.forecast(**replay_size(recipe, spaces))
    # With two moments of every weight; and while one is written, those that are kept are there, too.
    saved = 3 * checkpoint.nbytes(agent.state_dict()) * (checkpoint.KEPT + 1)
    if recipe.replay.storage == "disk":
        return Takes(replay, replay + saved, 0)
    return Takes(replay, (checkpoint.KEPT + 1) * replay + saved, 2 * replay)  # a checkpoint holds a copy of the frames


# Measured on Linux: Python with torch and the simulator of DMControl take most, 0.68 GB in a small run; Atari 0.40 GB.
PROCESS = 700_000_000


def process_memory(recipe: Recipe, spaces: Spaces, agent: Agent) -> int:
    """Bytes of memory that a run takes at most on a CPU, but for its replay: docs/sweeps.md has what was measured."""
    weights = 4 * checkpoint.nbytes(agent.state_dict())  # with gradients and two moments
    # What an update keeps of every observation for its gradients, and about as much again while it makes them.
    workload = recipe.agent.workload(recipe.objective, device_of(recipe))
    batch = 2 * workload.at_once * _kept_of_an_observation(recipe, spaces, agent)
    batch += workload.drawn * 4 * math.prod(spaces.obs)  # as drawn, masked, and moved twice: bytes still
    environments = recipe.evaluation.side_by_side * recipe.env.memory
    processes = 2 if recipe.overlap else 1
    return processes * PROCESS + weights + batch + environments


def _kept_of_an_observation(recipe: Recipe, spaces: Spaces, agent: Agent) -> int:
    """Bytes that an encoder's gradient needs: what torch keeps of one pass, weights aside."""
    weights = {weight.untyped_storage()._cdata for weight in agent.encoder.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        device = next(agent.encoder.parameters()).device
        states = agent.encoder(torch.zeros(1, *recipe.agent.obs_shape(spaces), device=device))
    del states  # until here, no two tensors had the same place
    return sum(kept.values())
