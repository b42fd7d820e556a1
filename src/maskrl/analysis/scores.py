"""The scores of many runs: select, normalise, and group them by protocol."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maskrl.analysis.protocol import named_recipe, own_protocol, protocol_difference
from maskrl.analysis.reading import Found, Identity, RunScores, read
from maskrl.recipes.published import players
from maskrl.recipes.schema import as_override
from maskrl.words import ranges


class ScoresError(Exception):
    """Scores that cannot be used as requested; the message says why."""


@dataclass(frozen=True)
class Scores:
    """Runs with their scores, and the problems of runs that were left out."""

    runs: tuple[RunScores, ...]
    problems: tuple[str, ...] = ()
    repeats: frozenset[Identity] = frozenset()  # the runs that were left out because others repeat the same experiment

    @classmethod
    def read(cls, *paths: Path | str) -> "Scores":
        """Read run directories, folders of them at any depth, published results and CSV files."""
        return cls.of(read(map(Path, paths)))

    @classmethod
    def of(cls, found: Found) -> "Scores":
        """What was read, without repeats."""
        kept, repeats, told = _without_repeats(found.runs)
        return cls(tuple(kept), (*found.problems, *told), frozenset(run.identity for run in repeats))

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
        """The runs for which `keep` is true, with all problems."""
        return replace(self, runs=tuple(run for run in self.runs if keep(run)))

    def at(self, time: int | None = None) -> "Scores":
        """One score per run: at this time, in its unit, or at the end of its budget. Runs without one become problems."""
        runs, problems = list[RunScores](), list[str]()
        for run in self.runs:
            wanted = run.budget if time is None else time
            points = tuple(point for point in run.curve if point[0] == wanted)
            if points:
                runs.append(replace(run, curve=points, protocol={**run.protocol, f"budget.{run.unit}": wanted}))
            else:
                problems.append(
                    f"{run.name} ({run.source}) has no score at {wanted} {run.unit}: its last is at {run.curve[-1][0]}. Left out."
                )
        kept, _, told = _without_repeats(runs)  # a run of 500 000 frames may repeat one of 100 000
        return Scores(tuple(kept), (*self.problems, *problems, *told))

    def normalised(self) -> "Scores":
        """Normalised scores. 0 and 1 are the random and the human player on Atari, random and perfect play of a toy, 0 and 1000
        points on DMControl. Tasks without a scale become problems.
        """
        scales = {task: scale(task) for task in self.tasks}
        problems = [
            f"{task} has no scale to normalise its scores with: left out." for task in scales if not scales[task]
        ]
        runs = [
            replace(run, curve=tuple((at, (score - found[0]) / (found[1] - found[0])) for at, score in run.curve))
            for run in self.runs
            if (found := scales[run.task])
        ]
        return Scores(tuple(runs), (*self.problems, *problems))

    def values(self, method: str, task: str) -> NDArray[np.float64]:
        """The score of every run of a method on a task, by seed."""
        mine = self.of_method(method, task)
        several = next((run for run in mine if len(run.curve) > 1), None)
        if several is not None:
            raise ScoresError(f"{several.name} has {len(several.curve)} scores: choose a time with Scores.at().")
        return np.array([run.curve[0][1] for run in mine])

    def seeds(self, method: str, task: str) -> list[int]:
        """The seed of every run of a method on a task, in the order of `values`."""
        return [run.seed for run in self.of_method(method, task)]

    def of_method(self, method: str, task: str) -> Sequence[RunScores]:
        """The runs of a method on a task, by seed."""
        return self._by_seed.get((method, task), ())

    @cached_property
    def _by_seed(self) -> dict[tuple[str, str], list[RunScores]]:
        """(method, task) → its runs: a search for every method on every task would be slow."""
        found = defaultdict[tuple[str, str], list[RunScores]](list)
        for run in sorted(self.runs, key=lambda run: run.seed):
            found[run.method, run.task].append(run)
        return dict(found)

    def matrix(self, method: str, tasks: Sequence[str], *, mixed: bool = False) -> NDArray[np.float64]:
        """The scores (runs, tasks) for the aggregates. Every task has as many runs as the task with the fewest, by smallest seeds.

        Raises ScoresError if runs on these tasks, of this or another method, differ in protocol, unless `mixed`.
        """
        if not mixed:
            self.where(lambda run: run.task in tasks).require_one_protocol()
        columns = [self.values(method, task) for task in tasks]
        missing = [task for task, column in zip(tasks, columns, strict=True) if not len(column)]
        if missing or not tasks:
            raise ScoresError(f"{method} has no scores on {', '.join(missing) or 'no task'}.")
        runs = min(map(len, columns))
        return np.stack([column[:runs] for column in columns], axis=1)

    def conflicts(self) -> list[str]:
        """Differences in values that must agree: those of the environment within a task, all others within a suite."""
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
        """Groups of runs that may be averaged: each has one protocol.

        A run joins the first group without a conflict; unknown values do not conflict. Values of the environment are compared by
        their differences from the task's recipe, so that a group can contain all tasks.
        """
        groups: list[tuple[dict[tuple[str, str], str], list[RunScores]]] = []
        for run in self.runs:
            told = _told(run)
            agreeing = (
                group for group in groups if all(group[0].get(place, value) == value for place, value in told.items())
            )
            shared, members = next(agreeing, ({}, []))
            if not members:
                groups.append((shared, members))
            shared.update(told)
            members.append(run)
        return [replace(self, runs=tuple(members)) for _, members in groups]

    def require_one_protocol(self) -> None:
        """Raise ScoresError, with the differences, if these runs cannot be compared."""
        if conflicts := self.conflicts():
            listed = "\n".join(f"  {line}" for line in conflicts)
            raise ScoresError(
                f"These runs do not have the same protocol:\n{listed}\nSelect runs of one protocol, or allow a mixture (--mixed)."
            )


def _told(run: RunScores) -> dict[tuple[str, str], str]:
    """(scope in which it must agree, path) → value. The suite is included, so that suites are separate groups."""
    own = own_protocol(run.task, run.protocol["profile"]) if "profile" in run.protocol else {}
    told = {("", "suite"): run.suite, ("", "unit"): run.unit}
    for path, value in run.protocol.items():
        if path.startswith("env."):
            told[run.task, path] = as_override(value)
            if path in own and path != "env.task":
                told["", path] = "its own" if value == own[path] else as_override(value)
        else:
            told["", path] = as_override(value)
    return told


def _without_repeats(runs: Sequence[RunScores]) -> tuple[list[RunScores], list[RunScores], list[str]]:
    """One run per seed, method, task and protocol: a second one repeats the same experiment and adds no evidence.

    Returns the runs, those that were left out, and sentences about these. Of two, the one whose protocol has more values is kept
    (a CSV has hardly any), otherwise the first.
    """
    kept, left_out = defaultdict[tuple[str, str, int], list[int]](list), list[RunScores]()
    seeds = defaultdict[tuple[str, str, str, str], list[int]](
        list
    )  # (method, task, kept source, other source) → repeated
    for place, run in sorted(enumerate(runs), key=lambda item: -len(item[1].protocol)):
        same_seed = kept[run.method, run.task, run.seed]
        first = next((p for p in same_seed if not protocol_difference(runs[p].protocol, run.protocol)), None)
        if first is None:
            same_seed.append(place)
        else:
            left_out.append(run)
            seeds[run.method, run.task, runs[first].source, run.source].append(run.seed)
    told = [
        f"{method} on {task}, {f'seed {own[0]} exists' if len(own) == 1 else f'seeds {ranges(sorted(own))} exist'} twice: "
        f"{source} is kept and {other} left out."
        for (method, task, source, other), own in seeds.items()
    ]
    return [runs[place] for place in sorted(place for places in kept.values() for place in places)], left_out, told


def _counted(runs: Sequence[RunScores]) -> str:
    shown = ", ".join(run.source for run in runs[:3]) + (", …" if len(runs) > 3 else "")
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''} ({shown})"


def scale(task: str) -> tuple[float, float] | None:
    """The scores that become 0 and 1 when normalised; None if the task has no scale."""
    named = named_recipe(task, "lite")
    return players(task) if named is None or named.env.returns is None else named.env.returns
