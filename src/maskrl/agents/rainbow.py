"""Rainbow from pixels as in SPR and MLR on Atari-100k, with the paper's objective in one joint loss or without (the Baseline).

Distributional, dueling, double Q-learning with noisy layers, prioritised replay and returns of several steps. Each of these is a
value of `RainbowConfig`, so plainer relatives (data-efficient Rainbow, DQN, DrQ) are recipes, not agents.

An objective learns from clips that begin at the drawn transitions, with the same importance weights, in the same Adam step. Its
projection is made of the Q head's own first layers, which therefore learn from it, too.

Departures from the released code: the bootstrap is cut by a termination anywhere within the n steps (`late_ends`), constant
feature maps do not divide by zero, fewer of the newest steps are left out of a draw (max(n, K) instead of 1 + n + K), actions past
the end of an episode are zero, and the decoder is not copied into the target network, which never reads it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from maskrl.agents.base import Metrics, Spaces, Stopwatch, require_finite
from maskrl.config import Config
from maskrl.nn.augment import Augment, AugmentConfig, CenterCrop
from maskrl.nn.encoders import Encoder, NatureEncoder
from maskrl.nn.layers import NoisyLinear
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Host, Objective
from maskrl.objectives.mlr import MLRConfig
from maskrl.replay.buffer import Draw, Replay

# ── What a Q function predicts ────────────────────────────────────────────────────────────────────────────────────────


class Returns(Protocol):
    """How the return of an action is represented by `width` outputs."""

    width: int

    def mean(self, outputs: Tensor) -> Tensor:
        """(…, width) → the expected return (…)."""
        ...

    def target(self, rewards: Tensor, discounts: Tensor, next_outputs: Tensor) -> Tensor:
        """(B,), (B,), (B, width) → what the outputs of reward + discount · return should be."""
        ...

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """(B,)."""
        ...

    def surprise(self, outputs: Tensor, target: Tensor) -> Tensor:
        """(B,): how far the outputs are from the target, the priority of a transition before its exponent."""
        ...


class Categorical(nn.Module):
    """A distribution over fixed atoms (C51; Bellemare et al., 2017)."""

    atoms: Tensor

    def __init__(self, width: int, low: float, high: float) -> None:
        super().__init__()
        self.width, self.low, self.high = width, low, high
        self.register_buffer("atoms", torch.linspace(low, high, width), persistent=False)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(dim=-1) @ self.atoms

    def target(self, rewards: Tensor, discounts: Tensor, next_outputs: Tensor) -> Tensor:
        """The atoms move to reward + discount · atom; what lies between two atoms is shared out by nearness."""
        moved = (rewards[:, None] + discounts[:, None] * self.atoms).clamp(self.low, self.high)  # (B, from)
        gap = (self.high - self.low) / (self.width - 1)
        share = (1 - (moved[:, None, :] - self.atoms[:, None]).abs() / gap).clamp(min=0)  # (B, to, from)
        return (share @ next_outputs.softmax(dim=-1)[:, :, None]).squeeze(-1)

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        return -(target * outputs.log_softmax(dim=-1)).sum(dim=-1)

    def surprise(self, outputs: Tensor, target: Tensor) -> Tensor:
        """KL(target ‖ outputs), with the released code's floor under the target's probabilities."""
        floored = target.clamp(min=1e-6)
        return (floored * (floored.log() - outputs.log_softmax(dim=-1))).sum(dim=-1)


class Scalar(nn.Module):
    """The expected return alone (DQN)."""

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
    ) -> None:
        super().__init__()
        self.actions, self.width = actions, width
        outputs = [width, actions * width] if dueling else [actions * width]
        self.first = FirstLayers(layer(latent_dim, hidden) for _ in outputs)
        self.last = nn.ModuleList(layer(hidden, n) for n in outputs)

    def forward(self, states: Tensor) -> Tensor:
        """(N, d) → (N, A, width)."""
        if len(self.last) == 2:
            # Two streams send their gradients back: scaled by 1/√2, they together have the size of one (Wang et al., 2016).
            states = states.detach() + (states - states.detach()) / math.sqrt(2)
        streams = [last(F.relu(first(states))) for first, last in zip(self.first, self.last, strict=True)]
        outputs: Tensor = streams[-1].unflatten(-1, (self.actions, self.width))
        if len(streams) == 2:
            outputs = streams[0][:, None] + outputs - outputs.mean(dim=1, keepdim=True)
        return outputs

    def resample(self) -> None:
        """Draw new noise for all layers that have some."""
        for layer in self.modules():
            if isinstance(layer, NoisyLinear):
                layer.resample()


class FirstLayers(nn.ModuleList):
    """The first layers of all streams, side by side and without noise: SPR's projection, and the paper's on Atari."""

    def forward(self, states: Tensor) -> Tensor:
        """(N, d) → (N, streams · hidden), the value's first."""
        return torch.cat(
            [layer.mean(states) if isinstance(layer, NoisyLinear) else layer(states) for layer in self], dim=-1
        )


# ── The agent ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Rainbow:
    """Built by `RainbowConfig.build`. `update` is one step of Adam on the sum of both losses."""

    def __init__(
        self,
        config: "RainbowConfig",
        *,
        encoder: Encoder,
        head: QHead,
        returns: Returns,
        objective: Objective[Any] | None,
        objective_every: int,
        device: torch.device,
    ) -> None:
        self.config, self.device = config, device
        self.encoder, self.head, self.returns, self.objective = encoder, head, returns, objective
        self.objective_every = objective_every
        self.augment: Augment = config.augment.build()
        self.centre = nn.Identity() if config.augment.crop is None else CenterCrop(config.augment.crop)
        self.target_encoder, self.target_head = Momentum(encoder, 0.0), Momentum(head, 0.0)
        self.clipped = [
            [*encoder.parameters(), *head.parameters()]
        ]  # groups whose gradients are clipped, each by itself
        free: list[nn.Parameter] = []
        if objective is not None:
            core = [parameter for parameter in objective.core.parameters() if parameter.requires_grad]
            self.clipped.append(core)
            free = [
                other for other in objective.parameters() if other.requires_grad and not any(other is p for p in core)
            ]
        self.optimizer = torch.optim.Adam(
            [*(parameter for group in self.clipped for parameter in group), *free],
            lr=config.learning_rate, eps=config.adam_epsilon, fused=True,
        )  # fmt: skip
        self.watch = Stopwatch()
        self.updates = 0
        self.explored = 0  # decisions made to explore

    @property
    def epsilon(self) -> float:
        """The share of random actions: from 1 to its end over `epsilon_decisions` after the warm-up."""
        config = self.config
        left = max(0.0, 1 - self.explored / config.epsilon_decisions) if config.epsilon_decisions else 0.0
        return config.epsilon + (1 - config.epsilon) * left

    @property
    def correction(self) -> float:
        """β, how much of the prioritised draw's bias the weights take out: from its start to 1."""
        config = self.config
        return config.correction + (1 - config.correction) * min(1.0, self.updates / config.correction_updates)

    @torch.no_grad()
    def act(self, obs: NDArray[np.uint8], *, explore: bool) -> NDArray[np.int64]:
        self.head.train(explore)  # noise is for exploring
        pixels = self.centre(torch.from_numpy(obs).to(self.device)).float() / 255
        actions = self.returns.mean(self.head(self.encoder(pixels))).argmax(dim=-1)
        self.head.train()
        if explore:
            if self.epsilon > 0:
                random = torch.randint(self.head.actions, actions.shape, device=self.device)
                actions = torch.where(torch.rand(actions.shape, device=self.device) < self.epsilon, random, actions)
            self.explored += 1
        chosen: NDArray[np.int64] = actions.cpu().numpy()
        return chosen

    def update(self, replay: Replay) -> Metrics:
        config, metrics = self.config, Metrics()
        objective = self.objective if self.updates % self.objective_every == 0 else None
        with self.watch("replay"):
            span = max(config.n_step, objective.clip_length if objective else 1)
            draw = replay.draw(config.batch_size, span=span, whole=False, correction=self.correction)
        self.optimizer.zero_grad()
        with self.watch("critic"):
            metrics |= self.add_q_gradient(replay, draw)
        if objective is not None:
            with self.watch("replay"):
                starts = draw.first(config.clips or len(draw))
                clip = replay.clips(starts, length=objective.clip_length).to(self.device)
            with self.watch("objective"):
                weights = starts.weights.to(self.device)
                metrics |= objective.add_gradient(
                    objective.views(clip), micro_batch=config.micro_batch, weights=weights
                )
        with self.watch("optimizer"):
            metrics |= self.step(objective)
        if self.updates % config.target_every == 0:
            self.target_encoder.update()
            self.target_head.update()
        return metrics

    def add_q_gradient(self, replay: Replay, draw: Draw) -> Metrics:
        """Towards the distribution of r + γⁿ·Z̄(o', argmax_a Q(o', a)), each transition by its importance weight."""
        config = self.config
        with self.watch("replay"):
            batch = replay.transitions(
                draw, n_step=config.n_step, discount=config.discount, late_ends=config.late_ends
            ).to(self.device)
            pixels, next_pixels = self.augment(batch.obs).pixels(), self.augment(batch.next_obs).pixels()
            judged = self.augment(batch.next_obs).pixels() if config.double else next_pixels
        self.head.resample()
        with torch.no_grad():
            next_outputs = self.target_head(self.target_encoder(next_pixels))  # (B, A, width)
            judge = self.head(self.encoder(judged)) if config.double else next_outputs
            best = self.returns.mean(judge).argmax(dim=-1)
            target = self.returns.target(batch.rewards, batch.discounts, _of(next_outputs, best))
        outputs = self.head(self.encoder(pixels))  # (B, A, width)
        taken = _of(outputs, batch.actions.argmax(dim=-1))
        loss = (draw.weights.to(self.device) * self.returns.loss(taken, target)).mean()
        require_finite("Q loss", loss, self.updates)
        torch.autograd.backward(loss)
        if replay.is_prioritised:
            replay.reprioritise(draw, self.returns.surprise(taken.detach(), target).cpu())
        return {"critic/loss": loss.detach(), "critic/q": self.returns.mean(outputs.detach()).amax(dim=-1).mean()}

    def step(self, objective: Objective[Any] | None) -> Metrics:
        """Clip each group, then Adam."""
        norms = [nn.utils.clip_grad_norm_(group, self.config.max_grad_norm) for group in self.clipped]
        for norm in norms:
            require_finite("gradient of the loss", norm, self.updates)
        if objective is not None:
            # Before the step, as in the released code: a momentum of 0 then lags by one update instead of none.
            objective.update_momentum()
        self.optimizer.step()
        self.updates += 1
        return {f"{name}/gradient_norm": norm for name, norm in zip(("critic", "decoder"), norms, strict=False)}

    def _modules(self) -> dict[str, nn.Module]:
        modules: dict[str, nn.Module] = {"encoder": self.encoder, "head": self.head}
        modules |= {"target_encoder": self.target_encoder, "target_head": self.target_head}
        return modules | ({} if self.objective is None else {"objective": self.objective})

    def state_dict(self) -> dict[str, Any]:
        return {
            "modules": {name: module.state_dict() for name, module in self._modules().items()},
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "explored": self.explored,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, module in self._modules().items():
            module.load_state_dict(state["modules"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates, self.explored = state["updates"], state["explored"]


@dataclass(frozen=True, kw_only=True)
class NatureEncoderConfig(Config):
    """See `NatureEncoder`."""

    filters: tuple[int, ...] = (32, 64, 64)
    kernels: tuple[int, ...] = (8, 4, 3)
    strides: tuple[int, ...] = (4, 2, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.filters) == len(self.kernels) == len(self.strides):
            raise ValueError(
                f"filters={self.filters}, kernels={self.kernels} and strides={self.strides} must name as many layers each."
            )
        if min((*self.filters, *self.kernels, *self.strides), default=0) < 1:
            raise ValueError("filters, kernels and strides must name at least one layer, with numbers of at least 1.")

    def build(self, obs_shape: tuple[int, int, int]) -> NatureEncoder:
        return NatureEncoder(obs_shape, filters=self.filters, kernels=self.kernels, strides=self.strides)


@dataclass(frozen=True, kw_only=True)
class RainbowConfig(Config):
    """The paper's agent on Atari-100k."""

    kind: Literal["rainbow"] = "rainbow"
    encoder: NatureEncoderConfig = field(default_factory=NatureEncoderConfig)
    hidden: int = 256  # width of each stream of the Q head
    returns: Literal["categorical", "scalar"] = "categorical"
    atoms: int = 51  # of categorical returns
    support: float = 10.0  # they lie in [-support, support]
    noisy_std: float | None = 0.1  # σ₀; None: plain layers
    dueling: bool = True
    double: bool = True
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig(crop=None, shift=4))
    warmup_decisions: int = 2000  # uniformly random actions, no updates
    updates_per_decision: int = 2
    batch_size: int = 32
    n_step: int = 10
    late_ends: bool = True  # False: the bug of the library behind the released code, see Replay.transitions
    discount: float = 0.99
    learning_rate: float = 1e-4
    adam_epsilon: float = 1.5e-4
    max_grad_norm: float = 10.0  # of encoder and head together, and of the objective's transformer by itself
    target_every: int = 1  # updates between copies into the target network
    priority_exponent: float | None = 0.5  # ω; None: uniform draws
    correction: float = 0.4  # β at the first update; 1 in the end
    correction_updates: int = 196_000  # until it is 1
    epsilon: float = 0.0  # the share of random actions in the end; noisy layers explore without
    epsilon_decisions: int = 0  # over which it falls from 1 after the warm-up
    clips: int | None = None  # for the objective, at most: at the first of the drawn transitions; None: at all of them
    micro_batch: int | None = None  # clips per piece; None: the whole batch

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = (
            *("hidden", "support", "updates_per_decision", "batch_size", "n_step", "learning_rate", "adam_epsilon"),
            *(
                "max_grad_norm",
                "target_every",
                "correction_updates",
                "clips",
                "micro_batch",
                "noisy_std",
                "priority_exponent",
            ),
        )
        for name in positive:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} must be positive.")
        if self.atoms < 2:
            raise ValueError(f"atoms={self.atoms} must be at least 2; returns=scalar has no distribution at all.")
        for name in ("discount", "correction", "epsilon", "priority_exponent"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name}={value} must lie in [0, 1].")
        if self.epsilon_decisions < 0 or self.warmup_decisions < 0:
            raise ValueError("epsilon_decisions and warmup_decisions must not be negative.")

    def build(self, spaces: Spaces, objective: MLRConfig | None, device: torch.device) -> Rainbow:
        if not spaces.discrete:
            raise ValueError(
                "Rainbow chooses among discrete actions; this environment takes continuous ones. Use agent kind sac."
            )
        channels, height, width = spaces.obs
        side = self.augment.crop
        obs_shape = (channels, side or height, side or width)
        encoder = self.encoder.build(obs_shape).to(device)
        kinds: dict[str, Callable[[], Categorical | Scalar]] = {
            "categorical": lambda: Categorical(self.atoms, -self.support, self.support),
            "scalar": Scalar,
        }
        returns = kinds[self.returns]().to(device)
        sigma = self.noisy_std
        layer = nn.Linear if sigma is None else lambda fan_in, fan_out: NoisyLinear(fan_in, fan_out, sigma)
        head = QHead(
            encoder.latent_dim, self.hidden, spaces.action_dim, returns.width, dueling=self.dueling, layer=layer
        ).to(device)
        built = None
        if objective is not None:
            host = Host(encoder, encoder.latent_dim, spaces.action_dim, q_projection=head.first, obs_shape=obs_shape)
            built = objective.build(host).to(device)
        return Rainbow(
            self,
            encoder=encoder,
            head=head,
            returns=returns,
            objective=built,
            objective_every=1 if objective is None else objective.every,
            device=device,
        )


def _of(outputs: Tensor, actions: Tensor) -> Tensor:
    """(B, A, width), (B,) → (B, width)."""
    return outputs[torch.arange(len(actions), device=actions.device), actions]
