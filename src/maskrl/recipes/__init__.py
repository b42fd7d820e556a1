"""The paper's numbers, each with its source."""

import difflib
from collections.abc import Iterable
from typing import Literal, get_args

import torch

from maskrl.experiments.recipe import Method, Profile, Recipe, with_overrides
from maskrl.recipes import dmcontrol, toy
from maskrl.recipes.sources import Explanation, Source, explain

__all__ = ["Explanation", "Source", "explain", "find", "names", "resolve"]


def names() -> list[str]:
    """The recipes of the paper, its harder tasks, and the toys. Every other task of the suite can be found by name, too."""
    tasks = [*dmcontrol.PAPER_TASKS, *dmcontrol.SISTERS]
    return [*(f"dmcontrol/{task}" for task in tasks), *(f"toy/{task}" for task in toy.TASKS)]


def find(name: str, profile: Literal["auto", "paper", "lite"] = "auto", method: Method = "mlr") -> Recipe:
    """The recipe of that name. `auto` is the paper's profile with a CUDA device, the lite one without."""
    _require("name", name, [*names(), *(f"dmcontrol/{task}" for task in dmcontrol.OTHER_TASKS)], shown=names())
    _require("profile", profile, ["auto", *get_args(Profile)])
    _require("method", method, get_args(Method))
    suite, task = name.split("/")
    if suite == "toy":
        return toy.recipe(task, method)  # lite, whatever was asked for: the paper has no such task
    if profile == "auto":
        profile = "paper" if torch.cuda.is_available() else "lite"
    return dmcontrol.recipe(task, profile, method)


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


def _require(what: str, value: str, known: Iterable[str], shown: Iterable[str] | None = None) -> None:
    known = list(known)
    if value not in known:
        likely = difflib.get_close_matches(value, known, n=1)
        raise ValueError(
            f"{what} {value!r} is not known{f': did you mean {likely[0]}?' if likely else '.'} "
            f"There are {', '.join(shown or known)}{', and every other task of the suite' if shown else ''}."
        )
