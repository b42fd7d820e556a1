"""Soft actor-critic from pixels as in CURL and MLR, with the paper's auxiliary objective beside it or without (the Baseline).

The convolutions are shared: the critic and the objective train them, the actor sees them without a gradient. Actor and critic each
have a linear layer and a norm of their own on top. Two slow copies serve the Bellman targets, of the encoder and of the Q heads.

Departures from the released code: random crops reach all places (it never draws the last), the target critic starts as a copy
of the critic even when an objective is used, and the convolutions of the actor step run once, without a graph.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from maskrl.agents.base import Metrics, Spaces, Stopwatch, require_finite
from maskrl.config import Config
from maskrl.nn.augment import Augment, AugmentConfig, CenterCrop, View
from maskrl.nn.encoders import ControlEncoder, Encoder, flat
from maskrl.nn.layers import mlp, orthogonal_init
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import AuxiliaryConfig, AuxiliaryStep, Host, Objective
from maskrl.objectives.mlr import MLRConfig
from maskrl.replay.buffer import Replay

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0
# `maskrl bench pieces`: 3 % faster than 64 at the paper's sizes and 7 % in the lite profile, with a large cache.
CPU_PIECE = 128


class Actor(nn.Module):
    """A squashed Gaussian over actions, from the shared convolutional maps."""

    def __init__(self, encoder: Encoder, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Sequential(
            nn.Linear(math.prod(encoder.feature_shape), encoder.latent_dim), nn.LayerNorm(encoder.latent_dim)
        )
        self.trunk = mlp(encoder.latent_dim, hidden, hidden, 2 * action_dim)
        orthogonal_init(self)

    def distribution(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(N, F, h, w) → mean and log standard deviation before the squashing, (N, A) each."""
        mean, raw = self.trunk(self.embed(flat(features))).chunk(2, dim=-1)
        return mean, LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (raw.tanh() + 1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(N, F, h, w) → a drawn action (N, A) and its log probability (N,)."""
        mean, log_std = self.distribution(features)
        noise = torch.randn_like(mean)
        action = (mean + noise * log_std.exp()).tanh()
        gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        squash = (F.relu(1 - action.square()) + 1e-6).log()
        return action, (gaussian - squash).sum(dim=-1)


class Critic(nn.Module):
    """Two Q functions of a latent state and an action."""

    def __init__(self, latent_dim: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.q1, self.q2 = (mlp(latent_dim + action_dim, hidden, hidden, 1) for _ in range(2))
        orthogonal_init(self)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        """(N, d), (N, A) → (2, N)."""
        both = torch.cat([states, actions], dim=-1)
        return torch.stack([self.q1(both), self.q2(both)]).squeeze(-1)


class SAC:
    """Built by `SACConfig.build`. `update` is one round of all that learns, in the order of the released code."""

    def __init__(
        self,
        config: "SACConfig",
        *,
        encoder: Encoder,
        actor: Actor,
        critic: Critic,
        auxiliary: AuxiliaryStep | None,
        auxiliary_every: int,
        device: torch.device,
    ) -> None:
        self.config, self.device = config, device
        self.encoder, self.actor, self.critic, self.auxiliary = encoder, actor, critic, auxiliary
        self.auxiliary_every = auxiliary_every
        self.augment: Augment = config.augment.build(inplace=True)  # of batches that serve one update only
        self.centre = nn.Identity() if config.augment.crop is None else CenterCrop(config.augment.crop)
        self.target_encoder = Momentum(encoder, config.encoder_momentum)
        self.target_critic = Momentum(critic, config.q_momentum)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.temperature), device=device))
        self.target_entropy = -float(actor.trunk[-1].out_features // 2)  # type: ignore[operator]
        self.critic_optimizer = torch.optim.Adam(
            [*encoder.parameters(), *critic.parameters()], lr=config.learning_rate, fused=True
        )
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=config.learning_rate, fused=True)
        self.temperature_optimizer = torch.optim.Adam(
            [self.log_temperature], lr=config.temperature_learning_rate, betas=(config.temperature_beta, 0.999)
        )
        self.watch = Stopwatch()
        self.updates = 0

    @property
    def objective(self) -> Objective[Any] | None:
        return None if self.auxiliary is None else self.auxiliary.objective

    @torch.no_grad()
    def act(self, obs: NDArray[np.uint8], *, explore: bool) -> NDArray[np.float32]:
        pixels = self.centre(torch.from_numpy(obs).to(self.device)).float() / 255
        features = self.encoder.features(pixels)
        action = self.actor(features)[0] if explore else self.actor.distribution(features)[0].tanh()
        actions: NDArray[np.float32] = action.cpu().numpy()
        return actions

    def update(self, replay: Replay) -> Metrics:
        config, metrics = self.config, Metrics()
        with self.watch("replay"):
            clip = None
            if self.auxiliary is not None and self.updates % self.auxiliary_every == 0:
                steps = self.auxiliary.objective.clip_length
                clip = replay.clips(replay.draw(config.auxiliary.clips, span=steps), length=steps).to(self.device)
            batch = replay.transitions(replay.draw(config.batch_size), discount=config.discount).to(self.device)
            obs, next_obs = self.augment(batch.obs), self.augment(batch.next_obs)
        with self.watch("critic"):
            metrics |= self.update_critic(obs, batch.actions, batch.rewards, next_obs, batch.discounts)
        if self.auxiliary is not None and clip is not None:
            with self.watch("objective"):
                metrics |= self.auxiliary(clip)
        if self.updates % config.actor_every == 0:
            with self.watch("actor"):
                metrics |= self.update_actor_and_temperature(obs)
        if self.updates % config.target_every == 0:
            self.target_encoder.update()
            self.target_critic.update()
        self.updates += 1
        return metrics

    def update_critic(self, obs: View, actions: Tensor, rewards: Tensor, next_obs: View, discounts: Tensor) -> Metrics:
        """Towards r + γ·(min Q̄(o', a') − α·log π(a'|o')) with a' ~ π(o'); the encoder learns with the Q heads."""
        temperature = self.log_temperature.detach().exp()
        total, value = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        self.critic_optimizer.zero_grad()
        for part in self._parts(len(actions)):
            with torch.no_grad():
                pixels = _take(next_obs, part).pixels()
                next_actions, log_prob = self.actor(self.encoder.features(pixels))
                next_q = self.target_critic(self.target_encoder(pixels), next_actions).amin(dim=0)
                target = rewards[part] + discounts[part] * (next_q - temperature * log_prob)
            q = self.critic(self.encoder(_take(obs, part).pixels()), actions[part])  # (2, n)
            loss = (q - target).square().sum() / len(actions)
            torch.autograd.backward(loss)
            total, value = total + loss.detach(), value + q.detach().mean(dim=0).sum() / len(actions)
        require_finite("critic loss", total, self.updates)
        self.critic_optimizer.step()
        return {"critic/loss": total, "critic/q": value}

    def update_actor_and_temperature(self, obs: View) -> Metrics:
        """mean(α·log π − min Q), and the temperature that brings the entropy to −A. The maps carry no gradient."""
        n = len(obs.gain)
        temperature = self.log_temperature.exp()
        total, entropy = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        self.actor_optimizer.zero_grad()
        for part in self._parts(n):
            with torch.no_grad():
                # The actor must not shape the encoder: its gradient degrades the representation (Yarats et al., SAC-AE).
                features = self.encoder.features(_take(obs, part).pixels())
                states = self.encoder.embed(features)
            actions, log_prob = self.actor(features)
            loss = (temperature.detach() * log_prob - self.critic(states, actions).amin(dim=0)).sum() / n
            torch.autograd.backward(loss, inputs=list(self.actor.parameters()))  # the Q functions only pass it on
            total, entropy = total + loss.detach(), entropy - log_prob.detach().sum() / n
        require_finite("actor loss", total, self.updates)
        self.actor_optimizer.step()
        self.temperature_optimizer.zero_grad()
        torch.autograd.backward(temperature * (entropy - self.target_entropy))
        self.temperature_optimizer.step()
        return {"actor/loss": total, "actor/entropy": entropy, "actor/temperature": temperature.detach()}

    def _parts(self, n: int) -> Iterator[slice]:
        """Pieces of a batch small enough for the cache; their gradients add up to the whole batch's."""
        size = self.config.piece(self.device) or n
        return (slice(start, start + size) for start in range(0, n, size))

    def _modules(self) -> dict[str, nn.Module]:
        return {
            "encoder": self.encoder,
            "actor": self.actor,
            "critic": self.critic,
            "target_encoder": self.target_encoder,
            "target_critic": self.target_critic,
        }

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {
            "critic": self.critic_optimizer,
            "actor": self.actor_optimizer,
            "temperature": self.temperature_optimizer,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "modules": {name: module.state_dict() for name, module in self._modules().items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self._optimizers().items()},
            "log_temperature": self.log_temperature.detach().clone(),
            "auxiliary": None if self.auxiliary is None else self.auxiliary.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, module in self._modules().items():
            module.load_state_dict(state["modules"][name])
        for name, optimizer in self._optimizers().items():
            optimizer.load_state_dict(state["optimizers"][name])
        with torch.no_grad():
            self.log_temperature.copy_(state["log_temperature"])
        if self.auxiliary is not None:
            self.auxiliary.load_state_dict(state["auxiliary"])
        self.updates = state["updates"]


@dataclass(frozen=True, kw_only=True)
class ControlEncoderConfig(Config):
    """See `ControlEncoder`."""

    filters: int = 64
    latent_dim: int = 50
    strides: tuple[int, ...] = (2, 1, 1, 1)
    convolution_init: Literal["delta_orthogonal", "orthogonal"] = "delta_orthogonal"
    linear_init: Literal["orthogonal", "truncated_normal"] = "orthogonal"  # MLR's recipes set truncated_normal

    def build(self, obs_shape: tuple[int, int, int]) -> ControlEncoder:
        return ControlEncoder(
            obs_shape,
            filters=self.filters,
            latent_dim=self.latent_dim,
            strides=self.strides,
            convolution_init=self.convolution_init,
            linear_init=self.linear_init,
        )


@dataclass(frozen=True, kw_only=True)
class SACConfig(Config):
    """The paper's agent on DMControl."""

    kind: Literal["sac"] = "sac"
    encoder: ControlEncoderConfig = field(default_factory=ControlEncoderConfig)
    hidden: int = 1024  # width of the actor's and the Q functions' layers
    augment: AugmentConfig = field(
        default_factory=lambda: AugmentConfig(intensity=0.0)
    )  # of the policy batch: crop only
    warmup_decisions: int = 1000  # uniformly random actions, no updates
    updates_per_decision: int = 1
    batch_size: int = 512
    discount: float = 0.99
    learning_rate: float = 1e-3  # actor and critic
    temperature: float = 0.1  # α, at the start
    temperature_learning_rate: float = 1e-4
    temperature_beta: float = 0.5  # Adam's β1
    actor_every: int = 2  # updates
    target_every: int = 2  # updates
    q_momentum: float = 0.99  # what the Q heads' slow copy keeps
    encoder_momentum: float = 0.95  # what the encoder's slow copy for Bellman targets keeps
    auxiliary: AuxiliaryConfig = field(default_factory=AuxiliaryConfig)
    micro_batch: int | None = None  # observations per piece; None: what suits the device, see `piece`

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            "hidden",
            "updates_per_decision",
            "batch_size",
            "learning_rate",
            "temperature",
            "actor_every",
            "target_every",
            "micro_batch",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} must be positive.")
        if not 0 < self.discount <= 1:
            raise ValueError(f"discount={self.discount} must be in (0, 1]; the paper uses 0.99.")

    def piece(self, device: torch.device) -> int | None:
        """How many observations are computed at once; None: all. The maps of a piece should fit into a CPU's cache.

        A rule, where a measurement would choose better by a few percent: sums round as they are cut, and the same seed is to
        give the same run.
        """
        return self.micro_batch or (CPU_PIECE if device.type == "cpu" else None)

    def build(self, spaces: Spaces, objective: MLRConfig | None, device: torch.device) -> SAC:
        if spaces.discrete:
            raise ValueError(
                "SAC needs continuous actions; this environment takes discrete ones. Use agent kind rainbow."
            )
        channels, height, width = spaces.obs
        side = self.augment.crop
        obs_shape = (channels, side or height, side or width)
        encoder = self.encoder.build(obs_shape).to(device)
        actor = Actor(encoder, spaces.action_dim, self.hidden).to(device)
        critic = Critic(encoder.latent_dim, spaces.action_dim, self.hidden).to(device)
        auxiliary = None
        if objective is not None:
            host = Host(encoder, encoder.latent_dim, spaces.action_dim, obs_shape=obs_shape)
            piece = self.piece(device)
            clips = None if piece is None else max(1, piece // objective.clip_length)
            auxiliary = self.auxiliary.build(objective.build(host).to(device), micro_batch=clips)
        return SAC(
            self,
            encoder=encoder,
            actor=actor,
            critic=critic,
            auxiliary=auxiliary,
            auxiliary_every=1 if objective is None else objective.every,
            device=device,
        )


def _take(view: View, part: slice) -> View:
    return View(view.obs[part], view.gain[part])
