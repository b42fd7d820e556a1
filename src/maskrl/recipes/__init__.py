"""Recipes, the descriptions of runs, by name, with the paper's values and their sources."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import torch

from maskrl.envs.atari import normalise
from maskrl.envs.gym import Factory, Gym
from maskrl.recipes import ablations, atari, dmcontrol, own, toy
from maskrl.recipes.methods import METHODS, TOYS, Method, Pair
from maskrl.recipes.methods import SUITES as METHOD_SUITES
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.published import PublishedScore, players, published, unit_of
from maskrl.recipes.schema import Profile, Recipe
from maskrl.recipes.sources import Explanation, Source, explain
from maskrl.recipes.suggest import choices, nearest

__all__ = ["METHODS", "Explanation", "Method", "Source", "explain"]  # and the functions defined here

AnyProfile = Literal["auto", "paper", "lite"]
SUITES: dict[str, Any] = {"dmcontrol": dmcontrol, "atari": atari, "toy": toy, "gym": own}


def names() -> list[str]:
    """The names of the paper's recipes, its harder tasks, and the toys. `find` also accepts all other tasks of the suites."""
    tasks = [*dmcontrol.PAPER_TASKS, *dmcontrol.SISTERS]
    return [
        *(f"dmcontrol/{task}" for task in tasks),
        *(f"atari/{task}" for task in atari.GAMES),
        *(f"toy/{task}" for task in toy.TASKS),
    ]


def example_task(suite: str) -> str:
    """A task of a suite, for examples."""
    return next(name for name in names() if name.startswith(f"{suite}/")).partition("/")[2]


def find(
    name: str | Factory,
    profile: AnyProfile = "auto",
    method: str | None = None,
    *,
    agent: str | None = None,
    objective: str | None = None,
) -> Recipe:
    """The recipe with this name. Profile `auto`: the paper's with a CUDA device, otherwise lite.

    `method` names a published pair of agent and objective (default: mlr); `agent` and `objective` name its halves: "none" for
    no objective, "mlr+spr" for two at once.
    """
    return _find(*_suite_and_task(name), profile, method, agent, objective)


def _find(
    suite: str, task: Any, profile: AnyProfile, method: str | None, agent: str | None, objective: str | None
) -> Recipe:
    _require("profile", profile, ["auto", *get_args(Profile)])
    if profile == "auto":
        profile = "paper" if torch.cuda.is_available() else "lite"
    name = _name(suite, task)
    pair = _pair(name, task.like if isinstance(task, own.Seen) else suite, method, agent, objective)
    agents, objectives = SUITES[suite].AGENTS, SUITES[suite].objectives(task, profile)
    if pair.agent is not None:
        _require_agent_on_suite(name, pair.agent, agents)
        _require("agent", pair.agent, agents)
    names = pair.objective.split("+") if pair.objective is not None else []
    for one in names:
        here = _alone_or_beside(names, objectives)
        _require_objective_on_suite(name, one, here)
        _require("objective", one, here)
    if len(names) > 2:
        raise ValueError(f"objective {pair.objective!r}: at most two objectives learn at once, such as mlr+spr.")
    chosen: Recipe = SUITES[suite].recipe(task, profile, pair.agent, pair.objective)
    return chosen


def usual(recipe: Recipe, agent: str | None, objective: str | None) -> Recipe | None:
    """The recipe of the same name with this agent and objective, without overrides; None if there is none.

    Safe for recipes from untrusted runs: it runs no code of an environment, which `find` may do.
    """
    try:
        if isinstance(recipe.env, Gym):
            return own.recipe(own.seen(recipe), recipe.profile, agent, objective)
        if own.is_own(recipe.name):
            return None
        return find(recipe.name, recipe.profile, agent=agent, objective=objective or "none")
    except (ValueError, KeyError):  # a user's own recipe
        return None


def _suite_and_task(name: str | Factory, overrides: Iterable[str] = ()) -> tuple[str, Any]:
    """The suite, and the task's name in it. A user's environment is made once, with the overrides that define it."""
    if not isinstance(name, str) or own.is_own(name):
        return "gym", own.look(name, overrides)
    suite, _, task = name.partition("/")
    if suite == "atari":
        name = f"atari/{normalise(task)}"
    if name not in names():
        others = [f"dmcontrol/{task}" for task in dmcontrol.OTHER_TASKS] + [
            f"atari/{game}" for game in atari.other_games()
        ]
        if name not in others:
            raise ValueError(_unknown_recipe(name, [*names(), *others]))
    return suite, name.partition("/")[2]


def _pair(name: str, suite: str, method: str | None, agent: str | None, objective: str | None) -> Pair:
    """The requested pair; raise ValueError if the recipe's suite does not have it."""
    if method is not None and (agent is not None or objective is not None):
        half = f"agent {agent!r}" if agent is not None else f"objective {objective!r}"
        raise ValueError(
            f"method {method!r} and {half}: a method names both halves. Use the method alone, or agent and objective."
        )
    if agent is not None or objective is not None:
        return Pair(agent, {None: "mlr", "none": None}.get(objective, objective))
    _require("method", method or "mlr", METHODS)
    pair = pair_on(name, method or "mlr", suite)
    if pair is None:
        there = [other for other in METHODS if pair_on(name, other, suite) is not None]
        raise ValueError(
            f"method {method!r} is published for {' and '.join(METHODS[method or 'mlr'].suites)}, not for {name}. "
            f"Choose one of {', '.join(there)}."
        )
    return pair


def pair_on(name: str, method: str, suite: str | None = None) -> Pair | None:
    """The pair of a method on a recipe's suite; None if the suite does not have it. Toys have small versions of some."""
    suite = suite or name.partition("/")[0]
    pair = METHODS[method].pairs.get(TOYS.get(name, suite))
    if pair is None or (suite == "toy" and pair.agent is not None and pair.agent not in toy.AGENTS):
        return None
    return pair


def published_for(recipe: Recipe, frames: int) -> PublishedScore | None:
    """The paper's score for a recipe's task and method after this many frames, if there is one."""
    at = frames // recipe.env.action_repeat if unit_of(recipe.name) == "decisions" else frames
    found = published(recipe.name, at, recipe.method)
    return None if found is None or found.seeds is None else found


def human_normalised(recipe: Recipe, score: float) -> float | None:
    """A human-normalised score (random player 0, human player 1), for the games of Atari-100k; otherwise None."""
    scale = players(recipe.name)
    return None if scale is None else (score - scale.random) / (scale.human - scale.random)


def resolve(
    name: str | Factory,
    overrides: Iterable[str] = (),
    *,
    profile: AnyProfile = "auto",
    method: str | None = None,
    agent: str | None = None,
    objective: str | None = None,
) -> Recipe:
    """The recipe with this name and overrides; the override `objective=NAME` chooses one of the task's objectives."""
    overrides = list(overrides)
    for override in overrides:
        if override.split("=")[0].strip() in ("name", "profile", "preset"):
            raise ValueError(
                f"{override}: the name, profile and preset of a recipe cannot be overridden. Choose another recipe, --profile or "
                "--agent."
            )
    suite, task = _suite_and_task(name, overrides)
    recipe = _find(suite, task, profile, method, agent, objective)
    objectives = SUITES[suite].objectives(task, recipe.profile)
    for path, _, value in (override.partition("=") for override in overrides):
        if path.strip() == "objective" and not value.strip().startswith("{"):
            asked = value.strip().split("+")
            for one in asked:
                _require_objective_on_suite(_name(suite, task), one, _alone_or_beside(asked, objectives))
    return with_overrides(recipe, overrides, objectives=objectives)


def ablation(name: str, task: str = "dmcontrol/cheetah-run", profile: AnyProfile = "auto") -> Recipe:
    """A row of the paper's ablations, such as "masking/MLR-S", on a task of DMControl, the suite of the paper's ablations."""
    if name not in ablations.names():
        likely = choices(nearest(name, ablations.names()))
        ending = f": did you mean {likely}?" if likely else "."
        raise ValueError(f"ablation {name!r} is not known{ending} `maskrl recipes list ablations` has them all.")
    plain = find(task, profile)
    if not plain.name.startswith("dmcontrol/"):
        raise ValueError(f"The paper's ablations are on DMControl: there are none on {task}. Choose a dmcontrol/ task.")
    return with_overrides(plain, ablations.overrides(name, plain))


def _unknown_recipe(name: str, known: Iterable[str]) -> str:
    """The message for an unknown name, with the three nearest names and the command that lists all."""
    likely = choices(nearest(name, known, number=3))
    meant = (
        f": did you mean {likely}?"
        if likely
        else ". A name is suite/task, such as dmcontrol/cheetah-run or atari/pong."
    )
    return f"recipe {name!r} is not known{meant} `maskrl recipes list` has the paper's tasks; the suites' other tasks work, too."


def _name(suite: str, task: Any) -> str:
    return f"{suite}/{task if isinstance(task, str) else task.env.task}"


def _alone_or_beside(asked: Sequence[str], objectives: Iterable[str]) -> list[str]:
    """What each of the requested objectives may be: "none" only if it is alone."""
    return ["none", *objectives] if len(asked) == 1 else list(objectives)


def _require_agent_on_suite(name: str, agent: str, here: Iterable[str]) -> None:
    """Raise ValueError for an agent that exists, but not on this recipe's suite."""
    if agent in here:
        return
    there = [suite for suite in METHOD_SUITES if agent in SUITES[suite].AGENTS]
    toys = [toy for toy, suite in TOYS.items() if suite in there and agent in SUITES["toy"].AGENTS]
    _refuse_elsewhere("agent", agent, name, toy.FITTING.get(name, here), there, toys)


def _require_objective_on_suite(name: str, objective: str, here: Iterable[str]) -> None:
    """Raise ValueError for an objective that exists, but not on this recipe's suite."""
    if objective in here:
        return
    there = [suite for suite in METHOD_SUITES if objective in SUITES[suite].objectives(example_task(suite), "lite")]
    toys = [toy for toy, suite in TOYS.items() if suite in there]
    _refuse_elsewhere("objective", objective, name, here, there, toys)


def _refuse_elsewhere(
    what: str, value: str, name: str, here: Iterable[str], there: Sequence[str], toys: Sequence[str]
) -> None:
    """Raise ValueError if other suites have it; return if none has."""
    if not there:
        return
    examples = [*(f"{suite}/{example_task(suite)}" for suite in there), *toys]
    raise ValueError(
        f"{what} {value!r} is not for {name}: it is for {' and '.join(there)}. Choose one of {', '.join(here)}, or a "
        f"recipe that has it, such as {choices(examples)}."
    )


def _require(what: str, value: str, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        likely = choices(nearest(value, known))
        meant = f": did you mean {likely}?" if likely else "."
        raise ValueError(f"{what} {value!r} is not known{meant} There are {', '.join(known)}.")
