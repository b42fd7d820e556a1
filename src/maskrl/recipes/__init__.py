"""The paper's numbers, each with its source."""

import difflib
from collections.abc import Iterable
from typing import Literal, get_args

import torch

from maskrl.envs import Atari, DMControl
from maskrl.envs.atari import normalise
from maskrl.recipes import ablations, atari, dmcontrol, toy
from maskrl.recipes.published import Published, players, published
from maskrl.recipes.schema import Method, Preset, Profile, Recipe, with_overrides
from maskrl.recipes.sources import Explanation, Source, explain

__all__ = [
    "Explanation",
    "Source",
    "ablation",
    "explain",
    "find",
    "human_normalised",
    "names",
    "published_for",
    "resolve",
]

METHODS: tuple[Method, ...] = ("mlr", "baseline", *get_args(Preset))


def names() -> list[str]:
    """The recipes of the paper, its harder tasks, and the toys. Every other task of the suites can be found by name, too."""
    tasks = [*dmcontrol.PAPER_TASKS, *dmcontrol.SISTERS]
    return [
        *(f"dmcontrol/{task}" for task in tasks),
        *(f"atari/{task}" for task in atari.GAMES),
        *(f"toy/{task}" for task in toy.TASKS),
    ]


def find(name: str, profile: Literal["auto", "paper", "lite"] = "auto", method: Method = "mlr") -> Recipe:
    """The recipe of that name. `auto` is the paper's profile with a CUDA device, the lite one without."""
    suite, _, task = name.partition("/")
    if suite == "atari":
        name = f"atari/{normalise(task)}"
    if name not in names():
        others = [f"dmcontrol/{task}" for task in dmcontrol.OTHER_TASKS] + [
            f"atari/{game}" for game in atari.other_games()
        ]
        _require("name", name, [*names(), *others], shown=names())
    _require("profile", profile, ["auto", *get_args(Profile)])
    _require("method", method, METHODS)
    if suite != "atari" and method in get_args(Preset):
        raise ValueError(
            f"method {method!r} is a relative of Rainbow, which plays Atari: choose mlr or baseline for {name}."
        )
    if suite == "toy":
        return toy.recipe(task, method)  # lite, whatever was asked for: the paper has no such task
    if profile == "auto":
        profile = "paper" if torch.cuda.is_available() else "lite"
    suites = {"dmcontrol": dmcontrol.recipe, "atari": atari.recipe}
    return suites[suite](name.partition("/")[2], profile, method)


def published_for(recipe: Recipe, frames: int) -> Published | None:
    """What the paper reports for a recipe's task and method after so many frames, if it does."""
    match recipe.env:
        case DMControl(task=task):
            found = published(f"dmcontrol/{task}", frames, recipe.method)
        case Atari(task=task, action_repeat=repeat):
            found = published(f"atari/{task}", frames // repeat, recipe.method)
        case _:
            return None
    if found is None or found.seeds is None:
        return None
    return Published(found.mean, found.std, found.seeds, found.source)


def human_normalised(recipe: Recipe, score: float) -> float | None:
    """A score on the scale from a random player (0) to a human one (1), for the games of Atari-100k."""
    scale = players(f"atari/{recipe.env.task}") if isinstance(recipe.env, Atari) else None
    return None if scale is None else (score - scale.random) / (scale.human - scale.random)


def resolve(
    name: str,
    overrides: Iterable[str] = (),
    *,
    profile: Literal["auto", "paper", "lite"] = "auto",
    method: Method = "mlr",
) -> Recipe:
    """The recipe of that name with overrides, of which `objective=mlr` brings back the task's own objective."""
    overrides = list(overrides)
    for override in overrides:
        if override.split("=")[0].strip() in ("name", "profile"):
            raise ValueError(
                f"{override}: the name and the profile say what a recipe is; choose another recipe or --profile."
            )
    return with_overrides(find(name, profile, method), overrides, origin=find(name, profile, "mlr"))


def ablation(
    name: str, task: str = "dmcontrol/cheetah-run", profile: Literal["auto", "paper", "lite"] = "auto"
) -> Recipe:
    """A row of the paper's ablations, such as "masking/MLR-S", on a task of DMControl, which is where the paper has them."""
    if name not in ablations.names():
        likely = _nearest(name, ablations.names())
        ending = f": did you mean {likely}?" if likely else "."
        raise ValueError(f"ablation {name!r} is not known{ending} `maskrl recipes list ablations` has them all.")
    plain = find(task, profile)
    if not isinstance(plain.env, DMControl):
        raise ValueError(f"The paper's ablations are on DMControl: there are none on {task}.")
    return with_overrides(plain, ablations.overrides(name, plain))


def _require(what: str, value: str, known: Iterable[str], shown: Iterable[str] | None = None) -> None:
    known = list(known)
    if value not in known:
        likely = _nearest(value, known)
        raise ValueError(
            f"{what} {value!r} is not known{f': did you mean {likely}?' if likely else '.'} "
            f"There are {', '.join(shown or known)}{', and every other task of the suites' if shown else ''}."
        )


def _nearest(value: str, known: Iterable[str]) -> str | None:
    """What was meant, perhaps: "pong" is atari/pong, "masking/mlr-s" is masking/MLR-S."""
    known = list(known)
    same = [other for other in known if f"/{other}".casefold().endswith(f"/{value}".casefold())]
    return next(iter(same or difflib.get_close_matches(value, known, n=1)), None)
