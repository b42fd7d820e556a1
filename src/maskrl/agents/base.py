"""The base classes of agents and of their configs, and the spaces of an environment."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from maskrl.agents.capture import Captured, Record, on_cuda
from maskrl.clock import Clock, Stopwatch
from maskrl.config import Config
from maskrl.nn.augment import AugmentConfig, CenterCrop
from maskrl.nn.clip import Clip
from maskrl.nn.encoders import Encoder
from maskrl.nn.guard import Guard
from maskrl.nn.momentum import Momentum
from maskrl.nn.transfer import HOSTS, pinned, sent
from maskrl.objectives.base import Objective, ObjectiveConfig, Offers
from maskrl.objectives.step import AuxiliaryStep
from maskrl.replay.buffer import Draw, Replay, Transitions

Metrics = dict[str, Tensor]  # detached scalars on the agent's device, keys "<part>/<what>"
ADVICE = "Lower agent.learning_rate, and look for rewards that are not finite or very large."
Vectors = NDArray[np.float32]  # (N, V), the vector observations beside N pictures
Action = NDArray[np.float32] | np.int64  # an environment's action: a vector within [-1, 1], or an index


@dataclass(frozen=True)
class Spaces:
    """The shapes of an environment's observations and actions."""

    obs: tuple[int, int, int]  # (C, H, W) of a stack of frames
    action_dim: int  # width of a continuous action, or number of discrete ones
    discrete: bool
    vector: int = 0  # length of the vector observation beside the picture

    def random_action(self, generator: np.random.Generator) -> Action:
        """An action drawn uniformly."""
        if self.discrete:
            return generator.integers(self.action_dim, dtype=np.int64)
        action: NDArray[np.float32] = generator.uniform(-1, 1, self.action_dim).astype(np.float32)
        return action

    def as_vector(self, action: Action) -> NDArray[np.float32]:
        """The action as replay and objectives use it, (A,): one-hot if it is discrete."""
        return np.asarray(np.arange(self.action_dim) == action if self.discrete else action, np.float32)

    @classmethod
    def of(cls, env: gym.Env[Any, Any]) -> "Spaces":
        obs, action = env.observation_space, env.action_space
        if not isinstance(obs, gym.spaces.Box) or obs.dtype != np.uint8 or len(obs.shape) != 3:
            raise ValueError(
                f"Observations must be uint8 images of shape (C, H, W); this environment has {obs}. Wrap it so that it returns "
                "raw frames with the channels first."
            )
        shape, vector = (obs.shape[0], obs.shape[1], obs.shape[2]), int(env.metadata.get("vector", 0))
        if isinstance(action, gym.spaces.Discrete):
            return cls(shape, int(action.n), discrete=True, vector=vector)
        if isinstance(action, gym.spaces.Box) and len(action.shape) == 1 and (abs(action.low) == 1).all():
            return cls(shape, action.shape[0], discrete=False, vector=vector)
        raise ValueError(
            f"Actions must be Discrete, or a Box of one axis within [-1, 1]; this environment has {action}. "
            "gymnasium.wrappers.RescaleAction(env, -1, 1) rescales a bounded Box."
        )


class Generators:
    """A random stream for each purpose, on the update's device.

    The objective has its own stream, so that an agent's exploration and augmentation are the same with and without it, for the same
    seed. The noise inside updates comes from torch's own generator.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.explore, self.augment, self.objective = (
            None if device.type == "meta" else torch.Generator(device).manual_seed(_seed_of(seed, purpose))
            for purpose in range(3)
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {name: stream.get_state() for name, stream in vars(self).items() if stream is not None}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, saved in state.items():
            getattr(self, name).set_state(saved)


def _seed_of(seed: int, purpose: int) -> int:
    return int(np.random.SeedSequence((seed, purpose)).generate_state(1, np.uint64)[0] >> 1)


class PolicyNetwork(nn.Module):
    """Maps observations (N, C, H, W) uint8, and vector observations (N, V) if there are any, to actions.

    It is deterministic in evaluation mode. Evaluation, loading and export share it. Exploration adds noise to `outputs`; `choose`
    picks the best action. Its parts have the same names as in the agent's state.
    """

    def __init__(self, encoder: Encoder, crop: int | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.centre = nn.Identity() if crop is None else CenterCrop(crop)

    def pixels(self, obs: Tensor) -> Tensor:
        """The encoder's input for these observations."""
        pixels: Tensor = self.centre(obs)
        return pixels.float() / 255

    def outputs(self, obs: Tensor, vectors: Tensor | None = None) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def choose(self, *outputs: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, obs: Tensor, vectors: Tensor | None = None) -> Tensor:
        return self.choose(*(self.outputs(obs) if vectors is None else self.outputs(obs, vectors)))

    @torch.no_grad()
    def act(self, obs: NDArray[np.uint8], vectors: Vectors | None = None) -> NDArray[Any]:
        """The best action for each observation (N, C, H, W), with vector observations (N, V) if there are any."""
        was_training = self.training
        self.eval()
        actions: NDArray[Any] = self(self.on_device(obs), self.beside(vectors)).cpu().numpy()
        self.train(was_training)
        return actions

    def on_device(self, obs: NDArray[Any]) -> Tensor:
        return sent(torch.from_numpy(obs), next(self.parameters()).device)

    def beside(self, vectors: Vectors | None) -> Tensor | None:
        return None if vectors is None else self.on_device(vectors)

    def load_agent_state(self, state: Mapping[str, Any]) -> None:
        """Load the policy's parts from an agent's `state_dict`."""
        for name, module in self.named_children():
            if name in state["modules"]:
                module.load_state_dict(state["modules"][name])

    def encode(self, obs: Tensor) -> Tensor:
        """(N, C, H, W) uint8 → latent states (N, d)."""
        states: Tensor = self.encoder(self.pixels(obs))
        return states


class Drawn(NamedTuple):
    """The data of one update."""

    draw: Draw  # the places in the replay
    batch: Transitions
    clip: Clip | None = None  # for the objective
    weights: Tensor | None = None  # (B,), importance weights of the transitions

    def to(self, device: torch.device) -> "Drawn":
        """Copy all tensors to the device; from pinned memory without waiting."""
        clip = None if self.clip is None else self.clip.to(device)
        weights = None if self.weights is None else sent(self.weights, device)
        return Drawn(self.draw, self.batch.to(device), clip, weights)

    def pinned(self, device: torch.device) -> "Drawn":
        """The same data in pinned memory, for copies to the device without waiting."""
        if device.type in HOSTS:
            return self
        clip = None if self.clip is None else self.clip.pinned(device)
        weights = None if self.weights is None else pinned(self.weights, device)
        return Drawn(self.draw, self.batch.pinned(device), clip, weights)

    def tensors(self) -> Iterator[Tensor]:
        """All tensors that a device needs, in a fixed order."""
        parts: list[Transitions | Clip] = [self.batch] if self.clip is None else [self.batch, self.clip]
        for part in parts:
            values = (getattr(part, field.name) for field in fields(part))
            yield from (value for value in values if value is not None)
        yield from [] if self.weights is None else [self.weights]


class Learned(NamedTuple):
    """The results of an update, on the device."""

    metrics: Metrics
    errors: Tensor | None = None  # (B,), for the transitions' priorities

    def kept(self) -> "Learned":
        """A copy of the metrics that stays valid when a graph writes to their memory again."""
        return self._replace(metrics=dict(zip(self.metrics, _stacked(self.metrics).unbind(), strict=True)))


class Agent:
    """The base of every agent. An agent draws its batches from the replay; the loop knows neither losses nor objectives.

    A subclass defines `explore` and `update_objective`, and names everything to save in `modules` and `optimizers`. It defines both
    halves of an update, `reading` for the host and `learn` for the device, which returns no value to the host; or its own `update`.
    """

    modules: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    objective: Objective[Any] | None = None
    auxiliary: AuxiliaryStep | None = None  # if the objective has its own optimiser
    every: int = 1  # updates per update of the objective
    _captured: Captured | None = None

    def __init__(self, config: "AgentConfig", policy: "PolicyNetwork", generators: "Generators", device: torch.device):
        self._config, self._policy, self.encoder = config, policy, policy.encoder
        self.generators, self.device = generators, device
        self.watch, self.updates, self.guard = Stopwatch(), 0, Guard(device)

    def protect(self) -> None:
        """Connect the guard to all optimisers; a subclass calls this once its parts exist."""
        if self.auxiliary is not None:
            self.auxiliary.guard_by(self.guard)
        self.guard.protect(self.optimizers.values(), self.modules.values())

    def all_optimizers(self) -> list[torch.optim.Optimizer]:
        return [*self.optimizers.values(), *([] if self.auxiliary is None else self.auxiliary.optimizers)]

    def require_finite(self, what: str, value: Tensor) -> None:
        """Stop before a non-finite loss or gradient changes the weights."""
        self.guard.watch(f"The {what} is", value, ADVICE)

    def check(self) -> None:
        """Raise an error if a value of an earlier update was not finite; on an accelerator, wait for the values."""
        self.guard.check()

    def policy(self) -> "PolicyNetwork":
        """The deterministic policy, which shares its weights with the agent."""
        return self._policy

    @torch.no_grad()
    def act(
        self, obs: NDArray[np.uint8], vectors: Vectors | None = None, *, explore: bool, clock: Clock
    ) -> NDArray[Any]:
        """(N, C, H, W) → an action for each: (N, A), or (N,) if discrete. Without `explore`, the actions of `policy`."""
        if not explore:
            return self._policy.act(obs, vectors)
        beside = {} if vectors is None else {"vectors": self._policy.on_device(vectors)}
        actions: NDArray[Any] = self.explore(self._policy.on_device(obs), clock, **beside).cpu().numpy()
        return actions

    def explore(self, obs: Tensor, clock: Clock, vectors: Tensor | None = None) -> Tensor:
        """Actions for observations (N, C, H, W) uint8, with noise added to the outputs of the policy."""
        raise NotImplementedError

    def renew_noise(self) -> None:
        """Draw new exploration noise. Usually an update does; call this while no updates are made."""

    def updates_due(self, clock: Clock) -> int:
        """The number of updates after the decision at this time."""
        return self._config.updates_due(clock)

    def prepare(self, replay: Replay, updates: int) -> None:
        """Start gathering batches for the next updates, as far as the replay allows. Add nothing to it until they are made."""
        if type(self).reading is Agent.reading:  # the agent has its own `update`
            return
        for update in range(self.updates + len(replay.ahead), self.updates + min(updates, replay.ahead.depth)):
            replay.ahead.gather(self.reading(replay, update))

    def update(self, replay: Replay) -> Metrics:
        self.guard.begin(self.updates)
        with self.watch("replay"):
            drawn: Drawn = replay.ahead.take() or self.reading(replay, self.updates)()
        auxiliary = self.auxiliary if self.updates % self.every == 0 else None
        if auxiliary is not None:
            auxiliary.begin()
        learned = self._learn(drawn)
        if replay.is_prioritised and learned.errors is not None:
            replay.reprioritise(drawn.draw, learned.errors)
        self.updates += 1
        if auxiliary is not None:
            auxiliary.updates += 1
        return learned.metrics

    def reading(self, replay: Replay, update: int) -> Callable[[], Drawn]:
        """Draw for the update of this number now; return a function that reads the data, perhaps in another thread."""
        raise NotImplementedError

    def learn(self, drawn: Drawn) -> Learned:
        """The device's half of an update. `self.updates` is its number."""
        raise NotImplementedError

    def due(self) -> tuple[bool, ...]:
        """For each part that does not run in every update, whether it runs in the next one."""
        auxiliary = self.auxiliary
        return self.updates % self.every == 0, auxiliary is not None and auxiliary.moves_copies

    def capture(self, record: Record = on_cuda) -> None:
        """Record updates and replay them from now on."""
        self._captured = Captured(self, record)

    def _learn(self, drawn: Drawn) -> Learned:
        return self.learn(drawn.to(self.device)) if self._captured is None else self._captured(self.due(), drawn)

    def update_objective(self, replay: Replay) -> Metrics:
        """One update of the objective alone, with the optimiser and the number of clips of a whole update."""
        raise NotImplementedError

    def restart_copies(self) -> None:
        """Make every slow copy of the encoder an exact copy again."""
        for part in (*self.modules.values(), *([] if self.objective is None else [self.objective])):
            for module in part.modules():
                if isinstance(module, Momentum):
                    module.restart(self.encoder)

    def own_state(self) -> dict[str, Tensor]:
        """Tensors to save that belong to no module."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The whole state except torch's own generators."""
        self.check()
        return {
            "modules": {name: module.state_dict() for name, module in self.modules.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "own": {name: tensor.detach().clone() for name, tensor in self.own_state().items()},
            "generators": self.generators.state_dict(),
            "auxiliary": None if self.auxiliary is None else self.auxiliary.state_dict(),
            "updates": self.updates,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, module in self.modules.items():
            module.load_state_dict(state["modules"][name])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        for name, tensor in self.own_state().items():
            tensor.copy_(state["own"][name])
        self.generators.load_state_dict(state["generators"])
        if self.auxiliary is not None:
            self.auxiliary.load_state_dict(state["auxiliary"])
        self.updates = int(state["updates"])


# ── Configuration ─────────────────────────────────────────────────────────────────────────────────────────────────────


class ReplayNeeds(NamedTuple):
    """The properties that an agent needs from its replay."""

    priority_exponent: float | None = None  # None: uniform draws


class Workload(NamedTuple):
    """The number of observations in an update."""

    at_once: int  # in one piece
    drawn: int  # in all


@dataclass(frozen=True, kw_only=True)
class AgentConfig(Config):
    """The base of every agent's config, the `agent` of a recipe."""

    kind: str
    augment: AugmentConfig
    warmup_decisions: int  # uniformly random actions, no updates
    updates_per_decision: int | float
    batch_size: int

    offers: ClassVar[Offers]  # to objectives

    def replay_needs(self) -> ReplayNeeds:
        return ReplayNeeds()

    def updates_due(self, clock: Clock) -> int:
        """The number of updates now: 0 in the warm-up, then `updates_per_decision`; for 0.5, one after every second decision."""
        return self.updates_by(clock.decisions + 1) - self.updates_by(clock.decisions)

    def updates_by(self, decisions: int) -> int:
        """The number of updates in a run of this many decisions."""
        ratio = Fraction(self.updates_per_decision).limit_denominator(1_000_000)  # 0.1 becomes exactly 1/10
        return math.floor(max(0, decisions - self.warmup_decisions) * ratio)

    def obs_shape(self, spaces: Spaces) -> tuple[int, int, int]:
        """The shape of the encoder's input."""
        (channels, height, width), crop = spaces.obs, self.augment.crop
        return (channels, crop or height, crop or width)

    def workload(self, objective: ObjectiveConfig | None, device: torch.device) -> Workload:
        raise NotImplementedError

    def turn(self, objective: ObjectiveConfig | None) -> int:
        """The period, in updates, after which every part has run and the cycle repeats."""
        return 1 if objective is None else objective.every

    def settled(self) -> "AgentConfig":
        """The config of all updates but the first: an agent may do more in a burst at the start."""
        return self

    def scaled(self, share: float) -> "AgentConfig":
        """The config with batches scaled by this factor, to at least 1 each."""
        raise NotImplementedError

    def beside(self, objective: ObjectiveConfig | None) -> "AgentConfig":
        """The config with the values for this objective, or for none."""
        return self

    def pace(self, objective: ObjectiveConfig) -> tuple[float, float]:
        """The decisions before the first update, and those per update that the objective sees counted in its `Material`."""
        return self.warmup_decisions, 1 / self.updates_per_decision

    def build(self, spaces: Spaces, objective: ObjectiveConfig | None, device: torch.device, *, seed: int = 0) -> Agent:
        """Build the agent, initialised by torch's own generator. `seed`: for its `Generators`."""
        raise NotImplementedError


def require_splittable(objective: Objective[Any], micro_batch: int | None) -> None:
    """Raise ValueError if micro_batch is set for an objective that must not be split."""
    if micro_batch is not None and not objective.splits:
        raise ValueError(
            f"agent.micro_batch={micro_batch}, but the objective {objective.name} couples the clips of a batch, so splitting "
            "it would change the loss. Use agent.micro_batch=none."
        )


def numbers(metrics: Metrics) -> dict[str, float]:
    """The metrics as floats, in one copy: copying each alone would wait for the device every time."""
    return dict(zip(metrics, _stacked(metrics).tolist(), strict=True)) if metrics else {}


def _stacked(metrics: Metrics) -> Tensor:
    values = list(metrics.values())
    return torch.stack([value.to(values[0].device) for value in values])  # an objective's may be on the host
