"""Modules that belong to somebody else: a slow copy of one, and one that is only borrowed."""

import copy
from typing import Any

import torch
from torch import Tensor, nn


class Momentum(nn.Module):
    """copy ← m·copy + (1 − m)·online (paper, equation 1). Never receives a gradient; m = 0 is a plain copy."""

    def __init__(self, online: nn.Module, momentum: float) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise ValueError(
                f"momentum={momentum} must be in [0, 1): the share of the old weights that stays. The paper uses 0.95."
            )
        self.momentum = momentum
        self._online = (online,)  # in a tuple: borrowed, so not registered as a part of this module
        self.copy = copy.deepcopy(online).requires_grad_(False)

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Tensor:
        output: Tensor = self.copy(*inputs)
        return output

    @torch.no_grad()
    def update(self) -> None:
        (online,) = self._online
        for slow, fast in zip(self.copy.parameters(), online.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.momentum)
        for held, current in zip(self.copy.buffers(), online.buffers(), strict=True):
            held.copy_(current)

    def restart(self, online: nn.Module) -> None:
        """Be an exact copy again, if this is the module that it follows."""
        if online is self._online[0]:
            self.copy.load_state_dict(online.state_dict())


class Borrowed(nn.Module):
    """Somebody else's module: called, but not registered, so that its parameters stay its owner's to save and to train."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = (module,)

    def forward(self, *inputs: Any) -> Tensor:
        output: Tensor = self._module[0](*inputs)
        return output
