"""The pages quote results/ and nothing else: every number in them is computed again from the CSV."""

import csv
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from maskrl import recipes
from maskrl.analysis.protocol import changes_of
from maskrl.recipes.measured import measured_scores
from maskrl.recipes.overrides import from_json, with_overrides
from maskrl.recipes.schema import as_json

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import evidence  # noqa: E402

# Differences of 10, 20, 30 and 40: mean 25, standard deviation √(500/3) = 12.91, interval 25 ± 3.182 · 12.91 / 2 = 20.54.
SCORES = {
    "reacher-easy": {"mlr": (110, 220, 330, 440), "baseline": (100, 200, 300, 400)},
    "cartpole-swingup": {"mlr": (300, 301, 302, 304), "baseline": (300, 302, 301, 304)},
}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder, found = tmp_path / "results" / "one", []
    folder.mkdir(parents=True)
    with (folder / "scores.csv").open("w", newline="") as file:
        write = csv.writer(file).writerow
        write(["method", "task", "seed", "frames", "decisions", "updates", "score", "seconds", "cpu_seconds"])
        for task, methods in SCORES.items():
            for method, values in methods.items():
                recipe = recipes.find(f"dmcontrol/{task}", "lite", objective="mlr" if method == "mlr" else "none")
                found.append({"method": method, "task": f"dmcontrol/{task}", "recipe": json.loads(as_json(recipe))})
                for seed, value in enumerate(values, start=11):
                    seconds = 90 if method == "mlr" else 60
                    write([method, f"dmcontrol/{task}", seed, 0, 0, 0, 50, 1, 1])
                    write([method, f"dmcontrol/{task}", seed, 100_000, 25_000, 24_000, value, seconds, seconds])
    about = {"commands": [], "runs": 16, "versions": {}, "recipes": found}
    (folder / "about.json").write_text(json.dumps(about))
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    return folder


def test_a_table_has_the_differences_of_pairs_by_hand(study: Path):
    rows = evidence.table(study, 100_000).splitlines()
    assert "| reacher-easy | 4 | 275 | 250 | +25 | +4 to +46 | 0.03 | MLR is above | 1.50 × |" in rows
    assert "| cartpole-swingup | 4 | 302 | 302 | +0 | -1 to +1 | 1 | no difference shows | 1.50 × |" in rows
    assert rows[-1].startswith("| mean of 2 tasks | 4 | 288 | 276 | +12 |")


def test_the_sentence_says_the_difference_and_the_cost(study: Path):
    told = evidence.sentence(study, 100_000)
    assert "**+12 points of 1000 (95 % interval" in told
    assert "On cartpole-swingup and reacher-easy" in told
    assert told.endswith("It takes 1.50 times the Baseline's processor time.")


def test_the_seeds_needed_are_those_of_a_plan(study: Path):
    """The first study has a difference of 100, the second one of -100."""
    rows = ["method,task,seed,frames,score,cpu_seconds"]
    for method, gain in (("mlr", 100), ("baseline", 0)):
        rows += [f"{method},dmcontrol/cartpole-balance,{seed},60000,{gain + 100 * (seed % 2)},1" for seed in range(4)]
    (study / "about.json").write_text(json.dumps({"commands": [], "runs": 8, "versions": {}, "recipes": []}))
    (study / "scores.csv").write_text("\n".join([*rows, ""]))
    # In units of the difference's standard deviation, √2 · 57.7 = 81.6, it is 1.22: (1.96 + 0.84)² / 1.22² = 5.2 by the normal
    # distribution; Student's needs up to three more.
    assert evidence.needed(study, 60_000).endswith(
        "with a probability of 80 % from 8 seeds of each method on every task."
    )
    (study / "scores.csv").write_text(
        "\n".join([*rows, ""]).replace("mlr,", "x,").replace("baseline,", "mlr,").replace("x,", "baseline,")
    )
    assert evidence.needed(study, 60_000).startswith("The difference that was found is not above 0")


def test_one_method_alone_says_nothing(study: Path):
    lines = (study / "scores.csv").read_text().splitlines()
    (study / "scores.csv").write_text("\n".join(line for line in lines if not line.startswith("baseline")))
    assert evidence.table(study, 100_000) == evidence.sentence(study, 100_000) == evidence.NOTHING
    assert "| reacher-easy | Baseline | – | – | – | – |" in evidence.seeds(study, 100_000)


def test_a_run_without_its_partner_waits(study: Path):
    lines = (study / "scores.csv").read_text().splitlines()
    gone = "baseline,dmcontrol/reacher-easy,11,"
    (study / "scores.csv").write_text("\n".join(line for line in lines if not line.startswith(gone)))
    # Seeds 12 to 14: 220, 330 and 440 against 200, 300 and 400.
    assert "| reacher-easy | 3 | 330 | 300 | +30 | – | – | there is no test below 4 runs of each | 1.50 × |" in (
        evidence.table(study, 100_000)
    )
    assert "with 3 to 4 seeds of each" in evidence.sentence(study, 100_000)
    assert "| mean of 2 tasks | 3 to 4 |" in evidence.table(study, 100_000)


def test_few_seeds_get_no_interval(study: Path):
    lines = (study / "scores.csv").read_text().splitlines()
    kept = [line for line in lines if line.split(",")[2] not in ("13", "14")]
    (study / "scores.csv").write_text("\n".join(kept))
    assert "| – | – | there is no test below 4 runs of each |" in evidence.table(study, 100_000)
    assert "interval" not in evidence.sentence(study, 100_000)


def test_the_answers_of_studies_stand_below_each_other(study: Path):
    """Tasks with one unit have one row, games one each; a study without runs has none."""
    _copy(study, "two", change=lambda row: row.replace("dmcontrol/", "atari/"))
    rows = evidence.answers(study.with_name("one@100000+none@end+two@end"), None).splitlines()[2:]
    assert [row.split(" | ")[:3] for row in rows] == [
        ["| one", "cartpole-swingup, reacher-easy", "4"],
        ["| two", "cartpole-swingup", "4"],
        ["| two", "reacher-easy", "4"],
    ]
    assert rows[2] == "| two | reacher-easy | 4 | +25 | +4 to +46 | MLR is above | 1.50 × |"


def test_studies_are_joined_task_by_task(study: Path):
    """Differences of 10 to 40 (mean 25, standard error 6.455), and of 0, -1, 1, 0 twice (0.408): their mean is 25/3 = 8.33.

    Its standard error is √(6.455² + 2 · 0.408²) / 3 = 2.160; the first dominates, so there are 3.05 degrees of freedom, t = 3.16.
    """
    assert evidence.together(study.with_name("none"), 100_000) == evidence.NOTHING
    _copy(study, "two", keep=lambda row: "reacher" not in row)
    told = evidence.together(study.with_name("one+two+none"), 100_000)
    assert told == (
        "Over the 3 comparisons on a task, with 12 pairs of runs together, MLR differs from its Baseline by **+8 points of 1000 "
        "(95 % interval +2 to +15)**."
    )
    assert evidence.together(study.with_name("one"), 99_999) == evidence.NOTHING  # all scores are equal then
    assert evidence._interval(0.04, 12.4) == "+0.04 to +12"  # above 0, and not "+0 to"


def test_the_pairs_of_studies_of_one_task_are_pooled(study: Path):
    """10, 20, 30 and 40 twice: mean 25, deviation √(1000/7) = 11.95, interval 25 ± 2.365 · 11.95 / √8 = 10.0."""
    assert evidence.pooled(study.with_name("one+none"), 100_000) == evidence.NO_RUNS
    _copy(study, "two", keep=lambda row: "swingup" not in row)
    _copy(study, "three", keep=lambda row: "swingup" not in row)
    assert evidence.pooled(study.with_name("one+two"), 100_000) == (
        "On reacher-easy, over the 8 seeds of one and two, MLR differs from its Baseline by **+25 points of 1000 (95 % interval "
        "+15 to +35)**: 275 against 250."
    )
    three = study.with_name("three") / "scores.csv"
    variant = "mlr objective.every=4,dmcontrol/reacher-easy,11,100000,1,1,999,1,1\n"  # is no pair
    three.write_text(three.read_text() + variant)
    assert "over the 8 seeds" in evidence.pooled(study.with_name("two+three"), 100_000)


def test_a_table_of_probes_has_means_and_how_they_go_with_the_scores(study: Path):
    lines = ["method,task,seed,frames,encoder_cosine,decoder_cosine,rank,dead,r2,r2_random_encoder"]
    for method, values in SCORES["reacher-easy"].items():
        lines += [
            f"{method},dmcontrol/reacher-easy,{seed},100000,{value / 1000},,{-value},0,,0.5"
            for seed, value in enumerate(values, start=11)
        ]
    (study / "probes.csv").write_text("\n".join(lines))
    rows = evidence.probes(study, 100_000).splitlines()[2:]
    assert rows == [
        "| reacher-easy | cosine, masked to unmasked | 4 | 0.28 | 0.25 | 4 of 4 | +1.00 |",
        "| reacher-easy | effective rank | 4 | -275.00 | -250.00 | 0 of 4 | -1.00 |",
        "| reacher-easy | R², untrained encoder | 4 | 0.50 | 0.50 | – | – |",
    ]
    variant = "mlr objective.every=4,dmcontrol/reacher-easy,11,100000,0.9,,9,0,,0.9"  # of neither method
    (study / "probes.csv").write_text("\n".join([*lines, variant]))
    assert evidence.probes(study, 100_000).splitlines()[2:] == rows
    mixed = "\n".join(lines).replace("11,100000,0.11", "11,100000,0.01")
    (study / "probes.csv").write_text(mixed)
    assert "| 3 of 4 |" in evidence.probes(study, 100_000).splitlines()[2]
    # A run that was not measured is counted out; a correlation over too few runs, or over cosines of different masks, is left out.
    (study / "probes.csv").write_text("\n".join(lines[:-1]))
    shown = evidence.probes(study, 100_000)
    assert "| reacher-easy | cosine, masked to unmasked | 4 and 3 | 0.28 | 0.20 | 3 of 3 | – |" in shown
    (study / "probes.csv").write_text("\n".join(lines).replace("\nmlr,", "\nmlr objective.mask.ratio=0.5,"))
    (study / "scores.csv").write_text(
        (study / "scores.csv").read_text().replace("\nmlr,", "\nmlr objective.mask.ratio=0.5,")
    )
    ends = [row.rsplit(" | ", 2)[1:] for row in evidence.probes(study, 100_000).splitlines()[2:]]
    assert ends == [["–", "– |"], ["0 of 4", "-1.00 |"], ["–", "– |"]]


def test_a_table_along_training_has_the_means_at_every_evaluation(study: Path):
    """A run is left out of a measure that it lacks at some evaluation; a measure that all runs lack has no row."""
    lines = ["method,task,seed,frames,encoder_cosine,rank,r2"]
    lines += [
        f"mlr,dmcontrol/reacher-easy,{seed},{20_000 * k},0.{k},{10 * seed},{k // 2 or ''}"
        for k in (1, 2, 3)
        for seed in (1, 2)
    ]
    (study / "probes.csv").write_text("\n".join([*lines, "mlr,dmcontrol/reacher-easy,3,20000,,90,", ""]))
    assert evidence.along(study, 40_000).splitlines() == [
        "| task | measure | method | 20,000 | 40,000 |",
        "|:---|:---|:---|---:|---:|",
        "| reacher-easy | cosine, masked to unmasked (2 of 3 runs) | MLR | 0.10 | 0.20 |",
        "| reacher-easy | effective rank (2 of 3 runs) | MLR | 15.00 | 15.00 |",
    ]


def test_a_table_along_training_has_tasks_of_different_budgets_and_a_changed_mlr(study: Path):
    changed = "mlr agent.auxiliary.warmup_updates=300"
    scores = (study / "scores.csv").read_text().replace("\nmlr,", f"\n{changed},")
    (study / "scores.csv").write_text(scores)
    lines = ["method,task,seed,frames,encoder_cosine,rank,r2"]
    lines += [
        f"{method},dmcontrol/{task},11,{frames},0.5,,{frames / 100_000}"
        for method in (changed, "baseline")
        for task, times in (("reacher-easy", (20_000, 40_000)), ("cartpole-swingup", (10_000, 20_000)))
        for frames in times
    ]
    (study / "probes.csv").write_text("\n".join(lines))
    rows = evidence.along(study, None).splitlines()
    assert rows[0] == "| task | measure | method | 10,000 | 20,000 | 40,000 |"
    assert "| cartpole-swingup | linear R² of the state | MLR | 0.10 | 0.20 | – |" in rows
    assert "| reacher-easy | linear R² of the state | Baseline | – | 0.20 | 0.40 |" in rows
    assert len(rows) == 2 + 2 * 2 * 2


def test_the_readme_names_the_difference_over_all_studies():
    told = evidence.together(ROOT / "results" / "lite-dmcontrol+lite-balance+lite-dmcontrol-2+lite-cost-2", 60_000)
    value, interval = re.findall(r"by \*\*([+-]\d+) points of 1000 (\(95 % interval [+-]\d+ to [+-]\d+\))", told)[0]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"MLR differs by {value} points {interval.rstrip(')')}; not planned)" in readme
    assert "This study has the highest difference of four on DMControl;" in readme
    studies = [
        ("lite-dmcontrol", 60_000),
        ("lite-balance", 60_000),
        ("lite-dmcontrol-2", None),
        ("lite-cost-2", 60_000),
    ]
    found = {name: evidence.verdicts(ROOT / "results" / name, at) for name, at in studies}
    means = {name: (one.overall or one.tasks)[0] for name, one in found.items()}
    assert max(means, key=lambda name: means[name].mean - means[name].reference) == "lite-dmcontrol"


def test_a_control_is_compared_with_every_method_of_another_study(study: Path):
    """The Baseline is 5, 6, 4 and 5 above it (mean 5, interval 5 ± 3.182 · 0.816 / 2 = 1.3), MLR 15, 26, 34 and 45 (30 ± 20.3)."""
    assert evidence.control(study.with_name("one+none"), 100_000) == evidence.NO_RUNS
    _copy(study, "first", keep=lambda row: "swingup" not in row)
    folder = _copy(study, "second", keep=lambda row: row.startswith("method,"))
    name, scores = "baseline agent.encoder.linear_init=truncated_normal", enumerate((95, 194, 296, 395), start=11)
    rows = [f"{name},dmcontrol/reacher-easy,{seed},100000,25000,24000,{score},9,9" for seed, score in scores]
    (folder / "scores.csv").write_text("\n".join([(folder / "scores.csv").read_text().strip(), *rows, ""]))
    about = json.loads((study / "about.json").read_text())
    told = {(one["method"], one["task"]): one for one in about["recipes"]}["baseline", "dmcontrol/reacher-easy"]
    told["method"], told["recipe"]["agent"]["encoder"]["linear_init"] = name, "truncated_normal"
    (folder / "about.json").write_text(json.dumps(about | {"recipes": [told]}))
    assert evidence.control(study.with_name("first+second"), 100_000).splitlines()[2:] == [
        "| Baseline | 4 | 250 | 245 | +5 | +4 to +6 | 0.0012 | Baseline is above |",
        "| MLR | 4 | 275 | 245 | +30 | +10 to +50 | 0.018 | MLR is above |",
    ]


def test_variants_stand_seed_by_seed_and_are_compared_with_both_methods(study: Path):
    """The variant is 5, 6, 4 and 5 above MLR (5 ± 1.3), and 15, 26, 34 and 45 above the Baseline (30 ± 20.3).

    Frames of another size are not in a method's name, so they are read from its recipe.
    """
    assert evidence.variants(study, 1) == evidence.against(study.with_name("one+none"), 1) == evidence.NO_RUNS
    _copy(study, "known", keep=lambda row: "swingup" not in row)
    folder = _copy(study, "tried", keep=lambda row: row.startswith("method,"))
    rows, told, name = [(folder / "scores.csv").read_text().strip()], [], "mlr objective.mask.ratio=0.25"
    for method, value, scores in (
        (name, "objective.mask.ratio=0.25", (115, 226, 334, 445)),
        ("baseline", "env.size=64", (7, 8)),
        ("mlr", "env.size=64", (9, 10)),
    ):
        rows += [
            f"{method},dmcontrol/reacher-easy,{seed},100000,25000,24000,{score},9,9"
            for seed, score in enumerate(scores, start=11)
        ]
        objective = "mlr" if method.startswith("mlr") else "none"
        recipe = with_overrides(recipes.find("dmcontrol/reacher-easy", "lite", objective=objective), [value])
        told.append({"method": method, "task": "dmcontrol/reacher-easy", "recipe": json.loads(as_json(recipe))})
    (folder / "scores.csv").write_text("\n".join([*rows, ""]))
    (folder / "about.json").write_text(json.dumps({"commands": [], "runs": 8, "versions": {}, "recipes": told}))
    both = study.with_name("known+tried")
    assert evidence.variants(both, 100_000).splitlines() == [
        "| method | seed 11 | seed 12 | seed 13 | seed 14 | mean of 11–12 | mean of 11–14 |",
        "|:---|---:|---:|---:|---:|---:|---:|",
        "| MLR | 110 | 220 | 330 | 440 | 165 | 275 |",
        "| Baseline | 100 | 200 | 300 | 400 | 150 | 250 |",
        "| MLR with `objective.mask.ratio=0.25` | 115 | 226 | 334 | 445 | 170 | 280 |",
        "| MLR with `env.size=64` | 9 | 10 | – | – | 10 | – |",
        "| Baseline with `env.size=64` | 7 | 8 | – | – | 8 | – |",
    ]
    variant = "| MLR with `objective.mask.ratio=0.25` |"
    assert evidence.against(both, 100_000).splitlines()[2:] == [
        f"{variant} MLR | 4 | +5 | +4 to +6 | 0.0012 | the variant is above |",
        f"{variant} Baseline | 4 | +30 | +10 to +50 | 0.018 | the variant is above |",
    ]


def test_methods_stand_below_each_other_seed_by_seed(study: Path):
    """Of one task; SB3's methods need no recipe of ours."""
    rows = ["method,task,seed,frames,score,cpu_seconds"]
    rows += [
        f"{name},dmcontrol/cartpole-balance,{seed},60000,{100 * seed},90" for name in ("mlr", "sb3") for seed in (1, 2)
    ]
    (study / "about.json").write_text(json.dumps({"commands": [], "runs": 4, "versions": {}, "recipes": []}))
    (study / "scores.csv").write_text("\n".join([*rows, ""]))
    assert evidence.methods(study, 60_000).splitlines() == [
        "| method | seed 1 | seed 2 | mean | processor minutes |",
        "|:---|---:|---:|---:|---:|",
        "| MLR | 100 | 200 | 150 | 1.5 |",
        "| SB3 alone | 100 | 200 | 150 | 1.5 |",
    ]
    # Beside the runs of another study, with the seeds that both have.
    other = study.with_name("other")
    other.mkdir()
    (other / "about.json").write_text((study / "about.json").read_text())
    more = [f"drq,dmcontrol/cartpole-balance,{seed},60000,{seed},60" for seed in (2, 3)]
    (other / "scores.csv").write_text("\n".join([rows[0], *more, ""]))
    assert evidence.methods(study.with_name("one+other+none"), 60_000).splitlines()[2:] == [
        "| MLR | 200 | 200 | 1.5 |",
        "| DrQ | 2 | 2 | 1.0 |",
        "| SB3 alone | 200 | 200 | 1.5 |",
    ]
    assert evidence.methods(study.with_name("none"), 60_000) == evidence.NO_RUNS
    told = "Mean scores on cartpole-balance after 60,000 frames, 2 seeds each: MLR 150, SB3 alone 150."
    assert evidence.means(study, 60_000) == told
    assert "SB3 alone" in evidence.figure(study)
    assert len(evidence.measured([study]).splitlines()) == 1


@pytest.mark.parametrize(
    ("task", "unit", "per"), [("dmcontrol/cartpole-balance", "frames", 1), ("atari/assault", "decisions", 4)]
)
def test_growth_begins_with_random_actions(study: Path, task: str, unit: str, per: int):
    rows = ["method,task,seed,frames,decisions,updates,score,random"]
    for seed in (1, 2):
        rows += [f"mlr,{task},{seed},{4000 * time},{1000 * time},0,{50 * time + seed},{200 + seed}" for time in (1, 2)]
    (study / "scores.csv").write_text("\n".join([*rows, ""]))
    assert evidence.growth(study, None).splitlines() == [
        "| seed | 1 | 2 |",
        "|:---|---:|---:|",
        "| random actions | 201 | 202 |",
        f"| after {4000 // per:,} {unit} | 51 | 52 |",
        f"| after {8000 // per:,} {unit} | 101 | 102 |",
    ]


def test_courses_have_every_score_of_every_change(study: Path):
    rows = ["method,task,seed,frames,decisions,updates,score,cpu_seconds"]
    for method, scores in (("mlr", (0, 955, 990)), ("baseline", (5, 355, 3620)), ("mlr agent.epsilon=0", (0, 0, 0))):
        rows += [
            f"{method},atari/road_runner,{seed},{4 * at},{at},{at},{score},1"
            for seed in (101, 102)[: 1 + (method == "mlr")]
            for at, score in zip((0, 5000, 10_000), scores, strict=True)
        ]
    (study / "scores.csv").write_text("\n".join([*rows, ""]))
    (study / "about.json").write_text(json.dumps({"commands": [], "runs": 4, "versions": {}, "recipes": []}))
    assert evidence.courses(study, None).splitlines() == [
        "| method | seed 101 | seed 102 | mean at the end |",
        "|:---|---:|---:|---:|",
        "| MLR | 955, 990 | 955, 990 | 990 |",
        "| Baseline | 355, 3620 | – | 3620 |",
        "| MLR with `agent.epsilon=0` | 0, 0 | – | 0 |",
    ]
    assert evidence.courses(study / "none", None) == evidence.NO_RUNS


@pytest.mark.parametrize("value", ["objective.every=4", "agent.auxiliary.clips=4"])
def test_a_frontier_has_the_gain_of_every_variant_and_its_price(study: Path, value: str):
    gains, minutes = {"baseline": 0, "mlr": 200, f"mlr {value}": 150}, {"baseline": 2, "mlr": 3}
    rows = ["method,task,seed,frames,score,cpu_seconds"]
    for method, gain in gains.items():
        seconds = 60 * minutes.get(method, 2.5)
        rows += [
            f"{method},dmcontrol/cartpole-balance,{seed},60000,{300 + gain + seed % 2 * (gain > 0)},{seconds}"
            for seed in range(21, 25)
        ]
    (study / "about.json").write_text(json.dumps({"commands": [], "runs": 12, "versions": {}, "recipes": []}))
    (study / "scores.csv").write_text("\n".join([*rows, ""]))
    assert evidence.frontier(study, 60_000).splitlines()[2:] == [
        "| Baseline | 4 | 1.00 × | 300 | – | – | – |",
        f"| MLR with `{value}` | 4 | 1.25 × | 450 | +150 | +150 to +151 | above the Baseline |",
        "| MLR | 4 | 1.50 × | 500 | +200 | +200 to +201 | above the Baseline |",
    ]
    assert evidence.frontier(study / "none", 60_000) == evidence.NO_RUNS
    # Its picture has a ring for every run and a dot for every method, further right the more it costs.
    (evidence.ROOT / "README.md").write_text("![Score against cost](docs/evidence/one-price.svg)")
    drawn = ElementTree.fromstring(evidence.outputs()[evidence.ROOT / "docs" / "evidence" / "one-price.svg"])
    circles = list(drawn.iter("{http://www.w3.org/2000/svg}circle"))
    dots = {circle.get("class"): float(circle.get("cx", 0)) for circle in circles if circle.get("stroke-width")}
    assert (len(circles), sorted(dots)) == (3 * 4 + 3, ["c0", "c1"])
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Baseline", "MLR", f"MLR {value.rpartition('.')[2]}", "1 ×", "1.5 ×"} <= set(texts)
    assert [circle.get("cx") for circle in circles if circle.get("class") == "c1"] == [f"{dots['c1']:.1f}"] * 5


def test_a_label_of_a_price_stands_left_of_its_dot_if_the_next_dot_is_near(study: Path):
    rows = ["method,task,seed,frames,score,cpu_seconds"]
    for method, score, seconds in (("baseline", 100, 100), ("mlr objective.every=4", 300, 125), ("mlr", 300, 135)):
        rows += [f"{method},dmcontrol/cartpole-balance,{seed},60000,{score + seed},{seconds}" for seed in (1, 2)]
    (study / "about.json").write_text(json.dumps({"commands": [], "runs": 6, "versions": {}, "recipes": []}))
    (study / "scores.csv").write_text("\n".join([*rows, ""]))
    drawn = ElementTree.fromstring(evidence.price_figure(study))
    texts = {element.text: element for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {name: texts[name].get("text-anchor") for name in ("Baseline", "MLR every=4", "MLR")} == {
        "Baseline": None,
        "MLR every=4": "end",
        "MLR": None,
    }


def test_a_changed_mlr_is_compared_at_the_end_of_every_budget(study: Path):
    """Differences of 10, 20, 30 and 40 on one task, of 1 to 4 on the other, which ends earlier: means 25 and 2.5."""
    changed = "mlr agent.auxiliary.warmup_updates=300"
    rows = ["method,task,seed,frames,score,cpu_seconds"]
    for task, end, gain in (("cartpole-balance", 60_000, 10), ("walker-walk", 30_000, 1)):
        for number in range(1, 5):
            rows += [f"baseline,dmcontrol/{task},{number},{at},{at // 1000},{at}" for at in (10_000, end)]
            rows += [
                f'"{changed}",dmcontrol/{task},{number},{at},{at // 1000 + gain * number},{2 * at}'
                for at in (10_000, end)
            ]
    (study / "about.json").write_text(json.dumps({"commands": [], "runs": 16, "versions": {}, "recipes": []}))
    (study / "scores.csv").write_text("\n".join([*rows, ""]))
    table = evidence.table(study, None).splitlines()[2:]
    assert table[0] == "| cartpole-balance | 4 | 85 | 60 | +25 | +4 to +46 | 0.03 | MLR is above | 2.00 × |"
    assert table[1].startswith("| walker-walk | 4 | 32 | 30 | +2 |")
    assert table[2].startswith("| mean of 2 tasks | 4 | 59 | 45 | +14 |")
    assert "at the end of their budgets and with 4 seeds of each" in evidence.sentence(study, None)
    assert "| walker-walk | MLR | 31 | 32 | 33 | 34 |" in evidence.seeds(study, None)
    assert ">MLR</text>" in evidence.figure(study)
    # Scores of games have different units: there is no mean.
    (study / "scores.csv").write_text("\n".join(rows).replace("dmcontrol/", "atari/") + "\n")
    assert [row.split()[1] for row in evidence.table(study, None).splitlines()[2:]] == [
        "cartpole-balance",
        "walker-walk",
    ]


def gate_rows(method: str, scores: Sequence[tuple[int, float]], seed: int = 1) -> list[str]:
    return [f"{method},toy/reach,{seed},{frames},{score},1" for frames, score in scores]


def test_a_gate_takes_the_best_of_the_last_evaluations(study: Path):
    rows = ["method,task,seed,frames,score,cpu_seconds", *gate_rows("otr", ((0, 90), (10, 30), (20, 20)))]
    (study / "scores.csv").write_text("\n".join([*rows, *gate_rows("sac_ae", ((0, 1), (20, 2))), ""]))
    assert evidence.gate(study, 2).splitlines()[2:] == ["| `otr` | 20 | 30.0 |", "| `sac_ae` | 20 | 2.0 |"]
    assert not any(path.suffix == ".svg" for path in evidence.outputs())  # no page shows a picture
    # A method that needs longer has its own runs.
    longer = study.with_name("one-long")
    longer.mkdir()
    (longer / "scores.csv").write_text("\n".join([rows[0], *gate_rows("sac_ae", ((0, 1), (5000, 40))), ""]))
    (longer / "about.json").write_text((study / "about.json").read_text())
    assert evidence.gate(study, 2).splitlines()[2:] == ["| `otr` | 20 | 30.0 |", "| `sac_ae` | 5,000 | 40.0 |"]


def test_a_table_of_speeds_has_what_was_measured_and_the_gates_of_the_toy(study: Path):
    measured = study.with_name("methods-dmcontrol")
    assert evidence.speed(measured, 2) == "Not measured yet."
    toy = study.rename(study.with_name("toy-reach"))
    rows = ["method,task,seed,frames,score,cpu_seconds", *gate_rows("mlr", ((10, 30), (20, 20)))]
    (toy / "scores.csv").write_text("\n".join([*rows, *gate_rows("mlr", ((10, 31), (20, 20)), seed=2), ""]))

    def spread(median: float) -> dict[str, float]:
        return {"median": median, "low": 0.5 * median, "high": 2 * median}

    common = {"flop_per_update": 1.6e9, "seconds_per_update": spread(0.04), "flop_per_second": spread(4e10)}
    common |= {"parameters_of_agent": 1234, "flop_per_torch_call": 1.36e6}
    alone = {"method": "drqv2-100k", "parameters_of_objective": None, "first_loss": None}
    methods = [
        common
        | {"method": "mlr", "parameters_of_objective": 56, "first_loss": 1.2, "speed_relative_to_mlr": spread(1)},
        common | alone | {"speed_relative_to_mlr": spread(0.9)},
    ]
    told = {"recipe": "dmcontrol/cheetah-run", "profile": "lite", "threads": 1, "rounds": 5, "methods": methods}
    measured.with_name("methods-dmcontrol.json").write_text(json.dumps(told))
    head, _, *table = evidence.speed(measured, 2).splitlines()
    assert head == "dmcontrol/cheetah-run, lite, 1 thread, 5 rounds:"
    assert table[2:] == [
        "| `mlr` | 1,234 + 56 | 1.60 | 40.0 | 40.0 | 1.00 (0.50 – 2.00) | 1.36 | 1.20 | 30.0 / 31.0 |",
        "| `drqv2-100k` | 1,234 | 1.60 | 40.0 | 40.0 | 0.90 (0.45 – 1.80) | 1.36 | – | – |",
    ]


def test_environments_have_their_speed_and_stand_beside_random_actions(study: Path):
    assert (
        evidence.environments(study.parent / "none", 1) == evidence.curves(study.parent / "none", 1) == evidence.NO_RUNS
    )
    rows = ["method,task,seed,frames,decisions,updates,score,seconds,cpu_seconds,random"]
    for method, seconds in (("baseline", 40), ("mlr", 80)):
        for seed, scores in ((1, (-5, 0.5, 0.9)), (2, (-7, 0.25, 0.125))):
            rows += [
                f"{method},gym/a:B-v0,{seed},{2 * at},{at},0,{score},1,{seconds * at / 400},{0.2 if at == 0 else ''}"
                for at, score in zip((0, 200, 400), scores, strict=True)
            ]
    (study / "scores.csv").write_text("\n".join([*rows, ""]))
    told = [
        {"method": method, "task": "gym/a:B-v0", "recipe": {"agent": {"kind": "rainbow"}}}
        for method in evidence.METHODS
    ]
    (study / "about.json").write_text(json.dumps({"recipes": told}))
    assert evidence.environments(study, 1).splitlines()[2:] == [
        "| a:B-v0 | Rainbow + MLR | 400 | 5 | 0.2 | 0.512 | 1 of 2 | 0.2 → 0.9, 0.2 → 0.125 |",
        "| a:B-v0 | Rainbow | 400 | 10.0 | 0.2 | 0.512 | 1 of 2 | 0.2 → 0.9, 0.2 → 0.125 |",
    ]
    assert "0.2 → 0.7, 0.2 → 0.188" in evidence.environments(study, 2)


def test_exported_policies_stand_with_what_their_proofs_say(study: Path):
    assert evidence.exports(study, 1) == "Not exported yet."
    discrete = {"observations": 1000, "largest_difference": 2.0, "different": 3}
    box = {"observations": 1000, "largest_difference": 3.456e-7, "different": None}
    told = [
        {"task": "gym/b-v0", "proof": discrete | {"returns": [1.5, 2.0], "policy_returns": [1.5, 2.5]}},
        {"task": "gym/a:B-v0", "proof": box | {"returns": [7.0], "policy_returns": [7.0]}},
    ]
    (study / "exports.json").write_text(json.dumps(told))
    assert evidence.exports(study, 1).splitlines()[2:] == [
        "| a:B-v0 | 1,000 | 3.5e-07 | – | 1 of 1 |",
        "| b-v0 | 1,000 | 2 | 3 | 1 of 2, others within 0.5 |",
    ]


def test_published_proofs_are_of_runs_with_scores_and_of_no_machine():
    file = ROOT / "results" / "own-environments" / "exports.json"
    with file.with_name("scores.csv").open(newline="") as rows:
        known = {(row["task"], row["method"], int(row["seed"]), int(row["frames"])) for row in csv.DictReader(rows)}
    found = json.loads(file.read_text())
    assert {one["task"] for one in found} == {task for task, *_ in known}
    for one in found:
        assert (one["task"], one["method"], one["seed"], one["frames"]) in known
        assert (one["proof"]["observations"], len(one["proof"]["returns"])) == (1000, 5)
    assert not any(place in file.read_text() for place in ("/tmp", "/home", "/root", "/work"))


def test_the_hours_of_runs_are_by_the_clock_and_of_the_processor(study: Path):
    rows = ["method,task,seed,frames,score,seconds,cpu_seconds"]
    for method, clock, processor in (("mlr", 1800, 900), ("baseline", 1080, 720)):
        rows += [f"{method},gym/a:B-v0,{seed},{at},1,{clock},{processor}" for seed in (1, 2) for at in (10, 20)]
    (study / "scores.csv").write_text("\n".join([*rows, "mlr,gym/other,1,15,1,9,9", ""]))
    assert evidence.hours(study, 20) == (
        "On a:B-v0, one core each, 2 runs of MLR took 1.0 hours (0.5 of processor time) and 2 runs of Baseline took 0.6 hours "
        "(0.4 of processor time): 0.9 of processor time, 0.5 on each of two cores."
    )


def test_a_figure_shows_scores_below_zero_and_below_one():
    assert evidence._range([-50, 150]) == (-50, 160)
    assert evidence._range([0.2, 0.8]) == (0, pytest.approx(0.84))
    assert evidence._range([0, 0]) == (0, 1)


def test_a_figure_has_a_line_for_every_run(study: Path):
    drawn = ElementTree.fromstring(evidence.figure(study))
    kinds = [element.get("class", "") for element in drawn.iter("{http://www.w3.org/2000/svg}path")]
    assert kinds.count("seed c0") == kinds.count("seed c1") == 8


def test_a_figure_of_several_studies_has_the_seeds_that_all_methods_have(study: Path):
    rows = ["method,task,seed,frames,score,cpu_seconds"]
    for name, method, seeds in (("one", "mlr", (1, 2, 3)), ("two", "drq", (2, 3))):
        folder = study.with_name(name)
        folder.mkdir(exist_ok=True)
        runs = [f"{method},dmcontrol/cartpole-balance,{seed},{at},{seed * at},1" for seed in seeds for at in (0, 10)]
        (folder / "scores.csv").write_text("\n".join([*rows, *runs, ""]))
        (folder / "about.json").write_text(json.dumps({"commands": [], "runs": 3, "versions": {}, "recipes": []}))
    (evidence.ROOT / "README.md").write_text("<!-- evidence: curves one+two+none end -->\n\n<!-- end -->\n")
    assert evidence.main([]) == 0
    assert "(evidence/one_and_two_and_none.svg)" in (evidence.ROOT / "README.md").read_text()
    drawn = ElementTree.parse(evidence.ROOT / "docs" / "evidence" / "one_and_two_and_none.svg")
    kinds = [element.get("class", "") for element in drawn.iter("{http://www.w3.org/2000/svg}path")]
    assert [kinds.count(f"seed {colour}") for colour in ("c0", "c1")] == [2, 2]


def test_a_plan_goes_by_means_and_spreads_of_at_least_four_runs(study: Path):
    rows = evidence.measured([study]).splitlines()
    assert "one,dmcontrol/reacher-easy,lite,100000,mlr,275,142.009,4" in rows  # 110 · √(5/3)
    assert len(rows) == 1 + 4
    # A study that repeats some of the runs adds nothing, and neither does one of a changed MLR.
    assert evidence.measured([study, _copy(study, "two", keep=lambda row: ",14," not in row)]).splitlines() == rows
    assert (
        evidence.measured([_copy(study, "changed", change=lambda row: row.replace("mlr,", "mlr a=1,"))]).count("\n")
        == 1
    )


def test_a_plan_goes_by_both_methods_of_one_study(study: Path):
    """That with the largest smaller side: not four runs of MLR and eight of the Baseline, but five of each."""

    def twice(row: str) -> str:
        return f"{row}\n{row.replace(',1', ',2', 1)}" if row.startswith("baseline") else row

    rows = evidence.measured([study]).splitlines()
    wide = _copy(study, "wide", change=twice)
    assert (wide / "scores.csv").read_text().count("\nbaseline,dmcontrol/reacher-easy,") == 2 * 8
    assert evidence.measured([study, wide]).splitlines() == rows
    lone = _copy(study, "lone", keep=lambda row: not row.startswith("mlr,dmcontrol/reacher-easy,14,"), change=twice)
    kept = [row.split(",")[1] for row in evidence.measured([lone]).splitlines()[1:]]
    assert kept == 2 * ["dmcontrol/cartpole-swingup"]
    more = _copy(study, "more", change=lambda row: f"{row}\n{row.replace(',14,', ',15,')}" if ",14," in row else row)
    both = [(row.split(",")[0], row[-2:]) for row in evidence.measured([study, wide, more]).splitlines()[1:]]
    assert both == 4 * [("more", ",5")]


def test_a_small_spread_is_not_rounded_to_0(study: Path):
    """110, 220, 330 and 440 divided by 11,000: 0.01, 0.02, 0.03 and 0.04 have a spread of √(5/3) / 100."""

    def small(row: str) -> str:
        name, *values = row.split(",")
        return ",".join([name, *values[:5], f"{float(values[5]) / 11_000}", *values[6:]]) if name == "mlr" else row

    rows = evidence.measured([_copy(study, "small", change=small)]).splitlines()
    assert "small,dmcontrol/reacher-easy,lite,100000,mlr,0.025,0.0129099,4" in rows


def test_a_plan_does_not_go_by_scores_on_environments_of_users(study: Path):
    """Their values, such as env.colour, are not part of their name."""
    other = _copy(study, "own", change=lambda row: row.replace("dmcontrol/", "gym/"))
    about = other / "about.json"
    about.write_text(about.read_text().replace('"task": "dmcontrol/', '"task": "gym/'))
    assert evidence.measured([other]).count("\n") == 1


def test_a_plan_goes_by_scores_of_todays_profiles():
    """A study's recipe must not differ from the profile's own recipe, or its scores would be those of another method."""
    for study in {score.study for score in measured_scores()}:
        about = json.loads((ROOT / "results" / study / "about.json").read_text())
        for one in about["recipes"]:
            if one["method"] in evidence.METHODS:
                assert changes_of(from_json(json.dumps(one["recipe"]))) == [], (study, one["task"])


def _copy(
    study: Path,
    name: str,
    keep: Callable[[str], bool] = lambda row: True,
    change: Callable[[str], str] = lambda row: row,
) -> Path:
    other = study.with_name(name)
    other.mkdir()
    (other / "about.json").write_text((study / "about.json").read_text())
    rows = [change(row) for row in (study / "scores.csv").read_text().splitlines() if keep(row)]
    (other / "scores.csv").write_text("\n".join([*rows, ""]))
    return other


def test_a_stale_page_is_found_and_mended(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "README.md"
    page.write_text("Before\n<!-- evidence: seeds one 100000 -->\n440\n<!-- end -->\nAfter\n")
    assert evidence.main(["--check"]) == 1
    assert "README.md is not what results/ give" in capsys.readouterr().out
    assert evidence.main([]) == 0
    assert "| reacher-easy | MLR | 110 | 220 | 330 | 440 |" in page.read_text()
    assert evidence.main(["--check"]) == 0


def test_the_pages_quote_the_results():
    assert evidence.main(["--check"]) == 0
