"""The source of every value of a recipe, and sources that disagree. The table is `data/values.csv`."""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from maskrl.recipes import atari, dmcontrol, own, toy
from maskrl.recipes.methods import METHODS
from maskrl.recipes.published import rows_of
from maskrl.recipes.schema import Recipe, as_override, is_unused, leaves


class Source(NamedTuple):
    where: str
    conflict: str | None = None  # sources that disagree, each with its value


class Explanation(NamedTuple):
    """One line of `maskrl recipes show --why`."""

    path: str
    value: Any
    source: str
    conflict: str | None


@cache
def sources_of(kind: str) -> dict[str, Source]:
    """Path → source, for "dmcontrol", for "atari" (only differences), or for the kind of an objective or agent."""
    table = [row for row in rows_of("values") if row["of"] == kind]
    return {row["path"]: Source(row["source"], row["disagrees"] or None) for row in table}


# Values that the paper sets by task: for other tasks there is no source.
BY_TASK = (
    "env.action_repeat",
    "agent.learning_rate",
    "agent.auxiliary.learning_rate",
    "objective.mask.cube",
    "objective.momentum",
)


def _sources(recipe: Recipe, on_atari: bool) -> dict[str, Source]:
    """The sources of all paths: the suite's, except for objectives and agents that are not the paper's."""
    known = sources_of("dmcontrol") | (sources_of("atari") if on_atari else {})

    def own(kind: str) -> dict[str, Source]:
        return sources_of(kind) | (sources_of(f"{kind}/atari") if on_atari else {})

    parts = [] if recipe.objective is None else recipe.objective.name.split("+")
    if len(parts) == 2:
        both = {
            f"objective.{name}": Source("ours: two objectives at once") for name in ("kind", "weight", "every", "when")
        }
        for place, kind in zip(("first", "second"), parts, strict=True):
            of_part = {path: source for path, source in known.items() if path.startswith("objective.")} | own(kind)
            both |= {path.replace("objective.", f"objective.{place}."): source for path, source in of_part.items()}
        return known | both | own(recipe.agent.kind)
    for part, kind in (("objective.", "".join(parts)), ("agent.", recipe.agent.kind)):
        if found := own(kind):
            known = {path: source for path, source in known.items() if not path.startswith(part)} | found
    return known


def explain(recipe: Recipe) -> list[Explanation]:
    """Every value of a recipe with its source: the paper, its code, the profile, or an override."""
    suite, _, task = recipe.name.partition("/")
    objective = None if recipe.objective is None else recipe.objective.name
    # Toys and users' environments are compared with a task of the paper for the same agent.
    like = {"toy/reach": "dmcontrol/finger-spin", "toy/catch": "atari/alien"}.get(recipe.name, recipe.name)
    is_toy, is_own = suite == "toy", suite == "gym"
    like = own.LIKE[own.seen(recipe).kind] if is_own else like
    on_atari = like.startswith("atari/")
    sources = _sources(recipe, on_atari)
    if is_own:
        sources |= sources_of("gym") | sources_of(f"gym {own.seen(recipe).kind}")
    of_suite = atari if on_atari else dmcontrol
    # A user's own recipe has no named one to compare with, so its values are overrides of the suite's.
    known = [*of_suite.objectives(like.partition("/")[2], "paper"), None]
    pair = (
        recipe.preset if recipe.preset in of_suite.AGENTS else None,
        objective if objective is None or {*objective.split("+")} <= {*known} else None,
    )
    paper = leaves(of_suite.recipe(like.partition("/")[2], "paper", *pair))
    if is_own:
        usual = leaves(own.recipe(own.seen(recipe), recipe.profile, *pair))
    else:
        usual = leaves((toy if is_toy else of_suite).recipe(task, recipe.profile, *pair))
    plain = leaves(of_suite.recipe(like.partition("/")[2], "paper", None, pair[1]))
    preset = {line.partition("=")[0] for line in of_suite.AGENTS.get(recipe.preset or "", ())}
    presets = {pair.agent: method.source for method in reversed(METHODS.values()) for pair in method.pairs.values()}
    preset_source = presets.get(recipe.preset, "ours")

    def explanation(path: str, value: Any) -> Explanation:
        source, conflict = sources.get(path, Source(f"ours: the paper has no {path}"))
        ours = None
        if path not in usual or value != usual[path]:
            ours = f"override: the recipe has {as_override(usual.get(path))}"
        elif is_unused(recipe, path):
            ours = "not used: there is no objective"
        elif is_own and (path in sources_of("gym") or path in sources_of(f"gym {recipe.agent.kind}")):
            pass  # the table says why
        elif is_toy and value != paper.get(path):
            ours = "toy suite: ours, small on purpose"
        elif value != paper.get(path):
            ours = f"lite profile: scaled to a CPU; the paper profile has {as_override(paper.get(path))}"
        elif path in preset or (
            path.startswith("env.") and value != plain.get(path)
        ):  # some agents have their own camera
            ours = f"{recipe.preset}: {preset_source}"
        elif pair[0] is not None and path.startswith("objective.") and value != plain.get(path):
            ours = f"{recipe.preset}: as the agent's own"
        elif path in BY_TASK and task in dmcontrol.SISTERS:
            ours = f"ours: the paper has scores of {task} but no settings; as for {dmcontrol.SISTERS[task]}"
        elif any(line.startswith(f"{path}=") for line in dmcontrol.OURS.get(task, ())):
            ours = f"ours: the paper does not have {task}; chosen by runs (docs/profiles.md)"
        elif path in BY_TASK and not is_own and not is_toy and not on_atari and task not in dmcontrol.PAPER_TASKS:
            ours = f"ours: the paper does not have {task}; its default for tasks"
        return Explanation(path, value, ours or source, None if ours else conflict)

    return [_apart(path, value, sources) or explanation(path, value) for path, value in _values(recipe)]


def _apart(path: str, value: Any, sources: dict[str, Source]) -> Explanation | None:
    """The explanation of a missing objective, and of arguments of a user's environment, whatever their names."""
    if path == "objective" and value is None:
        return Explanation(path, value, "paper, section 4: the Baseline is the agent without MLR", None)
    return Explanation(path, value, *sources["env.kwargs"]) if path.startswith("env.kwargs") else None


def _values(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Every value by its path. Arguments of an environment are one value if there are none."""
    for path, value in leaves(recipe).items():
        if path == "env.wrappers" and not getattr(recipe.env, "kwargs", None):
            yield "env.kwargs", {}
        yield path, value
