"""What `maskrl bench replay`, `env` and `run` compute from what they time. How long anything takes is asserted nowhere."""

import json
import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders import require_drawing
from maskrl import cli, recipes
from maskrl.bench import throughput
from maskrl.bench.throughput import (
    PARTS,
    Kind,
    ReplayBench,
    RunBench,
    averaged,
    bench_env,
    bench_replay,
    bench_run,
    compare_runs,
    fill,
    picture_difference,
    promises,
    shortened,
    side_by_side,
    together,
)
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Replay
from maskrl.runs import loop as training
from tiny_runs import tiny_rainbow, tiny_recipe

TINY = (
    Kind("uniform", (3, 8, 8), 3, 2, False, None, transitions=8, clips=4, steps=1),
    Kind("prioritised", (1, 8, 8), 4, 3, True, 0.5, transitions=8, clips=4, steps=3),
)


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary directories are made here, where it shows if one is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def silent(_: str) -> None:
    pass


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


# ── The replay ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", TINY, ids=lambda kind: kind.name)
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_filled_replay_is_full_and_every_frame_of_it_is_written(kind: Kind, on_disk: bool, tmp_path: Path):
    replay = Replay(**kind.size(4000), seed=0, directory=tmp_path / "replay" if on_disk else None)
    fill(replay, 4000)
    assert len(replay) == 4000  # 4 episodes of 1000, which have 1001 frames
    state = replay.state_dict()
    assert np.unique(state["first"]).tolist() == [0, 1001, 2002, 3003]
    assert np.flatnonzero(state["truncated"]).tolist() == [999, 2000, 3001, 4002]
    batch = replay.transitions(replay.spread(4000))
    frame = batch.next_obs[:, -kind.frame_shape[0] :]
    assert (frame == frame[0]).all()
    assert len(np.unique(frame[0].numpy())) > 30
    assert replay.clips(replay.draw(500, span=16), length=16).valid.all()
    if kind.priority_exponent is not None:
        weights = replay.draw(100, correction=1.0).weights
        assert weights.min() < weights.max() == 1


def test_the_last_episode_may_be_shorter():
    replay = Replay(**TINY[1].size(2500), seed=0)
    fill(replay, 2500)
    assert len(replay) == 2500
    assert np.unique(replay.state_dict()["first"]).tolist() == [0, 1001, 2002]
    assert np.flatnonzero(replay.state_dict()["truncated"]).tolist() == [999, 2000, 2501]


def test_a_replay_shorter_than_an_episode_is_one_episode():
    replay = Replay(**TINY[0].size(40), seed=0)
    fill(replay, 40)
    assert len(replay) == 40


def test_replays_of_every_kind_and_size_are_measured_and_nothing_stays(tmp_path: Path):
    told: list[str] = []
    rows = list(bench_replay([300, 1000], kinds=TINY, seconds=0.01, tell=told.append))
    assert [(row.transitions, row.kind, row.storage) for row in rows] == [
        (size, kind.name, storage) for size in (300, 1000) for kind in TINY for storage in ("memory", "disk")
    ]
    for row, kind in zip(rows, 2 * [TINY[0], TINY[0], TINY[1], TINY[1]], strict=True):
        assert row.nbytes == Replay.forecast(**kind.size(row.transitions))
        assert row.skipped is None
        assert row.transitions_per_second is not None
        assert row.clips_per_second is not None
        assert min(row.transitions_per_second, row.clips_per_second) > 0
    assert len(told) == 8
    assert not list(tmp_path.glob("maskrl-*"))


def test_what_does_not_fit_is_skipped_and_named(monkeypatch: pytest.MonkeyPatch):
    needs = Replay.forecast(**TINY[0].size(1000))
    monkeypatch.setattr(throughput, "_free", lambda storage, _: 2 * needs - (1 if storage == "memory" else 0))
    memory, disk = bench_replay([1000], kinds=TINY[:1], seconds=0.01, tell=silent)
    assert memory.skipped is not None
    assert "of memory" in memory.skipped
    assert (memory.transitions_per_second, memory.clips_per_second) == (None, None)
    assert disk.skipped is None


def test_bytes_of_a_transition():
    assert ReplayBench("kind", "memory", 1000, 31_000).bytes_per_transition == 31


def test_the_replays_that_have_a_limit():
    control, atari = promises()
    # A frame, what is kept beside it (8 + 4 · A + 4 + 2), its stamp; 1 % more for the ends of episodes, and a stack.
    assert control.nbytes == (101_000 + 3 + 1) * (30_000 + 14 + 4 * 6 + 4)
    assert control.nbytes <= control.limit == 3.1e9
    assert atari.transitions == 1_000_000
    assert atari.nbytes == (1_001_000 + 4 + 1) * (7056 + 14 + 1 + 4) + 2 * 8 * 2**20  # 0.1 % is 1000 ends; and a tree
    assert atari.nbytes <= atari.limit == 7.1e9


def test_typed_replays(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    code, out, err = typed(capsys, "bench", "replay", "--sizes", "300", "--json")
    assert code == 0
    value = json.loads(out)
    assert [row["storage"] for row in value["replays"]] == ["memory", "disk"] * 2
    assert value["limits"][0]["limit"] == 3_100_000_000
    assert "DMControl, uniform: 300 transitions" in err
    assert not list(tmp_path.glob("maskrl-*"))


@pytest.mark.parametrize(("sizes", "expected"), [("10,many", "whole numbers"), ("3", "the least is 16")])
def test_sizes_that_are_none_are_refused(capsys: pytest.CaptureFixture[str], sizes: str, expected: str):
    code, _, err = typed(capsys, "bench", "replay", "--sizes", sizes)
    assert code == 2
    assert expected in err


# ── Environments ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_difference_of_pictures():
    """Of 2 × 2 pixels in 3 colours: one by 2 in a colour, one by 3 in two of them."""
    a = np.full((1, 3, 2, 2), 100, np.uint8)
    b = a.copy()
    b[0, 0, 0, 0] = 98
    b[0, 1:, 1, 1] = 103
    mean, share = picture_difference(a, b)
    assert mean == (2 + 3 + 3) / 12
    assert share == 1 / 4


def test_toys_are_drawn_and_the_rest():
    table = bench_env([recipes.find("toy/reach"), recipes.find("toy/catch")], sizes=[48], seconds=0.05, tell=silent)
    assert [(row.task, row.backend, row.size, row.shadow_size) for row in table.rows] == [
        ("reach", None, 32, None),
        ("catch", None, 32, None),
    ]
    for row in table.rows:
        assert row.milliseconds.keys() == {"drawing", "rest"}
        assert min(row.milliseconds.values()) > 0
        assert row.frames_per_second > 0
    assert (table.differences, table.failures) == ([], {})


def test_a_game_is_emulated_and_made_a_picture_of():
    pytest.importorskip("ale_py")
    (row, other) = bench_env([recipes.find("atari/pong")], sizes=[42, 84], seconds=0.05, tell=silent).rows
    assert (row.size, other.size) == (42, 84)
    assert row.milliseconds.keys() == {"emulation", "picture", "rest"}


@pytest.mark.slow
def test_backends_draw_or_complain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    require_drawing()
    monkeypatch.setenv("MUJOCO_GL", "nothing")  # each process gets its own
    code, out, _ = typed(
        capsys, "bench", "env", "dmcontrol/cartpole-swingup", "--sizes", "48", "--seconds", "0.1", "--json"
    )
    assert code == 0
    assert os.environ["MUJOCO_GL"] == "nothing"
    value = json.loads(out)
    drawn = {row["backend"] for row in value["environments"]}
    assert drawn
    assert drawn | set(value["backends_that_do_not_draw"]) == {"egl", "osmesa", "glfw"}
    assert [row["shadow_size"] for row in value["environments"]] == [2048, 512] * len(drawn)
    for row in value["environments"]:
        assert row["milliseconds"].keys() == {"physics", "drawing", "rest"}
    for row in value["shadow_differences"]:
        assert 0 <= row["share"] < 0.5
        assert 0 <= row["mean"] < 20


# ── A run ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_shares_of_a_run():
    bench = RunBench(100, (2.0, 3.0), {"critic": 0.3, "drawing": 0.1, "replay": 0.06, "other": 0.04})
    assert bench.rate == 5
    assert bench.shares["critic"] == pytest.approx(0.6)
    assert bench.outside == pytest.approx(0.2)


def test_runs_side_by_side_are_one():
    one, other = RunBench(9, (2.0,), {"critic": 0.3, "other": 0.2}), RunBench(9, (4.0,), {"critic": 0.1, "other": 0.15})
    both = together([one, other])
    assert (both.rates, both.rate) == ((2.0, 4.0), 6.0)
    assert both.seconds == pytest.approx({"critic": 0.2, "other": 0.175})


def test_rounds_of_a_run_are_averaged():
    rounds = [RunBench(9, (2.0, 3.0), {"critic": 0.3, "other": 0.2}), RunBench(9, (4.0, 6.0), {"critic": 0.1})]
    mean = averaged(rounds)
    assert mean.rates == (3.0, 4.5)
    assert mean.seconds == pytest.approx({"critic": 0.2, "other": 0.1})


def test_a_run_is_cut_to_the_decisions_that_are_timed():
    recipe = recipes.find("dmcontrol/cheetah-run", "paper")
    short = shortened(recipe, 30)
    assert short.agent.warmup_decisions == 200
    assert short.frames == 4 * (200 + 5 + 30)
    assert (short.objective, short.checkpoint_every) == (recipe.objective, recipe.checkpoint_every)


@pytest.mark.parametrize("recipe", [tiny_recipe(threads=1), tiny_rainbow(threads=1)], ids=lambda recipe: recipe.name)
def test_the_parts_of_a_run_are_all_of_it_and_nothing_stays(recipe: Recipe, tmp_path: Path):
    before = {name: vars(training)[name] for name in ("build_agent", "build_replay", "look")}
    bench = bench_run(replace(recipe, checkpoint_every=20), decisions=30)
    assert bench.decisions == 30
    assert bench.rate * sum(bench.seconds.values()) == pytest.approx(1)
    expected = set(PARTS) - {"physics"}
    assert set(bench.seconds) == expected
    assert all(seconds > 0 for seconds in bench.seconds.values())
    assert {name: vars(training)[name] for name in before} == before
    assert not list(tmp_path.glob("maskrl-*"))


def test_typed_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    small = ["agent.warmup_decisions=60", "agent.batch_size=8", "agent.auxiliary.clips=1", "agent.encoder.filters=4"]
    code, out, _ = typed(capsys, "bench", "run", "toy/reach", *small, "--decisions", "10", "--json")
    assert code == 0
    value = json.loads(out)
    assert (value["recipe"], value["decisions"], value["processes"]) == ("toy/reach", 10, 1)
    assert sum(value["share_by_part"].values()) == pytest.approx(1)
    assert 0 < value["share_outside_networks_and_renderer"] < 1
    compared = ["--decisions", "5", "--compare", "agent.batch_size=16", "--rounds", "2"]
    code, out, err = typed(capsys, "bench", "run", "toy/reach", *small, *compared)
    assert code == 0
    assert "agent.batch_size=16: " in out
    assert "times the decisions per second" in out
    assert "Round 2 of 2" in err
    assert not list(tmp_path.glob("maskrl-*"))


def test_a_comparison_with_an_unknown_field_is_refused(capsys: pytest.CaptureFixture[str]):
    code, _, err = typed(capsys, "bench", "run", "toy/reach", "--compare", "overlab=true")
    assert code == 2
    assert "overlap" in err


@pytest.mark.slow
def test_the_environment_in_a_process_of_its_own_and_two_runs_at_once(tmp_path: Path):
    recipe = tiny_recipe()
    both = compare_runs((recipe, replace(recipe, overlap=True)), decisions=10, processes=2, rounds=1, tell=silent)
    (here,), (elsewhere,) = both.runs
    assert both.ratio.median == pytest.approx(elsewhere.rate / here.rate)
    assert len(here.rates) == len(elsewhere.rates) == 2
    assert "drawing" in here.seconds
    assert "drawing" not in elsewhere.seconds  # it is waited for, not watched
    assert not list(tmp_path.glob("maskrl-*"))


@pytest.mark.slow
def test_processes_answer_in_order_or_say_what_failed():
    assert side_by_side([(math.sqrt, (4,)), (math.sqrt, (9,))]) == [2, 3]
    with pytest.raises(RuntimeError, match="failed: ValueError"):
        side_by_side([(math.sqrt, (-1,))])
    with pytest.raises(RuntimeError, match="ended without an answer"):
        side_by_side([(os._exit, (3,))])
