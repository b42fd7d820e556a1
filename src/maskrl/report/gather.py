"""Runs as a report needs them: what each tells besides its scores, and which of them may be put together."""

import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from maskrl import recipes
from maskrl.analysis.protocol import method_of, protocol_difference, protocol_of
from maskrl.analysis.reading import LARGEST, RunScores, run_folders
from maskrl.analysis.scores import Scores
from maskrl.recipes.published import PublishedScore, Unit, published
from maskrl.recipes.schema import Recipe, as_override
from maskrl.report.tables import key_of
from maskrl.runs.directory import Run, RunError

LITE = "not comparable: lite profile"
SUITES = {"dmcontrol": "DMControl", "atari": "Atari", "toy": "Toys", "other": "Other tasks"}

# ── What is known of runs ─────────────────────────────────────────────────────────────────────────────────────────────

Life = Literal["done", "running", "interrupted", "failed", "not begun"]


@dataclass(frozen=True)
class RunFacts:
    """What a run directory tells besides its scores."""

    source: str
    recipe: Recipe
    life: Life
    why: str  # it failed
    reached: int  # in the unit of its budget
    seconds: float
    versions: Mapping[str, Any]
    probes: tuple[Mapping[str, Any], ...] = ()  # in the order of time; the last may be from probe.json
    timing: Mapping[str, float] = field(default_factory=dict)  # part → seconds
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> Unit:
        return "decisions" if self.recipe.budget.frames is None else "frames"

    @property
    def budget(self) -> int:
        return self.recipe.budget.decisions or self.recipe.frames

    @cached_property
    def method(self) -> str:
        return method_of(self.recipe)

    @property
    def task(self) -> str:
        return f"{self.recipe.name.partition('/')[0]}/{self.recipe.env.task}"

    @property
    def finished(self) -> bool:
        return self.life == "done" and self.reached >= self.budget


def run_facts(folder: Path) -> RunFacts:
    """Of a run directory. Only what is needed of its log is parsed."""
    run = Run.open(folder)
    unit = "decisions" if run.recipe.budget.frames is None else "frames"
    clock, probes, timing, notes = _last_clock(folder), list[Mapping[str, Any]](), dict[str, float](), list[str]()
    for event in run.events("probe", "timing", "note"):
        match event["kind"]:
            case "probe":
                probes.append(event)
            case "timing":
                for part, spent in event["parts"].items():
                    timing[part] = timing.get(part, 0.0) + (spent if is_number(spent) else 0.0)
            case "note":
                notes.append(str(event.get("text", "")))
    measured = _json_object(folder / "probe.json")
    probes += [measured] if measured else []
    life = _life(run)
    why = str(_json_object(folder / "status.json").get("why") or "") if life == "failed" else ""
    reached, seconds = int(clock.get(unit, 0)), float(clock.get("seconds", 0.0))
    return RunFacts(
        str(folder), run.recipe, life, why, reached, seconds, run.versions(), tuple(probes), timing, tuple(notes)
    )


def _last_clock(folder: Path) -> dict[str, Any]:
    """The clock of the last line of the log that is whole; nothing if there is none."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
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
    """The status; of a run that says it is running, whether the process that trains it is still there."""
    if run.status != "running":
        return "not begun" if run.status == "new" else run.status
    try:
        owner = (run.path / "lock").read_text(errors="replace")[:200].split()
    except OSError:
        return "interrupted"
    if len(owner) < 4 or owner[0] != "process" or not owner[1].isdecimal():
        return "interrupted"
    if owner[3] != socket.gethostname():
        return "running"  # or not: another machine's processes cannot be seen from here
    try:
        os.kill(int(owner[1]), 0)
    except ProcessLookupError:
        return "interrupted"
    except (OSError, OverflowError):
        return "running"
    return "running"


def _json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_number(value: Any) -> bool:
    """That can be drawn: neither a truth value, nor infinite, nor near it."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


# ── Groups: runs that may be put together ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Group:
    """Runs of one suite and one protocol, or of several protocols if that was asked for."""

    name: str  # "DMControl · lite profile · 100,000 frames"
    runs: Scores  # with their curves
    at: int | None  # when scores are taken; None: at the end of each budget
    mixed: bool
    conflicts: tuple[str, ...] = ()  # in what its runs differ, if they were mixed

    @property
    def key(self) -> str:
        return key_of(self.name)

    @property
    def suite(self) -> str:
        return self.runs.runs[0].suite

    @property
    def unit(self) -> Unit:
        return self.runs.runs[0].unit

    @cached_property
    def final(self) -> Scores:
        """One score of each run that has got so far."""
        return replace(self.runs, problems=()).at(self.at)

    @cached_property
    def methods(self) -> list[str]:
        return in_order(self.runs.methods)

    @property
    def tasks(self) -> list[str]:
        return self.runs.tasks

    @property
    def baseline(self) -> str | None:
        """What the Baseline is called here: a CSV may spell it as the paper does."""
        return next((method for method in self.methods if method.lower() == "baseline"), None)

    @property
    def reference(self) -> str | None:
        """The method that others are held against."""
        return self.baseline if len(self.methods) > 1 else None

    @property
    def times(self) -> list[int]:
        """When the scores are taken, in its unit."""
        return sorted({run.curve[0][0] for run in self.final.runs})

    def paper(self, task: str, method: str) -> PublishedScore | None:
        """What the paper has for that at the time of these scores, or at the end of the budget of runs that have none yet.

        Scores of several times, which may be mixed, are of none that the paper has.
        """
        times = {run.curve[0][0] for run in self.final.runs if run.task == task}
        budgets = {run.budget for run in self.runs.runs if run.task == task and run.budget is not None}
        chosen = times or budgets
        found = published(task, chosen.pop(), method) if len(chosen) == 1 else None
        return found if found is not None and found.unit == self.unit else None

    @cached_property
    def not_the_papers(self) -> str:
        """Why its scores may not be held against the paper's; nothing if they may."""
        if any(run.protocol.get("profile") == "lite" for run in self.runs.runs):
            return LITE
        strange = sorted({line for run in self.runs.runs for line in _departures(run)})
        return f"not comparable: {'; '.join(strange[:3])}{'; …' if len(strange) > 3 else ''}" if strange else ""


def in_order(methods: Iterable[str]) -> list[str]:
    """MLR first and the Baseline after it: so they have the same colours on every page."""
    first = ("mlr", "baseline")
    return sorted(methods, key=lambda name: (first.index(name.lower()) if name.lower() in first else 2, name.lower()))


def short(task: str) -> str:
    return task.partition("/")[2]


def _departures(run: RunScores) -> list[str]:
    """From the paper's protocol; the budget is chosen with the time of the score."""
    try:
        papers = protocol_of(recipes.find(run.task, "paper"))
    except ValueError:
        return []
    return protocol_difference({path: papers[path] for path in papers if not path.startswith("budget.")}, run.protocol)


def grouped(scores: Scores, *, at: int | None, mixed: bool) -> list[Group]:
    """Suites apart, and within a suite the protocols, unless they are to be mixed."""
    scores = replace(scores, problems=())
    if at is not None:  # then the budget does not set runs apart
        scores = replace(scores, runs=tuple(_with_budget(run, at) for run in scores.runs))
    parts = (
        [scores.where(lambda run, suite=suite: run.suite == suite) for suite in scores.suites]  # type: ignore[misc]
        if mixed
        else sorted(scores.groups(), key=lambda part: part.suites)
    )
    return [Group(_name(part, parts), part, at, mixed, tuple(part.conflicts())) for part in parts]


def _with_budget(run: RunScores, at: int) -> RunScores:
    return replace(run, protocol=dict(run.protocol) | {f"budget.{run.unit}": at})


def _name(part: Scores, parts: Sequence[Scores]) -> str:
    """The suite, the profile, the budget, and what else sets it apart from others that have the same of these."""
    name = _plain_name(part)
    rivals = [_values(other) for other in parts if other is not part and _plain_name(other) == name]
    apart = [
        f"{path}={next(iter(values))}"
        for path, values in (_values(part).items() if rivals else ())
        if path not in ("profile", "env.task", "env.kind") and not path.startswith("budget.") and len(values) == 1
        if any(path in other and not values & other[path] for other in rivals)
    ]
    return " · ".join([name, *apart])


def _plain_name(part: Scores) -> str:
    first = part.runs[0]
    profiles = {str(run.protocol.get("profile", "not told")) for run in part.runs}
    words = [SUITES.get(first.suite, first.suite)]
    if first.suite in ("dmcontrol", "atari"):
        words.append(
            "mixed profiles" if len(profiles) > 1 else f"{profiles.pop()} profile".replace("not told profile", "CSV")
        )
    budgets = sorted({run.budget for run in part.runs if run.budget is not None})
    words.append(f"{' and '.join(f'{budget:,}' for budget in budgets)} {first.unit}")
    return " · ".join(words)


def settings(facts: Iterable[RunFacts]) -> dict[str, str]:
    """The source of every run → the name of those whose protocol it has, with a score or without."""
    runs = [
        RunScores(fact.method, fact.task, fact.recipe.seed, fact.unit, (), protocol, fact.source)
        for fact in facts
        for protocol in [protocol_of(fact.recipe, fact.versions)]
    ]
    parts = Scores(tuple(runs)).groups()
    names = [_name(part, parts) for part in parts]
    return {run.source: name for name, part in zip(names, parts, strict=True) for run in part.runs}


def _values(scores: Scores) -> dict[str, set[str]]:
    values: dict[str, set[str]] = {}
    for run in scores.runs:
        for path, value in run.protocol.items():
            values.setdefault(path, set()).add(as_override(value))
    return values


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def all_facts(paths: Iterable[Path]) -> Iterator[RunFacts]:
    """Of every run that can be read; of the others `Scores.problems` tells."""
    seen = set[Path]()
    for path in paths:
        for folder in run_folders(path) if path.is_dir() else []:
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            try:
                yield run_facts(folder)
            except (RunError, OSError, ValueError, KeyError, TypeError, OverflowError):
                continue
