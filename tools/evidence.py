"""Write what docs/evidence.md, README.md and `maskrl plan` take from results/: tables, sentences, curves, scores.

    python tools/evidence.py            rewrite them
    python tools/evidence.py --check    say what differs from what results/ gives, and fail

A page holds blocks such as

    <!-- evidence: table lite-dmcontrol 60000 -->
    | … |
    <!-- end -->

The words after `evidence:` name a block below, the study and the frames, or `end` for the end of every budget (of a gate, of speeds
and of environments: how many of the last evaluations count). Speeds are in results/STUDY.json. Pictures that a page shows are
drawn: docs/evidence/STUDY.svg has curves, STUDY-price.svg score against cost. A+B joins two studies; its picture is A_and_B.svg.
"""

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

from maskrl.analysis.power import seeds_for
from maskrl.analysis.protocol import changes_of
from maskrl.analysis.scores import Scores
from maskrl.analysis.statistics import ENOUGH, POWER, ZERO, Summary, welch
from maskrl.analysis.verdict import Verdict, Verdicts, versus
from maskrl.recipes.methods import TOYS
from maskrl.recipes.overrides import from_json
from maskrl.recipes.own import is_own
from maskrl.words import number, ranges

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/evidence.md", "docs/own-environment.md", "docs/sb3.md", "docs/systems.md")
BLOCK = re.compile(r"(<!-- evidence: (?P<words>[^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
METHODS = ("mlr", "baseline")
NOTHING = "No task has runs of both methods yet."
NO_RUNS = "There are no runs yet."
NAMES = {
    "mlr": "MLR",
    "baseline": "Baseline",
    "curl": "CURL",
    "drq": "DrQ",
    "spr": "SPR",
    "drqv2": "DrQ-v2",
    "sb3": "SB3 alone",
    "sb3+shift": "SB3 + our replay with shifts",
    "sb3+policy": "SB3 + replay + our policy",
    "sb3+mlr": "SB3 + replay + policy + MLR",
}
AGENTS = {"sac": "SAC", "rainbow": "Rainbow"}
Time = int | None  # frames; None: the end of every budget


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def arms(scores: Scores) -> tuple[str, str]:
    """MLR and the Baseline as the study's runs name them, with the values that it changes."""
    mlr, baseline = (next((name for name in scores.methods if name.split()[0] == arm), arm) for arm in METHODS)
    return mlr, baseline


def pairs(scores: Scores) -> Scores:
    """The runs whose seed both methods have; the others wait for their partner."""
    known = [{(run.task, run.seed) for run in scores.runs if run.method == method} for method in arms(scores)]
    return scores.where(lambda run: (run.task, run.seed) in set.intersection(*known))


def verdicts(study: Path, at: Time) -> Verdicts:
    """Task by task, and the mean of tasks whose scores have one unit: not of games."""
    scores = Scores.read(study)
    mixed = at is None  # tasks have different budgets
    found = versus(pairs(scores), *arms(scores), at=at, mixed=mixed, papers=False)
    return found if _in_points(scores.tasks) else replace(found, overall=())


def _in_points(tasks: Sequence[str]) -> bool:
    return all(task.startswith("dmcontrol/") for task in tasks)


def table(study: Path, at: Time) -> str:
    """A row for every task, and one for their mean."""
    found = verdicts(study, at)
    if not found.tasks:
        return NOTHING
    lines = ["| task | runs of each | MLR | Baseline | difference | 95 % interval | p | verdict | processor time |"]
    lines += ["|:---|---:|---:|---:|---:|---:|---:|:---|---:|"]
    for verdict in (*found.tasks, *found.overall):
        tasks = [verdict.task] if verdict in found.tasks else [one.task for one in found.tasks]
        runs = _span([one.runs for one in found.tasks if one.task in tasks])
        lines.append(f"| {_short(verdict.task)} | {runs} | {_row(verdict)} | {cost(study, tasks, at):.2f} × |")
    return "\n".join(lines)


def _row(verdict: Verdict, name: str = "MLR") -> str:
    scores = f"{verdict.mean:.0f} | {verdict.reference:.0f}"
    if verdict.difference is None:
        return f"{scores} | {round(verdict.mean - verdict.reference):+d} | – | – | {verdict.untested}"
    value, low, high, p = verdict.difference
    words = {"above": f"{name} is above", "below": f"{name} is below"}.get(verdict.outcome, "no difference shows")
    return f"{scores} | {value:+.0f} | {_interval(low, high)} | {p:.2g} | {words}"


def _interval(low: float, high: float) -> str:
    """The ends of an interval. An end that is not 0 is not printed as 0, so that the verdict can be seen."""
    return " to ".join(f"{end:+.0f}" if abs(end) >= 0.5 else f"{end:+.1g}" for end in (low, high))


def answers(study: Path, _: Time) -> str:
    """A row for every study (a@60000+b@end): the mean of its tasks, or each task if they have no common unit."""
    lines = ["| study | where | runs of each | MLR - Baseline | 95 % interval | verdict | processor time |"]
    lines += ["|:---|:---|---:|---:|---:|:---|---:|"]
    for name, _, time in (part.partition("@") for part in study.name.split("+")):
        folder, at = study.with_name(name), None if time == "end" else int(time)
        found = verdicts(folder, at) if (folder / "scores.csv").exists() else Verdicts((), (), ())
        for verdict in found.overall or found.tasks:
            tasks = [one.task for one in found.tasks] if found.overall else [verdict.task]
            runs = _span([one.runs for one in found.tasks if one.task in tasks])
            *_, difference, interval, _, words = _row(verdict).split(" | ")
            where = f"{', '.join(_short(task) for task in tasks)} | {runs}"
            lines.append(
                f"| {name} | {where} | {difference} | {interval} | {words} | {cost(folder, tasks, at):.2f} × |"
            )
    return "\n".join(lines)


def seeds(study: Path, at: Time) -> str:
    """Every run's score."""
    scores = Scores.read(study).at(at)
    numbers = sorted({run.seed for run in scores.runs})
    lines = ["| task | method | " + " | ".join(f"seed {seed}" for seed in numbers) + " |"]
    lines += ["|:---|:---|" + "---:|" * len(numbers)]
    for task in scores.tasks:
        for method in arms(scores):
            by_seed = dict(zip(scores.seeds(method, task), scores.values(method, task), strict=True))
            cells = " | ".join(f"{by_seed[seed]:.0f}" if seed in by_seed else "–" for seed in numbers)
            lines.append(f"| {_short(task)} | {_name(method)} | {cells} |")
    return "\n".join(lines)


def methods(study: Path, at: int) -> str:
    """The scores of every method, seed by seed, on a study's only task; of several studies (a+b), with the seeds that all have."""
    parts = _parts(study)
    if not parts:
        return NO_RUNS
    found = {part: Scores.read(part).at(at) for part in parts}
    (task,) = {task for scores in found.values() for task in scores.tasks}
    numbers = sorted(set.intersection(*({run.seed for run in scores.runs} for scores in found.values())))
    lines = ["| method | " + " | ".join(f"seed {seed}" for seed in numbers) + " | mean | processor minutes |"]
    lines += ["|:---|" + "---:|" * (len(numbers) + 2)]
    for method, part in ((name, part) for name in NAMES for part in parts if name in found[part].methods):
        runs = [run for run in found[part].runs if run.method == method and run.seed in numbers]
        by_seed = {run.seed: run.curve[0][1] for run in runs}
        cells = " | ".join(f"{by_seed[seed]:.0f}" if seed in by_seed else "–" for seed in numbers)
        minutes = processor_seconds(part, method, task, at, numbers) / 60
        lines.append(f"| {NAMES[method]} | {cells} | {fmean(by_seed.values()):.0f} | {minutes:.1f} |")
    return "\n".join(lines)


def courses(study: Path, _: Time) -> str:
    """The scores of every run in the course of training, on a study's only task: a row for every method and change of it."""
    if not (study / "scores.csv").exists():
        return NO_RUNS
    scores = Scores.read(study)
    numbers = sorted({run.seed for run in scores.runs})
    lines = ["| method | " + " | ".join(f"seed {seed}" for seed in numbers) + " | mean at the end |"]
    lines += ["|:---|" + "---:|" * (len(numbers) + 1)]
    for method in sorted(scores.methods, key=lambda name: (name.split()[1:], METHODS.index(name.split()[0]))):
        curves = {run.seed: [score for at, score in run.curve if at] for run in scores.runs if run.method == method}
        cells = (", ".join(f"{score:.0f}" for score in curves.get(seed, ())) or "–" for seed in numbers)
        mean = fmean(curve[-1] for curve in curves.values())
        lines.append(f"| {_variant(method)} | {' | '.join(cells)} | {mean:.0f} |")
    return "\n".join(lines)


def growth(study: Path, _: Time) -> str:
    """Random actions, and the score at every time, seed by seed, of a study's only method on its only task."""
    with (study / "scores.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    unit = "frames" if _in_points([row["task"] for row in rows]) else "decisions"
    found = {"random actions": {int(row["seed"]): float(row["random"]) for row in rows if row["random"]}}
    for at in sorted({int(row[unit]) for row in rows}):
        found[f"after {at:,} {unit}"] = {int(row["seed"]): float(row["score"]) for row in rows if int(row[unit]) == at}
    numbers = sorted({int(row["seed"]) for row in rows})
    table = [f"| seed | {' | '.join(map(str, numbers))} |", "|:---|" + "---:|" * len(numbers)]
    table += [
        f"| {when} | {' | '.join(f'{by_seed[seed]:.0f}' for seed in numbers)} |" for when, by_seed in found.items()
    ]
    return "\n".join(table)


def means(study: Path, at: int) -> str:
    """One sentence with the mean of every method on a study's only task."""
    scores = Scores.read(study).at(at)
    (task,) = scores.tasks
    shown = [name for name in NAMES if name in scores.methods]
    seeds = {len(scores.values(name, task)) for name in shown}
    each = ", ".join(f"{NAMES[name]} {scores.values(name, task).mean():.0f}" for name in shown)
    return f"Mean scores on {_short(task)} after {at:,} frames, {_listed([str(n) for n in sorted(seeds)])} seeds each: {each}."


def gate(study: Path, last: int) -> str:
    """The best of the last evaluations of every method and seed, on a study's only task: what the learning gate looks at."""
    found = _gates(study, last)
    numbers = sorted({seed for _, by_seed in found.values() for seed in by_seed})
    lines = ["| method | frames | " + " | ".join(f"seed {seed}" for seed in numbers) + " |"]
    lines += ["|:---|" + "---:|" * (len(numbers) + 1)]
    for method, (frames, by_seed) in found.items():
        cells = " | ".join(f"{by_seed[seed]:.1f}" if seed in by_seed else "–" for seed in numbers)
        lines.append(f"| `{method}` | {frames:,} | {cells} |")
    return "\n".join(lines)


def _gates(study: Path, last: int) -> dict[str, tuple[int, dict[int, float]]]:
    """By method: its frames, and its best late score by seed. Runs in STUDY-long replace the shorter ones of their methods."""
    found: dict[str, tuple[int, dict[int, float]]] = {}
    for folder in (study, study.with_name(f"{study.name}-long")):
        for method in (scores := Scores.read(folder)).methods if (folder / "scores.csv").exists() else ():
            runs = [run for run in scores.runs if run.method == method]
            best = {run.seed: max(score for _, score in run.curve[-last:]) for run in runs}
            found[method] = max(run.curve[-1][0] for run in runs), best
    return dict(sorted(found.items()))


def speed(study: Path, last: int) -> str:
    """What `maskrl bench methods` wrote into STUDY.json, with the gates of the suite's toy (`last`: as of a gate)."""
    file = study.with_name(f"{study.name}.json")
    if not file.exists():
        return "Not measured yet."
    told = json.loads(file.read_text())
    (toy,) = (name for name, suite in TOYS.items() if told["recipe"].startswith((f"{suite}/", name)))
    gates = _gates(study.with_name(toy.replace("/", "-")), last)
    threads = "1 thread" if told["threads"] == 1 else f"{told['threads']} threads"
    lines = [
        f"{told['recipe']}, {told['profile']}, {threads}, {told['rounds']} rounds:",
        "",
        "| method | parameters | GFLOP | ms | GFLOP/s | relative to MLR's | MFLOP a call | first loss | gate |",
        "|:---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in told["methods"]:
        own = row["parameters_of_objective"]
        parameters = f"{row['parameters_of_agent']:,}" + (f" + {own:,}" if own is not None else "")
        ms, rate, ratio = (row[name] for name in ("seconds_per_update", "flop_per_second", "speed_relative_to_mlr"))
        speeds = f"{1000 * ms['median']:.1f} | {rate['median'] / 1e9:.1f} | {ratio['median']:.2f}"
        spread = f"({ratio['low']:.2f} – {ratio['high']:.2f}) | {row['flop_per_torch_call'] / 1e6:.2f}"
        loss = "–" if row["first_loss"] is None else f"{row['first_loss']:#.3g}".rstrip(".")
        gated = (
            " / ".join(f"{score:.1f}" for _, score in sorted(gates[row["method"]][1].items()))
            if row["method"] in gates
            else "–"
        )
        start = f"| `{row['method']}` | {parameters} | {row['flop_per_update'] / 1e9:.2f}"
        lines.append(f"{start} | {speeds} {spread} | {loss} | {gated} |")
    return "\n".join(lines)


def environments(study: Path, last: int) -> str:
    """How fast and how well both methods learned on every environment, beside random actions: the mean of the last evaluations."""
    if not (study / "scores.csv").exists():
        return NO_RUNS
    with (study / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    told = json.loads((study / "about.json").read_text())["recipes"]
    agents = {(one["task"], one["method"]): AGENTS[one["recipe"]["agent"]["kind"]] for one in told}
    lines = [
        "| environment | agent | decisions | decisions per second | random actions | trained | seeds above random | by seed |",
        "|:---|:---|---:|---:|---:|---:|---:|:---|",
    ]
    for task, method in sorted(agents, key=lambda key: (key[0], METHODS.index(key[1]))):
        runs: dict[str, list[dict[str, str]]] = {}
        for row in rows:
            if (row["task"], row["method"]) == (task, method):
                runs.setdefault(row["seed"], []).append(row)
        pairs = [(float(run[0]["random"]), fmean(float(row["score"]) for row in run[-last:])) for run in runs.values()]
        decisions, seconds = (
            sum(float(run[-1][name]) for run in runs.values()) for name in ("decisions", "cpu_seconds")
        )
        agent = agents[task, method] + (" + MLR" if method == "mlr" else "")
        means = " | ".join(number(fmean(side)) for side in zip(*pairs, strict=True))
        above = f"{sum(after > before for before, after in pairs)} of {len(pairs)}"
        by_seed = ", ".join(f"{number(before)} → {number(after)}" for before, after in pairs)
        speed = f"{decisions / len(pairs):,.0f} | {number(decisions / seconds)}"
        lines.append(f"| {_short(task)} | {agent} | {speed} | {means} | {above} | {by_seed} |")
    return "\n".join(lines)


def exports(study: Path, _: int) -> str:
    """How closely exported policies agree with their runs: what `maskrl export` stored in each file, by environment."""
    file = study / "exports.json"
    if not file.exists():
        return "Not exported yet."
    lines = [
        "| environment | observations | largest difference of the exported policy | other choices | same returns |",
        "|:---|---:|---:|---:|---:|",
    ]
    for one in sorted(json.loads(file.read_text()), key=lambda one: one["task"]):
        proof = one["proof"]
        other = "–" if proof["different"] is None else str(proof["different"])
        both = list(zip(proof["returns"], proof["policy_returns"], strict=True))
        apart = max(abs(file - policy) for file, policy in both)
        same = f"{sum(file == policy for file, policy in both)} of {len(both)}"
        same += f", others within {apart:.1g}" if apart else ""
        compared = f"{proof['observations']:,} | {proof['largest_difference']:.2g} | {other}"
        lines.append(f"| {_short(one['task'])} | {compared} | {same} |")
    return "\n".join(lines)


def hours(study: Path, at: int) -> str:
    """One sentence: what all runs to this time took, by the clock and of processor time."""
    with (study / "scores.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["frames"]) == at]
    (task,) = {row["task"] for row in rows}
    told, whole = [], 0.0
    for method in METHODS:
        runs = [row for row in rows if row["method"] == method]
        clock, processor = (sum(float(row[name]) for row in runs) / 3600 for name in ("seconds", "cpu_seconds"))
        told.append(f"{len(runs)} runs of {NAMES[method]} took {clock:.1f} hours ({processor:.1f} of processor time)")
        whole += processor
    start = f"On {_short(task)}, one core each, {_listed(told)}"
    return f"{start}: {whole:.1f} of processor time, {whole / 2:.1f} on each of two cores."


def curves(study: Path, _: int) -> str:
    """The figure of a study, or of several (a+b) with the seeds that all methods have."""
    scores = joined(study)
    if not scores.runs:
        return NO_RUNS
    (unit,) = {run.unit for run in scores.runs}
    name = study.name.replace("+", AND)
    return f"![Scores against {unit}. Thin lines are seeds, thick lines their mean.](evidence/{name}.svg)"


def joined(study: Path) -> Scores:
    """The runs of a study, or those of several (a+b) with the seeds that all methods have."""
    scores = Scores.read(*_parts(study))
    by_method = [{run.seed for run in scores.runs if run.method == method} for method in scores.methods]
    return scores.where(lambda run: run.seed in set.intersection(*by_method)) if "+" in study.name else scores


def _parts(study: Path) -> list[Path]:
    return [part for name in study.name.split("+") if ((part := study.with_name(name)) / "scores.csv").exists()]


def sentence(study: Path, at: Time) -> str:
    """The answer, of the mean over the tasks."""
    found = verdicts(study, at)
    if not found.tasks:
        return NOTHING
    verdict = found.overall[0] if found.overall else found.tasks[0]
    tasks = [one.task for one in found.tasks]
    where = _listed([_short(task) for task in tasks])
    runs = _span([one.runs for one in found.tasks])
    when = "at the end of their budgets" if at is None else f"after {at:,} frames"
    start = f"On {where}, at lite size, {when} and with {runs} {'seed' if runs == '1' else 'seeds'} of each"
    price = f"It takes {cost(study, tasks, at):.2f} times the Baseline's processor time."
    if verdict.difference is None:
        return f"{start}, MLR scores {verdict.mean:.0f} and its Baseline {verdict.reference:.0f}: {verdict.untested}. {price}"
    value, low, high, _ = verdict.difference
    points = f"**{value:+.0f} points of 1000 (95 % interval {_interval(low, high)})**"
    return f"{start}, MLR differs from its Baseline by {points}. {price}"


def together(study: Path, most: int) -> str:
    """One sentence over several studies (a+b), each run at its last evaluation within these frames: the mean over their tasks."""
    groups, pairs = list[Summary](), 0
    for part in (study.with_name(name) for name in study.name.split("+")):
        if not (part / "scores.csv").exists():
            continue
        last = {(run.method, run.task, run.seed): _last(run.curve, most) for run in Scores.read(part).runs}
        mlr, baseline = arms(Scores.read(part))
        for task in sorted({task for _, task, _ in last}):
            seeds = {seed for method, of, seed in last if (method, of) == (mlr, task)}
            seeds &= {seed for method, of, seed in last if (method, of) == (baseline, task)}
            found = [last[mlr, task, seed] - last[baseline, task, seed] for seed in sorted(seeds)]
            if len(found) >= ENOUGH and (differences := Summary.of(found)).std:  # without a spread there is no test
                groups.append(differences)
                pairs += len(found)
    if len(groups) < 2:
        return NOTHING
    value, low, high, _ = welch(groups, [ZERO] * len(groups))
    start = f"Over the {len(groups)} comparisons on a task, with {pairs} pairs of runs together"
    return f"{start}, MLR differs from its Baseline by **{value:+.0f} points of 1000 (95 % interval {_interval(low, high)})**."


def pooled(study: Path, at: int) -> str:
    """One sentence over the pairs of several studies (a+b) on the one task that all have."""
    parts = _parts(study)
    if len(parts) < 2:
        return NO_RUNS
    found = [pairs(Scores.read(part)).at(at) for part in parts]
    (task,) = set.intersection(*(set(scores.tasks) for scores in found))
    mlr, baseline = ([score for one in found for score in one.values(arms(one)[side], task)] for side in (0, 1))
    differences = Summary.of_differences(mlr, baseline)
    value, low, high, _ = welch([differences], [ZERO])
    points = f"**{value:+.0f} points of 1000 (95 % interval {_interval(low, high)})**"
    where = f"On {_short(task)}, over the {differences.runs} seeds of {_listed([part.name for part in parts])}"
    return f"{where}, MLR differs from its Baseline by {points}: {fmean(mlr):.0f} against {fmean(baseline):.0f}."


def _last(curve: Sequence[tuple[int, float]], most: int) -> float:
    return max((at, score) for at, score in curve if at <= most)[1]


def needed(study: Path, at: Time) -> str:
    """One sentence: the seeds that would show a difference of the size that was found."""
    scores = pairs(Scores.read(study)).at(at)
    sides = [[Summary.of(scores.values(method, task)) for task in scores.tasks] for method in arms(scores)]
    seeds = seeds_for(sides[0], sides[1])
    if seeds is None:
        return "The difference that was found is not above 0, so no number of seeds follows from it."
    likely = f"with a probability of {100 * POWER:.0f} % from {seeds} seeds of each method on every task"
    return f"If the difference that was found is the true one, a study shows it {likely}."


MEASURES = {"encoder_cosine": "cosine, masked to unmasked", "rank": "effective rank", "r2": "linear R² of the state"}
FLOOR = {"r2_random_encoder": "R², untrained encoder"}


def probes(study: Path, at: Time) -> str:
    """What the encoder represents at this time: the mean over seeds, and how it goes with the scores of the same runs."""
    rows = _rows(study / "probes.csv", at)
    scores = Scores.read(study).at(at)
    known = {(run.method, run.task, run.seed): run.curve[0][1] for run in scores.runs}
    own_masks = any(change.startswith("objective.mask") for method in scores.methods for change in method.split())
    both = arms(scores)
    lines = [
        "| task | measure | runs | MLR | Baseline | MLR higher | correlation with the score |",
        "|:---|:---|:---|---:|---:|---:|---:|",
    ]
    for task in scores.tasks:
        for name, label in (MEASURES | FLOOR).items():
            of_task = [row for row in rows if row["task"] == task and row["method"] in both and row[name]]
            mlr, baseline = (
                {row["seed"]: float(row[name]) for row in of_task if row["method"] == method} for method in both
            )
            if not (mlr and baseline):
                continue
            pairs = [(float(row[name]), known[row["method"], task, int(row["seed"])]) for row in of_task]
            means = " | ".join(f"{fmean(values.values()):.2f}" for values in (mlr, baseline))
            same = name in MEASURES and not (own_masks and name == "encoder_cosine")  # both methods have the same masks
            seeds = mlr.keys() & baseline.keys()
            higher = f"{sum(mlr[seed] > baseline[seed] for seed in seeds)} of {len(seeds)}" if same else "–"
            pooled = same and len(pairs) >= 2 * ENOUGH
            together = f"{correlation(*zip(*pairs, strict=True)):+.2f}" if pooled else "–"
            runs = " and ".join(dict.fromkeys(str(len(values)) for values in (mlr, baseline)))
            lines.append(f"| {_short(task)} | {label} | {runs} | {means} | {higher} | {together} |")
    return "\n".join(lines)


def along(study: Path, at: Time) -> str:
    """What the encoder represents in the course of training, up to this time: the mean over seeds.

    Runs that were not measured at every evaluation are left out, and the rest is counted.
    """
    with (study / "probes.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if at is None or int(row["frames"]) <= at]
    times = sorted({int(row["frames"]) for row in rows})
    lines = ["| task | measure | method | " + " | ".join(f"{frames:,}" for frames in times) + " |"]
    lines += ["|:---|:---|:---|" + "---:|" * len(times)]
    for task in sorted({row["task"] for row in rows}):
        here = [row for row in rows if row["task"] == task]
        own = sorted({int(row["frames"]) for row in here})
        for name, label in MEASURES.items():
            for method in arms(Scores.read(study)):
                runs: dict[str, dict[int, float]] = {}
                for row in (row for row in here if row["method"] == method):
                    found = runs.setdefault(row["seed"], {})
                    found |= {int(row["frames"]): float(row[name])} if row[name] else {}
                whole = [values for values in runs.values() if len(values) == len(own)]
                if not whole:
                    continue
                told = label if len(whole) == len(runs) else f"{label} ({len(whole)} of {len(runs)} runs)"
                means = {frames: f"{fmean(values[frames] for values in whole):.2f}" for frames in own}
                cells = " | ".join(means.get(frames, "–") for frames in times)
                lines.append(f"| {_short(task)} | {told} | {_name(method)} | {cells} |")
    return "\n".join(lines)


def control(study: Path, at: int) -> str:
    """Of two studies of one task (a+b): every method of the first against the control, the only method of the second."""
    if not (study.parent / study.name.rpartition("+")[2] / "scores.csv").exists():
        return NO_RUNS
    scores = joined(study)
    (reference,) = Scores.read(_parts(study)[-1]).methods
    lines = ["| | seeds | score | control | difference | 95 % interval | p | verdict |"]
    lines += ["|:---|---:|---:|---:|---:|---:|---:|:---|"]
    for method in (one for one in scores.methods if one != reference):
        both = scores.where(lambda run, method=method: run.method in (method, reference))
        (verdict,) = versus(both, method, reference, at=at, papers=False).tasks
        lines.append(f"| {_variant(method)} | {verdict.runs} | {_row(verdict, _name(method))} |")
    return "\n".join(lines)


def variants(study: Path, at: int) -> str:
    """Of two studies of one task (a+b), seed by seed: MLR and the Baseline of the first, then every variant in the second."""
    parts = _parts(study)
    if len(parts) < 2:
        return NO_RUNS
    known, tried = (Scores.read(part).at(at) for part in parts)
    (task,) = {*known.tasks, *tried.tasks}
    runs = [(NAMES[method], known.of_method(method, task)) for method in METHODS]
    runs += [(_changed(parts[1], method), tried.of_method(method, task)) for method in _tried(tried)]
    rows = {name: {run.seed: run.curve[0][1] for run in each} for name, each in runs}
    every = sorted({run.seed for run in tried.runs})
    shared = [seed for seed in every if all(seed in by_seed for by_seed in rows.values())]
    means = {ranges(seeds): seeds for seeds in (shared, every)}
    lines = [
        "| method | " + " | ".join([f"seed {seed}" for seed in every] + [f"mean of {name}" for name in means]) + " |"
    ]
    lines += ["|:---|" + "---:|" * (len(every) + len(means))]
    for name, by_seed in rows.items():
        cells = [f"{by_seed[seed]:.0f}" if seed in by_seed else "–" for seed in every]
        for seeds in means.values():
            complete = all(seed in by_seed for seed in seeds)
            cells.append(f"{fmean(by_seed[seed] for seed in seeds):.0f}" if complete else "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _tried(scores: Scores) -> list[str]:
    """Methods with many runs before those with few, single values before several, and MLR before the Baseline."""
    counts = {method: sum(run.method == method for run in scores.runs) for method in scores.methods}
    words = {method: method.split() for method in counts}
    return sorted(
        counts, key=lambda name: (-counts[name], len(words[name]), words[name][1:], METHODS.index(words[name][0]))
    )


def _changed(study: Path, method: str) -> str:
    """A method of a study's only task with all its changes, those of the environment too, which are not in its name."""
    about = json.loads((study / "about.json").read_text())
    (recipe,) = (one["recipe"] for one in about["recipes"] if one["method"] == method)
    return _variant(" ".join([method.split()[0], *changes_of(from_json(json.dumps(recipe)))]))


def against(study: Path, at: int) -> str:
    """Of two studies of one task (a+b): every variant in the second with enough runs, against MLR and the Baseline of the first."""
    parts = _parts(study)
    if len(parts) < 2:
        return NO_RUNS
    known, tried = (Scores.read(part) for part in parts)
    lines = ["| variant | against | seeds | difference | 95 % interval | p | verdict |"]
    lines += ["|:---|:---|---:|---:|---:|---:|:---|"]
    for variant in _tried(tried):
        runs, name = [run for run in tried.runs if run.method == variant], _changed(parts[1], variant)
        for method in METHODS if len(runs) >= ENOUGH else ():
            others = [run for run in known.runs if run.method == method]
            (verdict,) = versus(Scores((*runs, *others)), variant, method, at=at, papers=False).tasks
            cells = _row(verdict, "the variant").split(" | ")[2:]  # without the scores, which `variants` has
            lines.append(f"| {name} | {NAMES[method]} | {verdict.runs} | {' | '.join(cells)} |")
    return "\n".join(lines)


def frontier(study: Path, at: int) -> str:
    """Score against cost on a study's only task: every variant of MLR beside the Baseline, the cheapest first."""
    if not (study / "scores.csv").exists():
        return NO_RUNS
    scores = Scores.read(study)
    (task,) = scores.tasks
    price = prices(study, at)
    lines = [
        "| method | runs | processor time | score | difference | 95 % interval | verdict |",
        "|:---|---:|---:|---:|---:|---:|:---|",
    ]
    for method in sorted(price, key=lambda name: price[name]):
        start = f"| {_variant(method)} |"
        if method == "baseline":
            values = scores.at(at).values(method, task)
            lines.append(f"{start} {len(values)} | 1.00 × | {values.mean():.0f} | – | – | – |")
            continue
        both = scores.where(lambda run, method=method: run.method in (method, "baseline"))
        (verdict,) = versus(pairs(both), method, "baseline", at=at, papers=False).tasks
        told = verdict.untested or "no difference shows"
        value, interval = verdict.mean - verdict.reference, "–"
        if verdict.difference is not None:
            interval = _interval(verdict.difference.low, verdict.difference.high)
            told = {"above": "above the Baseline", "below": "below the Baseline"}.get(verdict.outcome, told)
        lines.append(
            f"{start} {verdict.runs} | {price[method]:.2f} × | {verdict.mean:.0f} | {value:+.0f} | {interval} | {told} |"
        )
    return "\n".join(lines)


def prices(study: Path, at: Time) -> dict[str, float]:
    """The processor time of every method on a study's only task, as a multiple of the Baseline's."""
    scores = Scores.read(study)
    (task,) = scores.tasks
    base = processor_seconds(study, "baseline", task, at)
    return {method: processor_seconds(study, method, task, at) / base for method in scores.methods}


def _name(method: str) -> str:
    return NAMES[method.split()[0]]


def _variant(method: str) -> str:
    """The method with its changes, each on a line of its own, so that the column stays narrow."""
    name, *changes = method.split()
    return NAMES[name] + (f" with {',<br>'.join(f'`{change}`' for change in changes)}" if changes else "")


def cost(study: Path, tasks: Sequence[str], at: Time) -> float:
    """The processor time of MLR's runs up to this time, as a multiple of the Baseline's: the mean over tasks."""
    both = arms(Scores.read(study))
    each = [[processor_seconds(study, method, task, at) for method in both] for task in tasks]
    return fmean(mlr / baseline for mlr, baseline in each)


def processor_seconds(study: Path, method: str, task: str, at: Time, seeds: Sequence[int] = ()) -> float:
    """The mean over these seeds, or over all, up to this time."""
    rows = [row for row in _rows(study / "scores.csv", at) if (row["method"], row["task"]) == (method, task)]
    return fmean(float(row["cpu_seconds"]) for row in rows if not seeds or int(row["seed"]) in seeds)


def _rows(file: Path, at: Time) -> list[dict[str, str]]:
    """The rows of this time; of the last of every run, if it is the end."""
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    last = {(row["method"], row["task"], row["seed"]): row for row in sorted(rows, key=lambda row: int(row["frames"]))}
    return list(last.values()) if at is None else [row for row in rows if int(row["frames"]) == at]


def _span(counts: Sequence[int]) -> str:
    """One number, or the least and the most while some tasks have more runs than others."""
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _short(task: str) -> str:
    if task.startswith("gym/"):
        return task.removeprefix("gym/")
    return task.replace(":", ",").removeprefix("dmcontrol/").removeprefix("dmcontrol, ").removeprefix("atari/")


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# ── The figure ────────────────────────────────────────────────────────────────────────────────────────────────────────

HIGH, LEFT, TOP, GAP, KEY = 190, 46, 34, 34, 240  # pixels; KEY: the room of a name below
BESIDE, PITCH = 3, HIGH + 70  # panels in a row, and the pixels between two rows
STEPS = tuple(digit * 10**power for power in range(-2, 7) for digit in (1, 2, 5))  # between lines of the grid
STYLE = """text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600}.grid{stroke:#ddd}
.c0{stroke:#c2410c}.c1{stroke:#1d4ed8}.c2{stroke:#737373}.c3{stroke:#0f766e}.c4{stroke:#7e22ce}.c5{stroke:#a16207}
.c6{stroke:#be185d}
path{fill:none}.seed{stroke-width:1;opacity:.45}.mean{stroke-width:3}
svg{background:#fff}@media(prefers-color-scheme:dark){svg{background:#1b1e24}text{fill:#ddd}.grid{stroke:#444}
.c0{stroke:#fb923c}.c1{stroke:#93c5fd}.c2{stroke:#a3a3a3}.c3{stroke:#5eead4}.c4{stroke:#d8b4fe}.c5{stroke:#facc15}.c6{stroke:#f9a8d4}}"""


def figure(study: Path) -> str:
    """A panel for every task: each seed a thin line, the mean a thick one."""
    scores = joined(study)
    tasks, panels = scores.tasks, list[str]()
    shown = sorted(scores.methods, key=lambda method: [*NAMES].index(method.split()[0]))
    colours, wide = {name: f"c{at}" for at, name in enumerate(shown)}, 250 if len(tasks) > 1 else 460
    for index, task in enumerate(tasks):
        runs = [run for run in scores.runs if run.task == task]
        end = max(at for run in runs for at, _ in run.curve)
        low, top = _range([score for run in runs for _, score in run.curve])
        x, y = LEFT + index % BESIDE * (wide + GAP + LEFT), TOP + index // BESIDE * PITCH

        def place(
            at: float, score: float, x: int = x, y: int = y, end: int = end, low: float = low, top: float = top
        ) -> str:
            return f"{x + wide * at / end:.1f},{y + HIGH * (top - score) / (top - low):.1f}"

        panels.append(f'<text class="title" x="{x}" y="{y - 12}">{escape(_short(task))}</text>')
        panels += _levels(x, y, wide, low, top)
        for at in (0, end // 2, end):
            label = f'<text x="{x + wide * at / end:.1f}" y="{y + HIGH + 18}" text-anchor="middle">{at // 1000}k</text>'
            panels.append(label)
        for method in shown:
            curves = [run.curve for run in runs if run.method == method]
            times = sorted({at for curve in curves for at, _ in curve})
            mean = [(at, fmean(score for curve in curves for time, score in curve if time == at)) for at in times]
            for kind, curve in [*(("seed", curve) for curve in curves), ("mean", mean)]:
                points = " L".join(place(at, score) for at, score in curve)
                panels.append(f'<path class="{kind} {colours[method]}" d="M{points}"/>' if points else "")
    width = min(len(tasks), BESIDE) * (wide + GAP + LEFT)
    foot = TOP + (len(tasks) - 1) // BESIDE * PITCH + HIGH + 40
    columns = max(1, (width - LEFT) // KEY)
    height = foot + 20 * math.ceil(len(shown) / columns) + 16
    keys = []
    for index, method in enumerate(shown):
        x, y = LEFT + KEY * (index % columns), foot + 20 * (index // columns)
        keys.append(f'<path class="mean {colours[method]}" d="M{x},{y}h24"/>')
        keys.append(f'<text x="{x + 30}" y="{y + 4}">{_name(method)}</text>')
    keys.append(f'<text x="{LEFT}" y="{height - 8}">score against {scores.runs[0].unit}; thin lines are seeds</text>')
    body = "\n".join(part for part in (*panels, *keys) if part)
    return _svg(width, height, f"Scores of {_listed([_name(name) for name in shown])}", body)


def price_figure(study: Path) -> str:
    """Score against processor time at the end of a study's only task: each seed a ring, the mean of a method a dot."""
    scores, price = Scores.read(study).at(None), prices(study, None)
    (task,) = scores.tasks
    values = {method: [float(score) for score in scores.values(method, task)] for method in price}
    wide, most = 460, 0.25 * math.ceil(4 * max(price.values()) + 0.4)
    low, top = _range([score for each in values.values() for score in each])
    parts = [
        f'<text class="title" x="{LEFT}" y="{TOP - 12}">{escape(_short(task))}</text>',
        *_levels(LEFT, TOP, wide, low, top),
    ]
    for step in range(4, round(4 * most) + 1):
        x = LEFT + wide * (step / 4 - 0.9) / (most - 0.9)
        parts.append(f'<text x="{x:.1f}" y="{TOP + HIGH + 18}" text-anchor="middle">{step / 4:g} ×</text>')
    places = {
        method: (
            LEFT + wide * (price[method] - 0.9) / (most - 0.9),
            [TOP + HIGH * (top - score) / (top - low) for score in each],
        )
        for method, each in values.items()
    }
    dots = [(x, fmean(heights)) for x, heights in places.values()]
    for method, (x, heights) in places.items():
        y, colour = fmean(heights), "c1" if method == "baseline" else "c0"
        parts += [f'<circle class="{colour}" fill="none" cx="{x:.1f}" cy="{height:.1f}" r="4"/>' for height in heights]
        parts.append(f'<circle class="{colour}" stroke-width="6" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        label = " ".join([_name(method), *(change.rpartition(".")[2] for change in method.split()[1:])])
        # On the right of its dot; on the left if it would run into the next dot.
        runs_into = any(0 < other - x < 14 + 8 * len(label) and abs(height - y) < 16 for other, height in dots)
        side = f'x="{x - 10:.1f}" text-anchor="end"' if runs_into else f'x="{x + 10:.1f}"'
        parts.append(f'<text {side} y="{y + 4:.1f}">{escape(label)}</text>')
    told = "score against processor time, Baseline = 1; rings are seeds, dots their mean"
    parts.append(f'<text x="{LEFT}" y="{TOP + HIGH + 44}">{told}</text>')
    names = _listed(list(dict.fromkeys(_name(name) for name in values)))
    return _svg(LEFT + wide + GAP, TOP + HIGH + 56, f"Scores and processor time of {names}", "\n".join(parts))


def _levels(x: float, y: float, wide: float, low: float, top: float) -> Iterator[str]:
    """The lines of a panel's grid, with their scores."""
    step = next(size for size in STEPS if (top - low) / size <= 6)
    for level in (step * line for line in range(math.ceil(low / step), math.floor(top / step) + 1)):
        height = y + HIGH * (top - level) / (top - low)
        yield f'<path class="grid" d="M{x},{height:.1f}h{wide}"/>'
        yield f'<text x="{x - 6}" y="{height + 4:.1f}" text-anchor="end">{level:g}</text>'


def _svg(width: int, height: int, label: str, body: str) -> str:
    told = f'role="img" aria-label="{escape(label)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" {told}>'
    return f"{head}\n<style>{STYLE}</style>\n{body}\n</svg>\n"


def _range(scores: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest score of a panel: 0 is always in it."""
    low, top = min(0.0, *scores), max(0.0, *scores)
    return low, (top + 0.05 * (top - low)) or 1.0


# ── Pages ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

BLOCKS: dict[str, Callable[[Path, Any], str]] = {
    "table": table,
    "answers": answers,
    "seeds": seeds,
    "methods": methods,
    "courses": courses,
    "growth": growth,
    "means": means,
    "gate": gate,
    "speed": speed,
    "environments": environments,
    "exports": exports,
    "hours": hours,
    "curves": curves,
    "sentence": sentence,
    "together": together,
    "pooled": pooled,
    "needed": needed,
    "probes": probes,
    "along": along,
    "frontier": frontier,
    "control": control,
    "variants": variants,
    "against": against,
}


def filled(page: str) -> str:
    """The page with every block as results/ give it."""

    def fill(match: re.Match[str]) -> str:
        kind, study, at = match["words"].split()
        time = None if at == "end" else int(at)
        return f"{match[1]}\n{BLOCKS[kind](ROOT / 'results' / study, time)}\n\n{match[3]}"

    return BLOCK.sub(fill, page)


PICTURE = re.compile(r"\]\((?:docs/)?evidence/([\w-]+)\.svg\)")
AND, PRICE = "_and_", "-price"  # in the names of pictures
MEASURED = "src/maskrl/recipes/data/measured.csv"  # what `maskrl plan` goes by


def measured(studies: Sequence[Path]) -> str:
    """Mean and spread of MLR and its Baseline on every task at every time, where one study has enough runs of both for a test.

    Both rows are of the same study: of several, the one whose smaller side has the most runs.
    """
    largest: dict[tuple[str, str, int], tuple[int, str, dict[str, list[float]]]] = {}
    for study in studies:
        for what, both in _both(study).items():
            fewest = min(len(scores) for scores in both.values())
            if fewest > largest.get(what, (ENOUGH - 1, "", {}))[0]:
                largest[what] = fewest, study.name, both
    rows = ["study,task,profile,frames,method,mean,std,seeds"]
    for (task, profile, frames), (_, name, both) in sorted(largest.items()):
        for method, scores in both.items():
            mean, std, seeds = Summary.of(scores)
            # Six digits, because with fixed decimals a spread of scores near 1 would become 0.
            rows.append(f"{name},{task},{profile},{frames},{method},{mean:.6g},{std:.6g},{seeds}")
    return "\n".join([*rows, ""])


def _both(study: Path) -> dict[tuple[str, str, int], dict[str, list[float]]]:
    """Task, profile and frames → method → scores, of MLR and the Baseline with the profile's own values: a plan is about these.

    Without environments of users, because their names do not tell their values.
    """
    about = json.loads((study / "about.json").read_text())
    profiles = {(one["task"], one["method"]): one["recipe"]["profile"] for one in about["recipes"]}
    found: dict[tuple[str, str, int], dict[str, list[float]]] = {}
    with (study / "scores.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            task, method, frames = row["task"], row["method"], int(row["frames"])
            if method in METHODS and (task, method) in profiles and frames and not is_own(task):
                both = found.setdefault((task, profiles[task, method], frames), {name: [] for name in METHODS})
                both[method].append(float(row["score"]))
    return found


def outputs() -> dict[Path, str]:
    """Every file that quotes results, as it should be."""
    texts = {ROOT / name: filled((ROOT / name).read_text()) for name in PAGES if (ROOT / name).exists()}
    studies = sorted(path.parent for path in (ROOT / "results").glob("*/scores.csv"))
    texts |= {ROOT / MEASURED: measured(studies)}
    shown = {name for text in texts.values() for name in PICTURE.findall(text)}
    return texts | {ROOT / "docs" / "evidence" / f"{name}.svg": picture(name) for name in sorted(shown)}


def picture(name: str) -> str:
    """The picture of this name: score against cost for STUDY-price, otherwise curves."""
    study = ROOT / "results" / name.removesuffix(PRICE).replace(AND, "+")
    return price_figure(study) if name.endswith(PRICE) else figure(study)


def main(words: Sequence[str]) -> int:
    stale = [path for path, text in outputs().items() if not path.exists() or path.read_text() != text]
    if "--check" in words:
        print(
            "\n".join(
                f"{path.relative_to(ROOT)} is not what results/ give: run python tools/evidence.py" for path in stale
            )
        )
        return 1 if stale else 0
    for path, text in outputs().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
