"""`maskrl bench scale` and `pieces`: the time of an update by the sizes of its parts and of its pieces."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from maskrl.agents.base import Spaces
from maskrl.bench.measure import Measured, Tell, in_turns
from maskrl.bench.noise import Learner
from maskrl.bench.result import Result, Row, named
from maskrl.cost.operations import spaces_of, update_cost
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.schema import Recipe, leaves
from maskrl.runs.build import configure_process

# Each is varied alone, from the base; sides of frames are multiples of the mask's patch.
GRID: dict[str, tuple[int, ...]] = {
    "clips": (2, 4, 8, 16),
    "K": (4, 8, 16, 32),
    "filters": (8, 16, 32, 64),
    "image size": (36, 48, 60, 84),
    "decoder width": (32, 64, 128, 256),
}
BASE = {"clips": 4, "K": 8, "filters": 16, "image size": 48, "decoder width": 64}


def bench_scale(recipe: Recipe, *, rounds: int = 5, tell: Tell = print) -> Result:
    """Vary each size alone around a small base of the recipe, and time updates of all of them in turns."""
    configure_process(recipe)
    spaces, rows = spaces_of(recipe), list[Row]()
    variants = {
        f"{name} {value}": varied(recipe, spaces, BASE | {name: value})
        for name, values in GRID.items()
        for value in values
    }
    samples = in_turns({name: Learner(*variant).seconds for name, variant in variants.items()}, rounds, tell)
    for name, values in GRID.items():
        seconds = [statistics.median(samples[f"{name} {value}"]) for value in values]
        work = [update_cost(*variants[f"{name} {value}"]).flops for value in values]
        exponents = {"time_exponent": exponent(values, seconds), "work_exponent": exponent(values, work)}
        rows += [
            {"varied": name, "value": value, "seconds": spent, "flop": done, **exponents}
            for value, spent, done in zip(values, seconds, work, strict=True)
        ]
    notes = ["Each size is varied alone around the base. Costs grow about like value ** exponent."]
    return Result(named(recipe) | {"base": BASE, "growth": rows}, notes)


def varied(recipe: Recipe, spaces: Spaces, sizes: Mapping[str, int]) -> tuple[Recipe, Spaces]:
    """The recipe with these sizes, by their names in `GRID`, and its spaces.

    It has no crops or shifts, and a small agent, so that the varied sizes dominate the update.
    """
    if recipe.objective is None:
        raise ValueError(f"{recipe.name} has no objective, so there are no clips to vary. Choose method mlr.")
    side, layers = sizes["image size"], np.size(getattr(recipe.agent.encoder, "filters", 1))
    (clips,) = (path for path in leaves(recipe) if path.startswith("agent.") and path.endswith(".clips"))
    overrides = [
        *(f"{place}.augment.{what}=none" for place in ("agent", "objective") for what in ("crop", "shift")),
        "agent.batch_size=8",
        "agent.hidden=256",
        f"{clips}={sizes['clips']}",
        f"agent.encoder.filters={','.join([str(sizes['filters'])] * layers)}",
        f"env.size={side}",
        "objective.every=1",
        f"objective.clip_length={sizes['K']}",
        f"objective.decoder_width={sizes['decoder width']}",
        "objective.mask.cube=2,12,12",
    ]
    return with_overrides(recipe, overrides), replace(spaces, obs=(spaces.obs[0], side, side))


def exponent(values: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the least-squares line through the logarithms: 2 if doubling the value quadruples the cost."""
    return float(np.polyfit(np.log(values), np.log(costs), 1)[0])


def bench_pieces(recipe: Recipe, sizes: Sequence[int], *, rounds: int = 5, tell: Tell = print) -> Result:
    """Time the recipe's update in pieces of these sizes, in turns. Only one agent exists at a time, because it may be large.

    Speeds are relative to the largest pieces in the same round.
    """
    configure_process(recipe)
    spaces = spaces_of(recipe)

    def sample(size: int) -> float:
        return Learner(with_overrides(recipe, [f"agent.micro_batch={size}"]), spaces).seconds()

    samples = in_turns({size: partial(sample, size) for size in sorted(sizes)}, rounds, tell)
    seconds = {size: Measured.of(taken) for size, taken in samples.items()}
    largest, best = max(seconds), min(seconds, key=lambda size: seconds[size].median)
    pieces = [
        {"micro_batch": size, "seconds": seconds[size], "speed": Measured.ratio(samples[largest], taken)}
        for size, taken in samples.items()
    ]
    notes = [
        f"Medians (least – most). Speeds are relative to {largest} in the same round.",
        f"The fastest on this machine: agent.micro_batch={best}.",
    ]
    return Result(named(recipe) | {"pieces": pieces}, notes)
