"""How the time of an update depends on its sizes, and on those of the pieces it is done in: `maskrl bench scale`, `pieces`."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maskrl.agents.base import Spaces
from maskrl.agents.rainbow import RainbowConfig
from maskrl.bench.speed import Measured, Tell, noise_replay, seconds_each
from maskrl.cost.operations import spaces_of, update_cost
from maskrl.envs.base import require_extra
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.schema import Recipe
from maskrl.runs.build import configure_process, device_of
from maskrl.runs.directory import write_whole
from maskrl.runs.pictures import BLUE, GREY

# Each is varied alone, around the base; sides of frames are multiples of the mask's patch.
GRID: dict[str, tuple[int, ...]] = {
    "clips": (2, 4, 8, 16),
    "K": (4, 8, 16, 32),
    "filters": (8, 16, 32, 64),
    "image size": (36, 48, 60, 84),
    "decoder width": (32, 64, 128, 256),
}
BASE = {"clips": 4, "K": 8, "filters": 16, "image size": 48, "decoder width": 64}


class Point(NamedTuple):
    value: int
    seconds: float  # of an update: the median over rounds
    flops: float


@dataclass(frozen=True)
class Growth:
    """One size varied: what is fitted to the points is seconds ∝ value ** exponent, and likewise FLOP."""

    name: str
    points: list[Point]

    @property
    def seconds_exponent(self) -> float:
        return exponent([point.value for point in self.points], [point.seconds for point in self.points])

    @property
    def flops_exponent(self) -> float:
        return exponent([point.value for point in self.points], [point.flops for point in self.points])

    def as_dict(self) -> dict[str, Any]:
        return {
            "varied": self.name,
            "points": [point._asdict() for point in self.points],
            "exponent_of_seconds": self.seconds_exponent,
            "exponent_of_flop": self.flops_exponent,
        }


def exponent(values: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the least-squares line through the logarithms: 2 if twice the value costs four times as much."""
    slope, _ = np.polyfit(np.log(values), np.log(costs), 1)
    return float(slope)


def bench_scale(
    recipe: Recipe, *, rounds: int = 5, grid: Mapping[str, Sequence[int]] = GRID, tell: Tell = print
) -> list[Growth]:
    """Vary each size alone around a small base of the recipe, and time updates of all of them in turn, round by round."""
    spaces, base = spaces_of(recipe), small(recipe)
    configure_process(base)
    places = list(dict.fromkeys(_at(name, value) for name, values in grid.items() for value in values))
    variants = {place: varied(base, spaces, **dict(place)) for place in places}
    tell(f"{len(variants)} sizes of an update, each {rounds} times in turn.")
    timers = {place: _Timer(*variant) for place, variant in variants.items()}
    for _ in range(rounds):
        for timer in timers.values():
            timer.go_on()
    flops = {place: update_cost(*variant).flops for place, variant in variants.items()}

    def point(name: str, value: int) -> Point:
        place = _at(name, value)
        return Point(value, statistics.median(timers[place].seconds), flops[place])

    return [Growth(name, [point(name, value) for value in values]) for name, values in grid.items()]


def small(recipe: Recipe) -> Recipe:
    """The recipe without crops and shifts, its agent cut down: what is varied here should be most of the update."""
    if recipe.objective is None:
        raise ValueError(f"{recipe.name} has no objective, so there are no clips to vary. Choose method mlr.")
    plain = [f"{place}.augment.{what}=none" for place in ("agent", "objective") for what in ("crop", "shift")]
    return with_overrides(recipe, [*plain, "agent.batch_size=8", "agent.hidden=256", "objective.every=1"])


def varied(base: Recipe, spaces: Spaces, **sizes: int) -> tuple[Recipe, Spaces]:
    """The base with these sizes, by their names in `GRID`, and the spaces that go with them."""
    filters, side = sizes["filters"], sizes["image size"]
    rainbow = isinstance(base.agent, RainbowConfig)
    clips, each = ("agent.clips", [filters] * 3) if rainbow else ("agent.auxiliary.clips", [filters])
    overrides = [
        f"{clips}={sizes['clips']}",
        f"objective.clip_length={sizes['K']}",
        f"agent.encoder.filters={','.join(map(str, each))}",
        f"env.size={side}",
        f"objective.decoder_width={sizes['decoder width']}",
        "objective.mask.cube=2,12,12",
        *(["agent.encoder.kernels=8,4,3", "agent.encoder.strides=4,2,1"] if rainbow else []),
    ]
    return with_overrides(base, overrides), replace(spaces, obs=(spaces.obs[0], side, side))


def _at(name: str, value: int) -> tuple[tuple[str, int], ...]:
    """A place in the grid: hashable, and the same for the base whichever size it is reached by."""
    return tuple((BASE | {name: value}).items())


class _Timer:
    def __init__(self, recipe: Recipe, spaces: Spaces) -> None:
        self._device, self._turn = device_of(recipe), recipe.agent.turn(recipe.objective)
        self._agent = recipe.agent.build(spaces, recipe.objective, self._device)
        self._replay = noise_replay(recipe, spaces, transitions=300)
        self.seconds: list[float] = []
        self._agent.update(self._replay)  # buffers are made

    def go_on(self) -> None:
        self.seconds.append(seconds_each(lambda: self._agent.update(self._replay), self._turn, self._device))


class Pieces(NamedTuple):
    """The same update in pieces of one size."""

    micro_batch: int  # observations, or clips in Rainbow's updates
    seconds: Measured  # of an update
    speed: Measured  # that of the largest pieces is 1: ratios within a round


def bench_pieces(recipe: Recipe, sizes: Sequence[int], *, rounds: int = 5, tell: Tell = print) -> list[Pieces]:
    """Time the recipe's update in pieces of these sizes in turn, round by round. One agent at a time: they may be large."""
    configure_process(recipe)
    spaces, seconds = spaces_of(recipe), {size: list[float]() for size in sorted(sizes)}
    for number in range(1, rounds + 1):
        for size, measured in seconds.items():
            timer = _Timer(with_overrides(recipe, [f"agent.micro_batch={size}"]), spaces)
            timer.go_on()
            measured += timer.seconds
        tell(f"Round {number} of {rounds}: {', '.join(f'{size} {each[-1]:.3g} s' for size, each in seconds.items())}.")
    largest = seconds[max(seconds)]
    return [Pieces(size, Measured.of(each), Measured.ratio(largest, each)) for size, each in seconds.items()]


def draw(growths: Sequence[Growth], title: str, file: Path) -> None:
    """A panel for each size: seconds as measured, and FLOP as counted, both by those of the smallest value."""
    require_extra("matplotlib", "report")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    figure = Figure(figsize=(3.0 * len(growths), 3.4), dpi=150, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    panels = figure.subplots(1, len(growths), sharey=True, squeeze=False)[0]
    for axes, growth in zip(panels, growths, strict=True):
        values, first = [point.value for point in growth.points], growth.points[0]
        measured = [point.seconds / first.seconds for point in growth.points]
        counted = [point.flops / first.flops for point in growth.points]
        axes.plot(values, counted, "s--", color=GREY, markersize=4, label=f"FLOP: exponent {growth.flops_exponent:.2f}")
        axes.plot(
            values, measured, "o-", color=BLUE, markersize=4, label=f"time: exponent {growth.seconds_exponent:.2f}"
        )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(values, [str(value) for value in values])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(growth.name)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    panels[0].set_ylabel("of an update, by the smallest")
    drawn = BytesIO()
    FigureCanvasAgg(figure).print_png(drawn)  # type: ignore[no-untyped-call]
    write_whole(file, drawn.getvalue())
