"""What can be looked at afterwards: the learning curve of a run, and a video of its agent."""

import importlib.util
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskrl.envs.base import require_extra
from maskrl.recipes.published import Published
from maskrl.runs.directory import Run, RunError

NOT_COMPARABLE = "not comparable: lite profile"
BLUE, GREY, ORANGE = "#2962a8", "#9a9a9a", "#d0621b"


def learning_curve(run: Run, paper: Published | None = None) -> Path:
    """Draw the run's evaluations into `learning_curve.png` of its directory: the score against frames, and the paper's."""
    require_extra("matplotlib", "report")
    # The object-oriented interface: pyplot would ask for a window system and keep the figure alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    evaluations = list(run.events("evaluation"))
    if not evaluations:
        raise RunError(f"{run.path} holds no evaluation yet, so there is no curve to draw.")
    recipe = run.recipe
    frames = np.array([event["frames"] for event in evaluations])
    returns = [np.array(event["returns"]) for event in evaluations]
    score, spread = np.array([r.mean() for r in returns]), np.array([r.std() for r in returns])

    figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(frames, score - spread, score + spread, color=BLUE, alpha=0.18, linewidth=0)
    episodes = recipe.evaluation.episodes
    axes.plot(frames, score, "o-", color=BLUE, markersize=3.5, label=f"score (band: spread over {episodes} episodes)")
    for event in run.events("random"):
        axes.axhline(event["score"], color=GREY, linestyle="--", linewidth=1.2, label="random actions")
        break
    if paper is not None:
        comparable = recipe.profile == "paper"
        words = f"paper, {paper.seeds} seeds" + ("" if comparable else f" ({NOT_COMPARABLE})")
        spread_of_paper = None if paper.std is None else [paper.std]
        axes.errorbar(
            [recipe.frames], [paper.mean], spread_of_paper, fmt="D", markersize=5, capsize=4, clip_on=False, zorder=3,
            color=ORANGE if comparable else GREY, alpha=1.0 if comparable else 0.6, label=words,
        )  # fmt: skip
    method = {"baseline": "Baseline", "mlr": "MLR"}.get(recipe.method, recipe.method)
    axes.set_title(f"{recipe.name}, {method}, {recipe.profile} profile, seed {recipe.seed}", loc="left", fontsize=11)
    repeat = recipe.env.action_repeat
    axes.set_xlabel(f"simulator frames (1 decision = {repeat} frame{'s' if repeat > 1 else ''})")
    axes.set_ylabel("score (mean episode return)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(0, recipe.frames)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9, loc="best")
    file = run.path / "learning_curve.png"
    FigureCanvasAgg(figure).print_png(str(file))  # type: ignore[no-untyped-call]
    return file


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
