"""The loop: act, learn, live, and now and then look. To change it, edit it."""

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from maskrl.agents.base import Action, Agent, Metrics, Spaces
from maskrl.agents.rainbow import RainbowConfig
from maskrl.agents.replay import Replay
from maskrl.envs import Atari
from maskrl.envs.base import episode_seed
from maskrl.experiments.evaluate import EpisodeReturns, evaluate, random_returns
from maskrl.experiments.recipe import Recipe
from maskrl.experiments.run import Clock, Run

EVALUATION_SEED = 1_000_000  # added to the run's seed, so that no evaluation episode starts as a training episode did
UPDATES_PER_LINE = 50  # of metrics.jsonl


class Watcher(Protocol):
    """Somebody who looks on; the loop does not depend on what they do."""

    def begin(self, recipe: Recipe, clock: Clock) -> None: ...
    def decision(self, clock: Clock, metrics: Metrics, seconds: Mapping[str, float]) -> None: ...
    def episode(self, clock: Clock, episode_return: float) -> None: ...
    def evaluating(self, clock: Clock, ended: int, episodes: int) -> None: ...
    def evaluation(self, clock: Clock, returns: EpisodeReturns) -> None: ...


class Stopped(Exception):  # noqa: N818, it is not an error
    """Ctrl-C or SIGTERM. The state has been saved; the same command continues the run."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


@dataclass
class Position:
    """Where the loop is: with the agent, the replay and the random generators, all there is to continue from."""

    decisions: int = 0
    episode: int = -1  # number of the current one
    episode_return: float = 0.0
    # The actions of this episode and of those before it in the same game, to live through them again.
    actions: list[list[Action]] = field(default_factory=list)
    seconds: float = 0.0  # of training in earlier sittings
    evaluated: int = -1  # frames of the newest evaluation
    running: bool = False  # whether an episode is open


def train(recipe: Recipe, run: Run, watcher: Watcher) -> Agent:
    """Run a recipe to its end, from the newest checkpoint in the run's directory if there is one."""
    configure_torch(recipe)
    env: gym.Env[Any, Any] = recipe.env.make(seed=recipe.seed, training=True)
    spaces, evaluation_envs = Spaces.of(env), make_evaluation_envs(recipe)
    agent = build_agent(recipe, env)
    replay = build_replay(recipe, env, run)
    explorer = np.random.default_rng(recipe.seed)
    position, start = Position(), time.perf_counter()

    def clock() -> Clock:
        seconds = position.seconds + time.perf_counter() - start
        return Clock(
            position.decisions * recipe.env.action_repeat, position.decisions, agent.updates, round(seconds, 3)
        )

    obs = resume(run, agent, replay, explorer, position, env)
    run.rewind(clock() if position.evaluated >= 0 else None)
    run.set_status("running")
    watcher.begin(recipe, clock())
    metrics: Metrics = {}

    with failing(run), stopping() as stop:
        while True:
            now = clock()
            if position.evaluated != now.frames and (
                now.frames % recipe.evaluation.every == 0 or now.frames == recipe.frames
            ):
                with agent.watch("evaluation"):
                    look(recipe, run, watcher, agent, evaluation_envs, now)
                position.evaluated = now.frames
            done = now.frames >= recipe.frames
            if done or stop or (now.frames % recipe.checkpoint_every == 0 and now.frames):
                with agent.watch("checkpoint"):
                    run.save(snapshot(agent, replay, explorer, position, clock()))
            if done or stop:
                break

            if obs is None:
                obs = begin_episode(recipe, env, replay, position)
            warming_up = position.decisions < recipe.agent.warmup_decisions
            action: Action
            if warming_up:
                action = spaces.random_action(explorer)
            else:
                with agent.watch("actor"):
                    action = agent.act(obs[None], explore=True)[0]
                for _ in range(recipe.agent.updates_per_decision):
                    metrics = agent.update(replay)
                    if is_logged(agent.updates):
                        run.log("update", clock(), {name: value.item() for name, value in metrics.items()})

            with agent.watch("environment"):
                obs, reward, terminated, truncated, _ = env.step(action)
            replay.add(spaces.as_vector(action), float(reward), obs, terminated=terminated, truncated=truncated)
            position.decisions += 1
            position.actions[-1].append(action)
            position.episode_return += float(reward)
            watcher.decision(clock(), metrics, agent.watch.seconds)
            if terminated or truncated:
                run.log("episode", clock(), {"return": position.episode_return, "length": len(position.actions[-1])})
                watcher.episode(clock(), position.episode_return)
                obs, position.running = None, False

    for used in (env, *evaluation_envs):
        used.close()
    if not done:
        raise Stopped(stop[0])
    run.set_status("done")
    return agent


def is_logged(updates: int) -> bool:
    """Whether the newest of so many updates is written down: the 1st, 51st, …, in which every part had its turn."""
    return updates % UPDATES_PER_LINE == 1


def look(recipe: Recipe, run: Run, watcher: Watcher, agent: Agent, envs: list[gym.Env[Any, Any]], clock: Clock) -> None:
    """Evaluate and write it down; at the very start, also what random actions earn."""
    seed, episodes = recipe.seed + EVALUATION_SEED, recipe.evaluation.episodes
    if clock.frames == 0:
        floor = random_returns(envs, episodes=episodes, seed=seed)
        run.log("random", clock, {"score": floor.score, "returns": floor.returns})
    returns = evaluate(
        agent, envs, episodes=episodes, seed=seed, epsilon=recipe.evaluation.epsilon,
        counter=lambda ended: watcher.evaluating(clock, ended, episodes),
    )  # fmt: skip
    run.log("evaluation", clock, {"score": returns.score, "returns": returns.returns})
    watcher.evaluation(clock, returns)


def begin_episode(recipe: Recipe, env: gym.Env[Any, Any], replay: Replay, position: Position) -> NDArray[np.uint8]:
    position.episode += 1
    position.episode_return, position.running = 0.0, True
    obs: NDArray[np.uint8]
    obs, info = env.reset(seed=episode_seed(recipe.seed, position.episode))
    # A life that was lost ends an episode of learning on Atari, but not the game: that still depends on all it has seen.
    position.actions = [*position.actions, []] if info.get("continues", False) else [[]]
    replay.begin_episode(obs)
    return obs


# ── Building ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def configure_torch(recipe: Recipe) -> None:
    torch.manual_seed(recipe.seed)
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)


def device_of(recipe: Recipe) -> torch.device:
    if recipe.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(recipe.device)


def make_evaluation_envs(recipe: Recipe) -> list[gym.Env[Any, Any]]:
    """As many as play side by side."""
    count = min(recipe.evaluation.side_by_side, recipe.evaluation.episodes)
    return [recipe.env.make(seed=recipe.seed, training=False) for _ in range(count)]


def build_agent(recipe: Recipe, env: gym.Env[Any, Any]) -> Agent:
    return recipe.agent.build(Spaces.of(env), recipe.objective, device_of(recipe))


class ReplaySize(TypedDict):
    """What decides how large a replay is."""

    frame_shape: tuple[int, int, int]
    action_dim: int
    frame_stack: int
    capacity: int
    reserve: int
    priority_exponent: float | None


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
        # What may be written after a checkpoint without touching what it needs: a frame per decision, and one per episode.
        "reserve": between_saves + between_saves // 25 + 2,
        "priority_exponent": recipe.agent.priority_exponent if isinstance(recipe.agent, RainbowConfig) else None,
    }


def build_replay(recipe: Recipe, env: gym.Env[Any, Any], run: Run) -> Replay:
    directory = run.path / "replay" if recipe.replay.storage == "disk" else None
    if directory is not None:
        directory.mkdir(exist_ok=True)
    pad: Literal["repeat", "zero"] = "zero" if isinstance(recipe.env, Atari) else "repeat"
    return Replay(**replay_size(recipe, Spaces.of(env)), seed=recipe.seed, directory=directory, pad=pad)


# ── Saving and continuing ─────────────────────────────────────────────────────────────────────────────────────────────


def snapshot(
    agent: Agent, replay: Replay, explorer: np.random.Generator, position: Position, clock: Clock
) -> dict[str, Any]:
    """All state of a run as tensors and plain values."""
    return {
        "format": 1,
        "agent": agent.state_dict(),
        "replay": {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in replay.state_dict().items()
        },
        "explorer": explorer.bit_generator.state,
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "position": {
            **vars(position),
            "actions": [[action.tolist() for action in episode] for episode in position.actions],
            "seconds": clock.seconds,
        },
    }


def resume(
    run: Run, agent: Agent, replay: Replay, explorer: np.random.Generator, position: Position, env: gym.Env[Any, Any]
) -> NDArray[np.uint8] | None:
    """Restore the newest checkpoint, if any, and live through the open episode again; returns its observation."""
    state = run.restore()
    if state is None:
        return None
    agent.load_state_dict(state["agent"])
    replay.load_state_dict(
        {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in state["replay"].items()}
    )
    explorer.bit_generator.state = state["explorer"]
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    for name, value in state["position"].items():
        setattr(position, name, value)
    kind: Any = np.int64 if isinstance(env.action_space, gym.spaces.Discrete) else np.float32
    position.actions = [[np.array(action, kind)[()] for action in episode] for episode in position.actions]
    obs: NDArray[np.uint8] | None = None
    for episode, actions in enumerate(position.actions, start=position.episode + 1 - len(position.actions)):
        obs, _ = env.reset(seed=episode_seed(run.recipe.seed, episode))
        for action in actions:
            obs, *_ = env.step(action)
    return obs if position.running else None


@contextmanager
def stopping() -> Iterator[list[int]]:
    """The numbers of the signals that came: Ctrl-C or SIGTERM end the loop between two decisions, with its state saved."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = {number: signal.signal(number, lambda n, _: seen.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
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
    except Exception as error:
        run.set_status("failed", f"{type(error).__name__}: {error}")
        raise
