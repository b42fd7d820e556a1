import gymnasium as gym
import numpy as np
import pytest

from maskrl.envs import Atari, DMControl, ToyArcade, ToyControl
from maskrl.envs.base import FrameStack, episode_seed, image_space, require_extra


class Counting(gym.Env):
    """Every pixel of a frame is the number of the decision, counted from 1."""

    observation_space = image_space(3, 2, 2)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 1
        return np.full((3, 2, 2), 1, np.uint8), {}

    def step(self, action):
        self.count += 1
        return np.full((3, 2, 2), self.count, np.uint8), 0.0, False, False, {}


def counts(obs):
    return obs[::3, 0, 0].tolist()  # one channel of every frame


def test_the_oldest_frame_of_a_stack_comes_first():
    env = FrameStack(Counting(), 3)
    env.reset()
    stacks = [counts(env.step(0)[0]) for _ in range(3)]
    assert stacks == [[1, 1, 2], [1, 2, 3], [2, 3, 4]]


@pytest.mark.parametrize(("pad", "stack"), [("repeat", [1, 1, 1]), ("zero", [0, 0, 1])])
def test_a_reset_leaves_nothing_of_the_episode_before(pad, stack):
    env = FrameStack(Counting(), 3, pad=pad)
    env.reset()
    for _ in range(5):
        env.step(0)
    assert counts(env.reset()[0]) == stack


def test_stacked_frames_fit_their_space_and_a_stack_may_be_a_single_frame():
    for frames in (1, 4):
        env = FrameStack(Counting(), frames)
        obs, _ = env.reset()
        assert obs.shape == (3 * frames, 2, 2)
        assert obs in env.observation_space


def test_writing_into_an_observation_does_not_reach_the_next_one():
    env = FrameStack(Counting(), 3)
    obs, _ = env.reset()
    obs[:] = 99
    assert counts(env.step(0)[0]) == [1, 1, 2]


def test_a_config_says_how_long_an_episode_is_where_no_play_changes_it():
    control = [DMControl(task="cartpole-swingup", action_repeat=repeat) for repeat in (8, 300)]
    assert [config.episode_decisions for config in control] == [125, 4]
    assert all(config.episode_decisions is None for config in (Atari(task="pong"), ToyControl(), ToyArcade()))


@pytest.mark.parametrize("config", [ToyControl(), ToyArcade()])
def test_a_config_says_what_stands_before_the_first_frame(config):
    frames = np.split(config.make(seed=1, training=True).reset(seed=1)[0], config.frame_stack)
    past = frames[-1] if config.pad == "repeat" else np.zeros_like(frames[-1])
    assert all((frame == past).all() for frame in frames[:-1])
    assert frames[-1].any()


def test_episode_seeds_are_32_bits_all_different_and_the_same_tomorrow():
    seeds = [episode_seed(run, episode) for run in range(20) for episode in range(500)]
    assert len(set(seeds)) >= len(seeds) - 1  # 10 000 draws from 2^32 collide 0.01 times on average
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert [episode_seed(1, 0), episode_seed(1, 1), episode_seed(2, 0)] == [1835504127, 1189033389, 2834126987]


def test_a_missing_simulator_is_reported_with_the_command_that_installs_it():
    with pytest.raises(
        ModuleNotFoundError, match=r"no_such_simulator is not installed: pip install 'maskrl\[dmcontrol\]'"
    ):
        require_extra("no_such_simulator", "dmcontrol")
    require_extra("gymnasium", "dmcontrol")
