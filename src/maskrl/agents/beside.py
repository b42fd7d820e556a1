"""Code shared by agents whose objective has its own optimiser."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from maskrl.agents.base import (
    Agent,
    AgentConfig,
    Drawn,
    Generators,
    Metrics,
    PolicyNetwork,
    Workload,
    require_splittable,
)
from maskrl.nn.clip import Clip
from maskrl.objectives.base import Host, Needs, ObjectiveConfig, PolicyBatch, When
from maskrl.objectives.step import AuxiliaryConfig, AuxiliaryStep
from maskrl.replay.buffer import NothingToDrawError, Replay

C = TypeVar("C", bound="BesideConfig")

# `maskrl bench pieces`: 3 % faster than 64 at the paper's sizes and 7 % in the lite profile, with a large cache.
CPU_MICRO_BATCH = 128


class BesideConfig(AgentConfig):
    """The base of these agents' configs. A subclass defines the annotated fields."""

    discount: float
    auxiliary: AuxiliaryConfig
    micro_batch: int | None  # observations per piece; None: chosen by device

    def micro_batch_on(self, device: torch.device) -> int | None:
        """The number of observations per piece; None: all at once. The maps of a piece should fit into a CPU's cache.

        The size is a fixed rule, although measuring would gain a few percent: rounding depends on the pieces, and the same seed
        must give the same run.
        """
        return self.micro_batch or (CPU_MICRO_BATCH if device.type == "cpu" else None)

    def workload(self, objective: ObjectiveConfig | None, device: torch.device) -> Workload:
        length = 0 if objective is None else objective.needs.clip_length
        whole = max(self.batch_size, self.auxiliary.clips * length)
        at_once = max(min(self.micro_batch_on(device) or whole, whole), length)
        return Workload(at_once, 2 * self.batch_size + self.auxiliary.clips * length)

    def pace(self, objective: ObjectiveConfig) -> tuple[float, float]:
        """As for every agent, but an `AuxiliaryStep` counts only the updates of its objective."""
        start, stride = super().pace(objective)
        return start, stride * objective.every

    def scaled(self: C, share: float) -> C:
        clips, batch_size = (max(1, round(count * share)) for count in (self.auxiliary.clips, self.batch_size))
        return replace(self, batch_size=batch_size, auxiliary=replace(self.auxiliary, clips=clips))  # type: ignore[call-arg]


@dataclass(frozen=True)
class Beside:
    """An objective and how it is optimised beside an agent."""

    auxiliary: AuxiliaryStep | None = None  # its optimiser; None: there is no objective
    when: When = "after_critic"
    every: int = 1  # updates

    @classmethod
    def of(cls, objective: ObjectiveConfig | None, host: Host, config: BesideConfig, device: torch.device) -> "Beside":
        if objective is None:
            return cls()
        built = objective.build(host).to(device)
        require_splittable(built, config.micro_batch)
        step = AuxiliaryStep(built, config.auxiliary, micro_batch=config.micro_batch_on(device))
        return cls(step, objective.when or config.offers.places[0], objective.every)


class LearnsBeside(Agent):
    """Reads batches and clips, and runs the objective at its place in the update."""

    n_step = 1  # of the returns

    def __init__(
        self,
        config: BesideConfig,
        policy: PolicyNetwork,
        beside: Beside,
        generators: Generators,
        device: torch.device,
        *,
        once: bool = True,  # whether an update augments each batch only once
    ) -> None:
        super().__init__(config, policy, generators, device)
        self._beside_config, self.auxiliary, self.when, self.every = config, beside.auxiliary, beside.when, beside.every
        self.objective = None if beside.auxiliary is None else beside.auxiliary.objective
        self.needs = Needs() if self.objective is None else self.objective.needs
        # Augment in place, unless the batch is used again: by the objective, or for another view.
        self.augment = config.augment.build(generators.augment, inplace=once and not self.needs.policy_batch)

    def reading(self, replay: Replay, update: int) -> Callable[[], Drawn]:
        config, clips = self._beside_config, self._clips(replay) if update % self.every == 0 else None
        draw = replay.draw(config.batch_size, span=self.n_step, whole=False)

        def read() -> Drawn:
            clip = None if clips is None else clips()
            batch = replay.transitions(draw, n_step=self.n_step, discount=config.discount)
            return Drawn(draw, batch, clip).pinned(self.device)

        return read

    def _clips(self, replay: Replay) -> Callable[[], Clip] | None:
        """Draw clips for the objective, if it needs any; return a function that reads them."""
        steps = self.needs.clip_length
        if not steps:
            return None
        clips = self._beside_config.auxiliary.clips
        try:
            draw = replay.draw(clips, span=steps, purpose="clips")
        except NothingToDrawError:  # no episode is long enough: clips reach past its end, masked there
            draw = replay.draw(clips, span=steps, whole=False, purpose="clips")
        return lambda: replay.clips(draw, length=steps)

    def learn_beside(self, place: When, clip: Clip | None, batch: PolicyBatch) -> Metrics:
        """Update the objective, if it runs at this place and is due."""
        if self.auxiliary is None or self.when != place or self.updates % self.every:
            return {}
        with self.watch("objective"):
            return self.auxiliary.learn(clip, batch)

    def update_objective(self, replay: Replay) -> Metrics:
        if self.auxiliary is None:
            raise ValueError(
                "This agent has no objective, so update_objective has nothing to do. Build the agent with one."
            )
        batch = None
        if self.needs.policy_batch:
            obs = replay.transitions(replay.draw(self._beside_config.batch_size)).to(self.device).obs
            batch = PolicyBatch(obs, self.augment(obs))
        clips = self._clips(replay)
        return self.auxiliary(None if clips is None else clips().to(self.device), batch)

    def pieces(self, n: int) -> Iterator[slice]:
        """Slices of a batch that fit into the cache; their gradients add up to the whole batch's."""
        size = self._beside_config.micro_batch_on(self.device) or n
        return (slice(start, start + size) for start in range(0, n, size))
