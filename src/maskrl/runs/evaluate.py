"""Evaluation: whole episodes without exploration, in environments separate from training."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from maskrl.agents.base import Spaces
from maskrl.envs.base import episode_seed


@dataclass(frozen=True)
class EpisodeReturns:
    """The undiscounted return of each episode. Their mean is the score."""

    returns: tuple[float, ...]

    @property
    def score(self) -> float:
        return float(np.mean(self.returns))

    @property
    def spread(self) -> float:
        """Standard deviation over episodes. (The paper's tables show it over seeds.)"""
        return float(np.std(self.returns))


Env = gym.Env[Any, Any]
# (N, C, H, W), and (N, V) for vector observations → an action for each
Act = Callable[..., Sequence[Any] | NDArray[Any]]
Camera = Callable[[NDArray[np.uint8]], None]
Counter = Callable[[int], None]  # called at every decision with the number of finished episodes; may raise to stop


def evaluate(policy: Act, envs: Sequence[Env], *, episodes: int, **options: Any) -> EpisodeReturns:
    """Play this many episodes, with the options of `play`."""
    returns = dict[int, float]()
    play(policy, envs, deque(range(episodes)), returns, **options)
    return EpisodeReturns(tuple(returns[number] for number in range(episodes)))


def play(
    policy: Act,
    envs: Sequence[Env],
    waiting: deque[int],
    returns: dict[int, float],
    *,
    seed: int,
    epsilon: float = 0.0,
    watcher: Camera | None = None,
    counter: Counter | None = None,
) -> None:
    """Play the policy's actions, or random ones with probability `epsilon`, in all environments at once.

    Episode i is reset with a seed made of (seed, i), so all policies get the same starts. An environment whose episode has ended
    takes the next episode. `watcher` gets rendered images of the first environment.
    """
    playing = _begin(envs, waiting, seed)
    while playing:
        if watcher is not None:
            image: Any = playing[0].env.render()
            watcher(image)
        for episode, action in zip(playing, _chosen(policy, playing), strict=True):
            episode.step(action, epsilon)
        ended = [episode for episode in playing if episode.ended]
        if ended:
            returns |= {episode.number: episode.total for episode in ended}
            playing = [episode for episode in playing if not episode.ended]
            playing += _begin([episode.env for episode in ended], waiting, seed)
        if counter is not None:
            counter(len(returns))


def nobody(obs: NDArray[np.uint8], vectors: NDArray[np.float32] | None = None) -> Sequence[Any]:
    """A placeholder policy for `epsilon=1`, where all actions are random."""
    return [None] * len(obs)


def random_returns(envs: Sequence[Env], *, episodes: int, seed: int) -> EpisodeReturns:
    """The returns of uniformly random actions, a baseline for scores."""
    return evaluate(nobody, envs, episodes=episodes, seed=seed, epsilon=1.0)


def next_of(waiting: deque[int]) -> int | None:
    """Take the number of the next episode; None if there are none left. Other threads may take from the same queue."""
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _begin(envs: Sequence[Env], waiting: deque[int], seed: int) -> list["Episode"]:
    """Begin an episode in each environment, while there are any left."""
    numbers = [(env, next_of(waiting)) for env in envs]
    return [Episode(env, number, seed) for env, number in numbers if number is not None]


class Episode:
    """An episode that is being played."""

    def __init__(self, env: Env, number: int, seed: int) -> None:
        self.env, self.number, self.total, self.ended = env, number, 0.0, False
        self.obs, self.info = env.reset(seed=episode_seed(seed, number), options={"restart": True})
        self.chance, self.spaces = np.random.default_rng((seed, number)), Spaces.of(env)

    def step(self, action: Any, epsilon: float) -> None:
        if epsilon and self.chance.random() < epsilon:
            action = self.spaces.random_action(self.chance)
        self.obs, reward, terminated, truncated, self.info = self.env.step(action)
        self.total, self.ended = self.total + float(reward), terminated or truncated

    def chosen_by(self, policy: Act) -> Any:
        """The policy's action for the current observation."""
        return _chosen(policy, [self])[0]


def _chosen(policy: Act, playing: "Sequence[Episode]") -> Sequence[Any] | NDArray[Any]:
    """An action for each of the episodes."""
    beside = [episode.info["vector"] for episode in playing if "vector" in episode.info]
    return policy(np.stack([episode.obs for episode in playing]), *([np.stack(beside)] if beside else []))
