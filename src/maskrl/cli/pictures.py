"""`maskrl masks`: a page that shows what MLR hides."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from maskrl.cli.words import Asked, Profile, ProfileOption, Refusal, count, refusing

if TYPE_CHECKING:
    from maskrl.recipes.schema import Recipe
    from maskrl.report.film import Footage
    from maskrl.runs.directory import Run

Film = Literal["agent", "replay", "random"]

# The page ends its command with what is on show.
ON_SHOW = tuple(f"objective.mask.{name}" for name in ("strategy", "ratio", "cube", "feature_patch"))
HERE = ("device", "threads", "overlap", "compile")  # of a run: how it was computed, not what


def masks(
    source: Annotated[
        str, typer.Argument(metavar="[RECIPE|RUN]", help="A recipe, such as atari/pong, or the directory of a run.")
    ] = "dmcontrol/cartpole-swingup",
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as seed=3; of a run, only of its objective."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page: one file that needs no other.")] = Path(
        "masks.html"
    ),
    film: Annotated[
        Film | None,
        typer.Option(
            help="What is on film: the run's trained agent, its replay, or random actions (default: agent if there is one)."
        ),
    ] = None,
    start: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Decisions before the clip; of a shorter episode, its end is shown."),
    ] = 24,
    profile: ProfileOption = "auto",
) -> None:
    """Make a page that shows what MLR hides of a real clip: cube, spatial and temporal masks of any ratio and size."""
    from maskrl.replay.buffer import NothingToDrawError
    from maskrl.report import masks as explorer
    from maskrl.runs.build import configure_process
    from maskrl.runs.directory import RunError

    if "=" in source and not Path(source).exists():  # no recipe was named
        source, overrides = "dmcontrol/cartpole-swingup", [source, *(overrides or [])]
    if out.is_dir():
        raise Refusal(f"--out {out} is a folder. Name a file, such as {out / 'masks.html'}.")
    words, is_run = overrides or [], Path(source).is_dir()
    with refusing(RunError):
        run, recipe, note = _of_run(source, words) if is_run else _of_recipe(source, words, profile)
    command = _command(recipe, _settings(recipe) if run else words, profiled=is_run or profile != "auto")
    configure_process(recipe)
    # ValueError and RuntimeError: frames that are gone, no OpenGL. All of these are written for whoever typed the command.
    with refusing(RunError, NothingToDrawError, ValueError, ModuleNotFoundError, RuntimeError):
        footage = _film(run, recipe, film, start)
        data = explorer.explore(recipe, footage, note=note, command=command)
    with refusing(OSError, ModuleNotFoundError):
        explorer.write_page(data, out)
    print(f"{out}: {count(data['steps'], 'observation')} of {recipe.name}, {recipe.profile} profile. {footage.source}")
    if note:
        print(note)


def _command(recipe: "Recipe", words: list[str] | None, *, profiled: bool) -> str:
    """The line that trains this, without what the page adds to it: the masks on show."""
    if words is None:
        return ""
    kept = [word for word in words if word.partition("=")[0].strip() not in ON_SHOW]
    return shlex.join(["maskrl", "train", recipe.name, *kept, *(["--profile", recipe.profile] if profiled else [])])


def _of_recipe(name: str, overrides: list[str], profile: Profile) -> tuple[None, "Recipe", str]:
    return None, *_with_masks(Asked(name, overrides, profile).recipe())


def _of_run(path: str, overrides: list[str]) -> tuple["Run", "Recipe", str]:
    from maskrl.recipes.overrides import with_overrides
    from maskrl.runs.directory import Run

    run = Run.open(Path(path))
    others = [word for word in overrides if not word.startswith("objective.")]
    if others:
        raise Refusal(
            f"{' '.join(others)}: {path} is a run, and of a run only the objective can be shown otherwise. For more, name its "
            f"recipe, {run.recipe.name}."
        )
    recipe, note = _with_masks(run.recipe)
    with refusing(ValueError):
        return run, with_overrides(recipe, overrides), note


def _settings(recipe: "Recipe") -> list[str] | None:
    """The words that make it of the recipe of its name, its method among them; None if no recipe has that name."""
    from maskrl import recipes
    from maskrl.recipes.schema import difference

    try:
        named = recipes.find(recipe.name, recipe.profile)
        words = list[str]()
        if recipe.preset is not None:
            named = recipes.find(recipe.name, recipe.profile, agent=recipe.preset)
            words = ["--method", recipe.preset, "objective=mlr"]
    except ValueError:  # a recipe of the user's own
        return None
    changes = [line.partition(": ") for line in difference(named, recipe)]
    return [*words, *(f"{path}={values.partition(' -> ')[2]}" for path, _, values in changes if path not in HERE)]


def _with_masks(recipe: "Recipe") -> tuple["Recipe", str]:
    """The recipe, or, if it hides nothing, with the masks of its task; and a word about that."""
    from maskrl import recipes
    from maskrl.recipes.schema import with_objective

    if recipe.objective is not None:
        return recipe, ""
    with refusing(ValueError):
        original = recipes.find(recipe.name, recipe.profile)
    note = f"This is the {recipe.method} method, which hides nothing. What is shown is what MLR would hide."
    return with_objective(recipe, original.objective), note


def _film(run: "Run | None", recipe: "Recipe", film: Film | None, start: int) -> "Footage":
    """A clip of the run's agent if there is one and nothing else was asked for."""
    from maskrl.report import film as camera

    state = None
    if run is not None and film != "random":
        state = run.restore(tell=lambda text: print(f"maskrl: {text}", file=sys.stderr))
    if run is not None and state is not None:
        if film == "replay":
            return camera.film_replay(run, recipe, state)
        return camera.film_agent(run, recipe, state, start=start)
    if film in ("agent", "replay"):
        if run is None:
            raise Refusal(f"--film {film} needs a run: name its directory instead of a recipe.")
        raise Refusal(f"{run.path} has no checkpoint yet. Use --film random, or continue the run.")
    return camera.film_random(recipe, start=start)
