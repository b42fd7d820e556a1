"""`maskrl probe` and `maskrl pretrain`."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskrl.cli.words import count, print_rows, refusing

if TYPE_CHECKING:
    from maskrl.objectives.base import ObjectiveConfig
    from maskrl.recipes.schema import Recipe


def probe(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    clips: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="How many to draw from the replay (default: 10,000 observations' worth)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")] = False,
) -> None:
    """Test what a run's encoder has learned to see, and write probe.json into its directory; nothing else there changes."""
    from maskrl.representation.probe import probe as probe_run
    from maskrl.runs.build import configure_process
    from maskrl.runs.directory import Run, RunError
    from maskrl.runs.terminal import title

    notes = list[str]()
    with refusing(RunError, OSError, ValueError, ModuleNotFoundError, RuntimeError):
        opened = Run.open(run)
        configure_process(opened.recipe)
        like = _objective_like(opened.recipe) if opened.recipe.objective is None else None
        found = probe_run(opened, like=like, clips=clips, tell=notes.append)
    for note in notes:
        print(f"maskrl: {note}", file=sys.stderr)
    if as_json:
        recipe = opened.recipe
        about = {"run": str(run), "recipe": recipe.name, "method": recipe.method, "profile": recipe.profile}
        print(json.dumps({**about, "seed": recipe.seed, **found}))
        return
    print(f"{title(opened.recipe)}, checkpoint at {found['frames']:,} frames")
    whose = (
        "its own"
        if opened.recipe.objective
        else "those of the task's MLR"
        if like
        else "the paper's, by the frame's size"
    )
    print_rows(_rows(opened.recipe, found, whose) | {"written to": str(opened.path / "probe.json")})


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
    from maskrl.recipes.published import representation_cosines
    from maskrl.runs.pictures import NOT_COMPARABLE

    mask, linear = found["mask"], found["linear"]
    sides = " × ".join(str(side) for side in (mask["cube"] if mask["strategy"] == "cube" else mask["cube"][1:]))
    rows = {
        "seen": f"{found['observations']:,} observations of the replay, in {count(found['clips'], 'clip')} of "
        f"{found['clip_length']}; masks ({whose}): {mask['strategy']}, {sides}, ratio {mask['ratio']}",
        "encoder": f"cosine {found['encoder_cosine']:.3f} of masked and original; {found['encoder_cosine_centred']:.3f} with the "
        "mean latent removed",
        "decoder": "none: there is no objective"
        if found["decoder_cosine"] is None
        else f"cosine {found['decoder_cosine']:.3f} of masked and original",
        "rank": f"{found['rank']:.1f} effective dimensions",
        "dead": f"{found['dead']:.1%} of the latent units, {found['dead_channels']:.1%} of the last convolution's channels",
    }
    published = representation_cosines()
    methods = {"baseline": "Baseline", "mlr": "MLR"}
    paper = published.get((methods.get(recipe.method, ""), recipe.name))
    if paper is not None:
        note = f"; {NOT_COMPARABLE}" if recipe.profile == "lite" else ""
        rows["encoder"] += f" (paper, Table 10: {paper}{note})"
    else:
        tasks = sorted({task for _, task in published})
        rows["encoder"] += f" (the paper has it for {' and '.join(tasks)} alone)"
    if linear is None:
        rows["linear"] = f"none: {found['linear_reason']}"
    else:
        rows["linear"] = (
            f"R² {linear['r2']:.3f} of the true state, {linear['r2_random_encoder']:.3f} with a random encoder, mean of "
            f"{count(len(linear['names']), 'value')} over {linear['tested_on']:,} decisions of new episodes"
        )
        each = zip(linear["names"], linear["per_value"], linear["per_value_random_encoder"], strict=True)
        shown = [f"{name} {own:.2f} ({random:.2f})" for name, own, random in each]
        rows["per value"] = ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
    return rows


# ── pretrain ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def pretrain(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The directory of a trained run: the paper's is a Baseline.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where what is collected and the encoder go.")],
    transitions: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Decisions to collect (default: as many as the run's budget has)."),
    ] = None,
    updates: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Of the objective (default: as many as in a run of the task's MLR recipe)."
        ),
    ] = None,
) -> None:
    """Let a run's agent collect, train MLR alone on that, and keep the encoder. The same command again continues."""
    from maskrl import recipes
    from maskrl.representation import pretrain as pretraining
    from maskrl.runs import encoder_file
    from maskrl.runs.directory import Run, RunError
    from maskrl.runs.signals import Stopped
    from maskrl.runs.terminal import title
    from maskrl.runs.world import EnvironmentFailedError

    words = ["maskrl", "pretrain", str(run), "--out", str(out)]
    words += [] if transitions is None else ["--transitions", str(transitions)]
    words += [] if updates is None else ["--updates", str(updates)]

    def tell(text: str) -> None:
        print(f"maskrl: {text}", file=sys.stderr)

    with refusing(RunError, ValueError):
        opened = Run.open(run)
        recipe = opened.recipe
        origin = recipe if recipe.objective is not None else recipes.find(recipe.name, recipe.profile, "mlr")
        plan = pretraining.plan(opened, origin, transitions=transitions, updates=updates)
    print(f"MLR-Pretraining with the agent of {title(recipe)}")
    rows = {
        "collects": f"{plan.transitions:,} decisions, exploring",
        "learns": f"{plan.updates:,} updates of MLR alone",
    }
    if opened.status != "done":
        rows["note"] = "the run is not finished: its agent is that of the newest checkpoint"
    if recipe.objective is not None:
        rows["note"] = "the paper collects with a Baseline; this run has the objective already"
    print_rows(rows | {"directory": str(out)})
    print(flush=True)
    try:
        # RuntimeError: no OpenGL backend draws.
        with refusing(RunError, OSError, ModuleNotFoundError, RuntimeError), _Lines() as lines:
            file = pretraining.pretrain(opened, out, plan, lines, tell)
    except (FloatingPointError, EnvironmentFailedError) as error:
        print(f"maskrl: {error}\nOnce the cause is removed, continue with:\n  {shlex.join(words)}", file=sys.stderr)
        raise typer.Exit(1) from None
    except Stopped as stopped:
        print(f"\nStopped and saved. Continue with:\n  {shlex.join(words)}")
        raise typer.Exit(128 + (stopped.signal_number or 0)) from None
    curve = encoder_file.read(file)[1]["curve"]
    first, last = curve[0], curve[-1]
    print("Done: the encoder has learned from the objective alone")
    rows = {name[4:]: f"{first[name]:.3g} → {last[name]:.3g}" for name in ("mlr/loss", "mlr/cosine") if name in first}
    rows |= {"encoder": str(file), "begin with": shlex.join(_begin_with(recipe, file))}
    print_rows(rows)


def _begin_with(recipe: "Recipe", file: Path) -> list[str]:
    """The command that trains a Baseline from this encoder."""
    seed = [f"seed={recipe.seed}"] if recipe.seed != 1 else []
    profile = ["--profile", recipe.profile] if not recipe.name.startswith("toy/") else []
    return ["maskrl", "train", recipe.name, "--method", "baseline", f"encoder_from={file}", *seed, *profile]


class _Lines:
    """Both stages with the time to go: redrawn in place in a terminal, else a line now and then."""

    def __init__(self) -> None:
        import time

        self._now, self._tty = time.monotonic, sys.stdout.isatty()
        self._stage, self._start, self._first, self._told = "", 0.0, 0, 0.0

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *_: object) -> None:
        if self._tty and self._stage:
            print()

    def __call__(self, stage: str, done: int, total: int, metrics: dict[str, Any]) -> None:
        now = self._now()
        if stage != self._stage:
            if self._tty and self._stage:
                print()
            self._stage, self._start, self._first, self._told = stage, now, done, 0.0
        if now - self._told < (0.25 if self._tty else 10.0) and done < total:
            return
        self._told = now
        print(self._line(done, total, now - self._start, metrics), end="" if self._tty else "\n", flush=True)

    def _line(self, done: int, total: int, seconds: float, metrics: dict[str, Any]) -> str:
        from maskrl.runs.terminal import duration

        unit = {"collecting": "decisions", "learning": "updates"}[self._stage]
        words = f"{self._stage}: {done:,} of {total:,} {unit} ({done / total:.0%})"
        if done > self._first and done < total:
            words += f" | {duration(seconds / (done - self._first) * (total - done))} to go"
        shown = (("loss", "mlr/loss"), ("cosine", "mlr/cosine"))
        words += "".join(f" | {name} {metrics[key].item():.3g}" for name, key in shown if key in metrics)
        return f"\r\x1b[2K{words}" if self._tty else words
