"""An environment in a process of its own."""

import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from maskrl.envs import ToyArcade, ToyControl
from maskrl.envs.subprocess import SubprocessEnv, _live


@dataclass(frozen=True)
class Broken:
    """Fails at its second step, or cannot be made."""

    at_once: bool = False

    def make(self, *, seed: int, training: bool) -> gym.Env[Any, Any]:
        if self.at_once:
            raise ValueError("there is no such thing")
        env = ToyControl().make(seed=seed, training=training)
        step, count = env.step, iter(range(10))

        def failing(action: Any) -> Any:
            if next(count) == 1:
                raise LookupError("the robot is gone")
            return step(action)

        env.step = failing  # type: ignore[method-assign]
        return env


@pytest.fixture
def elsewhere():
    """Makes them, and closes them at the end."""
    made: list[SubprocessEnv] = []

    def make(config: Any) -> SubprocessEnv:
        made.append(SubprocessEnv(config, seed=3, training=True))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.mark.parametrize("config", [ToyControl(), ToyArcade()])
@pytest.mark.parametrize("foreseen", [False, True])
def test_it_is_the_same_environment(config: Any, foreseen: bool, elsewhere):
    there, here = elsewhere(config), config.make(seed=3, training=True)
    assert there.observation_space == here.observation_space
    assert there.action_space == here.action_space
    here.action_space.seed(0)
    np.testing.assert_array_equal(there.reset(seed=5)[0], here.reset(seed=5)[0])
    for _ in range(8):
        action = here.action_space.sample()
        if foreseen:
            there.step_async(action)
        theirs, ours = there.step(action), here.step(action)
        np.testing.assert_array_equal(theirs[0], ours[0])
        assert theirs[1:4] == ours[1:4]


def test_an_error_comes_back_as_one_and_the_process_lives_on(elsewhere):
    env = elsewhere(Broken())
    env.reset(seed=1)
    action = np.zeros(2, np.float32)
    env.step(action)
    with pytest.raises(RuntimeError, match="LookupError: the robot is gone"):
        env.step(action)
    assert env.step(action)[0].dtype == np.uint8


def test_an_environment_that_cannot_be_made_says_so():
    with pytest.raises(RuntimeError, match="ValueError: there is no such thing"):
        SubprocessEnv(Broken(at_once=True), seed=0, training=True)


@pytest.mark.parametrize("foreseen", [False, True])
def test_a_process_that_is_killed_is_an_error_not_a_hang(foreseen: bool, elsewhere):
    env = elsewhere(ToyControl())
    env.reset(seed=1)
    os.kill(env._process.pid, signal.SIGKILL)
    env._process.join()
    action = np.zeros(2, np.float32)
    if foreseen:
        env.step_async(action)
    with pytest.raises((RuntimeError, OSError)):
        env.step(action)


def test_signals_that_are_for_the_one_who_learns_do_not_end_it(elsewhere):
    env = elsewhere(ToyControl())
    env.reset(seed=1)
    for told in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(env._process.pid, told)
    assert env.step(np.zeros(2, np.float32))[0].dtype == np.uint8


def test_a_program_that_forgets_to_close_it_ends_all_the_same():
    code = "from maskrl.envs import ToyControl; from maskrl.envs.subprocess import SubprocessEnv; "
    code += "env = SubprocessEnv(ToyControl(), seed=0, training=True); print(env.reset(seed=0)[0].shape)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.startswith("(")


@pytest.mark.parametrize("config", [ToyControl(), Broken(at_once=True)])
def test_a_process_whose_parent_is_gone_at_the_start_ends_without_a_traceback(config: Any, capfd):
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    process = multiprocessing.get_context("spawn").Process(target=_live, args=(theirs, config, 0, True))
    process.start()
    theirs.close()
    process.join(timeout=60)
    assert process.exitcode == 0
    assert capfd.readouterr().err == ""


def test_closing_ends_the_process():
    env = SubprocessEnv(ToyControl(), seed=0, training=True)
    env.close()
    assert env._process.exitcode == 0
