"""What a run will take of memory and disk, before it is begun."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from maskrl.agents.base import Spaces
from maskrl.agents.replay import Replay
from maskrl.experiments import checkpoint
from maskrl.experiments.doctor import memory_limits
from maskrl.experiments.recipe import Recipe
from maskrl.experiments.run import RunError
from maskrl.experiments.train import build_agent, replay_size


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
    spaces = Spaces.of(env)
    # With two moments of every weight; and while one is written, those that are kept are there, too.
    saved = 3 * checkpoint.nbytes(build_agent(recipe, env).state_dict()) * (checkpoint.KEPT + 1)
    env.close()

    replay = Replay.forecast(**replay_size(recipe, spaces))
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    disk_free, memory_free = shutil.disk_usage(there).free, free_memory()
    if recipe.replay.storage == "disk":
        had = sum(file.stat().st_size for file in (path / "replay").glob("*"))
        needs = Forecast(replay, max(0, replay - had) + saved, disk_free, 0, memory_free)
    else:  # a checkpoint holds a copy of the frames
        needs = Forecast(replay, (checkpoint.KEPT + 1) * replay + saved, disk_free, 2 * replay, memory_free)
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


def free_memory() -> int | None:
    """Bytes that can be taken, by the machine, the container and the shell alike."""
    return min(memory_limits().values(), default=None)


def size(count: int) -> str:
    """Bytes in the unit that a person would choose."""
    amount = float(count)
    units = ["B", "kB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount /= 1000
        del units[0]
    unit = units[0]
    return f"{amount:,.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"
