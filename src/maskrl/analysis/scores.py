"""The scores of runs: read, checked, and told apart by what must agree for them to be comparable.

Reading does not stop at what is wrong: every problem is a sentence in `Scores.problems`, and the rest is there.
"""

import csv
import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from maskrl import recipes
from maskrl.envs import ToyArcade, ToyControl
from maskrl.recipes.published import Unit, players, published_scores
from maskrl.recipes.schema import Profile, Recipe, as_override, difference, leaves
from maskrl.runs.directory import Run, RunError

COLUMNS = ("method", "task", "seed", "score")  # of a CSV, and one of the two units

# What may change a score without being a choice of the method, besides the values of the environment.
PROTOCOL = ("profile", "budget.frames", "budget.decisions", "evaluation.episodes")
SIMULATORS = {"dmcontrol": ("mujoco", "dm_control"), "atari": ("ale-py",)}

# What does not make another method of a recipe: when and where it is run, and what is the protocol's.
NOT_METHOD = (
    *("seed", "device", "threads", "checkpoint_every", "overlap", "compile"),
    *("agent.micro_batch", "replay.storage", "replay.on_device"),
    *("env.", "budget.", "evaluation.every", "evaluation.episodes", "evaluation.side_by_side"),
)

LARGEST = 1e100  # of a score: squares of a larger one soon overflow

Protocol = Mapping[str, Any]  # dotted path of a recipe, or the name of a simulator → value


class ScoresError(Exception):
    """Scores that do not allow what was asked of them; the message says why."""


class Row(NamedTuple):
    """One line of the tidy table."""

    method: str
    task: str
    seed: int
    unit: Unit
    at: int
    score: float


@dataclass(frozen=True)
class RunScores:
    """One run: the unit of replication. What its episodes earned is in the mean of each evaluation and nowhere else."""

    method: str
    task: str  # with its suite: "dmcontrol/walker-walk"
    seed: int
    unit: Unit
    curve: tuple[tuple[int, float], ...]  # (time, score) of every evaluation, in the order of time
    protocol: Protocol
    source: str  # its directory or file

    @property
    def suite(self) -> str:
        return self.task.partition("/")[0]

    @property
    def name(self) -> str:
        return f"{self.method} on {self.task}, seed {self.seed}"

    @property
    def budget(self) -> int | None:
        """When the run is over, in its unit."""
        return cast(int | None, self.protocol.get(f"budget.{self.unit}"))


@dataclass(frozen=True)
class Scores:
    """Runs with their scores, and what was wrong with those that are not among them."""

    runs: tuple[RunScores, ...]
    problems: tuple[str, ...] = ()

    # ── reading and writing ───────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def read(cls, *paths: Path | str, label: Callable[[Recipe], str] | None = None) -> "Scores":
        """Of run directories, folders of them at any depth, and CSV files. `label` says what a recipe's method is called."""
        runs, problems, seen = list[RunScores](), list[str](), set[Path]()
        for path in map(Path, paths):
            if path.is_file():
                found, wrong = _read_csv(path) if path.resolve() not in seen else ([], [])
                seen.add(path.resolve())
            else:
                found, wrong = _read_folder(path, label or method_of, seen)
            runs += found
            problems += wrong
        kept, repeated = _without_repeats(runs)
        return cls(tuple(kept), (*problems, *repeated))

    def rows(self) -> list[Row]:
        """The tidy table: one row per run and evaluation."""
        return [Row(r.method, r.task, r.seed, r.unit, at, score) for r in self.runs for at, score in r.curve]

    def write_csv(self, path: Path) -> None:
        """What `read` reads. The protocol is not in it, but for the task and the budget."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["method", "task", "seed", "frames", "decisions", "score"])
            for row in self.rows():
                times = [row.at if row.unit == unit else "" for unit in get_args(Unit)]
                writer.writerow([row.method, row.task, row.seed, *times, row.score])

    # ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def methods(self) -> list[str]:
        return sorted({run.method for run in self.runs})

    @property
    def tasks(self) -> list[str]:
        return sorted({run.task for run in self.runs})

    @property
    def suites(self) -> list[str]:
        return sorted({run.suite for run in self.runs})

    def where(self, keep: Callable[[RunScores], bool]) -> "Scores":
        """The runs for which that is true; the problems stay."""
        return replace(self, runs=tuple(run for run in self.runs if keep(run)))

    def at(self, time: int | None = None) -> "Scores":
        """One score of every run: at that time, in its own unit, or at the end of its budget. Who has none is a problem."""
        runs, problems = list[RunScores](), list[str]()
        for run in self.runs:
            wanted = run.budget if time is None else time
            score = dict(run.curve).get(wanted) if wanted is not None else None
            if wanted is None or score is None:
                problems.append(
                    f"{run.name} ({run.source}) has no score at {wanted} {run.unit}: its last is at {run.curve[-1][0]}. Left out."
                )
                continue
            protocol = dict(run.protocol) | {f"budget.{run.unit}": wanted}
            runs.append(replace(run, curve=((wanted, score),), protocol=protocol))
        kept, repeated = _without_repeats(runs)  # a run of 500 000 frames may begin with another of 100 000
        return Scores(tuple(kept), (*self.problems, *problems, *repeated))

    def normalised(self) -> "Scores":
        """On a scale that has 0 and 1: random and human player on Atari, random and perfect play of a toy, 0 and 1000 points
        on DMControl. A task without such a scale is a problem.
        """
        problems = [
            f"{task} has no scale to normalise its scores with: left out." for task in self.tasks if not scale(task)
        ]

        def on_scale(run: RunScores) -> RunScores:
            zero, one = scale(run.task) or (0.0, 1.0)
            return replace(run, curve=tuple((at, (score - zero) / (one - zero)) for at, score in run.curve))

        runs = tuple(on_scale(run) for run in self.runs if scale(run.task))
        return Scores(runs, (*self.problems, *problems))

    # ── numbers: of scores that have been taken at one time ───────────────────────────────────────────────────────

    def values(self, method: str, task: str) -> NDArray[np.float64]:
        """The score of every run of a method on a task, by seed."""
        mine = sorted((run for run in self.runs if (run.method, run.task) == (method, task)), key=lambda run: run.seed)
        several = next((run for run in mine if len(run.curve) > 1), None)
        if several is not None:
            raise ScoresError(f"{several.name} has {len(several.curve)} scores: choose a time with Scores.at().")
        return np.array([run.curve[0][1] for run in mine])

    def matrix(self, method: str, tasks: Sequence[str], *, mixed: bool = False) -> NDArray[np.float64]:
        """(runs, tasks), for the aggregates. As many runs as the task with the fewest has, those with the smallest seeds.

        Refused if runs on these tasks, of this or another method, differ in their protocol, unless `mixed`.
        """
        if not mixed:
            self.where(lambda run: run.task in tasks).require_one_protocol()
        columns = [self.values(method, task) for task in tasks]
        missing = [task for task, column in zip(tasks, columns, strict=True) if not len(column)]
        if missing or not tasks:
            raise ScoresError(f"{method} has no scores on {', '.join(missing) or 'no task'}.")
        runs = min(map(len, columns))
        return np.stack([column[:runs] for column in columns], axis=1)

    # ── protocol ──────────────────────────────────────────────────────────────────────────────────────────────────

    def conflicts(self) -> list[str]:
        """Where runs differ in what must agree: values of the environment within a task, everything else within a suite."""
        seen: dict[tuple[str, str], dict[str, list[RunScores]]] = defaultdict(lambda: defaultdict(list))
        for run in self.runs:
            for path, value in run.protocol.items():
                scope = run.task if path.startswith("env.") else run.suite
                seen[scope, path][as_override(value)].append(run)
        return [
            f"{scope}: {path} is " + ", ".join(f"{value} in {_counted(runs)}" for value, runs in by_value.items())
            for (scope, path), by_value in seen.items()
            if len(by_value) > 1
        ]

    def groups(self) -> list["Scores"]:
        """The runs that may be put together, apart from those with which they may not: each group has one protocol.

        A run joins the first group that it does not contradict; what it does not tell contradicts nothing. Values of the
        environment are compared by how they depart from the recipe of the task, so that a group has all of its tasks.
        """
        groups: list[tuple[dict[tuple[str, str], str], list[RunScores]]] = []
        for run in self.runs:
            told = _told(run)
            agreeing = (
                group for group in groups if all(group[0].get(place, value) == value for place, value in told.items())
            )
            group = next(agreeing, None)
            if group is None:
                group = ({}, [])
                groups.append(group)
            group[0].update(told)
            group[1].append(run)
        return [replace(self, runs=tuple(members)) for _, members in groups]

    def require_one_protocol(self) -> None:
        """Refuse runs that cannot be compared, and show in what they differ."""
        if conflicts := self.conflicts():
            listed = "\n".join(f"  {line}" for line in conflicts)
            raise ScoresError(
                f"These runs do not have the same protocol:\n{listed}\nChoose among them, or ask for a mixture."
            )


# ── Protocol and method of a recipe ───────────────────────────────────────────────────────────────────────────────────


def protocol_of(recipe: Recipe, versions: Mapping[str, Any] | None = None) -> Protocol:
    """What must agree for two scores to be comparable, as far as it is told: a version that is not known is not in it."""
    from_recipe = {path: value for path, value in leaves(recipe).items() if path.startswith("env.") or path in PROTOCOL}
    simulators = SIMULATORS.get(recipe.env.kind, ())
    return from_recipe | {package: value for package, value in (versions or {}).items() if package in simulators}


def _told(run: RunScores) -> dict[tuple[str, str], str]:
    """(where it must agree, path) → value. The suite is one of the places, so that suites are groups of their own."""
    own = _own_protocol(run.task, run.protocol.get("profile"))
    told = {("", "suite"): run.suite, ("", "unit"): run.unit}
    for path, value in run.protocol.items():
        if path.startswith("env."):
            told[run.task, path] = as_override(value)
            if path in own and path != "env.task":
                told["", path] = "its own" if value == own[path] else as_override(value)
        else:
            told["", path] = as_override(value)
    return told


@cache
def _own_protocol(task: str, profile: Profile | None) -> Protocol:
    named = None if profile is None else _named(task, profile, "mlr")
    return {} if named is None else protocol_of(named)


def protocol_hash(protocol: Protocol) -> str:
    """Eight characters, the same for the same protocol whatever the order."""
    return hashlib.sha256(json.dumps(dict(protocol), sort_keys=True).encode()).hexdigest()[:8]


def protocol_difference(a: Protocol, b: Protocol) -> list[str]:
    """Where two protocols differ in what both of them tell: "env.size: 100 -> 48"."""
    return [
        f"{path}: {as_override(a[path])} -> {as_override(b[path])}" for path in a if path in b and a[path] != b[path]
    ]


def method_of(recipe: Recipe) -> str:
    """The recipe's method, followed by what sets it apart from the recipe of that name: "mlr objective.mask.ratio=0.3".

    So runs that compute something else are never averaged as if they were seeds of one method.
    """
    named = _named(recipe.name, recipe.profile, recipe.method)
    changes = [] if named is None else difference(named, recipe)
    kept = [line.partition(": ") for line in changes if not line.startswith(NOT_METHOD)]
    told = {path: values.partition(" -> ")[2] for path, _, values in kept}
    if "encoder_from" in told:  # a file for every task and seed, and one method
        general = told["encoder_from"].replace(recipe.name, "{task}")
        told["encoder_from"] = re.sub(rf"(?<!\d){recipe.seed}(?!\d)", "{seed}", general)
    return " ".join([recipe.method, *(f"{path}={value}" for path, value in told.items())])


@cache
def _named(name: str, profile: Profile, method: str) -> Recipe | None:
    try:
        return recipes.find(name, profile, method)
    except ValueError:  # a recipe of the user's own
        return None


def scale(task: str) -> tuple[float, float] | None:
    """Which scores are 0 and 1 when they are normalised."""
    suite, _, name = task.partition("/")
    if suite == "dmcontrol":
        return 0.0, 1000.0  # a frame earns at most 1, and an episode has 1000
    for toy in (ToyControl, ToyArcade):
        if (suite, name) == ("toy", toy.task):
            return toy.random_return, toy.optimal_return
    return players(task)


# ── Run directories ───────────────────────────────────────────────────────────────────────────────────────────────────


def run_folders(path: Path) -> list[Path]:
    """Every run directory in a folder, at any depth."""
    return sorted(file.parent for file in path.rglob("recipe.json"))


def _read_folder(path: Path, label: Callable[[Recipe], str], seen: set[Path]) -> tuple[list[RunScores], list[str]]:
    """Of the runs in it that have not been seen: paths may overlap."""
    if not path.is_dir():
        return [], [f"{path} does not exist."]
    folders = run_folders(path)
    if not folders:
        return [], [f"{path} holds no run: there is no recipe.json in it or below."]
    runs, problems = list[RunScores](), list[str]()
    for folder in folders:
        if folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        try:
            run, wrong = _read_run(folder, label)
        except RunError as error:
            problems.append(f"{error} Left out.")
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:  # a damaged file
            problems.append(f"{folder} cannot be read ({type(error).__name__}: {error}). Left out.")
        else:
            runs += [run] if run.curve else []
            problems += wrong
    return runs, problems


def _read_run(folder: Path, label: Callable[[Recipe], str]) -> tuple[RunScores, list[str]]:
    opened = Run.open(folder)
    recipe = opened.recipe
    unit: Unit = "decisions" if recipe.budget.frames is None else "frames"
    task = f"{recipe.name.partition('/')[0]}/{recipe.env.task}"
    evaluations = [(int(event[unit]), _score(event["score"])) for event in opened.events("evaluation")]
    curve = sorted({at: score for at, score in evaluations if math.isfinite(score)}.items())
    run = RunScores(
        label(recipe), task, recipe.seed, unit, tuple(curve), protocol_of(recipe, opened.versions()), str(folder)
    )
    return run, list(_run_problems(run, opened.status, [at for at, score in evaluations if not math.isfinite(score)]))


def _run_problems(run: RunScores, status: str, not_finite: Sequence[int]) -> Iterator[str]:
    if unknown := [package for package in SIMULATORS.get(run.suite, ()) if package not in run.protocol]:
        yield f"{run.name} ({run.source}) does not tell its version of {', '.join(unknown)}."
    for at in not_finite:
        yield f"{run.name} ({run.source}): the score at {at} {run.unit} is not a finite number. Left out."
    if not run.curve:
        yield f"{run.name} ({run.source}) has no evaluation; its status is {status}. Left out."
    elif run.budget is not None and run.curve[-1][0] < run.budget:
        yield f"{run.name} ({run.source}) is at {run.curve[-1][0]} of {run.budget} {run.unit}; its status is {status}."


def _score(value: Any) -> float:
    """Not a number if there is none, or if it is larger than any score."""
    try:
        score = math.nan if value is None else float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.nan
    return score if abs(score) <= LARGEST else math.nan


def _without_repeats(runs: Iterable[RunScores]) -> tuple[list[RunScores], list[str]]:
    """One run of every seed, method, task and protocol: another is the same experiment again, and no further evidence."""
    kept: dict[tuple[str, str, int], list[RunScores]] = defaultdict(list)
    problems = []
    for run in runs:
        same_seed = kept[run.method, run.task, run.seed]
        first = next((other for other in same_seed if not protocol_difference(other.protocol, run.protocol)), None)
        if first is None:
            same_seed.append(run)
        else:
            problems.append(f"{run.name} is there twice: {first.source} is kept and {run.source} left out.")
    return [run for same_seed in kept.values() for run in same_seed], problems


def _counted(runs: Sequence[RunScores]) -> str:
    shown = ", ".join(run.source for run in runs[:3]) + (", …" if len(runs) > 3 else "")
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''} ({shown})"


# ── CSV ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_csv(path: Path) -> tuple[list[RunScores], list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = [name.strip().lower() for name in next(reader, [])]
            lines = [(reader.line_num, dict(zip(names, line, strict=False))) for line in reader if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        return [], [f"{path} cannot be read as a CSV: {error}."]
    units = [unit for unit in get_args(Unit) if unit in names]
    missing = [name for name in COLUMNS if name not in names] + ([] if units else ["frames or decisions"])
    if missing:
        return [], [f"{path} has the columns {', '.join(names) or 'none'}; there is no {', no '.join(missing)}."]
    curves: dict[tuple[str, str, int, Unit], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    problems = [] if lines else [f"{path} has no rows."]
    for number, line in lines:
        try:
            key, at, score = _parsed(line, units)
        except (ValueError, KeyError):
            problems.append(f"{path}, line {number}: cannot be read: {line}. Left out.")
            continue
        if math.isfinite(score):
            curves[key][at].append(score)
        else:
            problems.append(f"{path}, line {number}: the score is not a finite number. Left out.")
    runs, last = list[RunScores](), defaultdict[tuple[str, Unit], int](int)
    for (_, task, _, unit), curve in curves.items():  # a seed that ends before others has not got to its budget
        last[task, unit] = max(last[task, unit], *curve)
    for (method, task, seed, unit), curve in curves.items():
        twice = [at for at, scores in curve.items() if len(scores) > 1]
        if twice:
            problems.append(
                f"{path}: {method} on {task}, seed {seed} has {len(curve[twice[0]])} scores at {twice[0]} {unit}. A run has one: "
                "episodes are no seeds. This run is left out."
            )
            continue
        points = tuple(sorted((at, scores[0]) for at, scores in curve.items()))
        other = next(name for name in get_args(Unit) if name != unit)
        protocol = {"env.task": task.partition("/")[2], f"budget.{unit}": last[task, unit], f"budget.{other}": None}
        runs.append(RunScores(method, task, seed, unit, points, protocol, str(path)))
    return runs, problems


def _parsed(line: Mapping[str, str], units: Sequence[Unit]) -> tuple[tuple[str, str, int, Unit], int, float]:
    """Which run, at what time, and the score. A row with both times is counted as its benchmark does."""
    task = _full_name(line["task"])
    told: list[Unit] = [unit for unit in units if line.get(unit, "").strip()]
    if not told:
        raise ValueError("A row has a time.")
    unit = told[-1] if task.startswith("atari/") else told[0]  # decisions are the last of the two
    return (line["method"].strip(), task, _whole(line["seed"]), unit), _whole(line[unit]), _score(line["score"])


def _whole(text: str) -> int:
    """A whole number, which may be written as 1e5 or 1.0."""
    if not float(text).is_integer():
        raise ValueError(f"{text} is not a whole number.")
    return int(float(text))


def _full_name(task: str) -> str:
    """With its suite: "walker-walk" of the paper's tables is "dmcontrol/walker-walk"; others stay as they are."""
    task = task.strip()
    return task if "/" in task else _papers_tasks().get(task, f"other/{task}")


@cache
def _papers_tasks() -> dict[str, str]:
    return {score.task.partition("/")[2]: score.task for score in published_scores()}
