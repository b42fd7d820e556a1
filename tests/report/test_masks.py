import base64
import io
import json
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from maskrl import recipes
from maskrl.cli import main
from maskrl.nn.masking import CubeMasker
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.schema import Recipe
from maskrl.report import masks
from maskrl.report.film import Footage, film_agent, film_random, film_replay
from maskrl.report.masks import draw_masks, explore, write_page
from maskrl.runs.directory import Run
from tiny_runs import tiny_rainbow, tiny_recipe, trained

Image = pytest.importorskip("PIL.Image")

PAPER = recipes.find("dmcontrol/cartpole-swingup", "paper")  # 16 steps of 100 × 100, cubes of 4 × 10 × 10


def blank(recipe: Recipe = PAPER) -> Footage:
    """Noise of the recipe's shape: no simulator is needed to see what is hidden."""
    assert recipe.objective is not None
    size, channels = recipe.env.size, 3 * recipe.env.frame_stack
    return Footage(
        torch.randint(256, (recipe.objective.clip_length, channels, size, size), dtype=torch.uint8), "Noise."
    )


@cache
def papers() -> dict[str, Any]:
    return explore(PAPER, blank())


def as_drawn(mask: dict[str, Any], draw: int, shape: tuple[int, int, int]) -> NDArray[np.bool_]:
    """What the page makes of a mask: place p of a side lies in cell ⌊p · cells / length⌋, and its bit says whether it is kept."""
    grid = mask["grid"]
    bits = np.unpackbits(np.frombuffer(base64.b64decode(mask["keep"][draw]), np.uint8))[: np.prod(grid)]
    where = [np.arange(length) * cells // length for length, cells in zip(shape, grid, strict=True)]
    return bits.reshape(grid).astype(bool)[np.ix_(*where)]


def frames_of(data: dict[str, Any]) -> NDArray[np.uint8]:
    """(frames, H, W, 3) of the sheet."""
    sheet = base64.b64decode(data["frames"]["sheet"].partition(",")[2])
    height, width = data["size"]
    return np.asarray(Image.open(io.BytesIO(sheet))).reshape(-1, height, width, 3)


# ── masks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_papers_mask_hides_5000_of_the_10000_pixels_of_every_frame():
    mask = papers()["masks"]["cube/0.5/4/10x10"]
    for draw in range(masks.DRAWS):
        hidden = ~as_drawn(mask, draw, (16, 100, 100))
        assert hidden.sum(axis=(1, 2)).tolist() == [5000] * 16


def test_a_cube_stays_hidden_for_k_steps_and_the_next_block_is_another():
    keep = as_drawn(papers()["masks"]["cube/0.5/4/10x10"], 0, (16, 100, 100))
    blocks = keep.reshape(4, 4, 100, 100)
    assert (blocks == blocks[:, :1]).all()
    assert not (blocks[0] == blocks[1]).all()


def test_spatial_masks_change_at_every_step_and_temporal_ones_hide_whole_frames():
    data = papers()["masks"]
    spatial = as_drawn(data["spatial/0.5/10x10"], 0, (16, 100, 100))
    assert all((spatial[step] != spatial[step + 1]).any() for step in range(15))
    shares = as_drawn(data["temporal/0.5/4"], 0, (16, 100, 100)).mean(axis=(1, 2))
    assert sorted(shares.tolist()) == [0.0] * 8 + [1.0] * 8
    assert (shares.reshape(4, 4) == shares.reshape(4, 4)[:, :1]).all()


@given(
    steps=st.sampled_from([4, 8]),
    sides=st.tuples(st.integers(6, 30), st.integers(6, 30)),
    cube=st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 6), st.integers(1, 6)),
    balanced=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:A patch of")
def test_what_the_page_draws_is_the_maskers_output_pixel_for_pixel(steps, sides, cube, balanced):
    """Also where a patch does not divide its side."""
    masker, shape = CubeMasker(cube, balanced=balanced, rounding="ceil"), (steps, *sides)
    if sides[0] // cube[1] * (sides[1] // cube[2]) < 2:
        return  # one cube cannot be hidden in part
    torch.manual_seed(3)
    mask = draw_masks(masker, shape, 2)
    torch.manual_seed(3)
    real = replace(masker, per_clip=True)(torch.zeros(2, steps, 1, *sides))
    for draw in range(2):
        assert np.array_equal(as_drawn(mask, draw, shape), real[draw, :, 0].numpy())


def test_every_setting_is_there_drawn_or_refused_in_the_maskers_words():
    data = papers()
    assert data["depths"] == [1, 2, 4, 8, 16]
    assert data["patches"] == [[5, 5], [10, 10], [20, 20], [25, 25], [50, 50]]
    ratios, depths, patches = len(data["ratios"]), 5, 5
    assert len(data["masks"]) == ratios * (depths * patches + patches + depths)
    assert data["chosen"] == {"strategy": "cube", "ratio": 0.5, "depth": 4, "patch": [10, 10]}
    assert "of 4 cubes" in data["masks"]["cube/0.1/4/50x50"]["refused"]  # ⌊0.4⌋ = 0
    assert "of 1 cubes" in data["masks"]["temporal/0.5/16"]["refused"]
    for mask in data["masks"].values():
        assert ("refused" in mask) != (len(mask.get("keep", [])) == masks.DRAWS)


def test_the_recipes_own_odd_values_are_among_the_choices():
    recipe = with_overrides(PAPER, ["objective.mask.ratio=0.35", "objective.mask.cube=8,12,10"])
    data = explore(recipe, blank())
    assert 0.35 in data["ratios"]
    assert [12, 10] in data["patches"]
    own = data["masks"]["cube/0.35/8/12x10"]
    assert own["grid"] == [2, 8, 10]
    # ⌊0.35 · 80⌋ = 28 cells of 12 or 13 by 10 pixels
    hidden = (~as_drawn(own, 0, (16, 100, 100))).sum(axis=(1, 2))
    assert ((hidden >= 28 * 120) & (hidden <= 28 * 130)).all()


def test_a_depth_that_spatial_masks_do_not_ask_for_is_refused_for_the_others_in_the_maskers_words():
    recipe = with_overrides(PAPER, ["objective.mask.strategy=spatial", "objective.mask.cube=5,10,10"])
    data = explore(recipe, blank())
    assert data["depths"] == [1, 2, 4, 5, 8, 16]
    assert "keep" in data["masks"]["spatial/0.5/10x10"]
    for key in ("cube/0.5/5/10x10", "temporal/0.5/5"):  # 16 steps are not so many segments of 5
        assert "16" in data["masks"][key]["refused"]


def test_atari_rounds_up_and_hides_25_of_49_cells():
    recipe = recipes.find("atari/pong", "paper")
    assert recipe.objective is not None
    mask = draw_masks(recipe.objective.mask.build(), (16, 84, 84), 1)
    assert (~as_drawn(mask, 0, (16, 84, 84)))[0].mean() == 25 / 49
    assert any("not divided by 255" in words for words in masks._own_words(recipe.objective))


# ── frames and augmentation ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_sheet_gives_back_every_frame_of_every_stack():
    recipe = with_overrides(tiny_recipe(), ["env.size=30"])
    footage = blank(recipe)
    data = explore(recipe, footage)
    frames = frames_of(data)
    for step, numbers in enumerate(data["frames"]["of_step"]):
        stack = frames[numbers].transpose(0, 3, 1, 2).reshape(9, 30, 30)
        assert np.array_equal(stack, footage.obs[step].numpy())


def test_a_frame_that_several_stacks_share_is_there_once():
    recipe = tiny_recipe()
    data = explore(recipe, film_random(recipe))
    steps, stack = data["steps"], data["stack"]
    assert data["frames"]["count"] <= steps + stack - 1
    newest = [numbers[-1] for numbers in data["frames"]["of_step"]]
    assert [numbers[-2] for numbers in data["frames"]["of_step"][1:]] == newest[:-1]


@pytest.mark.parametrize("augment", [{"crop": 84}, {"crop": None, "shift": 4}, {"crop": None, "intensity": 0.0}])
def test_the_places_tell_what_the_real_augmentation_did(augment: dict[str, Any]):
    assert PAPER.objective is not None
    objective = replace(PAPER.objective, augment=replace(PAPER.objective.augment, **augment))
    obs = blank().obs
    torch.manual_seed(5)
    told = masks._augmentation(objective, obs)
    torch.manual_seed(5)
    real = objective.augment.build()(obs)
    height, width = told["size"]
    for step, (top, left) in enumerate(told["moved"]):
        rows, columns = (np.arange(height) + top).clip(0, 99), (np.arange(width) + left).clip(0, 99)
        assert np.array_equal(obs[step].numpy()[:, rows][:, :, columns], real.obs[step].numpy())
    assert told["gains"] == pytest.approx(real.gain.tolist())


# ── clips ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_random_actions_give_the_same_clip_again_and_another_with_another_seed():
    recipe = tiny_recipe()
    first, again = film_random(recipe), film_random(recipe)
    assert torch.equal(first.obs, again.obs)
    assert first.obs.shape == (recipe.objective.clip_length, 9, 28, 28)
    assert not torch.equal(first.obs, film_random(replace(recipe, seed=2)).obs)


def test_a_clip_begins_where_it_was_asked_to():
    recipe = tiny_recipe()
    early, late = film_random(recipe, start=3).obs, film_random(recipe, start=4).obs
    assert torch.equal(early[1:], late[:-1])


def test_the_clip_of_a_short_episode_is_its_end():
    recipe = tiny_rainbow()  # 39 decisions of Catch
    last = film_random(recipe, start=10_000).obs
    assert torch.equal(last, film_random(recipe, start=39 - recipe.objective.clip_length).obs)


def test_a_clip_that_no_episode_can_hold_is_refused():
    recipe = with_overrides(tiny_rainbow(), ["objective.clip_length=64"])
    with pytest.raises(ValueError, match=r"has 64 decisions: the longest has 39\. Lower objective\.clip_length"):
        film_random(recipe)


@pytest.mark.slow
def test_a_run_shows_its_agent_or_its_replay_and_is_left_as_it_was(tmp_path: Path):
    recipe = tiny_recipe()
    run, _ = trained(tmp_path / "run", recipe)
    files = {file: file.stat().st_mtime_ns for file in run.path.rglob("*") if file.is_file()}
    state = run.restore()
    assert state is not None
    agent, replay = film_agent(run, recipe, state), film_replay(run, recipe, state)
    assert "150 frames" in agent.source
    assert agent.obs.shape == replay.obs.shape == film_random(recipe).obs.shape
    assert not torch.equal(agent.obs, film_random(recipe).obs)
    stacks = replay.obs.view(len(replay.obs), 3, 3, 28, 28)
    assert torch.equal(stacks[1:, :-1], stacks[:-1, 1:])  # consecutive observations of one episode
    assert files == {file: file.stat().st_mtime_ns for file in run.path.rglob("*") if file.is_file()}


def test_feature_masks_are_drawn_on_the_encoders_own_map():
    recipe = with_overrides(tiny_recipe(), ["objective.corrupt=features"])
    footage = film_random(recipe)
    assert footage.features is not None
    data = explore(recipe, footage)
    height, width = footage.features.shape[1:]
    assert (data["of"], data["mask_size"]) == ("features", [height, width])
    mask = data["masks"][f"cube/0.5/4/{recipe.objective.mask.feature_patch}x{recipe.objective.mask.feature_patch}"]
    keep = as_drawn(mask, 0, (data["steps"], height, width))
    assert (~keep).sum(axis=(1, 2)).tolist() == [height * width // 2] * data["steps"]


# ── command and page ──────────────────────────────────────────────────────────────────────────────────────────────────


def run_cli(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["masks", *words])
    return int(ended.value.code or 0)


def test_the_command_writes_one_file_and_says_what_is_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "new" / "masks.html"
    assert run_cli("toy/reach", "objective.mask.ratio=0.3", "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert f"{out}: 8 observations of toy/reach, lite profile. Random actions, seed 1." in said
    assert [file.name for file in out.parent.iterdir()] == ["masks.html"]
    text = out.read_text()
    assert '"ratio": 0.3' in text
    assert "http" not in text.replace("http-equiv", "")


def test_the_same_command_writes_the_same_file(tmp_path: Path):
    for name in ("a.html", "b.html"):
        assert run_cli("toy/catch", "--out", str(tmp_path / name)) == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_of_a_baseline_the_page_says_that_it_hides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = Run.create(tmp_path / "run", recipes.find("toy/reach", method="baseline"))
    out = tmp_path / "masks.html"
    assert run_cli(str(run.path), "--out", str(out)) == 0  # without a checkpoint: random actions
    assert "This is the baseline method, which hides nothing." in capsys.readouterr().out
    assert "which hides nothing" in out.read_text()


def trains_with(page: Path) -> list[str]:
    """The words of the page's command, before those of the masks on show."""
    told = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert told is not None
    return shlex.split(json.loads(told[1])["command"])


def test_the_page_of_a_run_has_no_command(tmp_path: Path):
    run, out = Run.create(tmp_path / "run", recipes.find("toy/reach")), tmp_path / "masks.html"
    assert run_cli(str(run.path), "objective.mask.ratio=0.3", "--out", str(out)) == 0
    assert trains_with(out) == []


def test_the_command_of_a_recipe_keeps_what_the_page_does_not_choose(tmp_path: Path):
    words = ["objective.mask.balanced=false", "objective.mask.ratio=0.3", "seed=2"]
    assert run_cli("toy/reach", *words, "--out", str(tmp_path / "masks.html")) == 0
    assert trains_with(tmp_path / "masks.html")[3:] == ["objective.mask.balanced=false", "seed=2"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["toy/rech"], "did you mean toy/reach"),
        (["toy/reach", "--film", "agent"], "--film agent needs a run"),
        (["toy/reach", "objective.mask.ratio=2"], "must lie strictly between 0"),
        (["{tmp}"], "holds no run: there is no recipe.json"),
        (["toy/reach", "--out", "{tmp}"], "is a folder. Name a file"),
        (["{tmp}/run", "--film", "replay"], "has no checkpoint yet. Use --film random"),
        (["{tmp}/run", "seed=3"], "name its recipe, toy/reach"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
):
    Run.create(tmp_path / "run", recipes.find("toy/reach"))
    assert run_cli(*(word.format(tmp=tmp_path) for word in words)) == 2
    assert expected in capsys.readouterr().err


def test_names_stay_text_in_the_page(tmp_path: Path):
    evil = "</script><img src=x onerror=alert(1)>"
    recipe = replace(tiny_recipe(), name=evil)
    data = explore(recipe, replace(film_random(recipe), source=evil), note=evil, command=evil)
    write_page(data, tmp_path / "masks.html")
    assert "<img" not in (tmp_path / "masks.html").read_text()
