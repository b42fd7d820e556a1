"""about.json of published results: how the scores beside it were made.

The folder may be a stranger's. What it does not say properly is unknown, and a sentence says so; the rest is used.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maskrl.analysis.protocol import Protocol, protocol_of
from maskrl.files import RunError, listed, read_bytes
from maskrl.recipes.overrides import from_json
from maskrl.recipes.schema import Recipe

ABOUT = "about.json"
MOST_RECIPES = 2000  # several times as many as all methods on all tasks
MOST_NAMED = 5  # unreadable recipes
MOST = 100  # versions, machines and commands
LONGEST = 300  # characters of a version, a command or the reason of a problem
SHOWN = 40  # characters of an unexpected value in the reason

Made = tuple[str, str]  # what a recipe is of: method, task


@dataclass(frozen=True)
class About:
    """How a folder of scores was made, as far as its about.json says so."""

    recipes: Mapping[Made, Recipe] = field(default_factory=dict)
    protocols: Mapping[Made, Protocol] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)  # a tuple: its machines differ
    commands: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def read_about(folder: Path) -> About:
    """Read the about.json of a folder."""
    path = folder / ABOUT
    try:
        about = _parsed(folder)
    except (RunError, OSError, ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).rstrip(".")
        return About(problems=(f"{path} does not say how these scores were made: {why}.",))
    told = about["recipes"]
    versions, problems = _versions(path, about)
    recipes, protocols, wrong = dict[Made, Recipe](), dict[Made, Protocol](), list[str]()
    certain = {name: value for name, value in versions.items() if not isinstance(value, tuple)}
    for number, one in enumerate(told[:MOST_RECIPES], start=1):
        try:
            made, recipe = _made(one)
            protocols[made], recipes[made] = protocol_of(recipe, certain), recipe
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            why = (str(error).splitlines() or [type(error).__name__])[0][:LONGEST].rstrip(".")
            wrong.append(f"{path}: recipe {number} cannot be read by this version of maskrl ({why}). It is unknown.")
    problems += wrong[:MOST_NAMED]
    if len(wrong) > MOST_NAMED:
        problems.append(f"{path}: {len(wrong) - MOST_NAMED:,} more recipes cannot be read.")
    if len(told) > MOST_RECIPES:
        problems.append(f"{path} has {len(told):,} recipes, of which the first {MOST_RECIPES:,} were read.")
    commands = about.get("commands")
    texts = [one[:LONGEST] for one in commands if isinstance(one, str)] if isinstance(commands, list) else []
    return About(recipes, protocols, versions, tuple(texts[:MOST]), tuple(problems))


def _parsed(folder: Path) -> dict[str, Any]:
    """The file's object, which has a list of recipes. Raises an error that says why there is none."""
    text = read_bytes(folder, ABOUT)
    try:
        about = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(about, dict):
        raise ValueError(f"expected an object, got {_shown(about)}")
    if not isinstance(about.get("recipes"), list):
        raise ValueError("it has no list of recipes")
    return about


def _made(one: Any) -> tuple[Made, Recipe]:
    """An entry of the list of recipes. A ValueError says what was expected."""
    if not isinstance(one, dict):
        raise ValueError(f"expected an object with method, task and recipe, got {_shown(one)}")
    for name in ("method", "task"):
        if not isinstance(one.get(name), str):
            raise ValueError(f"{name}: expected a text, got {_shown(one[name]) if name in one else 'nothing'}")
    return (one["method"], one["task"]), from_json(json.dumps(one.get("recipe")))


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _versions(path: Path, about: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Name → version, and problems. A value in which the machines differ is a tuple: which machine made a run is not known."""
    software = about.get("versions")
    if not isinstance(software, dict):
        got = _shown(software) if "versions" in about else "nothing"
        return {}, [f"{path} does not say the versions of these runs: expected an object, got {got}."]
    values: dict[str, dict[Any, None]] = {}
    unreadable = 0
    for told in (software, *listed(about, "machines")[:MOST]):
        for name, value in list(told.items())[:MOST]:
            if len(name) <= LONGEST and _is_short(value):
                values.setdefault(name, {})[value] = None
            else:
                unreadable += 1
    problems = [
        f"{path}: {unreadable} of its versions cannot be read: expected a text or a number, names and values of at most {LONGEST} "
        "characters. They are unknown."
    ] * bool(unreadable)
    return {name: found[0] if len(found := [*each]) == 1 else tuple(found) for name, each in values.items()}, problems


def _is_short(value: Any) -> bool:
    return value is None or (isinstance(value, str | int | float) and len(str(value)) <= LONGEST)
