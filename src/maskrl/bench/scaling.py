"""How the time of an update depends on its sizes, and on those of its pieces: `maskrl bench scale` and `pieces`."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from maskrl.agents.base import Spaces
from maskrl.bench.measure import Measured, Tell, in_turns
from maskrl.bench.noise import Learner
from maskrl.bench.result import Result, Row, named
from maskrl.cost.operations import spaces_of, update_cost
from maskrl.envs.base import require_extra
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.schema import Recipe, leaves
from maskrl.runs.build import configure_process

# Each is varied alone, around the base; sides of frames are multiples of the mask's patch.
GRID: dict[str, tuple[int, ...]] = {
    "clips": (2, 4, 8, 16),
    "K": (4, 8, 16, 32),
    "filters": (8, 16, 32, 64),
    "image size": (36, 48, 60, 84),
    "decoder width": (32, 64, 128, 256),
}
BASE = {"clips": 4, "K": 8, "filters": 16, "image size": 48, "decoder width": 64}


def bench_scale(recipe: Recipe, *, rounds: int = 5, figure: Path | None = None, tell: Tell = print) -> Result:
    """Vary each size alone around a small base of the recipe, and time updates of all of them in turns."""
    if figure is not None:
        require_extra("matplotlib", "report")
        if figure.suffix.lower() != ".png" or not figure.absolute().parent.is_dir():
            raise ValueError(f"--figure {figure}: name a .png file in a folder that exists.")
    spaces, base = spaces_of(recipe), small(recipe)
    configure_process(base)
    places = dict.fromkeys(_place(name, value) for name, values in GRID.items() for value in values)
    variants = {place: varied(base, spaces, **dict(place)) for place in places}
    tell(f"{len(variants)} sizes of an update, each {rounds} times in turns.")
    samples = in_turns({place: Learner(*variant).begin().seconds for place, variant in variants.items()}, rounds)
    flops = {place: update_cost(*variant).flops for place, variant in variants.items()}
    growth, shown = list[Row](), list[Row]()
    for name, values in GRID.items():
        at = [_place(name, value) for value in values]
        costs = {
            "seconds": [statistics.median(samples[place]) for place in at],
            "flops": [flops[place] for place in at],
        }
        points = [dict(zip(("value", *costs), each, strict=True)) for each in zip(values, *costs.values(), strict=True)]
        time, work = (exponent(values, each) for each in costs.values())
        growth.append({"varied": name, "points": points, "exponent_of_seconds": time, "exponent_of_flop": work})
        shown += [{"varied": name, **point, "time^": time, "work^": work} for point in points]
    result = named(recipe) | {"base": BASE, "growth": growth}
    notes = ["Each size is varied alone around the base. ^: the exponent of the power of the value that fits best."]
    if figure is not None:
        draw(growth, f"{recipe.name}: the cost of an update, each size varied alone", figure)
        notes.append(str(figure))
    return Result(result, notes, result | {"growth": shown})


def small(recipe: Recipe) -> Recipe:
    """The recipe without crops and shifts, and with a small agent: the sizes varied should be most of the update."""
    if recipe.objective is None:
        raise ValueError(f"{recipe.name} has no objective, so there are no clips to vary. Choose method mlr.")
    plain = [f"{place}.augment.{what}=none" for place in ("agent", "objective") for what in ("crop", "shift")]
    return with_overrides(recipe, [*plain, "agent.batch_size=8", "agent.hidden=256", "objective.every=1"])


def varied(base: Recipe, spaces: Spaces, **sizes: int) -> tuple[Recipe, Spaces]:
    """The base with these sizes, by their names in `GRID`, and the spaces that go with them."""
    side, layers = sizes["image size"], np.size(base.agent.encoder.filters)
    (clips,) = (path for path in leaves(base) if path.startswith("agent.") and path.endswith(".clips"))
    overrides = [
        f"{clips}={sizes['clips']}",
        f"objective.clip_length={sizes['K']}",
        f"agent.encoder.filters={','.join([str(sizes['filters'])] * layers)}",
        f"env.size={side}",
        f"objective.decoder_width={sizes['decoder width']}",
        "objective.mask.cube=2,12,12",
    ]
    return with_overrides(base, overrides), replace(spaces, obs=(spaces.obs[0], side, side))


def exponent(values: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the least-squares line through the logarithms: 2 if twice the value costs four times as much."""
    slope, _ = np.polyfit(np.log(values), np.log(costs), 1)
    return float(slope)


def _place(name: str, value: int) -> tuple[tuple[str, int], ...]:
    """A place in the grid: hashable, and the same for the base whichever size it is reached by."""
    return tuple((BASE | {name: value}).items())


def draw(growths: Sequence[Row], title: str, file: Path) -> None:
    """A panel for each size: seconds as measured, and FLOP as counted, both relative to the smallest value."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    figure = Figure(figsize=(3.0 * len(growths), 3.4), dpi=150, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    panels = figure.subplots(1, len(growths), sharey=True, squeeze=False)[0]
    for axes, growth in zip(panels, growths, strict=True):
        points, values = growth["points"], [point["value"] for point in growth["points"]]
        for cost, style, color, label in (
            ("flops", "s--", "#9a9a9a", f"FLOP: exponent {growth['exponent_of_flop']:.2f}"),
            ("seconds", "o-", "#2962a8", f"time: exponent {growth['exponent_of_seconds']:.2f}"),
        ):
            relative = [point[cost] / points[0][cost] for point in points]
            axes.loglog(values, relative, style, color=color, markersize=4, label=label)
        axes.set_xticks(values, [str(value) for value in values])
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.minorticks_off()
        axes.set_xlabel(growth["varied"])
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    panels[0].set_ylabel("cost of an update, relative to the smallest")
    FigureCanvasAgg(figure).print_png(str(file))  # type: ignore[no-untyped-call]


def bench_pieces(recipe: Recipe, sizes: Sequence[int], *, rounds: int = 5, tell: Tell = print) -> Result:
    """Time the recipe's update in pieces of these sizes in turns. One agent at a time: they may be large.

    Speeds are relative to the largest pieces in the same round.
    """
    configure_process(recipe)
    spaces = spaces_of(recipe)

    def sample(size: int) -> float:
        return Learner(with_overrides(recipe, [f"agent.micro_batch={size}"]), spaces).begin().seconds()

    samples = in_turns({size: partial(sample, size) for size in sorted(sizes)}, rounds, tell)
    seconds = {size: Measured.of(taken) for size, taken in samples.items()}
    largest, best = max(seconds), min(seconds, key=lambda size: seconds[size].median)
    pieces = [
        {"micro_batch": size, "seconds": seconds[size], "speed": Measured.ratio(samples[largest], taken)}
        for size, taken in samples.items()
    ]
    notes = [
        f"Medians (least – most). Speeds are by that of {largest}, in the same round.",
        f"The fastest here: agent.micro_batch={best}.",
    ]
    return Result(named(recipe) | {"pieces": pieces}, notes)
