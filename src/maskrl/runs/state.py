"""The state of a run while it trains; writing it to a checkpoint and continuing from one."""

import random
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from maskrl.agents.base import Action, Agent, numbers
from maskrl.clock import Clock
from maskrl.files import EnvironmentFailedError
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Replay
from maskrl.representation.latents import cheap_probe
from maskrl.runs.build import build_agent, build_replay, configure_process, load_encoder, numerics
from maskrl.runs.checkpoint import checkpoints
from maskrl.runs.directory import Run, RunError, versions
from maskrl.runs.loggers import Loggers
from maskrl.runs.pace import Pace
from maskrl.runs.players import Players
from maskrl.runs.threads import note_of
from maskrl.runs.world import Step, Tell, World

UPDATES_PER_LINE = 50  # of metrics.jsonl


def is_logged(updates: int) -> bool:
    """Whether update number `updates` is logged: the 1st, 51st, …, in which every part runs."""
    return updates % UPDATES_PER_LINE == 1


@dataclass
class Position:
    """The position of the loop."""

    decisions: int = 0
    returns: list[float] = field(default_factory=list)  # of the open episode in each environment, so far
    seconds: float = 0.0  # of training in earlier sessions
    cpu_seconds: float = 0.0  # processor time in them: the true cost on a busy machine
    evaluated: int = -1  # frames of the newest evaluation


class State:
    """Agent, replay, world, generators and position of a run, with its log. A context manager that closes its environments."""

    def __init__(self, recipe: Recipe, run: Run, loggers: Loggers) -> None:
        configure_process(recipe, run.threads)
        self.recipe, self.run, self.loggers = recipe, run, loggers
        self._notes = [
            text for text in [note_of(recipe, run.threads)] if text and recipe.device != "cuda"
        ]  # not logged yet
        self.worlds = [World(recipe, self._notes.append, place) for place in range(recipe.env.parallel)]
        self.world = self.worlds[0]
        self.obs: list[NDArray[np.uint8] | None] = [None] * len(self.worlds)  # of each; None: no open episode
        self.sent: deque[tuple[int, Action]] = deque()  # actions whose results were not fetched yet, oldest first
        self.agent, self.spaces = build_agent(recipe, self.world.env), self.world.spaces
        self.players = Players(recipe, self._notes.append)
        self.replay = build_replay(recipe, self.world.env, run)
        self.explorer = np.random.default_rng(recipe.seed)
        self.position = Position(returns=[0.0] * len(self.worlds))
        self._start, self._cpu_start, self._pace = time.perf_counter(), time.process_time(), Pace()
        self._saved: tuple[int, int] | None = None  # decisions and newest evaluation at the newest checkpoint
        self._known_notes: tuple[str, ...] = ()  # logged since the newest checkpoint
        self._timed: dict[str, float] = {}  # seconds of each part at the newest timing event

    def __enter__(self) -> "State":
        return self

    def __exit__(self, *_: object) -> None:
        for close in (*(world.close for world in self.worlds), self.players.close):
            with suppress(Exception):  # an environment that has failed may fail again
                close()

    @property
    def clock(self) -> Clock:
        seconds = self.position.seconds + time.perf_counter() - self._start
        decisions = self.position.decisions
        return Clock(decisions * self.recipe.env.action_repeat, decisions, self.agent.updates, round(seconds, 3))

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of all sessions, without evaluations in other processes."""
        return round(self.position.cpu_seconds + time.process_time() - self._cpu_start, 3)

    @property
    def is_evaluation_due(self) -> bool:
        frames, every = self.clock.frames, self.recipe.evaluation.every
        return self.position.evaluated != frames and (frames % every == 0 or frames == self.recipe.frames)

    @property
    def is_done(self) -> bool:
        frames = self.clock.frames
        return frames >= self.recipe.frames and self.position.evaluated == frames

    # ── steps of the loop ─────────────────────────────────────────────────────────────────────────────────────────

    def idle(self) -> list[int]:
        """The indices of the environments that wait for an action."""
        busy = {place for place, _ in self.sent}
        return [place for place in range(len(self.worlds)) if place not in busy]

    def begin_episode(self, place: int = 0) -> NDArray[np.uint8]:
        world = self.worlds[place]
        self.obs[place] = obs = world.begin()
        self.position.returns[place] = 0.0
        self.replay.begin_episode(obs, world.vector, place=place)
        return obs

    def send(self, place: int, action: Action) -> None:
        """Send an action; an environment in a separate process begins its step now."""
        self.worlds[place].step_async(action)
        self.sent.append((place, action))

    def fetch(self) -> None:
        """Wait for the result of the oldest action sent, and store it."""
        place, action = self.sent.popleft()
        step = self.worlds[place].step(action)
        self.obs[place] = None if step is None else self.add(action, step, place)

    def update(self) -> None:
        """Update the agent once, and log the metrics if it is due."""
        with numerics(self.recipe), self._pace:
            metrics = self.agent.update(self.replay)
        if is_logged(self.agent.updates):
            self.agent.check()
            values = numbers(metrics)
            self.run.log("update", self.clock, values)
            self.loggers.write(values | self.times(), self.clock)

    def add(self, action: Action, step: Step, place: int = 0) -> NDArray[np.uint8] | None:
        """Store the result of a decision. Returns the observation, or None if the episode has ended."""
        position, world = self.position, self.worlds[place]
        taken, ends = self.spaces.as_vector(action), {"terminated": step.terminated, "truncated": step.truncated}
        self.replay.add(taken, step.reward, step.obs, world.vector, **ends, place=place)
        position.decisions += 1
        position.returns[place] += step.reward
        self.loggers.write({}, self.clock)
        if world.running:
            return step.obs
        earned = position.returns[place]
        self.run.log("episode", self.clock, {"return": earned, "length": world.length})
        points = {"training/return": earned, "training/length": float(world.length)}
        self.loggers.write(points, self.clock)
        return None

    # ── logging ───────────────────────────────────────────────────────────────────────────────────────────────────

    def times(self) -> dict[str, float]:
        """Seconds of each part in this session, as points for loggers."""
        return {f"time/{part}": seconds for part, seconds in self.agent.watch.seconds.items()}

    def log_notes(self) -> None:
        """Log notes on problems."""
        on_cpu = self.agent.device.type == "cpu"  # on an accelerator, an update waits for the device
        if on_cpu and (text := self._pace.complaint()) is not None:
            self._notes.append(text)
        self._notes += self.run.complaints()
        for text in self._notes:
            self.note(text)
        self._notes.clear()

    def note(self, text: str) -> None:
        if text not in self._known_notes:
            self.run.log("note", self.clock, {"text": text})
        self.loggers.note(text, self.clock)

    def log_probe(self) -> None:
        """Log measures of the encoder on stored clips, if there are any, and the seconds of each part since the last time."""
        with self.agent.watch("probe"):
            seen = cheap_probe(self.agent, self.replay, self.recipe)
        if seen is not None:
            self.run.log("probe", self.clock, seen)
        seconds, before = dict(self.agent.watch.seconds), self._timed
        parts = {part: round(spent - before.get(part, 0.0), 3) for part, spent in seconds.items()}
        self.run.log("timing", self.clock, {"parts": parts})
        self._timed = seconds

    # ── saving and continuing ─────────────────────────────────────────────────────────────────────────────────────

    def save_if_due(self, ending: bool) -> None:
        """Write a checkpoint if one is due: periodically, at the end, or before the replay overwrites frames of the last one."""
        frames, here = self.clock.frames, (self.position.decisions, self.position.evaluated)
        due = ending or (frames % self.recipe.checkpoint_every == 0 and frames > 0)
        if not self.replay.must_be_saved and (not due or here == self._saved):
            return
        clock, watch = self.clock, self.agent.watch
        state, before = self.snapshot(clock), watch.seconds.get("checkpoint", 0.0)
        with watch("checkpoint"):
            path = self.run.save(state)
        spent = round(watch.seconds["checkpoint"] - before, 3)
        self.run.log("checkpoint", clock, {"bytes": path.stat().st_size, "spent": spent})
        self.loggers.write(self.times(), self.clock)
        self._saved = here

    def snapshot(self, clock: Clock) -> dict[str, Any]:
        """The whole state as tensors and plain values. `spaces` and `outside` are for readers without the environment."""
        return {
            "agent": self.agent.state_dict(),
            "replay": self.replay.state_dict(),
            "world": self.world.state_dict(),
            **self._others(),
            "spaces": asdict(self.spaces),
            "outside": self.world.env.metadata.get("outside"),
            "position": {**asdict(self.position), "seconds": clock.seconds, "cpu_seconds": self.cpu_seconds},
            "generators": {
                "explorer": self.explorer.bit_generator.state,
                "torch": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
                "numpy": np.random.get_state(),
                "python": random.getstate(),
            },
        }

    def _others(self) -> dict[str, Any]:
        """The state of the other environments, if a run has several."""
        if len(self.worlds) == 1:
            return {}
        sent = [{"place": place, "action": action.tolist()} for place, action in self.sent]
        return {"worlds": [world.state_dict() for world in self.worlds[1:]], "sent": sent}

    def resume(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        run = self.run
        if self.recipe.encoder_from is not None and not checkpoints(run.checkpoints):
            run.require_same_encoder()
            load_encoder(self.recipe, self.agent)
        state = run.restore(self._notes.append, set_aside=True)
        if state is not None:
            begun, now = run.versions(), versions(self.recipe)
            changed = [f"{name} {begun[name]} → {now[name]}" for name in now if begun.get(name, now[name]) != now[name]]
            if changed:
                self._notes.append(
                    f"Versions changed since the run began, so results may differ: {', '.join(changed)}."
                )
            self._load(state)
            if not begun:
                self._notes.append("versions.json is lost, so it is unknown whether versions or threads have changed.")
        position = self.position
        self._saved = (position.decisions, position.evaluated) if position.decisions else None
        self._rewind(state)
        run.set_status("running")
        self.loggers.write({}, self.clock)

    def _rewind(self, state: Mapping[str, Any] | None) -> None:
        """Cut the log back to the checkpoint, and note what is wrong with it."""
        clock, mark = (None, None) if state is None else (self.clock, state.get("log"))
        rewound = self.run.rewind(clock, mark, evaluated=self.position.evaluated)
        self._known_notes = rewound.notes
        if rewound.complaint:
            self._notes.append(rewound.complaint)
        if clock is not None and not rewound.checkpoint:  # its process was killed before it could log the checkpoint
            newest, *_ = checkpoints(self.run.checkpoints)
            self.run.log("checkpoint", clock, {"bytes": newest.path.stat().st_size})

    def _load(self, state: dict[str, Any]) -> None:
        with continuing(self.run):
            self.agent.load_state_dict(state["agent"])
            load_replay(self.replay, state["replay"], self._notes.append)
            saved = dict(state["position"])
            # Versions with only one environment stored one return.
            returns = saved.pop("returns", None) or [saved.pop("episode_return", 0.0)]
            saved["returns"] = [float(each) for each, _ in zip(returns, self.worlds, strict=True)]
            for name, value in saved.items():
                setattr(self.position, name, type(getattr(self.position, name))(value))
            for place, world in enumerate([state["world"], *state.get("worlds", ())]):
                self.obs[place] = self.worlds[place].load_state_dict(world)
            kind: Any = np.int64 if self.spaces.discrete else np.float32
            for each in state.get("sent", ()):
                if self.obs[each["place"]] is not None:  # otherwise its episode was lost
                    self.send(each["place"], np.array(each["action"], kind)[()])
            self._load_generators(state["generators"])

    def _load_generators(self, generators: dict[str, Any]) -> None:
        self.explorer.bit_generator.state = generators["explorer"]
        torch.set_rng_state(generators["torch"])
        if generators["cuda"]:
            torch.cuda.set_rng_state_all(generators["cuda"])
        name, keys, *rest = generators["numpy"]
        np.random.set_state((name, keys.numpy(), *rest))
        random.setstate(generators["python"])


@contextmanager
def continuing(run: Run) -> Iterator[None]:
    """Turn any error of a state that does not fit into a RunError. A foreign state may raise anything."""
    try:
        yield
    except (EnvironmentFailedError, RunError):
        raise
    except Exception as error:
        raise RunError(
            f"{run.path} cannot be continued from its checkpoint: {type(error).__name__}: {error}\n"
            "Put back a good copy of the run, or remove its directory to start again."
        ) from error


def as_arrays(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """The replay's state with arrays again: a checkpoint stores tensors only."""
    return {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in values.items()}


def load_agent(run: Run, env: gym.Env[Any, Any], state: Mapping[str, Any]) -> Agent:
    """Build the agent of a run from a checkpoint's state."""
    agent = build_agent(run.recipe, env)
    with continuing(run):
        agent.load_state_dict(state["agent"])
    return agent


def load_replay(replay: Replay, state: Mapping[str, Any], tell: Tell) -> None:
    """Fill a replay from a checkpoint; call `tell` if frames are lost."""
    if lost := replay.load_state_dict(as_arrays(state)):
        tell(
            f"{lost:,} frames of the replay are damaged, or older than a damaged one, and are left out. "
            "Training continues, but results will differ from an uninterrupted run."
        )
