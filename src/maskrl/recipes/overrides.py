"""Read recipes from text: a recipe.json, or overrides of single values by dotted paths."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import pydantic

from maskrl.config import types_of
from maskrl.recipes.schema import (
    OBJECTIVE_KINDS,
    AnyObjective,
    Recipe,
    UnknownObjective,
    as_override,
    objective_named,
    tree_leaves,
    with_objective,
)
from maskrl.recipes.suggest import choices, fields_like, fields_with_the_last_word_of, nearest

DEEPEST = 20  # levels of nested groups and lists
LONGEST = 100_000  # characters of an override
ENCODER_KIND = ("agent", "encoder", "kind")
RESIZED = ("control", "nature", "impala")  # encoders with a latent_dim


def from_json(text: str) -> Recipe:
    """Read a recipe that `as_json` wrote. A ValueError names every problem, one per line."""
    unknown: Any = None
    with suppress(ValueError, RecursionError):  # `_read` reports text that is not JSON
        tree = json.loads(text)
        objective = tree.get("objective") if isinstance(tree, dict) else None
        encoder = (
            tree["agent"].get("encoder") if isinstance(tree, dict) and isinstance(tree.get("agent"), dict) else None
        )
        if isinstance(encoder, dict) and "kind" not in encoder:  # from a version without a choice of encoder
            encoder["kind"] = "nature" if "kernels" in encoder else "control"
            text = json.dumps(tree)
        kind = objective.get("kind") if isinstance(objective, dict) else None
        if isinstance(kind, str) and kind not in OBJECTIVE_KINDS:
            unknown = UnknownObjective(kind=kind, values=dict(objective or {}))
            text = json.dumps({**tree, "objective": None})
    recipe, problems = _read(text)
    if recipe is None:
        raise ValueError("\n".join(problem.message for problem in problems))
    return recipe if unknown is None else replace(recipe, objective=unknown)


def with_overrides(
    recipe: Recipe, overrides: Iterable[str], *, objectives: Mapping[str, AnyObjective] | None = None
) -> Recipe:
    """The recipe with some values replaced: "objective.mask.ratio=0.3", "agent.encoder.strides=2,2,1,1", "seed=2".

    All are applied before any is checked, so their order matters only if a path occurs twice: the last one counts.
    `objective=none` (the Baseline) and `objective=NAME` replace the whole objective first; `objectives` has the task's named
    ones.
    """
    typed = [_Override.parse(text) for text in overrides]
    malformed = [
        f"{_cut(override.text)}: an override is path=value, such as seed=2." for override in typed if not override.path
    ]
    malformed += [
        f"{_cut(override.text)}: at most {DEEPEST} nested groups and {LONGEST:,} characters are allowed."
        for override in typed
        if len(override.path) > DEEPEST or len(override.text) > LONGEST or is_deep(override.value)
    ]
    if malformed:
        raise ValueError("\n".join(malformed))

    swaps = [override for override in typed if override.path == ("objective",) and not override.value.startswith("{")]
    named = dict(objectives or {})
    if recipe.objective is not None:
        named.setdefault(recipe.objective.kind, recipe.objective)
    for swap in swaps:
        recipe = _swap(recipe, swap, named)
    tree, rest = asdict(recipe), [override for override in typed if override not in swaps]
    for override in sorted(rest, key=lambda override: override.path != ENCODER_KIND):  # kind first
        _set(tree, override, named)
    changed, problems = _read(json.dumps(tree))
    if changed is None:
        raise ValueError("\n".join(_blame(problem, rest) for problem in problems))
    return changed


def with_known(recipe: Recipe, overrides: Iterable[str], *, of: str = "") -> Recipe:
    """The recipe with those overrides whose paths exist in it and begin with `of`."""
    known = dict(tree_leaves("", asdict(recipe)))
    chosen = [line for line in overrides if line.startswith(of) and line.partition("=")[0] in known]
    return with_overrides(recipe, chosen) if chosen else recipe


def is_deep(text: str) -> bool:
    """Whether JSON is nested too deeply for a recipe: parsers recurse into every level."""
    depth = 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if depth > DEEPEST:
            return True
    return False


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


class _Override(NamedTuple):
    text: str  # as typed
    path: tuple[str, ...]  # empty: there was no path
    value: str

    @classmethod
    def parse(cls, text: str) -> "_Override":
        path, equals, value = text.partition("=")
        return cls(text, tuple(path.strip().split(".")) if equals and path.strip() else (), value.strip())


def _swap(recipe: Recipe, override: _Override, named: Mapping[str, AnyObjective]) -> Recipe:
    if override.value.lower() in ("none", "null"):
        return with_objective(recipe, None)
    names = override.value.split("+")
    if len(names) > 2 or any(name not in named for name in names):
        raise ValueError(f"{override.text}: expected {choices(['none', *named])}{_did_you_mean(override.value, named)}")
    return with_objective(recipe, objective_named(override.value, named))


def _set(tree: dict[str, Any], override: _Override, named: Iterable[str]) -> None:
    """Set the value at its path. A path that does not exist is created; reading the tree then reports it."""
    *groups, name = override.path
    node = tree
    for depth, group in enumerate(groups, start=1):
        node = node.setdefault(group, {})
        if not isinstance(node, dict):
            place, within = ".".join(groups[:depth]), ".".join(override.path[depth:])
            advice = f" Add objective={' or objective='.join(named)}." if place == "objective" and named else ""
            raise ValueError(f"{override.text}: {place} is {as_override(node)}, so there is no {within} in it.{advice}")
    value = _parse(override.value, _locate(override.path, tree).type)
    if override.path == ENCODER_KIND and value != node.get(name):
        # Another encoder starts with its own defaults, except for the latent_dim, on which other parts depend.
        kept = {"latent_dim": node["latent_dim"]} if node.get("latent_dim") is not None else {}
        tree["agent"]["encoder"] = {"kind": value, **(kept if value in RESIZED else {})}
        return
    _merge(node, name, value)


def _merge(node: dict[str, Any], name: str, value: Any) -> None:
    """Merge a JSON object into its group: change the named fields and keep the others."""
    if isinstance(value, dict) and isinstance(node.get(name), dict):
        for inner, inner_value in value.items():
            _merge(node[name], inner, inner_value)
    else:
        node[name] = value


def _parse(text: str, expected: Any) -> Any:
    """Parse JSON, otherwise a list with commas, none, true or false, a number, and finally a word; text where text is
    expected.
    """
    if expected is str or (get_origin(expected) is Literal and text in get_args(expected)):
        return text  # "none" is a value here, as in objective.projection=none
    if expected == str | None and text.lower() != "none":
        return text  # a file path may have commas or be a number
    if get_origin(expected) is tuple and not text.startswith("["):
        return [_scalar(item.strip()) for item in text.removesuffix(",").split(",")]
    return (
        [_scalar(item.strip()) for item in text.split(",")] if "," in text and text[:1] not in "[{" else _scalar(text)
    )


def _scalar(text: str) -> Any:
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        value = json.loads(text, parse_constant=str)  # NaN and Infinity stay text: no field accepts them
    except (ValueError, RecursionError):  # not JSON, or a number of thousands of digits
        value = text
    if isinstance(value, float) and value.is_integer() and "." not in text:
        return int(value)  # 1e5 frames
    if isinstance(value, str):
        try:
            return int(value)  # 100_000
        except ValueError:
            pass
    return value


def _blame(problem: "_Problem", overrides: Sequence[_Override]) -> str:
    """The problem's message, after the overrides that may have caused it."""
    path = problem.path
    near = [o for o in overrides if o.path[: len(path)] == path or path[: len(o.path)] == o.path] or list(overrides)
    named = [override for override in near if override.path[-1] in problem.message] or near
    return f"{' '.join(override.text for override in named)}: {problem.message}"


# ── pydantic reads the text; its errors are rewritten for the user ─────────────────────────────────────────────────────


_RECIPES = pydantic.TypeAdapter(Recipe)


class _Problem(NamedTuple):
    path: tuple[str, ...]
    message: str


def _read(text: str) -> tuple[Recipe, tuple[()]] | tuple[None, list[_Problem]]:
    try:
        # Strict JSON: a list becomes a tuple and 1 becomes 1.0, but "1" does not become 1.
        return _RECIPES.validate_json(text, strict=True), ()
    except pydantic.ValidationError as error:
        details = error.errors(include_url=False)
    if details[0]["type"] == "json_invalid":
        return None, [_Problem((), f"This is not JSON: {details[0]['ctx']['error']}.")]
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of lists
        return None, [_Problem((), f"This cannot be read: {error}.")]
    return None, [_explain(detail, tree) for detail in details]


def _explain(detail: Any, tree: Any) -> _Problem:
    place = _locate(detail["loc"], tree, tagged=True)
    path, name, seen = place.path, ".".join(place.path), place.value
    if detail["type"] == "unexpected_keyword_argument":
        return _Problem(path, f"{name} is not a field{_meant_field(place, tree)}")
    if detail["type"] == "value_error":
        return _Problem(path, f"{name}: {detail['ctx']['error']}" if path else str(detail["ctx"]["error"]))
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        groups: list[Any] = [option for option in _options(place.type) if is_dataclass(option)]
        kinds = [group.kind for group in groups]
        path, name, seen = (*path, "kind"), f"{name}.kind", seen.get("kind")
        expected, ending = choices(kinds), _did_you_mean(str(seen), kinds)
    else:
        expected = _described(place.type)
        ending = _did_you_mean(str(seen), get_args(place.type)) if get_origin(place.type) is Literal else "."
    missing = detail["type"] in ("missing", "union_tag_not_found") and seen is None
    return _Problem(
        path, f"{name or 'A recipe'}: expected {expected}, got {'nothing' if missing else json.dumps(seen)}{ending}"
    )


def _meant_field(place: "_Place", tree: Any) -> str:
    """The end of a message about an unknown field: similar fields, or those that exist."""
    group, name = _locate(place.path[:-1], tree), ".".join(place.path)
    known, leaves = _names(_group(group.type, group.value)), [leaf for leaf, _ in tree_leaves("", tree)]
    asked = next(
        (leaf for leaf in leaves if leaf.startswith(f"{name}.")), name
    )  # mask.ratio, where mask is not a group
    fields = [leaf for leaf in leaves if leaf != name and not leaf.startswith(f"{name}.")]
    likely = fields_like(asked, fields) or nearest(place.path[-1], known) or fields_with_the_last_word_of(asked, fields)
    if likely:
        return f"; did you mean {choices(likely)}?"
    return f"; {'.'.join(group.path) or 'a recipe'} has {', '.join(known)}."


class _Place(NamedTuple):
    path: tuple[str, ...]
    type: Any  # expected type; None if the path does not exist
    value: Any  # the present value


def _locate(steps: Iterable[str | int], tree: Any, *, tagged: bool = False) -> _Place:
    """Follow a path from the root.

    `tagged`: the path of a pydantic error, which has the kind after the name of a group of several kinds, and indices in lists.
    """
    place, after_tag = _Place((), Recipe, tree), False
    for step in steps:
        if isinstance(step, int):
            break
        group, held = _group(place.type, place.value), place.value if isinstance(place.value, dict) else {}
        after_tag = tagged and not after_tag and _has_kinds(place.type) and held.get("kind") == step
        if not after_tag:
            known = types_of(group) if group else {}
            place = _Place((*place.path, step), known.get(step), held.get(step))
    return place


def _has_kinds(expected: Any) -> bool:
    return sum(is_dataclass(option) for option in _options(expected)) > 1


def _group(expected: Any, value: Any) -> Any:
    """The dataclass of a value, by its kind if there are several; None if it is not a group."""
    options = [option for option in _options(expected) if is_dataclass(option)]
    kind = value.get("kind") if isinstance(value, dict) else None
    same = [option for option in options if kind in get_args(types_of(option).get("kind"))]
    return next(iter(same or options), None)


def _options(expected: Any) -> tuple[Any, ...]:
    return get_args(expected) if get_origin(expected) in (Union, UnionType) else (expected,)


def _described(expected: Any) -> str:
    """A type in words."""
    if len(_options(expected)) > 1:
        return " or ".join(_described(option) for option in _options(expected))
    if is_dataclass(expected):
        return f"a group of {', '.join(_names(expected))}"
    if get_origin(expected) is Literal:
        return choices([as_override(choice) for choice in get_args(expected)])
    if get_origin(expected) is tuple:
        items = get_args(expected)
        if items[0] is str:
            return "words, such as a,b"
        return "whole numbers, such as 2,1,1" if items[-1] is ... else f"{len(items)} whole numbers, such as 8,10,10"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "none"}
    return words.get(expected, str(expected))


def _names(group: Any) -> list[str]:
    return [field.name for field in fields(group)]


def _did_you_mean(name: str, names: Iterable[object]) -> str:
    """The end of a message: a similar name, if there is one."""
    likely = nearest(name, map(str, names))
    return f"; did you mean {likely[0]}?" if likely else "."
