import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maskrl import recipes
from maskrl.analysis import statistics
from maskrl.analysis.scores import Scores, ScoresError
from maskrl.analysis.verdict import against_paper
from maskrl.cli import main
from maskrl.envs import ToyControl
from maskrl.recipes import resolve
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.schema import Recipe
from maskrl.report import MOST, Against, report
from maskrl.report.curves import mean_curve, thinned
from maskrl.report.document import Lines, Report, Section
from maskrl.report.exports import all_notes, as_csv
from maskrl.report.facts import all_facts, run_facts
from maskrl.report.groups import LITE
from maskrl.report.page import render, script_json
from maskrl.report.tables import Cell, Column, Table, number
from maskrl.runs.directory import Run
from tiny_runs import tiny_recipe, trained
from written import VERSIONS, write_run

TOY = {"mlr": (20.0, 22.0, 27.0, 23.0), "baseline": (10.0, 12.0, 13.0, 13.0)}
UNEVEN = (0, 9, -9, 0)  # what sets differences between seeds apart, so that they have a spread


def toy(seed: int = 1, method: str = "mlr", *overrides: str) -> Recipe:
    return resolve("toy/reach", [f"seed={seed}", *overrides], method=method)  # type: ignore[arg-type]


def control(task: str, seed: int, method: str = "mlr", profile: str = "paper", *overrides: str) -> Recipe:
    return resolve(f"dmcontrol/{task}", [f"seed={seed}", *overrides], profile=profile, method=method)  # type: ignore[arg-type]


def toy_runs(path: Path, seeds: int = 4) -> Path:
    for method, scores in TOY.items():
        for seed, score in enumerate(scores[:seeds], start=1):
            write_run(path / f"{method}-{seed}", toy(seed, method), {0: 1, 1500: score / 2, 3000: score})
    return path


def section(page: Report, title: str) -> Section:
    (found,) = [one for one in page.sections if one.title == title]
    return found


def table(page: Report, ending: str) -> Table:
    (found,) = [one for one in page.tables if one.key.endswith(ending)]
    return found


def texts(rows: Table) -> dict[str, dict[str, str]]:
    """First cell → heading → text."""
    names = [column.name for column in rows.columns]
    return {
        row[0].text: dict(zip(names, (cell.text for cell in row), strict=True)) for row in (*rows.rows, *rows.summary)
    }


def lines(page: Report, title: str) -> list[str]:
    """The sentences under headings that begin so."""
    blocks = [block for one in page.sections for block in one.blocks if isinstance(block, Lines)]
    return [line.text for block in blocks if block.title.startswith(title) for line in block.lines]


# ── Our runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_aggregates_are_those_of_the_normalised_scores(tmp_path: Path) -> None:
    page = report([toy_runs(tmp_path)])
    final = Scores.read(tmp_path).at().normalised()
    expected = statistics.estimate_all(final.matrix("mlr", ["toy/reach"]))
    row = next(row for row in table(page, "-aggregates").rows if row[0].text == "mlr")
    assert row[2].numbers == pytest.approx(tuple(map(float, expected["mean"])))
    assert row[5].numbers == pytest.approx(tuple(map(float, expected["optimality_gap"])))
    told = section(page, "Headline numbers").words[1]
    assert told.startswith("95 % bootstrap intervals from 50,000 stratified resamples")
    assert "with 4 runs on one task they hold the true mean in about 80 % of cases" in told  # see test_statistics.py
    (chart,) = [chart for chart in page.charts if chart.kind == "intervals"]
    assert chart.title == "Aggregates of normalised scores, with 95 % bootstrap intervals"
    (better,) = table(page, "-improvement").rows
    # Each of 20…27 beats each of 10…13, in every resample, too. That is no interval.
    assert [cell.text for cell in better] == ["mlr", "baseline", "1.000"]


def test_the_probability_of_improvement_has_its_interval(tmp_path: Path) -> None:
    file, scores = tmp_path / "scores.csv", {"mlr": (9, 20, 22, 27, 14), "baseline": (10, 12, 13, 21, 8)}
    rows = [f"{m},toy/reach,{seed},3000,{score}" for m, of_m in scores.items() for seed, score in enumerate(of_m)]
    file.write_text("\n".join(["method,task,seed,frames,score", *rows]))
    ((_, _, found),) = table(report([file]), "-improvement").rows
    x, y = (np.array([scores[method]]).T for method in ("mlr", "baseline"))
    assert found.numbers == pytest.approx(tuple(map(float, statistics.estimate_improvement(x, y))))
    assert re.fullmatch(r"0\.760 \(0\.\d{3} to [01]\.\d{3}\)", found.text)


def test_a_task_has_the_mean_and_the_spread_over_runs(tmp_path: Path) -> None:
    row = texts(table(report([toy_runs(tmp_path)]), "-scores"))["reach"]
    assert row == {"task": "reach", "mlr": "23.0 ± 2.9 (4)", "baseline": "12.0 ± 1.4 (4)"}  # the paper has no toys


def test_curves_have_every_seed_and_their_mean(tmp_path: Path) -> None:
    (chart,) = [chart for chart in report([toy_runs(tmp_path)]).charts if chart.kind == "curves"]
    mlr = chart.data["panels"][0]["methods"][0]
    assert mlr["name"] == "mlr"
    assert [seed["points"][-1] for seed in mlr["seeds"]] == [[3000, 20], [3000, 22], [3000, 27], [3000, 23]]
    assert mlr["mean"] == [[0, 1, 4], [1500, 11.5, 4], [3000, 23, 4]]


def test_a_mean_tells_of_how_many_curves_it_is() -> None:
    assert mean_curve([[(0, 1.0), (5, 3.0)], [(0, 2.0)]]) == [(0, 1.5, 2), (5, 3.0, 1)]


def test_times_are_not_rounded() -> None:
    assert thinned([(12_345_678, 1.23456789, 3)], 20) == [[12_345_678, 1.23457, 3]]


def test_a_long_curve_keeps_its_ends() -> None:
    points = [(time, float(time)) for time in range(1000)]
    kept = thinned(points, 20)
    assert len(kept) == 20
    assert (kept[0], kept[-1]) == ([0, 0], [999, 999])
    assert thinned(points[:20], 20) == [list(point) for point in points[:20]]


def test_the_profile_is_the_share_of_runs_above(tmp_path: Path) -> None:
    (chart,) = [chart for chart in report([toy_runs(tmp_path)]).charts if chart.kind == "profile"]
    scores = Scores.read(tmp_path).at().normalised().values("mlr", "toy/reach")
    value = chart.data["methods"][0]["value"]
    shares = [(scores > threshold).mean() for threshold in chart.data["thresholds"]]
    assert value == pytest.approx(shares, abs=1e-4)


def test_what_differs_between_methods_is_told(tmp_path: Path) -> None:
    rows = texts(table(report([toy_runs(tmp_path)]), "what-was-run"))
    assert "objective: none -> mlr" in rows["mlr"]["what differs"]
    assert rows["baseline"]["what differs"] == "the others are compared with it"
    assert rows["mlr"]["seeds"] == "1–4"


def test_p_values_of_several_tasks_are_corrected(tmp_path: Path) -> None:
    for task, gain in (("walker-walk", 300), ("cheetah-run", 30), ("finger-spin", 0)):
        for seed, (score, by) in enumerate(zip((300, 320, 350, 330), UNEVEN, strict=True), start=1):
            for method in ("mlr", "baseline"):
                ours = score + (gain + by if method == "mlr" else 0)
                write_run(tmp_path / task / method / str(seed), control(task, seed, method), {100_000: ours})
    rows = {row[0].text: row for row in table(report([tmp_path]), "-mlr-baseline").rows}
    p, corrected = ({task: rows[task][index].numbers[0] for task in rows} for index in (3, 4))
    assert corrected["walker-walk"] == pytest.approx(3 * p["walker-walk"])  # the smallest of three
    assert corrected["cheetah-run"] == pytest.approx(2 * p["cheetah-run"])
    assert corrected["finger-spin"] == p["finger-spin"] == 1.0


def test_p_values_of_several_methods_are_corrected_together(tmp_path: Path) -> None:
    baseline, gains = (10.0, 12.0, 13.0, 14.0), {"x": (1, 2, 3, 2), "y": (1, 2, 4, 2), "z": (0, 3, -3, 0)}
    others = {name: [sum(pair) for pair in zip(baseline, by, strict=True)] for name, by in gains.items()}
    file = tmp_path / "scores.csv"
    file.write_text(
        rows_of(**{m: dict(enumerate(own, start=1)) for m, own in {**others, "baseline": baseline}.items()})
    )
    page = report([file])
    found = {name: table(page, f"-{name}-baseline") for name in gains}
    p, corrected = ({name: found[name].rows[0][index].numbers[0] for name in gains} for index in (3, 4))
    # t of x is 2 / √(2/3 / 4), of y 2.25 / √(19/12 / 4), and of z 0.
    assert p == pytest.approx({"x": 0.0163, "y": 0.0374, "z": 1.0}, abs=0.0001)
    assert corrected == pytest.approx({"x": 3 * p["x"], "y": 2 * p["y"], "z": p["z"]})
    assert [(found[name].rows[0][1].text, found[name].rows[0][1].note) for name in gains] == [
        ("above", ""),
        ("above", "not after the correction for several tests"),
        ("no difference shows", ""),
    ]
    notes = {found[name].notes for name in gains}
    assert len(notes) == 1
    assert (
        "p, Holm is corrected for all 3 tests against baseline: those of every method on every task." in notes.pop()[0]
    )
    assert page.in_short.startswith(
        "Of 3 comparisons, 2 are above, in 1 no difference shows. Verdicts are not corrected for several tests. "
    )


def test_one_test_has_nothing_to_correct(tmp_path: Path) -> None:
    found = table(report([toy_runs(tmp_path)]), "-mlr-baseline")
    assert [column.name for column in found.columns][3:5] == ["p", "effect size"]
    assert found.notes[1].startswith("The verdict uses p: above or below if it is less than 0.05.")


@pytest.mark.parametrize(
    ("first", "test"),
    [(1, "of the paired t test, because both have the same seeds"), (2, "Welch’s")],
)
def test_a_table_says_which_test_it_has(tmp_path: Path, first: int, test: str) -> None:
    for seed, by in enumerate(UNEVEN, start=1):
        write_run(tmp_path / f"b{seed}", control("walker-walk", seed, "baseline"), {100_000: 300 + by})
        write_run(tmp_path / f"m{seed}", control("walker-walk", seed + first - 1), {100_000: 500 + seed})
    notes = table(report([tmp_path]), "-mlr-baseline").notes
    assert notes[0] == f"p is {test}. The effect size is Cohen’s d."


def rows_of(**scores: dict[int, float]) -> str:
    """A CSV of toy/reach: method → seed → score."""
    rows = [f"{method},toy/reach,{seed},3000,{score}" for method, own in scores.items() for seed, score in own.items()]
    return "\n".join(["method,task,seed,frames,score", *rows])


def test_a_comparison_shows_the_runs_of_both_if_they_differ(tmp_path: Path) -> None:
    file, few = tmp_path / "scores.csv", {1: 10.0, 2: 12.0, 3: 13.0}
    file.write_text(rows_of(mlr={1: 20.0, 2: 22.0, 3: 27.0, 4: 23.0, 5: 24.0}, baseline=few))
    found = table(report([file]), "-mlr-baseline")
    assert (found.columns[-1].name, found.rows[0][-1].text, found.rows[0][-1].numbers) == ("runs", "5 and 3", (5, 3))
    assert all_notes(found) == ["Nothing is tested: there is no test below 4 runs of each."]
    assert as_csv(found).splitlines()[0].endswith(",runs,runs of baseline")
    file.write_text(rows_of(mlr={7: 20.0, 8: 22.0, 9: 27.0}, baseline=few))
    assert table(report([file]), "-mlr-baseline").rows[0][-1].text == "3"


@pytest.mark.parametrize(("longer", "shorter"), [("mlr", "baseline"), ("baseline", "mlr")])
def test_runs_without_a_partner_of_the_same_seed_are_told_and_both_do_not_have_the_same_seeds(
    tmp_path: Path, longer: str, shorter: str
) -> None:
    file = tmp_path / "scores.csv"
    more = dict(enumerate((20.0, 22.0, 27.0, 23.0, 24.0, 25.0), start=1))
    file.write_text(rows_of(**{longer: more, shorter: dict(enumerate((10.0, 12.0, 13.0, 13.0), start=1))}))
    found = table(report([file]), "-mlr-baseline")
    assert (found.rows[0][-1].text, found.rows[0][-1].numbers) == ("4", (4, 4))
    assert found.notes[0].startswith("p is of the paired t test, on the seeds that both have. ")
    assert "runs of reach: 2 runs without a partner of the same seed left out" in all_notes(found)


def test_both_have_the_same_seeds_only_if_every_task_is_tested(tmp_path: Path) -> None:
    for seed, by in enumerate(UNEVEN, start=1):
        write_run(tmp_path / f"b{seed}", control("walker-walk", seed, "baseline"), {100_000: 300 + by})
        write_run(tmp_path / f"m{seed}", control("walker-walk", seed), {100_000: 500 + seed})
    write_run(tmp_path / "bc", control("cheetah-run", 1, "baseline"), {100_000: 300})
    for seed in (2, 3):
        write_run(tmp_path / f"mc{seed}", control("cheetah-run", seed), {100_000: 500})
    found = table(report([tmp_path]), "-mlr-baseline")
    rows = texts(found)
    assert {task: row["runs"] for task, row in rows.items()} == {
        "walker-walk": "4",
        "cheetah-run": "2 and 1",
        "dmcontrol: mean of 2 tasks": "2 and 1",
    }
    assert found.notes[0].startswith("p is of the paired t test, on the seeds that both have. ")
    reason = "there is no test below 4 runs of each"
    assert all_notes(found)[-1] == f"difference of cheetah-run, dmcontrol: mean of 2 tasks: {reason}"


def test_a_table_without_tests_for_several_reasons_gives_each_at_its_task(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    rows = [f"drq,{task},{seed},500000,{900 + seed}" for task in ("walker-walk", "reacher-easy") for seed in (1, 2)]
    file.write_text("\n".join(["method,task,seed,frames,score", *rows]))
    found = table(report([file]), "-drq-paper")
    assert found.notes == ("Nothing is tested.",)
    notes = {row[0].text: row[2].note for row in found.rows}
    assert notes["reacher-easy"] == "the paper does not print its number of seeds"
    assert notes["walker-walk"].startswith("the paper's spread is misprinted")


def test_a_table_has_the_numbers_of_the_sentence(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text(rows_of(mlr={1: 501, 2: 542, 3: 473, 4: 612}, baseline={1: 500, 2: 540, 3: 470, 4: 610}))
    page = report([file])
    (row,) = table(page, "-mlr-baseline").rows
    (claim,) = [line.text for group in page.headline for line in group.lines]
    # The differences are 1, 2, 3 and 2: their mean has a standard error of √(2/3 / 4), and 3.182 of them are 1.3.
    assert (row[2].text, row[3].text) == ("+2.0 (0.7 to 3.3)", "0.016")
    assert "; difference +2.0, 95 % interval 0.7 to 3.3, p = 0.016." in claim
    assert row[2].numbers == pytest.approx((2, 2 - 1.299, 2 + 1.299), abs=0.001)


@pytest.mark.parametrize("seeds", [2, 4])
def test_a_comparison_has_one_verdict_everywhere_on_the_page(tmp_path: Path, seeds: int) -> None:
    page = report([toy_runs(tmp_path, seeds)])
    ((_, cell, *_),) = table(page, "-mlr-baseline").rows
    (claim,) = [line for group in page.headline for line in group.lines]
    told = section(page, "Where it does not help")
    words, sentences = (
        told.words,
        [line.text for block in told.blocks if isinstance(block, Lines) for line in block.lines],
    )
    if seeds == 4:
        assert (cell.text, cell.note) == ("above", "")
        assert claim.text.startswith("toy/reach: mlr is above baseline. ")
        assert words == ("mlr is above baseline on 1 of 1 task and below on 0; on 0 no difference shows.",)
        assert sentences == []
    else:
        assert (cell.text, cell.mark) == ("not enough seeds", "unsure")
        assert claim.text.startswith("toy/reach: not enough seeds to compare mlr and baseline. ")
        assert claim.text.endswith("there is no test below 4 runs of each.")
        assert words == (
            "mlr is above baseline on 0 of 1 task and below on 0; on 0 no difference shows, and 1 has no verdict.",
        )
        assert sentences == [claim.text]
        assert all_notes(table(page, "-mlr-baseline")) == ["Nothing is tested: there is no test below 4 runs of each."]


def test_the_summary_begins_with_a_sentence_that_counts_the_verdicts(tmp_path: Path) -> None:
    page = report([toy_runs(tmp_path / "enough", 4)])
    assert page.in_short == "Of 1 comparison, 1 is above. Every run is finished."
    (claim,) = [line for group in page.headline for line in group.lines]
    assert claim.text.startswith(f"{claim.lead}. ")
    toy_runs(tmp_path / "few", 2)
    write_run(tmp_path / "few" / "late", toy(5), {1500: 10}, status="running")
    unsure = report([tmp_path / "few"])
    assert (
        unsure.in_short
        == "Of 1 comparison, 1 is without a verdict. 1 unfinished run, 1 missing run and 2 problems: see Gaps."
    )
    alone = report([write_run(tmp_path / "alone", toy(1), {3000: 10}).parent / "alone"])
    assert alone.in_short == "Nothing is compared yet. Every run is finished."


def test_the_summary_counts_tasks_that_have_no_mean(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    tasks = {"own/high": 20, "own/low": -20, "own/same": 0}
    rows = [
        f"{method},{task},{seed},3000,{(change + by if method == 'mlr' else 0) + 50 + seed}"
        for task, change in tasks.items()
        for method in ("mlr", "baseline")
        for seed, by in enumerate(UNEVEN)
    ]
    file.write_text("\n".join(["method,task,seed,frames,score", *rows]))
    page = report([file])
    assert page.in_short.startswith(
        "Of 3 comparisons, 1 is above, 1 is below, in 1 no difference shows. Verdicts are not "
    )
    (claim,) = [line.text for group in page.headline for line in group.lines]
    assert claim == "mlr is above baseline on 1 of 3 tasks and below on 1; on 1 no difference shows."


# ── Beside the paper ──────────────────────────────────────────────────────────────────────────────────────────────────


def reacher(path: Path, profile: str = "paper") -> Path:
    for seed, score in enumerate((760, 880, 900, 848), start=1):
        recipe = control("reacher-easy", seed, "mlr", profile, "budget.frames=100000")
        write_run(path / str(seed), recipe, {100_000: score})
    return path


def test_the_papers_column_and_the_verdict_stand_beside_ours(tmp_path: Path) -> None:
    page = report([reacher(tmp_path)])
    row = texts(table(page, "-scores"))["reacher-easy"]
    assert row["paper: MLR"] == "866 ± 103 (10)"
    assert row["mlr: verdict"] == "no difference shows"
    assert row["paper: Baseline"] == "593 ± 118 (10)"
    (verdict,) = against_paper(Scores.read(tmp_path), "mlr").tasks
    assert [line.text for group in page.headline for line in group.lines] == [verdict.sentence]
    (chart,) = [chart for chart in page.charts if chart.kind == "curves"]
    assert {(band["label"], band["at"], band["mean"], band["std"]) for band in chart.data["panels"][0]["bands"]} == {
        ("paper: MLR", 100_000, 866, 103),
        ("paper: Baseline", 100_000, 593, 118),
    }


def test_the_paper_stands_beside_runs_that_have_no_score_yet(tmp_path: Path) -> None:
    write_run(tmp_path / "1", control("reacher-easy", 1), {50_000: 500}, status="running")
    row = texts(table(report([tmp_path]), "-scores"))["reacher-easy"]
    assert (row["mlr"], row["paper: MLR"]) == ("–", "866 ± 103 (10)")


def test_the_gain_over_the_baseline_says_nothing_about_runs_beside_the_paper(tmp_path: Path) -> None:
    for seed, by in enumerate(UNEVEN, start=1):
        for method, score in (("mlr", 480), ("baseline", 470)):
            write_run(tmp_path / method / str(seed), control("cheetah-run", seed, method), {100_000: score + by * seed})
    page = report([tmp_path])
    assert re.fullmatch(r"not enough seeds: about \d+ needed", table(page, "-mlr-baseline").rows[0][1].text)
    ((_, verdict, *_, runs),) = table(page, "-mlr-paper").rows
    assert (verdict.text, runs.text) == ("not enough seeds", "4 and 10")
    assert texts(table(page, "-scores"))["cheetah-run"]["mlr: verdict"] == "not enough seeds"
    assert (
        table(page, "-mlr-paper")
        .notes[1]
        .endswith("needs enough seeds to detect a difference as large as the paper’s gain of MLR over its Baseline.")
    )


def test_the_spread_of_the_papers_three_seeds_is_no_band(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    rows = [f"mlr,{task},1,100000,500" for task in ("atari/assault", "walker-walk")]
    file.write_text("\n".join(["method,task,seed,decisions,score", *rows[:1]]))
    (chart,) = [chart for chart in report([file]).charts if chart.kind == "curves"]
    bands = {band["label"]: band for band in chart.data["panels"][0]["bands"]}
    assert bands["paper: MLR"]["mean"] > 0
    assert {band["std"] for band in bands.values()} == {None}
    file.write_text("\n".join(["method,task,seed,frames,score", *rows[1:]]))
    page = report([file])
    (chart,) = [chart for chart in page.charts if chart.kind == "curves"]
    assert {band["std"] for band in chart.data["panels"][0]["bands"]} == {114, 281}
    (told,) = [one.words for one in page.sections if one.title == "Learning curves"]
    assert "a spread, not a confidence interval. Below 4 seeds there is no band." in told[1]


def test_the_lite_profile_is_not_comparable_wherever_the_paper_stands_beside_it(tmp_path: Path) -> None:
    page = report([reacher(tmp_path, "lite")])
    scores = table(page, "-scores")
    assert texts(scores)["reacher-easy"]["mlr: verdict"] == LITE == "not comparable: lite profile"
    assert {column.note for column in scores.columns if column.name.startswith("paper")} == {LITE}
    assert any(LITE in note for note in scores.notes)
    assert not any(one.key.endswith("-paper") for one in page.tables)
    assert [line.text for group in page.headline for line in group.lines] == [f"Beside the paper: {LITE}."]
    (chart,) = [chart for chart in page.charts if chart.kind == "curves"]
    assert chart.data["apart"] == LITE
    mixed = report([tmp_path], mixed=True)  # not even then
    assert texts(table(mixed, "-scores"))["reacher-easy"]["mlr: verdict"] == LITE


def test_another_protocol_than_the_papers_is_named(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        recipe = control("reacher-easy", seed, "mlr", "paper", "evaluation.episodes=3")
        write_run(tmp_path / str(seed), recipe, {100_000: 800 + seed})
    row = texts(table(report([tmp_path]), "-scores"))["reacher-easy"]
    assert row["mlr: verdict"] == "not comparable: evaluation.episodes: 10 -> 3"


def test_without_the_paper_there_is_none_of_it(tmp_path: Path) -> None:
    page = report([reacher(tmp_path)], against="none")
    assert [column.name for column in table(page, "-scores").columns] == ["task", "mlr"]
    (chart,) = [chart for chart in page.charts if chart.kind == "curves"]
    assert chart.data["panels"][0]["bands"] == []


@pytest.mark.parametrize(("profile", "against"), [("lite", "published"), ("paper", "none")])
def test_the_papers_gain_is_no_yardstick_of_what_is_not_held_against_it(
    tmp_path: Path, profile: str, against: Against
) -> None:
    for seed, score in enumerate((780, 800, 800, 820), start=1):
        for method in ("mlr", "baseline"):
            recipe = control("cartpole-swingup", seed, method, profile, "budget.frames=100000")
            write_run(tmp_path / method / str(seed), recipe, {100_000: score})
    page = report([tmp_path], against=against)
    (row,) = table(page, "-mlr-baseline").rows
    assert row[1].text == "no difference shows"
    assert not any("paper’s gain of MLR" in note for note in table(page, "-mlr-baseline").notes)
    assert not any("seeds" in line.text for group in page.headline for line in group.lines)


def test_the_paper_does_not_stand_beside_a_mixture_of_budgets(tmp_path: Path) -> None:
    for seed, at in enumerate((100_000, 100_000, 500_000, 500_000), start=1):
        recipe = control("reacher-easy", seed, "mlr", "paper", f"budget.frames={at}")
        write_run(tmp_path / str(seed), recipe, {at: 800 + seed})
    page = report([tmp_path], mixed=True)
    assert [column.name for column in table(page, "-scores").columns] == ["task", "mlr"]
    assert not any(one.key.endswith("-paper") for one in page.tables)


def test_the_baseline_may_be_spelt_as_in_the_paper(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    rows = [
        f"{m},reacher-easy,{s},100000,{mean + by * s}"
        for m, mean, by in (("MLR", 900, 3), ("Baseline", 500, 5))
        for s in (1, 2, 3, 4)
    ]
    file.write_text("\n".join(["method,task,seed,frames,score", *rows]))
    page = report([file])
    told = section(page, "Where it does not help").words
    assert told == ("MLR is above Baseline on 1 of 1 task and below on 0; on 0 no difference shows.",)
    assert [row[1].text for row in table(page, "-improvement").rows] == ["Baseline"]
    alone = tmp_path / "alone.csv"
    alone.write_text("\n".join(["method,task,seed,frames,score", *rows[4:]]))
    assert section(report([alone]), "Where it does not help").words[0].startswith("There are only runs of the baseline")


def test_what_differs_is_told_from_a_baseline_of_any_spelling(tmp_path: Path) -> None:
    write_run(tmp_path / "1", toy(), {3000: 20})
    file = tmp_path / "scores.csv"
    file.write_text("method,task,seed,frames,score\nBaseline,toy/reach,1,3000,9\n")
    rows = texts(table(report([tmp_path / "1", file]), "what-was-run"))
    assert rows["mlr"]["what differs"] == "unknown: Baseline is from a CSV"


def test_of_the_recipes_of_a_method_the_first_is_compared(tmp_path: Path) -> None:
    for seed, every in ((1, 1000), (2, 500)):
        write_run(tmp_path / str(seed), toy(seed, "mlr", f"evaluation.every={every}"), {3000: 20})
    write_run(tmp_path / "b", toy(1, "baseline"), {3000: 20})
    (text,) = [row[-1].text for row in table(report([tmp_path]), "what-was-run").rows if row[0].text == "mlr"]
    assert "-> 1000" in text
    assert "-> 500" not in text


def test_scores_can_be_taken_at_another_time(tmp_path: Path) -> None:
    for seed, score in enumerate((760, 880, 900), start=1):
        recipe = control("reacher-easy", seed, "mlr", "paper", "budget.frames=500000")
        write_run(tmp_path / str(seed), recipe, {100_000: score, 500_000: 950})
    assert texts(table(report([tmp_path]), "-scores"))["reacher-easy"]["paper: MLR"] == "957 ± 41 (10)"
    page = report([tmp_path], at=100_000)
    row = texts(table(page, "-scores"))["reacher-easy"]
    assert (row["mlr"], row["paper: MLR"]) == ("847 ± 76 (3)", "866 ± 103 (10)")
    assert page.subtitle == "dmcontrol/reacher-easy, scores taken at 100,000 frames."
    runs = table(page, "runs")
    (told, *_) = texts(runs).values()
    assert (told["reached"], told["score at 100,000 frames"]) == ("500,000", "760")
    assert runs.columns[5].note == "by the run so far, not when the score was taken"
    plain = table(report([tmp_path]), "runs").columns
    assert ([column.name for column in plain[-4:]], plain[5].note) == (["reached", "of", "unit", "score"], "")


def test_the_time_of_scores_has_the_unit_of_each_budget(tmp_path: Path) -> None:
    games, toys = tmp_path / "games.csv", tmp_path / "toys.csv"
    games.write_text("method,task,seed,decisions,score\nmlr,atari/pong,1,3000,20\n")
    toys.write_text(rows_of(mlr={1: 20.0}))
    assert report([games], at=3000).subtitle.endswith("scores taken at 3,000 decisions.")
    assert report([games, toys], at=3000).subtitle.endswith("scores taken at 3,000 frames or decisions.")


def test_rows_of_an_ablation_stand_under_the_papers_label(tmp_path: Path) -> None:
    for seed in (1, 2):
        for label, score in (("MLR-S", 500), ("MLR", 600), ("Baseline", 400)):
            recipe = recipes.ablation(f"masking/{label}", "dmcontrol/walker-walk", "paper")
            write_run(tmp_path / label / str(seed), with_overrides(recipe, [f"seed={seed}"]), {100_000: score + seed})
    rows = texts(table(report([tmp_path]), "-ablation-masking"))
    assert list(rows) == ["Baseline", "MLR-S", "MLR-T", "MLR-Pixel", "MLR"]
    assert rows["MLR-S"]["walker-walk"] == "502 ± 1 (2)"
    assert rows["MLR-S"]["paper: walker-walk"] == "556 ± 189 (5)"
    assert rows["MLR-T"]["walker-walk"] == "–"
    assert rows["MLR"]["paper: mean"] == "767.3"


def test_pretrained_encoders_are_one_method_wherever_they_lie(tmp_path: Path) -> None:
    for seed in (1, 2):
        for task in ("cheetah-run", "reacher-easy"):
            file = f"encoder_from=somewhere/dmcontrol/{task}/seed-{seed}/encoder.safetensors"
            write_run(
                tmp_path / task / str(seed), control(task, seed, "baseline", "paper", file), {100_000: 500 + seed}
            )
    page = report([tmp_path])
    assert page.methods == ("baseline encoder_from=somewhere/{task}/seed-{seed}/encoder.safetensors",)
    row = texts(table(page, "-ablation-pretraining"))["MLR-Pretraining"]
    assert (row["cheetah-run"], row["paper: cheetah-run"]) == ("502 ± 1 (2)", "468 ± 27 (5)")


def test_misprints_of_the_paper_are_marked(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    rows = [f"{method},walker-walk,{seed},500000,{900 + seed}" for method in ("mlr", "drq") for seed in (1, 2)]
    file.write_text("\n".join(["method,task,seed,frames,score", *rows]))
    assert texts(table(report([file]), "-scores"))["walker-walk"]["paper: DrQ"] == "921 ± 4,575 *"
    recipe = recipes.ablation("variants/MLR w.o. ActTok", "dmcontrol/walker-walk", "paper")
    write_run(tmp_path / "run", recipe, {100_000: 600})
    rows_of_study = texts(table(report([tmp_path / "run"]), "-ablation-variants"))
    assert rows_of_study["MLR w.o. ActTok"]["paper: median"] == "824.2 *"


# ── Where it does not help ────────────────────────────────────────────────────────────────────────────────────────────


def test_tasks_where_the_objective_hurts_or_cannot_be_told_are_listed(tmp_path: Path) -> None:
    changes = {"walker-walk": 300, "cheetah-run": -200, "finger-spin": 5}
    for task, change in changes.items():
        for seed, (score, by) in enumerate(zip((300, 320, 350, 330), UNEVEN, strict=True), start=1):
            write_run(tmp_path / task / f"b{seed}", control(task, seed, "baseline"), {100_000: score})
            write_run(tmp_path / task / f"m{seed}", control(task, seed), {100_000: score + change + by})
    found = section(report([tmp_path]), "Where it does not help")
    (told,) = found.words
    assert (
        told == "mlr is above baseline on 1 of 3 tasks and below on 1; on 0 no difference shows, and 1 has no verdict."
    )
    (block,) = [block for block in found.blocks if isinstance(block, Lines)]
    assert [(line.mark, line.text.split(":")[0]) for line in block.lines] == [
        ("below", "dmcontrol/cheetah-run"),
        ("unsure", "dmcontrol/finger-spin"),
    ]


def test_without_a_baseline_nothing_is_claimed(tmp_path: Path) -> None:
    write_run(tmp_path / "1", toy(), {3000: 20})
    (told,) = section(report([tmp_path]), "Where it does not help").words
    assert told.startswith("There are no runs of the baseline here")


# ── Protocols ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def two_budgets(path: Path) -> Path:
    for seed in (1, 2):
        write_run(path / f"short-{seed}", toy(seed), {3000: 20})
        write_run(path / f"long-{seed}", toy(seed + 2, "mlr", "budget.frames=6000"), {6000: 26})
    return path


def test_runs_of_different_protocols_are_kept_apart(tmp_path: Path) -> None:
    page = report([two_budgets(tmp_path)])
    assert [group.title for group in page.headline] == ["Toys · 6,000 frames", "Toys · 3,000 frames"]
    assert [texts(one)["reach"]["mlr"] for one in page.tables if one.key.endswith("-scores")] == [
        "26.0 ± 0.0 (2)",
        "20.0 ± 0.0 (2)",
    ]
    assert "--mixed" in section(page, "What was run").words[0]


def test_a_mixture_must_be_asked_for_and_shows_the_difference(tmp_path: Path) -> None:
    page = report([two_budgets(tmp_path)], mixed=True)
    assert texts(table(page, "-scores"))["reach"]["mlr"] == "23.0 ± 3.5 (4)"
    (line,) = lines(page, "Differences between the mixed runs")
    assert "budget.frames is" in line


def test_what_else_sets_groups_apart_is_in_their_names(tmp_path: Path) -> None:
    for seed, mujoco in ((1, "3.3.6"), (2, "3.4.0")):
        versions = VERSIONS | {"mujoco": mujoco}
        write_run(tmp_path / str(seed), control("walker-walk", seed), {100_000: 500}, versions=versions)
    assert {group.title for group in report([tmp_path]).headline} == {
        "DMControl · paper profile · 100,000 frames · mujoco=3.3.6",
        "DMControl · paper profile · 100,000 frames · mujoco=3.4.0",
    }


@pytest.mark.parametrize(
    ("profiles", "name"),
    [
        (("lite",), "lite and unknown profiles"),
        (("paper",), "paper and unknown profiles"),
        (("lite", "paper"), "mixed profiles"),
        ((), "CSV"),
    ],
)
def test_a_group_is_named_by_the_profiles_that_are_known(tmp_path: Path, profiles: tuple[str, ...], name: str) -> None:
    for seed, profile in enumerate(profiles):
        write_run(tmp_path / profile, control("reacher-easy", seed, "mlr", profile), {100_000: 500})
    file = tmp_path / "scores.csv"
    file.write_text("method,task,seed,frames,score\nother,reacher-easy,1,100000,600\n")
    (group,) = report([*(tmp_path / profile for profile in profiles), file], mixed=True).headline
    assert group.title == f"DMControl · {name} · 100,000 frames"


def test_suites_are_never_averaged_together(tmp_path: Path) -> None:
    write_run(tmp_path / "toy", toy(), {3000: 20})
    write_run(tmp_path / "control", control("walker-walk", 1), {100_000: 500})
    for mixed in (False, True):
        titles = [group.title for group in report([tmp_path], mixed=mixed).headline]
        assert titles == ["DMControl · paper profile · 100,000 frames", "Toys · 3,000 frames"]


@pytest.mark.parametrize(("groups", "words"), [(5, "1 more group of runs"), (6, "2 more groups of runs")])
def test_further_groups_are_counted(tmp_path: Path, groups: int, words: str) -> None:
    for frames in range(3000, 3000 + groups):
        write_run(tmp_path / str(frames), toy(1, "mlr", f"budget.frames={frames}"), {frames: 20})
    assert f"<summary>{words}</summary>" in render(report([tmp_path]))


# ── Gaps ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_missing_seeds_and_tasks_are_listed(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path / f"m{seed}", control("walker-walk", seed), {100_000: 600})
        write_run(tmp_path / f"c{seed}", control("cheetah-run", seed), {100_000: 400})
    write_run(tmp_path / "b2", control("walker-walk", 2, "baseline"), {100_000: 500})
    assert lines(report([tmp_path]), "Missing runs") == [
        "DMControl · paper profile · 100,000 frames: baseline has no runs on cheetah-run.",
        "DMControl · paper profile · 100,000 frames: baseline lacks seeds 1, 3, which others have, on walker-walk.",
    ]


def test_failed_interrupted_running_and_unbegun_runs_are_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "failed", toy(1), {1000: 5}, status="failed", why="critic/loss is not finite")
    stopped = write_run(tmp_path / "stopped", toy(2), {1000: 5}, status="running")
    (stopped / "lock").write_text("process 4194999 on this machine since yesterday\n")  # which nobody holds
    going = write_run(tmp_path / "going", toy(3), {2000: 5}, status="running")
    (write_run(tmp_path / "new", toy(4), {}) / "status.json").unlink()
    write_run(tmp_path / "done", toy(5), {3000: 5})
    with Run.open(going).locked():
        page = report([tmp_path])
    told = {line.split(": ")[0].split(", seed ")[1][0]: line.split("): ")[1] for line in lines(page, "Failed")}
    assert told == {
        "1": "failed: critic/loss is not finite, at 1,000 of 3,000 frames.",
        "2": "interrupted, at 1,000 of 3,000 frames.",
        "3": "running, at 2,000 of 3,000 frames.",
        "4": "not begun, at 0 of 3,000 frames.",
    }
    assert page.facts[3] == ("4", "unfinished")
    marks = {row[0].text.rpartition("/")[2]: row[4].mark for row in table(page, "runs").rows}
    assert (marks["done"], marks["failed"], marks["going"]) == ("good", "bad", "warn")


def test_a_failed_run_with_the_seed_of_a_finished_one_is_told(tmp_path: Path) -> None:
    write_run(tmp_path / "a", toy(1), {3000: 20})
    write_run(tmp_path / "b", toy(1), {}, status="failed", why="out of memory")
    page = report([tmp_path])
    assert (page.facts[0], page.facts[3]) == (("2", "runs"), ("1", "unfinished"))
    (told,) = lines(page, "Failed")
    assert told == f"mlr on toy/reach, seed 1 ({tmp_path / 'b'}): failed: out of memory, at 0 of 3,000 frames."
    assert [row[4].text for row in table(page, "runs").rows] == ["done", "failed"]


def test_a_run_that_repeats_another_one_is_in_no_table(tmp_path: Path) -> None:
    write_run(tmp_path / "a", toy(1), {3000: 20})
    write_run(tmp_path / "b", toy(1), {3000: 20})
    write_run(tmp_path / "c", toy(1, "mlr", "budget.frames=1000"), {1000: 10})  # another protocol
    page = report([tmp_path])
    assert [Path(row[0].text).name for row in table(page, "runs").rows] == ["a", "c"]
    assert page.facts[0] == ("2", "runs")


def test_runs_of_a_csv_are_counted_beside_those_of_directories(tmp_path: Path) -> None:
    write_run(tmp_path / "a", toy(1), {3000: 20})
    file = tmp_path / "scores.csv"
    file.write_text("method,task,seed,frames,score\nmlr,toy/reach,2,3000,20\n")
    assert report([tmp_path / "a", file]).facts[0] == ("2", "runs")


def test_a_torn_last_line_does_not_hide_how_far_a_run_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", toy(), {1000: 5, 2000: 6}, status="running")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "update", "frames": 25')
    assert run_facts(run).reached == 2000


def test_every_problem_of_reading_is_on_the_page_and_the_rest_is_made(tmp_path: Path) -> None:
    write_run(tmp_path / "good", toy(1), {3000: 20})
    write_run(tmp_path / "again", toy(1), {3000: 21})
    write_run(tmp_path / "unevaluated", toy(2), {})
    write_run(tmp_path / "nan", toy(3), {1500: 10, 3000: float("nan")})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "recipe.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    other = tmp_path / "other.csv"
    other.write_text("name,value\na,1\n")
    page = report([tmp_path, tmp_path / "empty", other])
    problems = "\n".join(page.problems)
    for sentence in (
        "exists twice",
        "has no evaluation",
        "not a finite number",
        "cannot be read",
        "holds no run",
        "there is no method",
    ):
        assert sentence in problems
    assert lines(page, "Problems") == list(page.problems)
    assert texts(table(page, "-scores"))["reach"]["mlr"] == "21.0 (1)"  # "again" comes first


def test_a_task_without_a_scale_is_not_a_problem(tmp_path: Path) -> None:
    write_run(tmp_path / "1", toy(1), {3000: 20})
    file = tmp_path / "scores.csv"
    file.write_text("method,task,seed,frames,score\nmlr,own/high,1,3000,20\nmlr,own/low,1,3000,5\n")
    page = report([tmp_path, file])
    assert (page.problems, dict(map(reversed, page.facts))["problems"]) == ((), "0")  # type: ignore[call-overload]
    own, toys = [one.words for one in page.sections if one.title == "Task by task"]
    assert own[1:] == (
        "Scores of high, low cannot be normalised, because no scale is known: the headline numbers leave them out.",
    )
    assert toys[1:] == ()


def test_numbers_without_end_are_passed_over(tmp_path: Path) -> None:
    endless = write_run(tmp_path / "1", toy(1), {3000: 20})
    log = endless / "metrics.jsonl"
    log.write_text(log.read_text().replace('"frames": 3000', '"frames": Infinity'))
    events = [
        {"kind": "probe", "frames": 1000, "encoder_cosine": 0.5},
        {"kind": "timing", "frames": 2000, "parts": {"act": float("inf"), "learn": 2.0}},
    ]
    probed = write_run(tmp_path / "2", toy(2), {3000: 20}, events=events)
    (probed / "probe.json").write_text(f'{{"frames": 3000, "encoder_cosine": 1{"0" * 400}, "rank": 7}}')
    page = report([tmp_path])
    ((_, row),) = texts(table(page, "representation")).items()
    assert (row["encoder cosine"], row["effective rank"]) == ("0.500 (1)", "7.000 (1)")
    assert [row[-2].text for row in table(page, "time").rows] == ["0%"]
    assert any("OverflowError" in problem for problem in page.problems)


def test_a_whole_number_of_400_digits_is_no_time(tmp_path: Path) -> None:
    run = write_run(tmp_path / "1", toy(), {3000: 20})
    clock = '"frames": 3000, "decisions": 3000, "updates": 0, "seconds"'
    with (run / "metrics.jsonl").open("a") as log:
        log.write(f'{{"kind": "timing", {clock}: 1{"0" * 400}, "parts": {{"act": 1{"0" * 400}}}}}\n')
    (fact,) = all_facts([tmp_path])
    assert (fact.seconds, dict(fact.timing)) == (3.0, {"act": 0.0})


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_fewer_than_four_runs_have_no_interval_no_test_and_no_probability(tmp_path: Path, seeds: int) -> None:
    page = report([toy_runs(tmp_path, seeds)])
    value, low, high = table(page, "-aggregates").rows[0][2].numbers
    assert value == pytest.approx(
        (np.mean(TOY["mlr"][:seeds]) - ToyControl.random_return)
        / (ToyControl.optimal_return - ToyControl.random_return)
    )
    assert np.isnan([low, high]).all()
    (claim,) = [line for group in page.headline for line in group.lines]
    assert "there is no test below 4 runs of each" in claim.text
    row = texts(table(page, "-mlr-baseline"))["reach"]
    assert [row[name] for name in ("p", "effect size")] == ["–", "–"]
    assert re.fullmatch(r"\+\d+\.\d", row["difference"])  # without an interval
    assert not any(one.key.endswith("-improvement") for one in page.tables)
    (chart,) = [chart for chart in page.charts if chart.kind == "intervals"]
    assert all(np.isnan(row["low"]) for panel in chart.data["panels"] for row in panel["rows"])
    assert chart.title == "Aggregates of normalised scores"
    assert section(page, "Headline numbers").words[1].startswith("Below 4 runs per task there is no interval")
    (chart,) = [chart for chart in page.charts if chart.kind == "profile"]
    assert np.isnan(chart.data["methods"][0]["low"]).all()
    assert '"low":[null,null' in render(page)


def test_nothing_to_report_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScoresError, match=r"no recipe\.json"):
        report([tmp_path])


def test_versions_that_differ_come_first(tmp_path: Path) -> None:
    write_run(tmp_path / "1", toy(1), {3000: 20}, versions={"python": "3.11.0", "torch": "2.10.0"})
    write_run(tmp_path / "2", toy(2), {3000: 20}, versions={"python": "3.11.0", "torch": "2.11.0"})
    rows = [[cell.text for cell in row] for row in table(report([tmp_path]), "versions").rows]
    assert rows == [["torch", "2.10.0 (1), 2.11.0 (1)"], ["python", "3.11.0"]]


# ── Representation and time ───────────────────────────────────────────────────────────────────────────────────────────


def test_probes_stand_beside_the_papers_cosines(tmp_path: Path) -> None:
    for seed, cosine in ((1, 0.9), (2, 0.8)):
        events = [
            {"kind": "probe", "frames": at, "encoder_cosine": cosine * at / 100_000, "rank": 20, "dead": 0}
            for at in (50_000, 100_000)
        ]
        run = write_run(tmp_path / str(seed), control("cheetah-run", seed), {100_000: 480}, events=events)
        if seed == 2:
            linear = {"r2": 0.75, "names": ["a"], "per_value": [0.75]}
            (run / "probe.json").write_text(json.dumps({"frames": 100_000, "encoder_cosine": 0.82, "linear": linear}))
    page = report([tmp_path])
    ((_, row),) = texts(table(page, "representation")).items()
    assert (row["encoder cosine"], row["paper: cosine"]) == ("0.860 ± 0.057 (2)", "0.930")  # of 0.9 and 0.82
    assert (row["linear R²"], row["decoder cosine"]) == ("0.750 (1)", "–")
    (chart,) = [chart for chart in page.charts if chart.key == "probe-curves"]
    assert chart.data["panels"][0]["methods"][0]["seeds"][0]["points"] == [[50_000, 0.45], [100_000, 0.9]]


@pytest.mark.parametrize("mixed", [False, True])
def test_probes_of_different_protocols_are_not_averaged(tmp_path: Path, mixed: bool) -> None:
    for name, cosine, profile, *overrides in (
        ("a", 0.9, "paper"),
        ("b", 0.5, "lite", "budget.frames=100000"),
        ("c", 0.1, "paper", "budget.frames=500000"),
    ):
        events = [{"kind": "probe", "frames": at, "encoder_cosine": cosine} for at in (50_000, 100_000)]
        recipe = control("cheetah-run", 1, "mlr", str(profile), *map(str, overrides))
        write_run(tmp_path / name, recipe, {100_000: 480}, events=events)
    page = report([tmp_path], mixed=mixed)
    (chart,) = [chart for chart in page.charts if chart.key == "probe-curves"]
    means = {panel["title"]: panel["methods"][0]["mean"][-1][1:] for panel in chart.data["panels"]}
    assert means == {
        "dmcontrol/cheetah-run, lite profile · 100,000 frames": [0.5, 1],
        "dmcontrol/cheetah-run, paper profile · 100,000 frames": [0.9, 1],
        "dmcontrol/cheetah-run, paper profile · 500,000 frames": [0.1, 1],
    }
    cosines = [(row[1].text, row[3].text) for row in table(page, "representation").rows]
    assert cosines == [
        ("DMControl · lite profile · 100,000 frames", "0.500 (1)"),
        ("DMControl · paper profile · 100,000 frames", "0.900 (1)"),
        ("DMControl · paper profile · 500,000 frames", "0.100 (1)"),
    ]


def test_a_lite_cosine_is_not_comparable(tmp_path: Path) -> None:
    events = [{"kind": "probe", "frames": 100, "encoder_cosine": 0.5}]
    write_run(tmp_path / "1", control("cheetah-run", 1, profile="lite"), {20_000: 480}, events=events)
    ((*_, cell, _, _, _, _),) = table(report([tmp_path]), "representation").rows
    assert (cell.text, cell.mark, cell.note) == ("0.930", "apart", LITE)


def test_the_split_of_time_is_a_sum_over_the_log(tmp_path: Path) -> None:
    parts = [{"act": 1.0, "learn": 2.0}, {"act": 1.0, "learn": 6.0}]
    events = [{"kind": "timing", "frames": 1000 * (at + 1), "parts": part} for at, part in enumerate(parts)]
    write_run(tmp_path / "1", toy(), {3000: 20}, events=events)
    page = report([tmp_path])
    ((_, row),) = texts(table(page, "time")).items()
    assert (row["act"], row["learn"], row["frames per second"]) == ("20%", "80%", "1,000.0")  # 2 and 8 of 10 seconds
    (chart,) = [chart for chart in page.charts if chart.kind == "bars"]
    (bar,) = chart.data["rows"]
    assert chart.data["parts"] == ["act", "learn"]
    assert bar == {"name": "mlr", "group": "Toys · 3,000 frames", "values": [2.0, 8.0]}


def timed(path: Path, recipe: Recipe, frames: int, seconds: float, status: str = "done") -> None:
    clock = {"frames": frames, "seconds": seconds}
    write_run(path, recipe, {}, status=status, events=[{"kind": "timing", "parts": {"learn": seconds}, **clock}])


def test_hours_are_of_finished_runs_and_of_one_budget(tmp_path: Path) -> None:
    timed(tmp_path / "1", toy(1), 3000, 3600)
    timed(tmp_path / "2", toy(2), 3000, 7200)
    timed(tmp_path / "3", toy(3), 300, 360, "failed")
    timed(tmp_path / "4", toy(4, "mlr", "budget.frames=6000"), 6000, 14400)
    timed(tmp_path / "5", toy(5, "baseline"), 300, 360, "failed")
    page = report([tmp_path])
    names = [column.name for column in table(page, "time").columns]
    rows = [dict(zip(names, (cell.text for cell in row), strict=True)) for row in table(page, "time").rows]
    told = [tuple(row[name] for name in ("runs of", "method", "runs", "finished", "hours per run")) for row in rows]
    assert told == [
        ("Toys · 3,000 frames", "mlr", "3", "2", "1.50"),
        ("Toys · 3,000 frames", "baseline", "1", "0", "–"),
        ("Toys · 6,000 frames", "mlr", "1", "1", "4.00"),
    ]
    assert rows[0]["frames per second"] == "0.6"  # 6300 in 11160 seconds, of all of them
    (chart,) = [chart for chart in page.charts if chart.kind == "bars"]
    assert [(bar["group"], bar["values"]) for bar in chart.data["rows"]] == [
        ("Toys · 3,000 frames", [5400]),
        ("Toys · 6,000 frames", [14400]),
    ]


def test_a_bar_is_the_mean_over_the_tasks_of_a_method_and_protocol(tmp_path: Path) -> None:
    cases = [("lite", "mlr", 10), ("lite", "baseline", 20), ("paper", "mlr", 100)]
    for index, task in enumerate(
        ("cartpole-swingup", "cheetah-run", "finger-spin", "reacher-easy", "walker-walk", "walker-run")
    ):
        for profile, method, seconds in cases:
            recipe = control(task, 1, method, profile, "budget.frames=100000")
            timed(tmp_path / profile / method / task, recipe, 100_000, seconds + 2 * index)
    (chart,) = [chart for chart in report([tmp_path]).charts if chart.kind == "bars"]
    assert chart.data["rows"] == [
        {"name": "mlr", "group": "DMControl · lite profile · 100,000 frames", "values": [15]},
        {"name": "baseline", "group": "DMControl · lite profile · 100,000 frames", "values": [25]},
        {"name": "mlr", "group": "DMControl · paper profile · 100,000 frames", "values": [105]},
    ]


@pytest.mark.slow
def test_a_real_run_is_reported(tmp_path: Path) -> None:
    for name, mlr in (("mlr", True), ("baseline", False)):
        trained(tmp_path / name, tiny_recipe(mlr=mlr))
    page = report([tmp_path])
    assert page.facts[0] == ("2", "runs")
    assert page.facts[3] == ("0", "unfinished")
    assert {row[4].text for row in table(page, "runs").rows} == {"done"}
    assert table(page, "time").rows[0][5].numbers[0] > 0
    assert len(render(page)) > 10_000


# ── The page ──────────────────────────────────────────────────────────────────────────────────────────────────────────

EVIL = "</script><img src=x onerror=alert(1)>\"'{{7*7}}"


def evil_csv(path: Path) -> Path:
    file = path / "scores.csv"
    quoted = EVIL.replace('"', '""')
    rows = [f'"{quoted}",toy/reach,{seed},3000,{20 + seed}' for seed in (1, 2)]
    rows += [f'baseline,"toy/{quoted}",1,3000,5', "baseline,toy/reach,1,3000,9"]
    file.write_text("\n".join(["method,task,seed,frames,score", *rows]))
    return file


def test_names_stay_text(tmp_path: Path) -> None:
    page = report([evil_csv(tmp_path)])
    text = render(page)
    assert EVIL in page.methods
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert "{{7*7}}" in text  # and was not worked out
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))  # type: ignore[union-attr]
    assert EVIL in data["methods"]


def test_keys_are_unique(tmp_path: Path) -> None:
    page = report([two_budgets(tmp_path)])
    for keys in (
        [one.key for one in page.tables],
        [one.key for one in page.charts],
        [one.key for one in page.sections],
    ):
        assert len(set(keys)) == len(keys)


def test_names_that_are_nearly_the_same_have_tables_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    rows = [
        f"{method},toy/reach,{seed},3000,{seed}" for method in ("a b", "a-b", "…", "·", "baseline") for seed in (1, 2)
    ]
    file.write_text("\n".join(["method,task,seed,frames,score", *rows]))
    page = report([file])
    keys = [one.key for one in page.tables]
    assert len(set(keys)) == len(keys)
    assert [key for key in keys if "-a-b-" in key] == [
        "toys-3-000-frames-a-b-baseline",
        "toys-3-000-frames-a-b-baseline-2",
    ]


def test_a_table_is_not_sorted_by_what_is_not_finite(tmp_path: Path) -> None:
    write_run(tmp_path / "1", toy(1), {3000: 20})
    page = report([tmp_path])
    cells = [(Cell("a"), number(value)) for value in (float("inf"), float("-inf"), float("nan"), 0.25)]
    endless = Table("endless", "Endless", (Column("of"), Column("x", ("",))), tuple(cells))
    text = render(replace(page, sections=(*page.sections, Section("endless", "Endless", blocks=(endless,)))))
    assert not re.search(r'data-value="-?(inf|nan)', text)
    assert 'data-value="20.0"' in text
    assert 'data-value="0.25"' in text


def test_json_in_a_script_cannot_end_it() -> None:
    value = {"a": EVIL, "b": [float("nan"), float("inf"), 1.0, 0.5, "\u2028"]}
    text = script_json(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": EVIL, "b": [None, None, 1, 0.5, "\u2028"]}


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    text = render(report([toy_runs(tmp_path)]))
    assert "default-src 'none'" in text
    assert not re.search(
        r"""\b(?:src|href)=["']?(?!["'#]|data:)""", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    )


@pytest.mark.slow
def test_a_thousand_runs_make_a_page_of_a_reasonable_size(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    file = tmp_path / "scores.csv"
    games = [game for game in recipes.names() if game.startswith("atari/")][:25]
    with file.open("w") as out:
        out.write("method,task,seed,decisions,score\n")
        for method in ("mlr", "baseline", "der", "otr"):
            for game in games:
                for seed in range(10):
                    for at in range(1000, 100_001, 1000):
                        out.write(f"{method},{game},{seed},{at},{chance.normal(500, 50):.3f}\n")
    start = time.process_time()
    page = report([file])
    text = render(page)
    assert page.facts[:3] == (("1,000", "runs"), ("4", "methods"), ("25", "tasks"))
    assert len(text) < 4e6
    assert time.process_time() - start < 120
    (chart,) = [chart for chart in page.charts if chart.kind == "curves"]
    points = [seed["points"] for panel in chart.data["panels"] for line in panel["methods"] for seed in line["seeds"]]
    assert (len(points), max(map(len, points))) == (1000, 60)  # 60 000 points in all
    assert all(curve[-1][0] == 100_000 for curve in points)


def cells_csv(path: Path, methods: int, tasks: int) -> Path:
    """A file whose every row has a method and a task of its own."""
    file = path / "scores.csv"
    rows = [f"m{place % methods},t{place % tasks},1,100,{place}" for place in range(max(methods, tasks))]
    file.write_text("\n".join(["method,task,seed,frames,score", *rows]))
    return file


def test_the_fullest_page_is_not_large(tmp_path: Path) -> None:
    page = report([cells_csv(tmp_path, 100, 100)])
    assert len(table(page, "-scores").rows) * len(page.methods) == MOST["methods times tasks"]
    assert len(render(page)) < 2e6


@pytest.mark.parametrize(
    ("methods", "tasks", "why"),
    [
        (100, 101, "10,100 methods times tasks (at most 10,000)"),
        (301, 1, "301 methods (at most 300)"),
        (1, 1001, "1,001 tasks (at most 1,000)"),
        (1000, 1000, "1,000 methods (at most 300), 1,000,000 methods times tasks (at most 10,000)"),
    ],
)
def test_what_no_page_can_hold_is_refused(
    tmp_path: Path, methods: int, tasks: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cells_csv(tmp_path, methods, tasks)
    assert typed(file, "--out", tmp_path / "page.html") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told.endswith(f"This is too much for one page: {why}. Report on fewer runs at a time.")
    assert not (tmp_path / "page.html").exists()


def test_too_many_runs_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    rows = [f"mlr,t,{seed},100,{seed}" for seed in range(20_001)]
    file.write_text("\n".join(["method,task,seed,frames,score", *rows]))
    with pytest.raises(ScoresError, match=re.escape("20,001 runs (at most 20,000)")):
        report([file])


# ── The command ───────────────────────────────────────────────────────────────────────────────────────────────────────


def typed(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_the_command_writes_the_page_and_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy_runs(tmp_path / "runs")
    write_run(tmp_path / "runs" / "late", toy(5), {1500: 10}, status="running")
    out = tmp_path / "deep" / "page.html"
    assert typed(tmp_path / "runs", "--out", out, "--tables", tmp_path / "tables") == 0
    told = capsys.readouterr().out
    assert f"The page: {out}" in told
    assert "mlr and baseline on toy/reach: 9 runs, 2 methods, 1 task, 1 unfinished, 2 problems" in told
    assert "mlr is above baseline. " in told
    assert "is at 1500 of 3000 frames" in told
    assert out.read_text().startswith("<!doctype html>")
    assert {file.suffix for file in (tmp_path / "tables").iterdir()} == {".md", ".tex", ".csv"}


def test_the_page_of_two_seeds_claims_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy_runs(tmp_path / "runs", seeds=2)
    assert typed(tmp_path / "runs", "--out", tmp_path / "page.html", "--tables", tmp_path / "tables") == 0
    told = capsys.readouterr().out
    assert "not enough seeds to compare mlr and baseline" in told
    files = [tmp_path / "page.html", *(tmp_path / "tables").iterdir()]
    for text in (told, *(file.read_text() for file in files)):
        assert "(1.000 to 1.000)" not in text
        assert ", p = " not in text
        assert "is above baseline. " not in text
    assert not any("improvement" in file.name for file in files)


def test_a_folder_whose_name_is_no_text_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / os.fsdecode(b"run\xff")
    try:
        write_run(folder, toy(), {1500: 20}, status="failed")
    except OSError:
        pytest.skip("this file system has no such names")
    assert typed(folder, "--out", tmp_path / "page.html", "--tables", tmp_path / "tables") == 0
    assert "run\\udcff" in capsys.readouterr().out
    assert "run\\udcff" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not list(tmp_path.rglob("*.new"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["empty"], "empty holds no run"),
        ([], "Name run directories, the folder of a sweep, or a CSV file."),
        (["runs", "--out", "empty"], "is a folder"),
        (["runs", "--out", "file/report.html"], "file"),
    ],
)
def test_what_a_user_can_put_right_is_refused_with_code_2(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    write_run(tmp_path / "runs" / "1", toy(), {3000: 20})
    assert typed(*arguments) == 2
    refusal = capsys.readouterr().err
    assert sentence in refusal
    assert "Traceback" not in refusal
    assert not list(tmp_path.glob("*.html"))
