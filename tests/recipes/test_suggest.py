"""What was meant by a name or a path that does not exist."""

from dataclasses import asdict

import pytest

from maskrl import recipes
from maskrl.recipes.schema import tree_leaves
from maskrl.recipes.suggest import SYNONYMS, choices, nearest

REACH, PONG = "toy/reach", "atari/pong"


@pytest.mark.parametrize(
    ("name", "override", "meant"),
    [
        (REACH, "lr=3", "agent.learning_rate or agent.auxiliary.learning_rate"),
        (PONG, "lr=3", "agent.learning_rate"),
        (REACH, "agent.lr=3", "agent.learning_rate"),
        (REACH, "sac.lr=3", "agent.learning_rate or agent.auxiliary.learning_rate"),
        (REACH, "mask_ratio=0.5", "objective.mask.ratio"),
        (REACH, "mask.ratio=0.5", "objective.mask.ratio"),
        (REACH, "objective.ratio=0.5", "objective.mask.ratio"),
        (REACH, "masking_ratio=0.5", "objective.mask.ratio"),
        (REACH, "gamma=0.9", "agent.discount"),
        (REACH, "total_timesteps=1000", "budget.frames or budget.decisions"),
        (PONG, "v_max=20", "agent.support"),
        (REACH, "every=3", "objective.every or evaluation.every"),
        (REACH, "objective.mask.rato=0.3", "ratio"),
    ],
)
def test_a_field_that_does_not_exist_is_answered_with_those_that_may_be_meant(name: str, override: str, meant: str):
    with pytest.raises(ValueError, match=r"is not a field; did you mean ([^?]+)\?") as refused:
        recipes.resolve(name, [override])
    assert str(refused.value).endswith(f"did you mean {meant}?")
    assert str(refused.value).startswith(f"{override}: ")


def test_every_synonym_leads_to_a_field_of_some_recipe():
    known = {leaf for name in (REACH, PONG) for leaf, _ in tree_leaves("", asdict(recipes.find(name)))}
    known |= {leaf for leaf, _ in tree_leaves("", asdict(recipes.find(REACH, method="spr")))}
    for word, ends in SYNONYMS.items():
        for end in ends:
            assert any(f".{leaf}".endswith(f".{end}") for leaf in known), f"{word} leads to {end}, which no recipe has"


def test_no_synonym_hides_a_field():
    known = {leaf for name in (REACH, PONG) for leaf, _ in tree_leaves("", asdict(recipes.find(name)))}
    assert not known & set(SYNONYMS)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("atari/pnog", "did you mean atari/pong, "),
        ("pong", "did you mean atari/pong?"),
        ("cheetah", "did you mean dmcontrol/cheetah-run?"),
        ("xyz", "A name is suite/task, such as "),
    ],
)
def test_an_unknown_recipe_is_answered_with_at_most_three_and_where_the_list_is(name: str, answer: str):
    with pytest.raises(ValueError, match=f"^recipe '{name}' is not known") as refused:
        recipes.resolve(name)
    words = str(refused.value)
    assert answer in words
    assert "`maskrl recipes list`" in words
    assert sum(known in words for known in recipes.names()) <= 3
    assert len(words) < 300


def test_nearest_names_come_best_first():
    assert nearest("reech", ["toy/catch", "reach", "reached"], 3)[0] == "reach"
    assert nearest("catch", ["toy/catch", "catches"], 3) == ["toy/catch"]


@pytest.mark.parametrize(
    ("names", "words"), [([], ""), (["a"], "a"), (["a", "b"], "a or b"), (list("abc"), "a, b or c")]
)
def test_choices_are_part_of_a_sentence(names: list[str], words: str):
    assert choices(names) == words
