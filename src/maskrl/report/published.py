"""Facts of runs from the folders of `maskrl results`. They lack what is not published: logs, and how the time was split."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maskrl.analysis.about import read_about
from maskrl.analysis.reading import PROBES, SCORES, read_results, read_rows, results_folders, run_of, whole
from maskrl.analysis.results import LINEAR
from maskrl.files import RunError
from maskrl.report.facts import RunFacts, is_number

MEASURES = ("encoder_cosine", "decoder_cosine", "rank", "dead")  # of a probe

Key = tuple[str, str, int]  # of a run in a folder: method, task, seed
Probe = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A folder of published results."""

    folder: Path
    facts: tuple[RunFacts, ...]
    commands: tuple[str, ...]  # which made the runs
    problems: tuple[str, ...]  # those that reading its scores does not tell


def studies(paths: Iterable[Path]) -> list[Study]:
    """Every folder of published results in these, at any depth."""
    seen = set[Path]()
    return [study(folder) for path in paths if path.is_dir() for folder in results_folders(path, seen)]


def study(folder: Path) -> Study:
    """Read a folder. What it does not say is unknown."""
    runs, _ = read_results(folder)  # `Scores.problems` has its problems
    about, clocks = read_about(folder), _clocks(folder)
    probes, problems = _probes(folder)
    facts = []
    for run in runs:
        recipe, clock = about.recipes.get((run.method, run.task)), clocks.get((run.method, run.task, run.seed), {})
        facts.append(
            RunFacts(
                run=replace(run, curve=()),
                recipe=recipe,
                life="unknown" if recipe is None else "done",  # only finished runs are published
                why="",
                reached=run.curve[-1][0],
                frames=int(clock.get("frames", 0)),
                seconds=clock.get("seconds", 0.0),
                cpu_seconds=clock.get("cpu_seconds", 0.0),
                versions=about.versions,
                probes=tuple(probes.get((run.method, run.task, run.seed), ())),
                published=True,
                evaluations_timed="foreign" not in clock,
            )
        )
    return Study(folder, tuple(facts), about.commands, tuple(problems))


def _clocks(folder: Path) -> Mapping[Key, Mapping[str, float]]:
    """The largest times of every run: frames, seconds and processor seconds, as far as there are columns of them.

    `foreign`: a row lacks the decisions or updates that `maskrl results` writes, so another program may have taken the times.
    """
    found = defaultdict[Key, dict[str, float]](dict)
    try:
        _, rows = read_rows(folder / SCORES)
    except RunError:  # `Scores.problems` says so
        return {}
    for _, row in rows:
        try:
            clock = found[run_of(row)]
        except (ValueError, KeyError):
            continue
        if not (row.get("decisions", "").strip() and row.get("updates", "").strip()):
            clock["foreign"] = 1.0
        for name in ("frames", "seconds", "cpu_seconds"):
            clock[name] = max(clock.get(name, 0.0), _number(row.get(name, "")) or 0.0)
    return found


def _probes(folder: Path) -> tuple[Mapping[Key, list[Probe]], list[str]]:
    """The probes of every run in order of time, and problems. Results of earlier versions have none."""
    path = folder / PROBES
    if not os.path.lexists(path):
        return {}, []
    try:
        names, rows = read_rows(path)
    except RunError as error:
        return {}, [str(error)]
    if missing := [name for name in ("method", "task", "seed", "frames") if name not in names]:
        return {}, [f"{path} has no column {', '.join(missing)}: its probes are unknown."]
    found, wrong = defaultdict[Key, list[Probe]](list), list[int]()
    for number, row in rows:
        try:
            probe: Probe = {"frames": whole(row["frames"])}
            for measures, into in ((MEASURES, probe), (LINEAR, probe.setdefault("linear", {}))):
                into |= {name: float(row[name]) for name in measures if row.get(name, "").strip()}
            found[run_of(row)].append(probe)
        except (ValueError, KeyError):
            wrong.append(number)
    rest = f" and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
    problems = [f"{path}, line {wrong[0]}{rest}: cannot be read. Left out."] if wrong else []
    return {key: sorted(probes, key=lambda probe: probe["frames"]) for key, probes in found.items()}, problems


def _number(text: str) -> float | None:
    """A number that can be drawn; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if is_number(value) else None
