"""The numbers in the text of docs/evidence.md: each is computed here from results/, or it stands in the plan of its study.

The tables and sentences between `<!-- evidence: … -->` and `<!-- end -->` are in test_evidence.py.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import correlation, fmean, stdev

import numpy as np
import pytest
from scipy import stats

from maskrl import recipes
from maskrl.analysis.power import seeds_for
from maskrl.analysis.statistics import Summary
from maskrl.cost.operations import run_cost

ROOT = Path(__file__).parent.parent
PAIR = ("mlr", "baseline")
PAGE = (ROOT / "docs" / "evidence.md").read_text()


@cache
def table(study: str, kind: str = "scores") -> list[dict[str, str]]:
    with (ROOT / "results" / study / f"{kind}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def column(study: str, task: str, method: str, frames: int, name: str = "score", kind: str = "scores") -> list[float]:
    """One number of every run, in the order of the seeds."""
    rows = [
        row
        for row in table(study, kind)
        if row["task"].rpartition("/")[2] == task
        and row["method"] == method
        and int(row["frames"]) == frames
        and row[name]
    ]
    return [float(row[name]) for row in sorted(rows, key=lambda row: int(row["seed"]))]


def arms(study: str) -> list[str]:
    """MLR and the Baseline as the study names them: with the values that it changes, if it has no other runs of them."""
    names = {row["method"] for row in table(study)}
    found = [[name for name in names if name == arm or (arm not in names and name.split()[0] == arm)] for arm in PAIR]
    return [name for (name,) in found]


def minus(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(mine, theirs, strict=True)]


def differences(study: str, task: str, frames: int) -> list[float]:
    return minus(*(column(study, task, method, frames) for method in arms(study)))


def half_width(differences: Sequence[float]) -> float:
    """Of the 95 % interval of a mean."""
    return float(stats.t.ppf(0.975, len(differences) - 1)) * stdev(differences) / len(differences) ** 0.5


def half_width_unpaired(mlr: Sequence[float], baseline: Sequence[float]) -> float:
    """The same of the difference of two means, by Welch's test."""
    low, high = stats.ttest_ind(mlr, baseline, equal_var=False).confidence_interval(0.95)
    return float(high - low) / 2


def with_interval(differences: Sequence[float], words: str = "") -> str:
    """A mean with its 95 % interval, without the closing bracket."""
    mean, size = fmean(differences), half_width(differences)
    return f"{mean:+.0f} ({words}{mean - size:+.0f} to {mean + size:+.0f}"


def paired(study: str, at: int | None) -> Iterator[list[list[float]]]:
    """The scores of MLR and of the Baseline on every task, in the order of the seeds, at a time or at the end."""
    rows = [row for row in table(study) if at is None or int(row["frames"]) == at]
    for task in sorted({row["task"] for row in rows}):
        here = [row for row in rows if row["task"] == task]
        end = max(int(row["frames"]) for row in here)
        yield [column(study, task.rpartition("/")[2], method, end) for method in arms(study)]


def untrained(study: str, task: str) -> float:
    return fmean(score for method in ("mlr", "baseline") for score in column(study, task, method, 0))


def random_play(study: str, task: str) -> float:
    return fmean(score for method in ("mlr", "baseline") for score in column(study, task, method, 0, "random"))


def by_seed(study: str, task: str, frames: int, name: str = "r2") -> list[dict[str, float]]:
    """A measure of MLR, with the values that the study changes, and of the Baseline: for every seed that has it."""
    rows = [row for row in table(study, "probes") if row[name] and row["task"].rpartition("/")[2] == task]
    return [
        {row["seed"]: float(row[name]) for row in rows if row["method"] == method and int(row["frames"]) == frames}
        for method in arms(study)
    ]


def higher(study: str, task: str, frames: int, name: str = "r2") -> int:
    """The number of seeds with which MLR has the higher value."""
    mlr, baseline = by_seed(study, task, frames, name)
    assert mlr.keys() == baseline.keys()
    return sum(mlr[seed] > baseline[seed] for seed in mlr)


def above_untrained(study: str, task: str, frames: int) -> list[dict[str, float]]:
    """By how much R² exceeds that of an untrained encoder on the same states, of MLR and of the Baseline, for every seed."""
    both = zip(*(by_seed(study, task, frames, name) for name in ("r2", "r2_random_encoder")), strict=True)
    return [{seed: value - floor[seed] for seed, value in values.items()} for values, floor in both]


def probed(study: str) -> list[tuple[str, int]]:
    """The tasks with an R² of both methods, each with the last such time up to 60,000 frames."""
    times: dict[str, int] = {}
    for row in table(study, "probes"):
        task, frames = row["task"].rpartition("/")[2], int(row["frames"])
        if frames <= 60_000 and all(by_seed(study, task, frames)):
            times[task] = max(frames, times.get(task, 0))
    return list(times.items())


def gain(study: str, task: str, frames: int) -> float:
    """By how much MLR's mean R² is higher than the Baseline's."""
    mlr, baseline = (fmean(values.values()) for values in by_seed(study, task, frames))
    return mlr - baseline


def largest_correlation(study: str, task: str, frames: int, *, signed: bool = False) -> float:
    """Of the cosine and the rank with the score, over the runs of both methods."""
    scores = [score for method in ("mlr", "baseline") for score in column(study, task, method, frames)]
    measures = [
        [value for method in ("mlr", "baseline") for value in column(study, task, method, frames, name, "probes")]
        for name in ("encoder_cosine", "rank")
    ]
    found = [correlation(values, scores) for values in measures]
    return max(found if signed else map(abs, found))


def span(values: Sequence[float]) -> float:
    return max(values) - min(values)


def of_dmcontrol() -> Iterator[str]:
    study, catch, reacher = "lite-dmcontrol", "ball_in_cup-catch", "reacher-easy"
    *_, second, first = sorted(column(study, catch, "mlr", 60_000))
    best = max(column(study, catch, "baseline", 60_000))
    level = untrained(study, catch)
    assert sorted(column(study, catch, "mlr", 60_000))[-3] < level < second
    yield f"untrained networks score {level:.0f} on average. Two of the five runs of MLR end far above that"
    yield f"({second:.0f} and {first:.0f}); the best run of the Baseline has {best:.0f}."
    level = untrained(study, reacher)
    low = [
        [score for score in column(study, reacher, method, 60_000) if score < level] for method in ("mlr", "baseline")
    ]
    ((mlr,), (baseline,)) = low
    yield f"untrained networks score {level:.0f} on average; one run of MLR ({mlr:.0f}) and one of the Baseline ({baseline:.0f})"
    near, some = (
        [abs(score - untrained(study, task)) <= 60 for method in PAIR for score in column(study, task, method, 60_000)]
        for task in (catch, reacher)
    )
    yield f"{sum(near)} of the {len(near)} runs end within 60 points of untrained networks, on reacher-easy {sum(some)}."
    tasks = (catch, reacher, "cartpole-swingup")
    assert 0.3 < max(largest_correlation(study, task, 60_000) for task in tasks) < 0.4
    yield "No correlation of the cosine or the rank with the score exceeds 0.4, so all may be chance."
    told = "more similar with all five seeds on cartpole-swingup, with four on reacher-easy, and with one on ball_in_cup-catch"
    assert [higher(study, task, 60_000, "encoder_cosine") for task in ("cartpole-swingup", reacher, catch)] == [5, 4, 1]
    yield told
    cosines = [column(study, catch, name, 60_000, "encoder_cosine", "probes") for name in PAIR]
    assert fmean(cosines[0]) > fmean(cosines[1])
    assert fmean(cosines[0]) < fmean(sorted(cosines[1])[1:])
    yield "where one run of the Baseline lowers its mean"
    swing = "cartpole-swingup"
    assert [higher(study, task, 60_000, "r2") for task in (catch, swing)] == [5, 5]
    assert all(gain(study, task, frames) > 0 for task in (catch, swing) for frames in (20_000, 40_000, 60_000))
    yield "MLR's encoder has the higher R² with all five seeds on ball_in_cup-catch and on cartpole-swingup,"
    yield "where this still holds after 100,000."
    yield "Its mean is higher at every evaluation of both."
    assert {fits(study, task, frames)[1] for task in (catch, swing) for frames in (20_000, 40_000, 60_000)} == {10}
    course = [
        ", ".join(f"{fits(study, task, at)[0]:+.2f}" for at in (20_000, 40_000, 60_000)) for task in (catch, swing)
    ]
    first, second = (" and ".join(text.rsplit(", ", 1)) for text in course)
    yield f"after 20,000, 40,000 and 60,000 frames it is {first} on ball_in_cup-catch, and {second} on cartpole-swingup,"
    yield f"with {fits(study, swing, 100_000)[0]:+.2f} after 100,000."
    assert higher(study, swing, 100_000) == 5
    assert min(gain(study, swing, frames) for frames in (80_000, 100_000)) > 0

    for method in PAIR:
        values, floor = (
            fmean(column(study, reacher, method, 60_000, name, "probes")) for name in ("r2", "r2_random_encoder")
        )
        assert values < min(0, floor)
    yield "After 60,000 frames, the mean R² is below 0 with both methods, so the mean state would predict better."
    yield "Untrained encoders do better, too."
    low = [{seed: value for seed, value in values.items() if value < -1} for values in by_seed(study, reacher, 60_000)]
    assert [list(each) for each in low] == [["11"], ["12", "15"]]
    (mlr,), (baseline, other) = (each.values() for each in low)
    yield f"Three of the ten runs decide this: {mlr:.2f} with seed 11 of MLR,"
    yield f"{baseline:.2f} and {other:.2f} with seeds 12 and 15 of the Baseline."
    rest = [[value for value in values.values() if value > -1] for values in by_seed(study, reacher, 60_000)]
    assert min(map(fmean, rest)) > -0.15

    ends = {"cartpole-swingup": 100_000, reacher: 60_000, catch: 60_000}
    sides = [
        [Summary.of(np.array(column(study, task, method, frames))) for task, frames in ends.items()]
        for method in ("mlr", "baseline")
    ]
    yield f"`maskrl plan studies/lite-dmcontrol` says {seeds_for(*sides)}, because it takes the scores on cartpole-swingup after"


def fits(study: str, task: str, frames: int) -> tuple[float, int]:
    """How the linear R² of the state goes with the score over the runs of both methods that have both, and their number."""
    scores = {(row["method"], row["task"], row["seed"], row["frames"]): row["score"] for row in table(study)}
    pairs = [
        (float(row["r2"]), float(scores[row["method"], row["task"], row["seed"], row["frames"]]))
        for row in table(study, "probes")
        if row["r2"] and row["task"].rpartition("/")[2] == task and int(row["frames"]) == frames
        if row["method"] in arms(study)
    ]
    return correlation(*zip(*pairs, strict=True)), len(pairs)


def chance(runs: int) -> float:
    """The correlation that as many pairs of independent normal numbers exceed in 5 % of all cases, on either side."""
    t = float(stats.t.ppf(0.975, runs - 2))
    return t / (runs - 2 + t**2) ** 0.5


def of_the_answers() -> Iterator[str]:
    # lite-cost has runs of lite-balance, lite-first-weights none of MLR, lite-values only MLR with changes.
    places = [
        (study, task, at)
        for study in ("lite-dmcontrol", "lite-balance", "lite-dmcontrol-2", "lite-cost-2")
        for task, at in probed(study)
    ]
    means = {place: [fmean(values.values()) for values in by_seed(*place)] for place in places}
    works = [place for place in places if min(means[place]) > 0]
    (failed,) = set(places) - set(works)
    assert max(means[failed]) < 0
    assert {at for _, task, at in places if task != "walker-walk"} == {60_000}
    gains = [mlr - baseline for mlr, baseline in (means[place] for place in works)]
    assert min(gains) > 0
    yield f"On {failed[1]}, the probe fails: the mean R² is below 0 with both methods, so we left it out after we saw it."
    yield f"In the {len(gains)} other comparisons, after 60,000 frames (walker-walk: 30,000), the mean R² is higher with MLR,"
    pairs = sum(len(by_seed(*place)[0]) for place in works)
    wins = sum(higher(*place) for place in works)
    yield f"by {min(gains):.2f} to {max(gains):.2f}, and so it is in {wins} of {pairs} pairs of runs."
    above = [
        mlr > baseline
        for mlr, baseline in ([fmean(one.values()) for one in above_untrained(*place)] for place in works)
    ]
    yield f"the mean is higher in {sum(above)} of {len(above)}."
    better = {place: fmean(differences(*place)) > 0 for place in works}
    yield f"The mean score is higher with MLR in {sum(better.values())} of these {len(works)} comparisons, and lower in the two"
    assert [task for (_, task, _), above in better.items() if not above] == ["cartpole-balance"] * 2
    yield "and lower in the two on cartpole-balance."
    found = [fits(*place) for place in works]
    assert [(task, runs) for (_, task, _), (_, runs) in zip(works, found, strict=True)] == [
        ("ball_in_cup-catch", 10),
        ("cartpole-swingup", 10),
        ("cartpole-balance", 12),
        ("cartpole-balance", 10),
        ("walker-walk", 10),
        ("ball_in_cup-catch", 8),
    ]
    catch, swing, balance, second, walker, again = (value for value, _ in found)
    yield f"the correlation of R² with the score is {catch:+.2f} and {again:+.2f} on ball_in_cup-catch"
    yield f"and {walker:+.2f} on walker-walk,"
    yield f"but {swing:+.2f} on cartpole-swingup, and {balance:+.2f} and {second:+.2f} on cartpole-balance."
    place = ("lite-dmcontrol", "ball_in_cup-catch", 60_000)
    scores = [column(*place[:2], method, 60_000) for method in PAIR]
    floors, rest = (
        correlation([value for arm in measure for _, value in sorted(arm.items())], [*scores[0], *scores[1]])
        for measure in (by_seed(*place, "r2_random_encoder"), above_untrained(*place))
    )
    told = f"it is {floors:+.2f} with the R² of untrained encoders, and {rest:+.2f} with the difference of the two."
    yield f"where the correlation is {catch:+.2f}, {told}"
    tables = [block for block in BLOCKS.findall(PAGE) if block.startswith("<!-- evidence: probes")]
    cells = re.findall(r"^\| [^|]+ \| ([^|]+) \| (\d+) \|.* \| ([+-]\d\.\d\d) \|$", "\n".join(tables), re.MULTILINE)
    yield f"The tables of this page have {len(cells)} correlations with the score, of R² and other measures."
    told = (
        f"further from 0 than {chance(8):.2f} with 8 runs, {chance(10):.2f} with 10 runs, or {chance(12):.2f} with 12."
    )
    yield f"By chance alone, one in 20 is {told} So about one is expected."
    assert round(0.05 * len(cells)) == 1
    far = [(name, value) for name, runs, value in cells if abs(float(value)) > chance(2 * int(runs))]
    assert {name for name, _ in far} == {"linear R² of the state"}
    assert -chance(10) < second < -0.63  # hardly less far
    assert len(far) == 2
    yield f"Two are that far, both of R² ({' and '.join(value for _, value in far)}), and {second:.2f} is hardly less far."


def of_balance() -> Iterator[str]:
    found = differences("lite-balance", "cartpole-balance", 60_000)
    deviation = (sum((one - fmean(found)) ** 2 for one in found) / 5) ** 0.5
    yield f"the interval reaches {2.5706 * deviation / 6**0.5:.0f} points to either side"  # Student's t, 5 degrees of freedom
    assert [one > 0 for one in found].count(True) == 1
    yield "of these six, one does"
    earlier = differences("sb3-cartpole-balance", "cartpole-balance", 60_000)
    assert len(earlier) == 3
    assert min(earlier) > 0
    yield "Three earlier seeds, in the study with stable-baselines3 below, favoured MLR"
    assert {len(column("lite-balance", "cartpole-balance", method, 60_000)) for method in ("mlr", "baseline")} == {6}
    yield "What the encoder represents at the end, mean of six seeds."
    cosine, fit = (higher("lite-balance", "cartpole-balance", 60_000, name) for name in ("encoder_cosine", "r2"))
    yield f"have more similar latent states with MLR in {cosine} of 6 pairs of runs, and R² is higher in {fit} of 6."
    assert all(gain("lite-balance", "cartpole-balance", frames) > 0 for frames in (20_000, 40_000, 60_000))
    yield "The mean R² is higher with MLR at every evaluation."
    task, frames = "cartpole-balance", 60_000
    assert (
        max(largest_correlation("lite-balance", task, frames, signed=True), fits("lite-balance", task, frames)[0]) < 0
    )
    yield "None of the three measures rises with the score here."


def of_the_first_weights() -> Iterator[str]:
    name, task = "baseline agent.encoder.linear_init=truncated_normal", "cartpole-balance"
    control = fmean(column("lite-first-weights", task, name, 60_000))
    mlr, baseline = (fmean(column("lite-balance", task, method, 60_000)) for method in PAIR)
    told = f"{mlr - control:.0f} for the objective, {control - baseline:.0f} for the first weights."
    yield f"The difference of {mlr - baseline:.0f} in lite-balance is the sum of two: {told}"
    first = fmean(column("lite-first-weights", task, name, 60_000, "r2", "probes"))
    mlr, baseline = (fmean(column("lite-balance", task, method, 60_000, "r2", "probes")) for method in PAIR)
    assert f"{first:.2f}" == f"{baseline:.2f}"
    yield f"The mean R² of the state is {first:.2f} with both first weights, and {mlr:.2f} with MLR."


def of_the_cost() -> Iterator[str]:
    task = "cartpole-balance"
    for study in ("lite-cost", "lite-clips"):
        assert price(study, task, "mlr", 60_000) == price("lite-cost", task, "mlr", 60_000)
        scores = [column("lite-balance", task, method, 60_000)[:4] for method in ("mlr", "baseline")]
        assert [column(study, task, method, 60_000) for method in ("mlr", "baseline")] == scores
    yield f"their difference of {fmean(scores[0]) - fmean(scores[1]):.0f} is not a new finding"
    fourth = price("lite-cost", task, "mlr objective.every=4", 60_000)
    places = ("lite-cost", "lite-balance", "sb3-cartpole-balance")
    now, before, beside = (price(study, task, "mlr", 60_000) for study in places)
    assert 0.1 < beside / now - 1 < 0.14
    yield f"MLR costs {now:.2f} times the Baseline's here, {before:.2f} in lite-balance and {beside:.2f} beside stable-baselines3."
    # tests/studies/test_registered.py computes these from the commit:
    yield "(commit `cee92f6`), the objective in every fourth update cost 1.23 times the Baseline's, lite's MLR 1.45 times."
    few, fewest = (price("lite-clips", task, f"mlr agent.auxiliary.clips={clips}", 60_000) for clips in (4, 2))
    assert abs(few - fewest) < 0.01
    yield f"whether {few:.2f} and {fourth:.2f} meet the goal of 1.25 is open"
    yield f"Half of the clips bring the extra time from {now - 1:.0%}".replace("%", " %")
    yield f"of the Baseline's down to {few - 1:.0%}, a quarter of them no further.".replace("%", " %")


def price(study: str, task: str, method: str, frames: int) -> float:
    """The processor time of a method as a multiple of the Baseline's."""
    mine, baseline = (fmean(column(study, task, one, frames, "cpu_seconds")) for one in (method, "baseline"))
    return mine / baseline


def of_the_cost_on_the_cup() -> Iterator[str]:
    study, task = "lite-cost-2", "ball_in_cup-catch"
    first, again = (fmean(differences(name, task, 60_000)) for name in ("lite-dmcontrol", study))
    yield f"On ball_in_cup-catch it was furthest above: {first:+.0f} in the first study."
    yield f"The new difference of {again:+.0f} does not contradict the first one of {first:+.0f}, which is in its interval."
    methods = ("baseline", *(f"mlr{change}" for change in ("", " objective.every=1", " objective.every=4")))
    times = [f"{frames:,}" for frames in sorted({int(row["frames"]) for row in table(study)} - {0})]
    yield f"The scores of every run after {', '.join(times[:-1])} and {times[-1]} frames:"
    ends = [score for method in methods for score in column(study, task, method, 60_000)]
    level = untrained(study, task)
    near = sum(abs(score - level) <= 60 for score in ends)
    yield f"Untrained networks score {level:.0f} on average, and {near} of the {len(ends)} runs end within 60 points of that;"
    yield f"the best has {max(ends):.0f}."
    before, after = (column(study, task, "baseline", frames)[2] for frames in (40_000, 60_000))
    yield f"One run of the Baseline has {before:.0f} after 40,000 frames and {after:.0f} after 60,000."
    baseline = column(study, task, "baseline", 60_000)
    gains = {method: minus(column(study, task, method, 60_000), baseline) for method in methods[1:]}
    wide = {method: half_width(each) for method, each in gains.items()}
    assert abs(first - again) < wide["mlr"]
    assert 0 < max(map(fmean, gains.values())) < 50
    yield "One success in all 20 episodes is worth at most 50 points, and every gain here is smaller."
    assert all(wide[method] > abs(fmean(each)) for method, each in gains.items())
    yield "include 0, too."
    yield "The plan expected intervals of 250 points to either side."
    before = max(column("lite-dmcontrol", task, "mlr", 60_000))
    assert max(ends) < before
    yield f"They are {min(wide.values()):.0f} to {max(wide.values()):.0f}, because the runs differ less:"
    yield f"the best of the first study has {before:.0f}."
    assert (higher(study, task, 60_000), gain(study, task, 60_000) > 0) == (3, True)
    yield "MLR's mean R² is higher, with three of the four seeds."
    mlr, baseline = above_untrained(study, task, 60_000)
    assert sum(mlr[seed] > baseline[seed] for seed in mlr) == 2
    yield f"minus theirs, it is {fmean(mlr.values()) - fmean(baseline.values()):.2f}, and above 0 with two seeds."
    every, alone = (
        fmean(column(study, task, method, 60_000, "r2", "probes")) for method in ("mlr objective.every=1", "baseline")
    )
    assert every < alone
    yield f"With the objective in every update, the mean R² is {every:.2f}, below the Baseline's."
    assert higher(study, task, 60_000, "rank") == 0
    yield "MLR's effective rank is lower with all four seeds."
    fourth, baseline = (
        column(study, task, method, 60_000, "cpu_seconds") for method in ("mlr objective.every=4", "baseline")
    )
    each = [mine / theirs for mine, theirs in zip(fourth, baseline, strict=True)]
    mean = price(study, task, "mlr objective.every=4", 60_000)
    assert min(each) < mean < 1.25 < max(each)
    yield f"meets the goal of at most 1.25 times the Baseline's processor time with {mean:.2f}, but the error is larger"
    later = fmean(baseline[2:]) / fmean(baseline[:2]) - 1
    yield f"its last two runs took {100 * later:.0f} % more processor time than the two before."
    yield f"For each seed alone, the price is {min(each):.2f} to {max(each):.2f}."
    yield "says 1.31 on the same machine (measured once, in no folder of `results/`)."  # a timing: it cannot be computed again
    here, before = (price(name, task, "mlr", 60_000) for name in (study, "lite-dmcontrol"))
    yield f"MLR costs {here:.2f} times the Baseline here, and {before:.2f} times on this task in lite-dmcontrol."
    prices = [
        price(name, "cartpole-balance", "mlr", 60_000) for name in ("lite-cost", "lite-balance", "sb3-cartpole-balance")
    ]
    prices.append(price("lite-dmcontrol-2", "cartpole-balance", arms("lite-dmcontrol-2")[0], 60_000))
    yield f"on cartpole-balance, MLR costs {min(prices):.2f} to {max(prices):.2f} times the Baseline, depending on the study,"
    yield f"on {task} {before:.2f} and {here:.2f} times."


def of_companions() -> Iterator[str]:
    runs = {name: column("lite-balance", "cartpole-balance", name, 60_000)[:3] for name in ("mlr", "baseline")}
    others = ("curl", "drq", "spr", "drqv2")
    runs |= {name: column("lite-companions", "cartpole-balance", name, 60_000) for name in others}
    runs["sb3"] = column("lite-sb3", "cartpole-balance", "sb3", 60_000)
    assert {len(values) for values in runs.values()} == {3}
    rows = table("lite-companions") + table("lite-sb3")
    yield f"All of their {len({(row['method'], row['seed']) for row in rows})} runs are done."
    wide = [span(runs[name]) for name in ("spr", "curl", "drq", "baseline")]
    narrow = [span(runs[name]) for name in ("mlr", "drqv2", "sb3")]
    best = max(fmean(values) for values in runs.values())
    first = column("lite-balance", "cartpole-balance", "baseline", 60_000)
    every = first + column("lite-dmcontrol-2", "cartpole-balance", "baseline", 60_000)
    assert (len(first), len(every)) == (6, 11)
    assert fmean(every) > best
    yield f"the Baseline has {fmean(first):.0f} over the six seeds of lite-balance, and {fmean(every):.0f} over all eleven"
    yield f"those of the others by {min(narrow):.0f} to {max(narrow):.0f},"
    means = span([fmean(values) for values in runs.values()])
    yield f"CURL, DrQ and the Baseline differ by {min(wide):.0f} to {max(wide):.0f} points"
    yield f"the means of all seven methods by at most {means:.0f}"
    updates = {
        name: {int(one) for one in column("lite-companions", "cartpole-balance", name, 60_000, "updates")}
        for name in others
    }
    updates["sb3"] = {int(one) for one in column("lite-sb3", "cartpole-balance", "sb3", 60_000, "updates")}
    (many,), (few,) = updates.pop("drqv2"), set.union(*updates.values())
    yield f"so it makes {many:,} updates where the other methods make {few:,}"
    control = "baseline agent.encoder.linear_init=truncated_normal"
    minutes = fmean(column("lite-first-weights", "cartpole-balance", control, 60_000, "cpu_seconds")) / 60
    yield f"where the Baseline of lite-first-weights takes {minutes:.1f} minutes."


def of_the_second_round() -> Iterator[str]:
    first = fmean(column("lite-dmcontrol", "reacher-easy", "baseline", 60_000))
    best = max(column("lite-dmcontrol-2", "walker-walk", "baseline", 30_000))
    yield f"a mean of {first:.0f} on reacher-easy in the first study, and 257 on walker-walk in one pilot."
    study, task = "lite-dmcontrol-2", "cartpole-balance"
    assert all(gain(study, task, frames) > 0 for frames in (20_000, 40_000, 60_000))
    yield "MLR's mean R² is slightly higher on cartpole-balance at every evaluation"
    yield f"its best run on walker-walk has {best:.0f}."


def of_the_values() -> Iterator[str]:
    task, frames = "cartpole-balance", 60_000
    mlr, baseline = (column("lite-cost", task, method, frames) for method in PAIR)
    names = sorted({row["method"] for row in table("lite-values")})
    scores = {name: column("lite-values", task, name, frames) for name in names}
    tried = {name: each for name, each in scores.items() if len(each) == 4}
    assert len(tried) == 4
    yield f"All of its {sum(map(len, scores.values()))} runs are done."
    gains = [minus(each, known) for known in (mlr, baseline) for each in tried.values()]
    wide = [half_width(each) for each in gains]
    assert len(gains) == 8
    assert all(abs(fmean(each)) < size for each, size in zip(gains, wide, strict=True))
    yield "every interval includes 0.**"
    yield f"They reach {min(wide):.0f} to {max(wide):.0f} points to either side and are not corrected for eight tests,"
    (three,) = (each for name, each in tried.items() if len(name.split()) == 4)
    here, there = minus(three, baseline), differences("lite-dmcontrol-2", task, frames)
    yield f"MLR differs from the Baseline by {fmean(here):+.0f} here,"
    yield f"and by {fmean(there):+.0f} with the five seeds of the second round;"
    yield f"over all nine seeds, by {with_interval([*here, *there], '95 % interval ')}, not planned)."
    for study in ("lite-cost", "lite-clips"):
        others = {row["method"] for row in table(study)} - set(PAIR)
        tried |= {name: column(study, task, name, frames) for name in others}
    means = [fmean(each) for each in tried.values()]
    assert (len(means), min(means) > fmean(mlr)) == (8, True)
    assert {"mlr objective.every=1", "mlr objective.every=4"} < tried.keys()
    yield f"All of them score more on average ({min(means):.0f} to {max(means):.0f}),"
    six, five = (fmean(column(study, task, "mlr", frames)) for study in ("lite-balance", "first-run"))
    assert (len(column("lite-balance", task, "mlr", frames)), len(column("first-run", task, "mlr", frames))) == (6, 5)
    yield f"it has {fmean(mlr):.0f} with these seeds, {six:.0f} with the six of lite-balance, and {five:.0f} with the five of"
    by_run = [fmean(each) for each in zip(*tried.values(), strict=True)]
    yield f"Together they differ from the lite profile's MLR by {with_interval(minus(by_run, mlr), '95 % interval ')}),"
    yield f"and from the Baseline by {with_interval(minus(by_run, baseline))})."
    pilots = {name: each for name, each in scores.items() if len(each) == 2}
    assert len(pilots) == 8
    passed = {name for name, each in pilots.items() if ahead(each, mlr, baseline)}
    assert passed == {
        *("mlr agent.auxiliary.clips=16", "mlr objective.clip_length=8", "mlr objective.mask.ratio=0.25"),
        *("mlr objective.momentum=0.99", "mlr", "baseline"),
    }
    yield f"{len(passed)} of {len(pilots)} score more than the lite profile's MLR and Baseline with both seeds,"
    about = json.loads((ROOT / "results" / "lite-values" / "about.json").read_text())
    sizes = {one["method"]: one["recipe"]["env"]["size"] for one in about["recipes"]}
    assert {name for name, size in sizes.items() if size == 64} == set(PAIR)
    large = [fmean(pilots[name]) for name in PAIR]
    assert sorted(pilots, key=lambda name: fmean(pilots[name]))[-2:] == ["baseline", "mlr"]
    grown = [fmean(pilots[name]) - fmean(known[:2]) for name, known in zip(PAIR, (mlr, baseline), strict=True)]
    assert 0 < grown[0] < grown[1]  # nothing suggests that they help MLR more
    yield "both methods score more with frames of 64 instead of 48 pixels, in [two pilots each]"
    yield f"to MLR ({large[0]:.0f}) and to the Baseline ({large[1]:.0f})."
    yield "near 1000, a difference could hardly show."  # 1000 is the most
    assert 3 < pilots["mlr objective.momentum=0.99"][1] - mlr[1] < 4
    yield "with a momentum of 0.99 (by 4 points with one seed)"
    few = sum(ahead(each, mlr, baseline) for each in tried.values())
    gains = [minus(each, known) for each in tried.values() for known in (mlr, baseline)]
    assert all(abs(fmean(gain)) < half_width(gain) for gain in gains)
    yield f"of the eight variants with four seeds, {few} pass the same rule, and none of them is shown to differ."


def ahead(scores: Sequence[float], mlr: Sequence[float], baseline: Sequence[float]) -> bool:
    """Whether a pilot scores more than lite's MLR and the Baseline with both of its seeds, the first two."""
    return all(mine > max(others) for mine, *others in zip(scores[:2], mlr[:2], baseline[:2], strict=True))


def of_assault() -> Iterator[str]:
    random = random_play("own-environments", "Assault-v5")
    scores = [column("own-environments", "Assault-v5", method, 20_000) for method in ("mlr", "baseline")]
    assert min(map(min, scores)) > random
    assert sum(map(len, scores)) == 10
    assert round(price("own-environments", "Assault-v5", "mlr", 20_000), 1) in (2.0, 2.1)
    yield f"Random actions score {random:.0f} in the same starts, less than each of the ten runs."
    yield "each of the ten runs. MLR takes twice the processor time."


def of_games() -> Iterator[str]:
    pacman, driver = (random_play("lite-atari", game) for game in ("ms_pacman", "up_n_down"))
    yield f"random actions score {pacman:.0f} on Ms. Pac-Man and {driver:.0f} on Up'n Down, where the pilot had measured 186"
    beyond = {
        (game, method): [
            score - random
            for score, random in zip(
                column("lite-atari", game, method, 40_000), column("lite-atari", game, method, 0, "random"), strict=True
            )
        ]
        for game in ("ms_pacman", "up_n_down")
        for method in ("mlr", "baseline")
    }
    assert min(min(each) for (game, _), each in beyond.items() if game == "ms_pacman") > 0
    low = [sorted(beyond["up_n_down", method])[0] for method in ("mlr", "baseline")]
    assert 0 < low[0] < 20
    assert -20 < low[1] < 0
    yield "on Up'n Down one of the Baseline ends just below it, one of MLR just above"
    assert {round(price("lite-atari", game, "mlr", 40_000), 1) for game in ("ms_pacman", "up_n_down")} <= {2.0, 2.1}
    yield "Four seeds of games that vary so much show only very large differences. MLR takes twice the processor time."


def of_the_first_run() -> Iterator[str]:
    random = column("first-run", "cartpole-balance", "mlr", 60_000, "random")
    assert min(column("first-run", "cartpole-balance", "mlr", 100_000)) > 750  # most of 1000
    yield f"Random actions score about {round(fmean(random), -1):.0f} of 1000."
    yield "All five keep the pole up"
    starts = column("first-run-assault", "assault", "mlr", 20_000, "random")
    assert all(
        end > start for end, start in zip(column("first-run-assault", "assault", "mlr", 40_000), starts, strict=True)
    )
    yield "All five end above random play."


def of_sb3() -> Iterator[str]:
    study, task = "sb3-cartpole-balance", "cartpole-balance"
    own = differences(study, task, 60_000)
    assert len(own) == 3
    assert min(own) > 0
    yield "With maskrl's own SAC, MLR scores higher than the Baseline with each of these three seeds"
    assert sum(one > 0 for one in differences("lite-balance", task, 60_000)) == 1
    assert len(differences("lite-balance", task, 60_000)) == 6
    yield "of the six in the registered study above, only with one."
    pairs = zip(*(column(study, task, method, 60_000) for method in ("sb3+mlr", "sb3+policy")), strict=True)
    assert [mlr > alone for mlr, alone in pairs].count(True) == 1
    yield "With stable-baselines3's SAC, MLR scores higher with one of three."


def of_trials() -> Iterator[str]:
    """What stands beside single runs: means and starts from the studies."""
    mlr, baseline = (fmean(column("lite-balance", "cartpole-balance", name, 60_000)) for name in ("mlr", "baseline"))
    yield f"MLR has {mlr:.0f} on average (above); the Baseline has {baseline:.0f} on average"
    yield f"and {fmean(column('lite-dmcontrol', 'reacher-easy', 'mlr', 60_000)):.0f} on average (above)"
    begin = {
        method: column("lite-dmcontrol", "ball_in_cup-catch", method, 60_000)[2:4] for method in ("mlr", "baseline")
    }
    (mlr, other_mlr), (baseline, other_baseline) = begin.values()
    yield f"with seed 13, MLR goes from {mlr:.0f} to 482 and the Baseline from {baseline:.0f} to 146"
    yield f"with seed 14, MLR from {other_mlr:.0f} to 50 and the Baseline from {other_baseline:.0f} to 203."


def of_the_limits() -> Iterator[str]:
    cost = run_cost(recipes.find("dmcontrol/cheetah-run", "paper"))
    yield f"one MLR update takes {cost.update.flops / 1e12:.1f} TFLOP there, and a run has {cost.updates:,} of them."
    names = ("lite-dmcontrol", "lite-balance", "lite-dmcontrol-2", "lite-cost-2")
    studies = [(name, None if name == "lite-dmcontrol-2" else 60_000) for name in names]
    both = [sides for study, at in studies for sides in paired(study, at)]
    alike = [correlation(*sides) for sides in both]
    wide = fmean(half_width(minus(*sides)) for sides in both)
    unpaired = fmean(half_width_unpaired(*sides) for sides in both)
    yield f"The intervals of pairs reach {wide:.0f} points to either side on average, those of unpaired runs {unpaired:.0f}."
    tasks = {row["task"] for study, _ in studies for row in table(study)}
    assert (len(tasks), {len(mlr) for mlr, _ in both}) == (5, {4, 5, 6})
    yield "On DMControl, five tasks have been compared, with 4 to 6 seeds."
    told = f"by {min(alike):+.2f} to {max(alike):+.2f}, {abs(fmean(alike)):.2f} on average."
    assert abs(fmean(alike)) < 0.005  # 0 without a sign
    yield f"over the {len(alike)} comparisons on DMControl, the scores of runs with the same seed correlate {told}"
    games = {row["task"] for row in table("lite-atari")} | {"assault"}
    yield f"The first runs after {max(int(row['frames']) for row in table('first-run')):,} frames"
    runs = {
        len(column("lite-atari", "ms_pacman", "mlr", 40_000)),
        len(column("own-environments", "Assault-v5", "mlr", 20_000)),
    }
    fewest, most = sorted(runs)
    assert len(games) == 3
    yield f"three games have been compared, in grey pictures of 48 pixels, with {fewest} or {most} seeds."


def of_road_runner() -> Iterator[str]:
    rows = [row for row in table("road-runner") if row["method"].startswith(("mlr", "baseline"))]
    random = {row["seed"]: float(row["random"]) for row in rows if row["random"]}
    start = [float(row["score"]) for row in rows if row["frames"] == "0"]
    yield f"score {min(random.values()):.0f} to {max(random.values()):.0f} in the same starts"
    yield f"untrained networks {min(start):.0f} to {max(start):.0f}"
    ends: dict[str, list[float]] = {}
    above: dict[str, int] = {}
    for row in rows:
        if row["frames"] == "40000":
            ends.setdefault(row["method"], []).append(float(row["score"]))
            above[row["method"]] = above.get(row["method"], 0) + (float(row["score"]) > random[row["seed"]])
    assert {method: len(scores) for method, scores in ends.items()} == dict.fromkeys(above, 4)
    changes = ("", " agent.epsilon=0.0 agent.epsilon_decisions=0", " agent.learning_rate=0.0001")
    heads = above["mlr objective.projection=mlp objective.momentum=0.95"]
    yield (
        "| MLR | "
        + " | ".join(f"{count} of 4" for count in (*(above[f"mlr{change}"] for change in changes), heads))
        + " |"
    )
    yield "| Baseline | " + " | ".join(f"{above[f'baseline{change}']} of 4" for change in changes) + " | |"
    assert (ends["mlr"], ends["baseline"]) == ([2810, 990, 0, 1095], [0, 3620, 900, 960])
    yield "The eight runs that the plan quotes have the same scores again."
    assert {row["decisions"] for row in rows} == {"0", "5000", "10000"}
    yield "Scores after 5,000 and 10,000 decisions"
    runs: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["frames"] != "0":
            runs.setdefault((row["method"], row["seed"]), []).append(float(row["score"]))
    stuck = sum(all(900 <= score <= 1100 for score in scores) for scores in runs.values())
    yield f"{stuck} of the {len(runs)} runs score 900 to 1100 at both times"
    last = [scores[-1] for scores in runs.values()]
    yield f"and {last.count(0)} end at 0. Only {sum(score > 1100 for score in last)} runs end above 1100."
    yield f"All of its {sum(map(len, ends.values()))} runs are done."


QUOTES = (
    of_the_answers,
    of_dmcontrol,
    of_balance,
    of_the_first_weights,
    of_the_cost,
    of_the_cost_on_the_cup,
    of_companions,
    of_the_second_round,
    of_the_values,
    of_assault,
    of_games,
    of_road_runner,
    of_the_first_run,
    of_sb3,
    of_trials,
    of_the_limits,
)


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("sentences", QUOTES)
def test_sentences_have_the_numbers_of_the_results(sentences: object):
    assert callable(sentences)
    for sentence in sentences():
        assert sentence in plain(PAGE)


# The sections with their plans. A number in their text is computed above or stands in the plan.
PLANS = {
    "In short": (),
    "DMControl at lite size": ("lite-dmcontrol",),
    "cartpole-balance at lite size": ("lite-balance",),
    "First weights": ("lite-first-weights",),
    "What the objective costs": ("lite-cost", "lite-clips"),
    "What the objective costs on ball_in_cup-catch": ("lite-cost-2",),
    "Other methods at lite size": ("lite-companions", "lite-sb3"),
    "DMControl at lite size, second round": ("lite-dmcontrol-2",),
    "One value at a time": ("lite-values",),
    "Assault, through Gymnasium": ("own-environments",),
    "Two Atari games at lite size": ("lite-atari",),
    "Road Runner": ("road-runner",),
    "cartpole-balance, beside stable-baselines3": (),
    "What is not shown": (),
}


DONE = re.compile(r"All of (?:its|their) (\d+) runs are done|All runs of both are done, (\d+) each")


@pytest.mark.parametrize(("heading", "plans"), PLANS.items())
def test_the_runs_that_are_said_to_be_done_are_published(heading: str, plans: Sequence[str]):
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found = DONE.findall(plain(section))
    assert len(found) == (1 if plans and heading != "Assault, through Gymnasium" else 0)
    runs = [len({(row["method"], row["task"], row["seed"]) for row in table(plan)}) for plan in plans]
    for together, each in found:
        assert sum(runs) == int(together) if together else set(runs) == {int(each)}


BLOCKS = re.compile(r"<!-- evidence: .*?<!-- end -->", re.DOTALL)
ASIDE = re.compile(r"`[^`]*`|\]\([^)]*\)")
NUMBER = re.compile(r"(?<![\w.-])[-+]?\d[\d,]*(?:\.\d+)?")


def numbers(text: str) -> set[str]:
    """Those of a text: 10,000 is one number."""
    return {found.replace(",", "") for found in NUMBER.findall(text)}


def planned(text: str) -> set[str]:
    """Those of a plan, whose commands have lists, too: 21,22,23."""
    return numbers(text) | set(re.findall(r"\d+", text))


@pytest.mark.parametrize("heading", PLANS)
def test_every_other_number_stands_in_the_plan(heading: str):
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    text = plain(BLOCKS.sub("", section))
    for sentence in (sentence for sentences in QUOTES for sentence in sentences()):
        text = text.replace(sentence, "")
    plans = " ".join((ROOT / "studies" / f"{name}.md").read_text() for name in PLANS[heading])
    assert numbers(ASIDE.sub("", text)) - planned(plans) == set()
