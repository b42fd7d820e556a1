"""`maskrl bench peers`: stable-baselines3's pixel agents and ours, with the values of one recipe."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from maskrl.agents.rainbow import RainbowConfig
from maskrl.agents.sac import SACConfig
from maskrl.bench.measure import Measured, Tell, fresh_processes, in_turns, peak_memory
from maskrl.bench.result import Result, Row
from maskrl.bench.run import SETTLE, bench_run, shortened
from maskrl.cost.operations import spaces_of, update_cost
from maskrl.cost.timing import seconds_each
from maskrl.envs.base import require_extra
from maskrl.recipes.schema import Recipe, with_objective
from maskrl.replay.buffer import Replay
from maskrl.runs.build import configure_process, replay_size


@dataclass(frozen=True)
class Peer:
    """An agent of SB3 with some of our parts."""

    name: str
    policy: bool = False  # one encoder, trained by the critic; always so for DQN
    replay: bool = False  # every frame stored once, shifted at random as in the recipe
    objective: bool = False


PEERS = (
    Peer("SB3"),
    Peer("SB3, our policy and replay", policy=True, replay=True),
    Peer("SB3, our policy and replay, MLR", policy=True, replay=True, objective=True),
)


class Timed(NamedTuple):
    """The measurements of a process."""

    decisions_per_second: float
    bytes_of_process: int | None
    bytes_of_replay: int  # when it is full
    flop_per_decision: float
    callback_share: float | None = None  # time of the callback relative to the objective's own update, minus 1


def bench_peers(recipes: list[Recipe], *, decisions: int, rounds: int, tell: Tell = print) -> Result:
    """Train each agent for this many decisions after the warm-up, in turns, each time in a separate process."""
    require_extra("stable_baselines3", "sb3")
    for recipe in recipes:
        if recipe.agent.augment.crop is not None:
            raise ValueError(
                f"{recipe.name} ({recipe.profile}) crops its frames to {recipe.agent.augment.crop}, and SB3 has no crop: the "
                "networks would differ. Use --profile lite, which shifts them."
            )
    rows: list[Row] = []
    draws: list[Row] = []
    for recipe in recipes:
        samples: dict[str, list[Timed]] = {}

        def sample(name: str, measure: Callable[[], Timed], samples: dict[str, list[Timed]] = samples) -> float:
            with fresh_processes(1) as pool:
                samples.setdefault(name, []).append(pool.submit(measure).result())
            return samples[name][-1].decisions_per_second

        measures: dict[str, Callable[[], Timed]] = {"maskrl": partial(_ours, _alone(recipe), decisions)}
        measures["maskrl, MLR"] = partial(_ours, recipe, decisions)
        measures |= {peer.name: partial(_theirs, recipe, peer, decisions) for peer in PEERS}
        in_turns({name: partial(sample, name, measure) for name, measure in measures.items()}, rounds, tell)
        rows += [_row(recipe, name, taken) for name, taken in samples.items()]
        with fresh_processes(1) as pool:
            draws += pool.submit(_draws, recipe).result()
    notes = [
        "The same environment, encoder, widths, batch, threads and updates per decision. Ours follow their recipes; "
        "SB3's DQN is not a Rainbow: it has neither categorical returns nor priorities.",
        "Decisions per second are of the whole loop, including the environment.",
    ]
    return Result({"decisions": decisions, "agents": rows, "draws": draws}, notes)


def _row(recipe: Recipe, name: str, taken: list[Timed]) -> Row:
    shares = [each.callback_share for each in taken if each.callback_share is not None]
    return {
        "recipe": recipe.name,
        "agent": name,
        "decisions_per_second": Measured.of([each.decisions_per_second for each in taken]),
        "flop_per_decision": taken[0].flop_per_decision,
        "bytes_of_process": max(each.bytes_of_process or 0 for each in taken) or None,
        "bytes_of_replay": taken[0].bytes_of_replay,
        "share_of_callback": Measured.of(shares) if shares else None,
    }


def _alone(recipe: Recipe) -> Recipe:
    return with_objective(recipe, None)


def _ours(recipe: Recipe, decisions: int) -> Timed:
    configure_process(recipe)
    rate = bench_run(recipe, decisions=decisions, tell=lambda text: None).values["decisions_per_second"]
    spaces, cost = spaces_of(recipe), update_cost(recipe)
    flop = cost.act + recipe.agent.updates_per_decision * cost.flops
    size = replay_size(recipe, spaces)
    return Timed(rate, peak_memory(), Replay.forecast(**size), flop)


def _theirs(recipe: Recipe, peer: Peer, decisions: int) -> Timed:
    configure_process(recipe)
    short = shortened(recipe, decisions)
    env = short.env.make(seed=short.seed, training=True)
    model, callback = build_peer(short, env, peer, capacity=recipe.frames // recipe.env.action_repeat)
    model.learn(short.agent.warmup_decisions + SETTLE, callback=callback)
    with _watched(callback) as watched:
        began = time.perf_counter()
        model.learn(decisions, callback=callback, reset_num_timesteps=False)
        seconds = time.perf_counter() - began
    replay = model.replay_buffer
    size = getattr(replay, "nbytes", None) or sum(
        array.nbytes for array in vars(replay).values() if isinstance(array, np.ndarray)
    )
    share = watched["callback"] / watched["objective"] - 1 if callback is not None else None
    return Timed(decisions / seconds, peak_memory(), size, flop_per_decision(model, callback), share)


def flop_per_decision(model: Any, callback: Any) -> float:
    """The mean over decisions after which the agent and the objective, which may skip updates, have all had their turn."""
    turn: int = model.train_freq.frequency * (1 if callback is None else callback.objective.every)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the switch warns about Intel's GPUs
        # Without mkldnn our encoders run layer by layer: the counter does not support fused layers.
        with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
            model.learn(turn, callback=callback, reset_num_timesteps=False)
    return float(counter.get_total_flops()) / turn


def build_peer(recipe: Recipe, env: gym.Env[Any, Any], peer: Peer, *, capacity: int, **options: Any) -> tuple[Any, Any]:
    """An agent of SB3 with a recipe's values, and the callback that it learns with, or None."""
    from stable_baselines3 import DQN, SAC

    from maskrl.integrations.sb3 import Auxiliary, FrameReplayBuffer, PixelSACPolicy

    agent = recipe.agent
    values: dict[str, Any] = {
        "buffer_size": capacity,
        "learning_starts": agent.warmup_decisions,
        "batch_size": agent.batch_size,
        "gamma": agent.discount,
        "learning_rate": agent.learning_rate,
        "train_freq": max(1, round(1 / agent.updates_per_decision)),
        "gradient_steps": max(1, round(agent.updates_per_decision)),
        "seed": recipe.seed,
        "device": "cpu" if recipe.device == "auto" else recipe.device,
        "policy_kwargs": {
            "features_extractor_class": features_class(),
            "features_extractor_kwargs": {"encoder": agent.encoder},
        },
    }
    if peer.replay:
        values["replay_buffer_class"] = FrameReplayBuffer
        values["replay_buffer_kwargs"] = {"frame_stack": recipe.env.frame_stack, "shift": agent.augment.shift}
    callback = None
    if peer.objective and recipe.objective is not None:
        auxiliary = getattr(agent, "auxiliary", None)
        changes: Any = {"projection": "mlp"} if recipe.objective.needs.q_projection else {}  # a callback has no Q head
        objective = replace(recipe.objective, **changes)
        callback = Auxiliary(objective, optimiser=auxiliary, clips=getattr(agent, "clips", None), seed=recipe.seed)
    match agent:
        case SACConfig():
            values |= {
                "tau": 1 - agent.q_momentum,
                "target_update_interval": 1,
                "ent_coef": f"auto_{agent.temperature}",
            }
            values["policy_kwargs"]["net_arch"] = [agent.hidden, agent.hidden]
            policy = PixelSACPolicy if peer.policy else "CnnPolicy"
            return SAC(policy, env, **(values | options)), callback
        case RainbowConfig():
            values["policy_kwargs"]["net_arch"] = [agent.hidden]
            return DQN("CnnPolicy", env, **(values | options)), callback
    raise ValueError(f"SB3 has no agent like {agent.kind}. Choose a recipe with sac or rainbow.")


def features_class() -> type[Any]:
    """The class of a recipe's encoder for SB3; defined only if SB3 is installed."""
    from maskrl.bench.peer_encoder import RecipeEncoder

    return RecipeEncoder


@contextmanager
def _watched(callback: Any) -> Iterator[dict[str, float]]:
    """The seconds of the callback after a rollout, and of the objective's own update in it."""
    seconds = {"callback": 0.0, "objective": 0.0}
    if callback is None:
        yield seconds
        return

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = call(*arguments)
            seconds[name] += time.perf_counter() - began
            return result

        return wrapped

    step = callback.step
    callback.step, callback.on_rollout_end = timed("objective", step), timed("callback", callback.on_rollout_end)
    try:
        yield seconds
    finally:
        callback.step = step
        del callback.on_rollout_end


def _draws(recipe: Recipe) -> list[Row]:
    """The time of a batch from SB3's replay and from ours, with and without shifts, when full of noise."""
    from stable_baselines3.common.buffers import ReplayBuffer

    from maskrl.integrations.sb3 import FrameReplayBuffer

    configure_process(recipe)
    env, steps, shift = recipe.env.make(seed=0, training=True), 2000, recipe.agent.augment.shift or 4
    stack = recipe.env.frame_stack
    spaces = (steps, env.observation_space, env.action_space, "cpu")
    buffers = {
        "SB3": ReplayBuffer(*spaces),
        "ours": FrameReplayBuffer(*spaces, frame_stack=stack),
        f"ours, shifted by up to {shift}": FrameReplayBuffer(*spaces, frame_stack=stack, shift=shift),
    }
    (obs, _), action = env.reset(), np.asarray([env.action_space.sample()])
    for _ in range(steps):
        following, reward, terminated, truncated, _ = env.step(action[0])
        for buffer in buffers.values():
            buffer.add(
                obs[None], following[None], action, np.array([reward]), np.array([terminated or truncated]), [{}]
            )
        obs = env.reset()[0] if terminated or truncated else following
    batch = recipe.agent.batch_size
    samplers = {name: partial(seconds_each, partial(buffer.sample, batch), 50) for name, buffer in buffers.items()}
    taken = in_turns(samplers, 5, lambda text: None)
    return [
        {"recipe": recipe.name, "replay": name, "batch": batch, "seconds_of_a_draw": Measured.of(seconds)}
        for name, seconds in taken.items()
    ]
