"""MLR-Pretraining (paper, appendix, Table 9): collect with a trained agent, learn from the objective alone, keep the encoder.

pretrain.json        with what agent, on how much, by which recipe
replay/              what was collected
checkpoints/         where it is, until it is done
metrics.jsonl        the losses on the way
encoder.safetensors  the result: what `encoder_from` of a recipe takes
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from maskrl.agents.base import Agent, Metrics
from maskrl.clock import Clock
from maskrl.recipes.schema import Budget, Recipe, ReplayConfig, as_json, digest, with_objective
from maskrl.replay.buffer import Replay
from maskrl.representation.latents import glance
from maskrl.runs import encoder_file
from maskrl.runs.build import build_agent, build_replay, configure_process
from maskrl.runs.checkpoint import checkpoints
from maskrl.runs.directory import Run, RunError
from maskrl.runs.signals import Stopped, stopping
from maskrl.runs.state import as_arrays, is_logged
from maskrl.runs.world import Tell, World

COLLECTING_SEED = 3_000_000  # added to the run's seed, so that no episode starts as one of its training did
SECONDS_BETWEEN_SAVES = 60.0
CURVE = 200  # points of the curve in the file, at most


class Watcher(Protocol):
    """Somebody who looks on."""

    def __call__(self, stage: str, done: int, total: int, metrics: Metrics) -> None: ...


@dataclass(frozen=True)
class Plan:
    """What a pre-training does, as in pretrain.json."""

    run: str  # the digest of the recipe of the agent that collects
    checkpoint: str  # the digest of its weights
    recipe: Recipe  # of the agent whose encoder learns; its budget and replay are those of what is collected
    transitions: int  # decisions
    updates: int  # of the objective
    run_decisions: int  # of the agent that collects, when it was trained

    @property
    def collected_at(self) -> Clock:
        """The end of the run that collects, whose budget its recipe has no more."""
        return Clock(0, self.run_decisions, 0, 0.0)

    def as_json(self) -> str:
        return json.dumps({**vars(self), "recipe": json.loads(as_json(self.recipe))}, indent=2)


def plan(run: Run, origin: Recipe, *, transitions: int | None = None, updates: int | None = None) -> Plan:
    """As the paper: as many transitions as the run had decisions, as many updates as its task's recipe, `origin`, would make."""
    saved = checkpoints(run.checkpoints)
    if not saved:
        raise RunError(
            f"{run.path} has no checkpoint yet. Continue it with the `maskrl train` command that started it."
        )
    recipe = run.recipe if run.recipe.objective is not None else with_objective(run.recipe, origin.objective)
    assert recipe.objective is not None
    decisions = recipe.frames // recipe.env.action_repeat
    learning = max(1, recipe.agent.updates_by(decisions))
    transitions = transitions or decisions
    length = recipe.objective.needs.clip_length
    if transitions < 2 * length:
        raise RunError(
            f"{transitions} transitions are too few for clips of {length}: take at least {2 * length}, better thousands."
        )
    room = transitions + transitions // 25 + 1  # for the last frames of episodes of 25 decisions or more
    recipe = replace(recipe, encoder_from=None, budget=Budget(decisions=room), replay=ReplayConfig(capacity=room))
    every = recipe.objective.every if recipe.objective is not None else 1
    return Plan(digest(run.recipe), saved[0].digest, recipe, transitions, updates or -(-learning // every), decisions)


def pretrain(run: Run, out: Path, plan: Plan, watch: Watcher, tell: Tell) -> Path:
    """Do all of it, or what is left of it, and return the file of the encoder. `Stopped` if a signal came; all is saved then."""
    directory, file = _begin(out, plan), out / "encoder.safetensors"
    with directory.locked():
        if not file.exists():
            agent, replay = _pretrain(run, directory, plan, watch, tell)
            points = list(directory.events("update"))
            about = {
                **json.loads(plan.as_json()),
                "collected_by": run.recipe.name + " " + run.recipe.method,
                "probe": glance(agent, replay, plan.recipe),
                "curve": [
                    {name: event[name] for name in event if name == "updates" or name.startswith("mlr/")}
                    for event in [*points[: -1 : -(-len(points) // CURVE) or 1], *points[-1:]]
                ],
            }
            encoder_file.write(file, agent.encoder, about)
    return file


def _begin(out: Path, plan: Plan) -> Run:
    """The directory, new or with the same plan. It is like a run's, but holds no recipe.json: nobody takes it for one."""
    file, directory = out / "pretrain.json", Run(out, plan.recipe)
    if file.exists():
        here = json.loads(plan.as_json())
        try:
            there = dict(json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            raise RunError(f"{file} is damaged: {error}. Choose another --out, or remove the folder.") from error
        if there != here:
            words = ", ".join(name for name in here if there.get(name) != here[name])
            raise RunError(f"{out} holds a pre-training that differs in: {words}. Choose another --out.")
        return directory
    if out.exists() and any(out.iterdir()):
        raise RunError(f"{out} is not empty and holds no pre-training. Choose another --out, or empty it.")
    out.mkdir(parents=True, exist_ok=True)
    directory.write(file.name, plan.as_json())
    return directory


def _pretrain(run: Run, directory: Run, plan: Plan, watch: Watcher, tell: Tell) -> tuple[Agent, Replay]:
    configure_process(plan.recipe)
    world = World(replace(plan.recipe, seed=plan.recipe.seed + COLLECTING_SEED), tell)
    agent, collector = build_agent(plan.recipe, world.env), _trained(run, world, tell)
    replay = build_replay(plan.recipe, world.env, directory)
    collected = updates = 0
    start, obs, earlier = time.monotonic(), None, 0.0
    if (state := directory.restore(tell, set_aside=True)) is not None:
        agent.load_state_dict(state["agent"])
        replay.load_state_dict(as_arrays(state["replay"]))
        collected, updates, earlier = state["collected"], state["updates"], state["seconds"]
        obs = world.load_state_dict(state["world"])
        torch.set_rng_state(state["torch"])

    def clock() -> Clock:
        seconds = earlier + time.monotonic() - start
        return Clock(collected * plan.recipe.env.action_repeat, collected, updates, round(seconds, 3))

    def save() -> None:
        directory.save(
            {
                **{"agent": agent.state_dict(), "replay": replay.state_dict(), "world": world.state_dict()},
                **{"collected": collected, "updates": updates, "seconds": clock().seconds},
                "torch": torch.get_rng_state(),
            }
        )

    directory.rewind(clock() if state is not None else None)
    saved = time.monotonic()
    with stopping() as stop:
        steps = _steps(agent, collector, world, replay, plan, collected, updates, obs)
        for collected, updates, metrics in steps:
            watch(
                *("learning", updates, plan.updates) if updates else ("collecting", collected, plan.transitions),
                metrics,
            )
            if updates and (is_logged(updates) or updates == plan.updates):
                directory.log("update", clock(), {name: value.item() for name, value in metrics.items()})
            turn = updates == 0 and collected == plan.transitions  # before anything is logged
            if stop or turn or replay.must_be_saved or time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
                save()
                saved = time.monotonic()
            if stop:
                raise Stopped(stop.signal_number)
    world.close()
    return agent, replay


def _trained(run: Run, world: World, tell: Tell) -> Agent:
    """The agent of the run, as its newest checkpoint has it."""
    state = run.restore(tell)
    assert state is not None  # `plan` has seen to it
    agent = build_agent(run.recipe, world.env)
    agent.load_state_dict(state["agent"])
    return agent


def _steps(
    agent: Agent,
    collector: Agent,
    world: World,
    replay: Replay,
    plan: Plan,
    collected: int,
    updates: int,
    obs: NDArray[np.uint8] | None,
) -> Iterator[tuple[int, int, Metrics]]:
    """What is left of both stages: after each decision and each update, how many there were of both, and its metrics."""
    for number, _ in enumerate(
        collect(collector, plan.collected_at, world, replay, plan.transitions - collected, obs), start=collected + 1
    ):
        yield number, 0, {}
    for number in range(updates + 1, plan.updates + 1):
        yield plan.transitions, number, agent.update_objective(replay)


def collect(
    agent: Agent, clock: Clock, world: World, replay: Replay, decisions: int, obs: NDArray[np.uint8] | None = None
) -> Iterator[None]:
    """Store `decisions` decisions of an agent that explores as at this time of its training. Yields after each.

    `obs` continues an open episode.
    """
    while decisions > 0:
        if obs is None:
            obs = world.begin()
            replay.begin_episode(obs)
        agent.renew_noise()  # in training, every update does
        action = agent.act(obs[None], explore=True, clock=clock)[0]
        step = world.step(action)
        if step is None:  # the episode was lost
            obs = None
            continue
        replay.add(
            world.spaces.as_vector(action), step.reward, step.obs, terminated=step.terminated, truncated=step.truncated
        )
        obs, decisions = step.obs if world.running else None, decisions - 1
        yield
