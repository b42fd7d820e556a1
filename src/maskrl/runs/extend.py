"""Give a finished or stopped run a larger budget. Only its recipe changes; the previous one is noted."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from maskrl.agents.base import Spaces
from maskrl.files import write_whole
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.schema import Recipe, as_json
from maskrl.replay.several import of_place
from maskrl.runs.build import replay_size
from maskrl.runs.directory import Run, RunError


class Extension(NamedTuple):
    """The recipe with a larger budget, and the differences from a run that had it from the start."""

    recipe: Recipe
    differences: tuple[str, ...] = ()  # sentences; empty: the same run, bit for bit


def plan(run: Run, overrides: Sequence[str]) -> Extension:
    """The run's recipe with the budget that the overrides name. Writes nothing."""
    others = [line for line in overrides if not line.strip().startswith("budget.")]
    if others:
        raise RunError(
            f"{others[0]}: only the budget of a run can be extended, such as budget.frames={2 * run.recipe.frames}. To change "
            "another value, start a new run with `maskrl train`."
        )
    try:
        wanted = with_overrides(run.recipe, [*_other_unit(run.recipe, overrides), *overrides])
    except ValueError as error:
        raise RunError(str(error)) from error
    if wanted.frames <= run.recipe.frames:
        raise RunError(
            f"{run.path} has a budget of {run.recipe.frames:,} frames already; {wanted.frames:,} is not larger. Name a larger one."
        )
    state = run.restore(older=False)
    differences: list[str] = []
    if state is not None:
        wanted, differences = _with_room(run.recipe, wanted, state)
    if run.status == "done" and run.recipe.frames % run.recipe.evaluation.every:
        differences.append(f"it has an evaluation at {run.recipe.frames:,} frames, where its first budget ended")
    return Extension(wanted, tuple(differences))


def extend(run: Run, recipe: Recipe) -> Run:
    """Give the run the recipe from `plan`. The caller then continues it like a stopped run."""
    with run.locked():  # so that no other process trains it meanwhile
        begun = run.versions()
        earlier = [*begun.get("extended", []), {"recipe": run.digest, "budget": asdict(run.recipe.budget)}]
        # In this order, so that a crash in between leaves the run as it was.
        write_whole(run.path / "versions.json", json.dumps(begun | {"extended": earlier}, indent=2))
        write_whole(run.path / "recipe.json", as_json(recipe))
        run.set_status("stopped")
    return Run(run.path, recipe)


def _other_unit(recipe: Recipe, overrides: Sequence[str]) -> list[str]:
    """The unit of the budget to clear: a budget has one unit, and naming the other one replaces it."""
    named = {line.partition("=")[0].strip() for line in overrides}
    units = {"budget.frames": "budget.decisions=none", "budget.decisions": "budget.frames=none"}
    return [units[name] for name in named & units.keys() if units[name].partition("=")[0] not in named]


def _with_room(before: Recipe, wanted: Recipe, state: dict[str, Any]) -> tuple[Recipe, list[str]]:
    """Enlarge the replay if it has not dropped frames yet; otherwise keep its size and note the difference."""
    spaces = Spaces(**state["spaces"] | {"obs": tuple(state["spaces"]["obs"])})
    old, new = (replay_size(recipe, spaces)["capacity"] for recipe in (before, wanted))
    replays = [of_place(state["replay"], place) for place in range(before.env.parallel)]
    if before.env.parallel == 1:
        replays = [state["replay"]]
    if old == new or all(replay["next"] <= replay["layout"]["window"] for replay in replays):
        return wanted, []
    kept = replace(wanted, replay=replace(wanted.replay, capacity=old))
    return kept, [
        f"its replay keeps {old:,} decisions, because it is full; with the larger budget from the start it would keep {new:,}"
    ]
