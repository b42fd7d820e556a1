"""Read the scores of runs from run directories and CSV files.

Reading continues after a problem: a reader returns all readable runs, and a sentence for every problem.
"""

import csv
import io
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

from maskrl.analysis.about import ABOUT, About, Made, read_about
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
from maskrl.words import count

SCORES, PROBES = "scores.csv", "probes.csv"  # files of `maskrl results`, beside about.json
COLUMNS = ("method", "task", "seed", "score")  # of a CSV, besides one of the two units
CSV = 1 << 28  # maximum bytes of a CSV
LARGEST = 1e100  # maximum score: squares of larger ones overflow
LONGEST = 1000  # characters of the name of a method or task: a page has it many times
SHOWN = 100  # characters of a row in a problem

Identity = tuple[str, str, str, int, Unit]  # what only one run has
Rows = Sequence[tuple[int, Mapping[str, str]]]  # of a CSV: the number of the line, and column → text


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
    def identity(self) -> Identity:
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


@dataclass(frozen=True)
class Results:
    """A folder of published results: how its scores were made, the rows of its scores.csv, and their runs."""

    folder: Path
    about: About
    rows: Rows
    runs: tuple[RunScores, ...]


@dataclass
class Found:
    """What was read: runs, a sentence for every problem, and the folders of published results among the sources."""

    runs: list[RunScores] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    results: list[Results] = field(default_factory=list)


def read(paths: Iterable[Path]) -> Found:
    """Read run directories, folders of them at any depth, published results and CSV files. Each is read once: paths may overlap."""
    found, seen = Found(), set[Path]()
    for path in paths:
        if not path.is_file():
            _read_folder(path, seen, found)
        elif (folder := _results_of(path)) is not None:
            _read_results([folder], seen, found)
        elif _is_new(path.resolve(), seen):
            _, runs, problems = _read_csv(path, path.resolve(), {})
            found.runs += runs
            found.problems += problems
    return found


def score_or_nan(value: Any) -> float:
    """The value as a score; NaN if it is missing, no number, or too large."""
    try:
        score = math.nan if value is None else float(value)
    except (ValueError, OverflowError):  # text, or an integer of hundreds of digits
        return math.nan
    return score if abs(score) <= LARGEST else math.nan


def run_folders(path: Path, seen: set[Path]) -> Iterator[Path]:
    """Every run directory in a folder, at any depth, except those in `seen`: paths may overlap."""
    return (folder for folder in _folders_with(path, "recipe.json") if _is_new(folder.resolve(), seen))


def _folders_with(path: Path, name: str) -> list[Path]:
    """The folders at any depth that contain an entry of this name, even a broken link."""
    return sorted(Path(place) for place, folders, files in os.walk(path) if name in (*folders, *files))


def _is_new(there: Path, seen: set[Path]) -> bool:
    """Whether a place is not in `seen`; adds it."""
    is_new = there not in seen
    seen.add(there)
    return is_new


def _read_folder(path: Path, seen: set[Path], found: Found) -> None:
    """Read the runs in a folder, except those in `seen`."""
    if not path.is_dir():
        there = f"is {kind_of(path.lstat().st_mode)}" if os.path.lexists(path) else "does not exist"
        found.problems.append(f"{path} {there}. Name a run, a folder of runs or a CSV file.")
        return
    results, runs = _folders_with(path, ABOUT), _folders_with(path, "recipe.json")
    if not results and not runs:
        found.problems.append(f"{path} holds no run: there is no recipe.json in it or below.")
    _read_results(results, seen, found)
    for folder in (one for one in runs if _is_new(one.resolve(), seen)):
        try:
            run, wrong = _read_run(folder)
        except RunError as error:
            found.problems.append(f"{error} Left out.")
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:  # a damaged file
            found.problems.append(f"{folder} cannot be read ({type(error).__name__}: {error}). Left out.")
        else:
            found.runs += [run] if run.curve else []
            found.problems += wrong


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


def _results_of(path: Path) -> Path | None:
    """The folder of published results whose scores.csv this is; None for any other CSV. Follows a link that the user named."""
    there = path.resolve() if path.is_symlink() else path
    return there.parent if there.name == SCORES and os.path.lexists(there.parent / ABOUT) else None


def _read_results(folders: Iterable[Path], seen: set[Path], found: Found) -> None:
    """Read folders that `maskrl results` wrote, except those in `seen`: scores, and the protocol from their recipes."""
    for folder in (one for one in folders if _is_new(one.resolve() / ABOUT, seen)):
        about, path = read_about(folder), folder / SCORES
        units = {made: unit_of(recipe) for made, recipe in about.recipes.items()}
        rows, runs, problems = _read_csv(path, path, units)
        known = [replace(run, protocol=about.protocols.get((run.method, run.task), run.protocol)) for run in runs]
        without = sorted({f"{run.method} on {run.task}" for run in runs if (run.method, run.task) not in units})
        untold = [f"{folder / ABOUT} has no recipe of {'; '.join(without[:3])}{'; …' if len(without) > 3 else ''}."]
        found.runs += known
        found.problems += [*problems, *(about.problems or untold * bool(without))]
        found.results.append(Results(folder, about, rows, tuple(known)))


# ── CSV files ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_Key = tuple[str, str, int, Unit]  # of a run: method, task, seed, unit


def read_rows(path: Path, there: Path | None = None) -> tuple[list[str], Rows]:
    """The column names of a CSV, and its rows. Raises RunError if it cannot be read.

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


def _read_csv(path: Path, there: Path, known: Mapping[Made, Unit]) -> tuple[Rows, list[RunScores], list[str]]:
    """The rows of a CSV with a row per evaluation, their runs, and problems.

    `there`: the resolved path, not a link, pipe or device. `known`: the units of these runs' budgets.
    """
    try:
        names, rows = read_rows(path, there)
    except RunError as error:
        return [], [], [str(error)]
    units = [unit for unit in get_args(Unit) if unit in names]
    missing = [name for name in COLUMNS if name not in names] + ([] if units else ["frames or decisions"])
    if missing:
        return [], [], [f"{path} has the columns {', '.join(names) or 'none'}; there is no {', no '.join(missing)}."]
    if not rows:
        return [], [], [f"{path} has no rows."]
    curves = defaultdict[_Key, dict[int, list[float]]](lambda: defaultdict(list))
    wrong = defaultdict[str, list[int]](list)  # what is wrong → places of rows
    for place, (_, row) in enumerate(rows):
        try:
            key, at, score = _parsed(row, units, known)
        except ValueError as error:
            wrong[str(error)].append(place)
        else:
            curves[key][at].append(score)
    problems = [
        f"{of_lines(path, [rows[place][0] for place in places])}: {what} ({','.join(rows[places[0]][1].values())[:SHOWN]}). "
        "Left out."
        for what, places in wrong.items()
    ]
    runs, repeated = _runs_of(path, curves)
    return rows, runs, problems + repeated


def of_lines(path: Path, lines: Sequence[int]) -> str:
    """The place of a problem that several lines of a file have: the first one, and how many more."""
    return f"{path}, line {lines[0]}{f' and {len(lines) - 1:,} more' if len(lines) > 1 else ''}"


def _runs_of(path: Path, curves: Mapping[_Key, Mapping[int, Sequence[float]]]) -> tuple[list[RunScores], list[str]]:
    """The runs of the rows, each with one score per time, and problems. A run's budget is the latest time of its task."""
    runs, repeated, last = list[RunScores](), list[str](), defaultdict[tuple[str, Unit], int](int)
    for (_, task, _, unit), curve in curves.items():
        last[task, unit] = max(last[task, unit], *curve)
    for (method, task, seed, unit), curve in curves.items():
        twice = next((at for at, scores in curve.items() if len(scores) > 1), None)
        if twice is not None:
            repeated.append(f"{method} on {task}, seed {seed} has {len(curve[twice])} scores at {twice} {unit}")
            continue
        points = tuple(sorted((at, scores[0]) for at, scores in curve.items()))
        budget = {f"budget.{name}": last[task, unit] if name == unit else None for name in get_args(Unit)}
        runs.append(
            RunScores(method, task, seed, unit, points, {"env.task": task.partition("/")[2], **budget}, str(path))
        )
    if not repeated:
        return runs, []
    more = len(repeated) - 1
    others = (
        f", and {count(more, 'more run')} {'have' if more > 1 else 'has'} several scores at one time" if more else ""
    )
    left_out = "They are left out" if more else "It is left out"
    return runs, [f"{path}: {repeated[0]}{others}. A run has one: episodes are not seeds. {left_out}."]


def _parsed(row: Mapping[str, str], units: Sequence[Unit], known: Mapping[Made, Unit]) -> tuple[_Key, int, float]:
    """The run's key, the time and the score of a row. Raises ValueError, without a value of the row, if it lacks one of them.

    The unit of the run's budget counts. If that is unknown and the row has both units, the benchmark's counts.
    """
    method, task, seed = run_of(row)
    unit = known.get((method, task))
    if unit is None:
        told = [unit for unit in units if row.get(unit, "").strip()]
        if not told:
            raise ValueError("frames or decisions is missing")
        unit = told[-1] if task.startswith("atari/") else told[0]  # decisions come last
    elif not row.get(unit, "").strip():
        raise ValueError(f"{unit} is missing, the unit of the budget in {ABOUT}")
    score = score_or_nan(row.get("score"))
    if not math.isfinite(score):
        raise ValueError("score is not a finite number")
    return (method, task, seed, unit), whole(row, unit), score


def run_of(row: Mapping[str, str]) -> tuple[str, str, int]:
    """The run of a CSV's row: method, task with its suite, seed. Raises ValueError if the row does not say it."""
    for name in ("method", "task"):
        if name not in row:
            raise ValueError(f"{name} is missing")
        if len(row[name]) > LONGEST:
            raise ValueError(f"{name} has more than {LONGEST:,} characters")
    return row["method"].strip(), _full_name(row["task"]), whole(row, "seed")


def whole(row: Mapping[str, str], name: str) -> int:
    """Parse a whole number, which may be written as 1e5 or 1.0. Raises ValueError for anything else."""
    try:
        value = float(row.get(name, ""))
    except ValueError:
        value = math.nan
    if not value.is_integer():
        raise ValueError(f"{name} is not a whole number")
    return int(value)


def _full_name(task: str) -> str:
    """The task with its suite: "walker-walk" becomes "dmcontrol/walker-walk"; unknown tasks are unchanged."""
    task = task.strip()
    return task if "/" in task else _papers_tasks().get(task, f"other/{task}")


@cache
def _papers_tasks() -> dict[str, str]:
    return {score.task.partition("/")[2]: score.task for score in published_scores()}
