"""What `maskrl bench env` computes from what it times. How long anything takes is asserted nowhere."""

import json

import pytest

from builders import require_drawing
from conftest import Typed
from maskrl import recipes
from maskrl.bench.env import bench_env
from maskrl.envs.toy import ToyControl


def silent(_: str) -> None:
    pass


def test_toys_are_drawn_and_the_rest():
    chosen = [recipes.find("toy/reach"), recipes.find("toy/catch")]
    values = bench_env(chosen, sizes=[48], seconds=0.05, tell=silent).values
    rows = values["environments"]
    assert [(row["task"], row["renderer"], row["size"], row["shadow_size"]) for row in rows] == [
        ("reach", None, 32, None),
        ("catch", None, 32, None),
    ]
    for row in rows:
        assert row["milliseconds"].keys() == {"drawing", "rest"}
        assert min(row["milliseconds"].values()) > 0
        assert row["frames_per_second"] > 0
    assert values["not_measured"] == {}


def test_a_game_is_played_and_its_picture_drawn():
    pytest.importorskip("ale_py")
    result = bench_env([recipes.find("atari/pong")], sizes=[42, 84], seconds=0.05, tell=silent)
    (row, other) = result.values["environments"]
    assert (row["size"], other["size"]) == (42, 84)
    assert row["milliseconds"].keys() == {"drawing", "rest"}


def test_an_environment_that_cannot_be_made_is_named_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("nothing draws")

    monkeypatch.setattr(ToyControl, "make", refuse)
    chosen = [recipes.find("toy/reach"), recipes.find("toy/catch")]
    result = bench_env(chosen, sizes=[48], seconds=0.01, tell=silent)
    assert result.values["not_measured"] == {"toy/reach": "nothing draws"}
    assert [row["task"] for row in result.values["environments"]] == ["catch"]
    assert "toy/reach nothing draws" in result.text()


@pytest.mark.slow
def test_dmcontrol_is_drawn_in_three_ways_and_their_pictures_compared(typed: Typed):
    require_drawing()
    code, out, _ = typed("env", "dmcontrol/cartpole-swingup", "--sizes", "48", "--seconds", "0.1", "--json")
    assert code == 0
    rows = json.loads(out)["environments"]
    assert [(row["drawing"], row["shadow_size"]) for row in rows] == [("full", None), ("full", 512), ("plain", None)]
    for row in rows:
        assert row["renderer"].split()[0] in {"egl", "osmesa", "glfw"}
        assert row["milliseconds"].keys() == {"physics", "drawing", "rest"}
    first, coarse, plain = rows
    assert "changed_share" not in first
    assert coarse["changed_share"] < plain["changed_share"] < 0.5
    assert 0 < plain["mean_difference"] < 20
