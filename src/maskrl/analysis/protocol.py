"""The values that must agree for two scores to be comparable, and the name of a recipe's method."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from maskrl import recipes
from maskrl.recipes import own
from maskrl.recipes.published import Unit
from maskrl.recipes.schema import Profile, Recipe, as_override, difference, leaves

# What may change a score without being a choice of the method, besides the values of the environment.
PROTOCOL = ("profile", "budget.frames", "budget.decisions", "evaluation.episodes")

# Values that do not make another method: when and where it is run, and those of the protocol.
NOT_METHOD = (
    *("seed", "device", "threads", "checkpoint_every", "overlap", "compile"),
    *("agent.micro_batch", "replay.storage", "replay.on_device"),
    *("env.", "budget.", "evaluation.every", "evaluation.episodes", "evaluation.side_by_side"),
)

Protocol = Mapping[str, Any]  # dotted path of a recipe, or the name of a simulator → value


def unit_of(recipe: Recipe) -> Unit:
    """The unit of its budget."""
    return "decisions" if recipe.budget.frames is None else "frames"


def task_of(recipe: Recipe) -> str:
    """With its suite: "dmcontrol/walker-walk"."""
    return f"{recipe.name.partition('/')[0]}/{recipe.env.task}"


def protocol_of(recipe: Recipe, versions: Mapping[str, Any] | None = None) -> Protocol:
    """The values that must agree for two scores to be comparable. A version that is not known is left out.

    Values of the environment that a published system sets, such as the size of a frame, belong to the system: the suite's value
    stands for them.
    """
    told = {path: value for path, value in leaves(recipe).items() if path != "env.timeout"}  # which changes no score
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
    """Where two protocols differ in what both of them tell: "env.size: 100 -> 48"."""
    return [
        f"{path}: {as_override(a[path])} -> {as_override(b[path])}" for path in a if path in b and a[path] != b[path]
    ]


@cache
def own_protocol(task: str, profile: Profile) -> Protocol:
    """The protocol of a task's recipe; empty for a task that has none."""
    named = named_recipe(task, profile)
    return {} if named is None else protocol_of(named)


def papers_protocol(task: str) -> Protocol:
    """The paper's, without the budget, which is chosen with the time of a score; empty if the paper has no such task."""
    return {path: value for path, value in own_protocol(task, "paper").items() if not path.startswith("budget.")}


def method_of(recipe: Recipe) -> str:
    """The recipe's method, followed by what sets it apart from the recipe of that name: "mlr objective.mask.ratio=0.3".

    So runs that compute something else are never averaged as if they were seeds of one method.
    """
    named = recipes.usual(recipe, recipe.preset, recipe.objective.name if recipe.objective else None)
    changes = [] if named is None else difference(named, recipe)
    kept = [line.partition(": ") for line in changes if not line.startswith(NOT_METHOD)]
    told = {path: values.partition(" -> ")[2] for path, _, values in kept}
    if "encoder_from" in told:  # a file for every task and seed, and one method
        general = told["encoder_from"].replace(recipe.name, "{task}")
        told["encoder_from"] = re.sub(rf"(?<!\d){recipe.seed}(?!\d)", "{seed}", general)
    return " ".join([recipe.method, *(f"{path}={value}" for path, value in told.items())])


@cache
def named_recipe(name: str, profile: Profile) -> Recipe | None:
    """The recipe of that name, if there is one that can be told without running code of an environment."""
    if own.is_own(name):
        return None
    try:
        return recipes.find(name, profile)
    except ValueError:  # a recipe of the user's own
        return None
