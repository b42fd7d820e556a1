"""Make the pictures of docs/images from the program: `python tools/docs_images.py`. Needs Chromium for the screenshot.

masks.png           a clip of cartpole-swingup, and what each masking strategy leaves of it
mask-explorer.png   the page that `maskrl masks dmcontrol/cartpole-swingup --profile paper` writes
"""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RECIPE = "dmcontrol/cartpole-swingup"
STEPS = (0, 4, 8, 12)
SCALE, MARGIN, LABEL = 2, 12, 150


def masks() -> None:
    """A row for the clip and one for each strategy; the maskers are those that train."""
    from maskrl import recipes
    from maskrl.report.film import film_random

    recipe = recipes.find(RECIPE, "paper")
    obs = film_random(recipe).obs  # (K, C, H, W)
    torch.manual_seed(1)
    rows = {"the clip": obs}
    for strategy in ("cube", "spatial", "temporal"):
        masker = replace(recipe.objective.mask, strategy=strategy, cube=(8, 10, 10)).build()
        rows[strategy] = masker.hide(obs[None], masker(obs[None]))[0]
    side = obs.shape[-1] * SCALE
    sheet = Image.new("RGB", (LABEL + len(STEPS) * (side + MARGIN), len(rows) * (side + MARGIN) + MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    for y, (name, pictures) in enumerate(rows.items()):
        top = MARGIN + y * (side + MARGIN)
        draw.text((MARGIN, top + side // 2 - 12), name, fill="black", font_size=24)
        for x, step in enumerate(STEPS):
            frame = Image.fromarray(np.ascontiguousarray(pictures[step, -3:].permute(1, 2, 0).numpy()))
            sheet.paste(frame.resize((side, side), Image.Resampling.NEAREST), (LABEL + x * (side + MARGIN), top))
    sheet.quantize(64).save(IMAGES / "masks.png", optimize=True)


def explorer() -> None:
    """The page in a real browser."""
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(ROOT / "tests"))
    from pages import find_browser

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "masks.html"
        command = [sys.executable, "-m", "maskrl", "masks", RECIPE, "--profile", "paper", "--out", str(page_file)]
        subprocess.run(command, check=True, capture_output=True)
        browser = playwright.chromium.launch(executable_path=find_browser(), chromium_sandbox=False)
        page = browser.new_page(viewport={"width": 1100, "height": 860})
        page.goto(page_file.as_uri())
        page.wait_for_selector("body[data-ready]")
        page.locator("#step").fill("6")
        page.screenshot(path=IMAGES / "mask-explorer.png")
        browser.close()
    Image.open(IMAGES / "mask-explorer.png").convert("RGB").quantize(128).save(
        IMAGES / "mask-explorer.png", optimize=True
    )


if __name__ == "__main__":
    masks()
    explorer()
