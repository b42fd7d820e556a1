"""`maskrl probe` and `maskrl pretrain`."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskrl.cli.words import NOT_COMPARABLE, AsJson, OtherEnv, Trust, command, consented, print_rows, refusing, telling
from maskrl.words import count

if TYPE_CHECKING:
    from maskrl.objectives.base import ObjectiveConfig
    from maskrl.recipes.schema import Recipe
    from maskrl.representation.pretrain import Watcher

CLIPS_HELP = "Clips to draw from the replay (default: enough for 10,000 observations)."
RUN_HELP = "The directory of a trained run: the paper's is a Baseline."
TRANSITIONS_HELP = "Decisions to collect (default: the run's budget)."
UPDATES_HELP = "Updates of the objective (default: as in a run of the task's MLR recipe)."


def _complain(text: str) -> None:
    print(f"maskrl: {text}", file=sys.stderr)


def probe(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    clips: Annotated[int | None, typer.Option(metavar="N", min=1, max=10**6, help=CLIPS_HELP)] = None,
    trust: Trust = False,
    env: OtherEnv = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a run's encoder represents. Writes only probe.json into the run's directory.

    $ maskrl probe RUN
    $ maskrl probe RUN --clips 100 --json
    """
    from maskrl.representation.probe import probe as probe_run
    from maskrl.runs.build import configure_process
    from maskrl.runs.directory import Run, RunError, title

    with refusing(RunError, OSError, ValueError, ModuleNotFoundError, RuntimeError):
        opened = Run.open(run)
        recipe = consented(opened.recipe, env, trust)
        configure_process(recipe, opened.threads)
        like = _objective_like(recipe) if recipe.objective is None else None
        found = probe_run(opened, like=like, clips=clips, tell=_complain, played=recipe.env)
    if as_json:
        about = {"run": str(run), "recipe": recipe.name, "method": recipe.method, "profile": recipe.profile}
        print(json.dumps({**about, "seed": recipe.seed, **found}))
        return
    print(f"{title(recipe)}, checkpoint at {found['frames']:,} frames")
    others = "those of the task's MLR" if like else "the paper's, by the frame's size"
    whose = "its own" if recipe.objective else others
    print_rows(_rows(recipe, found, whose) | {"written to": str(opened.path / "probe.json")})


def _objective_like(recipe: "Recipe") -> "ObjectiveConfig | None":
    """The objective of the named recipe; None for a user's own recipe, or if its masks do not fit."""
    from maskrl import recipes

    usual = recipes.usual(recipe, None, "mlr")
    objective = None if usual is None else usual.objective
    masks = None if objective is None else objective.masks
    fits = masks is not None and all(recipe.env.size % side == 0 for side in masks.cube[1:])
    return objective if fits else None


def _rows(recipe: "Recipe", found: dict[str, Any], whose: str) -> dict[str, str]:
    """The numbers in words, with the paper's. `whose`: the origin of the masks."""
    mask, decoder, linear = found["mask"], found["decoder_cosine"], found["linear"]
    sides = " × ".join(str(side) for side in (mask["cube"] if mask["strategy"] == "cube" else mask["cube"][1:]))
    without = "there is no objective" if recipe.objective is None else f"{recipe.objective.name} decodes no states"
    rows = {
        "seen": f"{found['observations']:,} observations of the replay, in {count(found['clips'], 'clip')} of "
        f"{found['clip_length']}; masks ({whose}): {mask['strategy']}, {sides}, ratio {mask['ratio']}",
        "encoder": f"cosine {found['encoder_cosine']:.3f} of masked and original; {found['encoder_cosine_centred']:.3f} with the "
        f"mean latent removed ({_papers_cosine(recipe)})",
        "decoder": f"none: {without}" if decoder is None else f"cosine {decoder:.3f} of masked and original",
        "rank": f"{found['rank']:.1f} effective dimensions",
        "dead": f"{found['dead']:.1%} of the latent units, {found['dead_channels']:.1%} of the last convolution's channels",
    }
    if linear is None:
        rows["linear"] = f"none: {found['linear_reason']}"
    else:
        rows["linear"] = (
            f"R² {linear['r2']:.3f} of the true state, {linear['r2_random_encoder']:.3f} with a random encoder, mean of "
            f"{count(len(linear['names']), 'value')} over {linear['tested_on']:,} decisions of new episodes"
        )
    return rows


def _papers_cosine(recipe: "Recipe") -> str:
    from maskrl.recipes.published import representation_cosines

    published = {(method.lower(), task): cosine for (method, task), cosine in representation_cosines().items()}
    if (paper := published.get((recipe.method, recipe.name))) is None:
        return f"the paper has it only for {' and '.join(sorted({task for _, task in published}))}"
    return f"paper, Table 10: {paper}" + (f"; {NOT_COMPARABLE}" if recipe.profile == "lite" else "")


def pretrain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help=RUN_HELP)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory for the collected data and the encoder.")],
    transitions: Annotated[int | None, typer.Option(metavar="N", min=1, max=10**9, help=TRANSITIONS_HELP)] = None,
    updates: Annotated[int | None, typer.Option(metavar="N", min=1, max=10**9, help=UPDATES_HELP)] = None,
    trust: Trust = False,
    env: OtherEnv = None,
) -> None:
    """Pretrain an encoder with MLR alone, on data of a run's agent. The same command again continues.

    $ maskrl pretrain RUN --out pretrained
    $ maskrl pretrain RUN --out pretrained --transitions 20000 --updates 5000
    """
    from maskrl import recipes
    from maskrl.files import EnvironmentFailedError
    from maskrl.representation import pretrain as pretraining
    from maskrl.runs.directory import Run, RunError, title
    from maskrl.runs.signals import Stopped

    again = command("pretrain", str(run), out=out, transitions=transitions, updates=updates, trust=trust, env=env)
    with refusing(RunError, ValueError):
        opened = Run.open(run)
        recipe = consented(opened.recipe, env, trust)
        recipe.env.require_consent()  # before anything is written
        origin = recipe if recipe.objective is not None else recipes.usual(recipe, None, "mlr")
        if origin is None:
            raise ValueError(
                f"{recipe.name} is not a recipe of maskrl, so the objective to train is unknown. Use a run of MLR."
            )
        plan = pretraining.plan(opened, origin, transitions=transitions, updates=updates)
        plan = replace(plan, recipe=replace(plan.recipe, env=recipe.env))
    rows = {
        "collects": f"{plan.transitions:,} decisions, exploring",
        "learns": f"{plan.updates:,} updates of MLR alone",
        "directory": str(out),
    }
    if opened.status != "done":
        rows["note"] = "the run is not finished: its newest checkpoint is used"
    if recipe.objective is not None:
        rows["note"] = "the paper collects with a Baseline; this run has the objective already"
    print(f"MLR-Pretraining with the agent of {title(recipe)}")
    print_rows(rows)
    print(flush=True)
    try:
        # RuntimeError: no OpenGL backend draws.
        with refusing(RunError, OSError, ModuleNotFoundError, RuntimeError), telling() as tell:
            file = pretraining.pretrain(opened, out, plan, _progress(tell), _complain)
    except (FloatingPointError, EnvironmentFailedError) as error:
        _complain(f"{error}\nOnce the cause is removed, continue with:\n  {again}")
        raise typer.Exit(1) from None
    except Stopped as stopped:
        print(f"\nStopped and saved. Continue with:\n  {again}")
        raise typer.Exit(128 + (stopped.signal_number or 0)) from None
    seed = [f"seed={recipe.seed}"] if recipe.seed != 1 else []
    profile = None if recipe.name.startswith("toy/") else recipe.profile
    begin = command("train", recipe.name, f"encoder_from={file}", *seed, method="baseline", profile=profile)
    print("Done: the encoder has learned from the objective alone")
    print_rows({"encoder": str(file), "begin with": begin})


def _progress(tell: Callable[[str], None]) -> "Watcher":
    """A callback that reports the progress of both stages from time to time."""
    every, next_time = 0.25 if sys.stdout.isatty() else 10.0, 0.0

    def show(stage: str, done: int, total: int, metrics: dict[str, Any]) -> None:
        nonlocal next_time
        if time.monotonic() < next_time and done < total:
            return
        next_time = time.monotonic() + every
        unit = {"collecting": "decisions", "learning": "updates"}[stage]
        values = [f"{key[4:]} {metrics[key].item():.3g}" for key in ("mlr/loss", "mlr/cosine") if key in metrics]
        tell(" | ".join([f"{stage}: {done:,} of {total:,} {unit} ({done / total:.0%})", *values]))

    return show
