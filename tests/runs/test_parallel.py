"""Several environments at once: deterministic, exact after a kill, and no clip of two of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_own_environment import RAINBOW, SAC, config, main_ends, own

import maskrl
import own_env
from maskrl.replay.buffer import NothingToDrawError, Replay
from maskrl.replay.several import Several
from maskrl.runs.directory import Run
from maskrl.runs.state import State
from tiny_runs import same_end, tiny_recipe, trained

__all__ = ["config"]  # a fixture
SIZE = {"frame_shape": (1, 2, 2), "action_dim": 2, "frame_stack": 2, "capacity": 40}


def filled(lengths: list[list[int]], **options) -> Several:
    """A replay for each list of lengths of episodes. A frame's pixels are its place, a reward its place and number."""
    parts = [Replay(**SIZE, seed=place, **options) for place in range(len(lengths))]
    several = Several(parts, seed=0)
    for place, episodes in enumerate(lengths):
        obs, number = np.full((2, 2, 2), place, np.uint8), 0
        for length in episodes:
            several.begin_episode(obs, place=place)
            for step in range(length):
                ends = {"terminated": step == length - 1, "truncated": False}
                several.add([1, 0], 100 * place + number, obs, place=place, **ends)
                number += 1
    return several


@pytest.mark.parametrize("exponent", [None, 0.5])
def test_a_draw_reads_every_place_and_a_clip_is_of_one(exponent):
    replay = filled([[9, 3], [12], [6]], priority_exponent=exponent)
    assert len(replay) == 30
    draw = replay.draw(600)
    batch = replay.transitions(draw)
    places, numbers = batch.rewards.long() // 100, batch.rewards.long() % 100
    assert (batch.obs.flatten(1) == places[:, None]).all()
    assert (batch.next_obs.flatten(1) == places[:, None]).all()
    assert np.bincount(places) / 600 == pytest.approx([0.4, 0.4, 0.2], abs=0.07)
    assert len({(int(p), int(n)) for p, n in zip(places, numbers, strict=True)}) == 30
    assert places[:300].float().mean() == pytest.approx(float(places[300:].float().mean()), abs=0.25)  # in random order
    clip = replay.clips(replay.draw(50, span=5, purpose="clips"), length=5)
    assert (clip.obs == clip.obs[:, :1, :1, :1, :1]).all()
    assert clip.valid.all()
    with pytest.raises(NothingToDrawError, match="20 transitions in a row"):
        replay.draw(5, span=20)
    assert set(replay.draw(40, span=8).starts % 3) == {0, 1}  # the third has no episode as long as that


def test_priorities_go_where_they_belong():
    replay = filled([[9], [9]], priority_exponent=1.0)
    draw = replay.draw(64)
    errors = torch.where(torch.from_numpy(draw.starts % 2 == 1), 9.0, 1.0)
    replay.reprioritise(draw, errors)
    share = (replay.draw(2000).starts % 2 == 1).mean()
    assert share == pytest.approx(0.9, abs=0.03)
    again = replay.draw(64, correction=1.0)
    weights = again.weights.numpy()
    assert weights.max() == 1
    assert weights[again.starts % 2 == 1] == pytest.approx(1 / 9, rel=0.01)


def test_a_state_continues_with_the_same_draws():
    one, other = filled([[9, 3], [12]]), filled([[2], [2]])
    one.draw(7)
    assert other.load_state_dict(one.state_dict()) == 0
    assert (one.draw(30).starts == other.draw(30).starts).all()


@pytest.mark.parametrize("overrides", [SAC, RAINBOW])
def test_a_run_continues_to_the_same_end(tmp_path: Path, overrides, monkeypatch):
    recipe = own(*overrides, "env.parallel=3", "agent.warmup_decisions=45")
    whole, _ = trained(tmp_path / "whole", recipe)
    starts = {event["length"] for event in whole.events("episode")}
    assert starts == {20}
    add = State.add

    def until(self, *arguments):
        if self.clock.decisions == 70:  # between two checkpoints, with steps on their way
            raise OSError("the plug was pulled")
        return add(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(State, "add", until)
        with pytest.raises(OSError, match="plug"):
            trained(tmp_path / "broken", recipe)
    assert same_end(whole, trained(tmp_path / "broken", recipe)[0])
    assert {path.name for path in (whole.path / "replay").iterdir()} >= {f"{place}-frames.u8" for place in range(3)}
    main_ends("extend", str(whole.path), "budget.frames=160", "--log", "none")
    assert Run.open(whole.path).status == "done"


def test_a_closure_cannot_be_collected_in_parallel(tmp_path: Path):
    recipe = maskrl.recipe(lambda: own_env.make_env(), *SAC, "env.parallel=2", profile="lite")
    with pytest.raises(ValueError, match=r"env\.parallel=2 puts the environment into a separate process"):
        maskrl.train(recipe, tmp_path / "run", [])


def test_episodes_of_all_places_begin_otherwise(tmp_path: Path):
    recipe = tiny_recipe(env=replace(tiny_recipe().env, parallel=2))
    run, _ = trained(tmp_path / "run", recipe)
    with State(recipe, run, maskrl.runs.loggers.Loggers([], tell=lambda *_: None)) as state:
        first, second = (state.begin_episode(place) for place in range(2))
    assert not np.array_equal(first, second)
