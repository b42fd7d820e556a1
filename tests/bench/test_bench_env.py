"""What `maskrl bench env` computes from what it times. How long anything takes is asserted nowhere."""

import json
import os

import numpy as np
import pytest

from builders import require_drawing
from conftest import Typed
from maskrl import recipes
from maskrl.bench.env import bench_env, picture_difference


def silent(_: str) -> None:
    pass


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
    chosen = [recipes.find("toy/reach"), recipes.find("toy/catch")]
    values = bench_env(chosen, sizes=[48], seconds=0.05, tell=silent).values
    rows = values["environments"]
    assert [(row["task"], row["backend"], row["size"], row["shadow_size"]) for row in rows] == [
        ("reach", None, 32, None),
        ("catch", None, 32, None),
    ]
    for row in rows:
        assert row["milliseconds"].keys() == {"drawing", "rest"}
        assert min(row["milliseconds"].values()) > 0
        assert row["frames_per_second"] > 0
    assert (values["shadow_differences"], values["backends_that_do_not_draw"]) == ([], {})


def test_a_game_is_emulated_and_made_a_picture_of():
    pytest.importorskip("ale_py")
    result = bench_env([recipes.find("atari/pong")], sizes=[42, 84], seconds=0.05, tell=silent)
    (row, other) = result.values["environments"]
    assert (row["size"], other["size"]) == (42, 84)
    assert row["milliseconds"].keys() == {"emulation", "picture", "rest"}


@pytest.mark.slow
def test_backends_draw_or_complain(typed: Typed, monkeypatch: pytest.MonkeyPatch):
    require_drawing()
    monkeypatch.setenv("MUJOCO_GL", "nothing")  # each process gets its own
    code, out, _ = typed("env", "dmcontrol/cartpole-swingup", "--sizes", "48", "--seconds", "0.1", "--json")
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
