"""Evaluation on the toys, where a policy that does not learn has returns that anybody can work out."""

import numpy as np
import pytest

from maskrl.agents.base import Agent
from maskrl.envs import Atari, ToyArcade, ToyControl
from maskrl.envs.base import episode_seed
from maskrl.recipes import find
from maskrl.runs.build import build_agent, make_evaluation_envs
from maskrl.runs.evaluate import EpisodeReturns, evaluate, random_returns
from maskrl.runs.loop import EVALUATION_SEED

ARCADE = ToyArcade(size=8)  # a pixel is a cell


class Chaser:
    """Plays Catch perfectly: the paddle is where the last row is lit, the ball the brightest pixel."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        self.batches.append(len(obs))
        frames = obs[:, -1].astype(int)
        ball = frames.max(axis=1).argmax(axis=1)
        paddle = np.where(frames[:, -1] == 128, 1, 0).argmax(axis=1)
        paddle = np.where((frames[:, -1] == 128).any(axis=1), paddle, ball)  # hidden behind the ball it caught
        return 1 + np.sign(ball - paddle)


class Still:
    """Always the same action."""

    def __init__(self, action: int = 1) -> None:
        self.action = action

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        return np.full(len(obs), self.action, np.int64)


def envs(count: int, config: Atari | ToyArcade | ToyControl = ARCADE) -> list:
    return [config.make(seed=1, training=False) for _ in range(count)]


def test_perfect_play_has_the_optimal_return_in_every_episode():
    assert evaluate(Chaser(), envs(3), episodes=5, seed=1).returns == (ARCADE.optimal_return,) * 5


@pytest.mark.parametrize("count", [1, 2, 5, 7, 12])
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_episodes_side_by_side_are_those_played_one_by_one(count: int, epsilon: float):
    one_by_one = evaluate(Still(), envs(1), episodes=7, seed=3, epsilon=epsilon)
    assert len(set(one_by_one.returns)) > 1
    assert evaluate(Still(), envs(count), episodes=7, seed=3, epsilon=epsilon) == one_by_one


def test_games_side_by_side_are_those_played_one_by_one_though_they_end_at_different_times():
    pytest.importorskip("ale_py")
    breakout = Atari(task="breakout", max_frames=2000)
    alone, together = (evaluate(Still(), envs(count, breakout), episodes=4, seed=1, epsilon=0.9) for count in (1, 3))
    assert alone == together
    assert len(set(alone.returns)) > 1


def test_the_batch_shrinks_when_no_episode_waits():
    chaser = Chaser()
    evaluate(chaser, envs(3), episodes=4, seed=1)
    assert chaser.batches == [3] * 39 + [1] * 39  # 5 balls of 8 decisions, without the one that would drop a sixth


def test_each_episode_has_a_start_of_its_own_whoever_plays_it():
    (env,) = envs(1)
    columns, reset = [], env.reset

    def spied(**kwargs: object) -> object:
        seen = reset(**kwargs)
        columns.append((kwargs["seed"], int(env.unwrapped.column)))
        return seen

    env.reset = spied
    evaluate(Still(), [env], episodes=6, seed=9)
    evaluate(Chaser(), [env], episodes=3, seed=9)
    random_returns([env], episodes=3, seed=9)
    assert [seed for seed, _ in columns[:6]] == [episode_seed(9, number) for number in range(6)]
    assert columns[6:9] == columns[9:] == columns[:3]
    assert len({column for _, column in columns[:6]}) > 1


@pytest.mark.parametrize("config", [ARCADE, ToyControl()])
def test_epsilon_1_is_the_random_player(config: ToyArcade | ToyControl):
    class Untrusted:
        def __call__(self, obs: np.ndarray) -> np.ndarray:
            return np.zeros((len(obs), 2), np.float32) if isinstance(config, ToyControl) else np.zeros(len(obs), int)

    assert evaluate(Untrusted(), envs(2, config), episodes=5, seed=2, epsilon=1.0) == random_returns(
        envs(3, config), episodes=5, seed=2
    )


def test_epsilon_is_the_share_of_random_actions():
    """A paddle that is told to stay moves in 2/3 of the random decisions, unless a wall is in its way."""
    (env,) = envs(1)
    actions, step = [], env.step

    def spied(action: int) -> object:
        actions.append(int(action))
        return step(action)

    env.step = spied
    evaluate(Still(), [env], episodes=60, seed=1, epsilon=0.3)
    moved = np.mean(np.array(actions) != 1)
    assert len(actions) == 60 * 39
    assert abs(moved - 0.3 * 2 / 3) < 4 * np.sqrt(0.2 * 0.8 / len(actions))  # four standard errors


def test_the_counter_is_told_how_many_episodes_have_ended():
    told: list[int] = []
    evaluate(Still(), envs(2), episodes=5, seed=1, counter=told.append)
    assert told == [0] * 38 + [2] * 39 + [4] * 39 + [5]  # at every decision; all episodes of Catch have 39


def test_a_watcher_sees_an_image_for_every_decision_of_the_first_environment():
    images: list[np.ndarray] = []
    evaluate(Still(), envs(1), episodes=2, seed=1, watcher=images.append)
    assert len(images) == 2 * 39
    assert {image.shape for image in images} == {(256, 256, 3)}


def test_a_game_is_evaluated_from_its_start_even_in_an_environment_that_was_left_in_a_later_life():
    pytest.importorskip("ale_py")
    training = Atari(task="breakout").make(seed=1, training=True)
    first, _ = training.reset(seed=episode_seed(1, 0))
    while True:
        _, _, terminated, _, _ = training.step(np.int64(1))
        if terminated:
            break
    seen = []

    class Looking(Still):
        def __call__(self, obs: np.ndarray) -> np.ndarray:
            seen.append(obs[0])
            return super().__call__(obs)

    evaluate(Looking(), [training], episodes=1, seed=1)
    assert (seen[0] == first).all()


@pytest.mark.parametrize("name", ["toy/reach", "toy/catch"])
def test_two_evaluations_see_the_same_starts_and_agree(name: str):
    recipe = find(name)
    envs = make_evaluation_envs(recipe)
    agent: Agent = build_agent(recipe, envs[0])
    first, second = (evaluate(agent.policy().act, envs, episodes=3, seed=EVALUATION_SEED) for _ in range(2))
    assert first == second
    assert first.score == pytest.approx(sum(first.returns) / 3)


def test_the_score_is_the_mean_and_the_spread_the_deviation_over_episodes():
    returns = EpisodeReturns((1.0, 3.0))
    assert (returns.score, returns.spread) == (2.0, 1.0)


@pytest.mark.parametrize("config", [ToyControl(), ToyArcade()])
def test_random_actions_earn_what_the_toy_says(config: ToyControl | ToyArcade):
    returns = random_returns(envs(10, config), episodes=100, seed=1)
    assert abs(returns.score - config.random_return) < 4 * returns.spread / 10  # four standard errors
