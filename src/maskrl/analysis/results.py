"""The scores of runs as two small files for a repository: enough for `maskrl report` to draw their page again.

scores.csv   a row for every evaluation: method, task, seed, frames, decisions, updates, score, seconds
about.json   the recipe of every method on every task, the versions of everything, the machine, and the commands
"""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maskrl.analysis.protocol import method_of, task_of
from maskrl.analysis.reading import ABOUT, SCORES, run_folders, score_or_nan
from maskrl.files import write_whole
from maskrl.outputs import require_output
from maskrl.recipes.schema import Recipe, as_json
from maskrl.runs.directory import Run

COLUMNS = ("method", "task", "seed", "frames", "decisions", "updates", "score", "seconds", "cpu_seconds")
MARK = b'{\n "commands": ['  # how about.json begins
APART = ("seed", "threads")  # of a recipe: a run's own


class ResultsError(Exception):
    """Runs that cannot be published together; the message says why."""


def publish(
    paths: Sequence[Path], out: Path, *, commands: Sequence[str] = (), force: bool = False
) -> tuple[int, list[str]]:
    """Write the scores of all runs that are done into a folder. Returns how many there are, and which are not done.

    All runs must be of one code: the same versions on the same kind of machine. Replaces earlier results; other files only with
    `force`.
    """
    rows, recipes, versions = list[dict[str, Any]](), dict[tuple[str, str], dict[str, Any]](), dict[str, Any]()
    unfinished, counted, seen = list[str](), 0, set[Path]()
    for folder in (folder for path in paths for folder in run_folders(path, seen)):
        run = Run.open(folder)
        if run.status != "done":
            unfinished.append(f"{folder} is {run.status}")
            continue
        method, task, counted = method_of(run.recipe), task_of(run.recipe), counted + 1
        _require_same(folder, versions or run.versions(), run.versions(), "was made with other versions")
        versions = versions or run.versions()
        mine = _shared(run.recipe)
        _require_same(folder, recipes.setdefault((method, task), mine), mine, f"is another {method} on {task}")
        rows += [_row(run, method, task, event) for event in run.events("evaluation")]
    if not rows:
        raise ResultsError(f"No run is done: {'; '.join(unfinished) or 'there is none'}. Finish them first.")
    rows.sort(key=lambda row: (row["task"], row["method"], row["seed"], row["frames"]))
    told = [{"method": method, "task": task, "recipe": tree} for (method, task), tree in sorted(recipes.items())]
    out.mkdir(parents=True, exist_ok=True)
    about = {"commands": [*commands], "runs": counted, "versions": versions, "recipes": told}
    require_output(out / ABOUT, MARK, force=force)
    require_output(out / SCORES, ",".join(COLUMNS).encode(), force=force)
    write_whole(out / ABOUT, json.dumps(about, indent=1) + "\n")
    write_whole(out / SCORES, _as_csv(rows))
    return counted, unfinished


def _row(run: Run, method: str, task: str, event: dict[str, Any]) -> dict[str, Any]:
    """Round a number for reading, with enough digits for any figure."""
    found = {name: event.get(name) for name in COLUMNS}
    score = score_or_nan(event["score"])
    return found | {"method": method, "task": task, "seed": run.recipe.seed, "score": round(score, 4)}


def _shared(recipe: Recipe) -> dict[str, Any]:
    """The recipe without the values of a single run; its seed is 0."""
    tree: dict[str, Any] = json.loads(as_json(recipe))
    return tree | dict.fromkeys(APART, None) | {"seed": 0}


def _require_same(folder: Path, first: dict[str, Any], other: dict[str, Any], what: str) -> None:
    differing = [key for key in {**first, **other} if first.get(key) != other.get(key)]
    if differing:
        seen = "; ".join(f"{key}: {first.get(key)} and {other.get(key)}" for key in differing)
        raise ResultsError(f"{folder} {what} ({seen}). Publish runs of one study alone.")


def _as_csv(rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
