from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from maskrl.analysis.protocol import Protocol, protocol_of
from maskrl.analysis.reading import RunScores
from maskrl.analysis.scores import Scores, ScoresError, scale
from maskrl.analysis.statistics import Difference
from maskrl.analysis.verdict import Verdict, against_paper, papers_gain, shown, shown_difference, shown_p, versus
from maskrl.recipes import find, resolve
from maskrl.recipes.published import published_scores

CONTROL = sorted({s.task for s in published_scores() if s.table == "table:dmc_compare"})


def runs_of(
    method: str,
    task: str,
    scores: Sequence[float],
    *,
    at: int = 100_000,
    protocol: Protocol | None = None,
    first_seed: int = 1,
) -> list[RunScores]:
    """With the paper's protocol unless another is given; seeds from 1 unless from another."""
    unit = "decisions" if task.startswith("atari/") else "frames"
    protocol = dict(protocol_of(find(task, "paper")) if protocol is None else protocol) | {f"budget.{unit}": at}
    return [
        RunScores(method, task, seed, unit, ((at, score),), protocol, f"{task}-{seed}")  # type: ignore[arg-type]
        for seed, score in enumerate(scores, start=first_seed)
    ]


def paper(task: str, scores: Sequence[float], method: str = "mlr", **more: int) -> Verdict:
    (verdict,) = against_paper(Scores(tuple(runs_of(method, task, scores, **more))), method, **more).tasks
    return verdict


def spread_around(mean: float, std: float, runs: int) -> list[float]:
    """Scores with that mean and standard deviation."""
    points = np.linspace(-1, 1, runs)
    return (mean + std * points / points.std(ddof=1)).tolist()


# ── Against the paper ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_between_the_paper_and_four_runs_like_it_no_difference_shows_where_four_can_tell() -> None:
    scores = [760, 880, 900, 848]
    verdict = paper("dmcontrol/reacher-easy", scores)
    assert (verdict.outcome, verdict.needed, verdict.runs, verdict.paired) == ("consistent", 4, 4, False)
    theirs = stats.ttest_ind_from_stats(np.mean(scores), np.std(scores, ddof=1), 4, 866, 103, 10, False)
    assert verdict.difference is not None
    assert verdict.difference.p == pytest.approx(theirs.pvalue)
    assert verdict.sentence == (
        "dmcontrol/reacher-easy: no difference between mlr and paper, Table 1 (10 seeds) shows. 847 (4 runs) against 866; "
        f"difference −19, 95 % interval −{-verdict.difference.low:.0f} to {verdict.difference.high:.0f}, "
        f"p = {verdict.difference.p:.3f}."
    )


def test_four_runs_like_the_papers_are_too_few_where_it_takes_102() -> None:
    verdict = paper("dmcontrol/cartpole-swingup", [760, 800, 800, 840])
    assert (verdict.outcome, verdict.needed) == ("not enough seeds", 102)
    assert paper("dmcontrol/cheetah-run", spread_around(482, 38, 8)).outcome == "not enough seeds"
    assert paper("dmcontrol/cheetah-run", spread_around(482, 38, 9)).outcome == "consistent"


def test_more_runs_than_it_takes_are_too_few_against_the_papers_ten() -> None:
    assert paper("dmcontrol/cartpole-swingup", spread_around(806, 48, 102)).outcome == "not enough seeds"
    alike = both("dmcontrol/cartpole-swingup", spread_around(806, 48, 102), spread_around(806, 63, 102))
    assert versus(Scores(tuple(alike)), "mlr", "baseline").tasks[0].outcome == "consistent"


def test_a_difference_that_four_runs_show_is_one_however_many_were_needed() -> None:
    assert paper("dmcontrol/cartpole-swingup", [500, 510, 520, 530]).outcome == "below"
    verdict = paper("dmcontrol/cartpole-swingup", spread_around(905, 5, 4))
    assert verdict.outcome == "above"
    assert verdict.effect is not None
    assert verdict.effect == pytest.approx((905 - 806) / np.sqrt((25 + 48**2) / 2))
    assert verdict.conclusion == "dmcontrol/cartpole-swingup: mlr is above paper, Table 1 (10 seeds)"
    assert verdict.sentence.startswith(f"{verdict.conclusion}. 905 (4 runs) against 806; difference +99")


@pytest.mark.parametrize("scores", [[100], [100, 100], [99, 100, 101]])
def test_fewer_than_four_runs_are_not_tested_however_far_they_are(scores: list[float]) -> None:
    verdict = paper("dmcontrol/reacher-easy", scores)
    assert (verdict.outcome, verdict.difference, verdict.effect) == ("not enough seeds", None, None)
    counted = f"{len(scores)} run{'s' if len(scores) > 1 else ''}"
    assert verdict.sentence == (
        "dmcontrol/reacher-easy: not enough seeds to compare mlr and paper, Table 1 (10 seeds). "
        f"100 ({counted}) against 866; there is no test below 4 runs of each."
    )


def test_the_same_runs_are_held_against_the_column_of_their_method_and_time() -> None:
    assert paper("dmcontrol/reacher-easy", [590, 600, 610], "baseline").reference == 593
    assert paper("dmcontrol/reacher-easy", [940, 950, 960], at=500_000).reference == 957
    assert paper("dmcontrol/walker-run", [180, 185, 190]).theirs == "paper, Table 11 (3 seeds)"


def test_the_gain_of_mlr_over_the_baseline_is_not_named_in_a_comparison_with_the_paper() -> None:
    runs = [run for task in CONTROL for run in runs_of("mlr", task, [780.0, 800.0, 820.0])]
    verdicts = against_paper(Scores(tuple(runs)), "mlr")
    few = [verdict for verdict in (*verdicts.tasks, *verdicts.overall) if verdict.outcome == "not enough seeds"]
    assert len(few) == 6 + 1
    assert all(verdict.needed for verdict in few)
    assert not any("own gain" in verdict.sentence for verdict in few)


def untested(verdict: Verdict) -> bool:
    nothing = (verdict.difference, verdict.effect, verdict.needed, verdict.paired)
    return verdict.outcome == "not tested" and nothing == (None, None, None, False)


def test_a_mean_without_a_spread_is_not_tested_and_that_is_said() -> None:
    verdict = paper("atari/alien", [100.0] * 10, "der")
    assert untested(verdict)
    assert verdict.sentence == (
        "atari/alien: der and paper, Table 5 (100 seeds) are not tested. 100 (10 runs) against 802; the paper does not print its "
        "spread."
    )


def test_the_misprinted_spread_is_not_used_and_that_is_said() -> None:
    verdict = paper("dmcontrol/walker-walk", [500.0, 510.0, 520.0, 530.0], "DrQ", at=500_000)
    assert untested(verdict)
    assert "the paper's spread is misprinted (printed 921 ± 4575" in verdict.sentence
    assert verdict.reference == 921


def test_where_the_paper_has_three_seeds_more_of_ours_do_not_help() -> None:
    verdict = paper("atari/private_eye", [90.0] * 30)
    assert untested(verdict)
    assert verdict.sentence == (
        "atari/private_eye: mlr and paper, Table 5 (3 seeds) are not tested. 90 (30 runs) against 100; the paper has 3 seeds, "
        "and there is no test below 4."
    )


def test_one_task_without_a_test_leaves_none_over_tasks() -> None:
    tasks = ("dmcontrol/walker-walk", "dmcontrol/walker-run")  # 10 and 3 seeds in the paper
    runs = [run for task in tasks for run in runs_of("mlr", task, spread_around(750, 60, 5))]
    verdicts = against_paper(Scores(tuple(runs)), "mlr")
    assert {verdict.task: verdict.difference is None for verdict in (*verdicts.tasks, *verdicts.overall)} == {
        "dmcontrol/walker-run": True,
        "dmcontrol/walker-walk": False,
        "dmcontrol: mean of 2 tasks": True,
    }


def test_over_all_tasks_variances_add_up_and_four_runs_can_tell() -> None:
    runs = [run for task in CONTROL for run in runs_of("mlr", task, spread_around(750, 60, 4))]
    verdicts = against_paper(Scores(tuple(runs)), "mlr")
    assert len(verdicts.tasks) == 6
    (overall,) = verdicts.overall
    assert overall.task == "dmcontrol: mean of 6 tasks"
    assert (overall.mean, overall.needed) == (pytest.approx(750), 4)
    assert overall.reference == pytest.approx(772.8, abs=0.05)
    assert overall.outcome == "consistent"


def test_on_atari_the_overall_verdict_is_human_normalised() -> None:
    games = sorted({s.task for s in published_scores() if s.unit == "decisions"})
    humans = {s.task: s.mean for s in published_scores() if s.method == "Human"}
    runs = [run for game in games for run in runs_of("mlr", game, [humans[game]] * 4)]
    (overall,) = against_paper(Scores(tuple(runs)), "mlr").overall
    assert overall.task == "atari: mean of 26 tasks"
    assert overall.mean == pytest.approx(1)
    assert overall.reference == pytest.approx(0.679, abs=0.0005)
    assert untested(overall)  # against three seeds
    shares = (0.4, 0.5, 0.5, 0.6)
    others = [run for game in games for run in runs_of("baseline", game, [share * humans[game] for share in shares])]
    (overall,) = versus(Scores((*runs, *others)), "mlr", "baseline").overall
    expected = np.mean([0.5 * humans[game] / (one - zero) for game in games for zero, one in [scale(game) or (0, 1)]])
    assert (overall.outcome, overall.paired) == ("above", True)
    assert x_minus_y(overall) == pytest.approx(expected)
    assert overall.mean - overall.reference == pytest.approx(expected)


def test_another_protocol_is_not_held_against_the_paper_unless_asked_for() -> None:
    task = "dmcontrol/reacher-easy"
    lite = protocol_of(find(task, "lite"), {"mujoco": "3.3.6"})
    scores = Scores(tuple(runs_of("mlr", task, [1.0, 2.0, 3.0, 4.0], protocol=lite)))
    refused = against_paper(scores, "mlr")
    assert refused.tasks == ()
    assert refused.problems == (
        f"{task} is not compared, because its runs do not have the paper's protocol: env.drawing: full -> plain; "
        "env.size: 100 -> 48; profile: paper -> lite.",
    )
    assert against_paper(scores, "mlr", mixed=True).tasks[0].outcome == "below"


def test_what_the_paper_does_not_have_is_told_and_the_rest_compared() -> None:
    runs = [
        *runs_of("mlr", "dmcontrol/reacher-easy", [860, 870, 880]),
        *runs_of("mlr", "toy/reach", [30.0, 31.0], at=3000),
        *runs_of("mlr", "dmcontrol/cheetah-run", [860, 870], at=60_000),
    ]
    verdicts = against_paper(Scores(tuple(runs), ("A folder was empty.",)), "mlr")
    assert [verdict.task for verdict in verdicts.tasks] == ["dmcontrol/reacher-easy"]
    assert verdicts.overall == ()
    assert verdicts.problems == (
        "A folder was empty.",
        "The paper has no mlr on dmcontrol/cheetah-run at 60000 frames.",
        "The paper has no mlr on toy/reach at 3000 frames.",
    )
    assert against_paper(Scores(()), "mlr").problems == ("There are no scores of mlr.",)


def test_mixed_budgets_of_a_task_are_refused_and_the_difference_shown() -> None:
    task = "dmcontrol/reacher-easy"
    runs = [*runs_of("mlr", task, [860.0, 870.0]), *runs_of("mlr", task, [860.0, 870.0], at=500_000)]
    verdicts = against_paper(Scores(tuple(runs)), "mlr")
    assert verdicts.tasks == ()
    assert "budget.frames is 100000 in 2 runs (" in verdicts.problems[0]


def test_tasks_at_different_times_have_no_verdict_together() -> None:
    runs = [
        *runs_of("mlr", "dmcontrol/reacher-easy", [860.0, 870.0]),
        *runs_of("mlr", "dmcontrol/cheetah-run", [670.0, 680.0], at=500_000),
    ]
    verdicts = against_paper(Scores(tuple(runs)), "mlr")
    assert (len(verdicts.tasks), verdicts.overall) == (2, ())
    assert (
        "dmcontrol has no verdict over tasks, because they differ in protocol: dmcontrol: budget.frames"
        in verdicts.problems[0]
    )
    assert len(against_paper(Scores(tuple(runs)), "mlr", mixed=True).overall) == 1


def test_a_csv_is_taken_for_the_papers_protocol_and_that_is_said(tmp_path: Path) -> None:
    rows = "".join(f"mlr,reacher-easy,{seed},100000,{score}\n" for seed, score in enumerate((760, 880, 900, 848)))
    (tmp_path / "scores.csv").write_text(f"method,task,seed,frames,score\n{rows}")
    verdicts = against_paper(Scores.read(tmp_path / "scores.csv"), "mlr")
    assert verdicts.tasks[0].outcome == "consistent"
    assert verdicts.problems == ("dmcontrol/reacher-easy: a CSV has no protocol; the paper's is assumed.",)


# ── Method against method ─────────────────────────────────────────────────────────────────────────────────────────────


def both(task: str, first: Sequence[float], second: Sequence[float], **more: Any) -> list[RunScores]:
    return [*runs_of("mlr", task, first, **more), *runs_of("baseline", task, second, **more)]


def test_two_methods_with_the_same_seeds_are_compared_in_pairs() -> None:
    # The seed matters more than the method: only the differences show it.
    x, y = [500.0, 700.0, 650.0, 900.0, 820.0], [480.0, 690.0, 620.0, 875.0, 805.0]
    mlr, baseline = both("dmcontrol/cartpole-swingup", x, y)[:5], both("dmcontrol/cartpole-swingup", x, y)[5:]
    (verdict,) = versus(Scores((*mlr, *reversed(baseline))), "mlr", "baseline").tasks  # in any order
    theirs = stats.ttest_rel(x, y)
    interval = theirs.confidence_interval()
    assert verdict.difference == pytest.approx((20, interval.low, interval.high, theirs.pvalue))
    assert (verdict.outcome, verdict.paired) == ("above", True)
    assert verdict.effect == pytest.approx(20 / np.sqrt((np.var(x, ddof=1) + np.var(y, ddof=1)) / 2))  # of one run
    assert stats.ttest_ind(x, y, equal_var=False).pvalue > 0.5


def test_a_run_without_a_partner_of_its_seed_does_not_undo_the_pairs() -> None:
    # MLR is 98 to 102 above the Baseline with each of the seeds 1 to 5; the Baseline also has seed 6.
    x, y = [500.0, 700.0, 650.0, 900.0, 820.0], [400.0, 602.0, 548.0, 801.0, 719.0]
    scores = Scores(tuple(both("dmcontrol/cartpole-swingup", x, [*y, 700.0])))
    for first, second, ours in (("mlr", "baseline", 714), ("baseline", "mlr", 614)):
        (verdict,) = versus(scores, first, second, papers=False).tasks
        theirs = stats.ttest_rel(*((x, y) if first == "mlr" else (y, x)))
        interval = theirs.confidence_interval()
        assert verdict.difference is not None
        assert verdict.difference == pytest.approx((2 * ours - 1328, interval.low, interval.high, theirs.pvalue))
        assert (verdict.mean, verdict.reference) == (ours, 1328 - ours)  # of the five
        assert (verdict.outcome, verdict.paired, verdict.runs, verdict.left_out) == (
            "above" if first == "mlr" else "below",
            True,
            5,
            1,
        )
        assert verdict.sentence.endswith("; 1 run without a partner of the same seed left out.")


def test_partners_are_found_whatever_the_other_seeds_are() -> None:
    x, y = [500.0, 700.0, 650.0, 900.0], [1.0, 480.0, 690.0, 620.0, 875.0, 2.0, 3.0]
    runs = [*runs_of("mlr", "toy/reach", x, at=3000, first_seed=2), *runs_of("baseline", "toy/reach", y, at=3000)]
    (verdict,) = versus(Scores(tuple(runs)), "mlr", "baseline").tasks
    assert verdict.difference is not None
    assert verdict.difference.p == pytest.approx(stats.ttest_rel(x, y[1:5]).pvalue)
    assert verdict.difference.value == pytest.approx(verdict.mean - verdict.reference)
    assert (verdict.runs, verdict.left_out) == (4, 3)
    assert verdict.sentence.endswith("; 3 runs without a partner of the same seed left out.")


@pytest.mark.parametrize("shared", [3, 4, 19])
def test_if_both_methods_have_other_seeds_every_run_counts(shared: int) -> None:
    x, y = spread_around(700, 50, 20), spread_around(600, 50, 20)
    runs = [*runs_of("mlr", "toy/reach", x), *runs_of("baseline", "toy/reach", y, first_seed=21 - shared)]
    (verdict,) = versus(Scores(tuple(runs)), "mlr", "baseline").tasks
    assert verdict.difference is not None
    assert verdict.difference.p == pytest.approx(stats.ttest_ind(x, y, equal_var=False).pvalue)
    assert (verdict.outcome, verdict.runs, verdict.paired, verdict.left_out) == ("above", 20, False, 0)


def test_partners_that_differ_by_a_constant_are_compared_by_welchs_test_without_the_others() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.0, 3.0, 9.0]
    (verdict,) = versus(Scores(tuple(both("toy/reach", x, y, at=3000))), "mlr", "baseline").tasks
    assert verdict.difference is not None
    assert verdict.difference.p == pytest.approx(stats.ttest_ind(x, y[:4], equal_var=False).pvalue)
    assert (verdict.difference.value, verdict.reference, verdict.paired, verdict.left_out) == (1, 1.5, False, 1)


def test_two_runs_of_a_seed_are_no_pair() -> None:
    task = "dmcontrol/cartpole-swingup"
    x, y = [500.0, 700.0, 650.0, 900.0], [480.0, 690.0, 620.0, 875.0]
    again = runs_of("baseline", task, [485.0], protocol=protocol_of(find(task, "lite")))
    (verdict,) = versus(Scores((*both(task, x, y), *again)), "mlr", "baseline", mixed=True).tasks
    assert verdict.difference is not None
    assert verdict.difference.p == pytest.approx(stats.ttest_ind(x, [*y, 485.0], equal_var=False).pvalue)
    assert (verdict.paired, verdict.left_out) == (False, 0)


@pytest.mark.parametrize(("first_seed", "runs"), [(2, 4), (5, 4), (3, 5)])
def test_two_methods_with_other_seeds_are_compared_by_welchs_test(first_seed: int, runs: int) -> None:
    x, y = [860.0, 870.0, 950.0, 900.0], [500.0, 700.0, 650.0, 610.0, 580.0][:runs]
    scores = Scores(
        (
            *runs_of("mlr", "dmcontrol/reacher-easy", x),
            *runs_of("baseline", "dmcontrol/reacher-easy", y, first_seed=first_seed),
        )
    )
    (verdict,) = versus(scores, "mlr", "baseline").tasks
    assert verdict.difference is not None
    assert verdict.difference.p == pytest.approx(stats.ttest_ind(x, y, equal_var=False).pvalue)
    assert (verdict.outcome, verdict.paired) == ("above", False)
    (reverse,) = versus(scores, "baseline", "mlr").tasks
    assert reverse.outcome == "below"
    assert x_minus_y(reverse) == -x_minus_y(verdict)


def test_three_runs_of_either_method_are_not_tested() -> None:
    many, few = [860.0, 870.0, 950.0, 900.0, 880.0], [500.0, 510.0, 505.0]
    for x, y in ((many, few), (few, many), (few, few)):
        (verdict,) = versus(Scores(tuple(both("toy/reach", x, y, at=3000))), "mlr", "baseline").tasks
        assert (verdict.outcome, verdict.difference, verdict.effect, verdict.paired) == (
            "not enough seeds",
            None,
            None,
            False,
        )
        assert verdict.conclusion == "toy/reach: not enough seeds to compare mlr and baseline"
        assert verdict.sentence.endswith("; there is no test below 4 runs of each.")


def test_over_tasks_each_goes_by_the_spread_of_its_own_test() -> None:
    x, y = [3.0, 4.0, 5.0, 9.0], [0.0, 2.0, 2.0, 6.0]
    alike = both("dmcontrol/reacher-easy", x, y)
    others = [
        *runs_of("mlr", "dmcontrol/cheetah-run", x),
        *runs_of("baseline", "dmcontrol/cheetah-run", y, first_seed=9),
    ]
    together = [*both("dmcontrol/cheetah-run", x, y), *alike]
    in_pairs, apart = np.var(np.subtract(x, y), ddof=1) / 4, [np.var(scores, ddof=1) / 4 for scores in (x, y)]
    for runs, paired, parts in (
        (together, [True, True, True], [in_pairs, in_pairs]),
        ([*others, *alike], [False, True, False], [in_pairs, *apart]),
    ):
        verdicts = versus(Scores(tuple(runs)), "mlr", "baseline")
        assert [verdict.paired for verdict in (*verdicts.tasks, *verdicts.overall)] == paired
        error, freedom = np.sqrt(sum(parts)) / 2, sum(parts) ** 2 / sum(part**2 / 3 for part in parts)
        (overall,) = verdicts.overall
        assert overall.difference is not None
        assert overall.difference.p == pytest.approx(2 * stats.t.sf(2.75 / error, freedom))


def test_differences_that_are_all_the_same_are_no_certainty() -> None:
    x, y = [1.1, 2.2, 3.3, 4.4], [0.1, 1.2, 2.3, 3.4]
    (verdict,) = versus(Scores(tuple(both("toy/reach", x, y, at=3000))), "mlr", "baseline").tasks
    assert verdict.difference is not None
    assert verdict.difference.p == pytest.approx(stats.ttest_ind(x, y, equal_var=False).pvalue)
    assert (verdict.outcome, verdict.paired) == ("consistent", False)


def test_differences_that_vary_little_beside_the_scores_are_tested_in_pairs() -> None:
    x, y = [700.0, 800.0, 900.0, 1000.0], [400.0, 500.0, 600.0, 700.001]
    (verdict,) = versus(Scores(tuple(both("toy/reach", x, y, at=3000))), "mlr", "baseline").tasks
    assert verdict.difference is not None
    assert verdict.difference.p == pytest.approx(stats.ttest_rel(x, y).pvalue)
    assert (verdict.outcome, verdict.paired) == ("above", True)


@pytest.mark.parametrize(("first", "second"), [(10.0, 0.0), (0.1, 0.3), (7.0, 7.0)])
def test_without_any_spread_there_is_no_test(first: float, second: float) -> None:
    (verdict,) = versus(Scores(tuple(both("toy/reach", [first] * 4, [second] * 4, at=3000))), "mlr", "baseline").tasks
    assert untested(verdict)
    assert (verdict.mean, verdict.reference) == pytest.approx((first, second))
    why = "no score varies between runs, and without a spread there is no test"
    assert verdict.untested == why
    assert verdict.conclusion == "toy/reach: mlr and baseline are not tested"
    assert verdict.sentence.endswith(f"; {why}.")


FEW_VALUES = st.lists(st.sampled_from([0.0, 0.1, 0.3, 1e-200, 3e-200]), min_size=4, max_size=4)


@given(st.tuples(FEW_VALUES, FEW_VALUES), st.tuples(FEW_VALUES, FEW_VALUES))
def test_whatever_the_scores_are_a_spread_is_looked_for_before_the_test(
    one: tuple[list[float], list[float]], other: tuple[list[float], list[float]]
) -> None:
    runs = [*both("dmcontrol/reacher-easy", *one), *both("dmcontrol/cheetah-run", *other)]
    verdicts = versus(Scores(tuple(runs)), "mlr", "baseline", papers=False)
    for verdict in (*verdicts.tasks, *verdicts.overall):
        assert (verdict.difference is None) == (verdict.outcome == "not tested")


def test_without_any_spread_three_runs_are_too_few_and_seeds_do_not_matter() -> None:
    three = both("toy/reach", [10.0] * 3, [0.0] * 3, at=3000)
    assert versus(Scores(tuple(three)), "mlr", "baseline").tasks[0].outcome == "not enough seeds"
    others = [*runs_of("mlr", "toy/reach", [10.0] * 4), *runs_of("baseline", "toy/reach", [0.0] * 5, first_seed=11)]
    assert untested(versus(Scores(tuple(others)), "mlr", "baseline").tasks[0])


def test_a_method_without_a_spread_is_tested_by_the_others() -> None:
    x, y = [10.0] * 4, [1.0, 2.0, 4.0, 5.0]
    apart = [*runs_of("mlr", "toy/reach", x), *runs_of("baseline", "toy/reach", y, first_seed=11)]
    (verdict,) = versus(Scores(tuple(apart)), "mlr", "baseline").tasks
    assert verdict.difference is not None
    assert verdict.difference.p == pytest.approx(stats.ttest_1samp(y, 10).pvalue)


def test_a_task_without_a_spread_leaves_the_mean_over_tasks_untested() -> None:
    varied = both("dmcontrol/cheetah-run", *CLOSE)
    runs = [*varied, *both("dmcontrol/reacher-easy", [10.0] * 4, [0.0] * 4)]
    verdicts = versus(Scores(tuple(runs)), "mlr", "baseline", papers=False)
    assert [verdict.outcome for verdict in verdicts.tasks] == ["consistent", "not tested"]
    (overall,) = verdicts.overall
    assert untested(overall)
    assert overall.sentence == (
        "dmcontrol: mean of 2 tasks: mlr and baseline are not tested. 405 (4 runs) against 400; "
        "on dmcontrol/reacher-easy no score varies between runs, and without a spread there is no test."
    )
    constant = [run for task in CONTROL for run in both(task, [10.0] * 4, [0.0] * 4)]
    (overall,) = versus(Scores(tuple(constant)), "mlr", "baseline").overall
    assert untested(overall)
    assert " and 3 more no score varies between runs" in overall.sentence


def test_over_tasks_the_runs_without_a_partner_are_counted_together() -> None:
    runs = [
        *both("dmcontrol/cheetah-run", CLOSE[0], [*CLOSE[1], 1.0]),
        *both("dmcontrol/reacher-easy", [*CLOSE[0], 2.0, 3.0], CLOSE[1]),
    ]
    (overall,) = versus(Scores(tuple(runs)), "mlr", "baseline", papers=False).overall
    assert (overall.mean, overall.reference, x_minus_y(overall)) == (800, 800, 0)
    assert (overall.runs, overall.paired, overall.left_out) == (4, True, 3)


def x_minus_y(verdict: Verdict) -> float:
    assert verdict.difference is not None
    return verdict.difference.value


def test_no_difference_says_something_only_with_seeds_enough() -> None:
    few = both("dmcontrol/cartpole-swingup", *CLOSE)
    (verdict,) = versus(Scores(tuple(few)), "mlr", "baseline").tasks
    assert (verdict.outcome, verdict.needed) == ("not enough seeds", 102)
    assert verdict.sentence.endswith("; about 102 seeds of each method would show the paper's own gain.")
    fewer_of_one = both("dmcontrol/cheetah-run", spread_around(800, 20, 9), spread_around(800, 10, 8))
    (verdict,) = versus(Scores(tuple(fewer_of_one)), "mlr", "baseline").tasks
    assert verdict.difference is not None
    assert (verdict.outcome, verdict.needed) == ("not enough seeds", 9)


CLOSE = [780.0, 800.0, 800.0, 820.0], [790.0, 805.0, 795.0, 810.0]


def test_only_what_the_paper_measured_is_gauged_by_its_gain() -> None:
    task = "dmcontrol/cartpole-swingup"
    lite = protocol_of(find(task, "lite"))
    others = [run for name in ("Baseline", "baseline", "curl") for run in runs_of(name, task, CLOSE[1])]
    ours = Scores((*runs_of("mlr", task, CLOSE[0]), *others))
    assert versus(ours, "mlr", "Baseline").tasks[0].needed == 102
    assert versus(ours, "Baseline", "mlr").tasks[0].needed == 102
    ungauged = [
        versus(ours, "mlr", "Baseline", papers=False),
        versus(ours, "mlr", "curl"),
        versus(ours, "baseline", "Baseline"),
        versus(Scores(tuple(both(task, *CLOSE, protocol=lite))), "mlr", "baseline"),
        against_paper(Scores(tuple(runs_of("mlr", task, CLOSE[0], protocol=lite))), "mlr", mixed=True),
    ]
    for verdicts in ungauged:
        (verdict,) = verdicts.tasks
        assert (verdict.outcome, verdict.needed) == ("consistent", None)
        assert verdict.conclusion.endswith(" shows")


def test_over_tasks_every_one_must_be_the_papers_to_be_gauged() -> None:
    lite = protocol_of(find("dmcontrol/reacher-easy", "lite"))
    other = both("dmcontrol/reacher-easy", *CLOSE, protocol=lite)
    runs = [*both("dmcontrol/cartpole-swingup", *CLOSE), *other]
    verdicts = versus(Scores(tuple(runs)), "mlr", "baseline", mixed=True)
    assert [verdict.needed for verdict in (*verdicts.tasks, *verdicts.overall)] == [102, None, None]


def test_mixed_budgets_are_not_held_against_the_paper_nor_gauged_by_it() -> None:
    task = "dmcontrol/cartpole-swingup"
    short, long = both(task, *CLOSE), [replace(run, seed=run.seed + 4) for run in both(task, *CLOSE, at=500_000)]
    scores = Scores((*short, *long))
    found = against_paper(scores, "mlr", mixed=True)
    assert found.tasks == ()
    assert found.problems == (f"{task} is not compared, because its scores are of 100000 and 500000 frames.",)
    assert versus(scores, "mlr", "baseline", mixed=True).tasks[0].needed is None
    assert len(against_paper(scores.where(lambda run: run.budget == 100_000), "mlr", mixed=True).tasks) == 1


def test_a_task_that_is_not_in_the_paper_has_no_number_of_seeds() -> None:
    (verdict,) = versus(
        Scores(tuple(both("toy/reach", [30.0, 31.0, 32.0, 33.0], [30.0, 31.5, 32.0, 32.5], at=3000))), "mlr", "baseline"
    ).tasks
    assert (verdict.outcome, verdict.needed) == ("consistent", None)
    assert verdict.conclusion.endswith(" shows")


def test_the_overall_verdict_of_two_methods_is_over_their_tasks() -> None:
    runs = [
        *both("dmcontrol/reacher-easy", spread_around(4, 1, 4), spread_around(1, 1, 4)[::-1]),
        *both("dmcontrol/cheetah-run", spread_around(904, 1, 4), spread_around(901, 1, 4)[::-1]),
    ]
    (overall,) = versus(Scores(tuple(runs)), "mlr", "baseline").overall
    assert x_minus_y(overall) == pytest.approx(3)
    assert overall.effect == pytest.approx(6 / np.sqrt(2))


def test_what_only_one_method_has_is_told() -> None:
    runs = [
        *both("dmcontrol/reacher-easy", [860.0, 870.0], [500.0, 600.0]),
        *runs_of("baseline", "dmcontrol/cheetah-run", [5.0]),
    ]
    verdicts = versus(Scores(tuple(runs)), "mlr", "baseline")
    assert len(verdicts.tasks) == 1
    assert verdicts.problems == ("dmcontrol/cheetah-run is not compared: there are no scores of mlr.",)


def test_methods_of_two_protocols_are_refused_unless_asked_for() -> None:
    task = "toy/reach"
    small = protocol_of(resolve(task, ["env.size=40"]))
    normal = runs_of("mlr", task, [30, 31, 32, 33], at=3000)
    odd = runs_of("baseline", task, [31, 30, 33, 32], at=3000, protocol=small)
    scores = Scores((*normal, *odd))
    with pytest.raises(ScoresError, match=r"env\.size is 32 in 4 runs"):
        versus(scores, "mlr", "baseline")
    assert versus(scores, "mlr", "baseline", mixed=True).tasks[0].outcome == "consistent"


def test_other_methods_do_not_stand_in_the_way() -> None:
    other = protocol_of(resolve("toy/reach", ["env.size=40"]))
    odd = runs_of("mlr agent.hidden=64", "toy/reach", [1.0], protocol=other, at=3000)
    scores = Scores((*both("toy/reach", [30.0, 31.0], [30.0, 31.0], at=3000), *odd))
    assert len(versus(scores, "mlr", "baseline").tasks) == 1


# ── Numbers as text ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,234"), (99.96, "100.0"), (-12.34, "−12.3"), (0.6789, "0.679"), (None, "–"), (float("nan"), "–")],
)
def test_a_number_for_people(value: float | None, text: str) -> None:
    assert shown(value) == text


def test_a_number_may_have_a_sign_but_0_has_no_minus() -> None:
    assert shown(3.2, 1, sign=True) == "+3.2"
    assert [shown(value, 0) for value in (-0.4, -0.0, -0.6)] == ["0", "0", "−1"]
    assert shown(-0.4, 0, sign=True) == "+0"


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (-2839, -3240, -2438, ("−2,839", "−3,240", "−2,438")),  # the scores have no decimals
        (127.6, 95.4, 159.8, ("+128", "95", "160")),
        (1.25, 0.4, 2.1, ("+1.2", "0.4", "2.1")),  # two digits of 1.7
        (0.828, 0.00076, 1.65524, ("+0.8280", "0.0008", "1.6552")),  # one of 0.00076, which is not 0
        (-40.3, -80.8, 0.2, ("−40.3", "−80.8", "0.2")),
        (400.0, 399.9958, 400.0042, ("+400.0000", "399.9958", "400.0042")),  # two of 0.0084
        (0.0, 0.0, 0.0, ("+0", "0", "0")),
        (1.0, float("-inf"), float("inf"), ("+1", "–", "–")),
    ],
)
def test_an_interval_has_the_digits_that_tell_it_from_0(
    value: float, low: float, high: float, text: tuple[str, str, str]
) -> None:
    assert shown_difference(Difference(value, low, high, 0.5), 0) == text


def test_an_interval_has_the_digits_of_the_scores() -> None:
    assert shown_difference(Difference(0.25, -30, 30.5, 0.9), 3) == ("+0.250", "−30.000", "30.500")


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (1.0, "1.000"),
        (0.0123, "0.012"),
        (0.04949, "0.049"),
        (0.04987, "0.0499"),
        (0.049996, "0.049996"),
        (0.05, "0.050"),
        (0.0502, "0.050"),
        (0.0009, "< 0.001"),
        (0.0, "< 0.001"),
    ],
)
def test_a_p_below_5_percent_never_reads_5_percent(p: float, text: str) -> None:
    assert shown_p(p) == text


def test_a_sentence_does_not_round_its_verdict_away() -> None:
    x, y = [500.72, 540.76, 471.83, 610.87, 554.96], [500.0, 540.0, 470.0, 610.0, 555.0]
    (verdict,) = versus(Scores(tuple(both("toy/reach", x, y, at=3000))), "mlr", "baseline").tasks
    assert verdict.sentence == (
        "toy/reach: mlr is above baseline. 536 (5 runs) against 535; difference +0.8280, 95 % interval 0.0008 to 1.6552, "
        "p = 0.0499."
    )
    many = replace(verdict, mean=1000.0, reference=3839.0, runs=1200, difference=Difference(-2839, -3240, -2438, 1e-9))
    assert many.sentence.endswith(
        ". 1,000 (1,200 runs) against 3,839; difference −2,839, 95 % interval −3,240 to −2,438, p < 0.001."
    )


# ── The paper's gain ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_papers_gain_is_the_yardstick() -> None:
    gain: Mapping[str, float | None] = {task: papers_gain([(task, 100_000)]) for task in CONTROL}
    assert gain["dmcontrol/cartpole-swingup"] == pytest.approx(22 / np.sqrt((48**2 + 63**2) / 2))
    assert gain["dmcontrol/reacher-easy"] == pytest.approx(273 / np.sqrt((103**2 + 118**2) / 2))
    assert papers_gain([("dmcontrol/cartpole-swingup", 60_000)]) is None
    assert papers_gain([("dmcontrol/cartpole-swingup", 100_000), ("toy/reach", 3000)]) is None
    assert papers_gain([]) is None
