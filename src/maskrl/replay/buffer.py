"""The transitions of an agent. Every frame is stored once; stacks of frames are built when they are read.

An episode of T transitions takes T + 1 slots, one for each of its frames. Frames are numbered from the first one ever
added and never renumbered: frame `t` is in slot `t % slots`, so the end of the ring needs only the comparison `t < next`.
`draw` chooses the frames to read, uniformly or by priority; `transitions` and `clips` read them.
"""

import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import IO, Any, Literal
from zlib import crc32

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from maskrl.files import open_file, status_of
from maskrl.nn.clip import Clip
from maskrl.nn.transfer import HOSTS, Arriving, pinned, sent
from maskrl.replay.ahead import Ahead
from maskrl.replay.sumtree import SumTree

Index = NDArray[np.int64]
Purpose = Literal["transitions", "clips"]


class NothingToDrawError(ValueError):
    """No stored episode is long enough for the draw; the message says what to change."""


class PrioritiesError(ValueError):
    """Errors that cannot become priorities; the message says why."""


@dataclass(frozen=True)
class Draw:
    """B frames to read from, by number, each followed by a transition, and the weights of their losses."""

    starts: Index  # (B,)
    weights: Tensor  # (B,) float32, importance weights; all 1 in a uniform draw

    def __len__(self) -> int:
        return len(self.starts)

    def first(self, count: int) -> "Draw":
        """The first `count` starts; they are in random order."""
        return Draw(self.starts[:count], self.weights[:count])


@dataclass(frozen=True)
class Transitions:
    """B transitions of up to n steps: the target of a value at `obs` is `rewards + discounts · value(next_obs)`."""

    obs: Tensor  # (B, C, H, W) uint8
    actions: Tensor  # (B, A) float32, one-hot when the action space is discrete
    rewards: Tensor  # (B,) float32, the discounted sum over the m ≤ n steps taken
    next_obs: Tensor  # (B, C, H, W) uint8, after m steps
    discounts: Tensor  # (B,) float32, discount**m, and 0 after a termination
    vectors: Tensor | None = None  # (B, V) float32, vector observations with `obs`, if there are any
    next_vectors: Tensor | None = None

    def __len__(self) -> int:
        return self.obs.shape[0]

    def vectors_of(self, piece: slice) -> tuple[Tensor | None, Tensor | None]:
        """The vector observations with `obs` and `next_obs` in a slice of the batch; None if there are none."""
        before, after = self.vectors, self.next_vectors
        return None if before is None else before[piece], None if after is None else after[piece]

    def to(self, device: torch.device | str) -> "Transitions":
        return self._each(lambda tensor: sent(tensor, device))

    def pinned(self, device: torch.device | str) -> "Transitions":
        """The transitions in pinned memory, for a copy to the device without waiting."""
        return self._each(lambda tensor: pinned(tensor, device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Transitions":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(value) for name, value in values.items() if value is not None})


class Replay:
    """The newest `capacity` transitions; fewer if they contain more ends of episodes than there is room for (`_slots`).

    They are in memory or, with a `directory`, in files that outlive the process. `reserve`: extra frames, so that an exact resume
    from files is possible: this many can be written before one replaces a frame of the last state but one (`must_be_saved`).
    A `priority_exponent` makes draws prioritised (Schaul et al., 2016), in proportion to error ** exponent.
    """

    def __init__(
        self,
        *,
        frame_shape: tuple[int, int, int],  # (c, H, W) of one frame
        action_dim: int,
        frame_stack: int,
        capacity: int,
        seed: int,
        discrete: bool = False,  # whether actions are one-hot; each then takes a byte or two
        vector_dim: int = 0,  # length of the vector observation
        directory: Path | None = None,
        prefix: str = "",  # of the names of its files
        pad: Literal["repeat", "zero"] = "repeat",  # before an episode's first frame: that frame repeated, or black
        reserve: int = 0,
        priority_exponent: float | None = None,  # None: uniform draws
        mend: bool = False,  # lengthen truncated files; `load_state_dict` returns the number of lost frames
        mirror: torch.device | None = None,  # device with a second copy of the frames, to build batches there
        prefetch: int = 0,  # batches to gather ahead, see `Ahead`
    ) -> None:
        _require_sizes(frame_shape, action_dim, frame_stack, capacity, reserve)
        _require_draws(pad, priority_exponent, prefetch)
        # With the frames on the device, there is nothing to gather on the host.
        self.ahead = Ahead(prefetch if mirror is None else 0)
        self.frame_shape, self.action_dim, self.frame_stack, self.pad = frame_shape, action_dim, frame_stack, pad
        self.discrete, self.priority_exponent, self.vector_dim = discrete, priority_exponent, vector_dim
        self._slots = _slots(frame_stack, capacity, reserve)
        self._window = self._slots - reserve
        self._steps = np.zeros(self._slots, _step(action_dim, discrete, vector_dim))
        self._frames = allocate(f"{prefix}frames.u8", np.uint8, (self._slots, *frame_shape), directory, mend)
        # The check sum of the frame in each slot, 0 for none. After a crash it shows which frames are intact.
        self._stamps = allocate(f"{prefix}stamps.u32", np.uint32, (self._slots,), directory, mend)
        self._mirror = None if mirror is None else torch.zeros(self._frames.shape, dtype=torch.uint8, device=mirror)
        # A leaf for each slot: error ** exponent of the transition that starts there, 0 if there is none to draw.
        self._tree = None if priority_exponent is None else SumTree(self._slots)
        self._arriving: tuple[Draw, Arriving] | None = None  # errors not in the tree yet
        self._next = 0  # the number of the next frame
        self._firsts: list[int] = []  # first frames of the stored episodes
        self._floor = 0  # frames below this number are lost
        self._saved = (0, 0)  # `_next` at the newest saved state, and at the one before
        self._running = False  # whether an episode is open
        # Clips have their own random stream, so that the same transitions are drawn with and without an objective.
        self._generators = {"transitions": np.random.default_rng(seed), "clips": np.random.default_rng((seed, 1))}

    @staticmethod
    def forecast(
        frame_shape: tuple[int, int, int],
        action_dim: int,
        frame_stack: int,
        capacity: int,
        reserve: int = 0,
        priority_exponent: float | None = None,
        discrete: bool = False,
        vector_dim: int = 0,
    ) -> int:
        """The bytes of a full replay with these arguments, in memory or on disk."""
        per_slot = prod(frame_shape) + _step(action_dim, discrete, vector_dim).itemsize + np.dtype(np.uint32).itemsize
        slots = _slots(frame_stack, capacity, reserve)
        return slots * per_slot + (0 if priority_exponent is None else SumTree.forecast(slots))

    @property
    def nbytes(self) -> int:
        """The bytes allocated; the system assigns them as frames are added."""
        tree = 0 if self._tree is None else self._tree.nbytes
        return int(self._frames.nbytes + self._steps.nbytes + self._stamps.nbytes) + tree

    @property
    def is_prioritised(self) -> bool:
        return self._tree is not None

    def __len__(self) -> int:
        """The number of transitions that can be drawn."""
        oldest, newest = self._oldest_start(), self._next - 1
        # Every frame begins a transition, except the last of each episode, which is the one before another's first.
        return max(0, newest - oldest - (len(self._firsts) - bisect_right(self._firsts, oldest)))

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_episode(
        self, obs: NDArray[np.uint8], vector: NDArray[np.float32] | None = None, *, place: int = 0
    ) -> None:
        """Store the observation (C, H, W) after a reset. An open episode is closed as truncated.

        `vector`: the vector observation (V,), if there is one. `place`: the index of the environment, for `Several`.
        """
        frame = self._newest_frame(obs)
        newest = self._steps[(self._next - 1) % self._slots]
        if self._running and newest["first"] < self._next - 1:
            self._steps["truncated"][(self._next - 2) % self._slots] = True
        self._firsts = [*self._firsts[bisect_right(self._firsts, self._next - self._window) :], self._next]
        self._append(frame, vector, first=self._next)
        self._running = True

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
        """Store one decision: the action (A,) at the latest observation, its reward, and the observation it led to."""
        if not self._running:
            raise RuntimeError(
                f"add() needs an open episode; {'the last one has ended' if self._next else 'none was begun'}. "
                "Call begin_episode(obs) with the observation after env.reset()."
            )
        frame = self._newest_frame(obs)
        action, reward = np.asarray(action, dtype=np.float32), np.float32(reward)
        if action.shape != (self.action_dim,) or not np.isfinite(action).all():
            raise ValueError(
                f"The action must be {self.action_dim} finite numbers; got shape {action.shape}: {action}. "
                "One-hot encode a discrete action: numpy.eye(A)[action]."
            )
        if not np.isfinite(reward):
            raise ValueError(
                f"The reward must be a finite number; got {reward}. Look for the cause in the environment."
            )
        step = self._steps[(self._next - 1) % self._slots]
        step["action"] = self._number_of(action) if self.discrete else action
        step["reward"], step["terminated"], step["truncated"] = reward, terminated, truncated
        self._append(frame, vector, first=int(step["first"]))
        self._running = not (terminated or truncated)

    def _number_of(self, action: NDArray[np.float32]) -> int:
        if np.count_nonzero(action) != 1 or action.max() != 1:
            raise ValueError(
                f"A discrete action must be one-hot; got {action}. Use numpy.eye({self.action_dim})[action]."
            )
        return int(action.argmax())

    def _newest_frame(self, obs: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(C, H, W) → (c, H, W): stacks run from the oldest frame to the newest."""
        obs = np.asarray(obs)
        channels, *sides = self.frame_shape
        expected = (self.frame_stack * channels, *sides)
        if obs.dtype != np.uint8 or obs.shape != expected:
            raise ValueError(
                f"An observation must be uint8 of shape {expected}, a stack of {self.frame_stack} frames of shape "
                f"{self.frame_shape}, newest last; got {obs.dtype} of shape {obs.shape}. "
                "Pass the raw observation of the frame-stacking environment."
            )
        return obs[-channels:]

    def _append(self, frame: NDArray[np.uint8], vector: NDArray[np.float32] | None, *, first: int) -> None:
        slot = self._next % self._slots
        # Clear the stamp before writing the frame, so that a crash in between cannot leave a valid stamp.
        self._stamps[slot] = _stamp(self._next, frame)
        self._frames[slot] = frame
        if self._mirror is not None:
            self._mirror[slot].copy_(sent(torch.from_numpy(self._frames[slot]), self._mirror.device))
        self._steps[slot] = 0
        self._steps["first"][slot] = first
        if self.vector_dim:
            self._steps["vector"][slot] = vector
        if self._tree is not None:
            # Unless this frame is an episode's first, the frame before it becomes a start, with the leaf 1 as in the
            # released code. This one becomes a start when its decision is added. And one frame leaves the window.
            previous, leaving = (self._next - 1) % self._slots, (self._next - self._window) % self._slots
            self._tree.set([previous, leaving], [float(first < self._next), 0.0])
        self._next += 1

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
        """Draw starts that are followed by `span` frames, with replacement; uniformly, or in proportion to their leaves.

        `whole`: all `span` transitions must be in the start's episode; otherwise only the first, so an episode may end within
        the span. The whole span is stored already, so a return or a clip read from it never gets longer later.
        `correction`: the exponent β of the importance weights (1 / leaf) ** β, which are scaled to a maximum of 1.
        `purpose`: the random stream to use.
        `stratified`: draw one start from each of `batch_size` equal shares of the sum of leaves, where possible.
        """
        if batch_size < 1 or span < 1:
            raise ValueError(f"batch_size={batch_size} and span={span} must be at least 1.")
        if not 0 <= correction < np.inf:
            raise ValueError(f"correction={correction} must be a finite number of at least 0; 1 corrects in full.")
        self._await_priorities()
        steps = span if whole else 1
        oldest, end = self._oldest_start(), self._next - span
        starts = np.empty(0, np.int64)
        if oldest < end:
            # Rejection keeps the proportions. If it leaves too few, listing all valid starts is cheap enough.
            generator = self._generators[purpose]
            if stratified:
                starts = self._one_of_each_share(batch_size, oldest, end, steps, generator)
            more = self._candidates(2 * batch_size + 16, oldest, end, generator)
            starts = np.concatenate([starts, more[self._reaches(more, steps)]])[:batch_size]
        if len(starts) < batch_size:
            every = np.arange(oldest, end)
            every = every[self._reaches(every, steps)]
            if len(every) == 0:
                raise NothingToDrawError(self._too_short(steps) if whole or len(self) == 0 else self._too_new(span))
            leaves = None if self._tree is None else self._tree[every % self._slots]
            starts = self._generators[purpose].choice(
                every, batch_size, p=None if leaves is None else leaves / leaves.sum()
            )
        return Draw(starts, self._weights(starts, correction))

    def spread(self, count: int, *, span: int = 1) -> Draw:
        """Up to `count` starts, each followed by `span` transitions of its episode, spread evenly over the replay.

        The spans do not overlap, so there may be fewer, down to none. For probes: nothing is random, so the draws for learning do
        not change.
        """
        every = np.arange(self._oldest_start(), max(self._oldest_start(), self._next - span))
        every = every[self._reaches(every, span)]
        count = min(count, max(1, len(every) // span), len(every))
        starts = every[np.arange(count) * len(every) // max(1, count)]
        return Draw(starts, torch.ones(len(starts)))

    def _candidates(self, count: int, oldest: int, end: int, generator: np.random.Generator) -> Index:
        """At most `count` frames in [oldest, end): uniform, or in proportion to their leaves."""
        if self._tree is None:
            return generator.integers(oldest, end, size=count)
        if self._tree.total == 0:  # only first frames
            return np.empty(0, np.int64)
        frames = self._frames_at(generator.random(count))
        return frames[(frames >= oldest) & (frames < end)]

    def _frames_at(self, shares: NDArray[np.float64]) -> Index:
        """The frames at these points (N,) of the cumulative leaves, in [0, 1)."""
        assert self._tree is not None
        slots, newest = self._tree.find(shares * self._tree.total), self._next - 1
        return newest - (newest - slots) % self._slots

    def _one_of_each_share(
        self, count: int, oldest: int, end: int, steps: int, generator: np.random.Generator
    ) -> Index:
        """A start from each of `count` equal shares of the sum of leaves; shares without one after ten tries are left out."""
        if self._tree is None or self._tree.total == 0:
            return np.empty(0, np.int64)
        found, missing = np.full(count, -1), np.arange(count)
        for _ in range(10):
            frames = self._frames_at((missing + generator.random(len(missing))) / count)
            inside = (frames >= oldest) & (frames < end)
            inside[inside] = self._reaches(frames[inside], steps)
            found[missing[inside]] = frames[inside]
            missing = missing[~inside]
        return found[found >= 0]

    def _weights(self, starts: Index, correction: float) -> Tensor:
        if self._tree is None:
            return torch.ones(len(starts))
        weights = self.raw_weights(starts, correction)
        return torch.from_numpy((weights / weights.max()).astype(np.float32))

    def raw_weights(self, starts: Index, correction: float) -> NDArray[np.float64]:
        """The importance weights of these starts, unscaled."""
        if self._tree is None:
            return np.ones(len(starts))
        weights: NDArray[np.float64] = (
            1 / (self._tree[starts % self._slots] + 1e-5)
        ) ** correction  # as in the released code
        return weights

    @property
    def mass(self) -> float:
        """The number of transitions, or the sum of their leaves if draws are prioritised."""
        self._await_priorities()
        return float(len(self) if self._tree is None else self._tree.total)

    def reprioritise(self, draw: Draw, errors: Tensor | ArrayLike) -> None:
        """Set the leaves of these starts from the errors (B,) of an update with them; for a start drawn twice, from the first.

        Starts overwritten since the draw are skipped. Errors on an accelerator are copied to the host in the background and awaited
        when the leaves are next read; the leaves are the same as without this delay.
        """
        if self._tree is None:
            raise RuntimeError(
                "This replay draws uniformly and has no priorities. Build it with priority_exponent=0.5 (Rainbow), "
                "or do not call reprioritise()."
            )
        self._await_priorities()
        errors = errors if isinstance(errors, Tensor) else torch.from_numpy(np.asarray(errors, np.float64))
        self._arriving = (draw, Arriving(errors))
        if errors.device.type in HOSTS:
            self._await_priorities()

    def _await_priorities(self) -> None:
        """Wait for errors that are being copied to the host, and set their leaves."""
        if self._arriving is None:
            return
        (draw, arriving), self._arriving = self._arriving, None
        self._set_priorities(draw, arriving.value().double().numpy())

    def _set_priorities(self, draw: Draw, errors: NDArray[np.float64]) -> None:
        assert self._tree is not None
        assert self.priority_exponent is not None
        if errors.shape != (len(draw),) or not np.isfinite(errors).all():
            raise PrioritiesError(
                f"The errors must be one finite number for each of the {len(draw)} starts; got shape {errors.shape}, "
                f"{int((~np.isfinite(errors)).sum())} not finite. Pass the losses before their mean. If they are not "
                "finite, look for the cause in the update before you make another."
            )
        stored = draw.starts >= max(self._floor, self._next - self._window)
        starts, errors = draw.starts[stored], errors[stored]
        if not self._reaches(starts, 1).all():
            raise ValueError(
                f"Some of the {len(draw)} starts are not transitions. Only reprioritise draws of this replay."
            )
        # The bounds of the released code, which also catch a divergence that is below 0 by rounding.
        self._tree.set(starts % self._slots, np.clip(errors, 1e-6, 1e6) ** self.priority_exponent)

    def _too_short(self, steps: int) -> str:
        episodes = self._steps["first"][np.arange(self._oldest_start(), self._next) % self._slots]
        lengths = np.unique(episodes, return_counts=True)[1] - 1
        return (
            f"No stored episode has {steps} transitions in a row to draw: the longest of {len(lengths)} has "
            f"{lengths.max(initial=0)}. Lower objective.clip_length or the environment's action_repeat, "
            "or collect more before the first update (agent.warmup_decisions)."
        )

    def _too_new(self, span: int) -> str:
        return (
            f"None of the {len(self)} stored transitions is followed by the {span} frames that the draw needs: the oldest "
            f"frame has {self._next - 1 - self._oldest_start()} after it. Lower agent.n_step or objective.clip_length, "
            "raise replay.capacity, or collect more before the first update (agent.warmup_decisions)."
        )

    def _oldest_start(self) -> int:
        """The oldest frame whose whole stack is still stored; the stacks of all later frames are, too."""
        oldest = frame = max(self._floor, self._next - self._window)
        while (
            frame < self._next and max(frame - self.frame_stack + 1, self._steps["first"][frame % self._slots]) < oldest
        ):
            frame += 1
        return frame

    def _reaches(self, frames: Index, steps: int | Index) -> NDArray[np.bool_]:
        """Whether at least `steps` transitions follow each frame in its episode."""
        ahead, first = frames + steps, self._steps["first"]
        same: NDArray[np.bool_] = first[ahead % self._slots] == first[frames % self._slots]
        return same & (ahead < self._next)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def transitions(
        self, draw: Draw, *, n_step: int = 1, discount: float = 0.99, late_ends: bool = True
    ) -> Transitions:
        """The transitions at the starts, cut short by a termination, a truncation or the newest frame.

        `late_ends=False` reproduces a bug of the released Atari code, for comparison: only an end in the first step is noticed.
        After a later end, the target bootstraps as if all n steps had led to the observation of the last decision. That code has
        no truncations, so both kinds of end count as one here.
        """
        if n_step < 1 or not 0 <= discount <= 1:
            raise ValueError(f"n_step={n_step} must be at least 1 and discount={discount} lie in [0, 1].")
        starts, steps = self._stored(draw), np.arange(n_step)
        taken = self._reaches(starts[:, None], steps + 1)  # (B, n)
        ends = starts + taken.sum(axis=1)
        rewards = np.where(taken, self._steps["reward"][(starts[:, None] + steps) % self._slots], 0) @ discount**steps
        last = (ends - 1) % self._slots
        stops = self._steps["terminated"][last]  # a truncated episode would have continued
        discounts = ~stops * discount ** (ends - starts)
        if not late_ends:
            stops = stops | self._steps["truncated"][last]
            missed = np.where(ends - starts == 1, 0, discount**n_step)
            ends, discounts = ends - stops, np.where(stops, missed, discounts)
        obs, next_obs = self._stacks(np.stack([starts, ends]))
        return Transitions(
            obs=obs,
            actions=torch.from_numpy(self._taken(starts)),
            rewards=torch.from_numpy(rewards.astype(np.float32)),
            next_obs=next_obs,
            discounts=torch.from_numpy(discounts.astype(np.float32)),
            vectors=self._vectors(starts),
            next_vectors=self._vectors(ends),
        )

    def clips(self, draw: Draw, *, length: int) -> Clip:
        """K observations from each start, with the actions taken at them.

        After the episode's last action, the last observation is repeated with zero actions and `valid` False.
        """
        if length < 1:
            raise ValueError(f"length={length} must be at least 1.")
        starts, steps = self._stored(draw), np.arange(length)
        valid = self._reaches(starts[:, None], steps + 1)  # (B, K)
        frames = starts[:, None] + np.minimum(steps, valid.sum(axis=1, keepdims=True) - 1)
        actions = np.where(valid[..., None], self._taken(frames), np.float32(0))
        obs = self._stacks(frames)
        return Clip(obs, *(sent(torch.from_numpy(values), obs.device) for values in (actions, valid)))

    def _vectors(self, frames: Index) -> Tensor | None:
        """The vector observations with these frames, (…, V); None if there are none."""
        return torch.from_numpy(self._steps["vector"][frames % self._slots]) if self.vector_dim else None

    def _taken(self, frames: Index) -> NDArray[np.float32]:
        """The actions taken at these frames, (…, A)."""
        actions = self._steps["action"][frames % self._slots]
        return (actions[..., None] == np.arange(self.action_dim)).astype(np.float32) if self.discrete else actions

    def _stored(self, draw: Draw) -> Index:
        stale = (draw.starts < self._oldest_start()) | ~self._reaches(draw.starts, 1)
        if stale.any():
            raise ValueError(
                f"{int(stale.sum())} of {len(draw)} starts are not stored transitions (any more). "
                "Read a draw before adding to the replay, and only from the replay that made it."
            )
        return draw.starts

    def _stacks(self, frames: Index) -> Tensor:
        """The observations (…, C, H, W) whose newest frames are these, gathered in one operation."""
        first = self._steps["first"][frames % self._slots][..., None]
        wanted = frames[..., None] + np.arange(1 - self.frame_stack, 1)  # (…, stack)
        slots = np.maximum(wanted, first) % self._slots
        before = wanted < first  # before the episode's first frame
        if self._mirror is None:
            gathered = self._frames[slots]  # (…, stack, c, H, W)
            if self.pad == "zero":
                gathered[before] = 0
            stacks = torch.from_numpy(gathered)
        else:
            stacks = self._mirror[sent(torch.from_numpy(slots), self._mirror.device)]
            if self.pad == "zero":
                stacks.masked_fill_(sent(torch.from_numpy(before), stacks.device)[..., None, None, None], 0)
        channels, *sides = self.frame_shape
        return stacks.reshape(*frames.shape, self.frame_stack * channels, *sides)

    # ── resuming ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def must_be_saved(self) -> bool:
        """Whether the next two frames may replace one that the last state but one needs.

        The older of the two kept states is protected, in case the newer one is lost.
        """
        ahead = self._next + 2
        wraps = isinstance(self._frames, np.memmap) and ahead > self._slots
        return wraps and ahead - self._saved[1] > self._slots - self._window

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and numpy arrays that share no memory with the replay. Frames in files are synced, not included."""
        self._await_priorities()
        self._saved = (self._next, self._saved[0])
        used = min(self._next, self._slots)
        state: dict[str, Any] = {"layout": self._layout(), "next": self._next, "floor": self._floor}
        streams = {purpose: generator.bit_generator.state for purpose, generator in self._generators.items()}
        state |= {"running": self._running, "generators": streams}
        state |= {name: self._steps[name][:used].copy() for name in self._steps.dtype.names or ()}
        if self._tree is not None:
            state["leaf"] = self._tree[np.arange(used)]
        files = [array for array in (self._frames, self._stamps) if isinstance(array, np.memmap)]
        for file in files:
            file.flush()
        if not files:
            state["frames"] = self._frames[:used].copy()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Continue from a state, with the same draws and batches. Returns the number of lost frames.

        Lost are frames in files that are damaged or were overwritten since, and all before them: none, unless another program
        changed the files.
        """
        if not self._holds(state["layout"], state["next"]):
            raise ValueError(f"The state is of a replay with {state['layout']}, this one has {self._layout()}.")
        if "frames" not in state and not isinstance(self._frames, np.memmap):
            raise ValueError("The state has no frames, they are in files: build the replay with its directory.")
        self._arriving = None
        end, floor, used = state["next"], state["floor"], min(state["next"], self._slots)
        numbers, lost = np.arange(end - used, end), 0
        if "frames" in state:
            self._frames[:used] = state["frames"]
            self._stamps[numbers % self._slots] = self._expected_stamps(numbers)
        else:
            needed = np.arange(max(floor, end - self._window, 0), end)
            lost = self._lost(needed)
            floor = max(floor, int(needed[0]) + lost) if lost else floor
        if self._mirror is not None:
            for start in range(0, used, 1000):  # files may be larger than memory
                self._mirror[start : min(start + 1000, used)] = torch.from_numpy(
                    self._frames[start : min(start + 1000, used)]
                )
        for name in self._steps.dtype.names or ():
            self._steps[name][:used] = state[name]
        if self._tree is not None:
            leaves = state["leaf"].copy()
            leaves[numbers[numbers < floor] % self._slots] = 0  # lost: drawing them would only be rejected
            self._tree.load(leaves)
        self._next, self._floor, self._running = end, floor, state["running"]
        self._firsts = np.unique(self._steps["first"][numbers[-self._window :] % self._slots]).tolist()
        for purpose, generator in self._generators.items():
            generator.bit_generator.state = state["generators"][purpose]
        self._saved = (end, end)
        return lost

    def _holds(self, layout: dict[str, Any], end: int) -> bool:
        """Whether states of this layout can be loaded: the same layout, or a smaller replay that had room for all its frames."""
        smaller = {**self._layout(), "slots": layout.get("slots"), "window": layout.get("window")}
        grown = self._slots > layout.get("slots", 0) and self._window > layout.get("window", 0) >= end
        return layout == self._layout() or (layout == smaller and grown)

    def _lost(self, numbers: Index) -> int:
        """How many of these frames to drop, oldest first, so that all others are intact in the files."""
        lost = np.flatnonzero(self._stamps[numbers % self._slots] != self._expected_stamps(numbers))
        if len(lost) and lost[-1] == len(numbers) - 1:
            raise ValueError(
                f"The files do not hold the {len(numbers)} frames of the state, not even the newest. "
                "Build the replay with the directory that was in use when the state was saved."
            )
        return int(lost[-1]) + 1 if len(lost) else 0

    def _expected_stamps(self, numbers: Index) -> NDArray[np.uint32]:
        """The check sums of these frames, from the content of their slots."""
        stamps = (_stamp(number, self._frames[number % self._slots]) for number in numbers.tolist())
        return np.fromiter(stamps, np.uint32, len(numbers))

    def _layout(self) -> dict[str, Any]:
        """The properties that two replays must share to exchange states, as values that JSON preserves."""
        return {
            "frame_shape": list(self.frame_shape),
            "action_dim": self.action_dim,
            "frame_stack": self.frame_stack,
            "slots": self._slots,
            "window": self._window,
            "pad": self.pad,
            "discrete": self.discrete,
            **({"vector_dim": self.vector_dim} if self.vector_dim else {}),
            **({} if self.priority_exponent is None else {"priority_exponent": self.priority_exponent}),
        }


def _stamp(number: int, frame: NDArray[np.uint8]) -> int:
    """A check sum of a frame and its number, because a slot is used for several frames."""
    return crc32(np.ascontiguousarray(frame).data, number)


def _require_sizes(
    frame_shape: tuple[int, int, int], action_dim: int, frame_stack: int, capacity: int, reserve: int
) -> None:
    if len(frame_shape) != 3 or min(frame_shape) < 1:
        raise ValueError(f"frame_shape={frame_shape} must be (channels, height, width) of one frame, not of a stack.")
    if min(action_dim, frame_stack, capacity) < 1 or reserve < 0:
        raise ValueError(
            f"action_dim={action_dim}, frame_stack={frame_stack} and capacity={capacity} must be at least 1, "
            f"reserve={reserve} at least 0."
        )


def _require_draws(pad: str, priority_exponent: float | None, prefetch: int) -> None:
    if pad not in ("repeat", "zero"):
        raise ValueError(f"pad={pad!r} must be 'repeat' (DMControl) or 'zero' (Atari), as the environment stacks.")
    if priority_exponent is not None and not 0 <= priority_exponent <= 1:
        raise ValueError(
            f"priority_exponent={priority_exponent} must lie in [0, 1] (0: all starts equally likely, 1: in proportion to "
            "their errors; Rainbow: 0.5), or be None for uniform draws."
        )
    if prefetch and priority_exponent is not None:
        raise ValueError(
            f"prefetch={prefetch}, but draws by priority wait for the errors of the last update. Use prefetch=0, or draw "
            "uniformly (priority_exponent=None)."
        )


def _slots(frame_stack: int, capacity: int, reserve: int) -> int:
    """Slots for `capacity` transitions, final frames of episodes of 100 steps (at most 1000 of them), and the oldest stack."""
    return capacity + min(capacity // 100, 1000) + frame_stack + 1 + reserve


def _step(action_dim: int, discrete: bool, vector_dim: int) -> np.dtype[np.void]:
    """The record stored with each frame. The last four fields describe the decision taken at it, and are empty in a final frame."""
    return np.dtype(
        [
            ("first", np.int64),  # the number of the episode's first frame
            *([("vector", np.float32, (vector_dim,))] if vector_dim else []),
            ("action", np.min_scalar_type(action_dim - 1)) if discrete else ("action", np.float32, (action_dim,)),
            ("reward", np.float32),
            ("terminated", np.bool_),
            ("truncated", np.bool_),
        ]
    )


def allocate(name: str, dtype: Any, shape: tuple[int, ...], directory: Path | None, mend: bool) -> NDArray[Any]:
    """Zeros in memory, assigned by the system when written, or in a file; an existing file is opened unchanged."""
    if directory is None:
        return np.zeros(shape, dtype)
    folder, inner = directory.absolute().parent, directory.name
    status_of(folder, inner, "a directory")
    directory.mkdir(parents=True, exist_ok=True)
    path, size = directory / name, prod(shape) * np.dtype(dtype).itemsize
    if status_of(folder, f"{inner}/{name}") is None:
        aside = path.with_name(f"{name}.new")
        try:
            aside.unlink(missing_ok=True)
            with aside.open("xb") as file:
                _lengthen(file, size)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise OSError(
                error.errno,
                f"{error.strerror}: the replay needs {size:,} bytes there. Lower replay.capacity or use another disk",
                str(path),
            ) from error
        aside.rename(path)
    with open_file(folder, f"{inner}/{name}", "r+b") as file:
        if mend and os.fstat(file.fileno()).st_size < size:
            _lengthen(file, size)
        if (found := os.fstat(file.fileno()).st_size) != size:
            raise ValueError(
                f"{path} has {found} bytes, this replay needs {size}: it is damaged, or belongs to another replay. "
                "Use another directory, or the frame_shape, frame_stack, capacity and reserve it was made with."
            )
        return np.memmap(file, dtype, "r+", shape=shape)


def _lengthen(file: IO[bytes], size: int) -> None:
    """Fill the file with zeros up to this size, which allocates the disk space now. If the disk were full later, writing to the
    memory-mapped file would kill the process without a message.
    """
    file.truncate(size)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
