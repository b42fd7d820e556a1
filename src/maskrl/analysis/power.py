"""The power of a test: how often it finds a true difference, and the runs it needs for that."""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from maskrl.analysis.statistics import ALPHA, ENOUGH, POWER, Summary, effect_size, seeds_needed, t_quantile

FEW = 10  # runs below which tests over several tasks are simulated
DRAWS = 10_000  # simulated tests: a standard error of at most about 0.004


def power(x: Sequence[Summary], y: Sequence[Summary], seeds: Sequence[int]) -> float:
    """The probability that the paired test of means over tasks finds x above y, if both summaries are true, with these seeds.

    Assumes that runs of the same seed are independent, because their correlation is unknown in advance. A finding in the wrong
    direction does not count. The statistic is noncentral t: exactly on one task, and with Satterthwaite's degrees of freedom over
    several tasks with ten runs or more. With fewer runs this is too optimistic (94 instead of 92 % for the mean of the paper's six
    tasks with 4), because the degrees of freedom are estimated, too: then tests are simulated, always with the same draws.
    """
    of_tasks = [((a.std**2 + b.std**2) / n, n - 1) for a, b, n in zip(x, y, seeds, strict=True)]
    parts = [(part, left) for part, left in of_tasks if part > 0]
    difference = math.fsum([*(s.mean for s in x), *(-s.mean for s in y)])
    variance = math.fsum(part for part, _ in parts)
    if min(seeds) < ENOUGH:
        return 0.0  # there is no test
    if variance == 0:
        return float(difference > 0)
    if len(parts) > 1 and min(seeds) < FEW:
        return _simulated(difference, parts)
    freedom = variance**2 / math.fsum(part**2 / left for part, left in parts)
    return t_beyond(t_quantile(ALPHA, freedom), freedom, difference / math.sqrt(variance))


def _simulated(difference: float, parts: Sequence[tuple[float, int]]) -> float:
    """The share of simulated tests that find the difference: normal differences, and χ² estimates of each variance."""
    drawn = [(part * _estimates(place, left), left) for place, (part, left) in enumerate(parts)]
    variance = np.sum([part for part, _ in drawn], axis=0)
    freedom = variance**2 / np.sum([part**2 / left for part, left in drawn], axis=0)
    noise = np.random.default_rng(0).standard_normal(DRAWS) * math.sqrt(math.fsum(part for part, _ in parts))
    inverse, critical = _critical()
    threshold = np.exp(np.interp(1 / freedom, inverse, critical)) * np.sqrt(variance)
    return float((difference + noise > threshold).mean())


@cache
def _estimates(place: int, left: int) -> NDArray[np.float64]:
    """Draws of the estimate of a variance of 1 with `left` degrees of freedom."""
    return np.asarray(np.random.default_rng((place, left)).chisquare(left, DRAWS) / left)


@cache
def _critical() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A table for interpolation: 1 / degrees of freedom → the logarithm of t's quantile."""
    inverse = np.linspace(1e-6, 1, 201)
    return inverse, np.log([t_quantile(ALPHA, 1 / value) for value in inverse])


def t_beyond(t: float, freedom: float, centre: float) -> float:
    """The probability that noncentral t exceeds t: (z + centre) / s, where z is normal and s² is χ² over its degrees of freedom.

    Integrates over log s by the trapezoidal rule. The integrand is smooth and 0 at both ends, so the result has nine digits.
    """
    # log s has a standard deviation of about 1 / √(2 · freedom), and a tail to the left.
    width = 12 / math.sqrt(2 * freedom)
    u = np.linspace(-max(width, 40 / freedom), width, 2001)
    log_density = freedom * (u - np.exp(2 * u) / 2)
    density = np.exp(log_density - log_density.max())
    above = [0.5 * math.erfc((t * s - centre) / math.sqrt(2)) for s in np.exp(u)]
    return float((density * above).sum() / density.sum())


def seeds_for(x: Sequence[Summary], y: Sequence[Summary]) -> int | None:
    """The runs per method and task for a power of `POWER` to find x above y; None if x is not above.

    Searches upwards from `seeds_needed`, which uses the normal distribution and is up to three too low.
    """
    effect = effect_size(x, y)
    least = seeds_needed(effect)
    if least is None or effect <= 0:
        return None
    count = max(ENOUGH, least - 1)
    while power(x, y, [count] * len(x)) < POWER:
        count += 1
    return count
