"""Write the scores of runs as small files for a repository, from which `maskrl report` can rebuild their page.

scores.csv   a row per evaluation: method, task, seed, frames, decisions, updates, score, seconds, processor seconds; before
             training also the score of random actions
probes.csv   a row per probe of the encoder during training, with the linear probe if `maskrl probe` was run at that time
about.json   the recipe of every method on every task, all versions, the machine, and the commands
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maskrl.analysis.about import ABOUT
from maskrl.analysis.protocol import method_of, task_of
from maskrl.analysis.reading import CSV, PROBES, SCORES, run_folders, score_or_nan
from maskrl.files import RunError, listed, read_bytes, read_object, write_whole
from maskrl.outputs import require_output
from maskrl.recipes.overrides import from_json
from maskrl.recipes.schema import Recipe, as_json
from maskrl.runs.directory import HARDWARE, Run

LINEAR = ("r2", "r2_random_encoder")  # of the linear probe
COLUMNS: Mapping[str, tuple[str, ...]] = {
    SCORES: ("method", "task", "seed", "frames", "decisions", "updates", "score", "seconds", "cpu_seconds", "random"),
    PROBES: (
        *("method", "task", "seed", "frames", "encoder_cosine", "decoder_cosine", "rank", "dead"),
        *LINEAR,
    ),
}
MARK = b'{\n "commands": ['  # the beginning of about.json
FIRST = b"method,task,seed,frames,"  # the beginning of a table, of an earlier version too
APART = ("seed", "threads")  # values of a recipe that differ between runs
HISTORY = ("extended",)  # in versions.json: an extended run is the same as one with the longer budget from the start

Row = dict[str, Any]


class ResultsError(Exception):
    """Runs that cannot be published together; the message says why."""


@dataclass
class _Study:
    """The runs of a study: rows of both tables, the recipe of every method on every task, versions and machines."""

    tables: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    recipes: dict[tuple[str, str], Row] = field(default_factory=dict)
    versions: Row = field(default_factory=dict)
    machines: list[Row] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "_Study":
        """The study that `publish` wrote into this folder."""
        try:
            about, study = read_object(folder, ABOUT), cls()
            for name, rows in study.tables.items():
                text = read_bytes(folder, name, most=CSV).decode()
                rows += [
                    row | {key: int(row[key]) for key in ("seed", "frames")}
                    for row in csv.DictReader(io.StringIO(text))
                ]
            for one in about["recipes"]:
                recipe = from_json(json.dumps(one["recipe"]))
                study.include("The folder", one["method"], one["task"], recipe, about["versions"])
            study.machines += [one for one in about.get("machines", []) if one not in study.machines]
            study.commands += about["commands"]
        except (OSError, RunError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ResultsError(f"{folder} holds no results to add to ({error}). Leave out --add.") from None
        return study

    def include(self, name: str, method: str, task: str, recipe: Recipe, versions: Row) -> None:
        """Note how a run was made. Raises ResultsError if other runs were made with other versions or recipes."""
        machine = {key: versions[key] for key in HARDWARE if key in versions}
        software = {key: value for key, value in versions.items() if key not in (*HARDWARE, *HISTORY)}
        _require_same(name, self.versions or software, software, "was made with other versions")
        self.versions = self.versions or software
        self.machines += [] if machine in self.machines or not machine else [machine]
        shared = _shared(recipe)
        _require_same(name, self.recipes.setdefault((method, task), shared), shared, f"is another {method} on {task}")

    def add(self, run: Run) -> None:
        method, task, seed = method_of(run.recipe), task_of(run.recipe), run.recipe.seed
        self.include(str(run.path), method, task, run.recipe, run.versions())
        random = {event["frames"]: round(score_or_nan(event["score"]), 4) for event in run.events("random")}
        found = {
            SCORES: [
                _row(run, method, task, event) | {"random": random.get(event["frames"])}
                for event in run.events("evaluation")
            ],
            PROBES: _probes(run, method, task),
        }
        before = {
            row["frames"]: str(row["score"]) for row in self.tables[SCORES] if _whose(row) == (task, method, seed)
        }
        now = {row["frames"]: str(row["score"]) for row in found[SCORES]}
        if before and before != now:
            at = next(frames for frames in {**before, **now} if before.get(frames) != now.get(frames))
            raise ResultsError(
                f"{run.path} scores {now.get(at)} at {at} frames, but {method} on {task} with seed {seed} was published with "
                f"{before.get(at)} there. The same seed must give the same scores; publish this run into another folder."
            )
        for name, rows in found.items():
            self.tables[name] = [row for row in self.tables[name] if _whose(row) != (task, method, seed)] + rows

    @property
    def runs(self) -> int:
        return len({_whose(row) for row in self.tables[SCORES]})


def publish(
    paths: Sequence[Path], out: Path, *, commands: Sequence[str] = (), add: bool = False, force: bool = False
) -> tuple[int, list[str]]:
    """Write the scores of all finished runs into a folder. Returns their number, and sentences about unfinished runs.

    All runs must have the same versions; their machines may differ. Replaces earlier results, or keeps them with `add`: a run
    that was published before must then have the same scores. Replaces other files only with `force`.
    """
    study, unfinished = _Study.read(out) if add else _Study(), list[str]()
    seen = set[Path]()
    for folder in (folder for path in paths for folder in run_folders(path, seen)):
        run = Run.open(folder)
        if run.status == "done":
            study.add(run)
        else:
            unfinished.append(f"{folder} is {run.status}")
    if not study.runs:
        raise ResultsError(f"No run is done: {'; '.join(unfinished) or 'there is none'}. Finish them first.")
    told = [{"method": method, "task": task, "recipe": tree} for (method, task), tree in sorted(study.recipes.items())]
    about = {
        "commands": [*dict.fromkeys([*study.commands, *commands])],
        "runs": study.runs,
        "versions": study.versions,
        "machines": study.machines,
        "recipes": told,
    }
    out.mkdir(parents=True, exist_ok=True)
    require_output(out / ABOUT, MARK, force=force)
    for name in COLUMNS:
        require_output(out / name, FIRST, force=force)
    write_whole(out / ABOUT, json.dumps(about, indent=1) + "\n")
    for name, rows in study.tables.items():
        write_whole(out / name, _as_csv(COLUMNS[name], sorted(rows, key=lambda row: (*_whose(row), row["frames"]))))
    return study.runs, unfinished


def _whose(row: Row) -> tuple[str, str, int]:
    """The run of a row."""
    return row["task"], row["method"], row["seed"]


def _row(run: Run, method: str, task: str, event: dict[str, Any]) -> dict[str, Any]:
    """A row for an event, with numbers rounded but precise enough for any figure."""
    found = {name: event.get(name) for name in COLUMNS[SCORES]}
    score = score_or_nan(event["score"])
    return found | {"method": method, "task": task, "seed": run.recipe.seed, "score": round(score, 4)}


def _probes(run: Run, method: str, task: str) -> list[dict[str, Any]]:
    """The cheap probes of a run. A row also has the linear probe, if `maskrl probe` was run at that time."""
    whose = {"method": method, "task": task, "seed": run.recipe.seed}
    rows = [{name: _short(event.get(name)) for name in COLUMNS[PROBES]} | whose for event in run.events("probe")]
    measured = read_object(run.path, "probe.json")
    for probe in (measured, *listed(measured, "earlier")):
        linear = probe.get("linear")
        values = {name: _short(linear.get(name)) for name in LINEAR} if isinstance(linear, dict) else {}
        for row in rows:
            row |= values if row["frames"] == probe.get("frames") else {}
    return rows


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _shared(recipe: Recipe) -> dict[str, Any]:
    """The recipe's values that all its runs share; its seed is 0, and a user's file is named without its folder."""
    tree: dict[str, Any] = json.loads(as_json(recipe))
    if (file := tree["env"].get("file")) is not None:
        tree["env"]["file"] = Path(file).name
    return tree | dict.fromkeys(APART, None) | {"seed": 0}


def _require_same(name: str, first: dict[str, Any], other: dict[str, Any], what: str) -> None:
    differing = [key for key in {**first, **other} if first.get(key) != other.get(key)]
    if differing:
        seen = "; ".join(f"{key}: {first.get(key)} and {other.get(key)}" for key in differing)
        raise ResultsError(f"{name} {what} ({seen}). Publish the runs of one study only.")


def _as_csv(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
