"""DrQ-v2 (Yarats et al., ICLR 2022): deterministic policy gradients from shifted pixels.

An actor explores with Gaussian noise that falls with the decisions made. A critic of two Q functions learns from returns of three
steps and trains the convolutions. Only the critic has a slow copy: next observations are encoded by the trained convolutions.

Departures from the released code (reasons in docs/fidelity-systems.md):

- Transitions are drawn uniformly, including those of the running episode. The released code draws a finished episode, then a step.
- True terminations end a return. The released environment turns a discount of 0 into 1.
- One Adam steps convolutions and critic; with equal learning rates, the released code's two do the same.
- Shifts copy whole pixels. The released code samples bilinearly at whole pixels, which is the same up to rounding.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from maskrl.agents.base import Drawn, Generators, Learned, Metrics, PolicyNetwork, Spaces
from maskrl.agents.beside import Beside, BesideConfig, LearnsBeside
from maskrl.agents.encoders import AnyEncoder, ControlEncoderConfig
from maskrl.agents.sac import Critic
from maskrl.clock import Clock
from maskrl.nn.augment import AugmentConfig, View
from maskrl.nn.encoders import Encoder, flat
from maskrl.nn.layers import joined, mlp, orthogonal_init
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Host, ObjectiveConfig, Offers, PolicyBatch
from maskrl.objectives.step import AuxiliaryConfig
from maskrl.replay.buffer import Replay, Transitions

EDGE = 1 - 1e-6  # largest magnitude of actions with noise


# ── Acting ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Actor(nn.Module):
    """(N, F, h, w) → the best action (N, A) in [-1, 1]."""

    def __init__(self, encoder: Encoder, action_dim: int, hidden: int, vector: int = 0) -> None:
        super().__init__()
        d = encoder.latent_dim
        self.embed = nn.Sequential(nn.Linear(math.prod(encoder.feature_shape), d), nn.LayerNorm(d), nn.Tanh())
        self.trunk = mlp(d + vector, hidden, hidden, action_dim)
        orthogonal_init(self)

    def forward(self, features: Tensor, vectors: Tensor | None = None) -> Tensor:
        actions: Tensor = self.trunk(joined(self.embed(flat(features)), vectors)).tanh()
        return actions


class DrQv2Policy(PolicyNetwork):
    """The actor's mean."""

    def __init__(self, encoder: Encoder, actor: Actor, crop: int | None) -> None:
        super().__init__(encoder, crop)
        self.actor = actor

    def outputs(self, obs: Tensor, vectors: Tensor | None = None) -> tuple[Tensor]:
        return (self.actor(self.encoder.features(self.pixels(obs)), vectors),)

    def choose(self, mean: Tensor) -> Tensor:  # type: ignore[override]
        return mean


# ── Learning ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class DrQv2(LearnsBeside):
    """Built by `DrQv2Config.build`."""

    def __init__(
        self,
        config: "DrQv2Config",
        policy: DrQv2Policy,
        *,
        critic: Critic,
        slow_encoder: Momentum,
        beside: Beside,
        generators: Generators,
        device: torch.device,
    ) -> None:
        super().__init__(config, policy, beside, generators, device)
        self.config, self.n_step = config, config.n_step
        self.actor, self.critic, self.slow_encoder = policy.actor, critic, slow_encoder
        self.slow_critic = Momentum(critic, config.momentum)
        self.slow_embed: Callable[[Tensor], Tensor] = slow_encoder.copy.embed  # type: ignore[assignment]
        self.modules = {"encoder": self.encoder, "actor": self.actor, "critic": critic}
        self.modules |= {"slow_encoder": slow_encoder, "slow_critic": self.slow_critic}
        learned = {"critic": [*self.encoder.parameters(), *critic.parameters()], "actor": self.actor.parameters()}
        self.optimizers = {
            name: torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)
            for name, parameters in learned.items()
        }
        self.noise = torch.zeros((), device=device)  # σ of the current update, on the device
        self.protect()

    def explore(self, obs: Tensor, clock: Clock, vectors: Tensor | None = None) -> Tensor:
        (mean,) = self._policy.outputs(obs, vectors)
        draw = torch.randn(mean.shape, generator=self.generators.explore, dtype=mean.dtype, device=mean.device)
        return (mean + self.config.noise_at(clock.decisions) * draw).clamp(-1, 1)

    def update(self, replay: Replay) -> Metrics:
        config = self.config
        self.noise.fill_(config.noise_at(config.warmup_decisions + self.updates / config.updates_per_decision))
        return super().update(replay)

    def learn(self, drawn: Drawn) -> Learned:
        batch = drawn.batch
        with self.watch("replay"):
            obs, next_obs = self.augment(batch.obs), self.augment(batch.next_obs)
            beside = (drawn.clip, PolicyBatch(batch.obs, obs))
        with self.watch("critic"):
            metrics = self.update_critic(obs, batch, next_obs)
        metrics |= self.learn_beside("after_critic", *beside)
        with self.watch("actor"):
            metrics |= self.update_actor(obs, batch.vectors)
        self.slow_encoder.update()
        self.slow_critic.update()
        return Learned(metrics | self.learn_beside("last", *beside))

    def update_critic(self, obs: View, batch: Transitions, next_obs: View) -> Metrics:
        """Update the critic towards R + γⁿ·min Q̄(o', a') with a' = μ(o') plus clipped noise, and the convolutions with it."""
        actions = batch.actions
        total, value = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        self.optimizers["critic"].zero_grad()
        for piece in self.pieces(len(actions)):
            beside, next_beside = batch.vectors_of(piece)
            with torch.no_grad():
                features = self.encoder.features(next_obs[piece].pixels())
                next_actions = self.noisy(self.actor(features, next_beside))
                next_q = self.slow_critic(joined(self.slow_embed(features), next_beside), next_actions)
                target = batch.rewards[piece] + batch.discounts[piece] * next_q.amin(dim=0)
            q = self.critic(joined(self.encoder(obs[piece].pixels()), beside), actions[piece])  # (2, n)
            loss = (q - target).square().sum() / len(actions)
            torch.autograd.backward(loss)
            total, value = total + loss.detach(), value + q.detach().mean(dim=0).sum() / len(actions)
        self.require_finite("critic loss", total)
        self.optimizers["critic"].step()
        return {"critic/loss": total, "critic/q": value}

    def update_actor(self, obs: View, vectors: Tensor | None = None) -> Metrics:
        """Update the actor towards higher min Q(o, a). Its input carries no gradient."""
        n, total = len(obs.gain), torch.zeros((), device=self.device)
        self.optimizers["actor"].zero_grad()
        for piece in self.pieces(n):
            beside = None if vectors is None else vectors[piece]
            with torch.no_grad():
                features = self.encoder.features(obs[piece].pixels())
                states = joined(self.encoder.embed(features), beside)
            loss = -self.critic(states, self.noisy(self.actor(features, beside))).amin(dim=0).sum() / n
            torch.autograd.backward(loss, inputs=list(self.actor.parameters()))
            total = total + loss.detach()
        self.require_finite("actor loss", total)
        self.optimizers["actor"].step()
        return {"actor/loss": total, "actor/noise": self.noise.clone()}

    def noisy(self, actions: Tensor) -> Tensor:
        """Actions plus noise of at most `noise_clip`, clamped; the clamp lets the gradient pass."""
        draw = torch.randn_like(actions)
        moved = actions + (self.noise * draw).clamp(-self.config.noise_clip, self.config.noise_clip)
        return moved + (moved.clamp(-EDGE, EDGE) - moved).detach()


# ── Configuration ─────────────────────────────────────────────────────────────────────────────────────────────────────


ENCODER = ControlEncoderConfig(filters=32, convolution_init="orthogonal", squash=True, centre=True)


@dataclass(frozen=True, kw_only=True)
class DrQv2Config(BesideConfig):
    """The authors' values for easy tasks; `recipes.dmcontrol` has those for other tasks."""

    offers: ClassVar[Offers] = Offers(
        places=("after_critic", "last"), lacks=("q_projection", "target_encoder", "latent_maps")
    )

    kind: Literal["drqv2"] = "drqv2"
    encoder: AnyEncoder = field(default_factory=lambda: ENCODER)
    hidden: int = 1024
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig(crop=None, shift=4, intensity=0.0))
    warmup_decisions: int = 2000
    updates_per_decision: int | float = 0.5
    batch_size: int = 256
    n_step: int = 3
    discount: float = 0.99
    learning_rate: float = 1e-4
    momentum: float = 0.99  # of the critic's slow copy
    noise: float = 1.0  # σ at the start
    final_noise: float = 0.1
    noise_decisions: int = 100_000  # until σ reaches its end
    noise_clip: float = 0.3  # limit of the noise in updates
    auxiliary: AuxiliaryConfig = field(
        default_factory=lambda: AuxiliaryConfig(clips=32, learning_rate=1e-4, schedule="constant")
    )
    micro_batch: int | None = None  # observations per piece; None: chosen by device

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("hidden", "updates_per_decision", "batch_size", "n_step", "learning_rate", "noise_clip")
        self.require_positive("noise_decisions", "micro_batch")
        self.require_at_least(0, "noise", "final_noise")
        if not 0 < self.discount <= 1:
            raise ValueError(f"discount={self.discount} must be in (0, 1]; the paper uses 0.99.")

    def noise_at(self, decisions: float) -> float:
        """σ, falling linearly from its start to its end."""
        share = min(1.0, decisions / self.noise_decisions)
        return self.noise + share * (self.final_noise - self.noise)

    def build(self, spaces: Spaces, objective: ObjectiveConfig | None, device: torch.device, *, seed: int = 0) -> DrQv2:
        if spaces.discrete:
            raise ValueError(
                "DrQ-v2 needs continuous actions; this environment takes discrete ones. Use agent kind rainbow."
            )
        obs_shape = self.obs_shape(spaces)
        encoder = self.encoder.build(obs_shape).to(device)
        actor = Actor(encoder, spaces.action_dim, self.hidden, spaces.vector).to(device)
        critic = Critic(encoder.latent_dim + spaces.vector, spaces.action_dim, self.hidden).to(device)
        generators = Generators(seed, device)
        host = Host(encoder, encoder.latent_dim, spaces.action_dim, obs_shape=obs_shape, generator=generators.objective)
        return DrQv2(
            self,
            DrQv2Policy(encoder, actor, self.augment.crop),
            critic=critic,
            slow_encoder=Momentum(encoder, self.momentum),
            beside=Beside.of(objective, host, self, device),
            generators=generators,
            device=device,
        )
