"""Facts of runs from the folders of `maskrl results`. They lack what is not published: logs, and how the time was split."""

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maskrl.analysis.reading import PROBES, Results, Rows, of_lines, read_rows, run_of, whole
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


def study(results: Results) -> Study:
    """The facts of a folder's runs. What it does not say is unknown."""
    about, times, foreign = results.about, *_times(results.rows)
    probes, problems = _probes(results.folder)
    facts = []
    for run in results.runs:
        key = run.method, run.task, run.seed
        recipe, time, reached = about.recipes.get((run.method, run.task)), times[key], run.curve[-1][0]
        budget = None if recipe is None else run.budget
        done = budget is not None and reached >= budget
        facts.append(
            RunFacts(
                run=replace(run, curve=()),
                recipe=recipe,
                life="done" if done else "unknown",  # only finished runs are published, but rows may be missing
                why="" if done or budget is None else "its scores end before its budget",
                reached=reached,
                frames=int(time.get("frames", 0)),
                seconds=time.get("seconds", 0.0),
                cpu_seconds=time.get("cpu_seconds", 0.0),
                versions=about.versions,
                probes=tuple(probes.get(key, ())),
                published=True,
                evaluations_timed=key not in foreign,
            )
        )
    return Study(results.folder, tuple(facts), about.commands, tuple(problems))


def _times(rows: Rows) -> tuple[Mapping[Key, Mapping[str, float]], set[Key]]:
    """The largest times of every run: frames, seconds and processor seconds, as far as there are columns of them.

    Also the runs whose times another program may have taken: a row lacks the decisions or updates that `maskrl results` writes.
    """
    found, foreign = defaultdict[Key, dict[str, float]](dict), set[Key]()
    for _, row in rows:
        try:
            key = run_of(row)
        except ValueError:  # told by the reader
            continue
        if not (row.get("decisions", "").strip() and row.get("updates", "").strip()):
            foreign.add(key)
        for name in ("frames", "seconds", "cpu_seconds"):
            found[key][name] = max(found[key].get(name, 0.0), _number(row.get(name, "")) or 0.0)
    return found, foreign


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
            probe: Probe = {"frames": whole(row, "frames")}
            for measures, into in ((MEASURES, probe), (LINEAR, probe.setdefault("linear", {}))):
                into |= {name: float(row[name]) for name in measures if row.get(name, "").strip()}
            found[run_of(row)].append(probe)
        except ValueError:
            wrong.append(number)
    problems = [f"{of_lines(path, wrong)}: cannot be read. Left out."] if wrong else []
    return {key: sorted(probes, key=lambda probe: probe["frames"]) for key, probes in found.items()}, problems


def _number(text: str) -> float | None:
    """A number that can be drawn; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if is_number(value) else None
