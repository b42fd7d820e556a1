"""The values that must agree for two scores to be comparable, and the name of a recipe's method."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from maskrl import recipes
from maskrl.recipes import own
from maskrl.recipes.published import Unit
from maskrl.recipes.schema import Profile, Recipe, as_override, difference, is_unused, leaves

# Values besides those of the environment that may change a score but are not choices of the method.
PROTOCOL = ("profile", "budget.frames", "budget.decisions", "evaluation.episodes")

# Values that do not define another method: when and where it runs, and those of the protocol.
NOT_METHOD = (
    *("seed", "device", "threads", "checkpoint_every", "overlap", "compile"),
    *("agent.micro_batch", "replay.storage", "replay.on_device"),
    *("env.", "budget.", "evaluation.every", "evaluation.episodes", "evaluation.side_by_side"),
)

Protocol = Mapping[str, Any]  # dotted path of a recipe, or the name of a simulator → value


def unit_of(recipe: Recipe) -> Unit:
    """The unit of the recipe's budget."""
    return "decisions" if recipe.budget.frames is None else "frames"


def task_of(recipe: Recipe) -> str:
    """The task with its suite: "dmcontrol/walker-walk"."""
    return f"{recipe.name.partition('/')[0]}/{recipe.env.task}"


def protocol_of(recipe: Recipe, versions: Mapping[str, Any] | None = None) -> Protocol:
    """The values that must agree for two scores to be comparable, without unknown versions.

    Environment values that a published method sets, such as the frame size, belong to the method; the suite's values replace them.
    """
    told = {path: value for path, value in leaves(recipe).items() if path != "env.timeout"}  # does not change scores
    from_recipe = {path: value for path, value in told.items() if path.startswith("env.") or path in PROTOCOL}
    if recipe.preset is not None:
        systems, suites = (recipes.usual(recipe, agent, None) for agent in (recipe.preset, None))
        if systems is not None and suites is not None:
            chosen, usual = leaves(systems), leaves(suites)
            from_recipe |= {
                path: usual[path]
                for path, value in from_recipe.items()
                if path.startswith("env.") and value == chosen.get(path) and path in usual
            }
    return from_recipe | {name: value for name, value in (versions or {}).items() if name in recipe.env.packages}


def protocol_difference(a: Protocol, b: Protocol) -> list[str]:
    """The differences between two protocols in the values that both have: "env.size: 100 -> 48"."""
    return [
        f"{path}: {as_override(a[path])} -> {as_override(b[path])}" for path in a if path in b and a[path] != b[path]
    ]


@cache
def own_protocol(task: str, profile: Profile) -> Protocol:
    """The protocol of a task's recipe; empty for a task without one."""
    named = named_recipe(task, profile)
    return {} if named is None else protocol_of(named)


def papers_protocol(task: str) -> Protocol:
    """The paper's protocol for a task, without the budget, which depends on the time of a score; empty if it has no such task."""
    return {path: value for path, value in own_protocol(task, "paper").items() if not path.startswith("budget.")}


def method_of(recipe: Recipe) -> str:
    """The recipe's method and its differences from the named recipe: "mlr objective.mask.ratio=0.3".

    So runs with different settings are never averaged as seeds of one method.
    """
    told = _changes(recipe, NOT_METHOD)
    if "encoder_from" in told:  # files differ by task and seed, but it is one method
        general = told["encoder_from"].replace(recipe.name, "{task}")
        told["encoder_from"] = re.sub(rf"(?<!\d){recipe.seed}(?!\d)", "{seed}", general)
    return " ".join([recipe.method, *(f"{path}={value}" for path, value in told.items())])


def changes_of(recipe: Recipe) -> list[str]:
    """The values of the method and of the environment that differ from the profile's own recipe: "objective.mask.ratio=0.3".

    Budgets and evaluations are not among them. Scores of the profile's own recipe say nothing about a recipe with changes. The
    environment of a user has no recipe of its own, so its values are not compared.
    """
    irrelevant = [prefix for prefix in NOT_METHOD if prefix != "env."]
    return [f"{path}={value}" for path, value in _changes(recipe, (*irrelevant, "env.timeout", "evaluation.")).items()]


def _changes(recipe: Recipe, irrelevant: tuple[str, ...]) -> dict[str, str]:
    """Path → value, for the values that differ from the named recipe's, without unused ones and those with irrelevant prefixes."""
    named = recipes.usual(recipe, recipe.preset, recipe.objective.name if recipe.objective else None)
    changes = [] if named is None else difference(named, recipe)
    kept = [line.partition(": ") for line in changes if not line.startswith(irrelevant)]
    return {path: values.partition(" -> ")[2] for path, _, values in kept if not is_unused(recipe, path)}


@cache
def named_recipe(name: str, profile: Profile) -> Recipe | None:
    """The recipe with this name; None if there is none, or if finding it would run code of an environment."""
    if own.is_own(name):
        return None
    try:
        return recipes.find(name, profile)
    except ValueError:  # a user's own recipe
        return None
