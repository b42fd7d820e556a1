"""A video of an agent."""

import importlib.util
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskrl.envs.base import require_extra


class Video:
    """Takes RGB images (H, W, 3) and writes them as .mp4, or as .gif where there is no imageio-ffmpeg.

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
        self.path, self.fps = path, fps  # the path is where the video really goes
        self._images: list[Any] = []  # of a .gif, which is written at the end
        self._encoder: Generator[None, Any, None] | None = None

    def __enter__(self) -> "Video":
        self.path.parent.mkdir(parents=True, exist_ok=True)
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

            size = (image.shape[1], image.shape[0])
            # yuv420p, which every player knows, needs even sides.
            self._encoder = imageio_ffmpeg.write_frames(str(self.path), size, fps=self.fps, macro_block_size=2)
            self._encoder.send(None)
        self._encoder.send(np.ascontiguousarray(image))

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._encoder is not None:
            self._encoder.close()
            if error is not None:
                self.path.unlink(missing_ok=True)  # half a video
        elif self._images and error is None:
            first, *rest = self._images
            first.save(self.path, save_all=True, append_images=rest, duration=round(1000 / self.fps), loop=0)
