"""`maskrl train` and `maskrl evaluate`."""

import errno
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maskrl import __version__
from maskrl.cli.words import (
    AgentOption,
    Asked,
    MethodOption,
    ObjectiveOption,
    Overrides,
    Profile,
    ProfileOption,
    RecipeName,
    Refusal,
    budget,
    count,
    listed,
    print_rows,
    refusing,
)

if TYPE_CHECKING:
    from maskrl.cost.forecast import Forecast
    from maskrl.recipes.schema import Recipe
    from maskrl.runs.directory import Run
    from maskrl.runs.evaluate import EpisodeReturns
    from maskrl.runs.policy import Policy
    from maskrl.runs.terminal import Terminal


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    profile: ProfileOption = "auto",
    method: MethodOption = None,
    agent: AgentOption = None,
    objective: ObjectiveOption = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the run lives (default: runs/RECIPE/METHOD/seed-SEED-DIGEST)."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B", help="Also log to tensorboard or wandb, or to none (default: tensorboard if installed)."
        ),
    ] = None,
) -> None:
    """Train an agent. The same command again continues the same run from its newest checkpoint."""
    from maskrl.cost.forecast import forecast
    from maskrl.runs.directory import Run, RunError, default_path
    from maskrl.runs.loggers import choose_loggers
    from maskrl.runs.loop import train as run_to_the_end
    from maskrl.runs.terminal import Terminal

    asked = Asked(recipe, overrides, profile, method, agent, objective)
    chosen = asked.recipe()
    path, names = run_dir or default_path(chosen), listed(",".join(log)) if log else None
    command, longer_command = (
        asked.command(run_dir, names or ()),
        _twice_as_long(asked, chosen).command(None, names or ()),
    )

    if path.exists() and not path.is_dir():
        raise Refusal(f"{path} is a file. Choose another --run-dir.")
    with refusing(ValueError, ModuleNotFoundError):
        makers = choose_loggers(names)
    continued = (path / "recipe.json").exists()
    with refusing(RunError, OSError):
        run = Run.create(path, chosen) if continued else None
    if run is not None and run.status == "done":
        print(f"This run is finished already; it is in {path}.\n")
        summary(run, longer_command)
        return
    # RuntimeError: no OpenGL backend draws. All of these are written for whoever typed the command.
    with refusing(RunError, ValueError, ModuleNotFoundError, RuntimeError):
        needs = forecast(chosen, path)  # before anything is written
    with refusing(RunError, OSError):
        run = run or Run.create(path, chosen)
    banner(run, needs, profile)

    terminal = Terminal(run)
    with _ending(run, terminal, command):
        # The terminal comes last: when it draws, the others have what it shows.
        run_to_the_end(chosen, run, [*(make(run) for make in makers), terminal])
    print()
    summary(run, longer_command)


def _twice_as_long(asked: Asked, recipe: "Recipe") -> Asked:
    unit, amount = budget(recipe)
    others = [override for override in asked.overrides or [] if not override.startswith(f"budget.{unit}=")]
    return asked._replace(overrides=[*others, f"budget.{unit}={2 * amount}"])


@contextmanager
def _ending(run: "Run", terminal: "Terminal", command: str) -> Iterator[None]:
    """Say how a run ended that did not come to its end, and how to continue it."""
    from maskrl.replay.buffer import NothingToDrawError
    from maskrl.runs.checkpoint import checkpoints
    from maskrl.runs.directory import RunError
    from maskrl.runs.signals import Stopped
    from maskrl.runs.world import EnvironmentFailedError

    try:
        with refusing(RunError, NothingToDrawError):
            yield
    except Stopped as stopped:
        print(f"\nStopped and saved at {terminal.progress.clock.frames:,} frames. Continue with:\n  {command}")
        raise typer.Exit(128 + (stopped.signal_number or 0)) from None
    except KeyboardInterrupt:  # before the loop took over, or the second in a row
        print(f"\nStopped without saving. Continue from the newest checkpoint, if there is one, with:\n  {command}")
        raise typer.Exit(130) from None
    except (FloatingPointError, EnvironmentFailedError) as error:
        kept = "The last good checkpoint is kept. Once the cause is removed, continue from it with:"
        again = f"{kept}\n  {command}" if checkpoints(run.checkpoints) else "No checkpoint yet."
        print(f"maskrl: {error}\n{again}", file=sys.stderr)
        raise typer.Exit(1) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise Refusal(
            f"{error.filename or run.path}: {error.strerror}. The last checkpoint is kept. Make room and continue with:\n"
            f"  {command}"
        ) from error


def banner(run: "Run", needs: "Forecast", profile: Profile) -> None:
    """What is about to happen, and what it will take."""
    import torch

    from maskrl.cost.forecast import size
    from maskrl.runs.build import device_of
    from maskrl.runs.terminal import title

    recipe, repeat = run.recipe, run.recipe.env.action_repeat
    device, where = device_of(recipe), ""
    if device.type == "cpu":
        where = f", {count(recipe.threads or torch.get_num_threads(), 'thread')}"
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
        f"evaluated every {recipe.evaluation.every:,} frames over {count(recipe.evaluation.episodes, 'episode')}",
        "device": f"{device}{where}",
        **({"renderer": renderer} if (renderer := run.versions().get("renderer")) else {}),
        "replay": f"up to {capacity:,} decisions: {replay}",
        "directory": str(run.path),
    }
    print_rows(rows, wrap=True)
    print(flush=True)


def summary(run: "Run", longer_command: str) -> None:
    """What came out, what to hold it against, where it is and what can be done next."""
    from maskrl.recipes import human_normalised, published_for
    from maskrl.runs.checkpoint import checkpoints
    from maskrl.runs.evaluate import EpisodeReturns
    from maskrl.runs.pictures import NOT_COMPARABLE, learning_curve
    from maskrl.runs.terminal import duration, number, title

    recipe, evaluations = run.recipe, list(run.events("evaluation"))
    last, best = evaluations[-1], max(evaluations, key=lambda event: event["score"])
    returns = EpisodeReturns(tuple(last["returns"]))
    rows = {
        "score": f"{number(returns.score)} ± {number(returns.spread)} over {count(len(returns.returns), 'episode')}"
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
    rows["checkpoint"] = next((str(newest.path) for newest in checkpoints(run.checkpoints)), "gone")
    rows["evaluate"] = f"maskrl evaluate {shlex.quote(str(run.path))} --episodes 20 --video agent.mp4"
    rows["go longer"] = f"{longer_command}  # a run of its own: the budget is part of a recipe"
    print(f"Done: {title(recipe)}, {last['frames']:,} frames in {duration(last['seconds'])}")
    print_rows(rows)


# ── evaluate ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    episodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many (default: as many as the run itself uses).")
    ] = None,
    video: Annotated[Path | None, typer.Option(metavar="FILE", help="Record them: .mp4 or .gif.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")] = False,
) -> None:
    """Evaluate the newest checkpoint of a run without exploration, from the starts that the run's own evaluations use."""
    from maskrl.runs.build import device_of
    from maskrl.runs.directory import Run, RunError
    from maskrl.runs.policy import policy_of
    from maskrl.runs.terminal import number, title

    with refusing(RunError):
        opened = Run.open(run)
        state = opened.restore(lambda text: print(f"maskrl: {text}", file=sys.stderr), older=True)
    if state is None:
        raise Refusal(f"{run} has no checkpoint yet. Continue it with the `maskrl train` command that started it.")
    recipe, played = opened.recipe, episodes or opened.recipe.evaluation.episodes
    with refusing(RunError, ValueError, ModuleNotFoundError, RuntimeError):
        policy = policy_of(recipe, state, device=str(device_of(recipe)))
    returns, recorded = _play(policy, recipe, played, video)
    if as_json:
        result = {
            "run": str(run),
            "recipe": recipe.name,
            "method": recipe.method,
            "profile": recipe.profile,
            "seed": recipe.seed,
            "frames": policy.clock.frames,
            "score": returns.score,
            "spread": returns.spread,
            "returns": returns.returns,
            "video": None if recorded is None else str(recorded),
        }
        print(json.dumps(result))
        return
    print(f"{title(recipe)}, checkpoint at {policy.clock.frames:,} frames")
    rows = {"score": f"{number(returns.score)} ± {number(returns.spread)} over {count(played, 'episode')}"}
    if played > 1:
        rows["returns"] = f"from {number(min(returns.returns))} to {number(max(returns.returns))}"
    if recorded is not None:
        moved = "" if recorded == video else " (a .gif, because a .mp4 needs: pip install 'maskrl[video]')"
        rows["video"] = f"{recorded}{moved}"
    print_rows(rows)


def _play(
    policy: "Policy", recipe: "Recipe", episodes: int, video: Path | None
) -> tuple["EpisodeReturns", Path | None]:
    """Play episodes; returns their returns, and the file of the recording if one is made."""
    from maskrl.runs import evaluate as evaluation
    from maskrl.runs.build import configure_process, make_evaluation_envs
    from maskrl.runs.loop import EVALUATION_SEED
    from maskrl.runs.pictures import Video

    configure_process(recipe)
    with refusing(ValueError, ModuleNotFoundError, RuntimeError):
        alone = [] if video is None else [recipe.env.make(seed=recipe.seed, training=False)]
        envs = alone or make_evaluation_envs(recipe)
        recorder = None if video is None else Video(video, fps=float(envs[0].metadata["render_fps"]))
    with refusing(OSError), recorder or nullcontext():
        returns = evaluation.evaluate(
            policy.network.act,
            envs,
            episodes=episodes,
            seed=recipe.seed + EVALUATION_SEED,
            epsilon=recipe.evaluation.epsilon,
            watcher=None if recorder is None else recorder.add,
        )
    for env in envs:
        env.close()
    return returns, None if recorder is None else recorder.path


# What may differ between two runs whose scores are compared all the same.
HARMLESS = (
    "seed",
    "device",
    "threads",
    "evaluation.side_by_side",
    "budget.frames",
    "budget.decisions",
    "checkpoint_every",
    "overlap",
    "agent.micro_batch",
    "replay.storage",
    "replay.on_device",
    "compile",
)


def _changed(recipe: "Recipe") -> list[str]:
    """Why a run of the paper's profile is not the paper's: values that overrides have changed."""
    from maskrl import recipes
    from maskrl.recipes.schema import leaves

    objective = "none" if recipe.objective is None else recipe.objective.kind
    original = leaves(recipes.find(recipe.name, recipe.profile, agent=recipe.preset, objective=objective))
    changed = [path for path, value in leaves(recipe).items() if original.get(path) != value and path not in HARMLESS]
    return [f"not comparable: {', '.join(changed)} changed"] if changed else []
