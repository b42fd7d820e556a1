import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maskrl import recipes
from maskrl.clock import Clock
from maskrl.recipes.published import Published
from maskrl.recipes.schema import Budget
from maskrl.runs import pictures
from maskrl.runs.directory import Run, RunError
from maskrl.runs.pictures import Video, learning_curve

Image = pytest.importorskip("PIL.Image")


def evaluated_run(path: Path, *, profile: str, frames: int = 100_000) -> Run:
    recipe = replace(recipes.find("dmcontrol/cheetah-run", profile=profile), budget=Budget(frames=frames))
    run = Run.create(path / profile, recipe)
    run.log("random", Clock(0, 0, 0, 0.0), {"score": 5.0, "returns": [4.0, 6.0]})
    for at in range(0, frames + 1, frames // 5):
        score = 480 * at / frames
        run.log("evaluation", Clock(at, at // 4, at // 4, 1.0), {"score": score, "returns": [score - 20, score + 20]})
    return run


def has_colour(file: Path, colour: str) -> bool:
    rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    with Image.open(file) as picture:
        distance = np.abs(np.asarray(picture.convert("RGB")).astype(int) - rgb).max(axis=-1)
    return bool((distance <= 2).any())


def test_the_paper_is_in_colour_only_in_the_paper_profile(tmp_path: Path):
    reference = Published(482, 38, 10, "paper, Table 1")
    paper, lite = (learning_curve(evaluated_run(tmp_path, profile=profile), reference) for profile in ("paper", "lite"))
    assert paper.name == "learning_curve.png"
    assert has_colour(paper, pictures.BLUE)
    assert has_colour(paper, pictures.ORANGE)
    assert has_colour(lite, pictures.BLUE)
    assert not has_colour(lite, pictures.ORANGE)


def test_a_run_without_an_evaluation_has_no_curve(tmp_path: Path):
    with pytest.raises(RunError, match="no evaluation yet"):
        learning_curve(Run.create(tmp_path / "run", recipes.find("toy/reach")))


def test_without_matplotlib_the_curve_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = evaluated_run(tmp_path, profile="lite")
    monkeypatch.setattr(pictures.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"maskrl\[report\]"):
        learning_curve(run)


def film(path: Path, side: int = 64) -> Video:
    """Five images that grow brighter."""
    with Video(path, fps=10) as video:
        for n in range(5):
            video.add(np.full((side, side, 3), 50 * n, np.uint8))
    return video


def test_a_gif_has_the_images_in_order_and_at_their_speed(tmp_path: Path):
    film(tmp_path / "new" / "a.gif")
    shades = []
    with Image.open(tmp_path / "new" / "a.gif") as gif:
        for n in range(gif.n_frames):
            gif.seek(n)
            shades.append(gif.convert("RGB").getpixel((5, 5))[0])
        assert gif.info["duration"] == 100
    assert shades == [0, 50, 100, 150, 200]


# imageio-ffmpeg's reader leaves its pipes to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("side", [64, 51])
def test_an_mp4_can_be_read_back(tmp_path: Path, side: int):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    film(tmp_path / "a.mp4", side)
    images = ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    width, height = next(images)["size"]
    shades = [int(np.frombuffer(image, np.uint8).reshape(height, width, 3)[5, 5, 0]) for image in images]
    assert shades == pytest.approx([0, 50, 100, 150, 200], abs=6)


def test_without_ffmpeg_an_mp4_becomes_a_gif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    find_spec = pictures.importlib.util.find_spec
    monkeypatch.setattr(
        pictures.importlib.util, "find_spec", lambda name: None if name == "imageio_ffmpeg" else find_spec(name)
    )
    assert film(tmp_path / "a.mp4").path == tmp_path / "a.gif"
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 5


def test_other_suffixes_and_images_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"\.mp4 or a \.gif"):
        Video(tmp_path / "a.avi", fps=10)
    with Video(tmp_path / "a.gif", fps=10) as video, pytest.raises(ValueError, match=r"uint8 \(H, W, 3\)"):
        video.add(np.zeros((3, 8, 8), np.uint8))


def test_an_error_leaves_no_half_video(tmp_path: Path):
    pytest.importorskip("imageio_ffmpeg")
    with pytest.raises(ValueError, match="uint8"), Video(tmp_path / "a.mp4", fps=10) as video:  # noqa: PT012
        video.add(np.zeros((64, 64, 3), np.uint8))
        video.add(np.zeros((64, 64), np.uint8))
    assert not (tmp_path / "a.mp4").exists()
