"""Episodes of an evaluation earn the same whoever plays them, and no process outlives the one that it plays for."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from maskrl.agents.base import PolicyNetwork, Spaces
from maskrl.envs.toy import ToyControl
from maskrl.recipes import resolve
from maskrl.recipes.schema import Evaluation, Recipe
from maskrl.runs import players as module
from maskrl.runs.build import build_agent
from maskrl.runs.players import Helper, Players, helpers_allowed
from maskrl.runs.signals import InterruptedEvaluation
from tiny_runs import tiny_rainbow, tiny_recipe

RULES: module.Rules = {"seed": 5, "epsilon": 0.0}
TOGETHER: dict[str, Any] = {"threads": 2, "evaluation": Evaluation(every=50, episodes=6, side_by_side=3)}


def policy_of(recipe: Recipe) -> PolicyNetwork:
    return build_agent(recipe, recipe.env.make(seed=1, training=False)).policy()


class Company(Players):
    """With one helper from the start."""

    def __init__(self, recipe: Recipe) -> None:
        self.notes: list[str] = []
        super().__init__(recipe, self.notes.append)
        self.helper, self.played = Helper(recipe, Spaces.of(self._envs[0])), list[int]()
        self._helpers.append(self.helper)
        self.helper.learn(None, RULES)  # answers when it is ready
        of_helper = self.helper.play
        self.helper.play = lambda number: (self.played.append(number), of_helper(number))[1]  # type: ignore[method-assign]


def slowly(_: int) -> None:
    """A counter that leaves time for the helper."""
    time.sleep(0.002)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def company() -> Iterator[Company]:
    """For all tests that leave the helper alive: to start one takes seconds."""
    with closing(Company(tiny_recipe(**TOGETHER))) as company:
        yield company


@pytest.fixture
def mortal() -> Iterator[Company]:
    with closing(Company(tiny_recipe(**TOGETHER))) as company:
        yield company


def test_returns_are_the_same_in_one_process_and_in_two(company: Company):
    recipe = tiny_recipe(**TOGETHER)
    policy = policy_of(recipe)
    with closing(Players(replace(recipe, threads=1))) as alone:
        for options in ({"epsilon": 0.0}, {"epsilon": 0.3}):
            apart = alone.play(policy, episodes=8, seed=5, **options)
            company.played.clear()
            together = company.play(policy, episodes=8, seed=5, **options, counter=slowly)
            assert together == apart
            assert 0 < len(company.played) < 8
        assert company.play(None, episodes=8, seed=5, counter=slowly) == alone.play(None, episodes=8, seed=5)
    assert company.notes == []


def test_a_noisy_agent_that_chooses_discrete_actions_plays_the_same_elsewhere():
    recipe = tiny_rainbow(**TOGETHER)
    policy = policy_of(recipe)
    with closing(Company(recipe)) as company, closing(Players(replace(recipe, threads=1))) as alone:
        together = company.play(policy, episodes=6, seed=5, epsilon=0.1, counter=slowly)
        assert together == alone.play(policy, episodes=6, seed=5, epsilon=0.1)
        assert company.played


def test_threads_of_the_run_change_no_return():
    recipe = tiny_recipe(**TOGETHER)
    policy = policy_of(recipe)
    with closing(Players(replace(recipe, threads=1))) as one, closing(Players(recipe)) as two:
        assert one.play(policy, episodes=3, seed=5) == two.play(policy, episodes=3, seed=5)


def test_what_a_helper_has_learned_is_replaced_at_the_next_evaluation(company: Company):
    recipe = tiny_recipe(**TOGETHER)
    with closing(Players(replace(recipe, threads=1))) as alone:
        for seed in (1, 2):
            policy = policy_of(replace(recipe, seed=seed))
            together = company.play(policy, episodes=6, seed=5, counter=slowly)
            assert together == alone.play(policy, episodes=6, seed=5)


def test_processes_start_when_there_is_enough_to_do_for_them(monkeypatch: pytest.MonkeyPatch):
    recipe = tiny_recipe(**TOGETHER)
    with closing(Players(recipe)) as players:
        players.play(None, episodes=4, seed=5)
        assert players._helpers == []
        monkeypatch.setattr(module, "START", 1e-9)
        first = players.play(None, episodes=4, seed=5)
        (helper,) = players._helpers
        assert players.play(None, episodes=4, seed=5) == first
        assert players._helpers == [helper]
        assert runs(helper._process.pid)
    assert not runs(helper._process.pid)


def test_the_episodes_of_a_helper_that_dies_are_played_by_the_others(mortal: Company):
    policy = policy_of(tiny_recipe())
    whole = mortal.play(policy, episodes=8, seed=5, counter=slowly)

    def kill(_: int) -> None:
        slowly(0)
        mortal.helper._process.kill()
        mortal.helper._process.wait()

    assert mortal.play(policy, episodes=8, seed=5, counter=kill) == whole
    assert mortal.notes == [
        "A process that plays evaluation episodes failed (it ended with exit code -9). The others play its episodes."
    ]
    assert mortal.play(policy, episodes=8, seed=5) == whole
    assert len(mortal.notes) == 1


def test_an_interrupted_evaluation_ends_its_processes_at_once(mortal: Company):
    def interrupt(_: int) -> None:
        raise InterruptedEvaluation

    with pytest.raises(InterruptedEvaluation):
        mortal.play(None, episodes=1000, seed=5, counter=interrupt)
    assert not runs(mortal.helper._process.pid)
    assert len(mortal.play(None, episodes=3, seed=5).returns) == 3
    assert mortal.notes == []


def test_an_environment_that_another_process_cannot_make_is_played_here(monkeypatch: pytest.MonkeyPatch):
    class Local(ToyControl):  # no other process can import it
        pass

    recipe, notes = tiny_recipe(env=Local(size=28), **TOGETHER), list[str]()
    monkeypatch.setattr(module, "START", 1e-9)
    with closing(Players(recipe, notes.append)) as players:
        assert len(players.play(None, episodes=4, seed=5, counter=slowly).returns) == 4
        assert "Local" in notes[0]
        players.play(None, episodes=4, seed=5, counter=slowly)
        assert len(notes) == 1  # and no other try


ORPHAN = """
import time
from maskrl.agents.base import Spaces
from maskrl.recipes import resolve
from maskrl.runs.players import Helper
recipe = resolve("toy/reach")
helper = Helper(recipe, Spaces.of(recipe.env.make(seed=1, training=False)))
helper.learn(None, {"seed": 1, "epsilon": 1.0})
print(helper._process.pid, flush=True)
time.sleep(60)
"""


def test_a_helper_ends_with_the_process_that_it_plays_for_however_that_ends():
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert runs(pid)
        parent.send_signal(signal.SIGKILL)
    for _ in range(100):
        if not runs(pid):
            break
        time.sleep(0.05)
    assert not runs(pid)


@pytest.mark.parametrize(
    ("overrides", "helpers"),
    [
        ([], 2),  # small layers learn on one thread, but episodes are played on every core
        (["threads=4"], 3),
        (["threads=1"], 0),
        (["threads=4", "evaluation.side_by_side=2"], 1),
        (["threads=4", "evaluation.episodes=3"], 2),
        (["threads=4", "compile=true"], 0),
    ],
)
def test_as_many_play_as_the_run_has_cores(overrides: list[str], helpers: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "cores_allowed", lambda: 3)
    assert helpers_allowed(resolve("dmcontrol/cheetah-run", overrides, profile="lite")) == helpers
