"""MLR-Pretraining (paper, appendix, Table 9): collect with a trained agent, learn from the objective alone, keep the encoder.

pretrain.json        the plan: the agent, the amount of data and the recipe
replay/              the collected data
checkpoints/         the state, until it is done
metrics.jsonl        the losses
encoder.safetensors  the result, for `encoder_from` of a recipe
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskrl.agents.base import Agent, Metrics, numbers
from maskrl.clock import Clock
from maskrl.files import read_object, write_whole
from maskrl.recipes.schema import Budget, Recipe, ReplayConfig, as_json, digest, with_objective
from maskrl.replay.buffer import Replay
from maskrl.representation.latents import cheap_probe
from maskrl.runs import encoder_file
from maskrl.runs.build import build_agent, build_replay, configure_process
from maskrl.runs.checkpoint import checkpoints
from maskrl.runs.directory import Run, RunError, RunFiles
from maskrl.runs.signals import Stopped, stopping
from maskrl.runs.state import continuing, is_logged, load_agent, load_replay
from maskrl.runs.world import Tell, World

COLLECTING_SEED = 3_000_000  # added to the run's seed, so that episodes start differently from those of training
SECONDS_BETWEEN_SAVES = 60.0
CURVE = 200  # maximum points of the curve in the file

Watcher = Callable[[str, int, int, Metrics], None]  # called with the stage, its progress, its total, and metrics


@dataclass(frozen=True)
class Plan:
    """The plan of a pre-training, as in pretrain.json."""

    run: str  # the digest of the recipe of the agent that collects
    checkpoint: str  # the digest of its weights
    recipe: Recipe  # of the agent whose encoder learns; budget and replay are for the collected data
    transitions: int  # decisions
    updates: int  # of the objective
    run_decisions: int  # decisions of the collecting agent's training

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "recipe": json.loads(as_json(self.recipe))}


def plan(run: Run, origin: Recipe, *, transitions: int | None = None, updates: int | None = None) -> Plan:
    """The plan; by default as in the paper: a transition per decision of the run, and as many updates as `origin`, its recipe."""
    saved = checkpoints(run.checkpoints)
    if not saved:
        raise run.no_checkpoint()
    recipe = run.recipe if run.recipe.objective is not None else with_objective(run.recipe, origin.objective)
    assert recipe.objective is not None
    decisions = recipe.frames // recipe.env.action_repeat
    learning, transitions = max(1, recipe.agent.updates_by(decisions)), transitions or decisions
    length, every = recipe.objective.needs.clip_length, recipe.objective.every
    if transitions < 2 * length:
        raise RunError(
            f"{transitions} transitions are too few for clips of {length}: use at least {2 * length}, better thousands."
        )
    room = transitions + transitions // 25 + 1  # for the last frames of episodes of 25 decisions or more
    recipe = replace(recipe, encoder_from=None, budget=Budget(decisions=room), replay=ReplayConfig(capacity=room))
    return Plan(digest(run.recipe), saved[0].digest, recipe, transitions, updates or -(-learning // every), decisions)


def pretrain(run: Run, out: Path, plan: Plan, watch: Watcher, tell: Tell) -> Path:
    """Start or continue a pre-training; return the encoder's file. Raises `Stopped` after a signal, with everything saved."""
    directory, file = _begin(out, plan), out / "encoder.safetensors"
    with directory.locked():
        if not file.exists():
            work = _Work(run, directory, plan, tell)
            with closing(work.world):
                _learn(work, watch)
            points = list(directory.events("update"))
            about = {
                **plan.as_dict(),
                "collected_by": f"{run.recipe.name} {run.recipe.method}",
                "probe": cheap_probe(work.agent, work.replay, plan.recipe),
                "curve": [
                    {name: event[name] for name in event if name == "updates" or "/" in name}
                    for event in [*points[: -1 : -(-len(points) // CURVE) or 1], *points[-1:]]
                ],
            }
            encoder_file.write(file, work.agent.encoder, about)
    return file


def _begin(out: Path, plan: Plan) -> Run:
    """Create the directory, or open one with the same plan. Without a recipe.json, it does not count as a run."""
    file, here = out / "pretrain.json", json.loads(json.dumps(plan.as_dict()))
    if os.path.lexists(file):
        RunFiles(out).require_plain()
        there = read_object(out, file.name)
        if there != here:
            words = ", ".join(name for name in here if there.get(name) != here[name])
            raise RunError(f"{out} holds a pre-training that differs in: {words}. Choose another --out.")
    elif out.exists() and any(out.iterdir()):
        raise RunError(f"{out} is not empty and holds no pre-training. Choose another --out, or empty it.")
    else:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(here, indent=2))
    return Run(out, plan.recipe)


class _Work:
    """The state of a pre-training: both agents, the world, the replay, and its progress."""

    def __init__(self, run: Run, directory: Run, plan: Plan, tell: Tell) -> None:
        configure_process(plan.recipe, run.threads)
        self.directory, self.plan, self.collected, self.updates = directory, plan, 0, 0
        self.world = World(replace(plan.recipe, seed=plan.recipe.seed + COLLECTING_SEED), tell)
        self.agent = build_agent(plan.recipe, self.world.env)
        self.collector = load_agent(run, self.world.env, run.newest(tell))
        self.replay = build_replay(plan.recipe, self.world.env, directory, places=1)
        self._obs: NDArray[np.uint8] | None = None
        self._earlier, self._start = 0.0, time.monotonic()
        state = directory.restore(tell, set_aside=True)
        if state is not None:
            with continuing(directory):
                self._load(state, tell)
        rewound = directory.rewind(*((None, None) if state is None else (self.clock, state.get("log"))))
        if rewound.complaint:
            tell(rewound.complaint)

    def _load(self, state: dict[str, Any], tell: Tell) -> None:
        self.agent.load_state_dict(state["agent"])
        self.collector.generators.load_state_dict(state["collector"])
        load_replay(self.replay, state["replay"], tell)
        self.collected, self.updates = int(state["collected"]), int(state["updates"])
        self._earlier = float(state["seconds"])
        self._obs = self.world.load_state_dict(state["world"])
        torch.set_rng_state(state["torch"])

    @property
    def clock(self) -> Clock:
        seconds, repeat = self._earlier + time.monotonic() - self._start, self.plan.recipe.env.action_repeat
        return Clock(self.collected * repeat, self.collected, self.updates, round(seconds, 3))

    def save(self) -> None:
        parts: dict[str, Any] = {"agent": self.agent, "replay": self.replay, "world": self.world}
        parts["collector"] = self.collector.generators  # its weights are stored in the run
        counts = {"collected": self.collected, "updates": self.updates, "seconds": self.clock.seconds}
        states = {name: part.state_dict() for name, part in parts.items()}
        self.directory.save({**states, **counts, "torch": torch.get_rng_state()})

    def steps(self) -> Iterator[tuple[str, int, int, Metrics]]:
        """Do the rest of both stages. Yields the arguments of a `Watcher` after each decision and update."""
        plan = self.plan
        now = Clock(0, plan.run_decisions, 0, 0.0)  # the end of the collecting agent's run
        for _ in collect(self.collector, now, self.world, self.replay, plan.transitions - self.collected, self._obs):
            self.collected += 1
            yield "collecting", self.collected, plan.transitions, {}
        while self.updates < plan.updates:
            metrics = self.agent.update_objective(self.replay)
            self.updates += 1
            yield "learning", self.updates, plan.updates, metrics


def _learn(work: _Work, watch: Watcher) -> None:
    saved = time.monotonic()
    with stopping() as stop:
        for stage, done, total, metrics in work.steps():
            watch(stage, done, total, metrics)
            if stage == "learning" and (is_logged(done) or done == total):
                work.agent.check()
                work.directory.log("update", work.clock, numbers(metrics))
            turn = stage == "collecting" and done == total  # before anything is logged
            if stop or turn or work.replay.must_be_saved or time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
                work.save()
                saved = time.monotonic()
            if stop:
                raise Stopped(stop.signal_number)


def collect(
    agent: Agent, clock: Clock, world: World, replay: Replay, decisions: int, obs: NDArray[np.uint8] | None = None
) -> Iterator[None]:
    """Store `decisions` decisions of an agent that explores as at this time of its training. Yields after each one.

    `obs` continues an open episode.
    """
    while decisions > 0:
        if obs is None:
            obs = world.begin()
            replay.begin_episode(obs, world.vector)
        agent.renew_noise()  # in training, updates do this
        action = agent.act(obs[None], world.rows, explore=True, clock=clock)[0]
        step = world.step(action)
        if step is None:  # the episode was lost
            obs = None
            continue
        taken, ends = world.spaces.as_vector(action), {"terminated": step.terminated, "truncated": step.truncated}
        replay.add(taken, step.reward, step.obs, world.vector, **ends)
        obs, decisions = step.obs if world.running else None, decisions - 1
        yield
