"""Scores that are published can be read again without the runs, and say the same."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from maskrl.analysis.results import ResultsError, publish
from maskrl.analysis.scores import Scores
from maskrl.analysis.verdict import versus
from maskrl.envs.gym import Gym
from maskrl.recipes import resolve
from written import VERSIONS, write_run

CURVES = {"mlr": (30.0, 31.5, 33.25, 32.0), "baseline": (20.0, 22.5, 21.0, 20.5)}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for method, scores in CURVES.items():
        recipe = resolve("toy/reach", method=method)
        for seed, score in enumerate(scores, start=11):
            write_run(tmp_path / "runs" / f"{method}-{seed}", replace(recipe, seed=seed), {0: 9.0, 3000: score})
    return tmp_path / "runs"


def test_what_is_read_from_published_results_is_what_the_runs_say(runs: Path, tmp_path: Path):
    assert publish([runs], tmp_path / "results" / "one", commands=["maskrl sweep studies/one"]) == (8, [])
    ours, theirs = Scores.read(runs), Scores.read(tmp_path / "results")
    assert theirs.problems == ()
    assert {(r.method, r.task, r.seed, r.curve) for r in theirs.runs} == {
        (r.method, r.task, r.seed, r.curve) for r in ours.runs
    }
    assert all(run.protocol == ours.runs[0].protocol for run in theirs.runs)
    assert versus(theirs, "mlr", "baseline").tasks == versus(ours, "mlr", "baseline").tasks
    about = json.loads((tmp_path / "results" / "one" / "about.json").read_text())
    assert about["commands"] == ["maskrl sweep studies/one"]
    assert (about["versions"], about["machines"]) == (VERSIONS, [])  # these runs do not say on which machine
    assert [(one["method"], one["task"]) for one in about["recipes"]] == [
        ("baseline", "toy/reach"),
        ("mlr", "toy/reach"),
    ]


def test_results_are_written_in_one_order_and_grow_with_the_runs(runs: Path, tmp_path: Path):
    (runs / "mlr-11" / "status.json").write_text(json.dumps({"status": "stopped", "why": ""}))
    done, unfinished = publish([runs], tmp_path / "results")
    assert (done, unfinished) == (7, [f"{runs / 'mlr-11'} is stopped"])
    before = (tmp_path / "results" / "scores.csv").read_text().splitlines()
    (runs / "mlr-11" / "status.json").write_text(json.dumps({"status": "done", "why": ""}))
    publish([runs, runs / "mlr-11"], tmp_path / "results")
    after = (tmp_path / "results" / "scores.csv").read_text().splitlines()
    assert [line for line in after if line not in before] == [
        "mlr,toy/reach,11,0,0,0,9.0,0.0,,",
        "mlr,toy/reach,11,3000,3000,0,30.0,3.0,,",
    ]
    assert [line for line in after if line in before] == before


def test_results_can_be_added_to_on_another_machine(runs: Path, tmp_path: Path):
    out = tmp_path / "results"
    assert publish([runs], out, commands=["maskrl sweep toy"]) == (8, [])
    before = {name: (out / name).read_text().splitlines() for name in ("scores.csv", "probes.csv")}
    elsewhere = VERSIONS | {"cpu": "another", "threads": 2}
    write_run(tmp_path / "more", replace(resolve("toy/reach"), seed=15), {0: 9.0, 3000: 34.0}, versions=elsewhere)
    assert publish([tmp_path / "more"], out, commands=["maskrl sweep toy"], add=True) == (9, [])
    after = {name: (out / name).read_text().splitlines() for name in before}
    assert [line for line in after["scores.csv"] if line in before["scores.csv"]] == before["scores.csv"]
    assert after["scores.csv"][-1] == "mlr,toy/reach,15,3000,3000,0,34.0,3.0,,"
    about = json.loads((out / "about.json").read_text())
    assert (about["runs"], about["commands"]) == (9, ["maskrl sweep toy"])
    assert {"cpu": "another"}.items() <= about["machines"][-1].items()
    assert publish([tmp_path / "more", runs], out, add=True) == (9, [])  # the same runs again
    assert {name: (out / name).read_text().splitlines() for name in before} == after


def test_extended_runs_are_published_beside_others(runs: Path, tmp_path: Path):
    """Their results are those of runs with the longer budget from the start, so the earlier budgets are no versions."""
    history = [{"recipe": "12345678", "budget": {"frames": 1500, "decisions": None}}]
    recipe = replace(resolve("toy/reach"), seed=15)
    write_run(tmp_path / "more", recipe, {0: 9.0, 3000: 34.0}, versions=VERSIONS | {"extended": history})
    assert publish([runs, tmp_path / "more"], tmp_path / "results") == (9, [])
    assert json.loads((tmp_path / "results" / "about.json").read_text())["versions"] == VERSIONS


def test_a_run_that_was_published_must_have_the_same_scores(runs: Path, tmp_path: Path):
    with pytest.raises(ResultsError, match="holds no results to add to"):
        publish([runs], tmp_path / "results", add=True)
    publish([runs], tmp_path / "results")
    write_run(tmp_path / "again", replace(resolve("toy/reach"), seed=11), {0: 9.0, 3000: 30.5})
    with pytest.raises(ResultsError, match=r"30\.5 at 3000 frames.*seed 11 was published with 30\.0"):
        publish([tmp_path / "again"], tmp_path / "results", add=True)
    write_run(
        tmp_path / "later", replace(resolve("toy/reach"), seed=16), {3000: 1.0}, versions=VERSIONS | {"torch": "9"}
    )
    with pytest.raises(ResultsError, match="other versions"):
        publish([tmp_path / "later"], tmp_path / "results", add=True)


def test_runs_of_two_codes_or_recipes_are_not_published_together(runs: Path, tmp_path: Path):
    odd = replace(resolve("toy/reach", ["agent.hidden=64"]), seed=15)
    write_run(runs / "odd", odd, {3000: 1.0})
    assert publish([runs], tmp_path / "results")[0] == 9  # under a name of its own
    write_run(runs / "later", replace(resolve("toy/reach"), seed=16), {3000: 1.0}, versions=VERSIONS | {"maskrl": "9"})
    with pytest.raises(ResultsError, match=r"was made with other versions \(maskrl"):
        publish([runs], tmp_path / "results")
    with pytest.raises(ResultsError, match="No run is done"):
        publish([tmp_path / "nothing"], tmp_path / "results")


def test_results_whose_recipes_cannot_be_read_have_scores_and_a_problem(runs: Path, tmp_path: Path):
    publish([runs], tmp_path / "results")
    (tmp_path / "results" / "about.json").write_text("{")
    scores = Scores.read(tmp_path / "results")
    assert len(scores.runs) == 8
    assert "does not say how these scores were made" in scores.problems[0]


def test_probes_are_published_with_the_linear_ones_of_the_same_time(tmp_path: Path):
    recipe = resolve("toy/reach", method="mlr")
    probes = [
        {
            "kind": "probe",
            "frames": frames,
            "encoder_cosine": 0.81234567,
            "decoder_cosine": None,
            "rank": 20.5,
            "dead": 0.0,
        }
        for frames in (1000, 3000)
    ]
    run = write_run(tmp_path / "runs" / "one", recipe, {0: 9.0, 3000: 30.0}, events=probes)
    linear = {"r2": 0.77777, "r2_random_encoder": 0.5}
    (run / "probe.json").write_text(json.dumps({"frames": 3000, "linear": linear}))
    publish([run], tmp_path / "results")
    assert (tmp_path / "results" / "probes.csv").read_text().splitlines() == [
        "method,task,seed,frames,encoder_cosine,decoder_cosine,rank,dead,r2,r2_random_encoder",
        "mlr,toy/reach,1,1000,0.8123,,20.5,0.0,,",
        "mlr,toy/reach,1,3000,0.8123,,20.5,0.0,0.7778,0.5",
    ]
    (run / "probe.json").write_text(json.dumps({"frames": 2000, "linear": linear}))  # between evaluations
    publish([run], tmp_path / "results")
    assert (tmp_path / "results" / "probes.csv").read_text().endswith("20.5,0.0,,\n")
    earlier = [{"frames": 1000, "linear": {"r2": 0.25, "r2_random_encoder": 0.5}}, "damaged", {"linear": linear}]
    (run / "probe.json").write_text(json.dumps({"frames": 3000, "linear": linear, "earlier": earlier}))
    publish([run], tmp_path / "results")
    rows = (tmp_path / "results" / "probes.csv").read_text().splitlines()[1:]
    assert [row.split(",")[-2:] for row in rows] == [["0.25", "0.5"], ["0.7778", "0.5"]]
    assert Scores.read(tmp_path / "results").problems == ()


def test_random_actions_are_published_beside_the_first_evaluation(tmp_path: Path):
    chance = {"kind": "random", "frames": 0, "score": 0.12345, "returns": [0, 1]}
    write_run(tmp_path / "run", resolve("toy/reach"), {0: 9.0, 3000: 30.0}, events=[chance])
    publish([tmp_path / "run"], tmp_path / "results")
    lines = (tmp_path / "results" / "scores.csv").read_text().splitlines()
    assert lines[0].endswith(",cpu_seconds,random")
    assert [line.rpartition(",")[2] for line in lines[1:]] == ["0.1235", ""]


def test_results_of_an_earlier_version_are_replaced_and_added_to(runs: Path, tmp_path: Path):
    """They have no column of random actions."""
    publish([runs], tmp_path / "results")
    table = tmp_path / "results" / "scores.csv"
    earlier = "\n".join(line.rpartition(",")[0] for line in table.read_text().splitlines()) + "\n"
    for add in (False, True):
        table.write_text(earlier)
        assert publish([runs], tmp_path / "results", add=add)[0] == 8
        assert table.read_text().startswith(
            "method,task,seed,frames,decisions,updates,score,seconds,cpu_seconds,random"
        )


def test_the_folder_of_a_users_file_is_not_published(tmp_path: Path):
    recipe = resolve("toy/reach")
    env = Gym(task="mine.py:make_env", source="file", file="/home/me/secret/mine.py", sha256="0" * 64)
    write_run(tmp_path / "run", replace(recipe, name="gym/mine.py:make_env", env=env), {3000: 30.0})
    publish([tmp_path / "run"], tmp_path / "results")
    text = (tmp_path / "results" / "about.json").read_text()
    assert '"file": "mine.py"' in text
    assert "secret" not in text
    assert Scores.read(tmp_path / "results").problems == ()
