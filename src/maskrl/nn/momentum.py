"""Wrappers for modules that another object owns: a slow copy, and a borrowed module."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Momentum(nn.Module):
    """copy ← m·copy + (1 − m)·online (paper, equation 1). The copy never receives a gradient; m = 0 is a plain copy."""

    def __init__(self, online: nn.Module, momentum: float) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise ValueError(
                f"momentum={momentum} must be in [0, 1): the share of the old weights to keep. The paper uses 0.95."
            )
        self.momentum = momentum
        self.stop: Tensor | None = None  # on an accelerator: 1 if the copy must not change, see `Guard`
        self._online = (online,)  # in a tuple, so that it is not registered as a submodule
        self.copy = copy.deepcopy(online).requires_grad_(False)

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Tensor:
        output: Tensor = self.copy(*inputs)
        return output

    @torch.no_grad()
    def update(self) -> None:
        (online,) = self._online
        self._follow(online.parameters(), self.copy.parameters(), 1 - self.momentum)
        self._follow(online.buffers(), self.copy.buffers(), 1.0)

    def _follow(self, online: Iterable[Tensor], copy: Iterable[Tensor], share: float) -> None:
        fast, slow = list(online), list(copy)
        if self.stop is not None:
            stop = self.stop.bool()
            fast = [torch.where(stop, old, new) for old, new in zip(slow, fast, strict=True)]
        if slow and share < 1:
            torch._foreach_lerp_(slow, fast, share)
        elif slow:
            torch._foreach_copy_(slow, fast)

    def restart(self, online: nn.Module) -> None:
        """Copy `online` exactly again, if it is the module that this copy follows."""
        if online is self._online[0]:
            self.copy.load_state_dict(online.state_dict())


class Borrowed(nn.Module):
    """Call a module that another object owns, without registering it: only the owner saves and trains its parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = (module,)

    def forward(self, *inputs: Any) -> Tensor:
        output: Tensor = self._module[0](*inputs)
        return output
