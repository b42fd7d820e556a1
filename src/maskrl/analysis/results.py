"""Write the scores of runs as small files for a repository, from which `maskrl report` can rebuild their page.

scores.csv   a row per evaluation: method, task, seed, frames, decisions, updates, score, seconds
probes.csv   a row per probe of the encoder during training, and the final linear probe if `maskrl probe` was run
about.json   the recipe of every method on every task, all versions, the machine, and the commands
"""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maskrl.analysis.protocol import method_of, task_of
from maskrl.analysis.reading import ABOUT, SCORES, run_folders, score_or_nan
from maskrl.files import read_object, write_whole
from maskrl.outputs import require_output
from maskrl.recipes.schema import Recipe, as_json
from maskrl.runs.directory import Run

COLUMNS = ("method", "task", "seed", "frames", "decisions", "updates", "score", "seconds", "cpu_seconds")
PROBES = (
    "method",
    "task",
    "seed",
    "frames",
    "encoder_cosine",
    "decoder_cosine",
    "rank",
    "dead",
    "r2",
    "r2_random_encoder",
)
MARK = b'{\n "commands": ['  # the beginning of about.json
APART = ("seed", "threads")  # values of a recipe that differ between runs


class ResultsError(Exception):
    """Runs that cannot be published together; the message says why."""


def publish(
    paths: Sequence[Path], out: Path, *, commands: Sequence[str] = (), force: bool = False
) -> tuple[int, list[str]]:
    """Write the scores of all finished runs into a folder. Returns their number, and sentences about unfinished runs.

    All runs must have the same versions and the same kind of machine. Replaces earlier results; other files only with `force`.
    """
    rows, recipes, versions = list[dict[str, Any]](), dict[tuple[str, str], dict[str, Any]](), dict[str, Any]()
    unfinished, counted, seen, probes = list[str](), 0, set[Path](), list[dict[str, Any]]()
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
        probes += _probes(run, method, task)
    if not rows:
        raise ResultsError(f"No run is done: {'; '.join(unfinished) or 'there is none'}. Finish them first.")
    for some in (rows, probes):
        some.sort(key=lambda row: (row["task"], row["method"], row["seed"], row["frames"]))
    told = [{"method": method, "task": task, "recipe": tree} for (method, task), tree in sorted(recipes.items())]
    out.mkdir(parents=True, exist_ok=True)
    about = {"commands": [*commands], "runs": counted, "versions": versions, "recipes": told}
    require_output(out / ABOUT, MARK, force=force)
    tables = {out / SCORES: (COLUMNS, rows), out / "probes.csv": (PROBES, probes)}
    for file, (columns, _) in tables.items():
        require_output(file, ",".join(columns).encode(), force=force)
    write_whole(out / ABOUT, json.dumps(about, indent=1) + "\n")
    for file, (columns, some) in tables.items():
        write_whole(file, _as_csv(columns, some))
    return counted, unfinished


def _row(run: Run, method: str, task: str, event: dict[str, Any]) -> dict[str, Any]:
    """A row for an event, with numbers rounded but precise enough for any figure."""
    found = {name: event.get(name) for name in COLUMNS}
    score = score_or_nan(event["score"])
    return found | {"method": method, "task": task, "seed": run.recipe.seed, "score": round(score, 4)}


def _probes(run: Run, method: str, task: str) -> list[dict[str, Any]]:
    """The cheap probes of a run; the last row also has the linear probe, if there is one at that time."""
    whose = {"method": method, "task": task, "seed": run.recipe.seed}
    rows = [{name: _short(event.get(name)) for name in PROBES} | whose for event in run.events("probe")]
    if rows and (run.path / "probe.json").exists():
        found = read_object(run.path, "probe.json")
        linear = found.get("linear")
        if found.get("frames") == rows[-1]["frames"] and isinstance(linear, dict):
            rows[-1] |= {name: _short(linear.get(name)) for name in ("r2", "r2_random_encoder")}
    return rows


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _shared(recipe: Recipe) -> dict[str, Any]:
    """The recipe's values that all its runs share; its seed is 0."""
    tree: dict[str, Any] = json.loads(as_json(recipe))
    return tree | dict.fromkeys(APART, None) | {"seed": 0}


def _require_same(folder: Path, first: dict[str, Any], other: dict[str, Any], what: str) -> None:
    differing = [key for key in {**first, **other} if first.get(key) != other.get(key)]
    if differing:
        seen = "; ".join(f"{key}: {first.get(key)} and {other.get(key)}" for key in differing)
        raise ResultsError(f"{folder} {what} ({seen}). Publish the runs of one study only.")


def _as_csv(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
