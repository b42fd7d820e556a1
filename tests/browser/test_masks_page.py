from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from playwright.sync_api import Page

from maskrl.objectives.mlr import MaskedPixels
from maskrl.recipes.overrides import with_overrides
from maskrl.report.film import Footage, film_random
from maskrl.report.masks import DRAWS, draw_masks, explore, write_page
from pages import OpenPage
from tiny_runs import tiny_recipe

RECIPE = tiny_recipe()  # 28 × 28 pixels, crops of 24, cubes of 4 × 7 × 7, of which half are hidden


def opened(open_page: OpenPage, path: Path, data: dict[str, Any], **window: Any) -> Page:
    write_page(data, path / "masks.html")
    page = open_page(path / "masks.html", **window)
    page.wait_for_selector("body[data-ready]")
    return page


def pixels(page: Page, canvas: str) -> NDArray[np.uint8]:
    """(H, W, 3) of a canvas, in its own resolution."""
    width, height, values = page.evaluate(
        """id => { const c = document.getElementById(id);
        return [c.width, c.height, [...c.getContext("2d").getImageData(0, 0, c.width, c.height).data]]; }""",
        canvas,
    )
    return np.array(values, np.uint8).reshape(height, width, 4)[..., :3]


def newest(obs: torch.Tensor) -> NDArray[np.uint8]:
    """(H, W, 3) of the newest frame of an observation."""
    return obs[-3:].permute(1, 2, 0).numpy()


def slide(page: Page, step: int) -> None:
    page.locator("#step").fill(str(step))


@pytest.fixture
def footage() -> Footage:
    return film_random(RECIPE)


def test_the_page_shows_the_clip_and_what_the_objective_leaves_of_it(
    open_page: OpenPage, tmp_path: Path, footage: Footage
):
    """Pixel for pixel, at every step: drawn twice from the same seed, once for the page and once as in training."""
    assert RECIPE.objective is not None
    masker, steps = replace(RECIPE.objective.mask.build(), per_clip=True), len(footage.obs)
    torch.manual_seed(7)
    hidden, keep = MaskedPixels(masker).hide(footage.obs[None])
    torch.manual_seed(7)
    own = draw_masks(masker, (steps, 28, 28), 1)
    data = explore(RECIPE, footage)
    data["masks"]["cube/0.5/4/7x7"] = own
    page = opened(open_page, tmp_path, data)
    for step in range(steps):
        slide(page, step)
        assert np.array_equal(pixels(page, "original"), newest(footage.obs[step]))
        assert np.array_equal(pixels(page, "masked"), newest(hidden[0, step]))
        assert keep[0, step].logical_not().sum() == 392
        assert page.inner_text("#count-step") == "392 of 784 pixels"
    assert (page.inner_text("#share-step"), page.inner_text("#share-clip")) == ("50.0 %", "50.0 %")
    assert "8 of 16 are hidden" in page.inner_text("#says")


def test_the_slider_the_keys_and_the_film_move_the_picture(open_page: OpenPage, tmp_path: Path, footage: Footage):
    page = opened(open_page, tmp_path, explore(RECIPE, footage))
    before = pixels(page, "masked")
    slide(page, 5)
    after = pixels(page, "masked")
    assert page.inner_text("#where") == f"step 6 of {len(footage.obs)}"
    assert not np.array_equal(before, after)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowRight")
    assert np.array_equal(pixels(page, "original"), newest(footage.obs[6]))
    page.keyboard.press("ArrowLeft")
    assert np.array_equal(pixels(page, "masked"), after)
    page.locator("#film button").nth(2).click()
    assert np.array_equal(pixels(page, "original"), newest(footage.obs[2]))


def test_play_runs_through_the_clip_until_it_is_paused(open_page: OpenPage, tmp_path: Path, footage: Footage):
    page = opened(open_page, tmp_path, explore(RECIPE, footage))
    page.clock.install()  # time passes only when the test says so
    page.click("#play")
    assert page.get_attribute("#numbers", "aria-live") == "off"  # nobody is told four numbers a second
    for step in (2, 3, 4, 5, 6, 7, 8, 1, 2):
        page.clock.run_for(250)
        assert page.inner_text("#where") == f"step {step} of {len(footage.obs)}"
    page.click("#play")
    assert page.get_attribute("#numbers", "aria-live") == "polite"
    page.clock.run_for(600)
    assert page.inner_text("#where") == f"step 2 of {len(footage.obs)}"
    assert page.get_attribute("#play", "aria-label") == "Play"


def test_a_strategy_a_ratio_and_a_new_mask_change_what_is_hidden(open_page: OpenPage, tmp_path: Path, footage: Footage):
    page = opened(open_page, tmp_path, explore(RECIPE, footage, command="maskrl train toy/reach"))
    cube = pixels(page, "masked")
    page.click("#again")
    another = pixels(page, "masked")
    assert not np.array_equal(cube, another)
    for _ in range(DRAWS - 1):
        page.keyboard.press("n")
    assert np.array_equal(pixels(page, "masked"), cube)  # all of them have been seen
    page.check("input[value=spatial]")
    assert page.is_disabled("#depth input >> nth=0")
    page.check("input[value=temporal]")
    assert page.is_disabled("#patch input >> nth=0")
    shares = []
    for step in range(len(footage.obs)):
        slide(page, step)
        shares.append(page.inner_text("#share-step"))
        assert (pixels(page, "masked") == 0).all() == (shares[-1] == "100.0 %")
    assert sorted(set(shares)) == ["0.0 %", "100.0 %"]
    page.click("#own")
    page.locator("#ratio").fill("8")  # the last: 90 %
    assert page.inner_text("#count-step") == "686 of 784 pixels"  # ⌊0.9 · 16⌋ = 14 cells of 49
    assert "objective.mask.strategy=cube objective.mask.ratio=0.9 objective.mask.cube=4,7,7" in page.inner_text(
        "#command"
    )


def test_what_the_masker_refuses_is_told_in_its_words(open_page: OpenPage, tmp_path: Path, footage: Footage):
    page = opened(open_page, tmp_path, explore(RECIPE, footage))
    page.locator("#ratio").fill("0")
    page.check("#patch input[value='14,14']")
    assert "ratio=0.1 of 4 cubes" in page.inner_text("#refused")
    assert page.inner_text("#share-step") == "–"
    page.click("#own")
    assert page.is_hidden("#refused")


def test_the_augmentation_is_the_real_one(open_page: OpenPage, tmp_path: Path, footage: Footage):
    data = explore(RECIPE, footage)
    page = opened(open_page, tmp_path, data)
    page.locator("#ratio").fill("0")
    whole = pixels(page, "masked")
    page.check("#augment")
    (top, left), gain = data["augment"]["moved"][0], data["augment"]["gains"][0]
    expected = np.rint(whole[top : top + 24, left : left + 24] * gain).clip(0, 255)
    assert np.abs(pixels(page, "masked").astype(float) - expected).max() <= 1
    assert "Counted before the augmentation" in page.inner_text("#says")


def test_of_mlr_f_the_map_is_masked_and_the_frames_are_not(open_page: OpenPage, tmp_path: Path):
    recipe = with_overrides(RECIPE, ["objective.corrupt=features"])
    footage = film_random(recipe)
    assert footage.features is not None
    page = opened(open_page, tmp_path, explore(recipe, footage))
    assert pixels(page, "masked").shape[:2] == footage.features.shape[1:]
    assert np.array_equal(pixels(page, "original"), newest(footage.obs[0]))
    assert "MLR-F: the frames stay whole" in page.inner_text("#masked-words")
    assert page.is_hidden("#augment")


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_sticks_out(open_page: OpenPage, tmp_path: Path, footage: Footage, dark: bool):
    page = opened(open_page, tmp_path, explore(RECIPE, footage), width=360, height=740, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    light = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(light) < 200) == dark


def test_a_malicious_name_stays_text(open_page: OpenPage, tmp_path: Path, footage: Footage):
    evil = "<img src=x onerror='window.hit=1'></script><script>window.hit=1</script>"
    recipe = replace(RECIPE, name=evil)
    page = opened(
        open_page, tmp_path, explore(recipe, replace(footage, source=evil), note=evil, command=f"maskrl train {evil}")
    )
    assert page.evaluate("window.hit") is None
    assert page.inner_text("h1") == f"What MLR hides of {evil}"
    assert evil in page.inner_text("#command")
    assert page.title() == f"Masks of {evil}"
