"""Count the floating-point operations (FLOP) of a run before it starts.

The agent's own `update` runs on tensors without data (torch's meta device), so the real code is counted, without a table of layers
to maintain. Convolutions and matrix products count, two operations for each product of a weight and a value. The rest (norms,
activations, optimisers) is little arithmetic, limited by memory instead.
"""

import math
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from maskrl.agents.base import Agent, Spaces
from maskrl.clock import Clock
from maskrl.cost.forecast import META, Takes, blank_agent, takes_of
from maskrl.nn.clip import Clip
from maskrl.recipes.schema import Recipe, settled
from maskrl.replay.buffer import Draw, Replay, Transitions
from maskrl.runs import checkpoint
from maskrl.runs.build import device_of, replay_size

_CONVOLUTIONS = (torch.ops.aten.convolution, torch.ops.aten.convolution_backward)


@dataclass(frozen=True)
class UpdateCost:
    """FLOP of an update: the mean over a full cycle, as some parts do not run in every update."""

    phases: Mapping[str, float]  # "critic", "objective", "actor": the parts of the agent's stopwatch
    convolutions: float  # in all phases; the rest are matrix products
    act: float  # for one action
    memory: int  # peak bytes of all tensors: weights, moments, gradients, batches, activations

    @property
    def flops(self) -> float:
        return math.fsum(self.phases.values())


@dataclass(frozen=True)
class RunCost:
    """The counts of a run, and its FLOP."""

    update: UpdateCost
    decisions: int
    chosen: int  # of these, chosen by the agent; in the warm-up they are random
    updates: int
    episodes: int  # of all evaluations, including the one before training, without those of random actions
    takes: Takes
    memory: int  # bytes of the whole process

    @property
    def learning(self) -> float:
        return self.updates * self.update.flops

    def acting(self, decisions_per_episode: float) -> float:
        """FLOP of acting, in training and in evaluations with this many decisions per episode."""
        return (self.chosen + self.episodes * decisions_per_episode) * self.update.act


def update_cost(recipe: Recipe, spaces: Spaces | None = None) -> UpdateCost:
    """Count an update after the burst, if there is one. Without `spaces`, the environment is made once to get them."""
    spaces, recipe = spaces or spaces_of(recipe), settled(recipe)
    agent, replay, turn = blank_agent(recipe, spaces), _Blank(recipe, spaces), recipe.agent.turn(recipe.objective)
    weights, counter = checkpoint.nbytes(agent.state_dict()), _Counter()
    agent.watch = counter.phase  # type: ignore[assignment]
    hook = register_optimizer_step_pre_hook(_unfuse)
    try:
        with counter:
            for _ in range(turn):
                agent.update(replay)
            learnt, convolutions = counter.flops, counter.convolutions
            rows = np.zeros((1, spaces.vector), np.float32) if spaces.vector else None
            agent.act(np.zeros((1, *spaces.obs), np.uint8), rows, explore=True, clock=Clock(0, 0, 0, 0.0))
    finally:
        hook.remove()
    return UpdateCost(
        phases={phase: flops / turn for phase, flops in counter.phases.items()},
        convolutions=convolutions / turn,
        act=counter.flops - learnt,
        memory=weights + counter.peak,
    )


def run_cost(recipe: Recipe, spaces: Spaces | None = None, update: UpdateCost | None = None) -> RunCost:
    """Count a run. `update`: its cost, if it was counted already."""
    spaces = spaces or spaces_of(recipe)
    decisions = recipe.frames // recipe.env.action_repeat
    evaluations = 1 + math.ceil(recipe.frames / recipe.evaluation.every)  # at the start, at every multiple, at the end
    agent = blank_agent(recipe, spaces)
    takes = takes_of(recipe, spaces, agent)
    return RunCost(
        update=update or update_cost(recipe, spaces),
        decisions=decisions,
        chosen=max(0, decisions - recipe.agent.warmup_decisions),
        updates=recipe.agent.updates_by(decisions),
        episodes=evaluations * recipe.evaluation.episodes,
        takes=takes,
        memory=takes.memory + process_memory(recipe, spaces, agent),
    )


# Measured on Linux: Python, torch and DMControl's simulator take 0.68 GB in a small run, the maximum; Atari takes 0.40 GB.
PROCESS = 700_000_000


def process_memory(recipe: Recipe, spaces: Spaces, agent: Agent) -> int:
    """Peak bytes of memory of a run on a CPU, without its replay. docs/sweeps.md has the measurements.

    The agent is blank: only the sizes of its weights are read.
    """
    weights = 4 * checkpoint.nbytes(agent.state_dict())  # with gradients and two moments
    with _Counter(agent.encoder.parameters()) as counter:
        states = agent.encoder(torch.empty(1, *recipe.agent.obs_shape(spaces), device=META))
        kept = int(counter.held)  # kept for the gradients of one observation
    del states
    # What an update keeps per observation, and about as much again while it computes gradients.
    workload = recipe.agent.workload(recipe.objective, device_of(recipe))
    batch = 2 * workload.at_once * kept
    batch += workload.drawn * 4 * math.prod(spaces.obs)  # as drawn, masked, and augmented twice, in bytes
    on_gpu = device_of(recipe).type != "cpu"
    environments = (recipe.evaluation.side_by_side if on_gpu else 1) * recipe.env.memory
    return (2 if recipe.is_apart else 1) * PROCESS + weights + batch + environments


def spaces_of(recipe: Recipe) -> Spaces:
    with closing(recipe.env.make(seed=recipe.seed, training=True)) as env:
        return Spaces.of(env)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts FLOP by phase, and the bytes of live tensors, within its context.

    Tensors without data have no values, but an update reads some: whether a loss is finite, how large an error is. So a scalar
    reads as 1, and a copy to the CPU is all ones.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        """`known`: tensors whose bytes do not count."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.convolutions = 0
        self.phases: dict[str, int] = defaultdict(int)
        self.running: list[str] = []  # phases, innermost last
        self.held = self.peak = 0  # bytes of tensors created in the context: now, and at the peak
        self._storages = {tensor.untyped_storage()._cdata for tensor in known}  # of these and of new tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 1
        if func is torch.ops.aten._to_copy.default and args[0].is_meta and kwargs.get("device") == torch.device("cpu"):
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype", args[0].dtype))
        out = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=out)
            self.flops += flops
            self.convolutions += flops if func._overloadpacket in _CONVOLUTIONS else 0
            if self.running:
                self.phases[self.running[-1]] += flops
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.is_meta:
                self._hold(tensor.untyped_storage())
        return out

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count for a phase; replaces an agent's stopwatch."""
        self.running.append(name)
        yield
        self.running.pop()

    def _hold(self, storage: torch.UntypedStorage) -> None:
        """Count the bytes of a storage once: views share it, and operations in place create none."""
        if storage._cdata not in self._storages:
            self._storages.add(storage._cdata)
            self.held += storage.nbytes()
            self.peak = max(self.peak, self.held)
            weakref.finalize(storage, self._release, storage._cdata, storage.nbytes())

    def _release(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.held -= size


def _unfuse(optimizer: Optimizer, *_: Any) -> None:
    """Use the unfused optimiser: there is no fused kernel for tensors without data."""
    for group in optimizer.param_groups:
        group["fused"] = False


class _Blank(Replay):
    """A replay that returns batches of the right shape without data."""

    def __init__(self, recipe: Recipe, spaces: Spaces) -> None:
        size = replay_size(recipe, spaces)
        size["capacity"], size["reserve"] = 1, 0
        super().__init__(**size, seed=0)
        self.spaces = spaces

    def draw(self, batch_size: int, **_: Any) -> Draw:
        return Draw(np.zeros(batch_size, np.int64), torch.ones(batch_size, device=META))

    def transitions(self, draw: Draw, **_: Any) -> Transitions:
        numbers = torch.empty(len(draw), device=META)
        rows = torch.empty(len(draw), self.spaces.vector, device=META) if self.spaces.vector else None
        obs = self._obs(len(draw))
        return Transitions(obs, self._actions(len(draw)), numbers, torch.empty_like(obs), numbers, rows, rows)

    def clips(self, draw: Draw, *, length: int, **_: Any) -> Clip:
        return Clip(self._obs(len(draw), length), self._actions(len(draw), length))

    def reprioritise(self, draw: Draw, errors: Any) -> None:
        pass

    def _obs(self, *shape: int) -> Tensor:
        return torch.empty(*shape, *self.spaces.obs, dtype=torch.uint8, device=META)

    def _actions(self, *shape: int) -> Tensor:
        return torch.empty(*shape, self.spaces.action_dim, device=META)
