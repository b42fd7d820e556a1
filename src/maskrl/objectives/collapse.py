"""A warning when all latents have become the same: the loss is then low, but the encoder learns nothing."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass
class CollapseAlarm:
    """Warns once when an objective's `target_std` stays under a bound.

    It is the standard deviation of the targets' directions: 1 if they point everywhere, 0 if all are the same.
    """

    bound: float = 0.01
    patience: int = 500  # updates in a row
    low: int = 0  # updates in a row so far
    rung: bool = False

    def __call__(self, metrics: Mapping[str, Tensor | float]) -> None:
        for name, value in metrics.items():
            if name.endswith("/target_std"):
                self.low = self.low + 1 if float(value) < self.bound else 0
                self._ring(name.partition("/")[0])

    def _ring(self, objective: str) -> None:
        if self.rung or self.low < self.patience:
            return
        self.rung = True
        warnings.warn(
            f"The objective {objective} has collapsed: for {self.low} updates the targets of all observations pointed the same "
            f"way ({objective}/target_std under {self.bound}), so its low loss means nothing and the encoder learns nothing from "
            "it. Lower its learning rate, lengthen its warm-up, raise its momentum, or check that the observations differ.",
            stacklevel=4,
        )
