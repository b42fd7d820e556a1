import json
from dataclasses import replace

import pytest

from builders import tiny_host
from maskrl.envs import DMControl
from maskrl.recipes import find, names, resolve
from maskrl.recipes.overrides import from_json, with_overrides
from maskrl.recipes.schema import (
    Budget,
    Recipe,
    UnknownObjective,
    as_json,
    difference,
    digest,
    leaves,
    with_objective,
)

CARTPOLE = find("dmcontrol/cartpole-swingup", "paper")
BASELINE = find("dmcontrol/cartpole-swingup", "paper", "baseline")
PONG = find("atari/pong", "paper")
ALL = [
    find(name, profile, method)
    for name in names()
    if not name.startswith("atari/") or name == PONG.name
    for profile in ("paper", "lite")
    for method in ("mlr", "baseline")
]


def value_of(path: str, recipe: Recipe) -> object:
    return leaves(recipe)[path]


def edited(**changes: object) -> str:
    """The recipe's JSON with some values, by dotted path with two underscores for the dots, replaced or removed (...)."""
    tree = json.loads(as_json(CARTPOLE))
    for path, value in changes.items():
        *groups, name = path.split("__")
        node = tree
        for group in groups:
            node = node[group]
        if value is ...:
            del node[name]
        else:
            node[name] = value
    return json.dumps(tree)


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("recipe", ALL, ids=lambda r: f"{r.name}-{r.profile}-{'mlr' if r.objective else 'baseline'}")
def test_a_recipe_survives_its_json(recipe):
    again = from_json(as_json(recipe))
    assert again == recipe
    assert as_json(again) == as_json(recipe)
    assert digest(again) == digest(recipe)


def test_json_is_indented_and_in_the_order_of_the_fields():
    assert as_json(CARTPOLE).splitlines()[:3] == [
        "{",
        '  "name": "dmcontrol/cartpole-swingup",',
        '  "profile": "paper",',
    ]


def test_the_digest_is_eight_characters_that_follow_every_value():
    seeds = {digest(replace(CARTPOLE, seed=seed)) for seed in range(20)}
    assert len(seeds) == 20
    assert all(len(name) == 8 and int(name, 16) >= 0 for name in seeds)


def test_a_value_that_json_lacks_is_the_default():
    assert from_json(edited(seed=..., objective__mask__ratio=...)) == CARTPOLE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective__mask__rato": 0.3}, "objective.mask.rato is not a field; did you mean ratio?"),
        ({"sed": 3}, "sed is not a field; did you mean seed?"),
        ({"env__camra": 3}, "env.camra is not a field; did you mean camera?"),
        ({"evaluation__xyz": 3}, "evaluation.xyz is not a field; evaluation has every, episodes, "),
        ({"seed": "2"}, 'seed: expected a whole number, got "2".'),
        ({"seed": True}, "seed: expected a whole number, got true."),
        ({"budget": ...}, "budget: expected a group of frames, decisions, got nothing."),
        ({"agent__learning_rate": [1]}, "agent.learning_rate: expected a number, got [1]."),
        ({"agent__learning_rate": float("nan")}, "agent.learning_rate: expected a number, got NaN."),
        ({"agent__micro_batch": 1.5}, "agent.micro_batch: expected a whole number or none, got 1.5."),
        ({"objective__action_tokens": 1}, "objective.action_tokens: expected true or false, got 1."),
        ({"env__task": 1}, "env.task: expected a text, got 1."),
        (
            {"objective__mask__cube": [8, 10]},
            "objective.mask.cube: expected 3 whole numbers, such as 8,10,10, got [8, 10].",
        ),
        ({"objective__mask__cube": [8, 10, "a"]}, 'such as 8,10,10, got [8, 10, "a"].'),
        ({"agent__encoder__strides": 2}, "agent.encoder.strides: expected whole numbers, such as 2,1,1, got 2."),
        ({"replay__storage": "disc"}, 'replay.storage: expected disk or memory, got "disc"; did you mean disk?'),
        ({"objective__distance": "l1"}, 'objective.distance: expected 2-2cos, 1-cos or mse, got "l1".'),
        (
            {"env__kind": "dmcontrl"},
            'env.kind: expected dmcontrol, atari, toy_control, toy_arcade or gym, got "dmcontrl"; did you mean dmcontrol?',
        ),
        ({"env__kind": ...}, "env.kind: expected dmcontrol, atari, toy_control, toy_arcade or gym, got nothing."),
        ({"agent__kind": "dqn"}, 'agent.kind: expected sac, rainbow or drqv2, got "dqn".'),
        ({"evaluation": 3}, "evaluation: expected a group of every, episodes, epsilon, side_by_side, got 3."),
        ({"objective__mask__ratio": 1.5}, "objective.mask: ratio=1.5 must lie strictly between"),
        ({"env__size": 0}, "env: size=0 of DMControl must be at least 1."),
        ({"evaluation__episodes": 0}, "evaluation: episodes=0 of Evaluation must be at least 1."),
    ],
)
def test_json_that_is_not_a_recipe_is_refused_with_the_path(changes, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        from_json(edited(**changes))
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_an_objective_of_somebodys_own_code_is_read_but_not_built():
    recipe = from_json(edited(objective__kind="mine"))
    assert isinstance(recipe.objective, UnknownObjective)
    assert (recipe.method, recipe.objective.needs.clip_length) == ("sac+mine", CARTPOLE.objective.clip_length)
    assert replace(recipe, objective=CARTPOLE.objective) == CARTPOLE
    with pytest.raises(ValueError, match=r"^objective mine .*Call maskrl\.train\(recipe\) from the program"):
        recipe.objective.build(tiny_host())


def test_all_that_is_wrong_is_said_at_once_and_in_our_words():
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        from_json(edited(seed="a", objective__mask__rato=1, env__camra=1))
    assert len(str(refused.value).splitlines()) == 3
    assert not any(word in str(refused.value) for word in ("pydantic", "http", "validation", "Input should"))


@pytest.mark.parametrize(
    ("text", "message"), [("{", "This is not JSON"), ("[1]", "A recipe: expected a group of name")]
)
def test_text_that_is_no_recipe_at_all_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        from_json(text)


# ── Overrides ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("objective.mask.ratio=0.3", 0.3),
        ("seed=2", 2),
        ("budget.frames=1e5", 100_000),
        ("budget.frames=500_000", 500_000),
        ("objective.weight=2", 2.0),
        ("agent.learning_rate=2e-4", 2e-4),
        ("agent.encoder.strides=2,2,1,1", (2, 2, 1, 1)),
        ("agent.encoder.strides=[2, 2]", (2, 2)),
        ("agent.encoder.strides=2", (2,)),
        ("agent.encoder.strides=2,", (2,)),
        ("objective.mask.cube=8,10,10", (8, 10, 10)),
        ("objective.mask.cube= 8, 10, 10 ", (8, 10, 10)),
        ("agent.micro_batch=64", 64),
        ("agent.micro_batch=none", None),
        ("agent.micro_batch=null", None),
        ("agent.micro_batch=None", None),
        ("objective.action_tokens=false", False),
        ("objective.momentum_decoder=True", True),
        ("objective.projection=none", "none"),  # a word, because the field has it
        ("objective.distance=2-2cos", "2-2cos"),
        ("env.task=walker-run", "walker-run"),
        ("name=1e5", "1e5"),
        ("device=cpu", "cpu"),
    ],
)
def test_an_override_sets_one_value(override, value):
    path = override.partition("=")[0]
    changed = with_overrides(CARTPOLE, [override])
    assert value_of(path, changed) == value
    assert type(value_of(path, changed)) is type(value)
    assert {p for p, v in leaves(changed).items() if v != value_of(p, CARTPOLE)} <= {path}


def test_overrides_are_checked_together_and_the_last_one_counts():
    changed = with_overrides(CARTPOLE, ["objective.mask.cube=6,10,10", "objective.clip_length=12", "seed=2", "seed=3"])
    assert changed.objective.clip_length == 12  # neither 6 steps of 16 nor 4 of 12 were ever seen
    assert changed.seed == 3
    assert CARTPOLE.seed == 1


def test_a_json_object_changes_only_what_it_names():
    changed = with_overrides(CARTPOLE, ['objective.mask={"ratio": 0.3}', 'objective={"weight": 2}'])
    assert difference(CARTPOLE, changed) == ["objective.weight: 1.0 -> 2.0", "objective.mask.ratio: 0.5 -> 0.3"]


def test_no_override_changes_nothing():
    assert with_overrides(CARTPOLE, []) == CARTPOLE


def test_no_objective_is_the_baseline_with_its_initialisation():
    changed = with_overrides(CARTPOLE, ["objective=none"])
    assert changed == BASELINE == with_objective(CARTPOLE, None)
    assert changed.objective is None
    assert changed.agent.encoder.linear_init == "orthogonal"


def test_an_initialisation_that_was_asked_for_stays_whatever_the_order():
    asked = ["agent.encoder.linear_init=truncated_normal", "objective=none"]
    for overrides in (asked, asked[::-1]):
        changed = with_overrides(CARTPOLE, overrides)
        assert changed.objective is None
        assert changed.agent.encoder.linear_init == "truncated_normal"


def test_mlr_comes_back_as_the_task_has_it():
    assert with_overrides(CARTPOLE, ["objective=none", "objective=mlr"]) == CARTPOLE
    assert with_overrides(BASELINE, ["objective=mlr"], objectives={"mlr": CARTPOLE.objective}) == CARTPOLE
    name = CARTPOLE.name
    assert resolve(name, ["objective=mlr"], profile="paper", method="baseline") == CARTPOLE
    changed = resolve(name, ["objective.mask.ratio=0.3", "objective=mlr"], profile="lite", method="baseline")
    assert difference(find(name, "lite"), changed) == ["objective.mask.ratio: 0.5 -> 0.3"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective.mask.rato=0.3", "objective.mask.rato is not a field; did you mean ratio?"),
        ("objectiv.mask.ratio=0.3", "objectiv is not a field; did you mean objective.mask.ratio?"),
        (
            "agent.encoder.control.strides=3",
            "agent.encoder.control is not a field; did you mean agent.encoder.strides?",
        ),  # a kind
        ("objective.msk.ratio=0.3", "objective.msk is not a field; did you mean objective.mask.ratio?"),
        ("seed.x=3", "seed is 1, so there is no x in it."),
        ("seed=many", 'seed: expected a whole number, got "many".'),
        ("seed=1.5", "seed: expected a whole number, got 1.5."),
        ("seed=none", "seed: expected a whole number, got null."),
        ("seed=", 'seed: expected a whole number, got "".'),
        ("seed=-1", "seed=-1 of Recipe must be at least 0."),
        ("seed=1,2", "seed: expected a whole number, got [1, 2]."),
        ("agent.learning_rate=NaN", 'agent.learning_rate: expected a number, got "NaN".'),
        ("objective.mask.cube=8,10", "objective.mask.cube: expected 3 whole numbers, such as 8,10,10, got [8, 10]."),
        ("objective.mask.strategy=cubes", 'expected cube, spatial, temporal or walk, got "cubes"; did you mean cube?'),
        ("objective.mask.ratio=1", "objective.mask: ratio=1.0 must lie strictly between"),
        ("objective.clip_length=10", "objective: clip_length=10 is not a multiple of the cube's depth 4"),
        ("budget.frames=7", "budget.frames=7 frames must be a positive multiple of env.action_repeat=8"),
        ("agent.augment.crop=48", "objective.augment.crop=84 and agent.augment.crop=48 must be the same"),
        ("env.size=80", "agent.augment.crop=84 is larger than the frame, env.size=80"),
        ("objective.mask.cube=4,101,10", "objective.mask.cube=4,101,10 does not fit into the frame, env.size=100."),
        ("threads=0", "threads=0 of Recipe must be at least 1."),
        ("objective=mlrr", "did you mean mlr?"),
        ("agent=sac", "agent: expected a group of kind, "),
        ("seed", "an override is path=value, such as seed=2."),
        ("=3", "an override is path=value, such as seed=2."),
    ],
)
def test_a_refusal_begins_with_the_override_as_typed(override, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        with_overrides(CARTPOLE, ["device=cpu", override])
    assert str(refused.value).startswith(f"{override}: ")
    assert message in str(refused.value)


def test_a_refusal_names_every_override_that_takes_part():
    with pytest.raises(ValueError, match=r"^env.action_repeat=3 budget.frames=10: budget.frames=10 frames must be"):
        with_overrides(CARTPOLE, ["env.action_repeat=3", "seed=2", "budget.frames=10"])


def test_the_baseline_has_no_objective_to_change_or_to_return_to():
    with pytest.raises(
        ValueError,
        match=r"^objective.mask.ratio=0.3: objective is none, so there is no mask.ratio in it. Add objective=mlr",
    ):
        with_overrides(BASELINE, ["objective.mask.ratio=0.3"], objectives={"mlr": CARTPOLE.objective})
    for override in ("objective.mask.ratio=0.3", "objective=mlr"):  # none is known by name: there is nothing to advise
        with pytest.raises(ValueError, match=f"^{override}: (?!.*objective=)"):
            with_overrides(BASELINE, [override])


# ── The budget ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_budget_in_decisions_is_as_many_frames_as_they_take():
    assert PONG.budget == Budget(decisions=100_000)
    assert PONG.frames == 100_000 * 4
    assert with_overrides(PONG, ["env.action_repeat=2", "budget.decisions=30"]).frames == 30 * 2
    assert CARTPOLE.frames == CARTPOLE.budget.frames == 100_000
    assert replace(CARTPOLE, budget=Budget(decisions=50)).frames == 50 * 8


def test_a_budget_changes_its_unit_when_the_other_is_set_to_none():
    changed = with_overrides(PONG, ["budget.frames=4000", "budget.decisions=none"])
    assert changed.budget == Budget(frames=4000)
    assert changed.frames == 4000
    assert difference(PONG, changed) == ["budget.frames: none -> 4000", "budget.decisions: 100000 -> none"]
    assert with_overrides(changed, ["budget.frames=none", "budget.decisions=100000"]) == PONG


@pytest.mark.parametrize("budget", [Budget(frames=800), Budget(decisions=800)])
def test_a_budget_survives_json_in_its_own_unit(budget):
    recipe = replace(PONG, budget=budget)
    again = from_json(as_json(recipe))
    assert again.budget == budget
    assert again == recipe
    assert json.loads(as_json(recipe))["budget"] == {"frames": budget.frames, "decisions": budget.decisions}


def test_the_same_length_in_another_unit_is_another_recipe():
    one, other = (replace(PONG, budget=budget) for budget in (Budget(frames=800), Budget(decisions=200)))
    assert one.frames == other.frames
    assert digest(one) != digest(other)


@pytest.mark.parametrize("units", [{}, {"frames": 8, "decisions": 2}])
def test_a_budget_has_one_unit(units):
    with pytest.raises(ValueError, match=r"budget.frames=\w+ and budget.decisions=\w+: a budget has one unit"):
        Budget(**units)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "budget.frames=400000",
            "budget.frames=400000 and budget.decisions=100000: a budget has one unit. Set the other",
        ),
        ("budget.decisions=none", "budget.frames=none and budget.decisions=none: a budget has one unit."),
        ("budget.decisions=0", "decisions=0 of Budget must be at least 1."),
        ("budget.decisions=-4", "decisions=-4 of Budget must be at least 1."),
        ("budget.decisions=many", 'budget.decisions: expected a whole number or none, got "many".'),
        ("budget.decision=7", "budget.decision is not a field; did you mean decisions?"),
        ("budget=100000", "budget: expected a group of frames, decisions, got 100000."),
        ("frames=100000", "frames is not a field; did you mean budget.frames?"),
        ("evaluation.every=10", "evaluation.every=10 frames must be a positive multiple of env.action_repeat=4"),
        ("evaluation.epsilon=1.5", "evaluation.epsilon=1.5 must lie in [0, 1]."),
        ("evaluation.side_by_side=0", "side_by_side=0 of Evaluation must be at least 1."),
    ],
)
def test_a_refusal_on_atari_begins_with_the_override_as_typed(override, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        with_overrides(PONG, ["device=cpu", override])
    assert str(refused.value).startswith(f"{override}: ")
    assert message in str(refused.value)


def test_values_of_an_agent_may_have_a_name_of_ones_own():
    recipe = replace(PONG, preset="mine")
    assert recipe.method == "mine+mlr"
    assert with_objective(recipe, None).method == "mine"
    assert from_json(as_json(recipe)) == recipe


def test_a_budget_of_no_frames_is_refused():
    with pytest.raises(ValueError, match=r"budget.frames=0 frames must be a positive multiple of env.action_repeat=8"):
        replace(CARTPOLE, budget=Budget(frames=0))


# ── Leaves and differences ────────────────────────────────────────────────────────────────────────────────────────────


def test_leaves_are_all_values_by_path():
    assert value_of("objective.mask.cube", CARTPOLE) == (4, 10, 10)
    assert value_of("objective", BASELINE) is None
    assert not any(isinstance(value, dict) for value in leaves(CARTPOLE).values())
    assert not any(path.startswith("objective.") for path in leaves(BASELINE))


def test_the_lines_of_a_difference_can_be_typed_as_overrides():
    other = find("dmcontrol/walker-walk", "lite")
    lines = [line.split(": ", 1) for line in difference(CARTPOLE, other)]
    assert with_overrides(CARTPOLE, [f"{path}={values.split(' -> ')[1]}" for path, values in lines]) == other


def test_a_difference_shows_both_values():
    changed = with_overrides(CARTPOLE, ["seed=2", "agent.encoder.strides=2,2", "agent.micro_batch=64"])
    assert difference(CARTPOLE, CARTPOLE) == []
    assert difference(CARTPOLE, changed) == [
        "agent.encoder.strides: 2,1,1,1 -> 2,2",
        "agent.micro_batch: none -> 64",
        "seed: 1 -> 2",
    ]
    assert difference(CARTPOLE, BASELINE) == [
        "agent.encoder.linear_init: truncated_normal -> orthogonal",
        "objective: mlr -> none",
    ]
    assert "env: dmcontrol -> toy_control" in difference(CARTPOLE, find("toy/reach"))


def test_sizes_are_free_where_nothing_depends_on_them():
    without_crop = ["agent.augment.crop=none", "objective.augment.crop=none", "agent.augment.shift=4", "env.size=84"]
    assert with_overrides(CARTPOLE, without_crop).env == DMControl(task="cartpole-swingup", action_repeat=8, size=84)
    with_overrides(CARTPOLE, ["objective.mask.strategy=temporal", "objective.mask.cube=4,101,101"])
