"""How good an agent is: full episodes by its mean actions, in an environment of their own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from maskrl.agents.base import Agent
from maskrl.envs.base import episode_seed


@dataclass(frozen=True)
class EpisodeReturns:
    """Undiscounted returns, one of each episode. Their mean is the score of the run at that time."""

    returns: tuple[float, ...]

    @property
    def score(self) -> float:
        return float(np.mean(self.returns))

    @property
    def spread(self) -> float:
        """Standard deviation over episodes: not over seeds, which is what the paper's tables show."""
        return float(np.std(self.returns))


class Published(NamedTuple):
    """A score that somebody published: what the score of a run is held against."""

    mean: float
    std: float  # over seeds
    seeds: int
    source: str


Observation = NDArray[np.uint8]
Action = NDArray[np.float32]
Watcher = Callable[[NDArray[np.uint8]], None]


def evaluate(
    agent: Agent, env: gym.Env[Any, Any], *, episodes: int, seed: int, watcher: Watcher | None = None
) -> EpisodeReturns:
    """The agent's mean actions. `watcher` gets rendered images."""
    return _live(lambda obs: agent.act(obs, explore=False), env, episodes, seed, watcher)


def random_returns(env: gym.Env[Any, Any], *, episodes: int, seed: int) -> EpisodeReturns:
    """What uniformly random actions earn: the floor that a score should be seen above."""
    generator, space = np.random.default_rng(seed), env.action_space
    assert isinstance(space, gym.spaces.Box)
    return _live(lambda _: generator.uniform(space.low, space.high).astype(np.float32), env, episodes, seed)


def _live(
    act: Callable[[Observation], Action],
    env: gym.Env[Any, Any],
    episodes: int,
    seed: int,
    watcher: Watcher | None = None,
) -> EpisodeReturns:
    """Episode i is reset with the seed of (seed, i), so all who are evaluated see the same starts."""
    returns = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode_seed(seed, episode))
        total, ended = 0.0, False
        while not ended:
            if watcher is not None:
                image: Any = env.render()
                watcher(image)
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return EpisodeReturns(tuple(returns))
