"""Soft actor-critic from pixels as in CURL and MLR, with an auxiliary objective beside it or without (the paper's Baseline).

The convolutions are shared: the critic and the objective train them, the actor sees them without a gradient. Actor and critic each
have a linear layer and a norm of their own on top. Two slow copies serve the Bellman targets, of the encoder and of the Q heads.

Departures from the released code: random crops reach all places (it never draws the last), the target critic starts as a copy
of the critic even when an objective is used, and the convolutions of the actor step run once, without a graph.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskrl.agents.base import (
    Agent,
    AgentConfig,
    Drawn,
    Generators,
    Learned,
    Metrics,
    PolicyNetwork,
    Spaces,
    Workload,
    require_splittable,
)
from maskrl.clock import Clock
from maskrl.config import Config
from maskrl.nn.augment import AugmentConfig, View
from maskrl.nn.clip import Clip
from maskrl.nn.encoders import ControlEncoder, Encoder, flat
from maskrl.nn.layers import mlp, orthogonal_init
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Host, Needs, ObjectiveConfig, Offers, PolicyBatch, When
from maskrl.objectives.step import AuxiliaryConfig, AuxiliaryStep
from maskrl.replay.buffer import NothingToDrawError, Replay

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0
# `maskrl bench pieces`: 3 % faster than 64 at the paper's sizes and 7 % in the lite profile, with a large cache.
CPU_MICRO_BATCH = 128


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

    def outputs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor.distribution(self.encoder.features(self.pixels(obs)))

    def choose(self, mean: Tensor, log_std: Tensor) -> Tensor:  # type: ignore[override]
        return mean.tanh()


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


class SAC(Agent):
    """Built by `SACConfig.build`. `learn` is one round of all that learns, in the order of the released code."""

    def __init__(
        self,
        config: "SACConfig",
        policy: SACPolicy,
        *,
        target_encoder: Momentum,
        critic: Critic,
        auxiliary: AuxiliaryStep | None,
        when: When,
        every: int,
        generators: Generators,
        device: torch.device,
    ) -> None:
        super().__init__(config, policy, generators, device)
        self.config, self.actor, self.critic, self.target_encoder = config, policy.actor, critic, target_encoder
        self.auxiliary, self.when, self.every = auxiliary, when, every
        self.objective = None if auxiliary is None else auxiliary.objective
        self.needs = Needs() if self.objective is None else self.objective.needs
        # In place, unless the objective is to see the batch as it was stored: it serves one update only.
        self.augment = config.augment.build(generators.augment, inplace=not self.needs.policy_batch)
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

    def explore(self, obs: Tensor, clock: Clock) -> Tensor:
        mean, log_std = self._policy.outputs(obs)
        noise = torch.randn(mean.shape, generator=self.generators.explore, dtype=mean.dtype, device=mean.device)
        return squashed(mean, log_std, noise)

    def due(self) -> tuple[bool, ...]:
        periods = self.config.actor_every, self.config.target_every
        return *super().due(), *(self.updates % period == 0 for period in periods)

    def learn(self, drawn: Drawn) -> Learned:
        config, metrics, clip, batch = self.config, Metrics(), drawn.clip, drawn.batch
        with self.watch("replay"):
            obs, next_obs = self.augment(batch.obs), self.augment(batch.next_obs)
            material = (clip, PolicyBatch(batch.obs, obs))
        with self.watch("critic"):
            metrics |= self.update_critic(obs, batch.actions, batch.rewards, next_obs, batch.discounts)
        metrics |= self._learn_beside("after_critic", *material)
        if self.updates % config.actor_every == 0:
            with self.watch("actor"):
                metrics |= self.update_actor_and_temperature(obs)
        if self.updates % config.target_every == 0:
            self.target_encoder.update()
            self.target_critic.update()
        return Learned(metrics | self._learn_beside("last", *material))

    def reading(self, replay: Replay, update: int) -> Callable[[], Drawn]:
        config, clips = self.config, self._clips(replay) if update % self.every == 0 else None
        draw = replay.draw(config.batch_size)

        def read() -> Drawn:
            clip = None if clips is None else clips()
            return Drawn(draw, replay.transitions(draw, discount=config.discount), clip).pinned(self.device)

        return read

    def _clips(self, replay: Replay) -> Callable[[], Clip] | None:
        """Draw clips for the objective, if it needs some; what is returned reads."""
        steps = self.needs.clip_length
        if not steps:
            return None
        clips = self.config.auxiliary.clips
        try:
            draw = replay.draw(clips, span=steps, purpose="clips")
        except NothingToDrawError:  # no episode is so long: clips reach past its end, and what lies there is masked
            draw = replay.draw(clips, span=steps, whole=False, purpose="clips")
        return lambda: replay.clips(draw, length=steps)

    def _learn_beside(self, place: When, clip: Clip | None, batch: PolicyBatch) -> Metrics:
        """Optimise the objective, if this is its place in the update and its turn."""
        if self.auxiliary is None or self.when != place or self.updates % self.every:
            return {}
        with self.watch("objective"):
            return self.auxiliary.learn(clip, batch)

    def update_objective(self, replay: Replay) -> Metrics:
        if self.auxiliary is None:
            raise ValueError("This agent has no objective to learn from alone. Build it with one.")
        batch = None
        if self.needs.policy_batch:
            obs = replay.transitions(replay.draw(self.config.batch_size)).to(self.device).obs
            batch = PolicyBatch(obs, self.augment(obs))
        clips = self._clips(replay)
        return self.auxiliary(None if clips is None else clips().to(self.device), batch)

    def update_critic(self, obs: View, actions: Tensor, rewards: Tensor, next_obs: View, discounts: Tensor) -> Metrics:
        """Towards r + γ·(min Q̄(o', a') − α·log π(a'|o')) with a' ~ π(o'); the encoder learns with the Q heads."""
        temperature = self.log_temperature.detach().exp()
        total, value = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        self.optimizers["critic"].zero_grad()
        for piece in self._pieces(len(actions)):
            with torch.no_grad():
                pixels = next_obs[piece].pixels()
                next_actions, log_prob = self.actor(self.encoder.features(pixels))
                next_q = self.target_critic(self.target_encoder(pixels), next_actions).amin(dim=0)
                target = rewards[piece] + discounts[piece] * (next_q - temperature * log_prob)
            q = self.critic(self.encoder(obs[piece].pixels()), actions[piece])  # (2, n)
            loss = (q - target).square().sum() / len(actions)
            torch.autograd.backward(loss)
            total, value = total + loss.detach(), value + q.detach().mean(dim=0).sum() / len(actions)
        self.require_finite("critic loss", total)
        self.optimizers["critic"].step()
        return {"critic/loss": total, "critic/q": value}

    def update_actor_and_temperature(self, obs: View) -> Metrics:
        """mean(α·log π − min Q), and the temperature that brings the entropy to −A. The maps carry no gradient."""
        n = len(obs.gain)
        temperature = self.log_temperature.exp()
        total, entropy = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        self.optimizers["actor"].zero_grad()
        for piece in self._pieces(n):
            with torch.no_grad():
                # The actor must not shape the encoder: its gradient degrades the representation (Yarats et al., SAC-AE).
                features = self.encoder.features(obs[piece].pixels())
                states = self.encoder.embed(features)
            actions, log_prob = self.actor(features)
            loss = (temperature.detach() * log_prob - self.critic(states, actions).amin(dim=0)).sum() / n
            torch.autograd.backward(loss, inputs=list(self.actor.parameters()))  # the Q functions only pass it on
            total, entropy = total + loss.detach(), entropy - log_prob.detach().sum() / n
        self.require_finite("actor loss", total)
        self.optimizers["actor"].step()
        self.optimizers["temperature"].zero_grad()
        torch.autograd.backward(temperature * (entropy - self.target_entropy))
        self.optimizers["temperature"].step()
        return {"actor/loss": total, "actor/entropy": entropy, "actor/temperature": temperature.detach()}

    def _pieces(self, n: int) -> Iterator[slice]:
        """Pieces of a batch small enough for the cache; their gradients add up to the whole batch's."""
        size = self.config.micro_batch_on(self.device) or n
        return (slice(start, start + size) for start in range(0, n, size))


@dataclass(frozen=True, kw_only=True)
class ControlEncoderConfig(Config):
    """See `ControlEncoder`."""

    filters: int = 64
    latent_dim: int = 50
    strides: tuple[int, ...] = (2, 1, 1, 1)
    convolution_init: Literal["delta_orthogonal", "orthogonal"] = "delta_orthogonal"
    linear_init: Literal["orthogonal", "truncated_normal"] = "orthogonal"  # MLR's recipes set truncated_normal

    def build(self, obs_shape: tuple[int, int, int]) -> ControlEncoder:
        return ControlEncoder(obs_shape, **vars(self))


@dataclass(frozen=True, kw_only=True)
class SACConfig(AgentConfig):
    """The paper's agent on DMControl."""

    offers: ClassVar[Offers] = Offers(places=("after_critic", "last"), lacks=("q_projection",))

    kind: Literal["sac"] = "sac"
    encoder: ControlEncoderConfig = field(default_factory=ControlEncoderConfig)
    hidden: int = 1024  # width of the actor's and the Q functions' layers
    augment: AugmentConfig = field(
        default_factory=lambda: AugmentConfig(intensity=0.0)
    )  # of the policy batch: crop only
    warmup_decisions: int = 1000  # uniformly random actions, no updates
    updates_per_decision: int | float = 1
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
    micro_batch: int | None = None  # observations per piece; None: what suits the device, see `micro_batch_on`

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive(
            "hidden", "updates_per_decision", "batch_size", "learning_rate", "temperature", "actor_every"
        )
        self.require_positive("target_every", "micro_batch")
        if not 0 < self.discount <= 1:
            raise ValueError(f"discount={self.discount} must be in (0, 1]; the paper uses 0.99.")

    def micro_batch_on(self, device: torch.device) -> int | None:
        """How many observations are computed at once; None: all. The maps of a piece should fit into a CPU's cache.

        This is a rule, although a measurement would choose better by a few percent: sums round by how they are cut, and the same
        seed must give the same run.
        """
        return self.micro_batch or (CPU_MICRO_BATCH if device.type == "cpu" else None)

    def workload(self, objective: ObjectiveConfig | None, device: torch.device) -> Workload:
        length = 0 if objective is None else objective.needs.clip_length
        whole = max(self.batch_size, self.auxiliary.clips * length)
        at_once = max(min(self.micro_batch_on(device) or whole, whole), length)
        return Workload(at_once, 2 * self.batch_size + self.auxiliary.clips * length)

    def turn(self, objective: ObjectiveConfig | None) -> int:
        return math.lcm(self.actor_every, super().turn(objective))

    def scaled(self, share: float) -> "SACConfig":
        clips, batch_size = (max(1, round(count * share)) for count in (self.auxiliary.clips, self.batch_size))
        return replace(self, batch_size=batch_size, auxiliary=replace(self.auxiliary, clips=clips))

    def beside(self, objective: ObjectiveConfig | None) -> "SACConfig":
        linear_init = "orthogonal" if objective is None else objective.linear_init
        return replace(self, encoder=replace(self.encoder, linear_init=linear_init))

    def build(self, spaces: Spaces, objective: ObjectiveConfig | None, device: torch.device, *, seed: int = 0) -> SAC:
        if spaces.discrete:
            raise ValueError(
                "SAC needs continuous actions; this environment takes discrete ones. Use agent kind rainbow."
            )
        obs_shape = self.obs_shape(spaces)
        encoder = self.encoder.build(obs_shape).to(device)
        target_encoder = Momentum(encoder, self.encoder_momentum)
        actor = Actor(encoder, spaces.action_dim, self.hidden).to(device)
        critic = Critic(encoder.latent_dim, spaces.action_dim, self.hidden).to(device)
        generators, auxiliary = Generators(seed, device), None
        if objective is not None:
            host = Host(
                encoder, encoder.latent_dim, spaces.action_dim, obs_shape=obs_shape, target_encoder=target_encoder,
                generator=generators.objective,
            )  # fmt: skip
            built = objective.build(host).to(device)
            require_splittable(built, self.micro_batch)
            auxiliary = AuxiliaryStep(built, self.auxiliary, micro_batch=self.micro_batch_on(device))
        return SAC(
            self,
            SACPolicy(encoder, actor, self.augment.crop),
            target_encoder=target_encoder,
            critic=critic,
            auxiliary=auxiliary,
            when=(objective and objective.when) or self.offers.places[0],
            every=1 if objective is None else objective.every,
            generators=generators,
            device=device,
        )
