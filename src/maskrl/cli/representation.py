"""`maskrl probe` and `maskrl pretrain`."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskrl.cli.words import AsJson, command, count, print_rows, refusing, telling

if TYPE_CHECKING:
    from maskrl.objectives.base import ObjectiveConfig
    from maskrl.recipes.schema import Recipe

CLIPS_HELP = "How many to draw from the replay (default: 10,000 observations' worth)."
RUN_HELP = "The directory of a trained run: the paper's is a Baseline."
TRANSITIONS_HELP = "Decisions to collect (default: as many as the run's budget has)."
UPDATES_HELP = "Of the objective (default: as many as in a run of the task's MLR recipe)."


def _complain(text: str) -> None:
    print(f"maskrl: {text}", file=sys.stderr)


def probe(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    clips: Annotated[int | None, typer.Option(metavar="N", min=1, help=CLIPS_HELP)] = None,
    as_json: AsJson = False,
) -> None:
    """Test what a run's encoder has learned to see, and write probe.json into its directory; nothing else there changes."""
    from maskrl.representation.probe import probe as probe_run
    from maskrl.runs.build import configure_process
    from maskrl.runs.directory import Run, RunError
    from maskrl.runs.terminal import title

    with refusing(RunError, OSError, ValueError, ModuleNotFoundError, RuntimeError):
        opened = Run.open(run)
        recipe = opened.recipe
        configure_process(recipe)
        like = _objective_like(recipe) if recipe.objective is None else None
        found = probe_run(opened, like=like, clips=clips, tell=_complain)
    if as_json:
        about = {"run": str(run), "recipe": recipe.name, "method": recipe.method, "profile": recipe.profile}
        print(json.dumps({**about, "seed": recipe.seed, **found}))
        return
    print(f"{title(recipe)}, checkpoint at {found['frames']:,} frames")
    others = "those of the task's MLR" if like else "the paper's, by the frame's size"
    whose = "its own" if recipe.objective else others
    print_rows(_rows(recipe, found, whose) | {"written to": str(opened.path / "probe.json")})


def _objective_like(recipe: "Recipe") -> "ObjectiveConfig | None":
    """The objective of the recipe of that name; None if it is a recipe of the user's own, or its masks do not fit here."""
    from maskrl import recipes

    try:
        objective = recipes.find(recipe.name, recipe.profile, "mlr").objective
    except ValueError:
        return None
    masks = None if objective is None else objective.masks
    fits = masks is not None and all(recipe.env.size % side == 0 for side in masks.cube[1:])
    return objective if fits else None


def _rows(recipe: "Recipe", found: dict[str, Any], whose: str) -> dict[str, str]:
    """The numbers in words, beside the paper's; `whose` are the masks."""
    mask, decoder, linear = found["mask"], found["decoder_cosine"], found["linear"]
    sides = " × ".join(str(side) for side in (mask["cube"] if mask["strategy"] == "cube" else mask["cube"][1:]))
    rows = {
        "seen": f"{found['observations']:,} observations of the replay, in {count(found['clips'], 'clip')} of "
        f"{found['clip_length']}; masks ({whose}): {mask['strategy']}, {sides}, ratio {mask['ratio']}",
        "encoder": f"cosine {found['encoder_cosine']:.3f} of masked and original; {found['encoder_cosine_centred']:.3f} with the "
        f"mean latent removed ({_papers_cosine(recipe)})",
        "decoder": "none: there is no objective" if decoder is None else f"cosine {decoder:.3f} of masked and original",
        "rank": f"{found['rank']:.1f} effective dimensions",
        "dead": f"{found['dead']:.1%} of the latent units, {found['dead_channels']:.1%} of the last convolution's channels",
    }
    if linear is None:
        return rows | {"linear": f"none: {found['linear_reason']}"}
    each = zip(linear["names"], linear["per_value"], linear["per_value_random_encoder"], strict=True)
    shown = [f"{name} {own:.2f} ({random:.2f})" for name, own, random in each]
    return rows | {
        "linear": f"R² {linear['r2']:.3f} of the true state, {linear['r2_random_encoder']:.3f} with a random encoder, mean of "
        f"{count(len(shown), 'value')} over {linear['tested_on']:,} decisions of new episodes",
        "per value": ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else ""),
    }


def _papers_cosine(recipe: "Recipe") -> str:
    from maskrl.recipes.published import representation_cosines
    from maskrl.runs.pictures import NOT_COMPARABLE

    published = {(method.lower(), task): cosine for (method, task), cosine in representation_cosines().items()}
    if (paper := published.get((recipe.method, recipe.name))) is None:
        return f"the paper has it for {' and '.join(sorted({task for _, task in published}))} alone"
    return f"paper, Table 10: {paper}" + (f"; {NOT_COMPARABLE}" if recipe.profile == "lite" else "")


# ── pretrain ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def pretrain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help=RUN_HELP)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where what is collected and the encoder go.")],
    transitions: Annotated[int | None, typer.Option(metavar="N", min=1, help=TRANSITIONS_HELP)] = None,
    updates: Annotated[int | None, typer.Option(metavar="N", min=1, help=UPDATES_HELP)] = None,
) -> None:
    """Let a run's agent collect, train MLR alone on that, and keep the encoder. The same command again continues."""
    from maskrl import recipes
    from maskrl.representation import pretrain as pretraining
    from maskrl.runs.directory import Run, RunError
    from maskrl.runs.signals import Stopped
    from maskrl.runs.terminal import title
    from maskrl.runs.world import EnvironmentFailedError

    again = command("pretrain", str(run), out=out, transitions=transitions, updates=updates)
    with refusing(RunError, ValueError):
        opened = Run.open(run)
        recipe = opened.recipe
        origin = recipe if recipe.objective is not None else recipes.find(recipe.name, recipe.profile, "mlr")
        plan = pretraining.plan(opened, origin, transitions=transitions, updates=updates)
    notes = {}
    if opened.status != "done":
        notes["note"] = "the run is not finished: its agent is that of the newest checkpoint"
    if recipe.objective is not None:
        notes["note"] = "the paper collects with a Baseline; this run has the objective already"
    print(f"MLR-Pretraining with the agent of {title(recipe)}")
    stages = {
        "collects": f"{plan.transitions:,} decisions, exploring",
        "learns": f"{plan.updates:,} updates of MLR alone",
    }
    print_rows(stages | notes | {"directory": str(out)})
    print(flush=True)
    try:
        # RuntimeError: no OpenGL backend draws.
        with refusing(RunError, OSError, ModuleNotFoundError, RuntimeError), telling() as tell:
            file = pretraining.pretrain(opened, out, plan, _Progress(tell), _complain)
    except (FloatingPointError, EnvironmentFailedError) as error:
        _complain(f"{error}\nOnce the cause is removed, continue with:\n  {again}")
        raise typer.Exit(1) from None
    except Stopped as stopped:
        print(f"\nStopped and saved. Continue with:\n  {again}")
        raise typer.Exit(128 + (stopped.signal_number or 0)) from None
    _show_encoder(recipe, file)


def _show_encoder(recipe: "Recipe", file: Path) -> None:
    """What was learned, and the command that trains a Baseline from it."""
    from maskrl.runs import encoder_file

    curve = encoder_file.read(file)[1]["curve"]
    first, last = curve[0], curve[-1]
    words = [f"encoder_from={file}", *([f"seed={recipe.seed}"] if recipe.seed != 1 else [])]
    profile = None if recipe.name.startswith("toy/") else recipe.profile
    rows = {name[4:]: f"{first[name]:.3g} → {last[name]:.3g}" for name in ("mlr/loss", "mlr/cosine") if name in first}
    print("Done: the encoder has learned from the objective alone")
    begin = command("train", recipe.name, *words, method="baseline", profile=profile)
    print_rows(rows | {"encoder": str(file), "begin with": begin})


class _Progress:
    """Both stages with the time to go, every now and then."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._every = tell, 0.25 if sys.stdout.isatty() else 10.0
        self._stage, self._began, self._first, self._told = "", 0.0, 0, 0.0

    def __call__(self, stage: str, done: int, total: int, metrics: dict[str, Any]) -> None:
        from maskrl.runs.terminal import duration

        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began, self._first, self._told = stage, now, done, 0.0
        if now - self._told < self._every and done < total:
            return
        self._told = now
        unit = {"collecting": "decisions", "learning": "updates"}[stage]
        words = [f"{stage}: {done:,} of {total:,} {unit} ({done / total:.0%})"]
        if self._first < done < total:
            words.append(f"{duration((now - self._began) / (done - self._first) * (total - done))} to go")
        shown = (("loss", "mlr/loss"), ("cosine", "mlr/cosine"))
        words += [f"{name} {metrics[key].item():.3g}" for name, key in shown if key in metrics]
        self._tell(" | ".join(words))
