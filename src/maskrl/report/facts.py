"""Facts of a run besides its scores: progress, probes, time and versions; from its directory, or from published results."""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from maskrl.analysis.protocol import method_of, protocol_of, task_of, unit_of
from maskrl.analysis.reading import LARGEST, RunScores, run_folders
from maskrl.files import open_file, read_object
from maskrl.recipes.schema import Recipe
from maskrl.runs.directory import Run, RunError

Life = Literal["done", "running", "interrupted", "failed", "not begun", "unknown"]


@dataclass(frozen=True)
class RunFacts:
    """The facts of one run."""

    run: RunScores  # without its scores
    recipe: Recipe | None  # None: unknown
    life: Life
    why: str  # the error of a failed run, or why its state is unknown; may be empty
    reached: int  # in the unit of its budget
    frames: int  # of the simulator so far; 0: unknown
    seconds: float  # 0: unknown
    cpu_seconds: float  # processor time until the last evaluation; 0: unknown
    versions: Mapping[str, Any]  # a tuple: one of these values
    probes: tuple[Mapping[str, Any], ...] = ()  # in order of time; the last may be from probe.json
    timing: Mapping[str, float] = field(default_factory=dict)  # part → seconds
    notes: tuple[str, ...] = ()
    published: bool = False
    evaluations_timed: bool = True  # whether its times are known to include evaluations

    @property
    def budget(self) -> int | None:
        """In its unit; None if unknown."""
        return None if self.recipe is None else self.recipe.budget.decisions or self.recipe.frames

    @property
    def finished(self) -> bool:
        return self.life == "done" and (self.budget is None or self.reached >= self.budget)

    @property
    def unfinished(self) -> bool:
        """Whether it is known that the run is not finished."""
        return self.life != "unknown" and not self.finished


def all_facts(paths: Iterable[Path]) -> Iterator[RunFacts]:
    """The facts of every readable run directory; `Scores.problems` names the others."""
    seen = set[Path]()
    for folder in (folder for path in paths if path.is_dir() for folder in run_folders(path, seen)):
        try:
            yield run_facts(folder)
        except (RunError, OSError, ValueError, KeyError, TypeError, OverflowError):
            continue


def run_facts(folder: Path) -> RunFacts:
    """Read the facts of a run directory. Parses only the needed lines of its log."""
    opened, clock, timing = Run.open(folder), _last_clock(folder), defaultdict[str, float](float)
    recipe, unit, life = opened.recipe, unit_of(opened.recipe), _life(opened)
    protocol = protocol_of(recipe, opened.versions())
    events = list(opened.events("evaluation", "probe", "timing", "note"))
    for event in events:
        for part, spent in event["parts"].items() if event["kind"] == "timing" else ():
            timing[part] += spent if is_number(spent) else 0.0
    probes = [event for event in events if event["kind"] == "probe"]
    costs = [event["cpu_seconds"] for event in events if event["kind"] == "evaluation" and "cpu_seconds" in event]
    measured = read_object(folder, "probe.json")
    return RunFacts(
        run=RunScores(method_of(recipe), task_of(recipe), recipe.seed, unit, (), protocol, str(folder)),
        recipe=recipe,
        life=life,
        why=opened.why if life == "failed" else "",
        reached=int(clock.get(unit, 0)),
        frames=int(clock.get("frames", 0)),
        seconds=float(clock.get("seconds", 0.0)),
        cpu_seconds=float(costs[-1]) if costs and is_number(costs[-1]) else 0.0,
        versions=opened.versions(),
        probes=(*probes, measured) if measured else tuple(probes),
        timing=timing,
        notes=tuple(str(event.get("text", "")) for event in events if event["kind"] == "note"),
    )


def _last_clock(folder: Path) -> dict[str, Any]:
    """The clock of the log's last complete line; empty if there is none."""
    try:
        with open_file(folder, "metrics.jsonl") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2**18))
            lines = file.read().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and all(is_number(event.get(name)) for name in ("frames", "decisions", "seconds")):
            return event
    return {}


def _life(run: Run) -> Life:
    """The run's status, in the page's words."""
    named: dict[str, Life] = {"new": "not begun", "stopped": "interrupted"}
    return named.get(run.status, run.status)  # type: ignore[arg-type]


def is_number(value: Any) -> bool:
    """Whether a value can be drawn: a number, not a bool, and not infinite or close to it."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
