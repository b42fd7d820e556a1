"""Build a run from a recipe: process settings, agent, environments and replay."""

import ctypes
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypedDict

import gymnasium as gym
import numpy as np
import torch

from maskrl.agents.base import Agent, Spaces
from maskrl.nn.transfer import HOSTS
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Replay
from maskrl.replay.several import Several
from maskrl.runs import encoder_file
from maskrl.runs.directory import Run, RunError, encoder_path
from maskrl.runs.threads import threads_of

# Maximum frames of the replay kept only for checkpoints, not for draws: 30 MB at 100 × 100.
RESERVE = 1000


def configure_process(recipe: Recipe, threads: int | None = None) -> None:
    """Set torch's threads, and seed every generator of the process. maskrl uses torch's; an environment may use the others.

    `threads`: those of an existing run (`Run.threads`), if there is one.
    """
    torch.set_num_threads(threads or threads_of(recipe))
    keep_freed_memory()
    torch.manual_seed(recipe.seed)
    random.seed(recipe.seed)
    np.random.seed(recipe.seed % 2**32)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Use this number of threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next tensors.

    Otherwise it returns blocks of more than 32 MB to the system, which clears every page before handing it out again. That takes a
    third of the time of Rainbow's update with the paper's decoder, whose gradients are 640 MB.
    """
    mmap_max, trim_threshold = -4, -1  # from malloc.h
    with suppress(OSError, AttributeError):  # a C library other than GNU's
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(mmap_max, 0)
        library.mallopt(trim_threshold, -1)  # never


def device_of(recipe: Recipe) -> torch.device:
    if recipe.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(recipe.device)


def make_evaluation_envs(recipe: Recipe) -> list[gym.Env[Any, Any]]:
    """The environments that this process evaluates in at once: several on a GPU, which takes them as one batch; otherwise one."""
    on_gpu = device_of(recipe).type != "cpu"
    count = min(recipe.evaluation.side_by_side, recipe.evaluation.episodes) if on_gpu else 1
    return [recipe.env.make(seed=recipe.seed, training=False) for _ in range(count)]


def build_agent(recipe: Recipe, env: gym.Env[Any, Any]) -> Agent:
    agent = recipe.agent.build(Spaces.of(env), recipe.objective, device_of(recipe), seed=recipe.seed)
    torch.manual_seed(recipe.seed)  # noise inside updates must not depend on what an objective draws when it is built
    if recipe.compile:
        # Compile the function, not the module, so that the names of weights in checkpoints stay the same.
        layers = agent.encoder.convolutions
        layers.forward = torch.compile(layers.forward)
    if recipe.capture:
        if agent.device.type != "cuda":
            raise RunError(
                f"capture=true, but this run is on {agent.device.type}, which has no CUDA graphs. Use capture=false, or "
                "device=cuda on a machine that has such a device."
            )
        agent.capture()
    return agent


def numerics(recipe: Recipe) -> torch.autocast:
    """The precision in which an update computes."""
    lower = recipe.precision == "bfloat16"
    # Without torch's cache of cast weights, which would become stale after a step within an update.
    return torch.autocast(device_of(recipe).type, torch.bfloat16, enabled=lower, cache_enabled=False)


class ReplaySize(TypedDict):
    """The arguments that determine the size of a replay."""

    frame_shape: tuple[int, int, int]
    action_dim: int
    frame_stack: int
    capacity: int
    reserve: int
    priority_exponent: float | None
    discrete: bool
    vector_dim: int


def replay_size(recipe: Recipe, spaces: Spaces) -> ReplaySize:
    (channels, height, width), stack, repeat = spaces.obs, recipe.env.frame_stack, recipe.env.action_repeat
    # Room for the frames since the last checkpoint but one, so that its frames are not overwritten: a frame per decision, and one
    # per episode. If that is not enough, the replay requests an early checkpoint.
    between_saves = recipe.checkpoint_every // repeat
    reserve = min(2 * (between_saves + between_saves // 25 + 2), RESERVE)
    return {
        "frame_shape": (channels // stack, height, width),
        "action_dim": spaces.action_dim,
        "frame_stack": stack,
        "capacity": min(recipe.replay.capacity, recipe.frames // repeat),
        "reserve": reserve if recipe.replay.storage == "disk" else 0,
        "priority_exponent": recipe.agent.replay_needs().priority_exponent,
        "discrete": spaces.discrete,
        "vector_dim": spaces.vector,
    }


def load_encoder(recipe: Recipe, agent: Agent) -> None:
    """Load the recipe's encoder file into the agent and every slow copy. The actor shares the convolutions."""
    path = encoder_path(recipe)
    assert path is not None
    encoder_file.load(path, agent.encoder)
    agent.restart_copies()


def build_replay(
    recipe: Recipe, env: gym.Env[Any, Any], run: Run, *, mend: bool = True, places: int | None = None
) -> Replay:
    """The replay of a run. `places`: environments that write to it; None: as many as the run collects in."""
    directory = run.path / "replay" if recipe.replay.storage == "disk" else None
    size, pad = replay_size(recipe, Spaces.of(env)), recipe.env.pad
    mirror, prefetch = mirror_of(recipe, size), prefetch_of(recipe)
    places = places or recipe.env.parallel
    options: dict[str, Any] = {"pad": pad, "mend": mend, "mirror": mirror}
    try:
        if places == 1:
            return Replay(**size, seed=recipe.seed, directory=directory, prefetch=prefetch, **options)
        size["capacity"] = -(-size["capacity"] // places)
        parts = [
            Replay(**size, seed=recipe.seed + place, directory=directory, prefix=f"{place}-", **options)
            for place in range(places)
        ]
        return Several(parts, recipe.seed, prefetch if mirror is None else 0)
    except ValueError as error:
        raise RunError(
            f"{error}\nPut back a good copy of {run.path / 'replay'}, or remove the run's directory to start again."
        ) from error
    except MemoryError as error:
        raise RunError(
            f"There is not enough memory for the replay: it takes {Replay.forecast(**size):,} bytes. Use "
            "replay.storage=disk, or lower replay.capacity or the budget."
        ) from error


def mirror_of(recipe: Recipe, size: ReplaySize) -> torch.device | None:
    """The accelerator, if it holds a copy of the frames; by default only if they take at most half of its free memory."""
    device, wanted = device_of(recipe), recipe.replay.on_device
    if device.type in HOSTS or wanted is False:
        return None
    free, _ = torch.get_device_module(device).mem_get_info(device)
    return device if wanted or 2 * Replay.forecast(**size) < free else None


def prefetch_of(recipe: Recipe) -> int:
    """The number of batches gathered ahead."""
    if recipe.replay.prefetch is not None:
        return recipe.replay.prefetch
    uniform = recipe.agent.replay_needs().priority_exponent is None
    return 2 if uniform and device_of(recipe).type not in HOSTS else 0
