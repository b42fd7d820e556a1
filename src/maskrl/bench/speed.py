"""How fast an update is, and how fast it could be on this machine: `maskrl bench update`.

Everything is measured in turn, round by round: the machine's ceiling, our update, the same update written plainly. A shared machine
is slow for a second and fast the next, and ratios within a round do not see it.
"""

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from maskrl.agents.base import Agent, Spaces
from maskrl.bench.reference import copied, is_known, optimizers_of, plain_update
from maskrl.clock import Stopwatch
from maskrl.cost.operations import UpdateCost, spaces_of, update_cost
from maskrl.nn.augment import View
from maskrl.nn.momentum import Momentum
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Replay
from maskrl.runs.build import build_agent, configure_process, device_of, numerics, replay_size

PHASES = ("draw", "views", "pixels", "critic", "objective", "actor", "momentum", "optimizer")
PIECES = (16, 32, 64, 128)  # observations: sizes among which the machine's best convolution is looked for
ROWS = 512  # of the matrix products
MOMENT = 0.05  # seconds at least that a layer is tried for
ROUND = 50e9  # FLOP of our updates in a round; a single small one tells little

Tell = Callable[[str], None]  # takes a sentence for whoever waits


class Measured(NamedTuple):
    """A median with the least and the most that was seen."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Measured":
        return cls(statistics.median(values), min(values), max(values))

    @classmethod
    def ratio(cls, above: Sequence[float], below: Sequence[float]) -> "Measured":
        """Round by round, so that what slows a whole round down does not count."""
        return cls.of([a / b for a, b in zip(above, below, strict=True)])


class Kernel(NamedTuple):
    """An operation of torch's, without those that it calls itself."""

    name: str
    calls: float  # of one update
    seconds: float  # of one update


@dataclass(frozen=True)
class UpdateBench:
    """Seconds and FLOP are of one update: means over whole turns, after which all parts have been done (`AgentConfig.turn`)."""

    recipe: Recipe
    spaces: Spaces
    device: str
    threads: int
    rounds: int
    cost: UpdateCost
    seconds: Measured
    phases: Mapping[str, float]  # medians of their seconds; "other" is what is left
    ceiling: Measured  # FLOP per second
    best: str  # the layers on which the ceiling was measured
    rate: Measured  # FLOP per second
    utilisation: Measured
    memory: int | None  # bytes above the replay at the peak; None where the system does not tell
    replay_memory: int
    plain: Measured | None  # seconds
    speed_up: Measured | None  # plain / ours
    note: str | None  # why there is no plain version
    kernels: tuple[Kernel, ...] | None = None  # all, the longest first; None: not asked for

    def as_dict(self) -> dict[str, Any]:
        def numbers(value: Measured | None) -> dict[str, float] | None:
            return None if value is None else value._asdict()

        return {
            "recipe": self.recipe.name,
            "profile": self.recipe.profile,
            "method": self.recipe.method,
            "device": self.device,
            "threads": self.threads,
            "rounds": self.rounds,
            "flop_per_update": self.cost.flops,
            "flop_by_phase": dict(self.cost.phases),
            "flop_of_convolutions": self.cost.convolutions,
            "seconds_per_update": numbers(self.seconds),
            "seconds_by_phase": dict(self.phases),
            "ceiling_flop_per_second": numbers(self.ceiling),
            "ceiling_layers": self.best,
            "flop_per_second": numbers(self.rate),
            "utilisation": numbers(self.utilisation),
            "peak_bytes_above_replay": self.memory,
            "replay_bytes": self.replay_memory,
            "plain_seconds_per_update": numbers(self.plain),
            "speed_up": numbers(self.speed_up),
            "note": self.note,
            "kernels": None if self.kernels is None else [kernel._asdict() for kernel in self.kernels],
        }


def bench_update(
    recipe: Recipe, *, rounds: int = 5, plain: bool = True, kernels: bool = False, tell: Tell = print
) -> UpdateBench:
    """Measure updates of a recipe's agent on a replay of noise."""
    configure_process(recipe)
    spaces, device, turn = spaces_of(recipe), device_of(recipe), recipe.agent.turn(recipe.objective)
    cost, replay = update_cost(recipe, spaces), noise_replay(recipe, spaces)
    times = updates_in_a_round(cost.flops, turn)
    tell(
        f"{cost.flops / 1e9:,.1f} GFLOP an update. The first {2 * turn} updates, which also tell how much memory they take."
    )
    agent, memory = _build_and_weigh(recipe, replay, 2 * turn)
    tell("Looking for the best that this machine does on the layers of these shapes.")
    best = best_layers(agent, _seen(agent, spaces), device)
    note = None if plain else "not asked for"
    if plain and not is_known(agent.objective):
        note = "not written for this variant of the objective"
    elif plain and device.type != "cpu":
        note = "written for a CPU alone"

    ours, theirs, limits, parts = list[float](), list[float](), list[float](), list[dict[str, float]]()
    with ExitStack() as stack:
        if note is None:
            tell("The first updates of the plain version.")
            twin = stack.enter_context(_plain_process(recipe, spaces, times))
        for number in range(1, rounds + 1):
            before = [tried.rate(device) for tried in best]
            with watched(agent, replay) as watch:
                ours.append(seconds_each(lambda: _update(agent, replay, recipe), times, device))
            after = [tried.rate(device) for tried in best]
            limits.append(ceiling(cost, dict(zip(best, map(max, before, after), strict=True))))
            parts.append({phase: watch.seconds.get(phase, 0.0) / times for phase in PHASES})
            parts[-1]["other"] = ours[-1] - sum(parts[-1].values())
            if note is None:
                theirs.append(twin())
            plainly = f", plainly {theirs[-1]:.3g} s" if theirs else ""
            tell(f"Round {number} of {rounds}: {ours[-1]:.3g} s an update{plainly}.")
    rates = [cost.flops / seconds for seconds in ours]
    return UpdateBench(
        recipe=recipe,
        spaces=spaces,
        device=str(device),
        threads=torch.get_num_threads(),
        rounds=rounds,
        cost=cost,
        seconds=Measured.of(ours),
        phases={phase: statistics.median(part[phase] for part in parts) for phase in parts[0]},
        ceiling=Measured.of(limits),
        best="; ".join(tried.layer.name for tried in best),
        rate=Measured.of(rates),
        utilisation=Measured.ratio(rates, limits),
        memory=memory,
        replay_memory=replay.nbytes,
        plain=Measured.of(theirs) if theirs else None,
        speed_up=Measured.ratio(theirs, ours) if theirs else None,
        note=note,
        kernels=_kernels(lambda: _update(agent, replay, recipe), times, device) if kernels else None,
    )


def updates_in_a_round(flops: float, turn: int) -> int:
    """So many turns as have the work of a round, but at most five."""
    return turn * min(5, max(1, round(ROUND / (turn * flops))))


def _kernels(call: Callable[[], Any], times: int, device: torch.device) -> tuple[Kernel, ...]:
    """What torch's own profiler saw in so many calls. It takes time itself, of small operations most."""
    cuda = device.type == "cuda"
    kinds = [ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
    with profile(activities=kinds) as seen:
        seconds_each(call, times, device)
    parts = [
        Kernel(
            part.key,
            part.count / times,
            (part.self_device_time_total if cuda else part.self_cpu_time_total) / times / 1e6,
        )
        for part in seen.key_averages()
    ]
    return tuple(sorted(parts, key=lambda kernel: kernel.seconds, reverse=True))


def _update(agent: Agent, replay: Replay, recipe: Recipe) -> None:
    with numerics(recipe):
        agent.update(replay)


@contextmanager
def _plain_process(recipe: Recipe, spaces: Spaces, times: int) -> Iterator[Callable[[], float]]:
    """What asks for the seconds of a plain update, the mean of so many, which have been done once.

    It lives in a process of its own: how memory is kept (`configure_process`) is a matter of a whole process, and it is ours.
    """
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(
        target=_live_plainly, args=(theirs, recipe, spaces, times, torch.get_num_threads()), daemon=True
    )
    process.start()
    theirs.close()

    def ask() -> float:
        try:
            pipe.send(None)
            seconds: float = pipe.recv()
        except (EOFError, OSError):
            raise RuntimeError(
                "The process of the plain version has ended, perhaps for want of memory. Leave it out: --no-plain."
            ) from None
        return seconds

    try:
        ask()
        yield ask
    finally:
        pipe.close()
        process.join()


def _live_plainly(pipe: Connection, recipe: Recipe, spaces: Spaces, times: int, threads: int) -> None:
    """In the other process: so many plain updates for each question, until the pipe is closed."""
    torch.set_num_threads(threads)
    torch.manual_seed(recipe.seed)
    device = torch.device("cpu")
    agent, replay = recipe.agent.build(spaces, recipe.objective, device), noise_replay(recipe, spaces)
    update = plain_update(copied(agent), replay)
    assert update is not None  # the other process has seen to it
    with suppress(EOFError, OSError):
        while True:
            pipe.recv()
            pipe.send(seconds_each(update, times, device))


def seconds_each(call: Callable[[], Any], times: int, device: torch.device) -> float:
    """The mean of so many calls in a row."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def noise_replay(recipe: Recipe, spaces: Spaces, *, transitions: int = 600, decisions: int = 150) -> Replay:
    """Episodes of so many decisions whose frames are noise: what is drawn from it costs what real frames cost."""
    size = replay_size(recipe, spaces)
    size["capacity"], size["reserve"] = transitions, 0
    replay, chance = Replay(**size, seed=recipe.seed), np.random.default_rng(recipe.seed)
    for _ in range(transitions // decisions):
        replay.begin_episode(chance.integers(0, 256, spaces.obs, dtype=np.uint8))
        for step in range(1, decisions + 1):
            obs = chance.integers(0, 256, spaces.obs, dtype=np.uint8)
            action = spaces.as_vector(spaces.random_action(chance))
            replay.add(action, float(chance.random()), obs, terminated=False, truncated=step == decisions)
    return replay


# ── Where the time goes ───────────────────────────────────────────────────────────────────────────────────────────────


class Wrap:
    """Times functions of others from outside, so that their code need not know of it, until it is undone."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch
        self._undo: list[Callable[[], None]] = []

    def __call__(self, owner: Any, names: Sequence[str], part: str) -> None:
        """Methods of an object, or of all objects of a class. One that it does not have is passed over."""
        for name in names:
            if hasattr(owner, name):
                self._wrap(owner, name, part)

    def _wrap(self, owner: Any, name: str, part: str) -> None:
        function, own = getattr(owner, name), name in vars(owner)

        def timed(*args: Any, **options: Any) -> Any:
            with self.watch(part):
                return function(*args, **options)

        setattr(owner, name, timed)
        self._undo.append(lambda: setattr(owner, name, function) if own else delattr(owner, name))

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


def wrap_agent(wrap: Wrap, agent: Any) -> None:
    """What an agent's own stopwatch does not tell apart."""
    wrap(View, ["pixels"], "pixels")
    wrap(agent.augment, ["forward"], "views")
    if agent.objective is not None:
        wrap(agent.objective, ["views"], "views")
    for slow in _momenta(agent):
        wrap(slow, ["update"], "momentum")
    for optimizer in optimizers_of(agent):
        wrap(optimizer, ["step"], "optimizer")


@contextmanager
def watched(agent: Any, replay: Replay) -> Iterator[Stopwatch]:
    """A stopwatch with the seconds of `PHASES`. Where a device works on its own, it shows when it was told to."""
    watch, kept = Stopwatch(), agent.watch
    wrap = Wrap(watch)
    agent.watch = watch
    wrap(replay, ["draw", "transitions", "clips", "reprioritise"], "draw")
    wrap_agent(wrap, agent)
    try:
        yield watch
    finally:
        wrap.undo()
        agent.watch = kept
        watch.seconds["draw"] += watch.seconds.pop("replay", 0.0)


def _momenta(agent: Any) -> list[Momentum]:
    values = [value for value in (*vars(agent).values(), agent.objective) if isinstance(value, nn.Module)]
    modules = dict.fromkeys(module for value in values for module in value.modules())
    return [module for module in modules if isinstance(module, Momentum)]


# ── How fast it could be ──────────────────────────────────────────────────────────────────────────────────────────────


class Layer(NamedTuple):
    """A convolution or a matrix product as the agent has it."""

    weight: tuple[int, ...]
    input: tuple[int, ...]  # of one observation, or of one row
    stride: int | None = None  # None: a matrix product

    @property
    def name(self) -> str:
        fan_out, fan_in, *sides = self.weight
        if self.stride is None:
            return f"product {fan_in} → {fan_out}"
        return f"convolution {fan_in} → {fan_out} of {sides[0]} × {sides[1]}, stride {self.stride}"

    @property
    def flops(self) -> int:
        """Of one observation, or of one row."""
        *_, height, width = self.input if self.stride else (1, 1)
        places = 1
        if self.stride is not None:
            places = _shrunk(height, self.weight[2], self.stride) * _shrunk(width, self.weight[3], self.stride)
        count = 2 * places
        for side in self.weight:
            count *= side
        return count


class Tried(NamedTuple):
    """A layer with the number of observations or rows at which it was fastest."""

    layer: Layer
    batch: int

    @torch.no_grad()
    def rate(self, device: torch.device) -> float:
        """FLOP per second, the best of some tries."""
        layer = self.layer
        x, weight = torch.randn(self.batch, *layer.input, device=device), torch.randn(layer.weight, device=device)
        if layer.stride is not None:
            x, weight = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, weight))

        def once() -> Tensor:
            return F.linear(x, weight) if layer.stride is None else F.conv2d(x, weight, stride=layer.stride)

        flops = self.batch * layer.flops
        repeats = max(1, round(2e8 / flops))  # a few milliseconds, which a clock can tell
        once()
        begun, best = time.perf_counter(), 0.0
        while not best or time.perf_counter() - begun < MOMENT:
            best = max(best, flops / seconds_each(once, repeats, device))
        return best


def best_layers(agent: Agent, obs_shape: tuple[int, int, int], device: torch.device) -> list[Tried]:
    """The convolution and the matrix product that are fastest here, of those that the agent has."""
    best: dict[bool, tuple[float, Tried]] = {}
    for layer in layers_of(agent, obs_shape):
        for batch in (ROWS,) if layer.stride is None else PIECES:
            tried = Tried(layer, batch)
            rate, kind = tried.rate(device), layer.stride is None
            if kind not in best or rate > best[kind][0]:
                best[kind] = rate, tried
    return [tried for _, tried in best.values()]


def ceiling(cost: UpdateCost, rates: Mapping[Tried, float]) -> float:
    """FLOP per second, if each kind of layer ran at its best: the seconds of both kinds, added up."""
    by_kind = {tried.layer.stride is None: rate for tried, rate in rates.items()}
    convolution, product = by_kind[False], by_kind[True]
    return cost.flops / (cost.convolutions / convolution + (cost.flops - cost.convolutions) / product)


def layers_of(agent: Any, obs_shape: tuple[int, int, int]) -> list[Layer]:
    """The distinct convolutions of the encoder, and the distinct matrix products of all that learns."""
    layers: list[Layer] = []
    _, height, width = obs_shape
    for module in agent.encoder.modules():
        if isinstance(module, nn.Conv2d):
            weight, stride = tuple(module.weight.shape), module.stride[0]
            layers.append(Layer(weight, (weight[1], height, width), stride))
            height, width = _shrunk(height, weight[2], stride), _shrunk(width, weight[3], stride)
    parts = [part for part in (*vars(agent).values(), agent.objective) if isinstance(part, nn.Module)]
    for part in parts:
        weights = [weight for module in part.modules() for weight in module.parameters(recurse=False)]
        layers += [Layer(tuple(weight.shape), (weight.shape[1],)) for weight in weights if weight.ndim == 2]
    return list(dict.fromkeys(layers))


def _shrunk(side: int, kernel: int, stride: int) -> int:
    return (side - kernel) // stride + 1


def _seen(agent: Any, spaces: Spaces) -> tuple[int, int, int]:
    shape = agent.centre(torch.zeros(1, *spaces.obs, dtype=torch.uint8)).shape
    return (shape[1], shape[2], shape[3])


# ── Memory ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _build_and_weigh(recipe: Recipe, replay: Replay, updates: int) -> tuple[Any, int | None]:
    """An agent that has made its first updates, and the most memory that took beside the replay."""
    device = device_of(recipe)
    env = recipe.env.make(seed=recipe.seed, training=True)
    gc.collect()
    before, told = resident("VmRSS"), _reset_peak(device)
    agent = build_agent(recipe, env)
    for _ in range(updates):
        _update(agent, replay, recipe)
    env.close()
    if device.type == "cuda":
        return agent, torch.cuda.max_memory_allocated()
    peak = resident("VmHWM")
    return agent, peak - before if told and peak is not None and before is not None else None


def _reset_peak(device: torch.device) -> bool:
    """Forget the peak so far; False where the system has no way to."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def resident(what: str) -> int | None:
    """Bytes of memory that this process has ("VmRSS") or had at its peak ("VmHWM"); None where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:")), None)
