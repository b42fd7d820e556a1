"""Methods and their halves: which agent with which objective, and what a pair is called."""

import re
from collections.abc import Iterable
from typing import Any

import pytest
import torch

import own_env
from maskrl.agents.base import Spaces
from maskrl.objectives.playvirtual import Ramp
from maskrl.recipes import METHODS, atari, find, names, pair_on, resolve, toy
from maskrl.recipes.atari import AGENTS
from maskrl.recipes.dmcontrol import AGENTS as CONTROL
from maskrl.recipes.schema import Recipe, leaves, with_objective
from maskrl.runs.directory import Run
from maskrl.runs.loop import train

WALKER, PONG = "dmcontrol/walker-walk", "atari/pong"


EVERYWHERE = (WALKER, PONG, "toy/reach", "toy/catch")


def choosing() -> Any:
    return own_env.make_env(choices=3)


@pytest.mark.parametrize("profile", ["paper", "lite"])
@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_found_by_its_name_and_by_its_halves(method: str, profile):
    for name in EVERYWHERE:
        pair = pair_on(name, method)
        if pair is None:
            continue
        by_name, own = find(name, profile, method), find(name, profile).agent.kind
        assert by_name == find(name, profile, agent=pair.agent or own, objective=pair.objective or "none")
        assert by_name.method == method
        assert by_name.preset == pair.agent
        assert (by_name.objective is None) == (pair.objective is None)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_can_be_had_on_its_suites_alone(method: str):
    for name in EVERYWHERE:
        if pair_on(name, method) is not None:
            assert find(name, "lite", method).method == method
        else:
            with pytest.raises(ValueError, match=f"method '{method}' .*{name}.* Choose one of mlr, baseline"):
                find(name, "lite", method)
    for suite, name in {"dmcontrol": WALKER, "atari": PONG}.items():
        assert (pair_on(name, method) is None) == (suite not in METHODS[method].suites)


def test_the_toys_have_the_systems_of_their_suites_but_dopamines():
    on_reach, on_catch = ([m for m in METHODS if pair_on(name, m)] for name in ("toy/reach", "toy/catch"))
    left_out = {"drqv2-100k"}  # the toy's DrQ-v2 is made for little data itself
    assert {*on_reach} == {m for m, known in METHODS.items() if "dmcontrol" in known.pairs} - left_out
    assert {*on_catch} == {"mlr", "baseline", "curl", "spr", "spr_dropout", "playvirtual"}


def test_every_method_has_a_source_and_suites_that_exist():
    suites = {"gym", *(name.partition("/")[0] for name in names())}
    assert all(method.source and {*method.suites} <= suites for method in METHODS.values())
    for suite in suites - {"toy"}:
        pairs = [method.pairs[suite] for method in METHODS.values() if suite in method.pairs]
        assert len({*pairs}) == len(pairs)  # each pair has one name


@pytest.mark.parametrize("objective", ["mlr", "curl", "autoencoder", "spr", "playvirtual", "mooss"])
@pytest.mark.parametrize("agent", CONTROL)
@pytest.mark.parametrize("profile", ["paper", "lite"])
def test_any_objective_goes_with_any_agent_that_can_serve_it(agent: str, objective: str, profile):
    if agent.startswith("drqv2") and objective == "curl":  # it has no slow encoder for targets
        with pytest.raises(ValueError, match=r"needs target encoder, which agent drqv2 .*objective\.momentum=0\.95"):
            find(WALKER, profile, agent=agent, objective=objective)
        return
    recipe = find(WALKER, profile, agent=agent, objective=objective)
    assert (recipe.preset, recipe.objective.kind) == (None if agent == "sac" else agent, objective)
    crop = getattr(recipe.objective, "augment", recipe.agent.augment).crop
    assert crop == recipe.agent.augment.crop  # one encoder sees both


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


@pytest.mark.parametrize("agent", ["der", "otr", "drq", "drq_eps"])
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
        (PONG, {"agent": "none"}, f"agent 'none' is not known. There are {', '.join(AGENTS)}."),
        (PONG, {"objective": "mrl"}, "objective 'mrl' is not known: did you mean mlr?"),
        (PONG, {"objective": "non"}, "objective 'non' is not known: did you mean none?"),
        (PONG, {"agent": "der", "objective": "curll"}, "objective 'curll' is not known"),
        ("toy/reach", {"agent": "rainbow"}, "toy/reach is for agent sac"),
        ("toy/catch", {"agent": "sac", "objective": "none"}, "toy/catch is for agent rainbow"),
    ],
)
def test_a_half_that_is_not_known_is_refused_with_the_nearest(name: str, halves: dict[str, str], message: str):
    for look_up in (find, resolve):
        with pytest.raises(ValueError, match=re.escape(message)):
            look_up(name, profile="lite", **halves)


@pytest.mark.parametrize("objective", ["autoencoder", "mooss"])
@pytest.mark.parametrize("name", [PONG, "toy/catch"])
@pytest.mark.parametrize(("beside", "none"), [("", "none, "), ("mlr+", "")])
def test_an_objective_of_another_suite_is_refused_with_the_suite_that_has_it(
    name: str, objective: str, beside: str, none: str
):
    message = (
        f"objective '{objective}' is not for {name}: it is for dmcontrol. Choose one of {none}mlr, curl, spr, "
        "playvirtual, or a recipe that has it, such as dmcontrol/finger-spin or toy/reach."
    )
    for look_up in (find, resolve):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            look_up(name, profile="lite", objective=f"{beside}{objective}")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        resolve(name, [f"objective={beside}{objective}"], profile="lite")
    for named in ("dmcontrol/finger-spin", "toy/reach"):
        assert find(named, "lite", objective=objective).objective.kind == objective


@pytest.mark.parametrize("name", [PONG, "toy/catch", choosing], ids=["Atari", "toy", "own"])
def test_playvirtual_of_dmcontrol_is_refused_where_actions_are_discrete(name: Any):
    """On Atari it is another method, with another agent, of the same name."""
    told = (
        "agent 'playvirtual_sac' is not for atari/pong: it is for dmcontrol. Choose one of rainbow, "
        if name == PONG
        else "is for agent rainbow, because it takes discrete actions: agent 'playvirtual_sac' does not fit."
    )
    for objective in ("playvirtual", "none"):
        with pytest.raises(ValueError, match=told):
            find(name, "lite", agent="playvirtual_sac", objective=objective)
    with pytest.raises(
        ValueError, match=r"^SAC needs continuous actions; .* takes discrete ones. Use agent kind rainbow.$"
    ):
        find(WALKER, "lite", "playvirtual").agent.build(
            Spaces((9, 48, 48), 6, discrete=True), None, torch.device("cpu")
        )


@pytest.mark.parametrize(
    "override", ["objective=spr", "objective=mlr+spr", "objective=none", 'objective={"weight": 2}']
)
def test_other_suites_are_asked_only_for_an_objective_that_is_not_here(override: str, monkeypatch: pytest.MonkeyPatch):
    def build(*_: object):
        raise AssertionError("the objectives of another suite are built")

    monkeypatch.setattr(atari, "objectives", build)
    assert resolve("toy/reach", [override]).name == "toy/reach"


@pytest.mark.parametrize(
    ("name", "agent", "suite", "fitting", "elsewhere"),
    [
        (WALKER, "der", "atari", CONTROL, "atari/alien"),
        (WALKER, "rainbow", "atari", CONTROL, "atari/alien or toy/catch"),
        (PONG, "sac", "dmcontrol", AGENTS, "dmcontrol/finger-spin or toy/reach"),
        ("toy/reach", "der", "atari", toy.ON_REACH, "atari/alien"),
        ("toy/reach", "drqv2-100k", "dmcontrol", toy.ON_REACH, "dmcontrol/finger-spin"),
    ],
)
def test_an_agent_of_another_suite_is_refused_with_its_suite_and_the_agents_that_fit(
    name: str, agent: str, suite: str, fitting: Iterable[str], elsewhere: str
):
    message = (
        f"agent '{agent}' is not for {name}: it is for {suite}. Choose one of {', '.join(fitting)}, or a recipe that "
        f"has it, such as {elsewhere}."
    )
    for look_up in (find, resolve):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            look_up(name, profile="lite", agent=agent)
    for named in elsewhere.split(" or "):
        assert find(named, "lite", agent=agent).preset in (agent, None)
    for named in fitting:
        assert find(name, "lite", agent=named)


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


# ── The authors' values ───────────────────────────────────────────────────────────────────────────────────────────────

# Method, task: paths and values of the fact sheets. Tasks are chosen for values that MLR's recipe has by task.
CHEETAH, CARTPOLE = "dmcontrol/cheetah-run", "dmcontrol/cartpole-swingup"
PLAYVIRTUAL = {
    "agent.encoder.filters": 64, "agent.encoder.linear_init": "orthogonal", "agent.auxiliary.clips": 128,
    "agent.auxiliary.schedule": "constant", "objective.steps": 6, "objective.hidden": 512, "objective.head_width": 100,
    "objective.momentum": 0.95, "objective.momentum_init": "independent",
}  # fmt: skip
AUTOENCODER = {
    "env.size": 84, "replay.capacity": 1_000_000, "agent.learning_rate": 1e-3, "agent.batch_size": 128,
    "agent.burst": 1000, "agent.warmup_decisions": 1000, "agent.augment.crop": None, "agent.augment.shift": None,
    "agent.encoder.filters": 32, "agent.encoder.squash": True, "agent.encoder_momentum": 0.95,
    "agent.temperature_learning_rate": 1e-4, "agent.temperature_beta": 0.5,
}  # fmt: skip
AUTHORS: list[tuple[str, str, dict[str, object]]] = [
    ("sac_pixel", CHEETAH, AUTOENCODER),
    ("sac_ae", CHEETAH, AUTOENCODER | {
        "agent.auxiliary.learning_rate": 1e-3, "agent.auxiliary.schedule": "constant",
        "agent.auxiliary.max_grad_norm": None, "objective.latent_penalty": 1e-6, "objective.weight_decay": 1e-7,
    }),
    ("drq", CHEETAH, {
        "env.size": 84, "agent.learning_rate": 1e-3, "agent.batch_size": 512, "agent.views": 2,
        "agent.warmup_decisions": 1000, "agent.augment.crop": None, "agent.augment.shift": 4,
        "agent.encoder.filters": 32, "agent.encoder.squash": True, "agent.encoder_momentum": 0.99,
        "agent.encoder.convolution_init": "orthogonal", "env.camera": 0,
        "agent.temperature_learning_rate": 1e-3, "agent.temperature_beta": 0.9,
    }),
    ("drq", "dmcontrol/quadruped-walk", {"env.camera": 2}),
    ("drqv2", "dmcontrol/quadruped-run", {"env.camera": 2}),
    ("mlr", "dmcontrol/quadruped-walk", {"env.camera": 0}),
    ("spr", WALKER, PLAYVIRTUAL | {
        "objective.weight": 6, "agent.auxiliary.learning_rate": 5e-4, "agent.auxiliary.max_grad_norm": 10,
    }),
    ("spr_mean", WALKER, PLAYVIRTUAL | {
        "objective.weight": 1, "agent.auxiliary.learning_rate": 1e-3, "agent.auxiliary.max_grad_norm": None,
    }),
    ("playvirtual", WALKER, PLAYVIRTUAL | {
        "objective.weight": 6, "objective.cycle_steps": 6, "objective.cycles": 10, "objective.ramp_length": 50_000,
        "objective.ramp_start": 2000, "objective.ramp_stride": 2, "agent.auxiliary.max_grad_norm": 10,
    }),
    ("mooss", WALKER, {"objective.momentum": 0.9, "objective.mask.cube": (8, 7, 7), "objective.weight": 0.1}),
    ("mooss", CARTPOLE, {
        "agent.encoder.latent_dim": 64, "agent.encoder.filters": 64, "objective.mask.cube": (4, 7, 7),
        "objective.momentum": 0.95, "objective.heads": 4, "objective.decoder_depth": 2, "objective.head_width": 100,
        "objective.levels": 6, "objective.temperature": 0.07, "objective.temperature_step": 0.075,
        "agent.auxiliary.schedule": "unit_peak", "agent.auxiliary.max_grad_norm": 10,
    }),
    ("spr", PONG, {
        "agent.noisy_std": 0.5, "objective.steps": 5, "objective.weight": 5, "objective.transition": "map",
        "objective.projection": "q", "objective.prediction": "linear", "objective.momentum": 0,
    }),
    ("spr_dropout", PONG, {
        "agent.encoder.dropout": 0.5, "agent.augment.shift": None, "agent.augment.intensity": 0,
        "objective.momentum": 0.99, "objective.augment.shift": None, "objective.augment.intensity": 0,
    }),
    ("playvirtual", PONG, {
        "agent.noisy_std": 0.1, "objective.steps": 9, "objective.weight": 9, "objective.cycle_steps": 9,
        "objective.cycles": 2, "objective.ramp_length": 50_000, "objective.ramp_start": 2000,
        "objective.ramp_stride": 0.5,
    }),
]  # fmt: skip


@pytest.mark.parametrize(("method", "name", "expected"), AUTHORS, ids=[f"{m} {n}" for m, n, _ in AUTHORS])
def test_a_recipe_has_its_authors_values(method: str, name: str, expected: dict[str, object]):
    found = leaves(find(name, "paper", method))
    assert {path: found[path] for path in expected} == expected


@pytest.mark.parametrize(
    ("name", "profile", "halves", "start", "stride"),
    [
        (CARTPOLE, "paper", {"method": "playvirtual"}, 8000, 8),  # frames
        (CARTPOLE, "lite", {"method": "playvirtual"}, 500 * 8, 8 * 2),  # at every second update
        (
            CARTPOLE,
            "paper",
            {"agent": "drqv2", "objective": "playvirtual"},
            2000 * 2,
            2 * 2,
        ),  # half an update a decision
        (CARTPOLE, "paper", {"objective": "playvirtual+mlr"}, 8000, 8),
        (PONG, "paper", {"method": "playvirtual"}, 2000, 0.5),  # decisions
        (PONG, "lite", {"method": "playvirtual"}, 1000, 1),  # Rainbow's updates, whatever its objective's
        (PONG, "paper", {"agent": "der", "objective": "playvirtual"}, 1600, 1),
        (PONG, "paper", {"objective": "mlr+playvirtual"}, 2000, 0.5),
        ("toy/reach", "lite", {"method": "playvirtual"}, 300, 1),
        ("toy/catch", "lite", {"method": "playvirtual"}, 500, 1),
        (own_env.make_env, "paper", {"method": "playvirtual"}, 1000 * 2, 2),  # its own action repeat, not its model's 4
        (own_env.make_env, "lite", {"method": "playvirtual"}, 500 * 2, 2 * 2),
        (own_env.make_env, "paper", {"agent": "drqv2", "objective": "playvirtual"}, 2000 * 2, 2 * 2),
        (own_env.make_env, "lite", {"objective": "mlr+playvirtual"}, 500 * 2, 2 * 2),
        (choosing, "paper", {"method": "playvirtual"}, 2000, 0.5),
    ],
)
def test_the_ramp_of_cycles_goes_by_the_agents_updates(name: Any, profile, halves, start: float, stride: float):
    assert ramp(find(name, profile, **halves)) == (start, stride)


@pytest.mark.parametrize("name", [CARTPOLE, PONG, "toy/reach", "toy/catch", own_env.make_env, choosing])
def test_the_ramp_of_an_objective_chosen_by_an_override_is_that_of_its_name(name: Any):
    by_override = resolve(name, ["objective=playvirtual"], profile="lite")
    assert ramp(by_override) == ramp(find(name, "lite", objective="playvirtual"))
    assert ramp(resolve(name, ["objective=playvirtual", "objective.ramp_start=7"], profile="lite"))[0] == 7


@pytest.mark.parametrize("name", ["toy/reach", "toy/catch"])
def test_the_ramp_is_at_the_step_of_the_run_whichever_updates_the_agent_counts(name: str, tmp_path, monkeypatch):
    short = [f"{path}=60" for path in ("budget.frames", "evaluation.every", "checkpoint_every")]
    small = ["agent.warmup_decisions=40", "agent.batch_size=4", "evaluation.episodes=1", "objective.every=2"]
    changed = resolve(name, [*short, *small], method="playvirtual")
    recipe, steps = with_objective(changed, changed.objective), list[float]()
    monkeypatch.setattr(Ramp, "__call__", lambda self, updates: steps.append(self.start + self.stride * updates) or 1.0)
    train(recipe, Run.create(tmp_path / "run", recipe))
    assert steps == [*range(40, 60, 2)]  # an update per decision, and the objective's at every second


def ramp(recipe: Recipe) -> tuple[float, float]:
    (start,) = (value for path, value in leaves(recipe).items() if path.endswith("ramp_start"))
    (stride,) = (value for path, value in leaves(recipe).items() if path.endswith("ramp_stride"))
    return start, stride


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


@pytest.mark.parametrize(
    ("name", "method", "override", "message"),
    [
        ("toy/reach", "curl", "agent.batch_size=1", "and needs at least 2"),
        ("toy/reach", "mooss", "agent.auxiliary.clips=1", "and needs at least 2"),
        ("toy/catch", "curl", "agent.clips=1", "and needs at least 2"),
        (WALKER, "spr", "objective.transition=map", r"needs latent maps, .*agent sac.*: objective\.transition=vector"),
        (WALKER, "playvirtual", "objective.projection=q", r"needs q projection, .*: objective\.projection=mlp"),
        (WALKER, "playvirtual", "objective.cycles=0", "must be positive"),
        (WALKER, "mooss", "objective.levels=17", "a clip of 16 steps has no states that far apart"),
        (WALKER, "spr", "objective.augment.crop=80", "must be the same"),
        (WALKER, "drq", "agent.views=0", "must be positive"),
        (WALKER, "sac_ae", "agent.burst=-1", "must be at least 0"),
        (WALKER, "playvirtual", "capture=true", "cannot be recorded. Use capture=false"),
        (WALKER, "mooss", "capture=true", "cannot be recorded"),
        (PONG, "curl", "objective.momentum=1", r"must be in \[0, 1\)"),
        (PONG, "spr", "agent.encoder.dropout=1", r"must lie in \[0, 1\)"),
        (PONG, "baseline", "agent.stratified=yes", "true or false"),
        (PONG, "drq", "agent.stratified=true", "priority_exponent is None"),
    ],
)
def test_a_value_that_would_fail_at_the_first_update_is_refused(name: str, method: str, override: str, message: str):
    with pytest.raises(ValueError, match=f"^{override}: .*{message}"):
        resolve(name, [override], profile="paper", method=method)
