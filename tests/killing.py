"""Real processes that train, and are sent signals: for tests, and for the long counts of docs/reliability.md.

python tests/killing.py kills --count 500 --seed 1       kills of toys, DMControl and Atari, compared with undisturbed runs
python tests/killing.py sequences --count 250 --seed 1   random orders of signals, kills, deletions and restarts

These are slices: counts of several seeds add up in results/reliability.json (tools/counts.py), and slices may run side by side.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from builders import Silent
from maskrl.clock import Clock
from maskrl.envs import DMControl
from maskrl.recipes.schema import Budget, Evaluation, Recipe, ReplayConfig
from maskrl.runs import checkpoint
from maskrl.runs.directory import Run, RunError
from maskrl.runs.signals import Stopped
from tiny_runs import events, same, same_end, tiny_breakout, tiny_drqv2, tiny_rainbow, tiny_recipe, trained

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import counts

# A server that has imported everything, and forks: children start at once and share no thread with this process.
context = multiprocessing.get_context("forkserver")
# No simulator among them: what a simulator starts when it is imported does not survive a fork.
context.set_forkserver_preload(["maskrl.cli", "maskrl.runs.loop", "maskrl.agents.drqv2", "maskrl.agents.rainbow"])

START = -1  # instead of a decision: before the run is opened
# Exit codes of a child: a signal stopped it, the run refused, Ctrl-C before or after the loop.
STOPPED, REFUSED, OUTSIDE = 3, 2, 4
Tell = Callable[[Mapping[str, "Counter[str]"]], None]  # is told the counts so far
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Gate(Silent):
    """Waits at a decision until it is told to go on. Then a signal hits its own process: there, however busy the machine is."""

    def __init__(self, connection: Any, at: int) -> None:
        super().__init__()
        self.connection, self.at = connection, at
        if at == START:
            self.wait()

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        if START < self.at <= clock.decisions:
            self.wait()

    def wait(self) -> None:
        self.at = START
        self.connection.send("here")
        number, delay = self.connection.recv()
        threading.Thread(target=strike, args=(number, delay), daemon=True).start()


def strike(number: int, delay: float) -> None:
    time.sleep(delay)
    os.kill(os.getpid(), number)


def child(connection: Any, path: Path, recipe: Recipe, at: int) -> None:
    torch.set_num_threads(1)
    try:
        trained(path, recipe, Gate(connection, at))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it came too late: the run is done
    except Stopped:
        sys.exit(STOPPED)
    except RunError:
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        sys.exit(OUTSIDE)


class Trainer:
    """A process that trains up to a decision, and waits there. `START`: before it has opened the run."""

    def __init__(self, path: Path, recipe: Recipe, at: int) -> None:
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=child, args=(theirs, path, recipe, at))
        self.process.start()
        theirs.close()

    def arrives(self) -> bool:
        """Wait for the decision; False if the process ends before."""
        with suppress(EOFError, OSError):
            return bool(self._pipe.recv())
        return False

    def struck(self, number: int, delay: float = 0.0) -> str:
        """Let it go on, and hit it by a signal. Returns its name, or "ended before" if the run was done by then."""
        with suppress(OSError):
            self._pipe.send((number, delay))
        code = self.end()
        # 128 + number: by the watchdog, which ends a process that does not answer.
        ends = (0, STOPPED, -number, 128 + number, *([OUTSIDE] if number == signal.SIGINT else []))
        assert code in ends, f"exit code {code} after {signal.Signals(number).name}"
        return "ended before" if code == 0 else signal.Signals(number).name

    def end(self) -> int:
        """Wait for the end: the exit code. If it waits at its decision, it fails."""
        self._pipe.close()
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        return int(code or 0)


# ── Runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def often(recipe: Recipe) -> Recipe:
    """Saved often, evaluated briefly, on one thread: then most of a kill's cost is the start of the next process."""
    return replace(
        recipe,
        threads=1,
        evaluation=replace(recipe.evaluation, episodes=1),
        checkpoint_every=15 * recipe.env.action_repeat,
    )


def brief(recipe: Recipe) -> Recipe:
    """90 decisions, the first 40 random."""
    budget = Budget(decisions=90) if recipe.budget.frames is None else Budget(frames=90)
    return often(replace(recipe, budget=budget, agent=replace(recipe.agent, warmup_decisions=40)))


def tiny_cartpole(make: Callable[..., Recipe] = tiny_recipe) -> Recipe:
    return make(
        name="dmcontrol/cartpole-swingup",
        env=DMControl(task="cartpole-swingup", action_repeat=8, size=28, frame_stack=3),
        agent=replace(make().agent, warmup_decisions=20),
        budget=Budget(frames=8 * 60),
        evaluation=Evaluation(every=8 * 200, episodes=1),
        checkpoint_every=8 * 15,
    )


KILLED: dict[str, Callable[[], Recipe]] = {
    "toy/reach, SAC with MLR": tiny_recipe,
    "dmcontrol/cartpole-swingup, SAC with MLR": tiny_cartpole,
    "atari/breakout, Rainbow with MLR": tiny_breakout,
    "toy/reach, DrQ-v2": tiny_drqv2,
    "dmcontrol/cartpole-swingup, DrQ-v2": lambda: tiny_cartpole(tiny_drqv2),
    "toy/catch, Rainbow with MLR": tiny_rainbow,
    "toy/reach, SAC, environment in its own process": lambda: tiny_recipe(mlr=False, overlap=True),
    "atari/breakout, Rainbow": lambda: replace(tiny_breakout(), objective=None),
    "toy/catch, Rainbow, replay in memory": lambda: tiny_rainbow(
        mlr=False, replay=ReplayConfig(capacity=80, storage="memory")
    ),
}
FAULTED: dict[str, Callable[[], Recipe]] = {
    "SAC with MLR": lambda: brief(tiny_recipe()),
    "Rainbow": lambda: brief(tiny_rainbow(mlr=False, replay=ReplayConfig(capacity=50))),
    "DrQ-v2": lambda: brief(tiny_drqv2()),
}


def twins_of(recipes: Mapping[str, Recipe], place: Path) -> Callable[[str], Run]:
    """Undisturbed runs by the names of their recipes. Each is trained when it is first asked for."""
    return cache(lambda name: trained(place / "twins" / name, recipes[name])[0])


# ── Sequences of faults ───────────────────────────────────────────────────────────────────────────────────────────────


def delay_of(chance: random.Random, at: int) -> float:
    """Some time within a decision, or within what a process does before the first one."""
    return chance.uniform(0, 0.5 if at == START else 0.02)


def sequence(path: Path, recipe: Recipe, whole: Run, chance: random.Random) -> Counter[str]:
    """One to six random faults, then the end, which must be that of the twin. Returns how often there was which fault."""
    done, harmed = Counter[str](), False
    last = whole.recipe.frames // recipe.env.action_repeat
    for _ in range(chance.randint(1, 6)):
        at = chance.randint(START, last - 1)
        trainer, second = Trainer(path, recipe, at), REFUSED
        if trainer.arrives() and at != START and chance.random() < 0.2:
            (path / "lock").unlink()
            done["lock deleted under the trainer"] += 1
            second = Trainer(path, recipe, last).end()
        done[trainer.struck(chance.choice(SIGNALS), delay_of(chance, at))] += 1
        assert second == REFUSED, "a second trainer ran beside the first"
        done.update(between := _between(path, chance))
        harmed |= "log lost" in between
    run, _ = trained(path, recipe, Silent())
    assert run.status == "done"
    assert same_end(run, whole), "other bits than the twin"
    own, expected = events(run), events(whole)
    lines = [json.dumps(event, sort_keys=True) for event in own]
    assert len(lines) == len(set(lines)), "an event twice"
    if harmed and own != expected:
        assert any("metrics.jsonl" in event["text"] for event in run.events("note")), "lost events without a word"
    else:
        assert own == expected, f"{len(own)} events, not {len(expected)}"
    return done


def _between(path: Path, chance: random.Random) -> list[str]:
    """What happens to the files between two sittings."""
    found = checkpoint.checkpoints(path / "checkpoints")
    what = chance.choice(
        ["", "", "", "newest checkpoint deleted", "newest checkpoint torn", "lock deleted", "log torn", "log lost"]
    )
    log = path / "metrics.jsonl"
    if what.startswith("newest") and len(found) < 2:
        return []
    if what.startswith("log") and not log.exists():  # the run may not have begun
        return []
    match what:
        case "newest checkpoint deleted":
            found[0].path.unlink()
        case "newest checkpoint torn":
            os.truncate(found[0].path, found[0].path.stat().st_size - 100)
        case "lock deleted":
            (path / "lock").unlink(missing_ok=True)
        case "log torn":
            with log.open("ab") as file:
                file.write(b'{"kind": "upda')
        case "log lost":
            if not found:  # without a checkpoint there is nothing to compare it with
                return []
            log.unlink()
    return [what] if what else []


def sequences(count: int, seed: int = 0, *, tell: Tell = lambda counted: None) -> dict[str, Counter[str]]:
    """Many of them, in turn on each agent."""
    done = {name: Counter[str]() for name in FAULTED}
    with tempfile.TemporaryDirectory(dir=_memory()) as place:
        twin = twins_of({name: make() for name, make in FAULTED.items()}, Path(place))
        for number in range(count):
            name, path = list(FAULTED)[number % len(FAULTED)], Path(place, "run")
            try:
                done[name] += sequence(path, twin(name).recipe, twin(name), random.Random(f"{seed} {number}"))
            except BaseException:
                print(f"sequence {number} of seed {seed} on {name} failed", flush=True)
                raise
            done[name]["sequences"] += 1
            shutil.rmtree(path)
            tell(done)
    return done


# ── Kills ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

KILLS = 20  # of a run


def kills(count: int, seed: int = 0, *, only: str = "", tell: Tell = lambda counted: None) -> dict[str, Counter[str]]:
    """At least so many kills in all, of runs in turn, which are compared with their twins."""
    recipes = {name: often(make()) for name, make in KILLED.items() if only in name}
    done = {name: Counter[str]() for name in recipes}
    with tempfile.TemporaryDirectory(dir=_memory()) as place:
        twin, number = twins_of(recipes, Path(place)), 0
        while sum(map(counts.kills_of, done.values())) < count:
            name = list(recipes)[number % len(recipes)]
            done[name] += killed_often(Path(place, "run"), twin(name), random.Random(f"{seed} {number}"))
            shutil.rmtree(Path(place, "run"))
            number += 1
            tell(done)
    return done


def killed_often(path: Path, whole: Run, chance: random.Random) -> Counter[str]:
    """One run, killed many times on its way. Counts signals, and whether its end differs from its twin's."""
    recipe, done = whole.recipe, Counter[str](runs=1)
    for at in sorted(chance.sample(range(recipe.frames // recipe.env.action_repeat), KILLS)):
        at = START if chance.random() < 0.1 else at
        trainer = Trainer(path, recipe, at)
        trainer.arrives()
        done[trainer.struck(chance.choice(SIGNALS), delay_of(chance, at))] += 1
    run, _ = trained(path, recipe, Silent())
    done["differences"] += not (events(run) == events(whole) and ended_alike(run, whole))
    return done


def ended_alike(run: Run, whole: Run) -> bool:
    """As `same_end`, also for a replay in memory, of which slots that no draw can reach may differ."""
    if run.recipe.replay.storage == "disk":
        return same_end(run, whole)
    states = [one.restore() or {} for one in (run, whole)]
    replays = [state.pop("replay") for state in states]
    for state in states:
        del state["position"]["seconds"], state["position"]["cpu_seconds"], state["log"]
    return same(*states) and all(same(replays[0][key], replays[1][key]) for key in ("frames", "first", "reward"))


def _memory() -> str | None:
    """A folder in memory, where a sync costs nothing."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["kills", "sequences"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="Kill only runs whose name contains this, such as dmcontrol.")
    parser.add_argument("--dry", action="store_true", help="Do not keep the counts in results/reliability.json.")
    asked = parser.parse_args()
    part = f"seed {asked.seed}" + (f", {asked.only}" if asked.only else "")

    def kept(done: Mapping[str, Counter[str]]) -> None:
        print(json.dumps(done), flush=True)
        if not asked.dry:
            counts.keep(asked.what, part, done)

    if asked.what == "kills":
        kills(asked.count, asked.seed, only=asked.only, tell=kept)
    else:
        sequences(asked.count, asked.seed, tell=kept)
