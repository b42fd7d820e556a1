"""Soft actor-critic from pixels as in CURL and MLR, with an auxiliary objective beside it or without (the paper's Baseline).

The convolutions are shared: the critic and the objective train them, the actor uses them without a gradient. Actor and critic each
have their own linear layer and norm on top. Slow copies of the encoder and of the Q heads compute the Bellman targets.

Departures from the released code: random crops cover the whole frame (it never draws the last position), the target critic starts
as a copy of the critic even with an objective, and the convolutions of the actor step run once, without a graph.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskrl.agents.base import (
    Drawn,
    Generators,
    Learned,
    Metrics,
    PolicyNetwork,
    Spaces,
)
from maskrl.agents.beside import Beside, BesideConfig, LearnsBeside
from maskrl.agents.encoders import AnyEncoder, ControlEncoderConfig
from maskrl.clock import Clock
from maskrl.nn.augment import AugmentConfig, View
from maskrl.nn.encoders import Encoder, flat
from maskrl.nn.layers import joined, mlp, orthogonal_init
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Host, ObjectiveConfig, Offers, PolicyBatch
from maskrl.objectives.step import AuxiliaryConfig
from maskrl.replay.buffer import Transitions

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0


class Actor(nn.Module):
    """A squashed Gaussian over actions, from the shared convolutional maps."""

    def __init__(
        self, encoder: Encoder, action_dim: int, hidden: int, *, squash: bool = False, vector: int = 0
    ) -> None:
        super().__init__()
        d = encoder.latent_dim
        end = [nn.Tanh()] if squash else []
        self.embed = nn.Sequential(nn.Linear(math.prod(encoder.feature_shape), d), nn.LayerNorm(d), *end)
        self.trunk = mlp(d + vector, hidden, hidden, 2 * action_dim)
        orthogonal_init(self)

    def distribution(self, features: Tensor, vectors: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(N, F, h, w), and (N, V) if given → mean and log standard deviation before the squashing, (N, A) each."""
        mean, raw = self.trunk(joined(self.embed(flat(features)), vectors)).chunk(2, dim=-1)
        return mean, LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (raw.tanh() + 1)

    def forward(self, features: Tensor, vectors: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(N, F, h, w) → a drawn action (N, A) and its log probability (N,)."""
        mean, log_std = self.distribution(features, vectors)
        noise = torch.randn_like(mean)
        action = squashed(mean, log_std, noise)
        gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        squash = (F.relu(1 - action.square()) + 1e-6).log()
        return action, (gaussian - squash).sum(dim=-1)


def squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    return (mean + noise * log_std.exp()).tanh()


class SACPolicy(PolicyNetwork):
    """The squashed mean."""

    def __init__(self, encoder: Encoder, actor: Actor, crop: int | None) -> None:
        super().__init__(encoder, crop)
        self.actor = actor

    def outputs(self, obs: Tensor, vectors: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.actor.distribution(self.encoder.features(self.pixels(obs)), vectors)

    def choose(self, mean: Tensor, log_std: Tensor) -> Tensor:  # type: ignore[override]
        return mean.tanh()


class Critic(nn.Module):
    """Two Q functions of a latent state (with a vector observation, if any) and an action."""

    def __init__(self, latent_dim: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.q1, self.q2 = (mlp(latent_dim + action_dim, hidden, hidden, 1) for _ in range(2))
        orthogonal_init(self)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        """(N, d), (N, A) → (2, N)."""
        both = torch.cat([states, actions], dim=-1)
        return torch.stack([self.q1(both), self.q2(both)]).squeeze(-1)


class SAC(LearnsBeside):
    """Built by `SACConfig.build`. `learn` updates all parts that are due, in the order of the released code."""

    def __init__(
        self,
        config: "SACConfig",
        policy: SACPolicy,
        *,
        target_encoder: Momentum,
        critic: Critic,
        beside: Beside,
        generators: Generators,
        device: torch.device,
    ) -> None:
        super().__init__(config, policy, beside, generators, device, once=config.views == 1)
        self.config, self.actor, self.critic, self.target_encoder = config, policy.actor, critic, target_encoder
        self.target_critic = Momentum(critic, config.q_momentum)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.temperature), device=device))
        self.target_entropy = -float(self.actor.trunk[-1].out_features // 2)  # type: ignore[operator]
        self.modules = {
            "encoder": self.encoder,
            "actor": self.actor,
            "critic": critic,
            "target_encoder": target_encoder,
            "target_critic": self.target_critic,
        }
        learned = {"critic": [*self.encoder.parameters(), *critic.parameters()], "actor": self.actor.parameters()}
        self.optimizers = {
            name: torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)
            for name, parameters in learned.items()
        }
        self.optimizers["temperature"] = torch.optim.Adam(
            [self.log_temperature], lr=config.temperature_learning_rate,
            betas=(config.temperature_beta, 0.999),
            fused=True,
        )  # fmt: skip
        self.protect()

    def own_state(self) -> dict[str, Tensor]:
        return {"log_temperature": self.log_temperature}

    def explore(self, obs: Tensor, clock: Clock, vectors: Tensor | None = None) -> Tensor:
        mean, log_std = self._policy.outputs(obs, vectors)
        noise = torch.randn(mean.shape, generator=self.generators.explore, dtype=mean.dtype, device=mean.device)
        return squashed(mean, log_std, noise)

    def due(self) -> tuple[bool, ...]:
        return *super().due(), self._is_due(self.config.actor_every), self._is_due(self.config.target_every)

    def _is_due(self, period: int) -> bool:
        """Whether a part that runs every `period` updates is due. In the burst after the warm-up, every part is."""
        return self.updates < self.config.burst or self.updates % period == 0

    def learn(self, drawn: Drawn) -> Learned:
        config, metrics, clip, batch = self.config, Metrics(), drawn.clip, drawn.batch
        with self.watch("replay"):
            obs, next_obs = ([self.augment(each) for _ in range(config.views)] for each in (batch.obs, batch.next_obs))
            material = (clip, PolicyBatch(batch.obs, obs[0]))
        with self.watch("critic"):
            metrics |= self.update_critic(obs, batch, next_obs)
        metrics |= self.learn_beside("after_critic", *material)
        if self._is_due(config.actor_every):
            with self.watch("actor"):
                metrics |= self.update_actor_and_temperature(obs[0], batch.vectors)
        if self._is_due(config.target_every):
            self.target_encoder.update()
            self.target_critic.update()
        return Learned(metrics | self.learn_beside("last", *material))

    def update_critic(self, obs: Sequence[View], batch: Transitions, next_obs: Sequence[View]) -> Metrics:
        """Update the critic and the encoder towards r + γ·(min Q̄(o', a') − α·log π(a'|o')) with a' ~ π(o').

        With several views per observation (DrQ), targets are averaged and losses are added up.
        """
        temperature, actions = self.log_temperature.detach().exp(), batch.actions
        total, value = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        self.optimizers["critic"].zero_grad()
        for piece in self.pieces(len(actions)):
            beside, next_beside = batch.vectors_of(piece)
            with torch.no_grad():
                values = [self._next_value(view[piece].pixels(), next_beside, temperature) for view in next_obs]
                mean = sum(values[1:], values[0]) / len(values)
                target = batch.rewards[piece] + batch.discounts[piece] * mean
            for view in obs:
                q = self.critic(joined(self.encoder(view[piece].pixels()), beside), actions[piece])  # (2, n)
                loss = (q - target).square().sum() / len(actions)
                torch.autograd.backward(loss)
                total = total + loss.detach()
                value = value + q.detach().mean(dim=0).sum() / (len(actions) * len(obs))
        self.require_finite("critic loss", total)
        self.optimizers["critic"].step()
        return {"critic/loss": total, "critic/q": value}

    def _next_value(self, pixels: Tensor, vectors: Tensor | None, temperature: Tensor) -> Tensor:
        """Min Q̄(o', a') − α·log π(a'|o') with a' ~ π(o'), for every observation."""
        actions, log_prob = self.actor(self.encoder.features(pixels), vectors)
        q = self.target_critic(joined(self.target_encoder(pixels), vectors), actions)
        value: Tensor = q.amin(dim=0) - temperature * log_prob
        return value

    def update_actor_and_temperature(self, obs: View, vectors: Tensor | None = None) -> Metrics:
        """Minimise mean(α·log π − min Q), and move the temperature so that the entropy nears −A. The maps carry no gradient."""
        n = len(obs.gain)
        temperature = self.log_temperature.exp()
        total, entropy = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        self.optimizers["actor"].zero_grad()
        for piece in self.pieces(n):
            beside = None if vectors is None else vectors[piece]
            with torch.no_grad():
                # The actor must not train the encoder: its gradient degrades the representation (Yarats et al., SAC-AE).
                features = self.encoder.features(obs[piece].pixels())
                states = joined(self.encoder.embed(features), beside)
            actions, log_prob = self.actor(features, beside)
            loss = (temperature.detach() * log_prob - self.critic(states, actions).amin(dim=0)).sum() / n
            torch.autograd.backward(loss, inputs=list(self.actor.parameters()))  # not of the Q functions
            total, entropy = total + loss.detach(), entropy - log_prob.detach().sum() / n
        self.require_finite("actor loss", total)
        self.optimizers["actor"].step()
        self.optimizers["temperature"].zero_grad()
        torch.autograd.backward(temperature * (entropy - self.target_entropy))
        self.optimizers["temperature"].step()
        return {"actor/loss": total, "actor/entropy": entropy, "actor/temperature": temperature.detach()}


@dataclass(frozen=True, kw_only=True)
class SACConfig(BesideConfig):
    """The paper's agent on DMControl."""

    offers: ClassVar[Offers] = Offers(places=("after_critic", "last"), lacks=("q_projection", "latent_maps"))

    kind: Literal["sac"] = "sac"
    encoder: AnyEncoder = field(default_factory=ControlEncoderConfig)
    hidden: int = 1024  # width of the actor's and the Q functions' layers
    augment: AugmentConfig = field(
        default_factory=lambda: AugmentConfig(intensity=0.0)
    )  # of the critic's batch: crop only
    warmup_decisions: int = 1000  # uniformly random actions, no updates
    updates_per_decision: int | float = 1
    burst: int = 0  # updates after the warm-up, in which every part learns (SAC+AE)
    batch_size: int = 512
    views: int = 1  # augmented views per observation; targets are averaged, losses added up (DrQ)
    discount: float = 0.99
    learning_rate: float = 1e-3  # actor and critic
    temperature: float = 0.1  # α, at the start
    temperature_learning_rate: float = 1e-4
    temperature_beta: float = 0.5  # Adam's β1
    actor_every: int = 2  # updates
    target_every: int = 2  # updates
    q_momentum: float = 0.99  # of the Q heads' slow copy
    encoder_momentum: float = 0.95  # of the encoder's slow copy for Bellman targets
    auxiliary: AuxiliaryConfig = field(default_factory=AuxiliaryConfig)
    micro_batch: int | None = None  # observations per piece; None: chosen by device, see `micro_batch_on`

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive(
            "hidden", "updates_per_decision", "batch_size", "learning_rate", "temperature", "actor_every"
        )
        self.require_positive("target_every", "micro_batch", "views")
        self.require_at_least(0, "burst")
        if not 0 < self.discount <= 1:
            raise ValueError(f"discount={self.discount} must be in (0, 1]; the paper uses 0.99.")

    def updates_by(self, decisions: int) -> int:
        return super().updates_by(decisions) + (max(0, self.burst - 1) if decisions > self.warmup_decisions else 0)

    def turn(self, objective: ObjectiveConfig | None) -> int:
        return math.lcm(self.actor_every, super().turn(objective))

    def settled(self) -> "SACConfig":
        return replace(self, burst=0)

    def beside(self, objective: ObjectiveConfig | None) -> "SACConfig":
        linear_init = "orthogonal" if objective is None else objective.linear_init
        return replace(self, encoder=self.encoder.with_linear_init(linear_init))  # type: ignore[arg-type]

    def build(self, spaces: Spaces, objective: ObjectiveConfig | None, device: torch.device, *, seed: int = 0) -> SAC:
        if spaces.discrete:
            raise ValueError(
                "SAC needs continuous actions; this environment takes discrete ones. Use agent kind rainbow."
            )
        obs_shape = self.obs_shape(spaces)
        encoder = self.encoder.build(obs_shape).to(device)
        target_encoder = Momentum(encoder, self.encoder_momentum)
        squash, vector = self.encoder.squashes, spaces.vector
        actor = Actor(encoder, spaces.action_dim, self.hidden, squash=squash, vector=vector).to(device)
        critic = Critic(encoder.latent_dim + vector, spaces.action_dim, self.hidden).to(device)
        generators = Generators(seed, device)
        host = Host(
            encoder, encoder.latent_dim, spaces.action_dim, obs_shape=obs_shape, target_encoder=target_encoder,
            generator=generators.objective,
        )  # fmt: skip
        return SAC(
            self,
            SACPolicy(encoder, actor, self.augment.crop),
            target_encoder=target_encoder,
            critic=critic,
            beside=Beside.of(objective, host, self, device),
            generators=generators,
            device=device,
        )
