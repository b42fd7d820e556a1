import sys
from pathlib import Path

import numpy as np
import pytest

from maskrl.runs import video as filming
from maskrl.runs.evaluate import evaluate, random_returns
from maskrl.runs.video import Video, record_beside_random
from tiny_runs import tiny_rainbow

Image = pytest.importorskip("PIL.Image")


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
    find_spec = filming.importlib.util.find_spec
    monkeypatch.setattr(
        filming.importlib.util, "find_spec", lambda name: None if name == "imageio_ffmpeg" else find_spec(name)
    )
    assert film(tmp_path / "a.mp4").path == tmp_path / "a.gif"
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 5


def test_other_suffixes_and_images_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"\.mp4 or a \.gif"):
        Video(tmp_path / "a.avi", fps=10)
    with Video(tmp_path / "a.gif", fps=10) as video, pytest.raises(ValueError, match=r"uint8 \(H, W, 3\)"):
        video.add(np.zeros((3, 8, 8), np.uint8))


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_an_error_leaves_no_half_video_and_keeps_the_one_before(tmp_path: Path, name: str):
    pytest.importorskip("imageio_ffmpeg")
    for before in (None, b"an earlier video"):
        if before is not None:
            (tmp_path / name).write_bytes(before)
        with pytest.raises(ValueError, match="uint8"), Video(tmp_path / name, fps=10) as video:  # noqa: PT012
            video.add(np.zeros((64, 64, 3), np.uint8))
            video.add(np.zeros((64, 64), np.uint8))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == (
            {} if before is None else {name: before}
        )
    with Video(tmp_path / name, fps=10) as video:
        video.add(np.zeros((64, 64, 3), np.uint8))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() != before


def test_random_play_and_the_agent_are_shown_from_the_same_start(tmp_path: Path):
    """The returns in the video are those that evaluations of the same seed have for their first episode."""
    recipe = tiny_rainbow()

    def right(obs: np.ndarray) -> np.ndarray:
        return np.full(len(obs), 2)

    path, chance, trained = record_beside_random(recipe, right, tmp_path / "both.gif", seed=7)

    env = recipe.env.make(seed=1, training=False)
    assert chance == random_returns([env], episodes=1, seed=7).score
    assert trained == evaluate(right, [env], episodes=1, seed=7).score
    with Image.open(path) as gif:
        first = np.asarray(gif.convert("RGB"))
        assert gif.n_frames == 40  # a game has 39 decisions
    left, other = first[:, : first.shape[1] // 2], first[:, first.shape[1] // 2 :]
    pictures = int(0.8 * len(first))  # above the words
    assert (left[:pictures] == other[:pictures]).mean() > 0.99
