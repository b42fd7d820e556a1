"""Sweeps of runs that take a second, on the real command line."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from maskrl.runs.directory import RunFiles

# 120 decisions, the first 60 of them random, of networks that are hardly there. Not all of it is for both toys.
TINY = [
    "budget.frames=120",
    "evaluation.every=60",
    "evaluation.episodes=1",
    "checkpoint_every=30",
    "agent.warmup_decisions=60",
    "agent.batch_size=8",
    "agent.hidden=16",
    "agent.encoder.latent_dim=10",
    "objective.clip_length=4",
    "objective.mask.cube=2,8,8",
]


def maskrl(*words: str, **environment: str) -> "subprocess.Popen[str]":
    """The command in a process of its own, whose words, errors included, can be read."""
    return subprocess.Popen(
        [sys.executable, "-m", "maskrl", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(process: int) -> bool:
    """Neither gone nor only waiting to be counted."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def trainers(out: Path) -> dict[int, Path]:
    """The living processes that train a run and have saved something, by what they have written into its lock."""
    found = {}
    for lock in out.glob("toy/**/lock"):
        words = lock.read_text().split()
        with suppress(OSError, IndexError):
            parent(int(words[1]))
            if any((lock.parent / "checkpoints").glob("*.safetensors")):
                found[int(words[1])] = lock.parent
    return found


def first_trainer(out: Path, sweep: "subprocess.Popen[str]", where: Callable[[int], bool]) -> tuple[int, Path]:
    """Wait for a process that trains, of those for whose parent `where` holds."""
    while True:
        for process, path in trainers(out).items():
            with suppress(OSError):
                if where(parent(process)) and RunFiles(path).is_locked:
                    return process, path
        assert sweep.poll() is None, sweep.communicate()[0]
        time.sleep(0.02)
