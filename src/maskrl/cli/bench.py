"""`maskrl bench`: how fast this machine is, and where its time goes."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskrl.cli import words

if TYPE_CHECKING:
    from maskrl.bench.result import Result
    from maskrl.recipes.schema import Recipe

DEFAULT = "dmcontrol/cheetah-run"
ENVIRONMENTS = [DEFAULT, "atari/pong", "toy/reach", "toy/catch"]

app = typer.Typer(
    help="How fast this machine is: updates, the replay, environments, whole runs.",
    epilog="Seconds of a shared machine say little: compare what one command prints, not two commands.",
    no_args_is_help=True,
)

OptionalRecipe = Annotated[
    str, typer.Argument(metavar="[RECIPE]", help="Such as dmcontrol/cheetah-run, atari/pong or toy/reach.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Rounds = Annotated[int, typer.Option(metavar="N", min=1, help="How often everything is measured, in alternation.")]


def _sizes(help: str) -> Any:
    return typer.Option(metavar="N,N,…", help=help)


@app.command()
def update(
    recipe: OptionalRecipe = DEFAULT,
    overrides: words.Overrides = None,
    profile: words.ProfileOption = "auto",
    method: words.MethodOption = None,
    rounds: Rounds = 5,
    plain: Annotated[
        bool, typer.Option(" /--no-plain", help="Leave out the same update written plainly, which is slower.")
    ] = True,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Name the operations that take the most time, by torch's profiler.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Time an update and its phases, beside the machine's limit for such layers and the same update written plainly."""
    from maskrl.bench.update import bench_update

    chosen = _recipe(recipe, overrides, profile, method)
    _show(as_json, bench_update, chosen, rounds=rounds, plain=plain, kernels=kernels)


@app.command()
def replay(
    sizes: Annotated[
        str,
        _sizes(
            "Transitions, of one replay after the other. On DMControl, 1,000,000 are 30 GB: what has no room is skipped."
        ),
    ] = "10000,100000,1000000",
    as_json: AsJson = False,
) -> None:
    """Time draws from full replays as the paper's agents have them, in memory and on disk, and say what they take."""
    from maskrl.bench.replay import CLIP, bench_replay

    _show(as_json, bench_replay, _numbers("--sizes", sizes, least=CLIP))


@app.command()
def env(
    recipes: Annotated[
        list[str] | None, typer.Argument(metavar="[RECIPE]...", help=f"Default: {' '.join(ENVIRONMENTS)}.")
    ] = None,
    sizes: Annotated[str, _sizes("Sides of the frames of DMControl and Atari.")] = "48,64,84,100",
    seconds: Annotated[float, typer.Option(metavar="S", min=0.01, help="Seconds for each measurement.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Time environments by OpenGL backend, frame size and shadow map, and say where their time goes."""
    from maskrl.bench.env import bench_env

    wanted = _numbers("--sizes", sizes, least=16)
    chosen = [words.Asked(name, profile="lite").recipe() for name in recipes or ENVIRONMENTS]
    _show(as_json, bench_env, chosen, sizes=wanted, seconds=seconds)


@app.command()
def run(
    recipe: words.RecipeName,
    overrides: words.Overrides = None,
    decisions: Annotated[int, typer.Option(metavar="N", min=1, help="Decisions of learning that are timed.")] = 100,
    side_by_side: Annotated[
        int, typer.Option(metavar="M", min=1, help="Runs at once, on one thread each if more than one.")
    ] = 1,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Also with this override (may be given again), in alternation."),
    ] = None,
    profile: words.ProfileOption = "auto",
    method: words.MethodOption = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="With --compare: how often both are run, in alternation.")
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Time the real training loop from end to end after a short warm-up, evaluations left out, and say where its time goes."""
    from maskrl.bench.run import bench_run, compare_runs

    chosen = _recipe(recipe, overrides, profile, method)
    options = {"decisions": decisions, "processes": side_by_side}
    if compare:
        other = _recipe(recipe, [*(overrides or []), *compare], profile, method)
        _show(as_json, compare_runs, chosen, other, compare, rounds=rounds, **options)
    else:
        _show(as_json, bench_run, chosen, **options)


@app.command()
def scale(
    recipe: OptionalRecipe = DEFAULT,
    overrides: words.Overrides = None,
    profile: words.ProfileOption = "auto",
    rounds: Rounds = 5,
    figure: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time how an update grows with clips, K, filters, image size and decoder width, each varied alone; fit exponents."""
    from maskrl.bench.scaling import bench_scale

    _show(as_json, bench_scale, _recipe(recipe, overrides, profile, None), rounds=rounds, figure=figure)


@app.command()
def pieces(
    recipe: OptionalRecipe = DEFAULT,
    overrides: words.Overrides = None,
    sizes: Annotated[str, _sizes("Observations in a piece.")] = "16,32,64,128",
    profile: words.ProfileOption = "auto",
    method: words.MethodOption = None,
    rounds: Rounds = 5,
    as_json: AsJson = False,
) -> None:
    """Time an update in pieces of several sizes, to choose agent.micro_batch for this machine."""
    from maskrl.bench.scaling import bench_pieces

    wanted = _numbers("--sizes", sizes, least=1)
    _show(as_json, bench_pieces, _recipe(recipe, overrides, profile, method), wanted, rounds=rounds)


def _show(as_json: bool, bench: "Callable[..., Result]", *arguments: Any, **options: Any) -> None:
    """Run a benchmark and print its result. Errors that say what to do (no OpenGL, no simulator, no room) become refusals."""
    from maskrl.runs.directory import RunError

    with words.refusing(RunError, ValueError, ModuleNotFoundError, RuntimeError, OSError):
        result = bench(*arguments, **options, tell=_tell)
    print(result.json() if as_json else result.text())


def _recipe(name: str, overrides: Sequence[str] | None, profile: words.Profile, method: str | None) -> "Recipe":
    """Overrides without a recipe are of the default one."""
    if "=" in name:
        name, overrides = DEFAULT, [name, *(overrides or [])]
    return words.Asked(name, overrides, profile, method).recipe()


def _tell(text: str) -> None:
    """Progress goes to stderr, so that it does not mix with the result."""
    print(text, file=sys.stderr, flush=True)


def _numbers(option: str, text: str, *, least: int) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise words.Refusal(
            f"{option} {text}: expected whole numbers with commas between them, such as 1000,2000."
        ) from None
    if min(numbers) < least:
        raise words.Refusal(f"{option} {text}: the least is {least}.")
    return numbers
