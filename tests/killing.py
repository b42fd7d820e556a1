"""Real processes that train, and are sent signals: for tests, and for the long counts of docs/reliability.md.

python tests/killing.py kills --count 1000      kills of toys, DMControl and Atari, compared with twins whom nothing happened to
python tests/killing.py sequences --count 500   random orders of signals, kills, deletions and restarts
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
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
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
from tiny_runs import events, same_end, tiny_breakout, tiny_rainbow, tiny_recipe, trained

# A server that has imported everything, and forks: children start at once and share no thread with this process.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["maskrl.cli", "maskrl.runs.loop", "tiny_runs"])

STOPPED, REFUSED = 3, 2  # exit codes of a child: a signal stopped it, or the run refused
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Reporting(Silent):
    """Sends every decision down a pipe."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self.pipe = pipe

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        if not points:
            os.write(self.pipe, clock.decisions.to_bytes(4, "little"))


def child(connection: Any, path: Path, recipe: Recipe) -> None:
    torch.set_num_threads(1)
    try:
        trained(path, recipe, Reporting(connection.fileno()))
    except Stopped:
        sys.exit(STOPPED)
    except BrokenPipeError:
        sys.exit(1)
    except RunError:
        sys.exit(REFUSED)


class Trainer:
    """A process that trains, and tells of its decisions."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self._pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=child, args=(theirs, path, recipe))
        self.process.start()
        theirs.close()
        self.decisions = 0

    def until(self, decision: int) -> bool:
        """Wait for a decision; False if the process ends before."""
        while self.decisions < decision:
            message = os.read(self._pipe.fileno(), 4)
            if not message:
                return False
            self.decisions = int.from_bytes(message, "little")
        return True

    def pause(self, paused: bool = True) -> None:
        if self.process.is_alive():
            os.kill(self.process.pid or 0, signal.SIGSTOP if paused else signal.SIGCONT)

    def end(self, number: int | None = None) -> int:
        """Send a signal, if one is given, and wait for the end: the exit code."""
        if number is not None and self.process.is_alive():
            os.kill(self.process.pid or 0, number)
        while self.process.is_alive() and os.read(self._pipe.fileno(), 4096):
            pass
        self.process.join()
        self._pipe.close()
        code = self.process.exitcode
        self.process.close()
        return int(code or 0)


# ── Sequences of faults ───────────────────────────────────────────────────────────────────────────────────────────────


def sequence(path: Path, recipe: Recipe, whole: Run, chance: random.Random) -> Counter[str]:
    """One to six random faults, then the end, which must be that of the twin. Returns how often there was which fault."""
    done, harmed = Counter[str](), False
    last = whole.recipe.frames // recipe.env.action_repeat
    for _ in range(chance.randint(1, 6)):
        trainer = Trainer(path, recipe)
        went_on = trainer.until(chance.randint(0, last - 1))
        time.sleep(chance.uniform(0, 0.03))
        if went_on and chance.random() < 0.2:
            (path / "lock").unlink(missing_ok=True)
            done["lock deleted under the trainer"] += 1
            trainer.pause()  # so that it does not end before the second has begun
            second = Trainer(path, recipe)
            assert second.end() != 0 or not trainer.process.is_alive(), "a second trainer ran beside the first"
            trainer.pause(False)
        number = chance.choice(SIGNALS)
        code = trainer.end(number)
        done[signal.Signals(number).name] += 1
        early = (
            1 if number == signal.SIGINT else -number
        )  # before the loop has taken over, Ctrl-C is a KeyboardInterrupt
        assert code in (0, STOPPED, -number, early), f"exit code {code} after {signal.Signals(number).name}"
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
            if not found or not log.exists():  # without a checkpoint there is nothing to compare it with
                return []
            log.unlink()
    return [what] if what else []


def sequences(count: int, seed: int = 0) -> Counter[str]:
    """Many of them, in turn on SAC and on Rainbow."""
    done = Counter[str]()
    with tempfile.TemporaryDirectory(dir=_memory()) as place:
        twins = {
            name: trained(Path(place, name), make())[0]
            for name, make in (("sac", tiny_recipe), ("rainbow", tiny_rainbow))
        }
        for number in range(count):
            name = ("sac", "rainbow")[number % 2]
            path = Path(place, "run")
            try:
                done += sequence(path, twins[name].recipe, twins[name], random.Random(f"{seed} {number}"))
            except BaseException:
                print(f"sequence {number} of seed {seed} on {name} failed", flush=True)
                raise
            done["sequences"] += 1
            shutil.rmtree(path)
            if count >= 50 and number % 10 == 9:
                print(dict(done), flush=True)
    return done


# ── Kills ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def tiny_cartpole() -> Recipe:
    return tiny_recipe(
        name="dmcontrol/cartpole-swingup",
        env=DMControl(task="cartpole-swingup", action_repeat=8, size=28, frame_stack=3),
        agent=replace(tiny_recipe().agent, warmup_decisions=20),
        budget=Budget(frames=8 * 60),
        evaluation=Evaluation(every=8 * 200, episodes=1),
        checkpoint_every=8 * 15,
    )


KILLED: dict[str, Callable[[], Recipe]] = {
    "toy/reach, SAC with MLR": tiny_recipe,
    "toy/reach, SAC": lambda: tiny_recipe(mlr=False),
    "toy/catch, Rainbow with MLR": tiny_rainbow,
    "toy/catch, Rainbow, replay in memory": lambda: tiny_rainbow(
        mlr=False, replay=ReplayConfig(capacity=80, storage="memory")
    ),
    "dmcontrol/cartpole-swingup, SAC with MLR": tiny_cartpole,
    "atari/breakout, Rainbow with MLR": tiny_breakout,
}


def kills(count: int, seed: int = 0) -> dict[str, Counter[str]]:
    """So many signals in all, ten to a run, compared with the twin of each: signals and differences by recipe."""
    done = {name: Counter[str]() for name in KILLED}
    with tempfile.TemporaryDirectory(dir=_memory()) as place:
        twins = {
            name: trained(Path(place, str(number)), make())[0] for number, (name, make) in enumerate(KILLED.items())
        }
        number = 0
        while sum(counts.total() - counts["runs"] - counts["differences"] for counts in done.values()) < count:
            name, chance = list(KILLED)[number % len(KILLED)], random.Random(f"{seed} {number}")
            _kill_ten_times(Path(place, "run"), twins[name], chance, done[name])
            shutil.rmtree(Path(place, "run"))
            number += 1
            print({name: dict(counts) for name, counts in done.items()}, flush=True)
    return done


def _kill_ten_times(path: Path, whole: Run, chance: random.Random, done: Counter[str]) -> None:
    recipe = whole.recipe
    last = recipe.frames // recipe.env.action_repeat
    for at in sorted(chance.sample(range(last), 10)):
        trainer = Trainer(path, recipe)
        trainer.until(at)
        time.sleep(chance.uniform(0, 0.02))
        number = chance.choice(SIGNALS)
        trainer.end(number)
        done[signal.Signals(number).name] += 1
    run, _ = trained(path, recipe, Silent())
    same = events(run) == events(whole) and _same_end(run, whole)
    done["runs"] += 1
    done["differences"] += not same


def _same_end(run: Run, whole: Run) -> bool:
    if run.recipe.replay.storage == "disk":
        return same_end(run, whole)
    both = [one.restore() or {} for one in (run, whole)]
    return all(torch.equal(both[0]["replay"][key], both[1]["replay"][key]) for key in ("frames", "first", "reward"))


def _memory() -> str | None:
    """A folder in memory, where a sync costs nothing."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["kills", "sequences"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found: Any = {"kills": kills, "sequences": sequences}[asked.what](asked.count, asked.seed)
    print(json.dumps(found, indent=2))
