"""The number of torch's threads of a run."""

import torch

from maskrl.agents.base import Spaces
from maskrl.recipes.schema import Recipe
from maskrl.threads import advice, usual_threads

# FLOP of the encoder's forward pass on a piece of a batch. Measured on two cores (docs/performance-run.md): at 0.31 GFLOP two
# threads gain a quarter on idle cores and take twice as long on busy ones; at 0.86 GFLOP they gain a half and lose little.
SMALL = 500_000_000


def threads_of(recipe: Recipe) -> int:
    """Torch's threads of a new run: the recipe's; if it has no value, one per core (`usual_threads`), or one if layers are small.

    Results depend on the number of threads, so it depends only on the recipe and the machine, never on the present load.
    """
    if recipe.threads is not None:
        return recipe.threads
    cores = usual_threads()
    return cores if cores > 1 and not _is_small(recipe) else 1


def note_of(recipe: Recipe, threads: int) -> str | None:
    """A note for the user about the threads of a run, if one is needed. Not if the recipe has one thread in any case."""
    text = advice(threads)
    if text is None or threads > 1:
        return text
    return None if recipe.threads == 1 or (recipe.threads is None and _is_small(recipe)) else text


def _is_small(recipe: Recipe) -> bool:
    return piece_flops(recipe) < SMALL


def piece_flops(recipe: Recipe) -> float:
    """FLOP of the encoder's forward pass on a piece of a batch: the work that torch divides among its threads, layer by layer.

    The environment is not made, so frames count as coloured.
    """
    env, agent = recipe.env, recipe.agent
    shape = agent.obs_shape(Spaces((3 * env.frame_stack, env.size, env.size), 1, discrete=False))
    return agent.workload(recipe.objective, torch.device("cpu")).at_once * agent.encoder.flops(shape)
