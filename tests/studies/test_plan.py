"""Plans: the chance to find a difference against scipy and simulations, costs against arithmetic on made-up speeds, the command."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from maskrl import cli, recipes
from maskrl.agents.base import Spaces
from maskrl.analysis.power import power, seeds_for, t_beyond
from maskrl.analysis.statistics import Summary, effect_size, seeds_needed
from maskrl.cli.plan import _as_dict, _show
from maskrl.cost import timing
from maskrl.cost.forecast import Takes
from maskrl.cost.operations import RunCost, UpdateCost, run_cost, update_cost
from maskrl.recipes import measured
from maskrl.recipes.measured import MeasuredScore
from maskrl.recipes.published import PublishedScore, published
from maskrl.recipes.schema import Budget, Evaluation, Profile
from maskrl.studies import plan
from maskrl.studies.backends import sizes_of
from maskrl.studies.jobs import PAIR, expand
from maskrl.studies.plan import Comparison, Line, Plan, Speed, _assumptions, _kinds, compare, groups_of, makespan

FEW = "No study of ours compares 4 runs of MLR and of its Baseline, with the lite profile's own values and within"
TASKS = ("finger-spin", "cartpole-swingup", "reacher-easy", "cheetah-run", "walker-walk", "ball_in_cup-catch")


def papers(task: str, at: int = 100_000) -> tuple[Summary, Summary]:
    cells = [published(f"dmcontrol/{task}", at, method) for method in ("MLR", "Baseline")]
    mlr, baseline = (Summary(cell.mean, cell.std, 10) for cell in cells if cell is not None and cell.std is not None)
    return mlr, baseline


# ── What scores can tell ──────────────────────────────────────────────────────────────────────────────────────────────


@given(t=st.floats(-3, 6), freedom=st.floats(1, 1e5), centre=st.floats(-3, 8))
def test_noncentral_t_is_scipys(t: float, freedom: float, centre: float):
    assume(t == 0 or abs(t) > 1e-9)  # scipy warns that its series does not converge closer to 0
    assert t_beyond(t, freedom, centre) == pytest.approx(stats.nct.sf(t, freedom, centre), abs=1e-8)


@given(d=st.floats(0.1, 3), n=st.integers(4, 60))
def test_the_power_of_paired_runs_is_the_textbooks(d: float, n: int):
    critical = stats.t.ppf(0.975, n - 1)
    expected = stats.nct.sf(critical, n - 1, d * math.sqrt(n / 2))
    assert power([Summary(7 * d, 7.0, 3)], [Summary(0.0, 7.0, 3)], [n]) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("n", [4, 5, 10, 20])
def test_power_is_how_often_scipys_test_finds_it(n: int):
    chance = np.random.default_rng(1)
    a, b = chance.normal(2, 1, (20_000, n)), chance.normal(0, 3, (20_000, n))
    found = stats.ttest_rel(a, b, axis=1, alternative="greater").pvalue < 0.025
    assert power([Summary(2, 1, 3)], [Summary(0, 3, 3)], [n]) == pytest.approx(found.mean(), abs=0.012)


@pytest.mark.parametrize("seeds", [[4, 4, 4], [4, 5, 9], [12, 10, 15]])
def test_power_over_tasks_is_how_often_the_test_finds_it(seeds: list[int]):
    x, y = (
        [Summary(10, 1, 3), Summary(5, 4, 3), Summary(0, 9, 3)],
        [Summary(8, 2, 3), Summary(3, 1, 3), Summary(-6, 3, 3)],
    )
    chance, draws = np.random.default_rng(1), 20_000
    value, parts = np.zeros(draws), []
    for a, b, n in zip(x, y, seeds, strict=True):
        differences = chance.normal(a.mean, a.std, (draws, n)) - chance.normal(b.mean, b.std, (draws, n))
        value += differences.mean(axis=1)
        parts.append((differences.var(axis=1, ddof=1) / n, n - 1))
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / left for part, left in parts)
    found = stats.t.sf(value / np.sqrt(variance), freedom) < 0.025
    assert power(x, y, seeds) == pytest.approx(found.mean(), abs=0.012)


@pytest.mark.parametrize(("at", "normal"), [(100_000, (43, 102, 4, 9, 16, 8)), (500_000, (97, 322, 176, 9, 38, 146))])
def test_seeds_for_the_papers_tasks_are_those_of_the_normal_distribution_and_few_more(at: int, normal: Sequence[int]):
    for task, expected in zip(TASKS, normal, strict=True):
        x, y = papers(task, at)
        assert seeds_needed(effect_size([x], [y])) == expected
        needed = seeds_for([x], [y])
        assert needed is not None
        assert expected < needed <= expected + 3
        assert power([x], [y], [needed]) >= 0.8 > power([x], [y], [needed - 1])


def test_what_few_seeds_cannot_tell():
    x, y = [Summary(2.465, 1, 3)], [Summary(0, 1, 3)]
    assert power(x, y, [3]) == 0.0 < power(x, y, [4])  # there is no test of three
    assert power([*x, *x], [*y, *y], [10, 3]) == 0.0  # nor over tasks, if one has three
    assert power(y, x, [10]) < 1e-6  # the wrong direction does not count
    assert power([Summary(1, 0, 3)], [Summary(0, 0, 3)], [4]) == 1.0
    assert power([Summary(1, 0, 3)], [Summary(0, 0, 3)], [3]) == 0.0
    assert seeds_for(y, x) is None
    assert seeds_for(x, x) is None


# ── Arithmetic on made-up speeds ──────────────────────────────────────────────────────────────────────────────────────


def made_up(
    task: str = "dmcontrol/reacher-easy",
    method: str = "mlr",
    seeds: int = 4,
    update: float = 0.5,
    profile: Profile = "paper",
) -> Line:
    """1000 decisions, the first 100 random, an update each; 3 evaluations of 2 episodes of 50 decisions."""
    recipe = replace(recipes.find(task, profile, method), evaluation=Evaluation(every=40_000, episodes=2))
    cost = RunCost(
        update=UpdateCost({"critic": 1e9, "actor": 1e9}, convolutions=1e9, act=1e6, memory=50),
        decisions=1000, chosen=900, updates=900, episodes=6,
        takes=Takes(replay=10, disk=30, memory=20), memory=70,
    )  # fmt: skip
    return Line(method, recipe, seeds, cost, Speed(update, 0.01, 0.002, 0.03, 50))


def test_the_seconds_and_operations_of_a_run():
    line = made_up()
    learning, deciding = 900 * 0.5, 900 * 0.01 + 1000 * 0.03
    evaluating, floor = 6 * 50 * (0.03 + 0.002), 2 * 50 * 0.03
    assert line.seconds == pytest.approx(learning + deciding + evaluating + floor)
    assert line.flops == 900 * 2e9 + (900 + 6 * 50) * 1e6


def test_a_plan_forecasts_the_memory_that_a_sweep_shares_out():
    (job,) = expand("dmcontrol/walker-walk", seeds=1, methods=["mlr"], profile="paper")
    assert run_cost(job.recipe).memory == sizes_of([job])[job.directory].memory


def test_runs_are_taken_up_one_after_another():
    assert makespan([3, 3, 2, 2, 2], 2) == 7  # 3 + 2 + 2 and 3 + 2
    assert makespan([1, 1, 9], 3) == 9
    assert makespan([5, 6], 1) == 11
    assert makespan([4], 8) == 4


def test_the_totals_of_a_plan():
    lines = (made_up(seeds=3), made_up(method="baseline", seeds=2, update=0.1))
    lighter = replace(lines[1].cost, memory=5)
    lines = (lines[0], replace(lines[1], cost=lighter))
    made = Plan(lines, workers=2, comparison=compare(lines), notes=())
    a, b = (line.seconds for line in lines)
    assert made.runs == 5
    assert made.seconds == pytest.approx(3 * a + 2 * b)
    assert made.elapsed == pytest.approx(max(2 * a, a + 2 * b))
    assert made.memory == 2 * lines[0].cost.memory
    assert made.disk == 5 * 30
    assert made.flops == 5 * lines[0].flops


def test_a_plan_says_what_the_papers_differences_need():
    lines = [made_up(f"dmcontrol/{task}", method) for task in TASKS for method in ("mlr", "baseline")]
    comparison = compare(lines)
    assert comparison.overall is not None
    both = 2 * lines[0].seconds
    by_task = {question.tasks[0]: question for question in comparison.tasks}
    assert {task: by_task[f"dmcontrol/{task}"].needed for task in TASKS} == dict(
        zip(TASKS, (45, 104, 5, 12, 18, 11), strict=True)
    )
    assert by_task["dmcontrol/reacher-easy"].seconds == pytest.approx(5 * both)
    assert by_task["dmcontrol/reacher-easy"].power == pytest.approx(0.648, abs=0.001)
    assert comparison.overall.difference == pytest.approx(156)
    assert comparison.overall.needed == 4
    assert comparison.sources == ("the paper (10 seeds) at 100,000 frames",)
    assert comparison.gaps == ()


def test_a_difference_that_the_paper_does_not_have_has_no_seeds_and_no_hours():
    lines = [made_up("atari/asterix", method) for method in ("mlr", "baseline")]
    (question,) = compare(lines).tasks
    assert question.difference < 0
    assert (question.needed, question.seconds) == (None, None)


def test_what_the_plan_does_not_have_is_not_compared():
    assert said([made_up()]) == ["The plan has no Baseline on dmcontrol/reacher-easy."]
    assert said([made_up(method="baseline")]) == ["The plan has no MLR on dmcontrol/reacher-easy."]
    assert said([made_up(method="curl")]) == ["The plan has no MLR and no Baseline on dmcontrol/reacher-easy."]
    assert said([made_up(), with_frames(made_up(method="baseline"), 50_000)]) == [
        "MLR and its Baseline have different budgets on dmcontrol/reacher-easy."
    ]


def test_a_plan_of_a_toy_or_of_an_own_environment_needs_a_pilot():
    pilot = "run a pilot of both methods, with 4 seeds or more."
    toy = [made_up("toy/reach", method, profile="lite") for method in PAIR]
    assert said(toy) == [f"{FEW} 3,000 frames, on toy/reach: {pilot}"]
    gym = [replace(line, recipe=replace(line.recipe, name="gym/ALE/Assault-v5")) for line in toy]
    assert said(gym) == [f"No scores are kept for your own environments, such as gym/ALE/Assault-v5: {pilot}"]


def test_games_are_compared_on_the_human_scale():
    lines = [made_up(f"atari/{game}", method, seeds=3) for game in ("alien", "pong") for method in ("mlr", "baseline")]
    comparison = compare(lines)
    assert comparison.overall is not None
    assert (comparison.tasks[0].unit, comparison.overall.unit) == ("points", "human-normalised")
    assert comparison.tasks[0].difference == pytest.approx(990.1 - 678.5)
    cells = [
        [published(f"atari/{game}", 100_000, who) for who in ("MLR", "Baseline", "Random", "Human")]
        for game in ("alien", "pong")
    ]
    gains = [(a.mean - b.mean) / (d.mean - c.mean) for a, b, c, d in cells]  # type: ignore[union-attr]
    assert comparison.overall.difference == pytest.approx(np.mean(gains))


@pytest.mark.parametrize(
    ("frames", "source"),
    [
        (100_000, "the paper (10 seeds) at 100,000 frames"),
        (300_000, "the paper (10 seeds) at 100,000 of 300,000 frames"),
        (500_000, "the paper (10 seeds) at 500,000 frames"),
    ],
)
def test_the_paper_profile_goes_by_the_papers_latest_scores_within_its_budget(frames: int, source: str):
    comparison = compare([with_frames(made_up(method=method), frames) for method in PAIR])
    assert comparison.sources == (source,)
    assert comparison.tasks[0].source == source


def test_the_papers_scores_do_not_speak_for_a_shorter_run():
    assert said([with_frames(made_up(method=method), 20_000) for method in PAIR]) == [
        "The paper has no scores within 20,000 frames for dmcontrol/reacher-easy: "
        "run a pilot of both methods, with 4 seeds or more."
    ]


def test_the_paper_counts_decisions_on_atari():
    assert compare([made_up("atari/pong", method) for method in PAIR]).sources == (
        "the paper (3 seeds) at 100,000 decisions",
    )


def with_frames(line: Line, frames: int) -> Line:
    return replace(line, recipe=replace(line.recipe, budget=Budget(frames=frames)))


def said(lines: Sequence[Line]) -> list[str]:
    """Why nothing is compared."""
    comparison = compare(lines)
    assert (comparison.tasks, comparison.overall, comparison.sources) == ((), None, ())
    return list(comparison.gaps)


def known(monkeypatch: pytest.MonkeyPatch, *scores: tuple[str, int, float, float]) -> None:
    """Make these our only scores at lite size: task, frames, mean of MLR and of the Baseline."""
    rows = [
        MeasuredScore("a-study", task, "lite", frames, method, mean, 50.0, 5)
        for task, frames, *means in scores
        for method, mean in zip(PAIR, means, strict=True)
    ]
    monkeypatch.setattr(measured, "measured_scores", lambda: tuple(rows))


def lite(*tasks: str) -> list[Line]:
    return [made_up(task, method, profile="lite") for task in tasks for method in PAIR]


def test_a_plan_of_lite_runs_goes_by_our_own_latest_runs_within_its_budget(monkeypatch: pytest.MonkeyPatch):
    task = "dmcontrol/reacher-easy"
    known(monkeypatch, (task, 60_000, 400, 300), (task, 100_000, 500, 300), (task, 200_000, 900, 300))
    comparison = compare(lite(task))
    assert comparison.sources == ("study a-study (5 seeds) at 100,000 frames",)
    assert comparison.tasks[0].difference == pytest.approx(200)
    assert comparison.tasks[0].effect == pytest.approx(4)
    (earlier,) = compare([with_frames(line, 80_000) for line in lite(task)]).tasks
    assert (earlier.source, earlier.difference) == ("study a-study (5 seeds) at 60,000 of 80,000 frames", 100)
    assert compare([made_up(task, method) for method in PAIR]).sources == ("the paper (10 seeds) at 100,000 frames",)


def test_a_plan_of_lite_runs_never_goes_by_the_papers_scores(monkeypatch: pytest.MonkeyPatch):
    known(monkeypatch, ("dmcontrol/reacher-easy", 20_000, 400, 300))
    as_long_as_the_papers = [with_frames(line, 400_000) for line in lite("atari/assault")]
    assert said(as_long_as_the_papers) == [
        f"{FEW} 400,000 frames, on atari/assault: run a pilot of both methods, with 4 seeds or more."
    ]
    (gap,) = said([with_frames(line, 10_000) for line in lite("dmcontrol/reacher-easy")])
    assert gap.startswith(f"{FEW} 10,000 frames, on dmcontrol/reacher-easy: ")


def test_the_known_scores_of_both_methods_are_of_one_study():
    """Of every task, profile and frames."""
    found: dict[tuple[str, str, int], list[tuple[str, str]]] = {}
    for score in measured.measured_scores():
        found.setdefault((score.task, score.profile, score.frames), []).append((score.method, score.study))
    assert found
    for rows in found.values():
        assert sorted(method for method, _ in rows) == sorted(PAIR)
        assert len({study for _, study in rows}) == 1


def test_games_are_planned_in_the_unit_of_their_budget(monkeypatch: pytest.MonkeyPatch):
    """Decisions, four frames each, unless the budget is in frames; with the paper's scores, too."""
    known(monkeypatch, ("atari/pong", 20_000, 4, 3))
    assert compare(lite("atari/pong")).sources == ("study a-study (5 seeds) at 5,000 of 10,000 decisions",)
    in_frames = [with_frames(line, 20_000) for line in lite("atari/pong")]
    assert compare(in_frames).sources == ("study a-study (5 seeds) at 20,000 frames",)
    (gap,) = said(lite("atari/assault"))
    assert gap.startswith(f"{FEW} 10,000 decisions, on atari/assault: ")
    papers_own = [made_up("atari/pong", method) for method in PAIR]
    (gap,) = said([replace(line, recipe=replace(line.recipe, budget=Budget(decisions=9000))) for line in papers_own])
    assert gap.startswith("The paper has no scores within 9,000 decisions for atari/pong: ")
    (source,) = compare([with_frames(line, 500_000) for line in papers_own]).sources
    assert source == "the paper (3 seeds) at 400,000 of 500,000 frames"


def test_the_fewest_seeds_of_both_methods_count():
    """The sweeps of a study may give its methods different numbers of seeds."""
    for seeds in ((4, 6), (6, 4)):
        (question,) = compare([made_up(method=method, seeds=n) for method, n in zip(PAIR, seeds, strict=True)]).tasks
        assert question.seeds == 4
        assert question.power == pytest.approx(0.648, abs=0.001)


def test_a_misprint_of_the_paper_is_not_used(monkeypatch: pytest.MonkeyPatch):
    """None of MLR's or the Baseline's scores is misprinted: here is one, of 500,000 frames."""

    def misprinted(task: str, at: int, method: str) -> PublishedScore | None:
        cell = published(task, at, method)
        return replace(cell, misprint="printed 9760") if cell and at == 500_000 and method == "mlr" else cell

    lines = [with_frames(made_up(method=method), 500_000) for method in PAIR]
    assert compare(lines).sources == ("the paper (10 seeds) at 500,000 frames",)
    monkeypatch.setattr(plan, "published", misprinted)
    assert compare(lines).sources == ("the paper (10 seeds) at 100,000 of 500,000 frames",)


def test_scores_that_do_not_vary_have_no_power(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """MLR scores 0.9 with every seed, and so does the Baseline 0.8 on one of two tasks."""
    reacher, walker = "dmcontrol/reacher-easy", "dmcontrol/walker-walk"
    rows = [
        MeasuredScore("a-study", task, "lite", 100_000, method, mean, std, 5)
        for task, spread in ((reacher, 0.0), (walker, 0.1))
        for method, mean, std in (("mlr", 0.9, 0.0), ("baseline", 0.8, spread))
    ]
    monkeypatch.setattr(measured, "measured_scores", lambda: tuple(rows))
    comparison = compare(lite(reacher, walker))
    same, other = comparison.tasks
    assert same.difference == pytest.approx(0.1)
    assert (same.effect, same.power, same.needed, same.seconds) == (None, None, None, None)
    assert other.effect == pytest.approx(0.1 / math.sqrt(0.1**2 / 2))  # √2
    assert comparison.overall is not None
    assert comparison.overall.effect == pytest.approx(0.2 / math.sqrt(0.1**2 / 2))  # the mean is over both
    why = "Without a spread there is no power: all seeds of a method score the same in study a-study (5 seeds) at 100,000 frames"
    assert comparison.gaps == (f"{why}, on {reacher}.",)
    out = printed(lite(reacher), capsys)
    (row,) = (line.split() for line in out.splitlines() if "a-study (5 seeds)" in line and "+0.1" in line)
    assert row[1:7] == ["+0.100", "–", "4", "–", "–", "–"]
    assert f"\nLeft out:\n  - {why}, on {reacher}.\n" in out
    assert "–: " not in out  # neither too few seeds nor MLR below its Baseline
    json.dumps(_as_dict(Plan(tuple(lite(reacher)), 2, compare(lite(reacher)), ()), ""), allow_nan=False)


def test_a_mean_is_over_the_tasks_with_scores_at_its_size(monkeypatch: pytest.MonkeyPatch):
    known(monkeypatch, ("dmcontrol/reacher-easy", 60_000, 400, 300), ("dmcontrol/walker-walk", 100_000, 320, 300))
    comparison = compare(lite(*(f"dmcontrol/{task}" for task in TASKS)))
    assert comparison.overall is not None
    assert comparison.overall.tasks == ("dmcontrol/reacher-easy", "dmcontrol/walker-walk")
    assert (comparison.overall.difference, comparison.planned) == (60, 6)
    assert [question.early for question in (*comparison.tasks, comparison.overall)] == [True, False, True]
    assert comparison.sources == (
        "study a-study (5 seeds) at 60,000 of 100,000 frames",
        "study a-study (5 seeds) at 100,000 frames",
    )
    without = "dmcontrol/finger-spin, dmcontrol/cartpole-swingup, dmcontrol/cheetah-run, dmcontrol/ball_in_cup-catch"
    assert comparison.gaps == (
        f"{FEW} 100,000 frames, on {without}: run a pilot of both methods, with 4 seeds or more.",
    )


def test_scores_of_two_sizes_or_scales_have_no_mean(monkeypatch: pytest.MonkeyPatch):
    known(
        monkeypatch, *((task, 20_000, 4, 3) for task in ("dmcontrol/reacher-easy", "atari/pong", "atari/battle_zone"))
    )
    no_mean = "There is no mean over these tasks: they differ in profile or scale."
    for lines in (
        lite("dmcontrol/reacher-easy", "atari/pong"),
        [*lite("dmcontrol/reacher-easy"), *(made_up(method=method) for method in PAIR)],
    ):
        comparison = compare(lines)
        assert (len(comparison.tasks), comparison.overall, comparison.gaps) == (2, None, (no_mean,))
    assert compare(lite("atari/pong", "atari/battle_zone")).overall is not None


def planned(*grid: str) -> list[Line]:
    """The lines of a sweep of cartpole-balance at lite size."""
    jobs = expand("dmcontrol-100k", seeds=4, tasks=["cartpole-balance"], profile="lite", grid=grid)
    return [replace(made_up(), label=group.label, recipe=group.recipe) for group in groups_of(jobs)]


def test_a_grid_with_the_profiles_own_value_has_the_profiles_mlr(monkeypatch: pytest.MonkeyPatch):
    known(monkeypatch, ("dmcontrol/cartpole-balance", 60_000, 500, 400))
    lines = planned("objective.every=1,2,4", "budget.frames=60000", "evaluation.episodes=20", "threads=2")
    assert [line.label for line in lines] == ["mlr every=1", "mlr every=2", "mlr every=4", "baseline"]
    costs = [replace(line, speed=replace(line.speed, update=place)) for place, line in enumerate(lines)]
    comparison = compare(costs)
    (question,) = comparison.tasks
    assert question.needed is not None
    assert question.seconds == pytest.approx(question.needed * (costs[1].seconds + costs[3].seconds))
    assert comparison.gaps == (
        "Of MLR, only runs with the lite profile's own values (mlr every=2) are compared on dmcontrol/cartpole-balance.",
    )


@pytest.mark.parametrize(
    ("grid", "whose"),
    [
        (["agent.auxiliary.learning_rate=1e-3", "objective.mask.cube=4,16,16"], "MLR"),
        (["objective.mask.ratio=0.3,0.6"], "MLR"),
        (["agent.batch_size=32"], "MLR and Baseline"),
        (["env.size=64"], "MLR and Baseline"),
    ],
)
def test_a_changed_method_or_environment_has_no_known_scores(
    grid: list[str], whose: str, monkeypatch: pytest.MonkeyPatch
):
    known(monkeypatch, ("dmcontrol/cartpole-balance", 60_000, 500, 400))
    keys = ", ".join(word.partition("=")[0] for word in grid)
    assert said(planned(*grid)) == [
        f"No scores of {whose} with other values than the lite profile's ({keys}) for dmcontrol/cartpole-balance: run a pilot."
    ]


def test_of_several_budgets_the_longest_counts(monkeypatch: pytest.MonkeyPatch):
    known(
        monkeypatch, ("dmcontrol/cartpole-balance", 20_000, 500, 400), ("dmcontrol/cartpole-balance", 60_000, 450, 400)
    )
    (question,) = compare(planned("budget.frames=20000,60000")).tasks
    assert question.source == "study a-study (5 seeds) at 60,000 frames"


@pytest.mark.parametrize(("task", "told"), [("dmcontrol/walker-walk", "10 seeds"), ("atari/pong", "3 seeds")])
def test_a_plan_says_that_the_papers_scores_are_estimates_of_its_own_runs(task: str, told: str):
    lines = [made_up(task, method) for method in ("mlr", "baseline")]
    note = _assumptions(lines, 1, compare(lines))[-1]
    assert told in note
    assert "for a longer budget it is a guess" in note
    nothing = Comparison((), (), None, 1, ())
    assert not any("seeds" in other for other in _assumptions(lines, 1, nothing))


# ── Timing ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_line_through_two_updates_is_drawn_out():
    assert timing.extended([(1, 2.0), (3, 4.0)], 10) == 11.0  # a constant of 1, and 1 for each
    assert timing.extended([(1, 1.0), (3, 6.0)], 10) == 20.0  # its constant would be negative: from the origin
    assert timing.extended([(1, 5.0), (3, 4.5)], 10) == 15.0  # noise
    assert timing.extended([(2, 4.0), (2, 4.0)], 10) == 20.0


def test_the_fastest_fifth_counts():
    assert timing.fastest_mean([5, 5, 9, 9, 1, 3, 9, 9, 9, 9]) == 2
    assert timing.fastest_mean([7]) == 7


def test_a_share_of_the_batches():
    sac = recipes.find("dmcontrol/walker-walk", "paper").agent.scaled(1 / 64)
    assert (sac.batch_size, sac.auxiliary.clips) == (8, 2)  # type: ignore[attr-defined]
    rainbow = recipes.find("atari/pong", "paper").agent
    assert rainbow.scaled(1 / 64).batch_size == 1
    assert rainbow.scaled(0.5).clips is None  # type: ignore[attr-defined]
    assert recipes.find("atari/pong", "lite").agent.scaled(0.5).clips == 4  # type: ignore[attr-defined]
    assert rainbow.scaled(1) == rainbow


def test_an_environment_is_played():
    reach = timing.measure_env(recipes.find("toy/reach"), 0.0, least=100)
    assert reach.spaces == Spaces((9, 32, 32), 2, discrete=False)
    assert reach.episode == 40
    assert 0 < reach.step < 0.1
    assert len(reach.replay) == 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["toy/reach", "toy/catch"])
def test_updates_too_large_to_try_are_tried_in_part(name: str, monkeypatch: pytest.MonkeyPatch):
    recipe = recipes.find(name)
    played = timing.measure_env(recipe, 0.0)
    cost = update_cost(recipe, played.spaces)
    full = timing.measure_updates(recipe, cost, played, 0.5)
    assert full.share == 1
    monkeypatch.setattr(timing, "QUICK", 0.0)
    part = timing.measure_updates(recipe, cost, played, 0.1)
    assert 1 / 16 <= part.share <= 1
    assert full.update / 10 < part.update < 10 * full.update  # on a noisy machine
    monkeypatch.setattr(timing, "free_memory", lambda: 0)
    assumed = timing.measure_updates(recipe, cost, played, 0.1)
    assert assumed.share == 0
    assert assumed.update > 0


def test_recipes_whose_updates_cost_about_the_same_are_timed_once():
    groups = groups_of(expand("dmcontrol-100k", seeds=2, tasks=["walker-walk", "cartpole-swingup"], profile="paper"))
    assert [(group.recipe.name, group.label, group.seeds) for group in groups] == [
        (f"dmcontrol/{task}", method, 2)
        for task in ("walker-walk", "cartpole-swingup")
        for method in ("mlr", "baseline")
    ]
    costs = [
        run_cost(group.recipe, Spaces((9, 100, 100), actions, discrete=False))
        for group, actions in zip(groups, (6, 6, 1, 1), strict=True)
    ]
    assert _kinds(groups, costs) == [0, 1, 0, 1]


def test_what_a_grid_asks_for_is_in_the_label():
    groups = groups_of(expand("toy/reach", seeds=3, grid=["objective.mask.ratio=0.3,0.5"]))
    labels = {group.label: group.seeds for group in groups}
    shared = groups_of(expand("toy/reach", seeds=3, grid=["agent.hidden=16", "objective.mask.ratio=0.3"]))
    assert [group.label for group in shared] == ["mlr", "baseline"]
    assert labels == {"mlr mask.ratio=0.3": 3, "mlr mask.ratio=0.5": 3, "baseline": 3}


# ── The command ───────────────────────────────────────────────────────────────────────────────────────────────────────

TINY = ["agent.batch_size=8", "agent.hidden=16", "agent.auxiliary.clips=1", "agent.encoder.filters=4"]


def typed(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", *words])
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_the_command_prints_a_plan_and_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert typed("toy/reach", *TINY, "--quick", "--seeds", "2", "--workers", "2") == 0
    out, err = capsys.readouterr()
    assert "Plan of toy/reach, lite profile: 4 runs on this machine, 2 at a time" in out
    assert out.splitlines()[2].split()[:4] == ["task", "method", "runs", "updates"]
    assert out.splitlines()[3].split()[:4] == ["toy/reach", "mlr", "2", "2,700"]
    assert "The power to tell MLR from its Baseline is unknown:" in out
    assert "No scores of MLR and Baseline with other values than the lite profile's (agent.batch_size, " in out
    assert out.rstrip().endswith(f"  maskrl sweep toy/reach {' '.join(TINY)} --seeds 2 --workers 2")
    assert "timing updates of toy/reach mlr" in err
    assert not list(tmp_path.iterdir())


def printed(lines: Sequence[Line], capsys: pytest.CaptureFixture[str]) -> str:
    _show("a-plan", Plan(tuple(lines), workers=2, comparison=compare(lines), notes=()), "maskrl sweep …")
    return capsys.readouterr().out


def test_what_the_scores_can_tell_is_a_row_for_each_task_and_one_for_their_mean(capsys: pytest.CaptureFixture[str]):
    lines = [made_up(f"dmcontrol/{task}", method) for task in TASKS for method in PAIR]
    rows = printed(lines, capsys).splitlines()
    (reacher,) = (row.split() for row in rows if row.startswith("dmcontrol/reacher-easy ") and "%" in row)
    assert reacher[1:2] + reacher[3:6] == ["+273", "4", "65%", "5"]
    assert [row.split()[4:5] for row in rows if row.startswith("mean of 6 tasks")] == [["+156"]]


def test_a_mean_says_of_how_many_planned_tasks_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    known(monkeypatch, ("dmcontrol/reacher-easy", 60_000, 400, 300), ("dmcontrol/walker-walk", 100_000, 320, 300))
    out = printed(lite(*(f"dmcontrol/{task}" for task in TASKS)), capsys)
    assert "\nmean of 2 of 6 tasks " in out
    assert "study a-study (5 seeds) at 60,000 of 100,000 frames\n" in out
    legend = "\nat … of …: the latest known scores are from before the end of the planned runs.\nLeft out:\n"
    assert legend in out
    assert f"\n  - {FEW} 100,000 frames, on dmcontrol/finger-spin, " in out
    whole = printed(lite("dmcontrol/walker-walk"), capsys)
    assert "study a-study (5 seeds) at 100,000 frames\n" in whole
    assert "at … of …" not in whole
    assert "Left out" not in whole


def test_the_mean_over_games_is_called_human_normalised(capsys: pytest.CaptureFixture[str]):
    lines = [made_up(f"atari/{game}", method) for game in ("alien", "pong") for method in PAIR]
    assert "\nmean of 2 games, human-normalised " in printed(lines, capsys)


def test_below_four_seeds_no_power_is_printed(capsys: pytest.CaptureFixture[str]):
    """With four seeds, 65 %; the legend gives the reason only where there is a dash."""
    reason = "–: there is no test below 4 runs of each method."
    for seeds, cell in ((3, "–"), (4, "65%")):
        out = printed([made_up(method=method, seeds=seeds) for method in PAIR], capsys)
        (row,) = (line.split() for line in out.splitlines() if "the paper (10 seeds)" in line)
        assert row[3:5] == [str(seeds), cell]
        assert (reason in out) == (seeds == 3)


def test_a_plan_without_known_scores_says_so(capsys: pytest.CaptureFixture[str]):
    out = printed([made_up()], capsys)
    assert "The power to tell MLR from its Baseline is unknown:\n  - The plan has no Baseline on" in out


@pytest.mark.slow
def test_a_plan_of_the_papers_tasks_starts_as_it_was_planned(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("dm_control")
    words = ["dmcontrol/reacher-easy", "budget.frames=20000", "--quick", "--seeds", "2", "--backend", "ray"]
    assert typed(*words) == 0
    out = capsys.readouterr().out
    assert "study lite-dmcontrol (5 seeds) at 20,000 frames" in out
    assert "maskrl sweep dmcontrol/reacher-easy budget.frames=20000 --seeds 2" in out
    assert out.count("--backend ray") == 1


@pytest.mark.slow
def test_a_plan_as_json(capsys: pytest.CaptureFixture[str]):
    assert typed("toy/reach", *TINY, "--quick", "--seeds", "2", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["runs"], len(made["lines"])) == (4, 2)
    assert (made["statistics"]["tasks"], made["statistics"]["overall"]) == ([], None)
    assert made["statistics"]["gaps"][0].endswith(" for toy/reach: run a pilot.")
    mlr = made["lines"][0]
    assert mlr["flops_per_update"] == pytest.approx(sum(mlr["flops_by_phase"].values()))
    assert made["work_hours"] == pytest.approx(sum(line["seeds"] * line["hours"] for line in made["lines"]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["toyy"], "did you mean toy?"),
        (["dmcontrol-10k"], "did you mean dmcontrol-100k?"),
        (["toy", "--seeds", "0"], "at least one"),
        (["toy", "agent.batchsize=3"], "did you mean"),
        (["toy", "--methods", "mrl"], "did you mean mlr?"),
    ],
)
def test_what_cannot_be_planned_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert typed(*words) == 2
    assert said in capsys.readouterr().err
