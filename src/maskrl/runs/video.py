"""A video of an agent, alone or beside random play."""

import importlib.util
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskrl.envs.base import require_extra
from maskrl.outputs import VIDEO
from maskrl.recipes.schema import Recipe
from maskrl.runs.evaluate import Act, Episode

LONGEST = 1000  # decisions per video: a minute of Atari, where an episode can last half an hour
STRIP = 40  # pixels under the pictures, for the caption


def record_beside_random(recipe: Recipe, act: Act, path: Path, *, seed: int) -> tuple[Path, float, float]:
    """Record random actions on the left and the policy's on the right, from the same start: the first episode of `seed`.

    Returns the path of the video, and both returns. The episode that ends first keeps showing its last picture.
    """
    require_extra("PIL", "video")
    with (
        closing(recipe.env.make(seed=recipe.seed, training=False)) as left,
        closing(recipe.env.make(seed=recipe.seed, training=False)) as right,
        Video(path, fps=float(left.metadata["render_fps"])) as video,
    ):
        chance, trained = Episode(left, 0, seed), Episode(right, 0, seed)
        pictures = [left.render(), right.render()]
        for _ in range(LONGEST):
            words = (f"random actions: {chance.total:,.0f}", f"trained: {trained.total:,.0f}")
            video.add(np.concatenate([_captioned(*pair) for pair in zip(pictures, words, strict=True)], axis=1))
            if chance.ended and trained.ended:
                break
            if not chance.ended:
                chance.step(None, epsilon=1.0)
                pictures[0] = left.render()
            if not trained.ended:
                trained.step(trained.chosen_by(act), recipe.evaluation.epsilon)
                pictures[1] = right.render()
    return video.path, chance.total, trained.total


def _captioned(picture: Any, words: str) -> NDArray[np.uint8]:
    """The picture (H, W, 3), enlarged to at least 240 pixels, with a caption under it."""
    from PIL import Image, ImageDraw, ImageFont

    times = -(-240 // picture.shape[1])  # Atari's screen is 160 pixels wide
    large = np.repeat(np.repeat(picture, times, axis=0), times, axis=1)
    image = Image.new("RGB", (large.shape[1], large.shape[0] + STRIP), "white")
    image.paste(Image.fromarray(large), (0, 0))
    font = ImageFont.load_default(size=20)
    ImageDraw.Draw(image).text((10, large.shape[0] + 8), words, fill="black", font=font)
    return np.asarray(image)


class Video:
    """Takes RGB images (H, W, 3) and writes them as .mp4, or as .gif without imageio-ffmpeg.

    with Video(Path("episode.mp4"), fps=20) as video:
        evaluate(agent, [env], episodes=1, seed=0, watcher=video.add)
    """

    def __init__(self, path: Path, *, fps: float) -> None:
        if path.suffix.lower() not in (".mp4", ".gif"):
            raise ValueError(f"A video is a .mp4 or a .gif file; {path.name!r} ends in neither.")
        if path.suffix.lower() == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
            path = path.with_suffix(".gif")
        if path.suffix.lower() == ".gif":
            require_extra("PIL", "video")
        self.path, self.fps = path, fps  # the actual path, perhaps with another suffix
        # An earlier video stays until this one is whole.
        self._partial = path.with_name(f".{path.stem}.partial{path.suffix}")
        self._images: list[Any] = []  # for a .gif, which is written at the end
        self._encoder: Generator[None, Any, None] | None = None

    def __enter__(self) -> "Video":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._partial.unlink(missing_ok=True)  # of a killed recording, or a link
        return self

    def add(self, image: NDArray[np.uint8]) -> None:
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ValueError(f"An image of a video is uint8 (H, W, 3); got {image.dtype} {image.shape}.")
        if self.path.suffix.lower() == ".gif":
            from PIL import Image

            small = Image.fromarray(image)
            small.thumbnail((256, 256))  # all images are kept until the end, and a .gif is large
            self._images.append(small.quantize(dither=Image.Dither.NONE))
            return
        if self._encoder is None:
            import imageio_ffmpeg  # type: ignore[import-untyped]

            params = ["-metadata", f"comment={VIDEO.decode()}"]  # marks it as written by maskrl
            size = (image.shape[1], image.shape[0])
            # yuv420p, which every player supports, needs even sides.
            self._encoder = imageio_ffmpeg.write_frames(
                str(self._partial), size, fps=self.fps, macro_block_size=2, output_params=params
            )
            self._encoder.send(None)
        self._encoder.send(np.ascontiguousarray(image))

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._encoder is not None:
            self._encoder.close()
        elif self._images and error is None:
            first, *rest = self._images
            first.save(
                self._partial, save_all=True, append_images=rest, duration=round(1000 / self.fps), loop=0, comment=VIDEO
            )
        if error is not None:
            self._partial.unlink(missing_ok=True)
        elif self._partial.exists():
            self._partial.replace(self.path)
