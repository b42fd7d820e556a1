import math
import os
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from maskrl.analysis import statistics
from maskrl.analysis.statistics import (
    ZERO,
    Summary,
    bootstrap,
    effect_size,
    estimate_all,
    estimate_improvement,
    estimate_profile,
    holm,
    interquartile_mean,
    mean,
    median,
    optimality_gap,
    seeds_needed,
    t_quantile,
    t_two_sided,
    welch,
)

# Small whole numbers, so that ties are common.
matrices = nps.arrays(
    np.float64, st.tuples(st.integers(1, 7), st.integers(1, 5)), elements=st.integers(-3, 6).map(float)
)


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> NDArray[np.float64]:
    return estimate_profile(scores, thresholds, resamples=1).value


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> float:
    return float(estimate_improvement(x, y, resamples=1).value)


def scores_like(runs: int, tasks: int, seed: int = 0) -> NDArray[np.float64]:
    """Tasks of different levels and spreads, the last ones far above 1."""
    chance = np.random.default_rng(seed)
    return chance.gamma(2.0, np.linspace(0.05, 0.9, tasks), (runs, tasks))


# ── Aggregates ────────────────────────────────────────────────────────────────────────────────────────────────────────

FOUR_RUNS = np.array([[0.0, 10.0], [1.0, 20.0], [2.0, 30.0], [3.0, 40.0]])  # of two tasks


def test_the_mean_is_over_everything() -> None:
    assert mean(FOUR_RUNS) == 106 / 8


def test_the_median_is_over_the_means_of_tasks_and_not_over_runs() -> None:
    three_tasks = np.array(
        [[0.0, 5.0, 100.0], [0.0, 7.0, 0.0], [30.0, 9.0, 0.0]]
    )  # means 10, 7 and 33.3; all values: 5
    assert median(three_tasks) == 10


def test_the_interquartile_mean_leaves_out_a_quarter_of_all_runs_on_each_side() -> None:
    assert interquartile_mean(FOUR_RUNS) == (2 + 3 + 10 + 20) / 4  # of 0 1 2 3 10 20 30 40


def test_a_quarter_of_six_runs_is_one() -> None:
    assert interquartile_mean(np.array([[0.0], [1.0], [2.0], [4.0], [9.0], [100.0]])) == (1 + 2 + 4 + 9) / 4


def test_the_optimality_gap_does_not_let_good_runs_make_up_for_bad_ones() -> None:
    assert optimality_gap(np.array([[0.25, 9.0], [1.0, 0.75]])) == (0.75 + 0 + 0 + 0.25) / 4


def test_a_run_on_the_threshold_is_not_above_it() -> None:
    profile = performance_profile(FOUR_RUNS, [-1, 0, 3, 40])
    assert profile.tolist() == [8 / 8, 7 / 8, 4 / 8, 0]


def test_a_draw_is_half_an_improvement() -> None:
    assert probability_of_improvement([[1.0]], [[1.0]]) == 0.5
    assert probability_of_improvement([[1.0], [2.0]], [[1.0], [0.0], [3.0]]) == (0.5 + 1 + 0 + 1 + 1 + 0) / 6


def test_every_task_counts_the_same_in_the_probability_of_improvement() -> None:
    assert probability_of_improvement([[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]) == (1 + 0.25) / 2


@given(matrices, matrices)
def test_of_two_methods_one_or_the_other_is_better(x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    tasks = min(x.shape[1], y.shape[1])
    one, other = x[:, :tasks], y[:, :tasks]
    total = probability_of_improvement(one, other) + probability_of_improvement(other, one)
    assert total == pytest.approx(1)


@given(matrices)
def test_the_order_of_runs_and_tasks_is_no_matter(scores: NDArray[np.float64]) -> None:
    shuffled = np.array([np.random.default_rng(0).permutation(column) for column in scores.T[::-1]]).T
    for statistic in statistics.AGGREGATES.values():
        assert statistic(shuffled) == pytest.approx(statistic(scores))


@given(matrices, st.floats(0.5, 4), st.integers(-5, 5))
def test_a_change_of_scale_changes_the_averages_alike(scores: NDArray[np.float64], by: float, shift: int) -> None:
    for statistic in (mean, median, interquartile_mean):
        assert statistic(scores * by + shift) == pytest.approx(statistic(scores) * by + shift)


@given(matrices)
def test_a_profile_falls_from_one_to_nothing_and_its_area_is_the_mean(scores: NDArray[np.float64]) -> None:
    steps = np.arange(-4, 7)  # all scores are whole: between thresholds the profile is flat
    profile = performance_profile(scores, steps)
    assert profile[0] == 1
    assert profile[-1] == 0
    assert (np.diff(profile) <= 0).all()
    assert profile.sum() - 4 == pytest.approx(mean(scores))


@pytest.mark.parametrize("wrong", [[1.0, 2.0], [[]], [[1.0, math.nan]], [[math.inf]]])
def test_what_is_not_a_matrix_of_numbers_is_refused(wrong: list[object]) -> None:
    with pytest.raises(ValueError, match=r"runs, tasks|not finite"):
        estimate_profile(wrong, [0])
    with pytest.raises(ValueError, match=r"runs, tasks|not finite"):
        bootstrap(mean, wrong)


def test_methods_on_different_numbers_of_tasks_are_not_compared() -> None:
    with pytest.raises(ValueError, match="2 tasks cannot be compared with scores of 1"):
        probability_of_improvement([[1.0, 2.0]], [[1.0]])


# ── rliable as the oracle ─────────────────────────────────────────────────────────────────────────────────────────────


def require_rliable() -> None:
    """Skip without rliable, but not in CI."""
    if not os.environ.get("CI"):
        pytest.importorskip("rliable")


seeded_rliable = pytest.mark.filterwarnings("ignore:random_state is deprecated:FutureWarning")  # by arch, which it uses


@given(matrices)
def test_aggregates_are_those_of_rliable(scores: NDArray[np.float64]) -> None:
    require_rliable()
    from rliable import metrics

    assert mean(scores) == pytest.approx(metrics.aggregate_mean(scores))
    assert median(scores) == pytest.approx(metrics.aggregate_median(scores))
    assert interquartile_mean(scores) == pytest.approx(metrics.aggregate_iqm(scores))
    assert optimality_gap(scores) == pytest.approx(metrics.aggregate_optimality_gap(scores))


@given(matrices, matrices)
def test_the_probability_of_improvement_is_that_of_rliable(x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    require_rliable()
    from rliable import metrics

    tasks = min(x.shape[1], y.shape[1])
    theirs = metrics.probability_of_improvement(x[:, :tasks], y[:, :tasks])
    assert probability_of_improvement(x[:, :tasks], y[:, :tasks]) == pytest.approx(theirs)


@seeded_rliable
def test_profiles_are_those_of_rliable() -> None:
    require_rliable()
    from rliable import library

    scores, thresholds = scores_like(6, 5).round(1), np.linspace(0, 2, 21)
    theirs, band = library.get_interval_estimates(
        {"a": scores},
        lambda matrix: library.score_distributions(matrix, thresholds),  # as `create_performance_profile` does
        reps=2000,
        random_state=np.random.RandomState(0),
    )
    ours = estimate_profile(scores, thresholds)
    np.testing.assert_allclose(ours.value, theirs["a"])
    np.testing.assert_allclose([ours.low, ours.high], band["a"], atol=0.035)  # one run is 0.033


@seeded_rliable
def test_intervals_are_those_of_rliable_up_to_its_chance() -> None:
    require_rliable()
    from rliable import library

    scores = scores_like(8, 6)

    def theirs(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([statistic(matrix) for statistic in statistics.AGGREGATES.values()])

    _, intervals = library.get_interval_estimates(
        {"a": scores}, theirs, reps=6000, random_state=np.random.RandomState(0)
    )
    for (value, low, high), (their_low, their_high) in zip(
        estimate_all(scores).values(), intervals["a"].T, strict=True
    ):
        near = 0.04 * (high - low)
        assert (low, high) == (pytest.approx(their_low, abs=near), pytest.approx(their_high, abs=near))
        assert low < value < high


@seeded_rliable
def test_the_interval_of_the_probability_of_improvement_is_that_of_rliable_up_to_its_chance() -> None:
    require_rliable()
    from rliable import library, metrics

    x, y = scores_like(6, 3, seed=1), scores_like(5, 3, seed=2)
    _, intervals = library.get_interval_estimates(
        {"pair": (x, y)}, metrics.probability_of_improvement, reps=500, random_state=np.random.RandomState(0)
    )
    value, low, high = estimate_improvement(x, y)
    assert value == metrics.probability_of_improvement(x, y)
    assert [low, high] == pytest.approx(intervals["pair"].ravel().tolist(), abs=0.05)


# ── Bootstrap ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_runs_are_drawn_again_within_their_task() -> None:
    tasks_without_spread = np.array([[1.0, 5.0, 9.0]] * 4)
    assert (bootstrap(mean, tasks_without_spread, resamples=200) == 5).all()
    assert (bootstrap(interquartile_mean, tasks_without_spread, resamples=200) == 5).all()


def test_tasks_are_drawn_independently() -> None:
    opposite = np.array([[0.0, 1.0], [1.0, 0.0]])  # whole rows would always give a mean of 1/2
    values = bootstrap(mean, opposite, resamples=4000)
    assert values.min() == 0
    assert values.max() == 1
    # Four draws of a coin: the mean has a variance of 1/4 / 4.
    assert values.var() == pytest.approx(1 / 16, rel=0.1)


def test_the_spread_of_resampled_means_is_the_standard_error() -> None:
    scores = scores_like(10, 4)
    error = math.sqrt((scores.var(axis=0) / 10).sum()) / 4
    assert bootstrap(mean, scores).std() == pytest.approx(error, rel=0.02)


def test_intervals_of_few_runs_hold_the_true_mean_as_seldom_as_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+) % \| (\d+) % \| (\d+) % \|$", page, re.MULTILINE)
    assert [row[0] for row in rows] == ["4", "5", "10"]
    for runs, *shares in (map(int, row) for row in rows):
        for tasks, share in zip((1, 3, 6), shares, strict=True):
            experiments = np.random.default_rng(0).standard_normal((runs, 2000 * tasks))
            means = bootstrap(partial(mean_of_every, tasks), experiments, resamples=500)
            low, high = np.quantile(means, [0.025, 0.975], axis=0)
            held = ((low <= 0) & (high >= 0)).mean()
            assert held == pytest.approx(share / 100, abs=0.02)  # its standard error is 0.01 or less


def mean_of_every(tasks: int, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The means of experiments with so many tasks each, side by side in one matrix."""
    return np.asarray(matrix.reshape(*matrix.shape[:-1], -1, tasks).mean(axis=(-3, -1)))


def test_the_same_scores_give_the_same_resamples() -> None:
    one, again = (bootstrap(interquartile_mean, scores_like(5, 3), resamples=500) for _ in range(2))
    assert (one == again).all()


def test_a_statistic_may_be_of_many_numbers() -> None:
    scores, thresholds = scores_like(5, 3), np.array([0.2, 0.7])

    def profile(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        return (matrix[..., None] > thresholds).mean(axis=(-3, -2))

    slow, (value, *fast) = (
        np.quantile(bootstrap(profile, scores), [0.025, 0.975], axis=0),
        estimate_profile(scores, thresholds),
    )
    np.testing.assert_allclose(slow, fast, atol=1 / 15 + 1e-9)
    np.testing.assert_allclose(value, profile(scores))


def test_aggregates_come_with_the_intervals_they_have_alone() -> None:
    scores = scores_like(5, 3)
    together = estimate_all(scores, resamples=1000)
    for name, statistic in statistics.AGGREGATES.items():
        low, high = np.quantile(bootstrap(statistic, scores, resamples=1000), [0.025, 0.975])
        assert together[name] == pytest.approx((float(statistic(scores)), low, high))


def test_the_improvement_interval_of_certain_wins_has_no_width() -> None:
    x, y = scores_like(5, 3) + 100, scores_like(4, 3)
    assert estimate_improvement(x, y, resamples=100) == (1, 1, 1)


def test_resampled_improvement_has_the_spread_of_its_definition() -> None:
    x, y, chance = scores_like(5, 3, seed=1), scores_like(4, 3, seed=2), np.random.default_rng(0)
    by_hand = [
        probability_of_improvement(
            x[chance.integers(5, size=(5, 3)), [0, 1, 2]], y[chance.integers(4, size=(4, 3)), [0, 1, 2]]
        )
        for _ in range(3000)
    ]
    _, low, high = estimate_improvement(x, y)
    assert [low, high] == pytest.approx(np.quantile(by_hand, [0.025, 0.975]).tolist(), abs=0.025)


@pytest.mark.parametrize(
    "interval",
    [
        lambda scores, resamples: estimate_all(scores, resamples=resamples)["mean"],
        partial(estimate_profile, thresholds=[0.0, 0.5]),
        partial(estimate_improvement, scores_like(5, 2)),
        lambda scores, resamples: estimate_improvement(scores, scores_like(5, 2), resamples=resamples),
    ],
)
def test_fewer_than_four_runs_have_no_interval(interval: Callable[..., statistics.Estimate]) -> None:
    for runs in (1, 2, 3):
        value, low, high = interval(scores_like(runs, 2), resamples=10)
        assert np.isfinite(value).all()
        assert np.isnan([low, high]).all()
    _, low, high = interval(scores_like(4, 2), resamples=10)
    assert (low <= high).all()


@pytest.mark.slow
def test_a_hundred_runs_of_26_games_are_resampled_50_000_times_in_seconds() -> None:
    began = time.process_time()
    bootstrap(interquartile_mean, scores_like(100, 26))
    assert time.process_time() - began < 30  # about 3 on an idle machine; one resample at a time takes minutes


# ── Tests of a difference ─────────────────────────────────────────────────────────────────────────────────────────────

tenths = st.integers(-30, 30).map(lambda number: number / 10)  # sums of which are not exact
numbers = st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=9)


def test_a_summary_has_the_standard_deviation_over_runs_with_n_minus_1() -> None:
    assert Summary.of([1.0, 2.0, 3.0]) == (2, 1, 3)
    assert Summary.of([0.1, 0.1, 0.1]).std == Summary.of([0.3, 0.1 + 0.2]).std == 0  # nothing but rounding
    assert Summary.of([5.0])[::2] == (5, 1)
    assert math.isnan(Summary.of([5.0]).std)


def test_differences_are_equal_if_only_the_rounding_of_the_scores_sets_them_apart() -> None:
    x, y = np.array([1.1, 2.2, 3.3]), np.array([0.1, 1.2, 2.3])
    assert len({*(x - y)}) > 1  # 1.0000000000000002 is one of them
    assert Summary.of_differences(x, y) == (pytest.approx(1), 0, 3)
    assert Summary.of_differences([1e6, 2e6, 3e6], [1e6, 2e6, 3e6 + 1e-7]).std == 0  # a difference of 1e-7 in 3e6
    assert Summary.of_differences([1, 2, 3], [1, 2, 3 + 1e-7]).std == pytest.approx(1e-7 / math.sqrt(3))
    assert Summary.of_differences([9.0, 8.0, 10.0], [1.0, 2.0, 0.0]) == (8, 2, 3)


def test_a_summary_can_be_put_on_another_scale() -> None:
    assert Summary(30, 5, 3).scaled(10, 60) == (0.4, 0.1, 3)
    assert Summary(30, 5, 3).scaled(60, 10) == (0.6, 0.1, 3)


@given(numbers, numbers)
def test_welchs_test_is_scipys(x: list[float], y: list[float]) -> None:
    assume(np.std(x) > 0)
    assume(np.std(y) > 0)
    ours = welch([Summary.of(x)], [Summary.of(y)])
    theirs = stats.ttest_ind(x, y, equal_var=False)
    interval = theirs.confidence_interval()
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-7, abs=1e-12)
    assert ours[:3] == pytest.approx((np.mean(x) - np.mean(y), interval.low, interval.high), rel=1e-7, abs=1e-7)


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=2, max_size=9))
def test_the_paired_test_is_scipys(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs, dtype=np.float64).T
    assume(np.std(x - y) > 0)
    ours, theirs = welch([Summary.of(x - y)], [ZERO]), stats.ttest_rel(x, y)
    interval = theirs.confidence_interval()
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-7, abs=1e-12)
    assert ours[:3] == pytest.approx((np.mean(x - y), interval.low, interval.high), rel=1e-7, abs=1e-7)


def test_over_tasks_variances_add_up() -> None:
    x, y = [Summary(10, 3, 9), Summary(20, 8, 4)], [Summary(8, 0, 5), Summary(12, 0, 5)]
    value, low, high, _ = welch(x, y)
    error = math.sqrt(3**2 / 9 + 8**2 / 4) / 2
    freedom = (1 + 16) ** 2 / (1**2 / 8 + 16**2 / 3)
    assert value == ((10 - 8) + (20 - 12)) / 2
    assert (high - low) / 2 == pytest.approx(stats.t.isf(0.025, freedom) * error)


def test_against_an_exact_number_it_is_the_test_of_one_sample() -> None:
    runs = [3.0, 4.0, 8.0, 2.0]
    assert welch([Summary.of(runs)], [Summary(7, 0, 1)]).p == pytest.approx(stats.ttest_1samp(runs, 7).pvalue)


@pytest.mark.parametrize("mean", [90, 100])
def test_where_nothing_varies_there_is_no_test(mean: float) -> None:
    with pytest.raises(ValueError, match="needs a spread"):
        welch([Summary(mean, 0, 3)], [Summary(100, 0, 3)])


@pytest.mark.parametrize("unit", [1e-200, 1e-90, 1e100, 1e200])
def test_welchs_test_does_not_depend_on_the_unit(unit: float) -> None:
    x, y = [Summary(3, 1, 5)], [Summary(1, 2, 4)]
    plain = welch(x, y)
    found = welch([Summary(3 * unit, unit, 5)], [Summary(unit, 2 * unit, 4)])
    assert found == pytest.approx((plain.value * unit, plain.low * unit, plain.high * unit, plain.p), rel=1e-9, abs=0)


def test_one_run_cannot_be_tested() -> None:
    with pytest.raises(ValueError, match="at least two"):
        welch([Summary.of([1.0])], [Summary.of([1.0, 2.0])])
    with pytest.raises(ValueError, match="2 tasks"):
        welch([Summary(1, 1, 3)] * 2, [Summary(1, 1, 3)])


def test_the_effect_size_is_in_standard_deviations() -> None:
    assert effect_size([Summary(30, 6, 5)], [Summary(20, 8, 5)]) == pytest.approx(10 / math.sqrt(50))
    assert effect_size([Summary(20, 8, 5)], [Summary(30, 6, 5)]) == pytest.approx(-10 / math.sqrt(50))
    assert effect_size([Summary(1, 0, 5)], [Summary(1, 0, 5)]) == 0
    assert effect_size([Summary(1, 0, 5)], [Summary(2, 0, 5)]) == -math.inf


def test_over_tasks_the_effect_grows_with_their_root() -> None:
    one = effect_size([Summary(30, 6, 5)], [Summary(20, 8, 5)])
    assert effect_size([Summary(30, 6, 5)] * 4, [Summary(20, 8, 5)] * 4) == pytest.approx(2 * one)


def test_seeds_for_an_effect_of_one_standard_deviation() -> None:
    assert seeds_needed(1.0) == math.ceil(2 * (1.959964 + 0.841621) ** 2)  # 15.7
    assert seeds_needed(-1.0) == 16
    assert seeds_needed(100.0) == 4  # fewer are not tested
    assert seeds_needed(-math.inf) == 4
    assert seeds_needed(0.0) is None


def test_with_so_many_seeds_the_test_finds_the_effect_four_times_of_five() -> None:
    chance, runs = np.random.default_rng(0), seeds_needed(0.7)
    x, y = chance.normal(0.7, 1, (4000, runs)), chance.normal(0, 1, (4000, runs))
    found = stats.ttest_ind(x, y, axis=1, equal_var=False).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.02)


# ── Student's t ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_students_t_with_one_degree_of_freedom_is_cauchys() -> None:
    assert t_two_sided(1.0, 1) == pytest.approx(0.5)
    assert t_quantile(0.5, 1) == pytest.approx(1)


@given(st.floats(1e-3, 100), st.floats(0.5, 1000))
def test_students_t_is_scipys(t: float, freedom: float) -> None:
    assert t_two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-8, abs=1e-15)
    assert t_two_sided(-t, freedom) == t_two_sided(t, freedom)


@given(st.floats(1e-6, 0.999), st.floats(1, 1000))
def test_quantiles_of_students_t_are_scipys(p: float, freedom: float) -> None:
    assert t_quantile(p, freedom) == pytest.approx(stats.t.isf(p / 2, freedom), rel=1e-7)


def test_students_t_has_no_chance_at_infinity_and_all_of_it_at_0() -> None:
    assert t_two_sided(0.0, 5) == 1
    assert t_two_sided(math.inf, 5) == 0


# ── Several tests, and tables without runs ────────────────────────────────────────────────────────────────────────────


def test_holm_corrects_step_by_step_and_never_falls() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # 3·0.01, then 2·0.03, then 1·0.04 < 0.06
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_lies_between_p_and_bonferroni(p_values: list[float]) -> None:
    corrected = holm(p_values)
    for p, q in zip(p_values, corrected, strict=True):
        assert p <= q <= min(1.0, len(p_values) * p) + 1e-12
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    assert [corrected[index] for index in order] == sorted(corrected)
