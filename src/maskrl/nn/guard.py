"""Stop updates with non-finite losses or gradients before they change weights, without waiting for an accelerator."""

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from maskrl.nn.momentum import Momentum
from maskrl.nn.transfer import HOSTS, Arriving


class Watched(NamedTuple):
    """A number that must be finite, and the error message if it is not."""

    value: Tensor
    what: str  # "The critic loss is"
    advice: str


class Guard:
    """Stops an update before the weights change. A CPU raises the error at once.

    On an accelerator the first non-finite value sets a flag on the device; from then on, optimisers and slow copies change
    nothing. The values are copied to the host after the update. `begin` checks those that have arrived, and `check` waits for all.
    """

    def __init__(self, device: torch.device) -> None:
        self.at_once = device.type in HOSTS
        self.stop = torch.zeros((), device=device)  # 1 once a value was not finite
        self._one = torch.ones((), device=device)
        self.update = 0  # the number of the running update
        self.watched: list[Watched] = []  # in the running update
        self._sent: deque[tuple[int, list[Watched], Arriving]] = deque()

    def protect(self, optimizers: Iterable[torch.optim.Optimizer], modules: Iterable[nn.Module]) -> None:
        """Make fused optimisers, and the slow copies among the modules, skip their steps once the flag is set."""
        if self.at_once:
            return
        for optimizer in optimizers:
            optimizer.found_inf = self.stop  # type: ignore[attr-defined]  # what torch's own gradient scaler sets
        for module in modules:
            for part in module.modules():
                if isinstance(part, Momentum):
                    part.stop = self.stop

    def begin(self, update: int) -> None:
        """Call before an update: start copying the last update's values, and check those of earlier ones that have arrived."""
        while self._sent and self._sent[0][-1].is_here:
            self._report()
        self._send()
        self.update = update

    def watch(self, what: str, value: Tensor, advice: str) -> None:
        value = value.detach()
        if not self.at_once:
            self.watched.append(Watched(value, what, advice))
            # The check of torch's own gradient scaler, in one operation: it multiplies by 1 and sets the flag.
            torch._amp_foreach_non_finite_check_and_unscale_([value.clone()], self.stop, self._one)
        elif not value.isfinite():
            raise _error(what, value.item(), self.update, advice)

    def check(self) -> None:
        """Wait for all watched values, and raise FloatingPointError if one was not finite."""
        self._send()
        while self._sent:
            self._report()

    def _send(self) -> None:
        if self.watched:
            values = Arriving(torch.stack([each.value for each in self.watched]))
            self._sent.append((self.update, self.watched, values))
            self.watched = []

    def _report(self) -> None:
        update, watched, arriving = self._sent.popleft()
        for each, number in zip(watched, arriving.value().tolist(), strict=True):
            if not math.isfinite(number):
                self.stop.zero_()  # so that a caller can continue after the error
                self._sent.clear()
                self.watched = []
                raise _error(each.what, number, update, each.advice)


def _error(what: str, number: float, update: int, advice: str) -> FloatingPointError:
    return FloatingPointError(f"{what} {number} at update {update}; the weights were left as they were. {advice}")
