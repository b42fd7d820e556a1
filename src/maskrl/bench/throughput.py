"""How fast what surrounds the updates is: the replay, the environments, and a run as a whole.

`maskrl bench replay`, `maskrl bench env` and `maskrl bench run`.
"""

import logging
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from maskrl.agents.base import Spaces
from maskrl.bench.speed import Measured, Tell, Wrap, wrap_agent
from maskrl.clock import Clock, Stopwatch
from maskrl.envs import AnyEnv, Atari, DMControl
from maskrl.envs.base import episode_seed
from maskrl.envs.gl import PACKAGES, NoBackendError, choose_gl
from maskrl.machine import free_memory
from maskrl.recipes.schema import Budget, Evaluation, Recipe
from maskrl.replay.buffer import Replay
from maskrl.runs import loop as training
from maskrl.runs.directory import Run
from maskrl.runs.loggers import Logger

# ── The replay ────────────────────────────────────────────────────────────────────────────────────────────────────────

EPISODE = 1000  # decisions of the episodes that fill a replay
CLIP = 16  # K


class Kind(NamedTuple):
    """A replay as the paper's agents have it, with what they draw from it for one update."""

    name: str
    frame_shape: tuple[int, int, int]
    frame_stack: int
    action_dim: int
    discrete: bool
    priority_exponent: float | None
    transitions: int  # of a batch
    clips: int
    steps: int  # of the returns

    def size(self, capacity: int) -> dict[str, Any]:
        return {
            "frame_shape": self.frame_shape,
            "action_dim": self.action_dim,
            "discrete": self.discrete,
            "frame_stack": self.frame_stack,
            "capacity": capacity,
            "priority_exponent": self.priority_exponent,
        }


KINDS = (
    Kind("DMControl, uniform", (3, 100, 100), 3, 6, False, None, transitions=512, clips=128, steps=1),
    Kind("Atari, prioritised", (1, 84, 84), 4, 18, True, 0.5, transitions=32, clips=32, steps=10),
)
# What the two should take at most, whatever else a transition has beside its frame.
LIMITS = ((KINDS[0], 100_000, 3_100_000_000), (KINDS[1], 1_000_000, 7_100_000_000))

Storage = Literal["memory", "disk"]
STORAGES: tuple[Storage, ...] = ("memory", "disk")


@dataclass(frozen=True)
class ReplayBench:
    """One replay, full. Rates are of single transitions and clips, drawn and read in batches."""

    kind: str
    storage: Storage
    transitions: int
    nbytes: int
    skipped: str | None = None  # why it was not measured
    transitions_per_second: float | None = None
    clips_per_second: float | None = None

    @property
    def bytes_per_transition(self) -> float:
        return self.nbytes / self.transitions


class Promise(NamedTuple):
    """What a replay takes, and what it should take at most."""

    kind: str
    transitions: int
    nbytes: int
    limit: int


def promises() -> list[Promise]:
    return [
        Promise(kind.name, capacity, Replay.forecast(**kind.size(capacity)), limit) for kind, capacity, limit in LIMITS
    ]


def bench_replay(
    sizes: Sequence[int], *, kinds: Sequence[Kind] = KINDS, seconds: float = 0.5, tell: Tell = print
) -> Iterator[ReplayBench]:
    """Fill a replay of every kind and size, in memory and on disk, and draw from it. Nothing stays."""
    for capacity in sizes:
        for kind in kinds:
            needs = Replay.forecast(**kind.size(capacity))
            for storage in STORAGES:
                with tempfile.TemporaryDirectory(prefix="maskrl-bench-") as directory:
                    free = _free(storage, Path(directory))
                    if free is not None and needs > free / 2:  # half, as others live here, too
                        words = f"it takes {needs / 1e9:.1f} GB of {storage}, and there is room for {free / 2e9:.1f} GB"
                        yield ReplayBench(kind.name, storage, capacity, needs, skipped=words)
                        continue
                    tell(f"{kind.name}: {capacity:,} transitions, {needs / 1e9:.2g} GB of {storage}.")
                    yield _measure_replay(kind, capacity, storage, Path(directory), seconds)


def _measure_replay(kind: Kind, capacity: int, storage: Storage, directory: Path, seconds: float) -> ReplayBench:
    replay = Replay(**kind.size(capacity), seed=0, directory=directory if storage == "disk" else None)
    fill(replay, capacity)

    def transitions() -> None:
        draw = replay.draw(kind.transitions, span=kind.steps, whole=False, correction=0.5)
        replay.transitions(draw, n_step=kind.steps)

    def clips() -> None:
        replay.clips(replay.draw(kind.clips, span=CLIP, correction=0.5), length=CLIP)

    return ReplayBench(
        kind=kind.name,
        storage=storage,
        transitions=capacity,
        nbytes=replay.nbytes,
        transitions_per_second=kind.transitions / _mean_seconds(transitions, seconds),
        clips_per_second=kind.clips / _mean_seconds(clips, seconds),
    )


def fill(replay: Replay, transitions: int) -> None:
    """Episodes of one frame over and over, which is really written everywhere: memory that is not cannot be read honestly.

    By a state that is loaded, which takes a fraction of the time of as many calls of `add`.
    """
    empty = replay.state_dict()
    decision = np.arange(transitions)
    ends = (decision % EPISODE == EPISODE - 1) | (decision == transitions - 1)  # the last episode may be shorter
    lengths = np.diff(np.flatnonzero(ends), prepend=-1) + 1  # in frames
    frames, first = int(lengths.sum()), np.repeat(np.cumsum(lengths) - lengths, lengths)
    left = np.repeat(lengths, lengths) - 1 - (np.arange(frames) - first)  # decisions until the end of the episode
    noise = np.random.default_rng(0)
    if replay.discrete:
        actions: Any = noise.integers(0, replay.action_dim, frames)
    else:
        actions = noise.uniform(-1, 1, (frames, replay.action_dim)).astype(np.float32)
    state = empty | {
        "next": frames,
        "running": False,
        "first": first,
        "action": actions,
        "reward": noise.random(frames, np.float32),
        "terminated": np.zeros(frames, bool),
        "truncated": left == 1,
        "frames": np.broadcast_to(noise.integers(0, 256, replay.frame_shape, np.uint8), (frames, *replay.frame_shape)),
    }
    if replay.is_prioritised:
        state["leaf"] = np.where(left > 0, noise.random(frames), 0.0)
    replay.load_state_dict(state)


def _mean_seconds(call: Callable[[], None], at_least: float) -> float:
    call()
    begun, calls = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < at_least or calls < 3:
        call()
        calls += 1
    return spent / calls


def _free(storage: Storage, directory: Path) -> int | None:
    """Bytes."""
    return free_memory() if storage == "memory" else shutil.disk_usage(directory).free


# ── Environments ──────────────────────────────────────────────────────────────────────────────────────────────────────

SIZES = (48, 64, 84, 100)
SHADOWS = (2048, 512)  # the suite's, and that of the lite profile


@dataclass(frozen=True)
class EnvBench:
    """An environment with random actions. A frame is one of the simulator: a decision has `action_repeat`."""

    task: str
    backend: str | None  # OpenGL's; None where nothing is drawn with it
    size: int
    shadow_size: int | None
    frames_per_second: float
    milliseconds: Mapping[str, float]  # of a decision, by part


class ShadowDifference(NamedTuple):
    """What a smaller shadow map changes in the pictures, on the scale from 0 to 255."""

    task: str
    backend: str
    size: int
    mean: float  # of the absolute differences of all values
    share: float  # of the pixels with a colour that differs by more than 2


@dataclass(frozen=True)
class EnvTable:
    rows: list[EnvBench]
    differences: list[ShadowDifference]
    failures: dict[str, str]  # backend → its complaint

    def as_dict(self) -> dict[str, Any]:
        return {
            "environments": [asdict(row) for row in self.rows],
            "shadow_differences": [row._asdict() for row in self.differences],
            "backends_that_do_not_draw": self.failures,
        }


def bench_env(
    recipes: Sequence[Recipe], *, sizes: Sequence[int] = SIZES, seconds: float = 1.0, tell: Tell = print
) -> EnvTable:
    """Every recipe's environment: DMControl by each backend that draws, in a process of its own, as a process has but one."""
    table = EnvTable([], [], {})
    for recipe in recipes:
        if not isinstance(recipe.env, DMControl):
            tell(f"{recipe.name}.")
            chosen = sizes if isinstance(recipe.env, Atari) else (recipe.env.size,)
            table.rows.extend(_measure_envs([replace(recipe.env, size=size) for size in chosen], None, seconds))
            continue
        for backend in PACKAGES:
            tell(f"{recipe.name} by {backend}.")
            with _environment(MUJOCO_GL=backend):
                (answer,) = side_by_side([(_measure_backend, (recipe.env, backend, tuple(sizes), seconds))])
            if isinstance(answer, str):
                table.failures[backend] = answer
            else:
                table.rows.extend(answer[0])
                table.differences.extend(answer[1])
    return table


def _measure_backend(
    env: DMControl, backend: str, sizes: Sequence[int], seconds: float
) -> tuple[list[EnvBench], list[ShadowDifference]] | str:
    """In a process whose MUJOCO_GL is this backend. If it does not draw: why."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # the suite's own models make MuJoCo warn, each time
    try:
        choose_gl()
    except RuntimeError as error:
        return error.failures[backend] if isinstance(error, NoBackendError) else str(error)
    rows, differences = list[EnvBench](), list[ShadowDifference]()
    for size in sizes:
        pair = [replace(env, size=size, shadow_size=shadow) for shadow in SHADOWS]
        rows += _measure_envs(pair, backend, seconds)
        differences.append(shadow_difference(*pair, backend=backend))
    return rows, differences


def _measure_envs(configs: Sequence[AnyEnv], backend: str | None, seconds: float) -> list[EnvBench]:
    """Each for so long, a third at a time in turn: the machine may be slower the next moment."""
    plays = [_Play(config) for config in configs]
    for play in 3 * plays:
        play.go_on(seconds / 3)
    return [play.end(backend) for play in plays]


class _Play:
    """An environment that is played at random and timed."""

    def __init__(self, config: AnyEnv) -> None:
        self._config = config
        self._env: gym.Env[Any, Any] = config.make(seed=0, training=True)
        self._watch, self._spaces, self._chance = Stopwatch(), Spaces.of(self._env), np.random.default_rng(0)
        wrap_env(Wrap(self._watch), self._env)
        self._frames = self._decisions = self._episodes = 0
        self._over, self._seconds = True, 0.0
        self._decide()  # the first picture takes longer
        self._frames = self._decisions = 0
        self._watch.seconds.clear()

    def go_on(self, seconds: float) -> None:
        begun, decisions = time.perf_counter(), self._decisions
        while time.perf_counter() - begun < seconds or self._decisions - decisions < 5:
            self._decide()
        self._seconds += time.perf_counter() - begun

    def end(self, backend: str | None) -> EnvBench:
        self._env.close()
        config, shadow = self._config, None
        if isinstance(config, DMControl):
            shadow = config.shadow_size or SHADOWS[0]
        milliseconds = {part: 1000 * total / self._decisions for part, total in self._watch.seconds.items()}
        return EnvBench(config.task, backend, config.size, shadow, self._frames / self._seconds, milliseconds)

    def _decide(self) -> None:
        with self._watch("rest"):
            if self._over:
                self._env.reset(seed=episode_seed(0, self._episodes), options={"restart": True})
                self._episodes += 1
            _, _, terminated, truncated, info = self._env.step(self._spaces.random_action(self._chance))
        self._over = terminated or truncated
        self._frames += info["frames"]
        self._decisions += 1


def wrap_env(wrap: Wrap, env: gym.Env[Any, Any]) -> None:
    """Drawing (of DMControl and the toys), physics, emulation and the picture made of it, whatever this environment has."""
    inner: Any = env.unwrapped
    wrap(inner, ["_draw"], "drawing")
    if hasattr(inner, "_suite"):
        wrap(inner._suite, ["step", "reset"], "physics")
    if hasattr(inner, "_ale"):
        wrap(inner, ["_shrink"], "picture")
        inner._ale = _TimedConsole(inner._ale, wrap.watch)


_CONSOLE = {"act": "emulation", "reset_game": "emulation", "restoreState": "emulation", "getScreenGrayscale": "picture"}


class _TimedConsole:
    """ALE's object takes no other methods than its own, so it is asked through this one."""

    def __init__(self, ale: Any, watch: Stopwatch) -> None:
        self._ale, self._watch = ale, watch

    def __getattr__(self, name: str) -> Any:
        function, part = getattr(self._ale, name), _CONSOLE.get(name)
        if part is None:
            return function

        def timed(*args: Any) -> Any:
            with self._watch(part):
                return function(*args)

        return timed


def shadow_difference(one: DMControl, other: DMControl, *, backend: str, decisions: int = 25) -> ShadowDifference:
    """Two environments with the same seed and the same actions, picture by picture."""
    envs, chance = [config.make(seed=0, training=True) for config in (one, other)], np.random.default_rng(0)
    pairs = [[env.reset(seed=0)[0][-3:] for env in envs]]
    for _ in range(decisions):
        action = chance.uniform(-1, 1, envs[0].action_space.shape).astype(np.float32)
        pairs.append([env.step(action)[0][-3:] for env in envs])
    for env in envs:
        env.close()
    mean, share = picture_difference(*map(np.stack, zip(*pairs, strict=True)))
    return ShadowDifference(one.task, backend, one.size, mean, share)


def picture_difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> tuple[float, float]:
    """(…, C, H, W) uint8: the mean absolute difference, and the share of pixels with a channel more than 2 apart."""
    apart = np.abs(a.astype(np.int16) - b.astype(np.int16))
    return float(apart.mean()), float((apart.max(axis=-3) > 2).mean())


# ── A run ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

WARMUP = 200  # decisions at random at most: enough to draw clips from
SETTLE = 5  # decisions of learning that are not counted: buffers are made in them
PARTS = (
    *("physics", "drawing", "environment", "replay", "views", "pixels", "critic", "objective", "actor", "momentum"),
    *("optimizer", "checkpoint", "other"),
)
# Pixels are what goes into the first layers.
NETWORKS = ("pixels", "critic", "objective", "actor", "momentum", "optimizer")
RENDERER = ("drawing",)


@dataclass(frozen=True)
class RunBench:
    """The decisions of learning, from one process or more side by side; evaluations are left out."""

    decisions: int  # of each process
    rates: tuple[float, ...]  # decisions per second, of each process
    seconds: Mapping[str, float]  # of a decision, by part: the mean over processes

    @property
    def rate(self) -> float:
        """Decisions per second, of all processes together."""
        return sum(self.rates)

    @property
    def shares(self) -> dict[str, float]:
        whole = sum(self.seconds.values())
        return {part: seconds / whole for part, seconds in self.seconds.items()}

    @property
    def outside(self) -> float:
        """The share of all that is neither networks nor renderer."""
        return 1 - sum(share for part, share in self.shares.items() if part in (*NETWORKS, *RENDERER))

    def as_dict(self) -> dict[str, Any]:
        return {
            "decisions": self.decisions,
            "decisions_per_second": self.rate,
            "decisions_per_second_of_each": list(self.rates),
            "seconds_by_part": dict(self.seconds),
            "share_by_part": self.shares,
            "share_outside_networks_and_renderer": self.outside,
        }


@dataclass(frozen=True)
class Comparison:
    """Two recipes in alternation. The ratio is of decisions per second, the second by the first, round by round."""

    runs: tuple[list[RunBench], list[RunBench]]
    ratio: Measured


def compare_runs(
    recipes: tuple[Recipe, Recipe], *, decisions: int, processes: int = 1, rounds: int = 3, tell: Tell = print
) -> Comparison:
    runs: tuple[list[RunBench], list[RunBench]] = ([], [])
    for number in range(1, rounds + 1):
        for recipe, done in zip(recipes, runs, strict=True):
            done.append(bench_run(recipe, decisions=decisions, processes=processes))
        first, second = (done[-1].rate for done in runs)
        tell(f"Round {number} of {rounds}: {first:.3g} and {second:.3g} decisions a second.")
    rates = [[run.rate for run in done] for done in runs]
    return Comparison(runs, Measured.ratio(rates[1], rates[0]))


def bench_run(recipe: Recipe, *, decisions: int, processes: int = 1) -> RunBench:
    """Train for so many decisions after the warm-up, in so many processes at once; with several, on one thread each."""
    short = shortened(recipe, decisions)
    if processes == 1:
        return _train_timed(short, decisions)
    single = replace(short, threads=1)
    seeds = [replace(single, seed=single.seed + number) for number in range(processes)]
    barrier = multiprocessing.get_context("spawn").Barrier(processes)
    return together(side_by_side([(_train_timed, (each, decisions, barrier)) for each in seeds]))


def together(runs: Sequence[RunBench]) -> RunBench:
    """Of processes side by side."""
    return RunBench(runs[0].decisions, tuple(rate for run in runs for rate in run.rates), _mean_seconds_by_part(runs))


def averaged(runs: Sequence[RunBench]) -> RunBench:
    """Of rounds, one after the other."""
    rates = tuple(statistics.fmean(each) for each in zip(*(run.rates for run in runs), strict=True))
    return RunBench(runs[0].decisions, rates, _mean_seconds_by_part(runs))


def _mean_seconds_by_part(runs: Sequence[RunBench]) -> dict[str, float]:
    parts = dict.fromkeys(part for run in runs for part in run.seconds)
    return {part: statistics.fmean(run.seconds.get(part, 0.0) for run in runs) for part in parts}


def shortened(recipe: Recipe, decisions: int) -> Recipe:
    """The recipe with a short warm-up, then so many decisions; checkpoints as often as it has them."""
    warmup = min(recipe.agent.warmup_decisions, WARMUP)
    frames = (warmup + SETTLE + decisions) * recipe.env.action_repeat
    return replace(
        recipe,
        agent=replace(recipe.agent, warmup_decisions=warmup),
        budget=Budget(frames=frames),
        evaluation=Evaluation(every=frames, episodes=1),
    )


class _Window(Logger):
    """Keeps the time and the seconds of each part at the first counted decision, and at the newest."""

    def __init__(self, first: int, barrier: Any = None) -> None:
        self._first, self._barrier = first, barrier
        self.parts: Mapping[str, float] = {}  # of the agent's stopwatch, once there is an agent
        self.begun = self.now = 0.0
        self.before: dict[str, float] = {}
        self.after: dict[str, float] = {}

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        if points:
            return
        if clock.decisions == self._first:
            if self._barrier is not None:
                self._barrier.wait(timeout=600)  # all begin to count at once
            self.begun, self.before = time.perf_counter(), dict(self.parts)
        self.now, self.after = time.perf_counter(), dict(self.parts)

    def seconds(self) -> dict[str, float]:
        """By part; what no part has is "other"."""
        spent = {part: total - self.before.get(part, 0.0) for part, total in self.after.items()}
        return spent | {"other": self.now - self.begun - sum(spent.values())}


def _train_timed(recipe: Recipe, decisions: int, barrier: Any = None) -> RunBench:
    """The loop itself, in a directory that is gone afterwards."""
    window = _Window(recipe.agent.warmup_decisions + SETTLE, barrier)
    threads = torch.get_num_threads()
    try:
        with tempfile.TemporaryDirectory(prefix="maskrl-bench-") as directory, _timed_parts(window):
            training.train(recipe, Run.create(Path(directory) / "run", recipe), [window])
    finally:
        torch.set_num_threads(threads)
        if barrier is not None:
            barrier.abort()  # whoever still waits need not
    if not window.begun:  # a logger that fails does not stop a run
        raise RuntimeError("Nothing was measured: another of the processes failed before all of them began to count.")
    seconds = window.seconds()
    return RunBench(
        decisions=decisions,
        rates=(decisions / (window.now - window.begun),),
        seconds={part: seconds[part] / decisions for part in PARTS if part in seconds},
    )


@contextmanager
def _timed_parts(window: _Window) -> Iterator[None]:
    """The loop with parts that its own stopwatch does not tell apart, and without evaluations."""
    made: list[Wrap] = []

    def build_agent(recipe: Recipe, env: gym.Env[Any, Any]) -> Any:
        agent = original["build_agent"](recipe, env)
        made.append(Wrap(agent.watch))
        window.parts = agent.watch.seconds
        wrap_agent(made[0], agent)
        wrap_env(made[0], env)
        return agent

    def build_replay(*args: Any, **options: Any) -> Replay:
        replay: Replay = original["build_replay"](*args, **options)
        made[0](replay, ["add", "begin_episode"], "replay")
        return replay

    def look(*_: Any) -> dict[str, float]:
        return {}

    original = {name: getattr(training, name) for name in ("build_agent", "build_replay", "look")}
    try:
        for function in (build_agent, build_replay, look):
            setattr(training, function.__name__, function)
        yield
    finally:
        for name, function in original.items():
            setattr(training, name, function)
        for wrap in made:
            wrap.undo()


# ── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def side_by_side(calls: Sequence[Call]) -> list[Any]:
    """The results of functions of modules, each in a fresh process, all at once."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes = []
        for function, arguments in calls:
            ours, theirs = context.Pipe()
            process = context.Process(target=_answer, args=(theirs, function, arguments))
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(ours.close)
            pipes.append(ours)
        return [_received(pipe) for pipe in pipes]


def _answer(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send((True, function(*arguments)))
    except Exception as error:
        pipe.send((False, f"{type(error).__name__}: {error}"))


def _received(pipe: Connection) -> Any:
    try:
        fine, answer = pipe.recv()
    except EOFError:
        raise RuntimeError("A process of the benchmark ended without an answer. Is there enough memory?") from None
    if not fine:
        raise RuntimeError(f"A process of the benchmark failed: {answer}")
    return answer


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    kept = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
