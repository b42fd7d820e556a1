"""Aggregates, intervals and tests of scores, in numpy only.

A matrix of scores is (runs, tasks), perhaps with further axes in front, which are kept. The run is the unit of replication,
repeated with another seed. Episodes are not: the mean over the episodes of an evaluation is one score of one run.

The aggregates are those of Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice (NeurIPS 2021); the
tests compare them with the authors' library, rliable.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]  # (..., runs, tasks) → (...)

RESAMPLES = 50_000
ALPHA = 0.05  # a test with a smaller p shows a difference; intervals are of 1 - ALPHA
POWER = 0.8  # a sufficient probability of finding a difference
# Minimum runs per method for intervals, tests and probabilities. If two runs beat two others, the probability of improvement is 1
# in every resample: a certainty that two runs cannot give.
ENOUGH = 4
ROUNDING = 1e-12  # relative to the largest score: numbers that differ by less are equal


# ── Aggregates ────────────────────────────────────────────────────────────────────────────────────────────────────────


def mean(scores: Array) -> Array:
    """The mean over runs and tasks."""
    return np.asarray(scores.mean(axis=(-2, -1)))


def median(scores: Array) -> Array:
    """The median over tasks of the mean over runs, the Median of the paper's tables."""
    return np.asarray(np.median(scores.mean(axis=-2), axis=-1))


def interquartile_mean(scores: Array) -> Array:
    """The mean of all runs of all tasks, without the lowest and the highest quarter (rounded down).

    Taking each task's mean first is a common mistake: it averages fewer, less extreme numbers.
    """
    everything = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    quarter = everything.shape[-1] // 4
    return np.asarray(everything[..., quarter : everything.shape[-1] - quarter].mean(axis=-1))


def optimality_gap(scores: Array) -> Array:
    """The mean distance of runs below 1. Scores above 1 do not compensate for those below."""
    return np.asarray(np.maximum(1 - scores, 0).mean(axis=(-2, -1)))


AGGREGATES: Mapping[str, Statistic] = {
    "mean": mean,
    "median": median,
    "iqm": interquartile_mean,
    "optimality_gap": optimality_gap,
}


# ── Intervals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Estimate(NamedTuple):
    """A value and its interval: numbers, or arrays with one per threshold. The interval is NaN for fewer than `ENOUGH` runs."""

    value: Array
    low: Array
    high: Array


def bootstrap(statistic: Statistic, scores: ArrayLike, *, resamples: int = RESAMPLES) -> Array:
    """The statistic of many resamples: (resamples, ...). Stratified: the runs of each task are resampled separately."""
    matrix, chance = _matrix(scores), np.random.default_rng(0)
    runs, tasks = matrix.shape
    every_task = np.arange(tasks)
    return np.concatenate(
        [
            statistic(matrix[chance.integers(runs, size=(count, runs, tasks)), every_task])
            for count in _pieces(resamples, matrix.size)
        ]
    )


def estimate_all(scores: ArrayLike, *, resamples: int = RESAMPLES) -> dict[str, Estimate]:
    """All aggregates from the same resamples."""

    def together(matrix: Array) -> Array:
        return np.stack([statistic(matrix) for statistic in AGGREGATES.values()], axis=-1)

    matrix = _matrix(scores)
    found = _with_interval(together(matrix), bootstrap(together, matrix, resamples=resamples), len(matrix))
    return {name: Estimate(*(part[index] for part in found)) for index, name in enumerate(AGGREGATES)}


def estimate_profile(scores: ArrayLike, thresholds: ArrayLike, *, resamples: int = RESAMPLES) -> Estimate:
    """The performance profile with a band: the share of runs, over all tasks, that score above each threshold.

    A run on the threshold is not above it. Each threshold has its own interval.
    """
    matrix, chance = _matrix(scores), np.random.default_rng(0)
    runs = len(matrix)
    above = (matrix[..., None] > np.asarray(thresholds)).astype(np.float64)  # (runs, tasks, thresholds)

    def resampled(count: int) -> Array:
        total = np.zeros((count, above.shape[2]))
        for of_task in above.swapaxes(0, 1):
            total += _times_drawn(runs, count, chance) @ of_task
        return np.asarray(total / matrix.size)

    values = np.concatenate([resampled(count) for count in _pieces(resamples, runs)])
    return _with_interval(np.asarray(above.mean(axis=(0, 1))), values, runs)


def estimate_improvement(x: ArrayLike, y: ArrayLike, *, resamples: int = RESAMPLES) -> Estimate:
    """The probability that a run of x beats a run of y on a random task; a tie counts half.

    The numbers of runs may differ. For the interval, the runs of both are resampled.
    """
    chance, wins = np.random.default_rng(0), list(_wins(_matrix(x), _matrix(y)))
    runs_x, runs_y = wins[0].shape

    def resampled(count: int) -> Array:
        total = np.zeros(count)
        for of_task in wins:
            times_x, times_y = _times_drawn(runs_x, count, chance), _times_drawn(runs_y, count, chance)
            total += ((times_x @ of_task) * times_y).sum(axis=1)
        return np.asarray(total / (runs_x * runs_y * len(wins)))

    values = np.concatenate([resampled(count) for count in _pieces(resamples, max(runs_x, runs_y))])
    return _with_interval(np.mean([of_task.mean() for of_task in wins]), values, min(runs_x, runs_y))


def _wins(x: Array, y: Array) -> Iterator[Array]:
    """For each task a matrix (runs of x, runs of y): 1 where x is larger, 1/2 where both are equal."""
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"Scores of {x.shape[1]} tasks cannot be compared with scores of {y.shape[1]}.")
    for of_x, of_y in zip(x.T, y.T, strict=True):
        yield (1 + np.sign(of_x[:, None] - of_y)) / 2


def _times_drawn(runs: int, resamples: int, chance: np.random.Generator) -> Array:
    """How often each run occurs in a resample: (resamples, runs), which is enough for a mean over runs."""
    places = chance.integers(runs, size=(resamples, runs)) + runs * np.arange(resamples)[:, None]
    times = np.bincount(places.ravel(), minlength=runs * resamples)
    return np.asarray(times.reshape(resamples, runs), dtype=np.float64)


def _pieces(resamples: int, size: int) -> Iterator[int]:
    """Split the resamples into batches that fit into a processor's cache."""
    at_once = max(1, 2**18 // size)
    for start in range(0, resamples, at_once):
        yield min(at_once, resamples - start)


def _with_interval(value: Array, values: Array, runs: int) -> Estimate:
    if runs < ENOUGH:
        return Estimate(value, np.full_like(value, math.nan), np.full_like(value, math.nan))
    low, high = np.quantile(values, [ALPHA / 2, 1 - ALPHA / 2], axis=0)
    return Estimate(value, low, high)


def _matrix(scores: ArrayLike) -> Array:
    matrix = np.asarray(scores, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"Scores must be (runs, tasks), at least one of each; their shape is {matrix.shape}.")
    if not np.isfinite(matrix).all():
        raise ValueError(f"{(~np.isfinite(matrix)).sum()} of {matrix.size} scores are not finite: leave them out.")
    return matrix


# ── Tests of a difference ─────────────────────────────────────────────────────────────────────────────────────────────
#
# On one task, or for the mean over several: every function takes one entry per task.


class Summary(NamedTuple):
    """Mean, standard deviation and number of some runs, as printed in tables."""

    mean: float
    std: float  # with n - 1
    runs: int

    @classmethod
    def of(cls, scores: ArrayLike) -> "Summary":
        """Summarise the scores of runs on one task. The standard deviation of one run is NaN, that of equal scores exactly 0."""
        values = np.asarray(scores, dtype=np.float64)
        return cls._of(values, size=np.abs(values).max(initial=0))

    @classmethod
    def of_differences(cls, x: ArrayLike, y: ArrayLike) -> "Summary":
        """Summarise x - y, the scores of two methods with the same seeds. Differences that are equal but for the rounding of
        the scores have a standard deviation of exactly 0.
        """
        x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        return cls._of(x - y, size=np.abs([x, y]).max(initial=0))

    @classmethod
    def _of(cls, values: Array, *, size: float) -> "Summary":
        std = math.nan
        if values.size > 1:
            std = 0.0 if np.ptp(values) <= ROUNDING * size else float(values.std(ddof=1))
        return cls(float(values.mean()), std, values.size)

    def scaled(self, zero: float, one: float) -> "Summary":
        """The summary on a scale where `zero` is 0 and `one` is 1."""
        return Summary((self.mean - zero) / (one - zero), self.std / abs(one - zero), self.runs)


ZERO = Summary(0.0, 0.0, 1)  # exactly 0


class Difference(NamedTuple):
    """The mean of the first minus the mean of the second, its 95 % interval, and the p value."""

    value: float
    low: float
    high: float
    p: float


def welch(x: Sequence[Summary], y: Sequence[Summary]) -> Difference:
    """Welch's t test of the difference of means over tasks, with Satterthwaite's degrees of freedom.

    Each task and method has its own variance; with one task it is the standard test of two samples. A sample with a standard
    deviation of 0 counts as exact, with any number of runs; if all do, there is no test: ValueError. Applied to differences
    between runs of the same seed, against `ZERO`, it is the paired t test.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} tasks cannot be compared with {len(y)}.")
    value = math.fsum([*(s.mean for s in x), *(-s.mean for s in y)]) / len(x)
    varied = [s for s in (*x, *y) if s.std != 0]
    if any(math.isnan(s.std) for s in varied):
        raise ValueError("A test needs at least two runs of each method; one run has no spread.")
    if not varied:
        raise ValueError("A test needs a spread; here no score varies between runs.")
    largest = max(s.std for s in varied)  # the unit of the variances: the square of a very small number would be 0
    parts = [((s.std / largest) ** 2 / s.runs, s.runs - 1) for s in varied]
    variance = math.fsum(part for part, _ in parts)
    error = largest * math.sqrt(variance) / len(x)
    freedom = 1 / math.fsum((part / variance) ** 2 / left for part, left in parts)
    reach = t_quantile(ALPHA, freedom) * error
    return Difference(value, value - reach, value + reach, t_two_sided(value / error, freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for several tests: the smallest p times their number, the next times one less, and never decreasing.

    Without true differences, at most 5 % of such families have any corrected p below 0.05.
    """
    p, count = np.asarray(p_values, dtype=np.float64), len(p_values)
    order, corrected = np.argsort(p, kind="stable"), np.empty(count)
    corrected[order] = np.maximum.accumulate(np.minimum(1, (count - np.arange(count)) * p[order]))
    return [float(value) for value in corrected]


def effect_size(x: Sequence[Summary], y: Sequence[Summary]) -> float:
    """Cohen's d: the difference in standard deviations of a run, or of the mean of one run per task.

    The variance is the mean of both methods'. It is not corrected for few runs, for which it is too large (by 15 % for 4 against
    4). Infinite if nothing varies, and 0 if nothing differs.
    """
    difference = math.fsum([*(s.mean for s in x), *(-s.mean for s in y)])
    variance = math.fsum(s.std**2 for s in (*x, *y)) / 2
    if difference == 0:
        return 0.0
    return math.copysign(math.inf, difference) if variance == 0 else difference / variance**0.5


def seeds_needed(effect: float) -> int | None:
    """The runs per method with which a test finds the effect with probability `POWER`; None if there is no effect.

    From the normal distribution: 2 · ((z of 1 - alpha/2 + z of power) / d)², rounded up, at least `ENOUGH`. It is a lower bound:
    t tests with few runs need up to three more (`maskrl.analysis.power`).
    """
    if effect == 0 or math.isnan(effect):
        return None
    z = NormalDist().inv_cdf
    return max(ENOUGH, math.ceil(2 * ((z(1 - ALPHA / 2) + z(POWER)) / effect) ** 2))


# ── Student's t ───────────────────────────────────────────────────────────────────────────────────────────────────────


def t_two_sided(t: float, freedom: float) -> float:
    """The probability that Student's t is at least as far from 0 as t."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def t_quantile(p: float, freedom: float) -> float:
    """The t for which `t_two_sided` is p, by bisection to double precision."""
    low, high = 0.0, 1.0
    while t_two_sided(high, freedom) > p:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_two_sided(middle, freedom) > p else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun, 26.5.8).

    The fraction converges fast for x below the mean of the distribution; above it, its mirror image is used.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # value = 1 / (1 + c₁ / (1 + c₂ / (1 + …))), from the inside out. For x below the mean a few hundred terms are enough
    # up to a million degrees of freedom: the number needed is about the square root of the larger of a and b.
    value = 1.0
    for m in range(64 + 4 * math.isqrt(int(max(a, b)) + 1), 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        value = 1 + odd / (1 + even / value)
    return scale / (a * value)
