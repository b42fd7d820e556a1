import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maskrl.analysis.protocol import changes_of, method_of, protocol_difference, protocol_of
from maskrl.analysis.reading import RunScores
from maskrl.analysis.results import publish
from maskrl.analysis.scores import Scores, ScoresError, scale
from maskrl.recipes import find, resolve
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.schema import Recipe, as_json

VERSIONS = {"python": "3.11.0", "mujoco": "3.3.6", "dm_control": "1.0.38", "ale-py": "0.12.1"}


def toy(seed: int = 1, method: str = "mlr", *overrides: str) -> Recipe:
    return resolve("toy/reach", [f"seed={seed}", *overrides], method=method)  # type: ignore[arg-type]


def rows(scores: Scores) -> list[tuple[str, str, int, str, int, float]]:
    """One for every run and evaluation."""
    return [(r.method, r.task, r.seed, r.unit, at, score) for r in scores.runs for at, score in r.curve]


def write_run(
    path: Path,
    recipe: Recipe,
    curve: Mapping[int, float],
    *,
    status: str = "done",
    versions: Mapping[str, str] = VERSIONS,
) -> Path:
    """A run directory as docs/files.md describes it: time in frames → score, each the mean of two episodes."""
    path.mkdir(parents=True)
    (path / "recipe.json").write_text(as_json(recipe))
    (path / "versions.json").write_text(json.dumps(versions))
    (path / "status.json").write_text(json.dumps({"status": status, "why": ""}))
    lines = [{"kind": "episode", "frames": 40, "decisions": 40, "return": -99.0}]
    for frames, score in curve.items():
        clock = {"frames": frames, "decisions": frames // recipe.env.action_repeat, "updates": 0, "seconds": 0.0}
        lines.append({"kind": "evaluation", **clock, "score": score, "returns": [score - 1, score + 1]})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def csv_file(path: Path, text: str) -> Path:
    file = path / "scores.csv"
    file.write_text(text)
    return file


# ── Run directories ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_evaluation_of_every_run_is_a_row(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / "deep" / f"mlr-{seed}", toy(seed), {0: 9, 3000: 20 + seed})
    write_run(tmp_path / "plain", toy(1, "baseline"), {3000: 15})
    scores = Scores.read(tmp_path)
    assert scores.problems == ()
    assert sorted(rows(scores)) == [
        ("baseline", "toy/reach", 1, "frames", 3000, 15),
        ("mlr", "toy/reach", 1, "frames", 0, 9),
        ("mlr", "toy/reach", 1, "frames", 3000, 21),
        ("mlr", "toy/reach", 2, "frames", 0, 9),
        ("mlr", "toy/reach", 2, "frames", 3000, 22),
    ]


def test_the_unit_of_replication_is_the_run(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path / str(seed), toy(seed), {3000: float(seed)})
    assert Scores.read(tmp_path).at().values("mlr", "toy/reach").tolist() == [1, 2, 3]  # not 6 episodes


def test_atari_is_counted_in_decisions(tmp_path: Path) -> None:
    write_run(tmp_path / "run", find("atari/pong", "paper"), {400_000: 5.0})
    assert rows(Scores.read(tmp_path)) == [("mlr", "atari/pong", 1, "decisions", 100_000, 5)]


def test_a_run_directory_can_be_named_itself(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", toy(), {3000: 1})
    assert len(Scores.read(path, str(path)).runs) == 1


def test_a_curve_is_in_the_order_of_time(tmp_path: Path) -> None:
    write_run(tmp_path / "run", toy(), {3000: 20, 0: 9})
    scores = Scores.read(tmp_path)
    assert (scores.runs[0].curve, scores.problems) == (((0, 9), (3000, 20)), ())


def test_an_empty_folder_and_one_that_is_not_there_are_told(tmp_path: Path) -> None:
    scores = Scores.read(tmp_path, tmp_path / "nowhere")
    assert scores.runs == ()
    assert scores.problems == (
        f"{tmp_path} holds no run: there is no recipe.json in it or below.",
        f"{tmp_path / 'nowhere'} does not exist. Name a run, a folder of runs or a CSV file.",
    )


def test_what_is_wrong_with_a_run_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    write_run(tmp_path / "a", toy(1), {3000: 1})
    write_run(tmp_path / "b", toy(2), {})
    write_run(tmp_path / "c", toy(3), {0: 5, 500: float("nan")}, status="failed")
    (write_run(tmp_path / "d", toy(4), {3000: 1}) / "recipe.json").write_text("{")
    (write_run(tmp_path / "e", toy(5), {3000: 1}) / "metrics.jsonl").write_text('{"kind": "evaluation"}\n')
    scores = Scores.read(tmp_path)
    assert [Path(run.source).name for run in scores.runs] == ["a", "c"]
    told = "\n".join(scores.problems)
    assert f"mlr on toy/reach, seed 2 ({tmp_path / 'b'}) has no evaluation; its status is done. Left out." in told
    assert f"seed 3 ({tmp_path / 'c'}): the score at 500 frames is not a finite number. Left out." in told
    assert f"seed 3 ({tmp_path / 'c'}) is at 0 of 3000 frames; its status is failed." in told
    assert f"{tmp_path / 'd' / 'recipe.json'} cannot be read by this version of maskrl" in told
    assert str(tmp_path / "e") in told
    assert len(scores.problems) == 5


def test_a_seed_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a", toy(1), {3000: 1})
    write_run(tmp_path / "b", toy(1), {3000: 2})
    scores = Scores.read(tmp_path)
    assert scores.at().values("mlr", "toy/reach").tolist() == [1]
    assert scores.problems == (
        f"mlr on toy/reach, seed 1 exists twice: {tmp_path / 'a'} is kept and {tmp_path / 'b'} left out.",
    )


def test_paths_may_overlap(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a", toy(1), {3000: 1})
    file = csv_file(tmp_path, "method,task,seed,frames,score\nother,toy/reach,1,3000,2\n")
    scores = Scores.read(tmp_path, run, run.parent / ".." / "runs", file, file)
    assert sorted(one.method for one in scores.runs) == ["mlr", "other"]
    assert scores.problems == ()


@pytest.mark.parametrize("score", ["1e101", "-1e101", "Infinity", "1" + "0" * 400])
def test_a_score_that_is_nearly_infinite_is_left_out(tmp_path: Path, score: str) -> None:
    run = write_run(tmp_path / "runs" / "a", toy(1), {1500: 4, 3000: 5})
    log = run / "metrics.jsonl"
    log.write_text(log.read_text().replace('"score": 5', f'"score": {score}'))
    rows = f"other,toy/reach,1,3000,{score}\nother,toy/reach,2,3000,1e100\n"
    scores = Scores.read(run, csv_file(tmp_path, f"method,task,seed,frames,score\n{rows}"))
    assert [one.curve for one in scores.runs] == [((1500, 4.0),), ((3000, 1e100),)]
    assert sum("not a finite number" in problem for problem in scores.problems) == 2


def test_a_time_that_is_infinite_is_a_damaged_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", toy(1), {3000: 5})
    write_run(tmp_path / "b", toy(2), {3000: 6})
    log = run / "metrics.jsonl"
    log.write_text(log.read_text().replace('"frames": 3000', '"frames": Infinity'))
    scores = Scores.read(tmp_path)
    assert [one.seed for one in scores.runs] == [2]
    assert scores.problems[0].startswith(f"{run} cannot be read (OverflowError")


def results_folder(path: Path) -> Path:
    """Two published runs of the lite profile on a task that the paper has."""
    for seed in (1, 2):
        write_run(path / "runs" / str(seed), control_run(seed), {100_000: 500.0 + seed})
    publish([path / "runs"], path / "results")
    return path / "results"


def control_run(seed: int) -> Recipe:
    return resolve("dmcontrol/reacher-easy", [f"seed={seed}"])


def test_the_scores_of_published_results_are_read_with_their_folder(tmp_path: Path) -> None:
    folder = results_folder(tmp_path)
    whole, file = Scores.read(folder), folder / "scores.csv"
    assert [run.protocol["profile"] for run in whole.runs] == ["lite", "lite"]
    (tmp_path / "link.csv").symlink_to(file)
    for paths in ([file], [file, folder], [folder, file], [folder, folder], [tmp_path / "link.csv", folder]):
        scores = Scores.read(*paths)
        assert [run.protocol for run in scores.runs] == [run.protocol for run in whole.runs], paths
        assert scores.problems == ()
    (folder / "about.json").unlink()
    assert [run.protocol.get("profile") for run in Scores.read(file).runs] == [None, None]


def test_of_two_equal_runs_the_one_that_says_more_of_its_protocol_is_kept(tmp_path: Path) -> None:
    folder = results_folder(tmp_path)
    copy = tmp_path / "copy.csv"
    copy.write_bytes((folder / "scores.csv").read_bytes())
    for paths in ([copy, folder], [folder, copy]):
        scores = Scores.read(*paths)
        assert [run.protocol.get("profile") for run in scores.runs] == ["lite", "lite"]
        assert scores.problems == (
            f"mlr on dmcontrol/reacher-easy, seeds 1–2 exist twice: {folder / 'scores.csv'} is kept and {copy} left out.",
        )
        assert {source for source, *_ in scores.repeats} == {str(copy)}


def test_a_csv_repeats_neither_of_two_protocols_away(tmp_path: Path) -> None:
    write_run(tmp_path / "b", toy(1), {3000: 1})
    write_run(tmp_path / "c", toy(1, "mlr", "env.size=40"), {3000: 2})
    file = csv_file(tmp_path, "method,task,seed,frames,score\nmlr,toy/reach,1,3000,1\nother,toy/reach,1,3000,1\n")
    scores = Scores.read(file, tmp_path / "b", tmp_path / "c")
    assert [Path(run.source).name for run in scores.runs] == ["scores.csv", "b", "c"]  # as they were read


def test_a_run_that_is_in_a_csv_as_well_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a", toy(1), {0: 9, 3000: 1})
    file = csv_file(tmp_path, "method,task,seed,frames,score\nmlr,toy/reach,1,0,9\nmlr,toy/reach,1,3000,1\n")
    scores = Scores.read(tmp_path, file)
    assert len(scores.runs) == 1
    assert "exists twice" in scores.problems[0]


def test_a_long_run_that_begins_as_a_short_one_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "long", toy(1, "mlr", "budget.frames=5000"), {3000: 1, 5000: 7})
    write_run(tmp_path / "short", toy(1), {3000: 1})
    scores = Scores.read(tmp_path)
    assert len(scores.runs) == 2
    early = scores.at(3000)
    assert early.values("mlr", "toy/reach").tolist() == [1]
    assert "exists twice" in early.problems[-1]
    assert early.conflicts() == []


# ── Methods ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_changed_method_has_its_own_name() -> None:
    assert method_of(toy(7, "mlr", "threads=2", "evaluation.every=1000", "budget.frames=1000")) == "mlr"
    assert method_of(toy(7, "mlr", "objective=none")) == "baseline"
    assert method_of(toy(7, "mlr", "objective.mask.ratio=0.3", "agent.hidden=64")) == (
        "mlr agent.hidden=64 objective.mask.ratio=0.3"
    )
    assert method_of(find("atari/pong", "lite", "der")) == "der"
    assert method_of(toy(7, "mlr", "objective=none", "agent.auxiliary.learning_rate=1e-3")) == "baseline"  # not used
    assert method_of(replace(toy(), name="toy/mine")) == "mlr"


def test_the_changes_of_a_recipe_are_those_of_its_method_and_its_environment() -> None:
    assert changes_of(toy(7, "mlr", "threads=2", "evaluation.every=1000", "budget.frames=1000", "env.timeout=9")) == []
    assert changes_of(toy(7, "mlr", "env.frame_stack=2", "objective.mask.ratio=0.3", "agent.hidden=64")) == [
        "env.frame_stack=2",
        "agent.hidden=64",
        "objective.mask.ratio=0.3",
    ]
    assert changes_of(toy(7, "mlr", "objective=none", "agent.auxiliary.learning_rate=1e-3")) == []  # not used


def test_runs_of_a_changed_method_are_no_seeds_of_the_method(tmp_path: Path) -> None:
    write_run(tmp_path / "a", toy(1), {3000: 1})
    write_run(tmp_path / "b", toy(2, "mlr", "objective.mask.ratio=0.3"), {3000: 2})
    assert Scores.read(tmp_path).methods == ["mlr", "mlr objective.mask.ratio=0.3"]


# ── CSV ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_csv_is_read(tmp_path: Path) -> None:
    file = csv_file(
        tmp_path, "\ufeffSeed, method,task,score,frames\n1,mlr,walker-walk,640,100000\n2.0,mlr,walker-walk,1e2,1e5\n"
    )
    scores = Scores.read(file)
    assert scores.problems == ()
    assert rows(scores) == [
        ("mlr", "dmcontrol/walker-walk", 1, "frames", 100_000, 640),
        ("mlr", "dmcontrol/walker-walk", 2, "frames", 100_000, 100),
    ]


def test_a_row_with_both_times_is_counted_as_its_benchmark_does(tmp_path: Path) -> None:
    file = csv_file(
        tmp_path, "method,task,seed,decisions,frames,score\nm,pong,1,100,400,5\nm,walker-walk,1,100,200,6\n"
    )
    assert [row[3:5] for row in rows(Scores.read(file))] == [("decisions", 100), ("frames", 200)]


def test_other_column_names_are_told(tmp_path: Path) -> None:
    file = csv_file(tmp_path, "algo,env,seed,step,score\nmlr,walker-walk,1,100000,640\n")
    assert Scores.read(file).problems == (
        f"{file} has the columns algo, env, seed, step, score; there is no method, no task, no frames or decisions.",
    )


@pytest.mark.parametrize("text", ["", "method,task,seed,frames,score\n"])
def test_an_empty_csv_is_told(tmp_path: Path, text: str) -> None:
    assert len(Scores.read(csv_file(tmp_path, text)).problems) == 1


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read as a CSV" in Scores.read(tmp_path / "scores.csv").problems[0]


def test_bad_rows_are_told_and_the_others_are_read(tmp_path: Path) -> None:
    file = csv_file(
        tmp_path,
        "method,task,seed,frames,score\n"
        "mlr,t,1,100,5\n"
        "mlr,t,2,100,nan\n"
        "mlr,t,x,100,5\n"
        "mlr,t,3,,5\n"
        "mlr,t\n"
        "mlr,t,4,inf,5\n"
        "mlr,t,5,100.5,5\n"
        "mlr\n"
        "mlr,t,6,100,high\n",
    )
    scores = Scores.read(file)
    assert [run.seed for run in scores.runs] == [1]
    assert scores.problems == (
        f"{file}, line 3 and 1 more: score is not a finite number (mlr,t,2,100,nan). Left out.",
        f"{file}, line 4 and 1 more: seed is not a whole number (mlr,t,x,100,5). Left out.",
        f"{file}, line 5: frames or decisions is missing (mlr,t,3,,5). Left out.",
        f"{file}, line 7 and 1 more: frames is not a whole number (mlr,t,4,inf,5). Left out.",
        f"{file}, line 9: task is missing (mlr). Left out.",
    )


@pytest.mark.parametrize("row", ["{},t,2,100,5", "mlr,{},2,100,5"])
def test_a_name_of_a_thousand_characters_is_the_longest(tmp_path: Path, row: str) -> None:
    rows = [row.format("n" * 1000), row.format("n" * 1001)]
    scores = Scores.read(csv_file(tmp_path, "\n".join(["method,task,seed,frames,score", *rows])))
    assert len(scores.runs) == 1
    (problem,) = scores.problems
    assert "line 3: " in problem
    assert "has more than 1,000 characters" in problem
    assert len(problem) < 300


def test_many_bad_rows_are_one_problem(tmp_path: Path) -> None:
    rows = "mlr,t,1,100,5\n" + f"mlr,{'t' * 1000},x,100,5\n" * 5000
    (problem,) = Scores.read(csv_file(tmp_path, f"method,task,seed,frames,score\n{rows}")).problems
    assert "line 3 and 4,999 more: seed is not a whole number (mlr,ttt" in problem
    assert len(problem) < 300


def test_episodes_in_a_csv_are_not_taken_for_seeds(tmp_path: Path) -> None:
    rows = "".join(f"mlr,t,1,100,{score}\n" for score in (5, 6, 7)) + "mlr,t,2,100,6\n"
    scores = Scores.read(csv_file(tmp_path, f"method,task,seed,frames,score\n{rows}"))
    assert scores.at().values("mlr", "other/t").tolist() == [6]
    told = "mlr on other/t, seed 1 has 3 scores at 100 frames"
    assert scores.problems == (
        f"{tmp_path / 'scores.csv'}: {told}. A run has one: episodes are not seeds. It is left out.",
    )
    rows += "".join(f"mlr,t,{seed},100,{score}\n" for seed in (3, 4) for score in (5, 6))
    (problem,) = Scores.read(csv_file(tmp_path, f"method,task,seed,frames,score\n{rows}")).problems
    assert f"{told}, and 2 more runs have several scores at one time. A run has one" in problem


# ── Numbers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def made(scores: Mapping[tuple[str, str, int], float]) -> Scores:
    """Runs by (method, task, seed), each with a score at 100 frames."""
    return Scores(
        tuple(
            RunScores(method, task, seed, "frames", ((100, score),), {"budget.frames": 100}, "made")
            for (method, task, seed), score in scores.items()
        )
    )


def test_a_time_is_chosen_before_scores_are_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", toy(1), {0: 9, 500: 12, 3000: 20})
    write_run(tmp_path / "b", toy(2), {0: 9, 500: 14}, status="running")
    scores = Scores.read(tmp_path)
    assert scores.at().values("mlr", "toy/reach").tolist() == [20]
    assert "has no score at 3000 frames: its last is at 500. Left out." in scores.at().problems[-1]
    assert scores.at(500).values("mlr", "toy/reach").tolist() == [12, 14]
    with pytest.raises(ScoresError, match="has 3 scores: choose a time"):
        scores.values("mlr", "toy/reach")


def test_the_matrix_is_runs_by_tasks_with_the_seeds_that_every_task_has_room_for() -> None:
    scores = made(
        {("m", "t/a", 3): 30, ("m", "t/a", 1): 10, ("m", "t/a", 2): 20, ("m", "t/b", 5): 5, ("m", "t/b", 4): 4}
    )
    assert scores.matrix("m", ["t/a", "t/b"]).tolist() == [[10, 4], [20, 5]]
    with pytest.raises(ScoresError, match="n has no scores on t/a, t/b"):
        scores.matrix("n", ["t/a", "t/b"])
    with pytest.raises(ScoresError, match="no task"):
        scores.matrix("m", [])


class Counted(tuple[RunScores, ...]):
    """Runs that count how often they are gone through."""

    passes = 0

    def __iter__(self) -> Iterator[RunScores]:
        self.passes += 1
        return super().__iter__()


def test_runs_are_gone_through_once_for_the_scores_of_all_methods_on_all_tasks() -> None:
    cells = [(f"m{method}", f"t/{task}") for method in range(20) for task in range(20)]
    runs = Counted(made({(*cell, 1): 1 for cell in cells}).runs)
    scores = Scores(runs)
    assert all(scores.values(*cell).tolist() == [1] for cell in cells)
    assert runs.passes == 1


def test_scores_are_normalised_by_their_suite() -> None:
    scores = made({("m", "dmcontrol/walker-walk", 1): 640, ("m", "atari/pong", 1): 14.6, ("m", "toy/catch", 1): -3.75})
    assert [row[-1] for row in rows(scores.normalised())] == pytest.approx([0.64, 1.0, 0.0])
    assert scale("atari/pong") == (-20.7, 14.6)
    assert scale("toy/reach") == (9.18, 38.54)
    lost = made({("m", "atari/tetris", 1): 1, ("m", "atari/pong", 1): 14.6}).normalised()
    assert [run.task for run in lost.runs] == ["atari/pong"]
    assert lost.problems == ("atari/tetris has no scale to normalise its scores with: left out.",)


def test_parts_can_be_chosen() -> None:
    scores = made({("m", "a/x", 1): 1, ("n", "b/y", 1): 2})
    assert (scores.methods, scores.tasks, scores.suites) == (["m", "n"], ["a/x", "b/y"], ["a", "b"])
    assert scores.where(lambda run: run.suite == "b").methods == ["n"]


# ── Protocol ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "override",
    [
        "env.action_repeat=8",
        "env.size=84",
        "env.frame_stack=2",
        "budget.frames=200000",
        "evaluation.episodes=5",
        "env.camera=1",
    ],
)
def test_what_must_agree_changes_the_protocol(override: str) -> None:
    recipe = find("dmcontrol/reacher-easy", "paper", "baseline")
    changed = with_overrides(recipe, [override, "agent.augment.crop=84"])
    one, other = protocol_of(recipe), protocol_of(changed)
    assert one != other
    assert [line.split(":")[0] for line in protocol_difference(one, other)] == [override.split("=")[0]]


def test_the_unit_of_the_budget_the_profile_and_the_task_change_the_protocol() -> None:
    recipe = find("dmcontrol/reacher-easy", "paper", "baseline")
    unit = with_overrides(recipe, ["budget.frames=none", "budget.decisions=25000"])
    assert protocol_difference(protocol_of(recipe), protocol_of(unit)) == [
        "budget.frames: 100000 -> none",
        "budget.decisions: none -> 25000",
    ]
    assert protocol_of(recipe)["profile"] == "paper"
    assert protocol_of(recipe)["env.task"] == "reacher-easy"


@pytest.mark.parametrize("override", ["seed=9", "agent.hidden=64", "threads=1", "evaluation.every=1000", "device=cpu"])
def test_what_need_not_agree_does_not(override: str) -> None:
    recipe = find("dmcontrol/reacher-easy", "paper")
    assert protocol_of(recipe) == protocol_of(with_overrides(recipe, [override]))


def test_both_methods_have_one_protocol() -> None:
    for name, profile in (("dmcontrol/walker-walk", "lite"), ("atari/pong", "paper"), ("toy/reach", "lite")):
        one, other = (find(name, profile, method) for method in ("mlr", "baseline"))  # type: ignore[arg-type]
        assert protocol_of(one) == protocol_of(other)
    assert protocol_of(find("atari/pong", "paper", "drq")) == protocol_of(find("atari/pong", "paper"))


def test_versions_of_the_simulator_in_use_are_in_the_protocol() -> None:
    control, game = find("dmcontrol/walker-walk", "lite"), find("atari/pong", "lite")
    of_control, of_game = protocol_of(control, VERSIONS), protocol_of(game, VERSIONS)
    assert (of_control["mujoco"], of_control["dm_control"]) == ("3.3.6", "1.0.38")
    assert "ale-py" not in of_control
    assert of_game["ale-py"] == "0.12.1"
    assert "mujoco" not in of_game
    assert protocol_of(toy(), VERSIONS) == protocol_of(toy())


def test_a_version_that_is_not_told_is_no_difference_but_a_problem(tmp_path: Path) -> None:
    recipe = find("dmcontrol/walker-walk", "lite")
    write_run(tmp_path / "a", recipe, {recipe.frames: 1})
    write_run(tmp_path / "b", replace(recipe, seed=2), {recipe.frames: 2}, versions={"mujoco": "3.3.6"})
    scores = Scores.read(tmp_path)
    assert scores.conflicts() == []
    assert scores.problems == (
        f"mlr on dmcontrol/walker-walk, seed 2 ({tmp_path / 'b'}) does not record its version of dm_control.",
    )


def test_a_mixture_is_refused_and_the_difference_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "a", toy(1), {3000: 1})
    write_run(tmp_path / "b", toy(2, "baseline", "budget.frames=1000", "env.size=40"), {1000: 2})
    scores = Scores.read(tmp_path).at()
    assert scores.conflicts() == [
        f"toy/reach: env.size is 32 in 1 run ({tmp_path / 'a'}), 40 in 1 run ({tmp_path / 'b'})",
        f"toy: budget.frames is 3000 in 1 run ({tmp_path / 'a'}), 1000 in 1 run ({tmp_path / 'b'})",
    ]
    with pytest.raises(ScoresError, match=r"do not have the same protocol:\n  toy/reach: env.size is 32"):
        scores.matrix("mlr", ["toy/reach"])
    assert scores.matrix("mlr", ["toy/reach"], mixed=True).tolist() == [[1]]


def test_two_versions_of_a_simulator_are_a_mixture(tmp_path: Path) -> None:
    recipe = find("dmcontrol/walker-walk", "lite")
    write_run(tmp_path / "a", recipe, {recipe.frames: 1})
    write_run(tmp_path / "b", replace(recipe, seed=2), {recipe.frames: 2}, versions=VERSIONS | {"mujoco": "3.4.0"})
    (conflict,) = Scores.read(tmp_path).conflicts()
    assert conflict.startswith("dmcontrol: mujoco is 3.3.6 in 1 run")


def test_tasks_may_differ_in_their_environments_but_not_in_their_budgets(tmp_path: Path) -> None:
    write_run(tmp_path / "a", find("dmcontrol/walker-walk", "paper"), {100_000: 1})
    write_run(tmp_path / "b", find("dmcontrol/cartpole-swingup", "paper"), {100_000: 2})
    assert Scores.read(tmp_path).conflicts() == []
    write_run(tmp_path / "c", resolve("dmcontrol/reacher-easy", ["budget.frames=60000"]), {60_000: 2})
    told = [line.split(" is ")[0] for line in Scores.read(tmp_path).conflicts()]
    assert told == ["dmcontrol: profile", "dmcontrol: budget.frames"]


@pytest.mark.parametrize("method", ["sac_ae", "drq", "drqv2", "drqv2-100k"])
def test_what_a_system_sets_of_the_environment_does_not_set_its_runs_apart(method: str) -> None:
    """Its frames of 84 pixels and its action repeat are its own choice; what a user changes is not."""
    ours, theirs = find("dmcontrol/cheetah-run", "paper"), find("dmcontrol/cheetah-run", "paper", method)
    assert theirs.env.size == 84 != ours.env.size
    assert protocol_difference(protocol_of(ours), protocol_of(theirs)) == []
    changed = with_overrides(theirs, ["env.camera=1"])
    assert protocol_difference(protocol_of(ours), protocol_of(changed)) == ["env.camera: 0 -> 1"]
    assert method_of(theirs) == method


def test_suites_have_protocols_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "a", find("dmcontrol/walker-walk", "paper"), {100_000: 1})
    write_run(tmp_path / "b", find("atari/pong", "lite"), {40_000: 2})
    assert Scores.read(tmp_path).conflicts() == []


def test_the_budget_of_a_csv_is_the_latest_time_of_a_task(tmp_path: Path) -> None:
    rows = ["mlr,t,1,100,1", "baseline,t,1,50,1", "mlr,u,1,70,1"]
    scores = Scores.read(csv_file(tmp_path, "\n".join(["method,task,seed,frames,score", *rows])))
    assert {run.name: run.budget for run in scores.runs} == {
        "mlr on other/t, seed 1": 100,
        "baseline on other/t, seed 1": 100,
        "mlr on other/u, seed 1": 70,
    }


def test_a_seed_of_a_csv_that_ends_early_is_a_problem(tmp_path: Path) -> None:
    file = csv_file(tmp_path, "method,task,seed,frames,score\nmlr,t,1,50,1\nmlr,t,1,100,2\nmlr,t,2,50,1\n")
    scores = Scores.read(file)
    assert [run.budget for run in scores.runs] == [100, 100]  # of the task: a seed that ends early has not got there
    assert len(scores.groups()) == 1
    final = scores.at()
    assert final.values("mlr", "other/t").tolist() == [2]
    assert final.problems == (
        f"mlr on other/t, seed 2 ({file}) has no score at 100 frames: its last is at 50. Left out.",
    )
    assert np.array_equal(scores.at(50).values("mlr", "other/t"), [1, 1])


# ── Groups ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def sources(groups: list[Scores]) -> list[set[str]]:
    return [{run.source.rpartition("/")[2] for run in group.runs} for group in groups]


def test_groups_have_one_protocol_each(tmp_path: Path) -> None:
    write_run(tmp_path / "a", toy(1), {3000: 1})
    write_run(tmp_path / "b", toy(2, "baseline"), {3000: 1})
    write_run(tmp_path / "c", toy(3, "mlr", "budget.frames=6000"), {6000: 1})
    groups = Scores.read(tmp_path).groups()
    assert sources(groups) == [{"a", "b"}, {"c"}]
    assert [group.conflicts() for group in groups] == [[], []]


def test_groups_put_the_same_departure_on_all_tasks_together(tmp_path: Path) -> None:
    def control(task: str, *overrides: str) -> Recipe:
        return resolve(f"dmcontrol/{task}", overrides, profile="paper")

    write_run(tmp_path / "own-cheetah", control("cheetah-run"), {100_000: 1})
    write_run(tmp_path / "own-walker", control("walker-walk"), {100_000: 1})  # with an action repeat of its own
    write_run(tmp_path / "small-cheetah", control("cheetah-run", "env.frame_stack=2"), {100_000: 1})
    write_run(tmp_path / "a-small-walker", control("walker-walk", "env.frame_stack=2"), {100_000: 1})  # comes first
    found = sources(Scores.read(tmp_path).groups())
    assert sorted(found, key=sorted) == [{"a-small-walker", "small-cheetah"}, {"own-cheetah", "own-walker"}]


def test_groups_keep_suites_apart_and_a_csv_contradicts_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "toy", toy(1), {3000: 1})
    file = csv_file(tmp_path, "method,task,seed,frames,score\nother,toy/reach,1,3000,2\nother,walker-walk,1,3000,2\n")
    groups = Scores.read(tmp_path / "toy", file).groups()
    assert [sorted({run.method for run in group.runs}) for group in groups] == [["mlr", "other"], ["other"]]
