"""The loop: act, learn, live, and now and then look. To change it, edit it."""

import ctypes
import random
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from maskrl.agents.base import Action, Agent, Spaces
from maskrl.agents.rainbow import RainbowConfig
from maskrl.replay.buffer import Replay
from maskrl.envs import Atari
from maskrl.runs import encoder_file
from maskrl.runs.checkpoint import checkpoints
from maskrl.runs.evaluate import EpisodeReturns, evaluate, random_returns
from maskrl.recipes.schema import Recipe
from maskrl.representation.latents import glance
from maskrl.runs.directory import Clock, Run, RunError, encoder_path, versions
from maskrl.runs.loggers import Logger, Loggers
from maskrl.runs.world import EnvironmentFailedError, Tell, World
from maskrl.nn.momentum import Momentum

EVALUATION_SEED = 1_000_000  # added to the run's seed, so that no evaluation episode starts as a training episode did
UPDATES_PER_LINE = 50  # of metrics.jsonl
RESERVE = (
    1000  # frames of the replay at most that nobody draws from, so that checkpoints stay whole: 30 MB at 100 × 100
)


class Stopped(Exception):  # noqa: N818, it is not an error
    """Ctrl-C or another signal. The state has been saved; the same command continues the run."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


@dataclass
class Position:
    """Where the loop is: with the agent, the replay, the world and the random generators, all there is to continue from."""

    decisions: int = 0
    episode_return: float = 0.0
    seconds: float = 0.0  # of training in earlier sittings
    evaluated: int = -1  # frames of the newest evaluation


def train(recipe: Recipe, run: Run, loggers: Sequence[Logger] = ()) -> Agent:
    """Run a recipe to its end, from the newest checkpoint in the run's directory if there is one. Closes the loggers."""
    everyone = Loggers(loggers, tell=lambda text, clock: run.log("note", clock, {"text": text}))
    with closing(everyone), run.locked(), failing(run):
        return _train(recipe, run, everyone)


def _train(recipe: Recipe, run: Run, loggers: Loggers) -> Agent:
    configure_process(recipe)
    notes: list[str] = []
    world = World(recipe, notes.append)
    agent, spaces = build_agent(recipe, world.env), world.spaces
    evaluation_envs = make_evaluation_envs(recipe)
    replay = build_replay(recipe, world.env, run)
    explorer = np.random.default_rng(recipe.seed)
    position, start = Position(), time.perf_counter()

    def clock() -> Clock:
        seconds = position.seconds + time.perf_counter() - start
        return Clock(
            position.decisions * recipe.env.action_repeat, position.decisions, agent.updates, round(seconds, 3)
        )

    def tell() -> None:
        """Write down what went otherwise than planned."""
        for text in notes:
            run.log("note", clock(), {"text": text})
            loggers.note(text, clock())
        notes.clear()

    if recipe.encoder_from is not None and not checkpoints(run.checkpoints):
        run.require_same_encoder()
        load_encoder(recipe, agent)
    obs = resume(run, agent, replay, explorer, position, world, notes.append)
    run.rewind(clock() if position.evaluated >= 0 else None)
    run.set_status("running")
    loggers.write({}, clock())
    saved = (position.decisions, position.evaluated) if position.decisions else None
    told: dict[str, float] = {}  # the seconds of each part, as of the newest event about them

    with stopping() as stop:
        while True:
            tell()
            now = clock()
            if position.evaluated != now.frames and (
                now.frames % recipe.evaluation.every == 0 or now.frames == recipe.frames
            ):
                with suppress(Interrupted), agent.watch("evaluation"):
                    scores = look(recipe, run, loggers, agent, evaluation_envs, now, stop)
                    position.evaluated = now.frames
                if position.evaluated == now.frames:
                    probe(recipe, run, agent, replay, now)
                    told = time_spent(run, agent, told, now)
                    loggers.write({**scores, **times(agent)}, clock())
            done = now.frames >= recipe.frames and position.evaluated == now.frames
            due = now.frames % recipe.checkpoint_every == 0 and now.frames
            here = (position.decisions, position.evaluated)
            if replay.must_be_saved or (here != saved and (done or stop or due)):
                save(run, agent, snapshot(agent, replay, explorer, position, world, clock()), clock())
                loggers.write(times(agent), clock())
                saved = here
            if done or stop:
                break

            if obs is None:
                obs, position.episode_return = world.begin(), 0.0
                replay.begin_episode(obs)
            warming_up = position.decisions < recipe.agent.warmup_decisions
            action: Action
            if warming_up:
                action = spaces.random_action(explorer)
            else:
                with agent.watch("actor"):
                    action = agent.act(obs[None], explore=True)[0]
                world.step_async(action)  # the released code, too, chooses an action, learns, and then steps
                for _ in range(recipe.agent.updates_per_decision):
                    with numerics(recipe):
                        metrics = agent.update(replay)
                    if is_logged(agent.updates):
                        values = {name: value.item() for name, value in metrics.items()}
                        run.log("update", clock(), values)
                        loggers.write({**values, **times(agent)}, clock())

            with agent.watch("environment"):
                step = world.step(action)
            if step is None:
                obs = None
                continue
            obs = step.obs
            replay.add(spaces.as_vector(action), step.reward, obs, terminated=step.terminated, truncated=step.truncated)
            position.decisions += 1
            position.episode_return += step.reward
            loggers.write({}, clock())
            if not world.running:
                run.log("episode", clock(), {"return": position.episode_return, "length": world.length})
                loggers.write({"training/return": position.episode_return, "training/length": world.length}, clock())
                obs = None

    world.close()
    for env in evaluation_envs:
        env.close()
    if not done:
        raise Stopped(stop[0])
    run.set_status("done")
    return agent


def is_logged(updates: int) -> bool:
    """Whether the newest of so many updates is written down: the 1st, 51st, …, in which every part had its turn."""
    return updates % UPDATES_PER_LINE == 1


class Interrupted(BaseException):
    """An evaluation was given up, because the run is to stop; no error, as KeyboardInterrupt is none. It will be done again."""


def look(
    recipe: Recipe,
    run: Run,
    loggers: Loggers,
    agent: Agent,
    envs: list[gym.Env[Any, Any]],
    clock: Clock,
    stop: list[int],
) -> dict[str, float]:
    """Evaluate and log it; at the very start, also what random actions earn. Returns the points for the loggers."""
    seed, episodes, shown = recipe.seed + EVALUATION_SEED, recipe.evaluation.episodes, -1

    def count(ended: int) -> None:
        nonlocal shown
        if stop:
            raise Interrupted
        if ended != shown:
            shown = ended
            loggers.write({"evaluation/ended": ended, "evaluation/episodes": episodes}, clock)

    def play() -> tuple[EpisodeReturns | None, EpisodeReturns]:
        floor = random_returns(envs, episodes=episodes, seed=seed, counter=count) if clock.frames == 0 else None
        epsilon = recipe.evaluation.epsilon
        return floor, evaluate(agent, envs, episodes=episodes, seed=seed, epsilon=epsilon, counter=count)

    try:
        floor, returns = play()
    except Exception as error:  # see World: an error may be a hiccup, so there is a second try in fresh environments
        text = f"An evaluation failed ({type(error).__name__}: {error}). Trying once more in fresh environments."
        run.log("note", clock, {"text": text})
        loggers.note(text, clock)
        envs[:] = make_evaluation_envs(recipe)
        try:
            floor, returns = play()
        except Exception as again:
            raise EnvironmentFailedError(
                f"An evaluation failed, and again in fresh environments: {type(again).__name__}: {again}"
            ) from again
    if floor is not None:
        run.log("random", clock, {"score": floor.score, "returns": floor.returns})
    run.log("evaluation", clock, {"score": returns.score, "returns": returns.returns})
    floor_points = {} if floor is None else {"random/score": floor.score}
    return {**floor_points, "evaluation/score": returns.score, "evaluation/spread": returns.spread}


def probe(recipe: Recipe, run: Run, agent: Agent, replay: Replay, clock: Clock) -> None:
    """Write down what the encoder makes of what is stored, once something is."""
    with agent.watch("probe"):
        seen = glance(agent, replay, recipe)
    if seen is not None:
        run.log("probe", clock, seen)


def times(agent: Agent) -> dict[str, float]:
    """The seconds of each part in this process, as points for the loggers."""
    return {f"time/{part}": seconds for part, seconds in agent.watch.seconds.items()}


def time_spent(run: Run, agent: Agent, told: Mapping[str, float], clock: Clock) -> dict[str, float]:
    """Write down the seconds that each part has taken since the last time; returns all of this sitting."""
    seconds = dict(agent.watch.seconds)
    run.log("timing", clock, {"parts": {part: round(all_ - told.get(part, 0.0), 3) for part, all_ in seconds.items()}})
    return seconds


# ── Building ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def configure_process(recipe: Recipe) -> None:
    """Seed every generator that belongs to the process. We draw from torch's alone; an environment may use the others."""
    torch.manual_seed(recipe.seed)
    random.seed(recipe.seed)
    np.random.seed(recipe.seed % 2**32)
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Let the C library keep what tensors leave behind for the next ones.

    Else it hands pieces of more than 32 MB back to the system, which clears every page that it gives out again: a third of the
    time of Rainbow's update with the paper's decoder, whose gradients are 640 MB.
    """
    mmap_max, trim_threshold = -4, -1  # of malloc.h
    with suppress(OSError, AttributeError):  # another C library than GNU's
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(mmap_max, 0)
        library.mallopt(trim_threshold, -1)  # never


def device_of(recipe: Recipe) -> torch.device:
    if recipe.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(recipe.device)


def make_evaluation_envs(recipe: Recipe) -> list[gym.Env[Any, Any]]:
    """As many as play side by side."""
    count = min(recipe.evaluation.side_by_side, recipe.evaluation.episodes)
    return [recipe.env.make(seed=recipe.seed, training=False) for _ in range(count)]


def build_agent(recipe: Recipe, env: gym.Env[Any, Any]) -> Agent:
    agent = recipe.agent.build(Spaces.of(env), recipe.objective, device_of(recipe))
    if recipe.compile:
        # The function, not the module: the weights, and the names under which they are saved, stay what they are.
        layers = agent.encoder.convolutions
        layers.forward = torch.compile(layers.forward)
    return agent


def numerics(recipe: Recipe) -> torch.autocast:
    """In which precision an update computes."""
    return torch.autocast(device_of(recipe).type, torch.bfloat16, enabled=recipe.precision == "bfloat16")


class ReplaySize(TypedDict):
    """What decides how large a replay is."""

    frame_shape: tuple[int, int, int]
    action_dim: int
    frame_stack: int
    capacity: int
    reserve: int
    priority_exponent: float | None
    discrete: bool


def replay_size(recipe: Recipe, spaces: Spaces) -> ReplaySize:
    (channels, height, width), stack = spaces.obs, recipe.env.frame_stack
    decisions, between_saves = (
        frames // recipe.env.action_repeat for frames in (recipe.frames, recipe.checkpoint_every)
    )
    return {
        "frame_shape": (channels // stack, height, width),
        "action_dim": spaces.action_dim,
        "frame_stack": stack,
        "capacity": min(recipe.replay.capacity, decisions),
        # What may be written after the last checkpoint but one without touching what it needs: a frame per decision, and one
        # per episode. If that is not enough, the replay asks for a checkpoint before its time.
        "reserve": min(2 * (between_saves + between_saves // 25 + 2), RESERVE)
        if recipe.replay.storage == "disk"
        else 0,
        "priority_exponent": recipe.agent.priority_exponent if isinstance(recipe.agent, RainbowConfig) else None,
        "discrete": spaces.discrete,
    }


def load_encoder(recipe: Recipe, agent: Agent) -> None:
    """Let the agent begin with the recipe's encoder: its own, and every slow copy of it. The actor shares the convolutions."""
    path = encoder_path(recipe)
    assert path is not None
    encoder_file.load(path, agent.encoder)
    agent.target_encoder.restart(agent.encoder)
    for module in [] if agent.objective is None else agent.objective.modules():
        if isinstance(module, Momentum):
            module.restart(agent.encoder)


def build_replay(recipe: Recipe, env: gym.Env[Any, Any], run: Run, *, mend: bool = True) -> Replay:
    directory = run.path / "replay" if recipe.replay.storage == "disk" else None
    pad: Literal["repeat", "zero"] = "zero" if isinstance(recipe.env, Atari) else "repeat"
    size = replay_size(recipe, Spaces.of(env))
    try:
        return Replay(**size, seed=recipe.seed, directory=directory, pad=pad, mend=mend, mirror=mirror_of(recipe, size))
    except ValueError as error:
        raise RunError(
            f"{error}\nPut back a good copy of {run.path / 'replay'}, or remove the run's directory to start again."
        ) from error
    except MemoryError as error:
        raise RunError(
            f"There is not enough memory for the replay: it takes {Replay.forecast(**size):,} bytes. Use "
            "replay.storage=disk, or set replay.capacity or the budget lower."
        ) from error


def mirror_of(recipe: Recipe, size: ReplaySize) -> torch.device | None:
    """The GPU, if it is to hold the frames and they leave half of its free memory to the networks."""
    device = device_of(recipe)
    if not recipe.replay.on_device or device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return device if 2 * Replay.forecast(**size) < free else None


# ── Saving and continuing ─────────────────────────────────────────────────────────────────────────────────────────────


def snapshot(
    agent: Agent, replay: Replay, explorer: np.random.Generator, position: Position, world: World, clock: Clock
) -> dict[str, Any]:
    """All state of a run as tensors and plain values."""
    return {
        "agent": agent.state_dict(),
        "replay": replay.state_dict(),
        "world": world.state_dict(),
        "position": {**asdict(position), "seconds": clock.seconds},
        "generators": {
            "explorer": explorer.bit_generator.state,
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "numpy": np.random.get_state(),
            "python": random.getstate(),
        },
    }


def save(run: Run, agent: Agent, state: dict[str, Any], clock: Clock) -> None:
    """Write a checkpoint, and what it cost."""
    before = agent.watch.seconds.get("checkpoint", 0.0)
    with agent.watch("checkpoint"):
        path = run.save(state)
    spent = round(agent.watch.seconds["checkpoint"] - before, 3)
    run.log("checkpoint", clock, {"bytes": path.stat().st_size, "spent": spent})


def resume(
    run: Run,
    agent: Agent,
    replay: Replay,
    explorer: np.random.Generator,
    position: Position,
    world: World,
    tell: Tell,
) -> NDArray[np.uint8] | None:
    """Restore the newest checkpoint, if any, and live through the open episode again; returns its observation."""
    state = run.restore(tell, set_aside=True)
    if state is None:
        return None
    begun, now = run.versions(), versions(run.recipe)
    changed = [f"{name} {begun[name]} → {now[name]}" for name in now if name in begun and begun[name] != now[name]]
    if changed:
        tell(f"Begun with something else than it is continued with, so results may differ: {', '.join(changed)}.")
    try:
        agent.load_state_dict(state["agent"])
        lost = replay.load_state_dict(as_arrays(state["replay"]))
        for name, value in state["position"].items():
            setattr(position, name, type(getattr(position, name))(value))
        obs = world.load_state_dict(state["world"])
        generators = state["generators"]
        explorer.bit_generator.state = generators["explorer"]
        torch.set_rng_state(generators["torch"])
        if generators["cuda"]:
            torch.cuda.set_rng_state_all(generators["cuda"])
        np.random.set_state(tuple(as_arrays(dict(enumerate(generators["numpy"]))).values()))
        random.setstate(generators["python"])
    except EnvironmentFailedError:
        raise
    except Exception as error:  # whatever a state is that we did not write
        raise RunError(
            f"{run.path} cannot be continued from its checkpoint: {type(error).__name__}: {error}\n"
            "Put back a good copy of the run, or remove its directory to start again."
        ) from error
    if lost:
        tell(
            f"{lost:,} frames of the replay are damaged or older than one that is, and are left out. The run goes on; it is "
            "not the run that it would have been."
        )
    return obs


def as_arrays(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """A state as the replay took it: a checkpoint knows tensors alone."""
    return {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in values.items()}


@contextmanager
def stopping() -> Iterator[list[int]]:
    """The numbers of the signals that came: each ends the loop between two decisions, with its state saved.

    Ctrl-C, SIGTERM from a scheduler, and SIGHUP from a terminal that was closed, unless `nohup` has it ignored.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def note(number: int, _: object) -> None:
        if seen and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C: leave without saving
        seen.append(number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heeded = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in heeded}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def failing(run: Run) -> Iterator[None]:
    """Write down that a run failed, and why, before the error goes on."""
    try:
        yield
    except Stopped:
        raise
    except Exception as error:
        with suppress(OSError):  # the disk may be what failed
            run.set_status("failed", f"{type(error).__name__}: {error}")
        raise
