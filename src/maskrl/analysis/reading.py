"""Read the scores of runs from run directories and CSV files.

Reading continues after a problem: a reader returns all readable runs, and a sentence for every problem.
"""

import csv
import io
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

from maskrl.analysis.about import ABOUT, Made, read_about
from maskrl.analysis.protocol import (
    Protocol,
    method_of,
    named_recipe,
    papers_protocol,
    protocol_difference,
    protocol_of,
    task_of,
    unit_of,
)
from maskrl.files import kind_of, read_bytes
from maskrl.recipes.published import Unit, published_scores
from maskrl.runs.directory import Run, RunError

COLUMNS = ("method", "task", "seed", "score")  # of a CSV, besides one of the two units
CSV = 1 << 28  # maximum bytes of a CSV
LARGEST = 1e100  # maximum score: squares of larger ones overflow


@dataclass(frozen=True)
class RunScores:
    """One run, the unit of replication. Returns of episodes count only through the mean of each evaluation."""

    method: str
    task: str  # with the suite: "dmcontrol/walker-walk"
    seed: int
    unit: Unit
    curve: tuple[tuple[int, float], ...]  # (time, score) of every evaluation, in order
    protocol: Protocol
    source: str  # its directory or file

    @property
    def suite(self) -> str:
        return self.task.partition("/")[0]

    @property
    def name(self) -> str:
        return f"{self.method} on {self.task}, seed {self.seed}"

    @property
    def identity(self) -> tuple[str, str, str, int, Unit]:
        """What only this run has: a file may hold many runs."""
        return self.source, self.method, self.task, self.seed, self.unit

    @property
    def budget(self) -> int | None:
        """The run's budget in its unit; None if unknown."""
        return cast(int | None, self.protocol.get(f"budget.{self.unit}"))

    @property
    def departures(self) -> list[str]:
        """Differences from the paper's protocol: "env.size: 100 -> 48". Empty on tasks that the paper does not have."""
        return protocol_difference(papers_protocol(self.task), self.protocol)


Found = tuple[list[RunScores], list[str]]  # runs and problems


def score_or_nan(value: Any) -> float:
    """The value as a score; NaN if it is missing or too large."""
    try:
        score = math.nan if value is None else float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.nan
    return score if abs(score) <= LARGEST else math.nan


def run_folders(path: Path, seen: set[Path]) -> Iterator[Path]:
    """Every run directory in a folder, at any depth, except those in `seen`: paths may overlap."""
    for folder in _folders_with(path, "recipe.json"):
        if folder.resolve() not in seen:
            seen.add(folder.resolve())
            yield folder


def results_folders(path: Path, seen: set[Path]) -> Iterator[Path]:
    """Every folder of published results in a folder, at any depth, except those in `seen`."""
    for folder in _folders_with(path, ABOUT):
        if (about := folder.resolve() / ABOUT) not in seen:
            seen.add(about)
            yield folder


def _folders_with(path: Path, name: str) -> list[Path]:
    """The folders at any depth that contain an entry of this name, even a broken link."""
    return sorted(Path(place) for place, folders, files in os.walk(path) if name in (*folders, *files))


def read_folder(path: Path, seen: set[Path]) -> Found:
    """Read the runs in a folder, except those in `seen`."""
    if not path.is_dir():
        there = f"is {kind_of(path.lstat().st_mode)}" if os.path.lexists(path) else "does not exist"
        return [], [f"{path} {there}. Name a run, a folder of runs or a CSV file."]
    runs, problems = list[RunScores](), list[str]()
    for folder in results_folders(path, seen):
        found, wrong = read_results(folder)
        runs += found
        problems += wrong
    if not runs and not problems and next(run_folders(path, set()), None) is None:
        return [], [f"{path} holds no run: there is no recipe.json in it or below."]
    for folder in run_folders(path, seen):
        try:
            run, wrong = _read_run(folder)
        except RunError as error:
            problems.append(f"{error} Left out.")
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:  # a damaged file
            problems.append(f"{folder} cannot be read ({type(error).__name__}: {error}). Left out.")
        else:
            runs += [run] if run.curve else []
            problems += wrong
    return runs, problems


def _read_run(folder: Path) -> tuple[RunScores, list[str]]:
    opened = Run.open(folder)
    recipe, unit = opened.recipe, unit_of(opened.recipe)
    evaluations = [(int(event[unit]), score_or_nan(event["score"])) for event in opened.events("evaluation")]
    curve = tuple(sorted({at: score for at, score in evaluations if math.isfinite(score)}.items()))
    protocol = protocol_of(recipe, opened.versions())
    run = RunScores(method_of(recipe), task_of(recipe), recipe.seed, unit, curve, protocol, str(folder))
    return run, list(_run_problems(run, opened.status, [at for at, score in evaluations if not math.isfinite(score)]))


def _run_problems(run: RunScores, status: str, not_finite: Sequence[int]) -> Iterator[str]:
    named = named_recipe(run.task, "lite")
    if unknown := [name for name in (named.env.packages if named else ()) if name not in run.protocol]:
        yield f"{run.name} ({run.source}) does not record its version of {', '.join(unknown)}."
    for at in not_finite:
        yield f"{run.name} ({run.source}): the score at {at} {run.unit} is not a finite number. Left out."
    if not run.curve:
        yield f"{run.name} ({run.source}) has no evaluation; its status is {status}. Left out."
    elif run.budget is not None and run.curve[-1][0] < run.budget:
        yield f"{run.name} ({run.source}) is at {run.curve[-1][0]} of {run.budget} {run.unit}; its status is {status}."


# ── Published results ─────────────────────────────────────────────────────────────────────────────────────────────────

SCORES, PROBES = "scores.csv", "probes.csv"  # files of `maskrl results`, beside about.json


def read_results(folder: Path) -> Found:
    """Read the runs of a study that `maskrl results` wrote: scores, and the protocol from their recipes."""
    about = read_about(folder)
    units = {made: unit_of(recipe) for made, recipe in about.recipes.items()}
    runs, problems = _read_csv(folder / SCORES, folder / SCORES, units)
    known = [replace(run, protocol=about.protocols.get((run.method, run.task), run.protocol)) for run in runs]
    without = sorted({f"{run.method} on {run.task}" for run in runs if (run.method, run.task) not in about.recipes})
    untold = [f"{folder / ABOUT} has no recipe of {'; '.join(without[:3])}{'; …' if len(without) > 3 else ''}."]
    return known, [*problems, *(about.problems or untold * bool(without))]


# ── CSV files ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_Key = tuple[str, str, int, Unit]  # of a run: method, task, seed, unit


def read_csv(path: Path) -> Found:
    """Read the runs of a CSV with a row per evaluation. Follows a link that the user named."""
    return _read_csv(path, path.resolve(), {})


def read_rows(path: Path, there: Path | None = None) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The column names of a CSV, and its rows with their line numbers. Raises RunError if it cannot be read.

    `there`: the resolved path, if a link may be followed.
    """
    there = there or path
    try:
        text = read_bytes(there.parent, there.name, most=CSV).decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""))
        names = [name.strip().lower() for name in next(reader, [])]
        return names, [(reader.line_num, dict(zip(names, line, strict=False))) for line in reader if line]
    except (OSError, RunError, UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"{path} cannot be read as a CSV: {error}.") from None


def _read_csv(path: Path, there: Path, known: Mapping[Made, Unit]) -> Found:
    """`there`: the resolved path, not a link, pipe or device. `known`: the units of these runs' budgets."""
    try:
        names, lines = read_rows(path, there)
    except RunError as error:
        return [], [str(error)]
    units = [unit for unit in get_args(Unit) if unit in names]
    missing = [name for name in COLUMNS if name not in names] + ([] if units else ["frames or decisions"])
    if missing:
        return [], [f"{path} has the columns {', '.join(names) or 'none'}; there is no {', no '.join(missing)}."]
    if not lines:
        return [], [f"{path} has no rows."]
    curves, problems = defaultdict[_Key, dict[int, list[float]]](lambda: defaultdict(list)), list[str]()
    for number, line in lines:
        try:
            key, at, score = _parsed(line, units, known)
        except (ValueError, KeyError):
            problems.append(f"{path}, line {number}: cannot be read: {line}. Left out.")
            continue
        if math.isfinite(score):
            curves[key][at].append(score)
        else:
            problems.append(f"{path}, line {number}: the score is not a finite number. Left out.")
    runs, repeated = _runs_of(path, curves)
    return runs, problems + repeated


def _runs_of(path: Path, curves: Mapping[_Key, Mapping[int, Sequence[float]]]) -> Found:
    """The runs of the rows, each with one score per time. A run's budget is the latest time of its task."""
    runs, problems, last = list[RunScores](), list[str](), defaultdict[tuple[str, Unit], int](int)
    for (_, task, _, unit), curve in curves.items():
        last[task, unit] = max(last[task, unit], *curve)
    for (method, task, seed, unit), curve in curves.items():
        twice = next((at for at, scores in curve.items() if len(scores) > 1), None)
        if twice is not None:
            problems.append(
                f"{path}: {method} on {task}, seed {seed} has {len(curve[twice])} scores at {twice} {unit}. A run has one: "
                "episodes are not seeds. This run is left out."
            )
            continue
        points = tuple(sorted((at, scores[0]) for at, scores in curve.items()))
        budget = {f"budget.{name}": last[task, unit] if name == unit else None for name in get_args(Unit)}
        runs.append(
            RunScores(method, task, seed, unit, points, {"env.task": task.partition("/")[2], **budget}, str(path))
        )
    return runs, problems


def _parsed(line: Mapping[str, str], units: Sequence[Unit], known: Mapping[Made, Unit]) -> tuple[_Key, int, float]:
    """The run's key, the time and the score of a row. If a row has both units, the unit of the run's budget counts; if that is
    unknown, the benchmark's.
    """
    method, task, seed = run_of(line)
    told: list[Unit] = [unit for unit in units if line.get(unit, "").strip()]
    if not told:
        raise ValueError("A row must have a time.")
    usual = told[-1] if task.startswith("atari/") else told[0]  # decisions come last
    unit = known.get((method, task), usual)
    unit = unit if unit in told else usual
    return (method, task, seed, unit), whole(line[unit]), score_or_nan(line["score"])


def run_of(row: Mapping[str, str]) -> tuple[str, str, int]:
    """The run of a CSV's row: method, task with its suite, seed. Raises KeyError or ValueError if the row does not say it."""
    return row["method"].strip(), _full_name(row["task"]), whole(row["seed"])


def whole(text: str) -> int:
    """Parse a whole number, which may be written as 1e5 or 1.0."""
    if not float(text).is_integer():
        raise ValueError(f"{text} is not a whole number.")
    return int(float(text))


def _full_name(task: str) -> str:
    """The task with its suite: "walker-walk" becomes "dmcontrol/walker-walk"; unknown tasks are unchanged."""
    task = task.strip()
    return task if "/" in task else _papers_tasks().get(task, f"other/{task}")


@cache
def _papers_tasks() -> dict[str, str]:
    return {score.task.partition("/")[2]: score.task for score in published_scores()}
