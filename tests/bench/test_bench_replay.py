"""What `maskrl bench replay` computes from what it times. How long anything takes is asserted nowhere."""

import json
from pathlib import Path

import numpy as np
import pytest

from conftest import Typed
from maskrl.bench import replay as replays
from maskrl.bench.noise import fill
from maskrl.bench.replay import Kind, bench_replay
from maskrl.replay.buffer import Replay

_UNIFORM = {"frame_shape": (3, 8, 8), "frame_stack": 3, "action_dim": 2, "discrete": False}
_PRIORITISED = {"frame_shape": (1, 8, 8), "frame_stack": 4, "action_dim": 3, "discrete": True, "priority_exponent": 0.5}
TINY = (
    Kind("uniform", _UNIFORM, transitions=8, clips=4, steps=1),
    Kind("prioritised", _PRIORITISED, transitions=8, clips=4, steps=3),
)


def silent(_: str) -> None:
    pass


@pytest.mark.parametrize("kind", TINY, ids=lambda kind: kind.name)
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_filled_replay_is_full_and_every_frame_of_it_is_written(kind: Kind, on_disk: bool, tmp_path: Path):
    replay = Replay(**kind.layout, capacity=4000, seed=0, directory=tmp_path / "replay" if on_disk else None)
    fill(replay, 4000)
    assert len(replay) == 4000  # 4 episodes of 1000, which have 1001 frames
    state = replay.state_dict()
    assert np.unique(state["first"]).tolist() == [0, 1001, 2002, 3003]
    assert np.flatnonzero(state["truncated"]).tolist() == [999, 2000, 3001, 4002]
    batch = replay.transitions(replay.spread(4000))
    frame = batch.next_obs[:, -kind.layout["frame_shape"][0] :]
    assert (frame == frame[0]).all()
    assert len(np.unique(frame[0].numpy())) > 30
    assert replay.clips(replay.draw(500, span=16), length=16).valid.all()
    if replay.is_prioritised:
        weights = replay.draw(100, correction=1.0).weights
        assert weights.min() < weights.max() == 1


def test_the_last_episode_may_be_shorter():
    replay = Replay(**TINY[1].layout, capacity=2500, seed=0)
    fill(replay, 2500)
    assert len(replay) == 2500
    assert np.unique(replay.state_dict()["first"]).tolist() == [0, 1001, 2002]
    assert np.flatnonzero(replay.state_dict()["truncated"]).tolist() == [999, 2000, 2501]


def test_a_replay_shorter_than_an_episode_is_one_episode():
    replay = Replay(**TINY[0].layout, capacity=40, seed=0)
    fill(replay, 40)
    assert len(replay) == 40


def test_replays_of_every_kind_and_size_are_measured_and_nothing_stays(tmp_path: Path):
    told: list[str] = []
    rows = bench_replay([300, 1000], kinds=TINY, seconds=0.01, tell=told.append).values["replays"]
    assert [(row["transitions"], row["kind"], row["storage"]) for row in rows] == [
        (size, kind.name, storage) for size in (300, 1000) for kind in TINY for storage in ("memory", "disk")
    ]
    for row, kind in zip(rows, 2 * [TINY[0], TINY[0], TINY[1], TINY[1]], strict=True):
        assert row["nbytes"] == Replay.forecast(**kind.layout, capacity=row["transitions"])
        assert row["bytes_per_transition"] == row["nbytes"] / row["transitions"]
        assert row["skipped"] is None
        assert min(row["transitions_per_second"], row["clips_per_second"]) > 0
    assert len(told) == 8
    assert not list(tmp_path.glob("maskrl-*"))


def test_what_does_not_fit_is_skipped_and_named(monkeypatch: pytest.MonkeyPatch):
    needs = Replay.forecast(**TINY[0].layout, capacity=1000)
    monkeypatch.setattr(replays, "free_memory", lambda: 2 * needs - 1)
    memory, disk = bench_replay([1000], kinds=TINY[:1], seconds=0.01, tell=silent).values["replays"]
    assert "of memory" in memory["skipped"]
    assert (memory["transitions_per_second"], memory["clips_per_second"]) == (None, None)
    assert disk["skipped"] is None


@pytest.mark.slow
def test_typed_replays(typed: Typed, tmp_path: Path):
    code, out, err = typed("replay", "--sizes", "300", "--json")
    assert code == 0
    value = json.loads(out)
    assert [row["storage"] for row in value["replays"]] == ["memory", "disk"] * 2
    assert "DMControl, uniform: 300 transitions" in err
    assert not list(tmp_path.glob("maskrl-*"))


@pytest.mark.parametrize(("sizes", "expected"), [("10,many", "whole numbers"), ("3", "whole numbers from 16")])
def test_sizes_that_are_none_are_refused(typed: Typed, sizes: str, expected: str):
    code, _, err = typed("replay", "--sizes", sizes)
    assert code == 2
    assert expected in err
