"""`maskrl play`: a video, or a window, with what the encoder sees."""

import numpy as np
import pytest
from PIL import Image

from maskrl.cli import main
from maskrl.recipes.schema import Budget
from maskrl.runs import play
from tiny_runs import tiny_recipe, trained


def test_a_run_is_played_into_a_video_and_into_a_window(tmp_path, capsys, monkeypatch):
    run, _ = trained(tmp_path / "run", tiny_recipe(budget=Budget(frames=70), mlr=False))
    with pytest.raises(SystemExit) as ended:
        main(["play", str(run.path), "--out", str(tmp_path / "play.gif")])
    assert ended.value.code in (None, 0)
    assert "over 1 episode" in capsys.readouterr().out
    with Image.open(tmp_path / "play.gif") as video:
        assert getattr(video, "n_frames", 1) > 5
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown = np.full((256, 300, 3), 9, np.uint8)
    assert not play.show(iter([(shown, 1000.0)] * 3), "run")
    assert play.show(iter([(shown, 1000.0)] * 3), "run", is_closed=lambda: True)
    assert not pygame.display.get_init()


def test_the_frame_stands_beside_the_picture_as_large_as_whole_pixels_allow():
    both = play.beside(np.full((300, 400, 3), 7, np.uint8), np.full((24, 24, 3), 200, np.uint8))
    assert both.shape == (300, 400 + 8 + 12 * 24, 3)
    assert (both == 200).all(axis=-1).sum() == (12 * 24) ** 2
