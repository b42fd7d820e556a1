"""`maskrl masks`: a page that shows MLR's masks."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from maskrl.cli.words import Asked, Force, OtherEnv, ProfileOption, Refusal, Trust, consented, refusing
from maskrl.words import count

if TYPE_CHECKING:
    from maskrl.recipes.schema import Recipe
    from maskrl.report.film import Footage
    from maskrl.runs.directory import Run

Film = Literal["agent", "replay", "random"]

# The page completes this command with the values it shows.
ON_SHOW = tuple(f"objective.mask.{name}" for name in ("strategy", "ratio", "cube", "feature_patch"))

SOURCE_HELP = "A recipe, such as atari/pong, or the directory of a run."
FILM_HELP = "Show the run's agent (the default if there is one), its replay, or random actions."
START_HELP = "Decisions before the clip; a shorter episode shows its end."


def masks(
    source: Annotated[str, typer.Argument(metavar="RECIPE|RUN", help=SOURCE_HELP)] = "dmcontrol/cartpole-swingup",
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Overrides, such as seed=3; of a run, only of its objective."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page: one file.")] = Path("masks.html"),
    film: Annotated[Film | None, typer.Option(help=FILM_HELP)] = None,
    start: Annotated[int, typer.Option(metavar="N", min=0, max=10**6, help=START_HELP)] = 24,
    profile: ProfileOption = "auto",
    trust: Trust = False,
    env: OtherEnv = None,
    force: Force = False,
) -> None:
    """Make a page that shows what MLR masks in a real clip. The page varies strategy, ratio and size.

    $ maskrl masks atari/pong
    $ maskrl masks dmcontrol/cheetah-run objective.mask.ratio=0.3 --out cheetah.html
    $ maskrl masks RUN --film replay
    """
    from maskrl.outputs import MASKS, OutputError, require_output
    from maskrl.recipes.overrides import with_overrides
    from maskrl.replay.buffer import NothingToDrawError
    from maskrl.report import masks as explorer
    from maskrl.runs.build import configure_process
    from maskrl.runs.directory import Run, RunError

    if "=" in source and not Path(source).exists():  # an override, without a recipe
        source, overrides = "dmcontrol/cartpole-swingup", [source, *(overrides or [])]
    if out.is_dir():
        raise Refusal(f"--out {out} is a folder. Name a file, such as {out / 'masks.html'}.")
    with refusing(OutputError, OSError):
        require_output(out, MASKS, force=force)
    words, run = overrides or [], None
    with refusing(RunError, ValueError):
        if Path(source).is_dir():
            run = Run.open(Path(source))
            _require_objective(words, run)
            recipe, note = _with_masks(consented(run.recipe, env, trust))
            recipe, command = with_overrides(recipe, words), ""
        else:
            if env is not None:
                raise Refusal(f"--env is for the directory of a run. Name the environment instead of {source}.")
            recipe, note = _with_masks(Asked(source, words, profile).recipe())
            kept = [word for word in words if word.partition("=")[0].strip() not in ON_SHOW]
            # The page may be opened on another machine, so its command contains no path.
            command = shlex.join(["maskrl", "train", *Asked(source, kept, profile).words()])
    configure_process(recipe)
    # ValueError and RuntimeError: missing frames, no OpenGL. All of these have messages for the user.
    with refusing(RunError, NothingToDrawError, ValueError, ModuleNotFoundError, RuntimeError):
        footage = _film(run, recipe, film, start)
        data = explorer.explore(recipe, footage, note=note, command=command)
    with refusing(OSError, ModuleNotFoundError):
        explorer.write_page(data, out)
    print(f"{out}: {count(data['steps'], 'observation')} of {recipe.name}, {recipe.profile} profile. {footage.source}")
    if note:
        print(note)


def _require_objective(words: list[str], run: "Run") -> None:
    others = [word for word in words if not word.startswith("objective.")]
    if others:
        raise Refusal(
            f"{' '.join(others)}: {run.path} is a run; only objective.* can be changed for a run. For more, name its "
            f"recipe, {run.recipe.name}."
        )


def _with_masks(recipe: "Recipe") -> tuple["Recipe", str]:
    """The recipe and a note, usually empty. A recipe without an objective gets the masks of its task."""
    from maskrl import recipes
    from maskrl.recipes.schema import with_objective

    if recipe.objective is not None:
        return recipe, ""
    original = recipes.usual(recipe, None, "mlr")
    if original is None:
        raise ValueError(
            f"{recipe.name} is not a recipe of maskrl, and its run has no objective: there are no masks to show."
        )
    note = f"This is the {recipe.method} method, which hides nothing. The page shows what MLR would hide."
    return with_objective(recipe, original.objective), note


def _film(run: "Run | None", recipe: "Recipe", film: Film | None, start: int) -> "Footage":
    """A clip of the requested kind; by default of the run's agent, if there is one."""
    from maskrl.report import film as camera

    if run is not None and film != "random":
        state = run.restore(tell=lambda text: print(f"maskrl: {text}", file=sys.stderr))
        if state is not None and film == "replay":
            return camera.film_replay(run, recipe, state)
        if state is not None:
            return camera.film_agent(run, recipe, state, start=start)
    if film in ("agent", "replay"):
        if run is None:
            raise Refusal(f"--film {film} needs a run: name its directory instead of a recipe.")
        raise Refusal(f"{run.path} has no checkpoint yet. Use --film random, or continue the run.")
    return camera.film_random(recipe, start=start)
