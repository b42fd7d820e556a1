"""Rainbow from pixels as in SPR and MLR on Atari-100k, with an objective in one joint loss or without (the paper's Baseline).

Distributional, dueling, double Q-learning with noisy layers, prioritised replay and n-step returns. Each of these is a setting of
`RainbowConfig`, so simpler variants (data-efficient Rainbow, DQN, DrQ) are recipes, not agents.

An objective learns from clips that begin at the drawn transitions, with the same importance weights, in the same Adam step. Its
projection consists of the Q head's first layers, which therefore learn from it, too.

Departures from the released code: a termination anywhere within the n steps cuts the bootstrap (`late_ends`), constant feature
maps do not divide by zero, draws leave out fewer of the newest steps (max(n, K) instead of 1 + n + K), actions past the end of an
episode are zero, and the decoder is not copied into the target network, which never uses it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

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
    ReplayNeeds,
    Spaces,
    Workload,
    require_splittable,
)
from maskrl.agents.encoders import AnyEncoder, NatureEncoderConfig
from maskrl.clock import Clock
from maskrl.nn.augment import AugmentConfig, View
from maskrl.nn.encoders import Encoder
from maskrl.nn.layers import Affine, NoisyLinear, joined, resample, with_noise
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Host, Material, Objective, ObjectiveConfig, Offers, PolicyBatch
from maskrl.objectives.step import optimizer_groups
from maskrl.replay.buffer import PrioritiesError, Replay, Transitions

# ── Outputs of a Q function ───────────────────────────────────────────────────────────────────────────────────────────


class Categorical(nn.Module):
    """A distribution over fixed atoms (C51; Bellemare et al., 2017)."""

    atoms: Tensor

    def __init__(self, width: int, low: float, high: float) -> None:
        super().__init__()
        self.width, self.low, self.high = width, low, high
        self.register_buffer("atoms", torch.linspace(low, high, width), persistent=False)

    def mean(self, outputs: Tensor) -> Tensor:
        """(…, width) → the expected return (…)."""
        return outputs.softmax(dim=-1) @ self.atoms

    def target(self, rewards: Tensor, discounts: Tensor, next_outputs: Tensor) -> Tensor:
        """(B,), (B,), (B, width) → the target distribution of reward + discount · return, (B, width).

        The atoms move to reward + discount · atom; mass between two atoms is split in proportion to nearness.
        """
        moved = (rewards[:, None] + discounts[:, None] * self.atoms).clamp(self.low, self.high)  # (B, from)
        gap = (self.high - self.low) / (self.width - 1)
        share = (1 - (moved[:, None, :] - self.atoms[:, None]).abs() / gap).clamp(min=0)  # (B, to, from)
        return (share @ next_outputs.softmax(dim=-1)[:, :, None]).squeeze(-1)

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        return -(target * outputs.log_softmax(dim=-1)).sum(dim=-1)

    def surprise(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The priorities before the exponent, (B,): KL(target ‖ outputs), with the released code's floor."""
        floored = target.clamp(min=1e-6)
        return (floored * (floored.log() - outputs.log_softmax(dim=-1))).sum(dim=-1)


class Scalar(nn.Module):
    """The expected return only (DQN); the same methods as `Categorical`."""

    width = 1

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def target(self, rewards: Tensor, discounts: Tensor, next_outputs: Tensor) -> Tensor:
        return rewards[:, None] + discounts[:, None] * next_outputs

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(outputs, target, reduction="none").squeeze(-1)

    def surprise(self, outputs: Tensor, target: Tensor) -> Tensor:
        return (outputs - target).abs().squeeze(-1)


# ── The Q head ────────────────────────────────────────────────────────────────────────────────────────────────────────


class QHead(nn.Module):
    """Latent states to outputs for every action: one stream, or two if `dueling` (value and advantage; Wang et al., 2016)."""

    def __init__(
        self,
        latent_dim: int,
        hidden: int,
        actions: int,
        width: int,
        *,
        dueling: bool,
        layer: Callable[[int, int], nn.Module],
        vector: int = 0,  # length of the vector observation
    ) -> None:
        super().__init__()
        self.actions, self.width = actions, width
        outputs = [width, actions * width] if dueling else [actions * width]
        self.first = FirstLayers(vector, (layer(latent_dim + vector, hidden) for _ in outputs))
        self.last = nn.ModuleList(layer(hidden, n) for n in outputs)

    def with_noise(self) -> list[Affine]:
        """Weight and bias of every layer; in training, with their noise."""
        return with_noise([*self.first, *self.last])

    def forward(self, states: Tensor, layers: Sequence[Affine] | None = None) -> Tensor:
        """(N, d), or (N, d + V) with vector observations → (N, A, width). `layers`: what `with_noise` returns, if it is known."""
        layers = layers or self.with_noise()
        if len(self.last) == 2:
            # Both streams send gradients back; scaled by 1/√2, their sum has the size of one (Wang et al., 2016).
            states = states.detach() + (states - states.detach()) / math.sqrt(2)
        pairs = zip(layers[: len(self.first)], layers[len(self.first) :], strict=True)
        streams = [F.linear(F.relu(F.linear(states, *first)), *last) for first, last in pairs]
        outputs = streams[-1].view(-1, self.actions, self.width)
        if len(streams) == 2:
            outputs = streams[0][:, None] + outputs - outputs.mean(dim=1, keepdim=True)
        return outputs

    def resample(self, generator: torch.Generator | None = None) -> None:
        """Draw new noise for all noisy layers."""
        resample((layer for layer in self.modules() if isinstance(layer, NoisyLinear)), generator)


class FirstLayers(nn.ModuleList):
    """The first layers of all streams, concatenated and without noise: the projection of SPR, and of the paper on Atari.

    An objective sees pictures only, so vector observations are replaced by zeros.
    """

    def __init__(self, vector: int, layers: Iterable[nn.Module]) -> None:
        super().__init__(layers)
        self._vector = vector

    def forward(self, states: Tensor) -> Tensor:
        """(N, d) → (N, streams · hidden), the value stream first."""
        states = F.pad(states, (0, self._vector)) if self._vector else states
        return torch.cat(
            [layer.mean(states) if isinstance(layer, NoisyLinear) else layer(states) for layer in self], dim=-1
        )


# ── The agent ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class RainbowPolicy(PolicyNetwork):
    """The action with the highest expected return. In evaluation mode the head has no noise."""

    def __init__(self, encoder: Encoder, head: QHead, returns: Categorical | Scalar, crop: int | None) -> None:
        super().__init__(encoder, crop)
        self.head, self.returns = head, returns

    def outputs(self, obs: Tensor, vectors: Tensor | None = None) -> tuple[Tensor]:
        """The expected return of every action, (N, A)."""
        return (self.returns.mean(self.head(joined(self.encoder(self.pixels(obs)), vectors))),)

    def choose(self, expected: Tensor) -> Tensor:  # type: ignore[override]
        return expected.argmax(dim=-1)


class Rainbow(Agent):
    """Built by `RainbowConfig.build`. `learn` makes one step of Adam on the sum of both losses."""

    def __init__(
        self,
        config: "RainbowConfig",
        policy: RainbowPolicy,
        *,
        target_encoder: Momentum,
        objective: Objective[Any] | None,
        every: int,
        generators: Generators,
        device: torch.device,
    ) -> None:
        super().__init__(config, policy, generators, device)
        self.config, self.head, self.returns, self.target_encoder = config, policy.head, policy.returns, target_encoder
        self.objective, self.every = objective, every
        self.augment = config.augment.build(generators.augment)
        self.target_head = Momentum(self.head, 0.0)
        self.modules = {"encoder": self.encoder, "head": self.head}
        self.modules |= {"target_encoder": target_encoder, "target_head": self.target_head}
        self.modules |= {} if objective is None else {"objective": objective}
        groups = [] if objective is None else objective.parameter_groups()
        own = [*self.encoder.parameters(), *self.head.parameters()]
        # Groups whose gradients are clipped separately, by the metric of their norm.
        clipped = [group for group in groups if group.clipped]
        joined_by = [parameter for group in clipped if group.with_agent for parameter in group.parameters]
        apart = [(group.name, group.parameters) for group in clipped if not group.with_agent]
        self.clipped = [("critic", [*own, *joined_by]), *apart]
        parameters = [*own, *(parameter for group in groups for parameter in group.parameters)]
        self.optimizer = torch.optim.Adam(
            optimizer_groups(parameters, groups, config.learning_rate),
            lr=config.learning_rate, eps=config.adam_epsilon, fused=True,
        )  # fmt: skip
        self.optimizers = {"joint": self.optimizer}
        self.protect()

    def epsilon(self, clock: Clock) -> float:
        """The share of random actions, falling from 1 to `epsilon` over `epsilon_decisions` after the warm-up."""
        config = self.config
        explored = max(0, clock.decisions - config.warmup_decisions)
        left = max(0.0, 1 - explored / config.epsilon_decisions) if config.epsilon_decisions else 0.0
        return config.epsilon + (1 - config.epsilon) * left

    @property
    def correction(self) -> float:
        """β, how much of the bias of prioritised draws the weights correct: rises to 1."""
        config = self.config
        return config.correction + (1 - config.correction) * min(1.0, self.updates / config.correction_updates)

    def explore(self, obs: Tensor, clock: Clock, vectors: Tensor | None = None) -> Tensor:
        self._policy.train()  # the head with its noise, redrawn at every update
        self.encoder.eval()  # but without dropout
        actions: Tensor = self._policy(obs, vectors)
        self.encoder.train()
        if (epsilon := self.epsilon(clock)) > 0:
            stream, where = self.generators.explore, self.device
            random = torch.randint(self.head.actions, actions.shape, generator=stream, device=where)
            chance = torch.rand(actions.shape, generator=stream, device=where)
            actions = torch.where(chance < epsilon, random, actions)
        return actions

    def renew_noise(self) -> None:
        self.head.resample(self.generators.explore)
        if self.config.target_every > 1:  # otherwise the target keeps the noise that it copied one update ago (F67)
            slow = self.target_head.copy
            assert isinstance(slow, QHead)
            slow.resample(self.generators.explore)

    def due(self) -> tuple[bool, ...]:
        return *super().due(), self._copies_targets

    @property
    def _copies_targets(self) -> bool:
        return (self.updates + 1) % self.config.target_every == 0

    def learn(self, drawn: Drawn) -> Learned:
        config, batch, weights = self.config, drawn.batch, drawn.weights
        assert weights is not None  # see `reading`
        objective = self.objective if self.updates % self.every == 0 else None
        with self.watch("replay"):
            obs, next_obs = self.augment(batch.obs), self.augment(batch.next_obs)
            judged = self.augment(batch.next_obs) if config.double else next_obs
        self.optimizer.zero_grad()
        with self.watch("critic"):
            metrics, errors = self.add_q_gradient(batch, weights, obs, next_obs, judged)
        if objective is not None:
            count = min(config.clips or len(batch), len(batch))  # from the first drawn transitions
            material = Material(drawn.clip, PolicyBatch(batch.obs[:count], obs[:count]), self.updates)
            with self.watch("objective"):
                views = objective.views(material)
                loss = objective.add_gradient(views, micro_batch=config.micro_batch, weights=weights[:count])
            metrics |= loss.metrics
            if loss.priorities is not None:
                errors[: len(loss.priorities)] += loss.priorities
        with self.watch("optimizer"):
            metrics |= self._clip_and_step(objective)
        if self._copies_targets:
            self.target_encoder.update()
            self.target_head.update()
        return Learned(metrics, errors)

    def reading(self, replay: Replay, update: int) -> Callable[[], Drawn]:
        config = self.config
        objective = self.objective if update % self.every == 0 else None
        length = objective.needs.clip_length if objective else 0
        try:
            draw = replay.draw(
                config.batch_size, span=max(config.n_step, length, 1), whole=False, correction=self.correction,
                stratified=config.stratified,
            )  # fmt: skip
        except PrioritiesError:
            self.check()  # raises with the cause
            raise

        def read() -> Drawn:
            batch = replay.transitions(draw, n_step=config.n_step, discount=config.discount, late_ends=config.late_ends)
            clip = replay.clips(draw.first(config.clips or len(draw)), length=length) if length else None
            return Drawn(draw, batch, clip, draw.weights).pinned(self.device)

        return read

    def add_q_gradient(
        self, batch: Transitions, weights: Tensor, obs: View, next_obs: View, judged: View
    ) -> tuple[Metrics, Tensor]:
        """Add the weighted gradient towards the distribution of r + γⁿ·Z̄(o', argmax_a Q(o', a)); also return each error.

        `judged`: the next observations from which the online network chooses the action (double Q-learning).
        """
        next_pixels = next_obs.pixels()
        judged_pixels = judged.pixels() if self.config.double else next_pixels
        self.renew_noise()
        noisy = self.head.with_noise()
        with torch.no_grad():
            beside = batch.next_vectors
            next_outputs = self.target_head(joined(self.target_encoder(next_pixels), beside))  # (B, A, width)
            judge = (
                self.head(joined(self.encoder(judged_pixels), beside), noisy) if self.config.double else next_outputs
            )
            best = self.returns.mean(judge).argmax(dim=-1)
            target = self.returns.target(batch.rewards, batch.discounts, _of(next_outputs, best))
        outputs = self.head(joined(self.encoder(obs.pixels()), batch.vectors), noisy)  # (B, A, width)
        taken = _of(outputs, batch.actions.argmax(dim=-1))
        loss = (weights * self.returns.loss(taken, target)).mean()
        self.require_finite("Q loss", loss)
        torch.autograd.backward(loss)
        found = {"critic/loss": loss.detach(), "critic/q": self.returns.mean(outputs.detach()).amax(dim=-1).mean()}
        error = self.returns.surprise if self.config.priority == "kl" else self.returns.loss
        return found, error(taken.detach(), target)

    def update_objective(self, replay: Replay) -> Metrics:
        if self.objective is None:
            raise ValueError(
                "This agent has no objective, so update_objective has nothing to do. Build the agent with one."
            )
        config, length = self.config, self.objective.needs.clip_length
        draw = replay.draw(config.clips or config.batch_size, span=max(1, length), whole=False)
        clip = replay.clips(draw, length=length).to(self.device) if length else None
        batch = None
        if self.objective.needs.policy_batch:
            obs = replay.transitions(draw).to(self.device).obs
            batch = PolicyBatch(obs, self.augment(obs))
        self.guard.begin(self.updates)
        self.optimizer.zero_grad()
        views = self.objective.views(Material(clip, batch, self.updates))
        metrics = self.objective.add_gradient(views, micro_batch=config.micro_batch).metrics
        return metrics | self.step(self.objective)

    def step(self, objective: Objective[Any] | None) -> Metrics:
        """Clip each group and step Adam: the end of an update."""
        metrics = self._clip_and_step(objective)
        self.updates += 1
        return metrics

    def _clip_and_step(self, objective: Objective[Any] | None) -> Metrics:
        norms = [nn.utils.clip_grad_norm_(group, self.config.max_grad_norm) for _, group in self.clipped]
        for norm in norms:
            self.require_finite("gradient of the loss", norm)
        if objective is not None:
            # Before the step, as in the released code: with a momentum of 0, the copy lags by one update.
            objective.update_momentum()
        self.optimizer.step()
        named = zip(self.clipped, norms, strict=True)
        return {f"{name}/gradient_norm": norm for (name, _), norm in named if name is not None}


@dataclass(frozen=True, kw_only=True)
class RainbowConfig(AgentConfig):
    """The paper's agent on Atari-100k."""

    offers: ClassVar[Offers] = Offers(places=("joint",))

    kind: Literal["rainbow"] = "rainbow"
    encoder: AnyEncoder = field(default_factory=NatureEncoderConfig)
    hidden: int = 256  # width of each stream of the Q head
    returns: Literal["categorical", "scalar"] = "categorical"
    atoms: int = 51  # of categorical returns
    support: float = 10.0  # atoms lie in [-support, support]
    noisy_std: float | None = 0.1  # σ₀; None: plain layers
    dueling: bool = True
    double: bool = True
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig(crop=None, shift=4))
    warmup_decisions: int = 2000  # uniformly random actions, no updates
    updates_per_decision: int | float = 2
    batch_size: int = 32
    n_step: int = 10
    late_ends: bool = True  # False: the bug of the released code's library, see Replay.transitions
    discount: float = 0.99
    learning_rate: float = 1e-4
    adam_epsilon: float = 1.5e-4
    max_grad_norm: float = 10.0  # of encoder and head, and of the objective's groups (`Group.clipped`)
    target_every: int = 1  # updates between copies into the target network
    priority_exponent: float | None = 0.5  # ω; None: uniform draws
    priority: Literal["kl", "cross_entropy"] = (
        "kl"  # kl: the divergence from the target; cross_entropy: the loss itself (CURL)
    )
    stratified: bool = False  # True: one draw from each of B equal shares of the priorities (CURL)
    correction: float = 0.4  # β at the first update; it rises to 1
    correction_updates: int = 196_000  # until β is 1
    epsilon: float = 0.0  # the final share of random actions; 0 with noisy layers
    epsilon_decisions: int = 0  # after the warm-up, over which it falls from 1
    clips: int | None = None  # maximum clips per update, from the first drawn transitions; None: all
    micro_batch: int | None = None  # observations per piece of the objective; None: the whole batch

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("hidden", "support", "updates_per_decision", "batch_size", "n_step", "learning_rate")
        self.require_positive("adam_epsilon", "max_grad_norm", "target_every", "correction_updates", "clips")
        self.require_positive("micro_batch", "noisy_std", "priority_exponent")
        if self.stratified and self.priority_exponent is None:
            raise ValueError(
                "stratified=True divides the priorities into equal shares, but priority_exponent is None. Set it."
            )
        if self.atoms < 2:
            raise ValueError(f"atoms={self.atoms} must be at least 2; use returns=scalar for no distribution.")
        for name in ("discount", "correction", "epsilon", "priority_exponent"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name}={value} must lie in [0, 1].")
        if self.epsilon_decisions < 0 or self.warmup_decisions < 0:
            raise ValueError("epsilon_decisions and warmup_decisions must not be negative.")

    def replay_needs(self) -> ReplayNeeds:
        return ReplayNeeds(self.priority_exponent)

    def workload(self, objective: ObjectiveConfig | None, device: torch.device) -> Workload:
        if objective is None:
            return Workload(self.batch_size, 2 * self.batch_size)
        clips = min(self.clips or self.batch_size, self.batch_size)
        length = max(1, objective.needs.clip_length)
        at_once = clips * length if self.micro_batch is None else max(self.micro_batch, length)
        return Workload(max(self.batch_size, at_once), 2 * self.batch_size + clips * length)

    def scaled(self, share: float) -> "RainbowConfig":
        def part(count: int) -> int:
            return max(1, round(count * share))

        clips = None if self.clips is None else part(min(self.clips, self.batch_size))
        return replace(self, batch_size=part(self.batch_size), clips=clips)

    def beside(self, objective: ObjectiveConfig | None) -> "RainbowConfig":
        return self if objective is None or objective.splits else replace(self, micro_batch=None)

    def build(
        self, spaces: Spaces, objective: ObjectiveConfig | None, device: torch.device, *, seed: int = 0
    ) -> Rainbow:
        if not spaces.discrete:
            raise ValueError(
                "Rainbow chooses among discrete actions; this environment takes continuous ones. Use agent kind sac."
            )
        obs_shape = self.obs_shape(spaces)
        encoder = self.encoder.build(obs_shape).to(device)
        target_encoder = Momentum(encoder, 0.0)
        kinds: dict[str, Callable[[], Categorical | Scalar]] = {
            "categorical": lambda: Categorical(self.atoms, -self.support, self.support),
            "scalar": Scalar,
        }
        returns = kinds[self.returns]().to(device)
        sigma = self.noisy_std
        layer = nn.Linear if sigma is None else lambda fan_in, fan_out: NoisyLinear(fan_in, fan_out, sigma)
        head = QHead(
            encoder.latent_dim, self.hidden, spaces.action_dim, returns.width, dueling=self.dueling, layer=layer,
            vector=spaces.vector,
        ).to(device)  # fmt: skip
        generators, built = Generators(seed, device), None
        if objective is not None:
            host = Host(
                encoder, encoder.latent_dim, spaces.action_dim, q_projection=head.first, obs_shape=obs_shape,
                target_encoder=target_encoder, discrete=True, generator=generators.objective,
            )  # fmt: skip
            built = objective.build(host).to(device)
            require_splittable(built, self.micro_batch)
        return Rainbow(
            self,
            RainbowPolicy(encoder, head, returns, self.augment.crop),
            target_encoder=target_encoder,
            objective=built,
            every=1 if objective is None else objective.every,
            generators=generators,
            device=device,
        )


def _of(outputs: Tensor, actions: Tensor) -> Tensor:
    """The outputs of these actions: (B, A, width), (B,) → (B, width)."""
    return outputs[torch.arange(len(actions), device=actions.device), actions]
