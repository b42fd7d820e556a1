"""`maskrl train` and `maskrl evaluate`."""

import errno
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maskrl import __version__
from maskrl.cli.help import complete_recipe
from maskrl.cli.words import (
    NOT_COMPARABLE,
    AgentOption,
    AsJson,
    Asked,
    Force,
    MethodOption,
    ObjectiveOption,
    OtherEnv,
    Overrides,
    Profile,
    ProfileOption,
    Refusal,
    Trust,
    command,
    consented,
    listed,
    print_rows,
    refusing,
)
from maskrl.words import count, duration, number, size

if TYPE_CHECKING:
    from maskrl.cost.forecast import Forecast
    from maskrl.recipes.schema import Recipe
    from maskrl.runs.directory import Run
    from maskrl.runs.evaluate import EpisodeReturns
    from maskrl.runs.loggers import Logger
    from maskrl.runs.policy import Policy
    from maskrl.runs.terminal import Terminal


# The recipe of `maskrl train first` and `make train`: a task of DMControl, or a game if DMControl cannot draw.
FIRST, FIRST_GAME = "dmcontrol/cartpole-balance", "atari/assault"
TRAIN_HELP = (
    "Such as dmcontrol/cartpole-swingup, atari/pong or toy/reach; first: one that suits this machine. Your own environment: "
    "gym/CarRacing-v3, gym/my_package:MyEnv-v0 or my_env.py:make_env."
)

RUN_DIR_HELP = "The run's directory (default: runs/RECIPE/METHOD/seed-SEED-DIGEST)."
VIDEO_HELP = "At the end, record random play and the trained agent side by side: video.mp4 in the run's directory."
LOG_HELP = "Also log to tensorboard or wandb, or to none (default: tensorboard if installed)."


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help=TRAIN_HELP, autocompletion=complete_recipe)],
    overrides: Overrides = None,
    profile: ProfileOption = "auto",
    method: MethodOption = None,
    agent: AgentOption = None,
    objective: ObjectiveOption = None,
    run_dir: Annotated[Path | None, typer.Option(metavar="DIR", help=RUN_DIR_HELP)] = None,
    log: Annotated[list[str] | None, typer.Option(metavar="A,B", help=LOG_HELP)] = None,
    video: Annotated[bool, typer.Option("--video", help=VIDEO_HELP)] = False,
) -> None:
    """Train an agent. The same command again continues the run from its newest checkpoint.

    $ maskrl train first --video
    $ maskrl train dmcontrol/cheetah-run seed=3 objective.mask.ratio=0.3
    $ maskrl train atari/pong --method baseline --log tensorboard
    """
    from maskrl.cost.forecast import forecast
    from maskrl.envs.base import require_extra
    from maskrl.runs.directory import Run, RunError, default_path
    from maskrl.runs.loggers import choose_loggers

    recipe = first() if recipe == "first" else recipe
    asked = Asked(recipe, overrides, profile, method, agent, objective)
    chosen = asked.recipe()
    path, names = run_dir or default_path(chosen), listed(",".join(log)) if log else None

    if path.exists() and not path.is_dir():
        raise Refusal(f"{path} is a file. Choose another --run-dir.")
    with refusing(ValueError, ModuleNotFoundError):
        makers = choose_loggers(names)
        if video:  # check before hours of training
            require_extra("PIL", "video")
    with refusing(RunError, OSError):
        run = Run.create(path, chosen) if (path / "recipe.json").exists() else None
    if run is not None and run.status == "done":
        print(f"This run is finished already; it is in {path}.\n")
        summary(run)
        if video:
            _show(run)
        return
    # RuntimeError: no OpenGL backend draws. All of these have messages for the user.
    with refusing(RunError, ValueError, ModuleNotFoundError, RuntimeError):
        needs = forecast(chosen, path)  # before anything is written
    with refusing(RunError, OSError):
        run = run or Run.create(path, chosen)
    _train(run, needs, profile, makers, asked.command(run_dir, names or ()))
    if video:
        _show(run)


def _train(
    run: "Run", needs: "Forecast", profile: Profile, makers: "Sequence[Callable[[Run], Logger]]", command: str
) -> None:
    """Train to the end, with a banner before and a summary after; `command` continues an interrupted run."""
    from maskrl.runs.loop import train as run_to_the_end
    from maskrl.runs.terminal import Terminal, until_closed

    with until_closed():  # a pipe such as `| head` may be closed; the run continues
        banner(run, needs, profile)
    terminal = Terminal(run)
    with _ending(run, terminal, command):
        # The terminal comes last, so that other loggers are written when it draws.
        run_to_the_end(run.recipe, run, [*(make(run) for make in makers), terminal])
    with until_closed():
        print()
        summary(run)


def extend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="budget.frames=N", help="The larger budget; without one, just continue."),
    ] = None,
    trust: Trust = False,
    log: Annotated[list[str] | None, typer.Option(metavar="A,B", help=LOG_HELP)] = None,
) -> None:
    """Continue a run to a larger budget. The result is the same as with that budget from the start.

    $ maskrl extend RUN budget.frames=200000
    """
    from maskrl.cost.forecast import forecast
    from maskrl.runs import extend as extending
    from maskrl.runs.directory import Run, RunError
    from maskrl.runs.loggers import choose_loggers

    names = listed(",".join(log)) if log else None
    with refusing(RunError, ValueError, ModuleNotFoundError, RuntimeError, OSError):
        opened, makers = Run.open(run), choose_loggers(names)
        if not opened.recipe.env.is_portable:
            raise Refusal(
                f"The environment of {run} is the callable {opened.recipe.env.task} of a Python program, which only that program "
                "can continue. In it, call maskrl.runs.extend.plan and extend with the run, then maskrl.train."
            )
        if not consented(opened.recipe, None, trust).env.is_trusted:
            raise Refusal(
                f"The environment of {run} is {opened.recipe.name}, which this user has not trained on this machine, so its "
                "code is not run. If you know where the run comes from, add --trust. A run continues only in its own environment."
            )
        wanted, differences = extending.plan(opened, overrides) if overrides else extending.Extension(opened.recipe)
        if not overrides and opened.status == "done":
            raise Refusal(f"{run} is finished. Name a larger budget, such as budget.frames={2 * wanted.frames}.")
        needs = forecast(wanted, run)  # before anything is written
        opened = extending.extend(opened, wanted) if overrides else opened
    for words in differences:
        print(f"This differs from a run with this budget from the start: {words}.")
    _train(opened, needs, opened.recipe.profile, makers, command("extend", str(run), log=",".join(names or ()) or None))


def _show(run: "Run") -> None:
    """Record a video of random play beside the trained agent, once, and print its path."""
    from maskrl.runs.build import device_of
    from maskrl.runs.directory import RunError
    from maskrl.runs.loop import EVALUATION_SEED
    from maskrl.runs.policy import policy_of
    from maskrl.runs.video import record_beside_random

    recipe, found = run.recipe, [path for path in map(run.path.joinpath, ("video.mp4", "video.gif")) if path.exists()]
    with refusing(RunError, OSError, ValueError, ModuleNotFoundError, RuntimeError):
        if found:
            path, words = found[0], ""
        else:
            policy = policy_of(recipe, run.newest(lambda text: None, older=True), device=str(device_of(recipe)))
            path, random, trained = record_beside_random(
                recipe, policy.network.act, run.path / "video.mp4", seed=recipe.seed + EVALUATION_SEED
            )
            words = (
                f": random actions ({number(random)}) on the left, the trained agent ({number(trained)}) on the right"
            )
    print(f"\nSee what it learned{words}\n  {path}")


def first() -> str:
    """The recipe of a first run. If DMControl cannot draw, print how to fix it and choose a game."""
    from maskrl.envs.gl import choose_gl

    try:
        choose_gl()
    except (ModuleNotFoundError, RuntimeError) as error:
        print(
            f"DMControl cannot draw on this machine. {error}\n"
            f"So the first run is {FIRST_GAME}, which needs no OpenGL. Once it is fixed, the same command trains {FIRST}.\n"
        )
        return FIRST_GAME
    return FIRST


@contextmanager
def _ending(run: "Run", terminal: "Terminal", command: str) -> Iterator[None]:
    """Print how an unfinished run ended, and the command that continues it."""
    from maskrl.files import EnvironmentFailedError
    from maskrl.replay.buffer import NothingToDrawError
    from maskrl.runs.checkpoint import checkpoints
    from maskrl.runs.directory import RunError
    from maskrl.runs.signals import Stopped

    try:
        with refusing(RunError, NothingToDrawError):
            yield
    except Stopped as stopped:
        how = f"Stopped and saved at {terminal.progress.clock.frames:,} frames. Continue with:"
        if not stopped.saved:
            how = "Stopped without saving, because the environment did not answer. Continue from the newest checkpoint with:"
        print(f"\n{how}\n  {command}")
        raise typer.Exit(128 + (stopped.signal_number or 0)) from None
    except KeyboardInterrupt:  # before the loop started, or the second Ctrl-C
        print(f"\nStopped without saving. Continue from the newest checkpoint, if there is one, with:\n  {command}")
        raise typer.Exit(130) from None
    except (FloatingPointError, EnvironmentFailedError) as error:
        kept = "The last good checkpoint is kept. Once the cause is removed, continue from it with:"
        again = f"{kept}\n  {command}" if checkpoints(run.checkpoints) else "No checkpoint yet."
        print(f"maskrl: {error}\n{again}", file=sys.stderr)
        raise typer.Exit(1) from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search("allocate|out of memory", str(error)):
            raise
        less = "Lower agent.batch_size, replay.capacity or env.size, or use replay.storage=disk."
        print(f"maskrl: There is not enough memory. {less}\n{str(error).strip()[:300]}", file=sys.stderr)
        raise typer.Exit(1) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise Refusal(
            f"{error.filename or run.path}: {error.strerror}. The last checkpoint is kept. Make room and continue with:\n"
            f"  {command}"
        ) from error


def banner(run: "Run", needs: "Forecast", profile: Profile) -> None:
    """Print the run's settings, and its memory and disk."""
    import torch

    from maskrl.runs.build import device_of
    from maskrl.runs.directory import title

    recipe, repeat, device = run.recipe, run.recipe.env.action_repeat, device_of(run.recipe)
    threads = count(run.threads, "thread")
    capacity, evaluation = min(recipe.replay.capacity, recipe.frames // repeat), recipe.evaluation
    words: str = recipe.profile
    if profile == "auto" and (words == "paper") == torch.cuda.is_available():  # a toy is always lite
        words += (
            ", because there is a CUDA device" if torch.cuda.is_available() else ", because there is no CUDA device"
        )
    if recipe.profile == "lite":
        words += ": the method scaled to a laptop; its scores are not the paper's"
    rows = {
        "profile": words,
        "budget": f"{recipe.frames:,} frames = {recipe.frames // repeat:,} decisions × {repeat}, "
        f"evaluated every {evaluation.every:,} frames over {count(evaluation.episodes, 'episode')}",
        "device": f"{device}, {threads}" if device.type == "cpu" else str(device),
        **({"renderer": renderer} if (renderer := run.versions().get("renderer")) else {}),
        "replay": f"up to {capacity:,} decisions: {_replay(recipe, needs)}",
        "directory": str(run.path),
    }
    print(f"maskrl {__version__}: {title(recipe)}")
    print_rows(rows, wrap=True)
    print(flush=True)


def _replay(recipe: "Recipe", needs: "Forecast") -> str:
    """The place and the final size of the replay, in words."""
    if recipe.replay.storage == "memory":
        free = "" if needs.memory_free is None else f", {size(needs.memory_free)} free"
        return f"{size(needs.memory)} of memory{free}, and as much disk for checkpoints"
    words = f"{size(needs.replay)} on disk, {size(needs.disk_free)} free"
    if needs.memory_free is not None and needs.replay > needs.memory_free:
        words += f"; more than the free memory ({size(needs.memory_free)}), so reading it will be slow"
    return words


def summary(run: "Run") -> None:
    """Print the score, random and published scores, the run's directory and the next commands."""
    from maskrl.recipes import human_normalised
    from maskrl.runs.directory import title

    recipe, scores = run.recipe, run.scores
    if not scores:
        print(f"Done: {title(recipe)}. Its log has no evaluation: metrics.jsonl was lost or changed.")
        return
    last, best = scores[-1], max(scores, key=lambda score: score["score"])
    rows = {"score": f"{_mean(last['score'], last['spread'])} over {count(int(last['episodes']), 'episode')}"}
    if best["frames"] != last["frames"]:
        rows["score"] += f" (best on the way: {number(best['score'])} at {best['frames']:,} frames)"
    if (human := human_normalised(recipe, last["score"])) is not None:
        rows["score"] += f"; {number(human)} human-normalised"
    for event in run.events("random"):
        rows["random"] = f"{number(event['score'])}, uniformly random actions"
    rows |= _paper(recipe)
    rows["report"] = command("report", str(run.path))
    rows["evaluate"] = command("evaluate", str(run.path), episodes=20, video="agent.mp4")
    print(f"Done: {title(recipe)}, {last['frames']:,} frames in {duration(last['seconds'])}")
    print_rows(rows)


def _mean(score: float, spread: float | None) -> str:
    return number(score) if spread is None else f"{number(score)} ± {number(spread)}"


def _paper(recipe: "Recipe") -> dict[str, str]:
    """The paper's number at this budget, otherwise at its usual one, and why the run may not be comparable."""
    from maskrl.recipes import published_for

    usual = 100_000 * (recipe.env.action_repeat if recipe.budget.decisions else 1)
    for frames in (recipe.frames, usual):
        if (paper := published_for(recipe, frames)) is not None:
            why = [NOT_COMPARABLE] if recipe.profile == "lite" else _changed(recipe)
            why += [f"not comparable: {recipe.frames:,} frames here"] if frames != recipe.frames and not why else []
            words = f"{_mean(paper.mean, paper.std)} over {paper.seeds} seeds at {frames:,} frames ({paper.source})"
            return {"paper": "; ".join([words, *why])}
    return {}


# ── evaluate ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    episodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=10**6, help="Episodes to play (default: as in the run).")
    ] = None,
    video: Annotated[Path | None, typer.Option(metavar="FILE", help="Record them: .mp4 or .gif.")] = None,
    trust: Trust = False,
    env: OtherEnv = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate the newest checkpoint of a run, without exploration. Episodes start as in the run's own evaluations.

    $ maskrl evaluate RUN --episodes 20 --video agent.mp4
    """
    from maskrl.runs.build import configure_process, device_of
    from maskrl.runs.directory import Run, RunError, title
    from maskrl.runs.policy import policy_of

    with refusing(RunError):
        opened = Run.open(run)
        state = opened.newest(lambda text: print(f"maskrl: {text}", file=sys.stderr), older=True)
    recipe = consented(opened.recipe, env, trust)
    played = episodes or opened.recipe.evaluation.episodes
    with refusing(RunError, ValueError, ModuleNotFoundError, RuntimeError):
        policy = policy_of(recipe, state, device=str(device_of(recipe)))
    configure_process(recipe, opened.threads)
    with redirect_stdout(sys.stderr):  # an environment may print
        returns, recorded = _play(policy, recipe, played, video, force)
    if as_json:
        about = {name: getattr(recipe, name) for name in ("method", "profile", "seed")}
        result = {"score": returns.score, "spread": returns.spread, "returns": returns.returns}
        result |= {"run": str(run), "recipe": recipe.name, **about, "frames": policy.clock.frames}
        print(json.dumps(result | {"video": None if recorded is None else str(recorded)}))
        return
    print(f"{title(recipe)}, checkpoint at {policy.clock.frames:,} frames")
    rows = {"score": f"{_mean(returns.score, returns.spread)} over {count(played, 'episode')}"}
    if played > 1:
        rows["returns"] = f"from {number(min(returns.returns))} to {number(max(returns.returns))}"
    if recorded is not None:
        why = "" if recorded == video else " (a .gif, because a .mp4 needs: pip install 'maskrl[video]')"
        rows["video"] = f"{recorded}{why}"
    print_rows(rows)


def _play(
    policy: "Policy", recipe: "Recipe", episodes: int, video: Path | None, force: bool
) -> tuple["EpisodeReturns", Path | None]:
    """Play episodes; return their returns, and the path of the video if one is recorded."""
    from maskrl.outputs import VIDEO, OutputError, require_output
    from maskrl.runs.loop import EVALUATION_SEED
    from maskrl.runs.players import Players
    from maskrl.runs.video import Video

    with refusing(ValueError, ModuleNotFoundError, RuntimeError, OutputError, OSError):
        players = Players(recipe, lambda text: print(f"maskrl: {text}", file=sys.stderr))
        recorder = None if video is None else Video(video, fps=players.fps)
        if recorder is not None:
            require_output(recorder.path, VIDEO, force=force)
    with refusing(OSError), closing(players), recorder or nullcontext():
        seed, epsilon = recipe.seed + EVALUATION_SEED, recipe.evaluation.epsilon
        watcher = None if recorder is None else recorder.add
        returns = players.play(policy.network, episodes=episodes, seed=seed, epsilon=epsilon, watcher=watcher)
    return returns, None if recorder is None else recorder.path


def _changed(recipe: "Recipe") -> list[str]:
    """Why a run in the paper profile is not comparable: its overrides of method and protocol; empty if it is."""
    from maskrl.analysis.protocol import method_of, papers_protocol, protocol_difference, protocol_of, task_of

    method = method_of(recipe).removeprefix(recipe.method).strip()
    changes = [method] * bool(method) + protocol_difference(papers_protocol(task_of(recipe)), protocol_of(recipe))
    return [f"not comparable: {', '.join(changes)}"] if changes else []
