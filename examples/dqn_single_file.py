"""DQN from pixels in one file, with MLR as three marked lines. Minutes on a CPU.

    python examples/dqn_single_file.py               # or with other values: steps=2000 seed=3

It walks to the goal in MiniGrid's 5 × 5 room: a return near 1 is the shortest way, 0 is a timeout. Letters: N batch, C H W pixels,
A actions, d latent. For another task, return an environment with uint8 (C, H, W) observations from `make_env`.
"""

import random
import sys
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import maskrl


@dataclass
class Config:
    seed: int = 1
    steps: int = 5000
    learning_starts: int = 500
    replay_size: int = 5000
    batch_size: int = 64
    learning_rate: float = 5e-4
    discount: float = 0.95
    epsilon_steps: int = 2500  # of exploration, from 1 down to 0.05
    target_every: int = 200  # steps between copies into the target network
    evaluate_every: int = 1000
    frame_stack: int = 2  # frames on the channel axis, which MLR's store keeps once
    latent: int = 64  # d
    clips: int = 8  # that MLR learns from at a time


def make_env(config: Config) -> gym.Env[Any, Any]:
    wrappers, stack = "env.wrappers=minigrid.wrappers:RGBImgObsWrapper", f"env.frame_stack={config.frame_stack}"
    recipe = maskrl.recipe("gym/MiniGrid-Empty-5x5-v0", wrappers, stack, "env.size=48")  # resized and stacked
    return recipe.env.make(seed=config.seed, training=False)  # with the rewards of an evaluation, not clipped


class QNetwork(nn.Module):
    def __init__(self, channels: int, actions: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(  # (N, C, 48, 48) in [0, 1]
            *(nn.Conv2d(channels, 16, 4, stride=4), nn.ReLU()),  # (N, 16, 12, 12)
            *(nn.Conv2d(16, 32, 2, stride=2), nn.ReLU()),  # (N, 32, 6, 6)
            *(nn.Flatten(), nn.Linear(32 * 6 * 6, latent), nn.LayerNorm(latent)),  # (N, d)
        )
        self.head = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, actions))

    def forward(self, obs: Tensor) -> Tensor:  # (N, C, H, W) uint8 → (N, A)
        values: Tensor = self.head(self.encoder(obs.float() / 255))
        return values


def play(env: gym.Env[Any, Any], network: QNetwork, episodes: int = 10) -> float:
    """The mean return of the greedy policy."""
    total = 0.0
    for _ in range(episodes):
        (obs, _), over = env.reset(), False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(int(network(torch.from_numpy(obs)[None]).argmax()))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def train(config: Config) -> float:
    random.seed(config.seed), np.random.seed(config.seed), torch.manual_seed(config.seed), torch.set_num_threads(1)
    env, eval_env = make_env(config), make_env(replace(config, seed=config.seed + 1000))
    (channels, height, width), actions = env.observation_space.shape, int(env.action_space.n)
    network = QNetwork(channels, actions, config.latent)
    target = deepcopy(network).requires_grad_(False)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)

    # ── MLR 1 of 3: where clips come from, and the objective that borrows the encoder ──
    mlr, clips = make_mlr(config, network.encoder, env)

    size = config.replay_size
    seen, following = (np.zeros((size, channels, height, width), np.uint8) for _ in range(2))
    taken, gained, stopped = np.zeros(size, np.int64), np.zeros(size, np.float32), np.zeros(size, np.float32)
    obs, _ = env.reset()
    for step in range(config.steps):
        epsilon = max(0.05, 1 - step / config.epsilon_steps)
        greedy = step >= config.learning_starts and random.random() > epsilon
        action = int(network(torch.from_numpy(obs)[None]).argmax()) if greedy else random.randrange(actions)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        slot = step % size
        seen[slot], following[slot], taken[slot], gained[slot], stopped[slot] = (
            obs,
            next_obs,
            action,
            reward,
            terminated,
        )
        clips.add(obs, action, terminated or truncated)  # ── MLR 2 of 3: beside the replay's own line ──
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step < config.learning_starts:
            continue

        rows = np.random.randint(0, min(step + 1, size), config.batch_size)
        with torch.no_grad():
            best = target(torch.from_numpy(following[rows])).amax(dim=1)  # (N,)
            goal = torch.from_numpy(gained[rows]) + config.discount * torch.from_numpy(1 - stopped[rows]) * best
        value = network(torch.from_numpy(seen[rows])).gather(1, torch.from_numpy(taken[rows])[:, None])[:, 0]  # (N,)
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(value, goal).backward()
        optimizer.step()
        metrics = mlr(clips.draw(config.clips, length=8))  # ── MLR 3 of 3: beside the optimiser's own line ──

        if step % config.target_every == 0:
            target.load_state_dict(network.state_dict())
        if (step + 1) % config.evaluate_every == 0:
            print(
                f"step {step + 1:5d}  return {play(eval_env, network):6.2f}  mlr cosine {metrics['mlr/cosine']:.2f}",
                flush=True,
            )
    return play(eval_env, network, episodes=20)


def make_mlr(
    config: Config, encoder: nn.Module, env: gym.Env[Any, Any]
) -> tuple[maskrl.AuxiliaryStep, maskrl.ClipStore]:
    clips = maskrl.ClipStore(
        env.observation_space, env.action_space, config.replay_size, frame_stack=config.frame_stack, seed=config.seed
    )
    objective = maskrl.MLRConfig(
        clip_length=8,
        mask=maskrl.MaskConfig(cube=(4, 8, 8)),
        augment=maskrl.AugmentConfig(crop=None, intensity=0.0),
    )
    host = maskrl.host_for(objective, encoder, obs_shape=clips.obs_shape, action_dim=clips.action_dim)
    optimiser = maskrl.AuxiliaryConfig(learning_rate=config.learning_rate, warmup_updates=500)
    return maskrl.AuxiliaryStep(objective.build(host), optimiser), clips


if __name__ == "__main__":
    given = dict(word.split("=") for word in sys.argv[1:])
    defaults = Config()
    config = replace(defaults, **{name: type(getattr(defaults, name))(value) for name, value in given.items()})
    print(f"return at the end: {train(config):.2f} (1 minus the time taken; 0: timeout)")
