"""`maskrl play`."""

import sys
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from maskrl.cli.words import Force, OtherEnv, Trust, consented, refusing
from maskrl.words import count, number

OUT_HELP = "A .mp4 or .gif file (default: a window; play.mp4 without a screen)."


def play(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    episodes: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Episodes to play.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help=OUT_HELP)] = None,
    trust: Trust = False,
    env: OtherEnv = None,
    force: Force = False,
) -> None:
    """Watch the agent of a run play, and what its encoder sees.

    $ maskrl play RUN
    $ maskrl play RUN --episodes 3 --out play.mp4
    """
    from maskrl.outputs import VIDEO, OutputError, require_output
    from maskrl.runs import play as playing
    from maskrl.runs.directory import Run, RunError, title
    from maskrl.runs.loop import EVALUATION_SEED
    from maskrl.runs.policy import policy_of
    from maskrl.runs.video import Video

    with refusing(RunError, ValueError, ModuleNotFoundError, RuntimeError, OSError, OutputError):
        opened = Run.open(run)
        recipe = consented(opened.recipe, env, trust)
        policy = policy_of(recipe, opened.newest(lambda text: print(f"maskrl: {text}", file=sys.stderr), older=True))
        returns: list[float] = []
        seed = recipe.seed + EVALUATION_SEED
        frames = playing.images(policy, recipe, episodes=episodes, seed=seed, returns=returns)
        with redirect_stdout(sys.stderr), closing(frames):  # an environment may print
            if out is None and playing.has_screen():
                playing.show(frames, title(recipe))
                path = None
            else:
                first, fps = next(frames)
                video = Video(out or Path("play.mp4"), fps=fps)
                require_output(video.path, VIDEO, force=force)
                with video:
                    video.add(first)
                    for image, _ in frames:
                        video.add(image)
                path = video.path
    if returns:
        print(f"{title(recipe)}: {number(sum(returns) / len(returns))} over {count(len(returns), 'episode')}")
    if path is not None:
        print(f"  {path}")
