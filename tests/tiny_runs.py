"""Runs of a few seconds, and how to tell whether two of them are the same."""

from dataclasses import replace
from pathlib import Path

import torch

from builders import tiny_mask, tiny_mlr
from maskrl import AugmentConfig
from maskrl.agents.base import Agent
from maskrl.agents.drqv2 import DrQv2Config
from maskrl.agents.rainbow import NatureEncoderConfig, RainbowConfig
from maskrl.agents.sac import ControlEncoderConfig, SACConfig
from maskrl.envs import Atari, ToyArcade, ToyControl
from maskrl.objectives.step import AuxiliaryConfig
from maskrl.recipes.schema import Budget, Evaluation, Recipe, ReplayConfig
from maskrl.runs.directory import Run
from maskrl.runs.loggers import Logger
from maskrl.runs.loop import train


def tiny_recipe(*, mlr: bool = True, **changes: object) -> Recipe:
    """150 decisions on the toy, the first 60 of them random; 3 full episodes and most of a fourth."""
    settings: dict[str, object] = {
        "name": "toy/reach",
        "profile": "lite",
        "env": ToyControl(size=28),
        "agent": SACConfig(
            encoder=ControlEncoderConfig(filters=4, latent_dim=10),
            hidden=16,
            augment=AugmentConfig(crop=24, intensity=0.0),
            batch_size=8,
            warmup_decisions=60,
            auxiliary=AuxiliaryConfig(clips=2, warmup_updates=10),
        ),
        "objective": tiny_mlr(mask=tiny_mask()) if mlr else None,
        "budget": Budget(frames=150),
        "evaluation": Evaluation(every=50, episodes=2),
        "checkpoint_every": 50,
    }
    return Recipe(**(settings | changes))  # type: ignore[arg-type]


def tiny_rainbow(*, mlr: bool = True, **changes: object) -> Recipe:
    """150 decisions of Catch, the first 60 random; 3 games of 39 and most of a fourth, of which the replay keeps 80."""
    settings: dict[str, object] = {
        "name": "toy/catch",
        "profile": "lite",
        "env": ToyArcade(size=28),
        "agent": RainbowConfig(
            encoder=NatureEncoderConfig(filters=(4, 4), kernels=(4, 3), strides=(4, 2)),
            hidden=8,
            augment=AugmentConfig(crop=None, shift=1),
            batch_size=8,
            n_step=3,
            warmup_decisions=60,
            updates_per_decision=2,
            correction_updates=100,
            target_every=7,
            clips=2,
        ),
        "objective": tiny_mlr(augment=AugmentConfig(crop=None, shift=1), projection="q", prediction="linear")
        if mlr
        else None,
        "budget": Budget(decisions=150),
        "evaluation": Evaluation(every=50, episodes=2, epsilon=0.1, side_by_side=2),
        "replay": ReplayConfig(capacity=80),
        "checkpoint_every": 50,
    }
    return Recipe(**(settings | changes))  # type: ignore[arg-type]


def tiny_drqv2(**changes: object) -> Recipe:
    """As `tiny_recipe`, with DrQ-v2 alone."""
    agent = DrQv2Config(
        encoder=ControlEncoderConfig(filters=4, latent_dim=10, strides=(2, 2), squash=True, centre=True),
        hidden=16,
        augment=AugmentConfig(crop=None, shift=2, intensity=0.0),
        batch_size=8,
        warmup_decisions=60,
        noise_decisions=100,
    )
    return tiny_recipe(mlr=False, **({"agent": agent} | changes))


def tiny_breakout() -> Recipe:
    """250 decisions of Breakout, the first 200 random: enough to lose lives, with and without an agent that learns."""
    agent = replace(
        tiny_rainbow().agent,
        encoder=NatureEncoderConfig(filters=(4, 4), kernels=(8, 4), strides=(8, 4)),
        warmup_decisions=200,
    )
    return tiny_rainbow(
        name="atari/breakout",
        env=Atari(task="breakout", size=42, max_frames=400),
        agent=agent,
        budget=Budget(decisions=250),
        evaluation=Evaluation(every=1000, episodes=1),
        replay=ReplayConfig(capacity=1000),
        checkpoint_every=400,
    )


def trained(path: Path, recipe: Recipe, *loggers: Logger) -> tuple[Run, Agent]:
    run = Run.create(path, recipe)
    return run, train(recipe, run, loggers)


def events(run: Run) -> list[dict[str, object]]:
    """Of the run, not of the processes that made it: without the seconds, which no seed decides, and where they went."""
    own = [event for event in run.events() if event["kind"] not in ("timing", "checkpoint", "note")]
    return [{key: value for key, value in event.items() if not key.endswith("seconds")} for event in own]


def same_weights(one: Agent, other: Agent) -> bool:
    pairs = zip(one.encoder.parameters(), other.encoder.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def same_end(one: Run, other: Run) -> bool:
    """Bit for bit, what two runs have learned, drawn and lived through; not how long it took, nor what no draw can reach."""
    (a, b), frames = (run.restore() for run in (one, other)), "frames"
    assert a is not None
    assert b is not None
    for state in (a, b):
        # The log has the seconds of events.
        del state["position"]["seconds"], state["position"]["cpu_seconds"], state["log"]
    assert frames not in a["replay"]  # they are in files
    return same(a, b)


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)  # type: ignore[arg-type]
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)  # type: ignore[attr-defined, index]
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))  # type: ignore[arg-type, call-overload]
    return bool(a == b)
