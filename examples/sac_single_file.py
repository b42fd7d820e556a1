"""SAC from pixels in one file, with MLR as three marked lines. Minutes on a CPU.

    python examples/sac_single_file.py               # or with other values: steps=1000 seed=3

It balances the pole on DMControl's cart. Random actions score about 280 of 1000. Letters: N batch, C H W pixels, A action, d
latent. For another task, return an environment with uint8 (C, H, W) observations from `make_env`, and an encoder for its size
from `make_encoder`.
"""

import sys
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import maskrl
from maskrl.nn.augment import RandomShift


@dataclass
class Config:
    seed: int = 1
    steps: int = 7500
    learning_starts: int = 500
    replay_size: int = 7500
    batch_size: int = 64
    learning_rate: float = 1e-3
    discount: float = 0.99
    target_rate: float = 0.01  # how much of the critic its slow copy takes over at each update
    evaluate_every: int = 1500
    frame_stack: int = 3  # frames on the channel axis, which MLR's store keeps once
    shift: int = 2  # pixels that the critic's pictures move at random
    latent: int = 50  # d
    hidden: int = 256
    clips: int = 4  # that MLR learns from at a time


def make_env(config: Config) -> gym.Env[Any, Any]:
    stack = f"env.frame_stack={config.frame_stack}"
    recipe = maskrl.recipe("dmcontrol/cartpole-balance", stack, profile="lite")  # 48 pixels, 8 frames per decision
    return recipe.env.make(seed=config.seed, training=False)  # with the rewards of an evaluation, not clipped


def make_encoder(channels: int, latent: int) -> nn.Sequential:
    return nn.Sequential(  # (N, C, 48, 48) in [0, 1]
        *(nn.Conv2d(channels, 16, 3, stride=2), nn.ReLU()),  # (N, 16, 23, 23)
        *(nn.Conv2d(16, 16, 3, stride=2), nn.ReLU()),  # (N, 16, 11, 11)
        *(nn.Conv2d(16, 16, 3), nn.ReLU()),  # (N, 16, 9, 9)
        *(nn.Flatten(), nn.Linear(16 * 9 * 9, latent), nn.LayerNorm(latent)),  # (N, d)
    )


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


class Critic(nn.Module):
    """The encoder is the critic's: its loss and MLR's train it, the actor looks through it without a gradient."""

    def __init__(self, channels: int, actions: int, config: Config) -> None:
        super().__init__()
        self.encoder = make_encoder(channels, config.latent)
        self.heads = nn.ModuleList([mlp(config.latent + actions, config.hidden, 1) for _ in range(2)])

    def encode(self, obs: Tensor) -> Tensor:  # (N, C, H, W) uint8 → (N, d)
        latents: Tensor = self.encoder(obs.float() / 255)
        return latents

    def forward(self, latents: Tensor, actions: Tensor) -> Tensor:  # (N, d), (N, A) → (N, 2)
        return torch.cat([head(torch.cat([latents, actions], dim=1)) for head in self.heads], dim=1)


def sample(actor: nn.Module, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(N, d) → a squashed sample (N, A), its log-probability (N,) and the mean (N, A)."""
    mean, log_std = actor(latents).chunk(2, dim=1)
    normal = torch.distributions.Normal(mean, (-4 + 3 * (log_std.tanh() + 1)).exp())
    raw = normal.rsample()
    squash = 2 * (np.log(2) - raw - nn.functional.softplus(-2 * raw))  # log(1 - tanh²), without its cancellation
    return raw.tanh(), (normal.log_prob(raw) - squash).sum(dim=1), mean.tanh()


@torch.no_grad()
def act(critic: Critic, actor: nn.Module, obs: np.ndarray, *, explore: bool) -> np.ndarray:
    noisy, _, mean = sample(actor, critic.encode(torch.from_numpy(obs)[None]))
    return (noisy if explore else mean)[0].numpy()


def play(env: gym.Env[Any, Any], critic: Critic, actor: nn.Module, episodes: int = 5) -> float:
    """The mean return of the mean actions."""
    total = 0.0
    for _ in range(episodes):
        (obs, _), over = env.reset(), False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(act(critic, actor, obs, explore=False))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def train(config: Config) -> float:
    np.random.seed(config.seed), torch.manual_seed(config.seed), torch.set_num_threads(1)
    env, eval_env = make_env(config), make_env(replace(config, seed=config.seed + 1000))
    env.action_space.seed(config.seed)
    channels, height, width = env.observation_space.shape
    actions = env.action_space.shape[0]
    critic, actor = Critic(channels, actions, config), mlp(config.latent, config.hidden, 2 * actions)
    slow = deepcopy(critic).requires_grad_(False)
    log_alpha = torch.tensor(np.log(0.1), dtype=torch.float32, requires_grad=True)
    optimizers = [torch.optim.Adam(group, config.learning_rate) for group in (critic.parameters(), actor.parameters())]
    alpha_optimizer = torch.optim.Adam([log_alpha], 1e-4)
    shift = RandomShift(config.shift)

    # ── MLR 1 of 3: where clips come from, and the objective that borrows the encoder ──
    mlr, clips = make_mlr(config, critic.encoder, env)

    size = config.replay_size
    seen, following = (np.zeros((size, channels, height, width), np.uint8) for _ in range(2))
    taken, gained = np.zeros((size, actions), np.float32), np.zeros(size, np.float32)
    stopped = np.zeros(size, np.float32)
    obs, _ = env.reset()
    for step in range(config.steps):
        warm = step < config.learning_starts
        action = env.action_space.sample() if warm else act(critic, actor, obs, explore=True)
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
        if warm:
            continue

        rows, alpha = np.random.randint(0, min(step + 1, size), config.batch_size), log_alpha.detach().exp()
        now, then = shift(torch.from_numpy(seen[rows])), shift(torch.from_numpy(following[rows]))  # (N, C, H, W)
        with torch.no_grad():
            next_action, log_prob, _ = sample(actor, critic.encode(then))
            value = slow(slow.encode(then), next_action).amin(dim=1) - alpha * log_prob  # (N,)
            goal = torch.from_numpy(gained[rows]) + config.discount * torch.from_numpy(1 - stopped[rows]) * value
        latents = critic.encode(now)
        critic_loss = (critic(latents, torch.from_numpy(taken[rows])) - goal[:, None]).square().mean(dim=0).sum()
        descend(optimizers[0], critic_loss)
        metrics = mlr(clips.draw(config.clips, length=8))  # ── MLR 3 of 3: after the critic, as in the paper ──

        latents = latents.detach()
        fresh, log_prob, _ = sample(actor, latents)
        descend(optimizers[1], (alpha * log_prob - critic(latents, fresh).amin(dim=1)).mean())
        descend(alpha_optimizer, (log_alpha.exp() * (-log_prob.detach() + actions)).mean())
        for copy, weight in zip(slow.parameters(), critic.parameters(), strict=True):
            copy.data.lerp_(weight.data, config.target_rate)
        if (step + 1) % config.evaluate_every == 0:
            score = play(eval_env, critic, actor)
            print(f"step {step + 1:5d}  return {score:4.0f}  mlr cosine {metrics['mlr/cosine']:.2f}", flush=True)
    return play(eval_env, critic, actor, episodes=10)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def make_mlr(
    config: Config, encoder: nn.Module, env: gym.Env[Any, Any]
) -> tuple[maskrl.AuxiliaryStep, maskrl.ClipStore]:
    clips = maskrl.ClipStore(
        env.observation_space, env.action_space, config.replay_size, frame_stack=config.frame_stack, seed=config.seed
    )
    objective = maskrl.MLRConfig(
        clip_length=8,
        mask=maskrl.MaskConfig(cube=(4, 8, 8)),
        augment=maskrl.AugmentConfig(crop=None, shift=config.shift),
    )
    host = maskrl.host_for(objective, encoder, obs_shape=clips.obs_shape, action_dim=clips.action_dim)
    return maskrl.AuxiliaryStep(objective.build(host), maskrl.AuxiliaryConfig(warmup_updates=500)), clips


if __name__ == "__main__":
    given = dict(word.split("=") for word in sys.argv[1:])
    defaults = Config()
    config = replace(defaults, **{name: type(getattr(defaults, name))(value) for name, value in given.items()})
    print(f"return at the end: {train(config):.0f} of 1000 (random actions: about 280)")
