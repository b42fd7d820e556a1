import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from maskrl.envs.toy import BALLS, DECISIONS, GRID, REACH, ToyArcade, ToyControl

TOYS = [ToyControl(), ToyArcade()]
each_toy = pytest.mark.parametrize("toy", TOYS, ids=lambda toy: toy.kind)


def play(env, policy, **reset):
    """(observations, return, terminated, truncated) of one episode."""
    obs, _ = env.reset(**reset)
    seen, total, terminated, truncated = [obs], 0.0, False, False
    while not (terminated or truncated):
        obs, reward, terminated, truncated, _ = env.step(policy(env.unwrapped))
        seen.append(obs)
        total += reward
    return np.stack(seen), total, terminated, truncated


def random_policy(toy):
    """Uniform actions from a generator of their own."""
    space = toy.make(seed=0, training=True).action_space
    space.seed(0)
    return lambda env: space.sample()


def uniform(half):
    """The trapezium rule on -half … half, as a distribution."""
    return np.r_[0.5, np.ones(2 * half - 1), 0.5] / (2 * half)


def straight_to_the_goal(env):
    return np.clip((env.goal - env.dot) / REACH, -1, 1).astype(np.float32)


def under_the_ball(env):
    return 1 + np.sign(env.column - env.paddle)


@each_toy
@pytest.mark.filterwarnings("ignore:.*not having a spec", "ignore:.*different from the unwrapped")
def test_gymnasium_finds_no_fault(toy):
    env = toy.make(seed=0, training=True)
    check_env(env)
    check_env(env.unwrapped)


@each_toy
@pytest.mark.parametrize("size", [32, 45])
def test_observations_are_stacks_of_frames_of_any_size(toy, size):
    toy = type(toy)(size=size)
    obs, info = toy.make(seed=0, training=True).reset()
    assert obs.shape == (9 if toy.kind == "toy_control" else 4, size, size)
    assert obs.dtype == np.uint8
    assert obs.max() == 255
    assert info == {"frames": 0}


@each_toy
def test_an_episode_is_a_function_of_its_seed_and_actions(toy):
    env, other = toy.make(seed=1, training=True), toy.make(seed=2, training=False)
    play(other, random_policy(toy))  # a past that must not matter
    first, again = (play(which, random_policy(toy), seed=7)[0] for which in (env, other))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, play(env, random_policy(toy), seed=8)[0])


@each_toy
def test_without_a_seed_every_episode_is_another_and_the_first_is_that_of_make(toy):
    env, twin = toy.make(seed=3, training=True), toy.make(seed=3, training=True)
    first, second = (play(env, random_policy(toy))[0] for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, play(twin, random_policy(toy))[0])


@each_toy
def test_a_decision_outside_an_episode_is_refused(toy):
    env = toy.make(seed=0, training=True)
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(env.action_space.sample())
    play(env, random_policy(toy))
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(env.action_space.sample())


@each_toy
def test_a_video_frame_is_the_newest_frame_enlarged(toy):
    env = toy.make(seed=0, training=True)
    obs, _ = env.reset()
    image = env.render()
    assert image.shape == (256, 256, 3)
    assert np.array_equal(image[::8, ::8, 1], obs[-2 if toy.kind == "toy_control" else -1])


@each_toy
def test_a_repeat_or_size_that_is_not_possible_is_refused(toy):
    with pytest.raises(ValueError, match="action_repeat=2 is not a choice"):
        type(toy)(action_repeat=2)
    with pytest.raises(ValueError, match=r"size=7 of .* must be at least 8"):
        type(toy)(size=7)


# ── reach ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_reach_lasts_40_decisions_and_is_cut_not_ended():
    seen, _, terminated, truncated = play(ToyControl().make(seed=0, training=True), random_policy(ToyControl()))
    assert len(seen) == 1 + DECISIONS
    assert (terminated, truncated) == (False, True)


def test_a_move_of_a_tenth_of_a_pixel_shows_in_reach():
    env = ToyControl().make(seed=0, training=True).unwrapped
    before, _ = env.reset()
    after, *_ = env.step(np.array([0.05, 0.0], np.float32))  # 0.0075 of the 2 units that span 27 pixels
    assert not np.array_equal(before[0], after[0])  # the dot is red
    assert np.array_equal(before[1:], after[1:])  # the goal is green and rests


def test_reach_pays_one_minus_the_distance():
    env = ToyControl().make(seed=0, training=True).unwrapped
    env.reset()
    env.goal = np.array([0.15, 0.4])
    assert env.step(np.array([1.0, 0.0], np.float32))[1] == pytest.approx(0.6)  # the dot is now at (0.15, 0)
    env.goal = np.array([1.0, 1.0])
    assert env.step(np.array([0.0, 0.0], np.float32))[1] == 0.0  # farther than 1


def test_the_optimal_return_of_reach_is_an_integral_over_goals():
    gap = (np.arange(400) + 0.5) / 400  # along one axis, the goal is 0 to 1 away
    total = 0.0
    for decision in range(1, DECISIONS + 1):
        left = np.maximum(0, gap - REACH * decision)
        total += np.maximum(0, 1 - np.hypot(left[:, None], left)).mean()
    assert total == pytest.approx(ToyControl.optimal_return, abs=0.01)


def test_the_random_return_of_reach_follows_the_walk_along_each_axis():
    cells = 100  # per unit of length
    step = round(REACH * cells)
    gaps = np.arange(-2 * cells, 2 * cells + 1) / cells
    reward = np.maximum(0, 1 - np.hypot(gaps[:, None], gaps))
    dot, total = np.eye(2 * cells + 1)[cells], 0.0  # the distribution over one axis: at first all in the middle
    for _ in range(DECISIONS):
        moved = np.convolve(dot, uniform(step))
        dot = moved[step:-step]
        dot[0] += moved[:step].sum()  # what would pass a wall stops there
        dot[-1] += moved[-step:].sum()
        gap = np.convolve(dot, uniform(cells))  # to a goal anywhere
        total += gap @ reward @ gap
    assert total == pytest.approx(ToyControl.random_return, abs=0.01)


def test_playing_reach_gives_the_returns_it_promises():
    env = ToyControl().make(seed=0, training=True)
    promises = {straight_to_the_goal: ToyControl.optimal_return, random_policy(ToyControl()): ToyControl.random_return}
    for policy, promised in promises.items():
        returns = [play(env, policy)[1] for _ in range(200)]
        assert abs(np.mean(returns) - promised) < 4 * np.std(returns) / np.sqrt(len(returns))


# ── catch ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_catch_ends_after_its_last_ball():
    seen, _, terminated, truncated = play(ToyArcade().make(seed=0, training=True), random_policy(ToyArcade()))
    assert len(seen) == BALLS * GRID  # every ball is seen in every row
    assert (terminated, truncated) == (True, False)


def test_every_ball_can_be_caught():
    env = ToyArcade().make(seed=0, training=True)
    assert {play(env, under_the_ball)[1] for _ in range(100)} == {ToyArcade.optimal_return}


def test_who_does_not_look_catches_one_ball_in_eight():
    env = ToyArcade().make(seed=0, training=True)
    for policy in (random_policy(ToyArcade()), lambda env: 0):
        returns = [play(env, policy)[1] for _ in range(400)]
        assert abs(np.mean(returns) - ToyArcade.random_return) < 4 * np.std(returns) / np.sqrt(len(returns))


def test_paddle_and_ball_have_their_own_grey_and_cell():
    env = ToyArcade().make(seed=0, training=True).unwrapped
    frame, _ = env.reset()
    cells = frame[0, 2::4, 2::4]  # the middle of every cell of 4 × 4 pixels
    assert np.argwhere(cells == 128).tolist() == [[7, 4]]
    assert np.argwhere(cells == 255).tolist() == [[0, env.column]]
    assert np.count_nonzero(frame) == 2 * 16
