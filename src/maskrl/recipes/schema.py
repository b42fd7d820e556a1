"""A recipe is the full, frozen description of a run; an override is one value of it, by its dotted path."""

import difflib
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import pydantic

from maskrl.agents.rainbow import RainbowConfig
from maskrl.agents.sac import SACConfig
from maskrl.config import Config
from maskrl.envs import AnyEnv
from maskrl.envs.base import require_at_least
from maskrl.objectives.mlr import MLRConfig

Profile = Literal["paper", "lite"]
Preset = Literal["der", "otr", "drq", "drq_eps"]  # relatives of Rainbow under their own names
Method = Literal["mlr", "baseline"] | Preset
AnyAgent = SACConfig | RainbowConfig


@dataclass(frozen=True, kw_only=True)
class Budget(Config):
    """How long a run is: in frames of the simulator, or in decisions of the agent (Atari-100k). One of the two."""

    frames: int | None = None
    decisions: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.frames is None) == (self.decisions is None):
            raise ValueError(
                f"budget.frames={as_override(self.frames)} and budget.decisions={as_override(self.decisions)}: a budget has one "
                "unit. Set the other to none."
            )


@dataclass(frozen=True, kw_only=True)
class Evaluation(Config):
    """When the agent is evaluated, in environments of their own, without exploring."""

    every: int = 5000  # frames; the start and the end of the run are always among them
    episodes: int = 10
    epsilon: float = 0.0  # the share of random actions, which keeps a game from going in circles
    side_by_side: int = 1  # episodes played at once

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "episodes")
        require_at_least(1, self, "side_by_side")
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"evaluation.epsilon={self.epsilon} must lie in [0, 1].")


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(Config):
    """See `Replay`."""

    capacity: int = 100_000  # decisions
    storage: Literal["disk", "memory"] = "disk"  # disk: memory-mapped files in the run directory, which a resume needs
    on_device: bool = False  # also keep the frames on the GPU, if they fit, and build batches there

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "capacity")


@dataclass(frozen=True, kw_only=True)
class Recipe(Config):
    """Everything that decides what a run computes."""

    name: str  # dmcontrol/cartpole-swingup
    profile: Profile  # lite: the same method scaled to a laptop; its scores are not the paper's
    env: Annotated[AnyEnv, pydantic.Field(discriminator="kind")]
    agent: Annotated[AnyAgent, pydantic.Field(discriminator="kind")]
    objective: MLRConfig | None  # None: the paper's Baseline
    budget: Budget
    preset: Preset | None = None  # the name of a relative of the agent, if it is one
    # A file of `maskrl pretrain` that the agent's encoder begins with, where {seed} stands for the run's seed; None: random weights
    encoder_from: str | None = None
    evaluation: Evaluation = field(default_factory=Evaluation)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    checkpoint_every: int = 5000  # frames
    overlap: bool = (
        False  # the environment steps in a process of its own while the agent learns: the same results, sooner
    )
    seed: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "bfloat16"] = (
        "float32"  # bfloat16: of convolutions and products; weights stay float32
    )
    compile: bool = False  # let torch.compile fuse the convolutional layers
    threads: int | None = None  # of torch on a CPU; None: as many as there are cores

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, self, "seed")
        if self.threads is not None:
            require_at_least(1, self, "threads")
        self._check_times()
        self._check_sizes()

    @property
    def frames(self) -> int:
        """The budget in frames of the simulator: decisions × action repeat."""
        budget = self.budget
        return (budget.decisions or 0) * self.env.action_repeat if budget.frames is None else budget.frames

    @property
    def method(self) -> str:
        """What a report calls it."""
        plain = self.preset or "baseline"
        return plain if self.objective is None else "mlr" if self.preset is None else f"{plain}+mlr"

    def _check_times(self) -> None:
        repeat = self.env.action_repeat
        if self.budget.decisions is not None:
            require_at_least(1, self.budget, "decisions")
        for name, value in (
            ("budget.frames", self.frames),
            ("evaluation.every", self.evaluation.every),
            ("checkpoint_every", self.checkpoint_every),
        ):
            if value < 1 or value % repeat:
                raise ValueError(
                    f"{name}={value} frames must be a positive multiple of env.action_repeat={repeat}: a decision takes that many."
                )

    def _check_sizes(self) -> None:
        """What would else be found out when the first update is made, after the warm-up."""
        size, crop = self.env.size, self.agent.augment.crop
        if crop is not None and crop > size:
            raise ValueError(f"agent.augment.crop={crop} is larger than the frame, env.size={size}: lower it.")
        if self.objective is None:
            return
        if (self.objective.augment.crop or size) != (crop or size):
            raise ValueError(
                f"objective.augment.crop={self.objective.augment.crop} and agent.augment.crop={crop} must be the same: "
                "one encoder sees both."
            )
        mask = self.objective.mask
        if self.objective.corrupt == "pixels" and mask.strategy != "temporal" and max(mask.cube[1:]) > size:
            raise ValueError(
                f"objective.mask.cube={as_override(mask.cube)} does not fit into the frame, env.size={size}."
            )


# The released code draws the encoder's linear layer anew, from a truncated normal, when it adds MLR; its Baseline keeps the
# orthogonal one. So the two methods differ in it, and adding or removing an objective changes it.


def without_objective(recipe: Recipe) -> Recipe:
    """The paper's Baseline of a recipe: the agent alone, with an orthogonal linear layer in its encoder."""
    return _with_objective(recipe, None, "orthogonal")


def with_objective_of(recipe: Recipe, origin: Recipe) -> Recipe:
    """The recipe with the objective of another, and the initialisation that goes with it."""
    agent = origin.agent
    return _with_objective(
        recipe, origin.objective, agent.encoder.linear_init if isinstance(agent, SACConfig) else "orthogonal"
    )


def _with_objective(
    recipe: Recipe, objective: MLRConfig | None, linear_init: Literal["orthogonal", "truncated_normal"]
) -> Recipe:
    agent = recipe.agent
    if isinstance(agent, SACConfig):
        agent = replace(agent, encoder=replace(agent.encoder, linear_init=linear_init))
    return replace(recipe, objective=objective, agent=agent)


# ── A recipe as text ──────────────────────────────────────────────────────────────────────────────────────────────────


def as_json(recipe: Recipe) -> str:
    """Indented, in the order of the fields, the same for equal recipes."""
    return json.dumps(asdict(recipe), indent=2)


def from_json(text: str) -> Recipe:
    """The recipe that `as_json` wrote. A ValueError names everything that is wrong with it, one per line."""
    recipe, problems = _read(text)
    if recipe is None:
        raise ValueError("\n".join(problem.message for problem in problems))
    return recipe


def digest(recipe: Recipe) -> str:
    """Eight characters that tell recipes apart, for the names of run directories."""
    return digest_of_text(as_json(recipe))


def digest_of_text(text: str) -> str:
    """The digest of a recipe that was written down, perhaps by a version of maskrl with fewer fields."""
    return hashlib.sha256(json.dumps(json.loads(text), indent=2).encode()).hexdigest()[:8]


def leaves(recipe: Recipe) -> dict[str, Any]:
    """Dotted path → value, in the order of the fields. An objective that is absent is one leaf, None."""
    return dict(_leaves("", asdict(recipe)))


def difference(a: Recipe, b: Recipe) -> list[str]:
    """Where two recipes differ, values as an override would have them: "objective.mask.ratio: 0.5 -> 0.3"."""
    return list(_difference("", asdict(a), asdict(b)))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}".lstrip("."), inner)
    else:
        yield path, value


def _difference(path: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict) and a.get("kind") == b.get("kind"):
        for name in a:
            yield from _difference(f"{path}.{name}".lstrip("."), a[name], b[name])
    elif a != b:
        yield f"{path}: {as_override(a)} -> {as_override(b)}"


def as_override(value: Any) -> str:
    """A value as one types it in an override; a group is its kind."""
    if isinstance(value, dict):
        return str(value["kind"])
    if isinstance(value, tuple | list):
        return ",".join(as_override(item) for item in value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


# ── Overrides ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_overrides(recipe: Recipe, overrides: Iterable[str], *, origin: Recipe | None = None) -> Recipe:
    """The recipe with some values replaced: "objective.mask.ratio=0.3", "agent.encoder.strides=2,2,1,1", "seed=2".

    All are applied before any is checked, so their order matters only if a path is given twice: the last one counts.
    `objective=none` (the Baseline) and `objective=mlr` change the whole objective, before anything else; the latter takes
    that of `origin`, which is this recipe if none is given.
    """
    typed = [_Override.parse(text) for text in overrides]
    malformed = [
        f"{override.text}: an override is path=value, such as seed=2." for override in typed if not override.path
    ]
    if malformed:
        raise ValueError("\n".join(malformed))

    swaps = [override for override in typed if override.path == ("objective",) and not override.value.startswith("{")]
    origin = origin or recipe
    for swap in swaps:
        recipe = _swap(recipe, swap, origin)
    tree, rest = asdict(recipe), [override for override in typed if override not in swaps]
    for override in rest:
        _set(tree, override)
    changed, problems = _read(json.dumps(tree))
    if changed is None:
        raise ValueError("\n".join(_blame(problem, rest) for problem in problems))
    return changed


class _Override(NamedTuple):
    text: str  # as typed
    path: tuple[str, ...]  # empty: there was no path
    value: str

    @classmethod
    def parse(cls, text: str) -> "_Override":
        path, equals, value = text.partition("=")
        return cls(text, tuple(path.strip().split(".")) if equals and path.strip() else (), value.strip())


def _swap(recipe: Recipe, override: _Override, origin: Recipe) -> Recipe:
    if override.value.lower() in ("none", "null"):
        return without_objective(recipe)
    if override.value != MLRConfig.kind:
        ending = _did_you_mean(override.value, [MLRConfig.kind])
        raise ValueError(f"{override.text}: expected none or {MLRConfig.kind}{ending}")
    if origin.objective is None:
        raise ValueError(
            f"{override.text}: {recipe.name} was loaded as the Baseline, so there is no objective to return to. "
            "Load it with method mlr."
        )
    return with_objective_of(recipe, origin)


def _set(tree: dict[str, Any], override: _Override) -> None:
    """Put the value in its place. A place that does not exist is made: whoever reads the tree will complain of it."""
    *groups, name = override.path
    node = tree
    for depth, group in enumerate(groups, start=1):
        node = node.setdefault(group, {})
        if not isinstance(node, dict):
            place, within = ".".join(groups[:depth]), ".".join(override.path[depth:])
            advice = " Add objective=mlr for MLR." if place == "objective" else ""
            raise ValueError(f"{override.text}: {place} is {as_override(node)}, so there is no {within} in it.{advice}")
    value = _parse(override.value, _locate(override.path, tree).type)
    _merge(node, name, value)


def _merge(node: dict[str, Any], name: str, value: Any) -> None:
    """A JSON object changes what it names and leaves the rest of its group as it is."""
    if isinstance(value, dict) and isinstance(node.get(name), dict):
        for inner, inner_value in value.items():
            _merge(node[name], inner, inner_value)
    else:
        node[name] = value


def _parse(text: str, expected: Any) -> Any:
    """JSON if it is, else a list with commas, none, true or false, a number, and at last a word; text where text is expected."""
    if expected is str or (get_origin(expected) is Literal and text in get_args(expected)):
        return text  # "none" is a word here, as in objective.projection=none
    if expected == str | None and text.lower() != "none":
        return text  # a path may have commas, or be a number
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
        value = json.loads(text, parse_constant=str)  # NaN and Infinity stay words: no field takes them
    except json.JSONDecodeError:
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
    """The problem, after the overrides it may come from."""
    path = problem.path
    near = [o for o in overrides if o.path[: len(path)] == path or path[: len(o.path)] == o.path] or list(overrides)
    named = [override for override in near if override.path[-1] in problem.message] or near
    return f"{' '.join(override.text for override in named)}: {problem.message}"


# ── The border: pydantic reads, and what it says is put into our words ────────────────────────────────────────────────


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
    tree = json.loads(text)
    return None, [_explain(detail, tree) for detail in details]


def _explain(detail: Any, tree: Any) -> _Problem:
    place = _locate(detail["loc"], tree)
    path, name, seen = place.path, ".".join(place.path), place.value
    if detail["type"] == "unexpected_keyword_argument":
        group = _locate(path[:-1], tree)
        names = _names(_group(group.type, group.value))
        all_names = f"; {'.'.join(group.path) or 'a recipe'} has {', '.join(names)}."
        elsewhere = [leaf for leaf, _ in _leaves("", tree) if leaf.endswith(f".{path[-1]}") and leaf != name]
        if len(elsewhere) == 1:  # the right name in the wrong group
            return _Problem(path, f"{name} is not a field; did you mean {elsewhere[0]}?")
        return _Problem(path, f"{name} is not a field{_did_you_mean(path[-1], names, otherwise=all_names)}")
    if detail["type"] == "value_error":
        return _Problem(path, f"{name}: {detail['ctx']['error']}" if path else str(detail["ctx"]["error"]))
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kinds = [option.kind for option in get_args(place.type)]
        path, name, seen = (*path, "kind"), f"{name}.kind", seen.get("kind")
        expected, ending = _choices(kinds), _did_you_mean(str(seen), kinds)
    else:
        expected = _described(place.type)
        ending = _did_you_mean(str(seen), get_args(place.type)) if get_origin(place.type) is Literal else "."
    missing = detail["type"] in ("missing", "union_tag_not_found") and seen is None
    return _Problem(
        path, f"{name or 'A recipe'}: expected {expected}, got {'nothing' if missing else json.dumps(seen)}{ending}"
    )


class _Place(NamedTuple):
    path: tuple[str, ...]
    type: Any  # what belongs there; None if nothing does
    value: Any  # what is there


def _locate(steps: Iterable[str | int], tree: Any) -> _Place:
    """Follow pydantic's steps, or an override's, from the root: without the tags of unions and the places within a list."""
    place = _Place((), Recipe, tree)
    for step in steps:
        group = _group(place.type, place.value)
        if isinstance(step, int):
            break
        known = get_type_hints(group) if group else {}
        value = place.value.get(step) if isinstance(place.value, dict) else None
        if step in known or value is not None or not (group and place.value.get("kind") == step):
            place = _Place((*place.path, step), known.get(step), value)
    return place


def _group(expected: Any, value: Any) -> Any:
    """The dataclass that a value is to become, by its kind if there are several; None if it is no group."""
    options = [option for option in _options(expected) if is_dataclass(option)]
    kind = value.get("kind") if isinstance(value, dict) else None
    same = [option for option in options if kind in get_args(get_type_hints(option).get("kind"))]
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
        return _choices([as_override(choice) for choice in get_args(expected)])
    if get_origin(expected) is tuple:
        items = get_args(expected)
        return "whole numbers, such as 2,1,1" if items[-1] is ... else f"{len(items)} whole numbers, such as 8,10,10"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "none"}
    return words.get(expected, str(expected))


def _choices(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _names(group: Any) -> list[str]:
    return [field.name for field in fields(group)]


def _did_you_mean(name: str, names: Iterable[object], otherwise: str = ".") -> str:
    """The end of a sentence."""
    likely = difflib.get_close_matches(name, [str(other) for other in names], n=1)
    return f"; did you mean {likely[0]}?" if likely else otherwise
