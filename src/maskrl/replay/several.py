"""The replay of a run that collects in several environments at once: one replay per environment, drawn from as one.

So neighbours in a replay are consecutive steps, and a clip or a return never crosses from one environment into another.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from maskrl.nn.clip import Clip
from maskrl.replay.ahead import Ahead
from maskrl.replay.buffer import Draw, Index, NothingToDrawError, Purpose, Replay, Transitions


class Several(Replay):
    """Several replays with the interface of one. Frame n of environment p has the number n · environments + p."""

    def __init__(self, parts: list[Replay], seed: int, prefetch: int = 0) -> None:
        # The base's own state is unused: every method uses the parts.
        self.parts, first = parts, parts[0]
        self.frame_shape, self.action_dim, self.frame_stack = first.frame_shape, first.action_dim, first.frame_stack
        self.discrete, self.priority_exponent, self.pad = first.discrete, first.priority_exponent, first.pad
        self.vector_dim, self.ahead = first.vector_dim, Ahead(prefetch)
        self._generators = {"transitions": np.random.default_rng((seed, 2)), "clips": np.random.default_rng((seed, 3))}

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def is_prioritised(self) -> bool:
        return self.parts[0].is_prioritised

    @property
    def must_be_saved(self) -> bool:
        return any(part.must_be_saved for part in self.parts)

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_episode(
        self, obs: NDArray[np.uint8], vector: NDArray[np.float32] | None = None, *, place: int = 0
    ) -> None:
        self.parts[place].begin_episode(obs, vector)

    def add(
        self,
        action: ArrayLike,
        reward: float,
        obs: NDArray[np.uint8],
        vector: NDArray[np.float32] | None = None,
        *,
        terminated: bool,
        truncated: bool,
        place: int = 0,
    ) -> None:
        self.parts[place].add(action, reward, obs, vector, terminated=terminated, truncated=truncated)

    # ── drawing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def draw(
        self,
        batch_size: int,
        *,
        span: int = 1,
        whole: bool = True,
        correction: float = 0.0,
        purpose: Purpose = "transitions",
        stratified: bool = False,
    ) -> Draw:
        """Draw as `Replay.draw` does, from each part in proportion to its number of transitions, or to the sum of its leaves."""
        generator, shares = self._generators[purpose], np.array([part.mass for part in self.parts])
        options = {"span": span, "whole": whole, "correction": correction, "purpose": purpose, "stratified": stratified}
        starts, refused = list[Index](), None
        while sum(map(len, starts)) < batch_size:
            if not shares.any():
                raise refused or NothingToDrawError("Nothing is stored yet: collect before the first update.")
            missing = batch_size - sum(map(len, starts))
            for place, count in enumerate(generator.multinomial(missing, shares / shares.sum())):
                try:
                    drawn = self.parts[place].draw(int(count), **options).starts if count else np.empty(0, np.int64)  # type: ignore[arg-type]
                    starts.append(drawn * len(self.parts) + place)
                except NothingToDrawError as error:  # its episodes are too short: draw from the others
                    shares[place], refused = 0, error
        all_ = np.concatenate(starts)[generator.permutation(batch_size)]  # draws are in random order
        return Draw(all_, self._scaled(all_, correction))

    def _scaled(self, starts: Index, correction: float) -> Tensor:
        weights = np.empty(len(starts))
        for place, rows in self._rows(starts):
            weights[rows] = self.parts[place].raw_weights(starts[rows] // len(self.parts), correction)
        return torch.from_numpy((weights / weights.max()).astype(np.float32))

    def spread(self, count: int, *, span: int = 1) -> Draw:
        each = -(-count // len(self.parts))
        found = [part.spread(each, span=span).starts * len(self.parts) + place for place, part in enumerate(self.parts)]
        starts = np.concatenate(found)[:count]
        return Draw(starts, torch.ones(len(starts)))

    def reprioritise(self, draw: Draw, errors: Tensor | ArrayLike) -> None:
        errors = torch.as_tensor(errors)
        for place, rows in self._rows(draw.starts):
            part = Draw(draw.starts[rows] // len(self.parts), draw.weights[rows])
            self.parts[place].reprioritise(part, errors[torch.from_numpy(rows).to(errors.device)])

    def _rows(self, starts: Index) -> list[tuple[int, Index]]:
        """Each part that occurs in the draw, with its rows."""
        places = starts % len(self.parts)
        return [(int(place), np.flatnonzero(places == place)) for place in np.unique(places)]

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def transitions(self, draw: Draw, **options: Any) -> Transitions:
        return Transitions(**self._gathered(draw, lambda part, own: part.transitions(own, **options)))

    def clips(self, draw: Draw, *, length: int) -> Clip:
        return Clip(**self._gathered(draw, lambda part, own: part.clips(own, length=length)))

    def _gathered(self, draw: Draw, read: Callable[[Replay, Draw], Any]) -> dict[str, Tensor]:
        """The batches of all parts, in the order of the draw."""
        rows = self._rows(draw.starts)
        found = [
            read(self.parts[place], Draw(draw.starts[own] // len(self.parts), draw.weights[own])) for place, own in rows
        ]
        order = torch.from_numpy(np.argsort(np.concatenate([own for _, own in rows])))
        values = {field.name: [getattr(each, field.name) for each in found] for field in fields(found[0])}
        return {
            name: torch.cat(parts)[order.to(parts[0].device)] for name, parts in values.items() if parts[0] is not None
        }

    # ── resuming ──────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            f"{place}/{name}": value
            for place, part in enumerate(self.parts)
            for name, value in part.state_dict().items()
        }
        return state | {"generators": {name: each.bit_generator.state for name, each in self._generators.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> int:
        lost = sum(part.load_state_dict(of_place(state, place)) for place, part in enumerate(self.parts))
        for name, generator in self._generators.items():
            generator.bit_generator.state = state["generators"][name]
        return lost


def of_place(state: Mapping[str, Any], place: int) -> dict[str, Any]:
    """The state of one part."""
    start = f"{place}/"
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}
