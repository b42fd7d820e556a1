"""What the name of a sweep means: the list of its runs."""

import difflib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from maskrl.recipes import METHODS, ablations, atari, dmcontrol, find, names, resolve, toy
from maskrl.recipes.schema import Recipe, as_override, digest, leaves
from maskrl.studies.sweep import Job

__all__ = ["Job", "expand", "sweep_names"]

AnyProfile = Literal["auto", "paper", "lite"]

PAIR: tuple[str, ...] = ("mlr", "baseline")
SEEDS = {"dmcontrol": 10, "atari": 3, "toy": 3}  # the paper's (Table 1 and Section 4.1); the toys' are ours
SUITES = {
    "dmcontrol-100k": ("dmcontrol", tuple(dmcontrol.PAPER_TASKS)),
    "dmcontrol-500k": ("dmcontrol", tuple(dmcontrol.PAPER_TASKS)),
    "atari-100k": ("atari", atari.GAMES),
    "toy": ("toy", toy.TASKS),
}


class Cell(NamedTuple):
    """A task with a method: what grids and seeds multiply."""

    name: str
    method: str
    seeds: int
    overrides: tuple[str, ...] = ()  # a row of an ablation
    longer: bool = False  # 500k where the recipe has 100k, and five times what it has in the lite profile


def sweep_names() -> list[str]:
    """The sweeps that have a name of their own. The name of a recipe is one, too: that task alone."""
    return [*SUITES, "ablations", *(f"ablations/{study}" for study in ablations.STUDIES)]


def expand(
    name: str,
    *,
    seeds: int | None = None,
    methods: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    grid: Iterable[str] = (),
    profile: AnyProfile = "auto",
) -> list[Job]:
    """The runs of a sweep, each recipe once. Without seeds, methods or tasks: the paper's.

    `grid` has overrides with one value or several, and every combination is run: "objective.mask.ratio=0.1,0.5". Values with commas
    of their own are separated by semicolons, "objective.mask.cube=4,10,10;8,10,10", or the key is given again. A key is for those
    runs that have it: the Baseline has no `objective`, and is run once.
    """
    if seeds is not None and seeds < 1:
        raise ValueError(f"{seeds} seeds: a sweep has at least one.")
    words = list(grid)
    if malformed := [word for word in words if not re.match(r"\s*[^=\s]+\s*=", word)]:
        raise ValueError(f"{malformed[0]}: a grid is key=value,value, such as objective.mask.ratio=0.1,0.5.")
    if seeds is not None and any(_key(word) == "seed" for word in words):
        raise ValueError(f"{seeds} seeds, and seeds by number (seed=…): choose one of the two.")

    jobs: dict[str, Job] = {}
    used: set[str] = set()
    cells = _cells(name, methods, tasks, profile)
    for cell in cells:
        plain = _plain(cell, words, profile)
        axes = _axes(words, plain)
        used |= axes.keys()
        numbers = axes.pop("seed", None) or [str(seed) for seed in range(1, (seeds or cell.seeds) + 1)]
        for values in itertools.product(*axes.values()):
            chosen = [f"{key}={value}" for key, value in zip(axes, values, strict=True)]
            told = [word for key, word in zip(axes, chosen, strict=True) if len(axes[key]) > 1]
            for job in _seeded(cell, chosen, told, numbers, profile):
                jobs.setdefault(digest(job.recipe), job)
    if unknown := [word for word in words if _key(word) not in used]:
        resolve(cells[0].name, unknown, profile=profile, method=cells[0].method)  # which says what is wrong with it
        raise ValueError(f"{unknown[0]}: {cells[0].name} has no such value.")
    return list(jobs.values())


# ── Tasks and methods ─────────────────────────────────────────────────────────────────────────────────────────────────


def _cells(name: str, methods: Sequence[str] | None, tasks: Sequence[str] | None, profile: AnyProfile) -> list[Cell]:
    if unknown := [method for method in methods or () if method not in METHODS]:
        raise ValueError(_unknown("method", unknown[0], list(METHODS)))
    if name.partition("/")[0] == "ablations":
        return _ablations(name, methods, tasks, profile)
    if name in SUITES:
        suite, usual = SUITES[name]
        found = [_task(suite, task) for task in tasks or usual]
    else:
        if "/" not in name or name.partition("/")[0] not in SEEDS:
            raise ValueError(_unknown("sweep", name, [*sweep_names(), *names()], shown=sweep_names()))
        if tasks:
            raise ValueError(f"{name} is one task already: leave the tasks out, or choose one of {', '.join(SUITES)}.")
        found, suite = [find(name, profile).name], name.partition("/")[0]
    chosen = [method for method in METHODS if method in (methods or PAIR)]
    return [Cell(task, method, SEEDS[suite], longer=name == "dmcontrol-500k") for task in found for method in chosen]


def _task(suite: str, task: str) -> str:
    """Its recipe's name; the suite may have been left out."""
    return find(task if task.startswith(f"{suite}/") else f"{suite}/{task}").name


def _ablations(
    name: str, methods: Sequence[str] | None, tasks: Sequence[str] | None, profile: AnyProfile
) -> list[Cell]:
    """The rows of one study, or of all. What they share, such as the Baseline, is in several of them: see `expand`."""
    asked = name.partition("/")[2]
    if asked and asked not in ablations.STUDIES:
        raise ValueError(_unknown("sweep", name, sweep_names()))
    cells = []
    for key, study in ablations.STUDIES.items():
        for task in (tasks or study.tasks) if asked in ("", key) else ():
            recipe = find(_task("dmcontrol", task), profile)
            for label in study.rows:
                overrides = tuple(ablations.overrides(f"{key}/{label}", recipe))
                if not asked and any(word.startswith("encoder_from=") for word in overrides):
                    continue  # needs files that are made by hand: in its own study alone
                cell = Cell(recipe.name, "mlr", study.seeds, overrides, longer=max(study.frames) > 100_000)
                if overrides == ablations.BASELINE:
                    cell = cell._replace(method="baseline", overrides=())
                if cell.method in (methods or METHODS):
                    cells.append(cell)
    if not cells:
        raise ValueError(f"{name} has the methods mlr and baseline, not {', '.join(methods or ())}.")
    return cells


def _unknown(what: str, value: str, known: Sequence[str], shown: Sequence[str] | None = None) -> str:
    endings = [other for other in known if other.casefold().endswith(f"/{value}".casefold())]
    likely = next(iter(endings or difflib.get_close_matches(value, known, n=1)), None)
    more = "" if shown is None else ", and every recipe (`maskrl recipes list`)"
    return (
        f"{what} {value!r} is not known{f': did you mean {likely}?' if likely else '.'} "
        f"There are {', '.join(shown or known)}{more}."
    )


# ── Grids and seeds ───────────────────────────────────────────────────────────────────────────────────────────────────


def _key(word: str) -> str:
    return word.partition("=")[0].strip()


def _plain(cell: Cell, words: Sequence[str], profile: AnyProfile) -> Recipe:
    """The cell's recipe before the grid; but what the grid does to the whole objective decides which keys there are."""
    swaps = [word for word in words if _key(word) == "objective" and "," not in word and "{" not in word]
    return resolve(cell.name, [*cell.overrides, *swaps], profile=profile, method=cell.method)


def _axes(words: Sequence[str], recipe: Recipe) -> dict[str, list[str]]:
    """Key → values, for the keys that a recipe has."""
    there = leaves(recipe)
    axes: dict[str, list[str]] = {}
    for word in words:
        key, value = _key(word), word.partition("=")[2].strip()
        if key in there or any(path.startswith(f"{key}.") for path in there):
            axes.setdefault(key, []).extend(_values(value, several=isinstance(there.get(key), tuple | list)))
    return {key: list(dict.fromkeys(values)) for key, values in axes.items()}


def _values(text: str, *, several: bool) -> list[str]:
    """The values in a word of the grid; `several`: one value has commas of its own. So has JSON."""
    mark = ";" if ";" in text or several or text[:1] in ("[", "{") else ","
    return [value.strip() for value in text.split(mark)]


def _seeded(
    cell: Cell, chosen: Sequence[str], told: Sequence[str], numbers: Sequence[str], profile: AnyProfile
) -> list[Job]:
    """A job for every seed. `told`: the choices that its directory's name tells of.

    A run of a sweep has one thread of torch unless the grid says otherwise: its bits then depend neither on the machine's cores
    nor on what runs beside it, and many runs with one thread each do more than one run with many.
    """
    base = resolve(cell.name, (), profile=profile, method=cell.method)
    overrides = [*cell.overrides, *_longer(cell, base, chosen), *chosen]
    if base.threads is None and not any(_key(word) == "threads" for word in chosen):
        overrides.append("threads=1")
    jobs: list[Job] = []
    for number in numbers:
        words = (*overrides, f"seed={number}")
        # One resolution does for all seeds, if it is a seed.
        recipe = (
            replace(jobs[0].recipe, seed=int(number))
            if jobs and number.isdecimal()
            else resolve(cell.name, words, profile=profile, method=cell.method)
        )
        where = "/".join([recipe.name, recipe.method, *_told([*cell.overrides, *told])])
        jobs.append(
            Job(cell.name, words, recipe.profile, cell.method, recipe, f"{where}/seed-{recipe.seed}-{digest(recipe)}")
        )
    return jobs


def _longer(cell: Cell, base: Recipe, chosen: Sequence[str]) -> list[str]:
    if not cell.longer or any(_key(word) == "budget" or word.startswith("budget.") for word in chosen):
        return []
    return [f"budget.frames={as_override(5 * base.frames)}"]


def _told(overrides: Sequence[str]) -> list[str]:
    """Overrides as the name of a directory: "mask.strategy=spatial"."""
    words = [re.sub(r"^(objective|agent)\.|\s", "", override) for override in overrides]
    return [re.sub(r"[^\w.,=+-]", "_", " ".join(words).replace(" ", "+"))[:100]] if words else []
