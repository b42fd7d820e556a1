"""Train the objective alone, on 5,000 decisions of random actions, and print how well the state can be read from the encoder.

    python tools/alone.py dmcontrol/ball_in_cup-catch 1000
    python tools/alone.py dmcontrol/ball_in_cup-catch 1000 agent.auxiliary.warmup_updates=300 objective.mask.cube=4,16,16

A run trains the encoder with the agent's loss, too; this shows what the objective does without it, and how soon. A random action
is held for 1 to 5 decisions. A linear map predicts the simulator's state in episodes that it was not fitted to; `maskrl probe` does
the same for the encoder of a run.
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from maskrl import recipes
from maskrl.agents.base import Agent, Spaces
from maskrl.envs.base import state_of
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Replay
from maskrl.representation.latents import effective_rank, linear_probe, varying
from maskrl.runs.build import build_agent, configure_process, replay_size

DECISIONS, LONGEST_HOLD = 5000, 5
EVERY = 250  # updates


class Collected(NamedTuple):
    """Every decision in the replay; observation and state of every second one."""

    replay: Replay
    obs: Tensor  # (N, C, H, W) uint8
    states: Tensor  # (N, values)
    episodes: Tensor  # (N,)


def collect(recipe: Recipe, env: gym.Env[Any, Any]) -> Collected:
    spaces, draw = Spaces.of(env), np.random.default_rng(recipe.seed)
    size = replay_size(recipe, spaces)
    size["capacity"] = DECISIONS + 1000  # ends after a whole episode
    replay = Replay(**size, seed=recipe.seed)
    observations, states, episodes, decisions, episode = list[Tensor](), list[list[float]](), list[int](), 0, 0
    while decisions < DECISIONS:
        obs, _ = env.reset(seed=recipe.seed + episode)
        replay.begin_episode(obs)
        action, hold, done = np.zeros(spaces.action_dim, np.float32), 0, False
        while not done:
            if hold == 0:
                action = draw.uniform(-1, 1, spaces.action_dim).astype(np.float32)
                hold = int(draw.integers(1, LONGEST_HOLD + 1))
            if decisions % 2 == 0:
                observations.append(torch.from_numpy(np.array(obs)))
                states.append([*(state_of(env) or {}).values()])
                episodes.append(episode)
            obs, reward, terminated, truncated, _ = env.step(action)
            replay.add(action, float(reward), obs, terminated=terminated, truncated=truncated)
            decisions, hold, done = decisions + 1, hold - 1, terminated or truncated
        episode += 1
    return Collected(replay, torch.stack(observations), torch.tensor(states).double(), torch.tensor(episodes))


@torch.no_grad()
def measured(agent: Agent, data: Collected) -> str:
    centre = agent.policy().centre
    parts = [(part if centre is None else centre(part)).float() / 255 for part in torch.split(data.obs, 256)]
    latents = torch.cat([agent.encoder(part) for part in parts])
    chosen = varying(data.states, data.episodes)
    r2 = linear_probe(latents, data.states[:, chosen], data.episodes)
    each = ", ".join(f"{value:.2f}" for value in r2.tolist())
    return f"R² {r2.mean():.3f} ({each}), rank {effective_rank(latents):.1f}"


def main(words: Sequence[str]) -> int:
    task, updates, *overrides = words
    recipe = with_overrides(recipes.find(task, "lite"), ["threads=1", "replay.storage=memory", *overrides])
    configure_process(recipe)
    with closing(recipe.env.make(seed=recipe.seed, training=True)) as env:
        data, agent = collect(recipe, env), build_agent(recipe, env)
        print(f"    0 updates: {measured(agent, data)}", flush=True)
        for update in range(1, int(updates) + 1):
            metrics = agent.update_objective(data.replay)
            if update % EVERY == 0:
                loss = next(float(value) for name, value in metrics.items() if name.endswith("/loss"))
                print(f"{update:5} updates: {measured(agent, data)}, loss {loss:.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
