"""Replays full of noise, which cost as much as real frames, and an agent that learns from one."""

from typing import Any

import numpy as np

from maskrl.agents.base import Agent, Metrics, Spaces
from maskrl.cost.timing import seconds_each
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Replay
from maskrl.runs.build import device_of, numerics, replay_size


class Learner:
    """An agent that learns from a replay of noise, after its first updates, which are slower because they allocate buffers."""

    def __init__(self, recipe: Recipe, spaces: Spaces, agent: Agent | None = None) -> None:
        self.recipe, self.device, self.turn = recipe, device_of(recipe), recipe.agent.turn(recipe.objective)
        self.replay = noise_replay(recipe, spaces)
        self.agent = agent or recipe.agent.build(spaces, recipe.objective, self.device)
        self.first = self.update()  # the losses of a new agent
        for _ in range(self.turn - 1):
            self.update()

    def seconds(self, turns: int = 1) -> float:
        """The mean seconds of an update over this many turns, in each of which every part runs (`AgentConfig.turn`)."""
        return seconds_each(self.update, turns * self.turn, self.device)

    def update(self) -> Metrics:
        with numerics(self.recipe):
            return self.agent.update(self.replay)


def noise_replay(recipe: Recipe, spaces: Spaces, *, transitions: int = 600, decisions: int = 150) -> Replay:
    """A small replay for the recipe's agent, of episodes of this many decisions, in which every frame differs."""
    size = replay_size(recipe, spaces)
    size["capacity"], size["reserve"] = transitions + transitions // decisions, 0  # with last frames of episodes
    replay = Replay(**size, seed=recipe.seed)
    fill(replay, transitions, episode=decisions, repeat_frame=False)
    return replay


def fill(replay: Replay, transitions: int, *, episode: int = 1000, repeat_frame: bool = True) -> None:
    """Fill the whole replay with episodes of noise: memory that was never written is faster to read.

    Loads a state, which takes a fraction of the time of `add` calls.
    """
    decision = np.arange(transitions)
    ends = (decision % episode == episode - 1) | (decision == transitions - 1)  # the last episode may be shorter
    lengths = np.diff(np.flatnonzero(ends), prepend=-1) + 1  # in frames
    frames, first = int(lengths.sum()), np.repeat(np.cumsum(lengths) - lengths, lengths)
    left = np.repeat(lengths, lengths) - 1 - (np.arange(frames) - first)  # decisions until the end of the episode
    noise = np.random.default_rng(0)
    if replay.discrete:
        actions: Any = noise.integers(0, replay.action_dim, frames)
    else:
        actions = noise.uniform(-1, 1, (frames, replay.action_dim)).astype(np.float32)
    pictures = noise.integers(0, 256, (1 if repeat_frame else frames, *replay.frame_shape), np.uint8)
    state = replay.state_dict() | {
        "next": frames,
        "running": False,
        "first": first,
        "action": actions,
        "reward": noise.random(frames, np.float32),
        "terminated": np.zeros(frames, bool),
        "truncated": left == 1,
        "frames": np.broadcast_to(pictures, (frames, *replay.frame_shape)),
    }
    if replay.is_prioritised:
        state["leaf"] = np.where(left > 0, noise.random(frames), 0.0)
    replay.load_state_dict(state)
