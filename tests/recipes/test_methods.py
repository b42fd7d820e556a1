"""Methods and their halves: which agent with which objective, and what a pair is called."""

import re

import pytest

from maskrl.recipes import METHODS, find, names, resolve
from maskrl.recipes.atari import AGENTS
from maskrl.recipes.schema import with_objective

WALKER, PONG = "dmcontrol/walker-walk", "atari/pong"


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_found_by_its_name_and_by_its_halves(method: str):
    pair = METHODS[method]
    task, own = (PONG, "rainbow") if "atari" in pair.suites else (WALKER, "sac")
    by_name = find(task, "lite", method)
    assert by_name == find(task, "lite", agent=pair.agent or own, objective=pair.objective or "none")
    assert by_name.method == method
    assert by_name.preset == pair.agent
    assert (by_name.objective is None) == (pair.objective is None)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_can_be_had_on_its_suites_alone(method: str):
    for suite, name in {"dmcontrol": WALKER, "atari": PONG, "toy": "toy/reach"}.items():
        if suite in METHODS[method].suites:
            assert find(name, "lite", method).method == method
        else:
            with pytest.raises(ValueError, match=f"method '{method}' .*{name}.* Choose one of mlr, baseline"):
                find(name, "lite", method)


def test_every_method_has_a_source_and_suites_that_exist():
    suites = {"gym", *(name.partition("/")[0] for name in names())}
    assert all(method.source and {*method.suites} <= suites for method in METHODS.values())
    assert len({(method.agent, method.objective) for method in METHODS.values()}) == len(
        METHODS
    )  # each pair has one name


def test_mlr_is_the_default():
    assert find(WALKER, "lite") == find(WALKER, "lite", "mlr")


@pytest.mark.parametrize(
    ("name", "own"), [(WALKER, "sac"), (PONG, "rainbow"), ("toy/reach", "sac"), ("toy/catch", "rainbow")]
)
def test_an_agent_alone_keeps_the_objective_and_an_objective_alone_keeps_the_agent(name: str, own: str):
    assert find(name, "lite", agent=own) == find(name, "lite", "mlr")
    assert find(name, "lite", objective="mlr") == find(name, "lite", "mlr")
    assert find(name, "lite", objective="none") == find(name, "lite", "baseline")
    assert find(name, "lite", agent=own, objective="none") == find(name, "lite", "baseline")


@pytest.mark.parametrize("agent", [name for name in AGENTS if name != "rainbow"])
@pytest.mark.parametrize("profile", ["paper", "lite"])
def test_a_pair_that_was_not_published_is_called_by_both_halves(agent: str, profile):
    pair = find(PONG, profile, agent=agent)
    assert pair.method == f"{agent}+mlr"
    assert pair.objective == find(PONG, profile).objective
    assert pair.agent == find(PONG, profile, agent).agent
    assert pair == with_objective(find(PONG, profile, agent), find(PONG, profile).objective)
    assert pair == resolve(PONG, ["objective=mlr"], profile=profile, method=agent)


def test_the_halves_go_with_overrides():
    halves = resolve(PONG, ["objective.mask.ratio=0.3", "agent.n_step=5"], profile="lite", agent="der", objective="mlr")
    assert (halves.method, halves.objective.mask.ratio, halves.agent.n_step) == ("der+mlr", 0.3, 5)
    assert resolve(PONG, ["objective=none"], profile="lite", agent="der").method == "der"


@pytest.mark.parametrize(
    ("name", "halves", "message"),
    [
        (PONG, {"agent": "derr"}, "agent 'derr' is not known: did you mean der?"),
        (PONG, {"agent": "none"}, "agent 'none' is not known. There are rainbow, der, otr, drq, drq_eps"),
        (PONG, {"objective": "mrl"}, "objective 'mrl' is not known: did you mean mlr?"),
        (PONG, {"objective": "non"}, "objective 'non' is not known: did you mean none?"),
        (PONG, {"agent": "der", "objective": "curll"}, "objective 'curll' is not known"),
        (WALKER, {"agent": "der"}, "agent 'der' is not known. There are sac"),
        ("toy/reach", {"agent": "rainbow"}, "toy/reach is for agent sac"),
        ("toy/catch", {"agent": "sac", "objective": "none"}, "toy/catch is for agent rainbow"),
    ],
)
def test_a_half_that_is_not_known_is_refused_with_the_nearest(name: str, halves: dict[str, str], message: str):
    for look_up in (find, resolve):
        with pytest.raises(ValueError, match=re.escape(message)):
            look_up(name, profile="lite", **halves)


@pytest.mark.parametrize(
    "halves", [{"agent": "der"}, {"objective": "mlr"}, {"objective": "none"}, {"agent": "der", "objective": "mlr"}]
)
def test_a_method_and_a_half_of_one_are_refused_together(halves: dict[str, str]):
    half = next(f"{what} '{name}'" for what, name in halves.items())
    with pytest.raises(ValueError, match=f"method 'der' and {half}.*Use the method alone, or agent and objective"):
        find(PONG, "lite", "der", **halves)


def test_the_name_of_the_agents_values_is_chosen_and_not_overridden():
    with pytest.raises(ValueError, match=r"^preset=der: .*--agent"):
        resolve(PONG, ["preset=der"], profile="lite")


# ── What an objective needs, and what an agent offers ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "when", "places"),
    [(PONG, "after_critic", "joint"), (PONG, "last", "joint"), (WALKER, "joint", "after_critic or last")],
)
def test_an_objective_at_a_place_that_the_agent_does_not_have_is_refused(name: str, when: str, places: str):
    with pytest.raises(
        ValueError, match=f"^objective.when={when}: .*runs objectives {places}. Use one of these, or none"
    ):
        resolve(name, [f"objective.when={when}"], profile="lite")


@pytest.mark.parametrize(
    ("name", "when"), [(PONG, "joint"), (WALKER, "after_critic"), (WALKER, "last"), (WALKER, "none")]
)
def test_an_objective_runs_at_any_place_that_the_agent_has(name: str, when: str):
    recipe = resolve(name, [f"objective.when={when}"], profile="lite")
    assert recipe.objective.when == (None if when == "none" else when)


def test_an_objective_that_needs_what_the_agent_does_not_offer_is_refused():
    with pytest.raises(ValueError, match=r"^objective.projection=q: .*needs q projection, .*agent sac does not"):
        resolve(WALKER, ["objective.projection=q"], profile="lite")
    drawn = resolve(WALKER, ["objective.projection=q", "objective.reconstruct=pixels"], profile="lite")
    assert drawn.objective.needs.q_projection is False  # pixels have no projection
