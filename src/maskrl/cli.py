"""The command line. Torch and all that needs it is imported inside the commands, so that `--help` answers at once.

Exit codes: 0 done, 1 the run failed (a loss is not finite, an environment raised an error), 2 something its user can put right,
129 a closed terminal, 130 Ctrl-C, 143 SIGTERM.
"""

import difflib
import errno
import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from maskrl import __version__

if TYPE_CHECKING:
    from maskrl.experiments.recipe import Recipe
    from maskrl.experiments.run import Run

Profile = Literal["auto", "paper", "lite"]
Method = Literal["mlr", "baseline", "der", "otr", "drq", "drq_eps"]

app = typer.Typer(
    help="Sample-efficient reinforcement learning from pixels by Mask-based Latent Reconstruction (MLR).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
recipes_app = typer.Typer(help="The recipes: list them, or show one with every value of it.", no_args_is_help=False)
app.add_typer(recipes_app, name="recipes")

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="Such as dmcontrol/cartpole-swingup, atari/pong or toy/reach.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as seed=3 objective.mask.ratio=0.3."),
]
ProfileOption = Annotated[
    Profile,
    typer.Option(help="paper: to the number. lite: scaled to a laptop. auto: paper with a CUDA device, else lite."),
]
MethodOption = Annotated[
    Method,
    typer.Option(help="baseline: the same agent without the objective. The others: relatives of Rainbow, on Atari."),
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit code. Unexpected errors keep their traceback."""
    try:
        app(None if arguments is None else list(arguments), prog_name="maskrl")
    except Refusal as refusal:
        print(f"maskrl: {refusal}", file=sys.stderr)
        raise SystemExit(2) from None


class Refusal(Exception):  # noqa: N818, what it says is not an error of ours
    """Something that the user can put right; the message says how."""


@contextmanager
def refusing(*errors: type[Exception]) -> Iterator[None]:
    """Turn errors whose message is meant for the user into a refusal."""
    try:
        yield
    except errors as error:
        words = str(error)
        if isinstance(error, OSError) and error.strerror:
            words = f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
        raise Refusal(words) from error


# ── train ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@app.command()
def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    profile: ProfileOption = "auto",
    method: MethodOption = "mlr",
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the run lives (default: runs/RECIPE/METHOD/seed-SEED-DIGEST)."),
    ] = None,
    wandb: Annotated[bool, typer.Option("--wandb", help="Also log to Weights & Biases.")] = False,
) -> None:
    """Train an agent. The same command again continues the same run from its newest checkpoint."""
    from maskrl.agents.replay import NothingToDrawError
    from maskrl.experiments.progress import make_watcher, require_wandb
    from maskrl.experiments.recipe import digest
    from maskrl.experiments.run import Run, RunError
    from maskrl.experiments.train import Stopped
    from maskrl.experiments.train import train as run_to_the_end
    from maskrl.experiments.world import EnvironmentFailedError

    chosen = resolve(recipe, overrides, profile, method)
    path = run_dir or Path("runs") / chosen.name / chosen.method / f"seed-{chosen.seed}-{digest(chosen)}"
    command = _train_command(recipe, overrides or [], profile, method, run_dir, wandb)
    unit, amount = _budget(chosen)
    longer = [
        *(override for override in overrides or [] if not override.startswith(f"budget.{unit}=")),
        f"budget.{unit}={2 * amount}",
    ]
    longer_command = _train_command(recipe, longer, profile, method, None, wandb)

    if path.exists() and not path.is_dir():
        raise Refusal(f"{path} is a file. Choose another --run-dir.")
    if wandb:
        with refusing(ModuleNotFoundError):
            require_wandb()
    continued = (path / "recipe.json").exists()
    with refusing(RunError, OSError):
        run = Run.create(path, chosen) if continued else None
    if run is not None and run.status == "done":
        print(f"This run is finished already; it is in {path}.\n")
        summary(run, longer_command)
        return
    needs = forecast(chosen, path)  # before anything is written
    with refusing(RunError, OSError):
        run = run or Run.create(path, chosen)
    banner(run, needs, profile)

    tty = sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    try:
        with refusing(RunError, NothingToDrawError), make_watcher(run, tty=tty, wandb=wandb) as watcher:
            run_to_the_end(chosen, run, watcher)
    except Stopped as stopped:
        print(f"\nStopped and saved at {watcher.progress.clock.frames:,} frames. Continue with:\n  {command}")
        raise typer.Exit(128 + stopped.signal_number) from None
    except KeyboardInterrupt:  # before the loop took over, or the second in a row
        print(f"\nStopped without saving. Continue from the newest checkpoint, if there is one, with:\n  {command}")
        raise typer.Exit(130) from None
    except (FloatingPointError, EnvironmentFailedError) as error:
        kept = "The last good checkpoint is kept. Once the cause is removed, continue from it with:"
        again = f"{kept}\n  {command}" if any(run.checkpoints.glob("*.safetensors")) else "No checkpoint yet."
        print(f"maskrl: {error}\n{again}", file=sys.stderr)
        raise typer.Exit(1) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise Refusal(
            f"{error.filename or path}: {error.strerror}. The last checkpoint is kept. Make room and continue with:\n  {command}"
        ) from error
    print()
    summary(run, longer_command)


def resolve(name: str, overrides: Sequence[str] | None, profile: Profile, method: Method) -> "Recipe":
    """The recipe of a name, with overrides."""
    from maskrl import recipes

    with refusing(ValueError):
        return recipes.resolve(name, overrides or (), profile=profile, method=method)


@dataclass(frozen=True)
class Forecast:
    """What a run will take, in bytes. An amount that is free is None where the system does not tell."""

    replay: int
    disk: int  # beyond what the run directory already has, checkpoints included
    disk_free: int
    memory: int
    memory_free: int | None


def forecast(recipe: "Recipe", path: Path) -> Forecast:
    """Make the environment and the agent once, for their sizes and complaints, and refuse a replay that cannot fit."""
    import torch

    from maskrl.agents.base import Spaces
    from maskrl.agents.replay import Replay
    from maskrl.experiments import checkpoint
    from maskrl.experiments.train import build_agent, replay_size

    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise Refusal("device=cuda, but torch sees no CUDA device here. Use device=cpu, or install torch with CUDA.")
    # RuntimeError: no OpenGL backend draws. All of these are written for whoever typed the command.
    with refusing(ValueError, ModuleNotFoundError, RuntimeError):
        env = recipe.env.make(seed=recipe.seed, training=True)
        spaces = Spaces.of(env)
        # With two moments of every weight; and while one is written, those that are kept are there, too.
        saved = 3 * checkpoint.nbytes(build_agent(recipe, env).state_dict()) * (checkpoint.KEPT + 1)
        env.close()

    replay = Replay.forecast(**replay_size(recipe, spaces))
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    disk_free, memory_free = shutil.disk_usage(there).free, free_memory()
    if recipe.replay.storage == "disk":
        had = sum(file.stat().st_size for file in (path / "replay").glob("*"))
        needs = Forecast(replay, max(0, replay - had) + saved, disk_free, 0, memory_free)
    else:  # a checkpoint holds a copy of the frames
        needs = Forecast(replay, (checkpoint.KEPT + 1) * replay + saved, disk_free, 2 * replay, memory_free)
    advice = "Set replay.capacity lower (the paper keeps 100,000 decisions), or the budget."
    if needs.memory_free is not None and needs.memory > needs.memory_free:
        raise Refusal(
            f"The replay will take {size(needs.memory)} of memory, twice its size while a checkpoint is made; "
            f"{size(needs.memory_free)} is free. {advice} Or use replay.storage=disk."
        )
    if needs.disk > needs.disk_free:
        raise Refusal(
            f"The replay and the checkpoints will take {size(needs.disk)} on the disk of {there}, which has "
            f"{size(needs.disk_free)} free. "
            f"{advice} Or choose a --run-dir on a larger disk."
        )
    return needs


def free_memory() -> int | None:
    """Bytes that can be taken, by the machine, the container and the shell alike."""
    from maskrl.experiments.doctor import memory_limits

    return min(memory_limits().values(), default=None)


def size(count: int) -> str:
    """Bytes in the unit that a person would choose."""
    amount = float(count)
    units = ["B", "kB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount /= 1000
        del units[0]
    unit = units[0]
    return f"{amount:,.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"


def banner(run: "Run", needs: Forecast, profile: Profile) -> None:
    """What is about to happen, and what it will take."""
    import torch

    from maskrl.experiments.progress import title
    from maskrl.experiments.train import device_of

    recipe, repeat = run.recipe, run.recipe.env.action_repeat
    device, where = device_of(recipe), ""
    if device.type == "cpu":
        where = f", {_count(recipe.threads or torch.get_num_threads(), 'thread')}"
    if recipe.profile == "lite":
        chosen = "lite, as there is no CUDA device" if profile == "auto" and not torch.cuda.is_available() else "lite"
        words = f"{chosen}: the method scaled to a laptop; its scores are not the paper's"
    else:
        words = "paper, as there is a CUDA device" if profile == "auto" else "paper"
    capacity = min(recipe.replay.capacity, recipe.frames // repeat)
    if recipe.replay.storage == "disk":
        replay = f"{size(needs.replay)} on disk, {size(needs.disk_free)} free"
        if needs.memory_free is not None and needs.replay > needs.memory_free:
            replay += f"; more than the free memory ({size(needs.memory_free)}), so reading it will be slow"
    else:
        free = "" if needs.memory_free is None else f", {size(needs.memory_free)} free"
        replay = f"{size(needs.memory)} of memory{free}, and as much disk for checkpoints"
    print(f"maskrl {__version__}: {title(recipe)}")
    rows = {
        "profile": words,
        "budget": f"{recipe.frames:,} frames = {recipe.frames // repeat:,} decisions × {repeat}, "
        f"evaluated every {recipe.evaluation.every:,} frames over {_count(recipe.evaluation.episodes, 'episode')}",
        "device": f"{device}{where}",
        **({"renderer": renderer} if (renderer := run.versions().get("renderer")) else {}),
        "replay": f"up to {capacity:,} decisions: {replay}",
        "directory": str(run.path),
    }
    _print_rows(rows, wrap=True)
    print(flush=True)


def summary(run: "Run", longer_command: str) -> None:
    """What came out, what to hold it against, where it is and what can be done next."""
    from maskrl.experiments.evaluate import EpisodeReturns
    from maskrl.experiments.pictures import NOT_COMPARABLE, learning_curve
    from maskrl.experiments.progress import duration, number, title
    from maskrl.recipes import human_normalised, published_for

    recipe, evaluations = run.recipe, list(run.events("evaluation"))
    last, best = evaluations[-1], max(evaluations, key=lambda event: event["score"])
    returns = EpisodeReturns(tuple(last["returns"]))
    rows = {
        "score": f"{number(returns.score)} ± {number(returns.spread)} over {_count(len(returns.returns), 'episode')}"
    }
    if best["frames"] != last["frames"]:
        rows["score"] += f" (best on the way: {number(best['score'])} at {best['frames']:,} frames)"
    for event in run.events("random"):
        floor = EpisodeReturns(tuple(event["returns"]))
        rows["random"] = f"{number(floor.score)} ± {number(floor.spread)}, uniformly random actions"
    if (human := human_normalised(recipe, returns.score)) is not None:
        rows["score"] += f"; {number(human)} human-normalised"
    usual = 100_000 * (recipe.env.action_repeat if recipe.budget.decisions else 1)
    for frames in dict.fromkeys((recipe.frames, usual)):  # the paper's own budget, where it has no number at this one
        if (paper := published_for(recipe, frames)) is not None:
            spread = "" if paper.std is None else f" ± {number(paper.std)}"
            words = f"{number(paper.mean)}{spread} over {paper.seeds} seeds at {frames:,} frames"
            why = [NOT_COMPARABLE] if recipe.profile == "lite" else _changed(recipe)
            why += [f"not comparable: {recipe.frames:,} frames here"] if frames != recipe.frames and not why else []
            rows["paper"] = "; ".join([f"{words} ({paper.source})", *why])
            break
    try:
        rows["curve"] = str(learning_curve(run, published_for(recipe, recipe.frames)))
    except ModuleNotFoundError as missing:
        rows["curve"] = f"not drawn: {missing}"
    rows["checkpoint"] = str(next(iter(sorted(run.checkpoints.glob("*.safetensors"), reverse=True)), "gone"))
    rows["evaluate"] = f"maskrl evaluate {shlex.quote(str(run.path))} --episodes 20 --video agent.mp4"
    rows["go longer"] = f"{longer_command}  # a run of its own: the budget is part of a recipe"
    print(f"Done: {title(recipe)}, {last['frames']:,} frames in {duration(last['seconds'])}")
    _print_rows(rows)


# ── evaluate ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    episodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many (default: as many as the run itself uses).")
    ] = None,
    video: Annotated[Path | None, typer.Option(metavar="FILE", help="Record them: .mp4 or .gif.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")] = False,
) -> None:
    """Evaluate the newest checkpoint of a run without exploration, from the starts that the run's own evaluations use."""
    from maskrl.experiments import evaluate as evaluation
    from maskrl.experiments import train as training
    from maskrl.experiments.pictures import Video
    from maskrl.experiments.progress import number, title
    from maskrl.experiments.run import Run, RunError

    with refusing(RunError):
        opened = Run.open(run)
        state = opened.restore(tell=lambda text: print(f"maskrl: {text}", file=sys.stderr))
    if state is None:
        raise Refusal(f"{run} has no checkpoint yet. Continue it with the `maskrl train` command that started it.")
    recipe = opened.recipe
    training.configure_torch(recipe)
    with refusing(ValueError, ModuleNotFoundError, RuntimeError):
        envs = (
            training.make_evaluation_envs(recipe)
            if video is None
            else [recipe.env.make(seed=recipe.seed, training=False)]
        )
        recorder = None if video is None else Video(video, fps=float(envs[0].metadata["render_fps"]))
    agent = training.build_agent(recipe, envs[0])
    agent.load_state_dict(state["agent"])
    seed, count = recipe.seed + training.EVALUATION_SEED, episodes or recipe.evaluation.episodes
    epsilon = recipe.evaluation.epsilon
    if recorder is None:
        returns = evaluation.evaluate(agent, envs, episodes=count, seed=seed, epsilon=epsilon)
    else:
        with refusing(OSError), recorder:
            returns = evaluation.evaluate(agent, envs, episodes=count, seed=seed, epsilon=epsilon, watcher=recorder.add)
    for env in envs:
        env.close()

    frames = state["position"]["decisions"] * recipe.env.action_repeat
    if as_json:
        result = {
            "run": str(run),
            "recipe": recipe.name,
            "method": recipe.method,
            "profile": recipe.profile,
            "seed": recipe.seed,
            "frames": frames,
            "score": returns.score,
            "spread": returns.spread,
            "returns": returns.returns,
            "video": None if recorder is None else str(recorder.path),
        }
        print(json.dumps(result))
        return
    print(f"{title(recipe)}, checkpoint at {frames:,} frames")
    rows = {"score": f"{number(returns.score)} ± {number(returns.spread)} over {_count(count, 'episode')}"}
    if count > 1:
        rows["returns"] = f"from {number(min(returns.returns))} to {number(max(returns.returns))}"
    if recorder is not None:
        moved = "" if recorder.path == video else " (a .gif, because a .mp4 needs: pip install 'maskrl[video]')"
        rows["video"] = f"{recorder.path}{moved}"
    _print_rows(rows)


# ── doctor ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@app.command()
def doctor(
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where runs are to live.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for a bug report.")] = False,
) -> None:
    """Check this machine: versions, OpenGL, games, torch, memory, disk. Exit code 2 if `train` would not work."""
    from rich.console import Console

    from maskrl.experiments import doctor as examination

    checks = examination.examine(run_dir)
    done = list(checks) if as_json else examination.show(checks, Console())
    if as_json:
        print(json.dumps(examination.as_dict(done), indent=2))
    if not examination.verdict(done).works:
        raise typer.Exit(2)


# ── recipes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@recipes_app.callback(invoke_without_command=True)
def recipes(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_recipes()


@recipes_app.command("list")
def list_recipes(
    what: Annotated[
        str | None, typer.Argument(metavar="ablations", help="The rows of the paper's ablations, instead of recipes.")
    ] = None,
) -> None:
    """List the recipes with what the paper reports."""
    if what == "ablations":
        _list_ablations()
        return
    if what is not None:
        advice = "did you mean ablations?" if difflib.get_close_matches(what, ["ablations"]) else "there is ablations."
        raise Refusal(f"recipes list {what!r} is not known: {advice} Without a word, the recipes are listed.")

    from rich.console import Console
    from rich.table import Table

    from maskrl import recipes as known
    from maskrl.recipes import published_for

    def printed(value: float | None) -> str:
        """As in the paper: 907 on DMControl, 4.9 on Atari."""
        return f"{value or 0.0:,.1f}".removesuffix(".0")

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("recipe", "paper's 100k: MLR", "Baseline"):
        table.add_column(heading, justify="left" if heading == "recipe" else "right", no_wrap=True)
    for name in known.names():
        paper_recipes = [known.find(name, "paper", method) for method in ("mlr", "baseline")]
        papers = [published_for(recipe, recipe.frames) for recipe in paper_recipes]
        table.add_row(name, *("–" if paper is None else " ± ".join(map(printed, paper[:2])) for paper in papers))
    Console().print(table)
    print("\n100k is 100,000 frames on DMControl and 100,000 decisions on Atari.")
    print("maskrl recipes show RECIPE prints one; maskrl train RECIPE runs it.")


def _list_ablations() -> None:
    """Study by study: the rows, what the paper reports of them, and the overrides that make one of a recipe."""
    from rich.console import Console
    from rich.table import Table

    from maskrl import recipes as known
    from maskrl.benchmarks.published import published_aggregates, published_scores
    from maskrl.recipes import ablations

    def numbers(study: ablations.Study, label: str) -> dict[str, str]:
        """Heading → what the paper has: mean and median over tasks, or the score of every task."""
        row = (study.table, label)
        over_tasks = [line for line in published_aggregates() if (line.table, line.method) == row]
        if over_tasks:
            marked = ((line, "*" if line.misprint else "") for line in over_tasks)
            return {line.name.removesuffix("_over_tasks"): f"{line.value:.1f}{mark}" for line, mark in marked}
        scores = [score for score in published_scores() if (score.table, score.method) == row]
        return {
            f"{score.task.partition('/')[2]}\n{score.at // 1000}k": f"{score.mean:.0f} ± {score.std or 0.0:.0f}"
            for score in scores
        }

    name = "dmcontrol/cheetah-run"
    recipe, console = known.find(name), Console(highlight=False)
    for key, study in ablations.STUDIES.items():
        frames = " and ".join(f"{at:,}" for at in study.frames)
        print(f"{key}: {study.title}")
        print(f"paper, {study.place}: {len(study.tasks)} tasks, {frames} frames, {study.seeds} seeds")
        if study.note:
            print(study.note)
        table = Table(box=None, header_style="bold")
        table.add_column("row", no_wrap=True)
        for heading in numbers(study, next(iter(study.rows))):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("overrides", overflow="fold")
        for label in study.rows:
            overrides = ablations.overrides(f"{key}/{label}", recipe)
            table.add_row(label, *numbers(study, label).values(), " ".join(overrides) or "none")
        for label in study.not_yet:
            table.add_row(label, *numbers(study, label).values(), "not here yet")
        console.print(table)
        print()
    tables = {study.table for study in ablations.STUDIES.values()}
    for line in published_aggregates():
        if line.misprint and line.table in tables:
            print(f"* {line.method}: {line.misprint}.")
    for row, needs in ablations.not_yet().items():
        print(f"{row} needs {needs}.")
    print(f"Overrides are for {name} in the {recipe.profile} profile. Sides of a cube that a row does not vary are the")
    print("task's own: k is 4 on cartpole-swingup and reacher, else 8. To train an agent of masking/MLR-S:")
    print(f"  {_train_command(name, ablations.overrides('masking/MLR-S', recipe), 'auto', 'mlr', None, False)}")


@recipes_app.command("show")
def show_recipe(
    recipe: RecipeName,
    overrides: Overrides = None,
    profile: ProfileOption = "auto",
    method: MethodOption = "mlr",
    why: Annotated[bool, typer.Option("--why", help="Also where each value comes from, and who disagrees.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, as in a run's recipe.json.")] = False,
) -> None:
    """Show every value of a recipe."""
    from rich.console import Console
    from rich.table import Table

    from maskrl import recipes as known
    from maskrl.experiments import recipe as describing
    from maskrl.experiments.progress import title

    chosen = resolve(recipe, overrides, profile, method)
    if as_json:
        print(describing.as_json(chosen))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = 4 if why else 2
    for heading in ("path", "value", "source", "disagrees")[:columns]:
        table.add_column(heading, overflow="fold")
    for path, value, source, conflict in known.explain(chosen):
        table.add_row(*(path, describing.as_override(value), source, conflict or "")[:columns])
    print(f"{title(chosen)}\n")
    Console().print(table)


# ── shared ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _print_version(asked: bool) -> None:
    if asked:
        print(f"maskrl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


def _budget(recipe: "Recipe") -> tuple[str, int]:
    """The unit of a budget, and how many of it."""
    budget = recipe.budget
    return ("decisions", budget.decisions) if budget.decisions is not None else ("frames", recipe.frames)


def _train_command(
    recipe: str, overrides: Sequence[str], profile: Profile, method: Method, run_dir: Path | None, wandb: bool
) -> str:
    """The command as it was typed, defaults left out."""
    words = ["maskrl", "train", recipe, *overrides]
    words += ["--profile", profile] if profile != "auto" else []
    words += ["--method", method] if method != "mlr" else []
    words += ["--run-dir", str(run_dir)] if run_dir is not None else []
    return shlex.join(words + (["--wandb"] if wandb else []))


def _print_rows(rows: dict[str, str], *, wrap: bool = False) -> None:
    """Wrapped for a terminal if asked; never a row with a command, which is there to be copied."""
    width = shutil.get_terminal_size().columns if wrap and sys.stdout.isatty() else sys.maxsize
    for name, words in rows.items():
        indent = 13 * " "
        lines = textwrap.wrap(
            words, max(40, width), initial_indent=indent, subsequent_indent=indent, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        print("\n".join([f"  {name:<11}{lines[0].lstrip()}", *lines[1:]]))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# What may differ between two runs whose scores are compared all the same.
HARMLESS = (
    "seed",
    "device",
    "threads",
    "evaluation.side_by_side",
    "budget.frames",
    "budget.decisions",
    "checkpoint_every",
    "agent.micro_batch",
    "replay.storage",
)


def _changed(recipe: "Recipe") -> list[str]:
    """Why a run of the paper's profile is not the paper's: values that overrides have changed."""
    from maskrl import recipes
    from maskrl.experiments.recipe import leaves

    original = leaves(
        recipes.find(recipe.name, recipe.profile, "mlr" if recipe.objective else recipe.preset or "baseline")
    )
    changed = [path for path, value in leaves(recipe).items() if original.get(path) != value and path not in HARMLESS]
    return [f"not comparable: {', '.join(changed)} changed"] if changed else []
