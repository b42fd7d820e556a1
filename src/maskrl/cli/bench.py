"""`maskrl bench`: measure the speed of this machine and of each part."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskrl.cli import words
from maskrl.cli.help import App, complete_recipe

if TYPE_CHECKING:
    from maskrl.bench.result import Result
    from maskrl.recipes.schema import Recipe

DEFAULT = "dmcontrol/cheetah-run"
PEERS = ["dmcontrol/cartpole-swingup", "atari/pong"]
ENVIRONMENTS = [DEFAULT, "atari/pong", "toy/reach", "toy/catch"]

HELP = """Measure the speed of updates, replay, environments and runs.

On a shared machine, compare only numbers from one command: the load may differ between two commands.

$ maskrl bench update
$ maskrl bench run dmcontrol/cheetah-run --compare overlap=true
"""

app = App(help=HELP, no_args_is_help=True)

OptionalRecipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="Such as dmcontrol/cheetah-run, atari/pong or toy/reach.", autocompletion=complete_recipe
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Rounds = Annotated[int, typer.Option(metavar="N", min=1, help="Rounds of measurements, in alternation.")]


@app.command()
def update(
    recipe: OptionalRecipe = DEFAULT,
    overrides: words.Overrides = None,
    profile: words.ProfileOption = "auto",
    method: words.MethodOption = None,
    rounds: Rounds = 5,
    no_plain: Annotated[bool, typer.Option("--no-plain", help="Do not time the plain PyTorch version.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="Name the operations that take the most time.")] = False,
    as_json: AsJson = False,
) -> None:
    """Time an update and its phases. Also times the fastest layers of its shapes, and a plain PyTorch version.

    $ maskrl bench update
    $ maskrl bench update atari/pong --profile paper --kernels
    """
    from maskrl.bench.update import bench_update

    chosen = _recipe(recipe, overrides, profile, method)
    _show(as_json, bench_update, chosen, rounds=rounds, plain=not no_plain, kernels=kernels)


@app.command()
def methods(
    recipe: OptionalRecipe = DEFAULT,
    overrides: words.Overrides = None,
    profile: words.ProfileOption = "lite",
    rounds: Rounds = 5,
    as_json: AsJson = False,
) -> None:
    """Time updates of every method, in turns with MLR's. Those that the recipe has; overrides are for all of them.

    $ maskrl bench methods
    $ maskrl bench methods atari/pong threads=1 --json
    """
    from maskrl.bench.methods import bench_methods
    from maskrl.recipes import METHODS, pair_on
    from maskrl.recipes.methods import OWN

    mlr = _recipe(recipe, overrides, profile, None)
    suite = OWN[mlr.agent.kind] if mlr.name.startswith("gym/") else None
    names = [name for name in METHODS if pair_on(mlr.name, name, suite) is not None]
    chosen = {name: _recipe(recipe, overrides, profile, name) for name in names}
    _show(as_json, bench_methods, chosen, rounds=rounds)


@app.command()
def replay(
    sizes: Annotated[str, typer.Option(metavar="N,N,…", help="Transitions in the replay.")] = "10000,100000,1000000",
    as_json: AsJson = False,
) -> None:
    """Time draws from full replays, in memory and on disk. Sizes are the paper's; a replay that does not fit is skipped.

    $ maskrl bench replay
    $ maskrl bench replay --sizes 10000,100000
    """
    from maskrl.bench.replay import CLIP, bench_replay

    _show(as_json, bench_replay, _numbers(sizes, least=CLIP))


@app.command()
def env(
    recipes: Annotated[
        list[str] | None, typer.Argument(metavar="RECIPE", help=f"Default: {' '.join(ENVIRONMENTS)}.")
    ] = None,
    sizes: Annotated[str, typer.Option(metavar="N,N,…", help="Sides of a frame in pixels.")] = "48,64,84,100",
    seconds: Annotated[float, typer.Option(metavar="S", min=0.01, help="Seconds for each measurement.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Time environments by frame size and renderer, part by part. MUJOCO_GL sets the renderer of DMControl.

    $ maskrl bench env
    $ maskrl bench env dmcontrol/cheetah-run --sizes 48,84
    """
    from maskrl.bench.env import bench_env

    chosen = [words.Asked(name, profile="lite").recipe() for name in recipes or ENVIRONMENTS]
    _show(as_json, bench_env, chosen, sizes=_numbers(sizes, least=16), seconds=seconds)


@app.command()
def run(
    recipe: words.RecipeName,
    overrides: words.Overrides = None,
    decisions: Annotated[int, typer.Option(metavar="N", min=1, help="Decisions of learning that are timed.")] = 100,
    side_by_side: Annotated[int, typer.Option(metavar="M", min=1, help="Runs at once, each on one thread.")] = 1,
    compare: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Also with this override.")] = None,
    profile: words.ProfileOption = "auto",
    method: words.MethodOption = None,
    rounds: Rounds = 3,
    as_json: AsJson = False,
) -> None:
    """Time the training loop after a short warm-up. Evaluations are left out; --rounds applies to --compare.

    $ maskrl bench run toy/reach
    $ maskrl bench run dmcontrol/cheetah-run --compare overlap=true
    """
    from maskrl.bench.run import bench_run, compare_runs

    chosen = _recipe(recipe, overrides, profile, method)
    options = {"decisions": decisions, "processes": side_by_side}
    if compare:
        other = _recipe(recipe, [*(overrides or []), *compare], profile, method)
        _show(as_json, compare_runs, chosen, other, compare, rounds=rounds, **options)
    else:
        _show(as_json, bench_run, chosen, **options)


@app.command()
def load(
    recipe: OptionalRecipe = DEFAULT,
    overrides: words.Overrides = None,
    updates: Annotated[int, typer.Option(metavar="N", min=1, help="Updates in each measurement.")] = 10,
    spins: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,…", help="Also try these values of GOMP_SPINCOUNT: turns that a waiting thread spins."
        ),
    ] = None,
    profile: words.ProfileOption = "lite",
    method: words.MethodOption = None,
    rounds: Rounds = 5,
    as_json: AsJson = False,
) -> None:
    """Time an update beside busy processes, on one thread and on all. Compares ways for threads to wait.

    $ maskrl bench load
    $ maskrl bench load atari/pong --spins 0,1000
    """
    from maskrl.bench.load import bench_load

    turns = [] if spins is None else _numbers(spins, least=0, option="--spins")
    chosen = _recipe(recipe, overrides, profile, method)
    _show(as_json, bench_load, chosen, rounds=rounds, updates=updates, spins=turns)


@app.command()
def start(
    recipe: OptionalRecipe = "dmcontrol/cartpole-swingup",
    overrides: words.Overrides = None,
    profile: words.ProfileOption = "lite",
    method: words.MethodOption = None,
    rounds: Rounds = 3,
    as_json: AsJson = False,
) -> None:
    """Time --help, the first frame of a run, and a resume. The resumed run has a full replay.

    $ maskrl bench start
    $ maskrl bench start toy/reach --rounds 1
    """
    from maskrl.bench.start import bench_start

    asked = words.Asked(recipe, overrides, profile, method)
    _show(as_json, bench_start, asked.recipe(), asked.words(), rounds=rounds)


@app.command()
def scale(
    recipe: OptionalRecipe = DEFAULT,
    overrides: words.Overrides = None,
    profile: words.ProfileOption = "auto",
    rounds: Rounds = 5,
    as_json: AsJson = False,
) -> None:
    """Time how an update grows with the sizes of its parts. Varies clips, K, filters, image size and decoder width, each alone.

    $ maskrl bench scale
    $ maskrl bench scale dmcontrol/cheetah-run --rounds 2
    """
    from maskrl.bench.scaling import bench_scale

    _show(as_json, bench_scale, _recipe(recipe, overrides, profile, None), rounds=rounds)


@app.command()
def sweep(
    recipe: OptionalRecipe = DEFAULT,
    overrides: words.Overrides = None,
    decisions: Annotated[int, typer.Option(metavar="N", min=1, help="Decisions of learning in each run.")] = 300,
    as_json: AsJson = False,
) -> None:
    """Time sweeps of short lite runs on 1, 2, 4, … cores. Prints runs per hour against the ideal, and memory per run.

    $ maskrl bench sweep
    $ maskrl bench sweep toy/reach --decisions 100
    """
    from maskrl.bench.sweeping import bench_sweep

    _show(as_json, bench_sweep, recipe, overrides or [], decisions=decisions)


@app.command()
def peers(
    recipes: Annotated[list[str] | None, typer.Argument(metavar="RECIPE", help=f"Default: {' '.join(PEERS)}.")] = None,
    decisions: Annotated[int, typer.Option(metavar="N", min=1, help="Decisions of learning that are timed.")] = 100,
    rounds: Rounds = 3,
    profile: words.ProfileOption = "lite",
    as_json: AsJson = False,
) -> None:
    """Time stable-baselines3's SAC and DQN beside ours. Same environment, network, batch and threads. Needs maskrl[sb3].

    $ maskrl bench peers
    $ maskrl bench peers atari/pong --rounds 1
    """
    from maskrl.bench.peers import bench_peers

    chosen = [words.Asked(name, profile=profile).recipe() for name in recipes or PEERS]
    _show(as_json, bench_peers, chosen, decisions=decisions, rounds=rounds)


@app.command()
def pieces(
    recipe: OptionalRecipe = DEFAULT,
    overrides: words.Overrides = None,
    sizes: Annotated[str, typer.Option(metavar="N,N,…", help="Observations in a piece.")] = "16,32,64,128",
    profile: words.ProfileOption = "auto",
    method: words.MethodOption = None,
    rounds: Rounds = 5,
    as_json: AsJson = False,
) -> None:
    """Time an update in pieces of several sizes. Helps to choose agent.micro_batch for this machine.

    $ maskrl bench pieces
    $ maskrl bench pieces atari/pong --sizes 32,64
    """
    from maskrl.bench.scaling import bench_pieces

    wanted = _numbers(sizes, least=1)
    _show(as_json, bench_pieces, _recipe(recipe, overrides, profile, method), wanted, rounds=rounds)


def _show(as_json: bool, bench: "Callable[..., Result]", *arguments: Any, **options: Any) -> None:
    """Run a benchmark and print its result; progress goes to stderr. Errors that the user can fix become refusals."""
    from maskrl.runs.directory import RunError

    with words.refusing(RunError, ValueError, ModuleNotFoundError, RuntimeError, OSError):
        result = bench(*arguments, **options, tell=lambda text: print(text, file=sys.stderr, flush=True))
    print(result.json() if as_json else result.text())


def _recipe(name: str, overrides: Sequence[str] | None, profile: words.Profile, method: str | None) -> "Recipe":
    """The recipe with overrides; a name with "=" is an override of the default recipe."""
    if "=" in name:
        name, overrides = DEFAULT, [name, *(overrides or [])]
    return words.Asked(name, overrides, profile, method).recipe()


def _numbers(text: str, *, least: int, option: str = "--sizes") -> list[int]:
    numbers = [int(word) if word.isdecimal() else -1 for word in text.split(",")]
    if min(numbers) < least:
        raise words.Refusal(f"{option} {text}: expected whole numbers from {least} on, such as 1000,2000.")
    return numbers
