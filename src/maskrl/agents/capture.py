"""Updates recorded as CUDA graphs: the host launches one graph instead of a thousand operations, with the same results.

A graph repeats what was recorded, with the same memory and the same numbers of Python. So batches are copied to where the recorded
ones were, learning rates are tensors, nothing in between asks the device for a value, and an update whose parts run by turns is
recorded once for every combination of them.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from maskrl.agents.base import Agent, Drawn, Learned

Learn = Callable[[], "Learned"]
Record = Callable[["Agent", Learn], Learn]


@dataclass
class _Variant:
    static: "Drawn"  # where every batch of this variant is copied to
    replay: Learn | None = None  # None: not recorded yet


class Captured:
    """An agent's `learn`, recorded by variant. The first update of one runs as it is: it chooses kernels and makes moments."""

    def __init__(self, agent: "Agent", record: Record) -> None:
        self._agent, self._record, self._variants = agent, record, dict[Hashable, _Variant]()

    def __call__(self, name: Hashable, drawn: "Drawn") -> "Learned":
        variant = self._variants.get(name)
        if variant is None:
            variant = self._variants[name] = _Variant(drawn.to(self._agent.device))
            return self._agent.learn(variant.static)
        for buffer, tensor in zip(variant.static.tensors(), drawn.tensors(), strict=True):
            buffer.copy_(tensor, non_blocking=True)
        if variant.replay is None:
            variant.replay = self._record(self._agent, partial(self._agent.learn, variant.static))
        return variant.replay().kept()


def on_cuda(agent: "Agent", learn: Learn) -> Learn:
    """Record it, which computes nothing."""
    graph, guard = torch.cuda.CUDAGraph(), agent.guard
    for generator in vars(agent.generators).values():
        graph.register_generator_state(generator)
    groups = [group for optimizer in agent.all_optimizers() for group in optimizer.param_groups]
    for group in groups:
        group["capturable"] = True
    with torch.cuda.graph(graph):
        learned = learn()
    for group in groups:
        group["capturable"] = False  # otherwise Adam would warn in updates that are not recorded
    watched = guard.watched

    def replay() -> "Learned":
        graph.replay()
        guard.watched = list(watched)
        return learned

    return replay
