"""Updates recorded as CUDA graphs: the host launches one graph instead of a thousand operations, with the same results.

A graph repeats the recorded operations with the same memory and the same Python numbers. So batches are copied into the memory of
the recorded ones, learning rates are tensors, no operation reads a value back from the device, and an update whose parts do not all
run every time is recorded once for each combination of parts.
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
    static: "Drawn"  # every batch of this variant is copied into it
    replay: Learn | None = None  # None: not recorded yet


class Captured:
    """An agent's recorded `learn`, by variant. A variant's first update is not recorded: it chooses kernels and creates moments."""

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
    """Record `learn` as a CUDA graph, without computing anything."""
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
