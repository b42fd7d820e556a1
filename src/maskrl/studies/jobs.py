"""Expand the name of a sweep to the list of its runs."""

import difflib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast, get_args

from maskrl.recipes import AnyProfile, ablations, atari, dmcontrol, find, names, own, resolve, toy
from maskrl.recipes.schema import Profile, Recipe, as_override, digest, is_unused, leaves
from maskrl.studies import registered

MOST_JOBS = 100_000  # per sweep
PAIR = ("mlr", "baseline")
SEEDS = {
    "dmcontrol": 10,
    "atari": 3,
    "toy": 4,
    "gym": 4,
}  # the paper's (Table 1 and Section 4.1); those of toys and users' environments are ours: a test needs 4
SUITES = {
    "dmcontrol-100k": ("dmcontrol", tuple(dmcontrol.PAPER_TASKS)),
    "dmcontrol-500k": ("dmcontrol", tuple(dmcontrol.PAPER_TASKS)),
    "atari-100k": ("atari", atari.GAMES),
    "toy": ("toy", toy.TASKS),
}


@dataclass(frozen=True)
class Job:
    """One run of a sweep: its recipe, its command line and its directory."""

    name: str  # of the recipe, such as dmcontrol/walker-walk
    overrides: tuple[str, ...]
    profile: Profile
    method: str
    recipe: Recipe  # the resolved recipe
    directory: str  # relative to the sweep's

    def command(self, out: Path) -> list[str]:
        """The arguments of `maskrl`. They always name the profile, because `auto` depends on the machine."""
        words = ["train", self.name, *self.overrides, "--profile", self.profile]
        words += ["--method", self.method] if self.method != "mlr" else []
        return [*words, "--run-dir", str(out / self.directory)]


class Cell(NamedTuple):
    """A task with a method; grids and seeds multiply it."""

    name: str
    profile: AnyProfile
    method: str
    seeds: int
    overrides: tuple[str, ...] = ()  # of a row of an ablation
    longer: bool = False  # 500k instead of 100k; five times the budget in the lite profile

    def resolve(self, overrides: Iterable[str]) -> Recipe:
        """The recipe with overrides. `maskrl.recipes` raises ValueError for unknown methods."""
        return resolve(self.name, overrides, profile=self.profile, method=self.method)


def sweep_names() -> list[str]:
    """The named sweeps. The name of a recipe is also a sweep, of that task only."""
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
    """The runs of a sweep, each recipe once. Defaults of seeds, methods and tasks: the paper's.

    `grid` has overrides with one or several values, and every combination is run: "objective.mask.ratio=0.1,0.5". Separate values
    that contain commas by semicolons, "objective.mask.cube=4,10,10;8,10,10", or give the key again. A key applies to the runs that
    use it: the Baseline has no `objective`, and is run once.

    The name of a study (`maskrl.studies.registered`) stands for the sweeps of its page, and allows no other arguments.
    """
    if (page := registered.page_of(name)) is not None:
        if seeds is not None or methods or tasks or [*grid] or profile != "auto":
            raise ValueError(f"{page} defines the runs: give only its name, or write your own page.")
        return _of_study(page)
    settings = [_setting(word) for word in grid]
    if seeds is not None and seeds < 1:
        raise ValueError(f"{seeds} seeds: a sweep needs at least one.")
    if seeds is not None and "seed" in dict(settings):
        raise ValueError(f"{seeds} seeds, and seeds by number (seed=…): choose one of the two.")
    cells = _cells(name, methods or (), tasks or (), profile)
    if own.is_own(name):  # the environment is made with these
        decisive = tuple(
            f"{key}={value}" for key, value in settings if key.startswith(own.DECIDES) and "," not in value
        )
        cells = [cell._replace(overrides=decisive) for cell in cells]
    several = [
        (cell, {"seed": list(map(str, range(1, (seeds or cell.seeds) + 1)))} | _axes(cell, settings)) for cell in cells
    ]
    if (number := sum(math.prod(map(len, axes.values())) for _, axes in several)) > MOST_JOBS:
        raise ValueError(
            f"This is a sweep of {number:,} runs; at most {MOST_JOBS:,} are possible. Name fewer values or seeds."
        )
    jobs: dict[str, Job] = {}
    used: set[str] = set()
    for cell, axes in several:
        used |= axes.keys()
        for job in _jobs(cell, axes.pop("seed"), axes):
            jobs.setdefault(digest(job.recipe), job)
    if unknown := [f"{key}={value}" for key, value in settings if key not in used]:
        cells[0].resolve(unknown)  # raises an error with the reason
        raise ValueError(f"{unknown[0]}: {cells[0].name} has no such value.")
    return list(jobs.values())


def _of_study(page: Path) -> list[Job]:
    """The runs of all sweeps of a study's page, each recipe once."""
    jobs: dict[str, Job] = {}
    for line in registered.read(page):
        if registered.page_of(line.name) is not None:
            raise ValueError(f"{page} names another study, {line.name}: name the sweep itself.")
        profile, seeds = line.options.get("profile", "auto"), line.options.get("seeds")
        if profile not in get_args(AnyProfile) or (seeds is not None and not seeds.isdecimal()):
            raise ValueError(f"{page}: --profile is one of {', '.join(get_args(AnyProfile))}, and --seeds is a number.")
        found = expand(
            line.name,
            seeds=None if seeds is None else int(seeds),
            methods=line.listed("methods"),
            tasks=line.listed("tasks"),
            grid=line.grid,
            profile=cast(AnyProfile, profile),
        )
        for job in found:
            jobs.setdefault(digest(job.recipe), job)
    return list(jobs.values())


# ── Tasks and methods ─────────────────────────────────────────────────────────────────────────────────────────────────


def _cells(name: str, methods: Sequence[str], tasks: Sequence[str], profile: AnyProfile) -> list[Cell]:
    family = name.partition("/")[0]
    if family == "ablations":
        return _ablations(name, methods, tasks, profile)
    if name in SUITES:
        suite, usual = SUITES[name]
        found = [_task(suite, task) for task in tasks or usual]
    elif own.is_own(name):
        suite, found = "gym", [name]
    elif family not in SEEDS or "/" not in name:
        raise ValueError(_unknown(name, [*sweep_names(), *names()], ", and every recipe (`maskrl recipes list`)"))
    elif tasks:
        raise ValueError(f"{name} is one task already: leave the tasks out, or choose one of {', '.join(SUITES)}.")
    else:
        suite, found = family, [find(name, profile).name]
    each = itertools.product(found, dict.fromkeys(methods or PAIR))
    return [Cell(task, profile, method, SEEDS[suite], longer=name == "dmcontrol-500k") for task, method in each]


def _task(suite: str, task: str) -> str:
    """The recipe's name of a task, which may be given without its suite."""
    return find(task if task.startswith(f"{suite}/") else f"{suite}/{task}").name


def _ablations(name: str, methods: Sequence[str], tasks: Sequence[str], profile: AnyProfile) -> list[Cell]:
    """The rows of one study or of all. Shared rows, such as the Baseline, occur several times; `expand` removes repeats."""
    asked = name.partition("/")[2]
    if asked and asked not in ablations.STUDIES:
        raise ValueError(_unknown(name, sweep_names()))
    cells = []
    for key in [asked] if asked else ablations.STUDIES:
        for task in tasks or ablations.STUDIES[key].tasks:
            cells += [cell for cell in _rows(key, task, profile) if cell.method in (methods or PAIR)]
    if not asked:  # leave out rows that need files made by hand
        cells = [cell for cell in cells if not any(word.startswith("encoder_from=") for word in cell.overrides)]
    if not cells:
        raise ValueError(f"{name} has the methods mlr and baseline, not {', '.join(methods)}.")
    return cells


def _rows(key: str, task: str, profile: AnyProfile) -> Iterator[Cell]:
    """The rows of a study on one task."""
    study, recipe = ablations.STUDIES[key], find(_task("dmcontrol", task), profile)
    for label in study.rows:
        overrides = tuple(ablations.overrides(f"{key}/{label}", recipe))
        method, words = ("baseline", ()) if overrides == ablations.BASELINE else ("mlr", overrides)
        yield Cell(recipe.name, profile, method, study.seeds, words, longer=max(study.frames) > 100_000)


def _unknown(name: str, known: Sequence[str], more: str = "") -> str:
    endings = [other for other in known if other.casefold().endswith(f"/{name}".casefold())]
    likely = next(iter(endings or difflib.get_close_matches(name, known, n=1)), None)
    meant = f": did you mean {likely}?" if likely else "."
    return f"sweep {name!r} is not known{meant} There are {', '.join(sweep_names())}{more}."


# ── Grids and seeds ───────────────────────────────────────────────────────────────────────────────────────────────────


def _setting(word: str) -> tuple[str, str]:
    """The key and the values of a grid argument."""
    key, sign, values = (part.strip() for part in word.partition("="))
    if not key or not sign or re.search(r"\s", key):
        raise ValueError(f"{word}: a grid is key=value,value, such as objective.mask.ratio=0.1,0.5.")
    return key, values


def _axes(cell: Cell, settings: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Key → values, for the keys of a cell's recipe. If the grid sets another objective, its keys count."""
    swaps = [
        f"{key}={value}" for key, value in settings if key == "objective" and "," not in value and "{" not in value
    ]
    recipe = cell.resolve([*cell.overrides, *swaps])
    there = {path: value for path, value in leaves(recipe).items() if not is_unused(recipe, path)}
    axes: dict[str, list[str]] = {}
    for key, text in settings:
        if key in there or any(path.startswith(f"{key}.") for path in there):
            # A single value may contain commas: a tuple, or JSON.
            several = isinstance(there.get(key), tuple | list) or text[:1] in ("[", "{")
            values = text.split(";" if ";" in text or several else ",")
            axes.setdefault(key, []).extend(value.strip() for value in values)
    return {key: list(dict.fromkeys(values)) for key, values in axes.items()}


def _jobs(cell: Cell, seeds: Sequence[str], axes: Mapping[str, Sequence[str]]) -> Iterator[Job]:
    """A job per combination and seed. The directory's name contains the values of keys that have several.

    A run of a sweep has one thread of torch unless the grid sets another number: its results then do not depend on the machine's
    cores or on other runs, and many runs with one thread each are faster than one run with many.
    """
    base, usual = cell.resolve(cell.overrides), []
    if cell.longer and not any(key == "budget" or key.startswith("budget.") for key in axes):
        usual.append(f"budget.frames={as_override(5 * base.frames)}")
    threads = ["threads=1"] if base.threads is None and "threads" not in axes else []
    for values in itertools.product(*axes.values()):
        chosen = {key: f"{key}={value}" for key, value in zip(axes, values, strict=True)}
        told = _told([*cell.overrides, *(chosen[key] for key in axes if len(axes[key]) > 1)])
        overrides, recipe = [*cell.overrides, *usual, *chosen.values(), *threads], None
        for seed in seeds:
            words = (*overrides, f"seed={seed}")
            # Resolve once for all seeds.
            recipe = replace(recipe, seed=int(seed)) if recipe and seed.isdecimal() else cell.resolve(words)
            where = "/".join([recipe.name, recipe.method, *told, f"seed-{recipe.seed}-{digest(recipe)}"])
            yield Job(cell.name, words, recipe.profile, cell.method, recipe, where)


def _told(overrides: Sequence[str]) -> list[str]:
    """Overrides as parts of a directory's name: "mask.strategy=spatial"."""
    words = [re.sub(r"^(objective|agent)\.|\s", "", override) for override in overrides]
    return [re.sub(r"[^\w.,=+-]", "_", " ".join(words).replace(" ", "+"))[:100]] if words else []
