"""Sweeps of many runs: their state, and the loop that executes them.

sweep.json     the sweep's runs and arguments
logs/          the output of every run, and the exit code of its newest attempt
<run>/...      the runs: see `maskrl.runs.directory`

The state of a run is read from its directory, so a sweep may be started again, started twice at the same time, or inspected from
another machine. A backend executes the runs: see `maskrl.studies.backends`.
"""

import json
import os
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from maskrl.files import open_file, read_bytes, status_of, write_whole
from maskrl.runs.directory import RunError, RunFiles
from maskrl.studies.jobs import Job

State = Literal["waiting", "running", "interrupted", "done", "failed"]

# Exit codes of a run stopped by SIGHUP, SIGINT or SIGTERM. Negative: before there was anything to save.
STOPPED = (128 + 1, 128 + 2, 128 + 15, -1, -2, -15)
BUSY = None  # instead of an exit code: another process executes this run
PAUSE = 2.0  # seconds before a retry


class SweepError(Exception):
    """A problem with a sweep that the user can fix; the message says how."""


# ── sweep.json ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Entry(NamedTuple):
    """A run in `sweep.json`."""

    directory: str
    frames: int  # its budget
    command: str


def read_manifest(out: Path) -> tuple[dict[str, Any], list[Entry]]:
    """Read the arguments of a sweep, and its runs."""
    file = out / "sweep.json"
    try:
        found = json.loads(read_bytes(out, file.name))
        entries = [
            Entry(str(entry["directory"]), int(entry["frames"]), str(entry["command"])) for entry in found["runs"]
        ]
        for entry in entries:
            status_of(out, entry.directory, "a directory")  # links of an untrusted sweep are not followed
        return {
            "sweep": str(found["asked"]["sweep"]),
            **{str(key): value for key, value in found["asked"].items()},
        }, entries
    except FileNotFoundError:
        raise SweepError(f"{out} holds no sweep: there is no sweep.json in it. `maskrl sweep` makes one.") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise SweepError(f"{file} cannot be read: {error}. Put it back, or choose another --out.") from error


def write_manifest(out: Path, asked: Mapping[str, Any], jobs: Sequence[Job], *, extend: bool = False) -> list[Entry]:
    """Make `out` the folder of this sweep, or check that it is. `extend`: it may hold a part of this sweep."""
    commands = [shlex.join(["maskrl", *job.command(Path("DIR"))]) for job in jobs]
    entries = [Entry(job.directory, job.recipe.frames, words) for job, words in zip(jobs, commands, strict=True)]
    text = json.dumps({"asked": dict(asked), "runs": [entry._asdict() for entry in entries]}, indent=2)
    file = out / "sweep.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        # In this order, so that a run of a sweep always has a sweep.json.
        others = any(not path.name.startswith("sweep.json") for path in out.iterdir())
        if os.path.lexists(file):
            _require_same(out, asked, [entry.directory for entry in entries], extend=extend)
        elif others:
            raise SweepError(f"{out} is not empty and holds no sweep. Choose another --out.")
        if extend or not os.path.lexists(file):
            write_whole(file, text)
    except OSError as error:
        raise SweepError(f"Cannot write to {out}: {error.strerror}. Choose another --out.") from error
    return entries


def _require_same(out: Path, asked: Mapping[str, Any], new: Sequence[str], *, extend: bool) -> None:
    """Raise SweepError if the folder holds another sweep. The name of a run's directory contains its recipe's digest."""
    before, entries = read_manifest(out)
    old = [entry.directory for entry in entries]
    gone, added = [name for name in old if name not in new], [name for name in new if name not in old]
    if not gone and (extend or not added):
        return
    lines = [f"  {key}: {before.get(key)} -> {asked[key]}" for key in asked if before.get(key) != asked[key]]
    for what, some, every in (("only there", gone, old), ("only here", added, new)):
        lines += [f"  {what}: {len(some)} of {len(every)} runs, such as {name}" for name in some[:1]]
    advice = "Choose another --out" + (", or --extend to add these runs to it." if not gone else ".")
    raise SweepError("\n".join([f"{out} holds another sweep. Stored and requested:", *lines, advice]))


# ── The state of runs ─────────────────────────────────────────────────────────────────────────────────────────────────


class Look(NamedTuple):
    """The state of a run, from its directory."""

    directory: str
    state: State
    frames: int
    budget: int
    seconds: float  # of training
    score: float | None  # of the newest evaluation
    why: str = ""  # the error of a failed run


def look(out: Path, entry: Entry) -> Look:
    """Read the state of a run. A run whose files must not be opened counts as failed."""
    try:
        require_plain(out, entry.directory)
        return _look(out, entry)
    except RunError as error:
        return Look(entry.directory, "failed", 0, entry.frames, 0.0, None, str(error))


def require_plain(out: Path, directory: str) -> None:
    """Raise RunError if links, pipes or devices replace files of a run or its log."""
    status_of(out, directory, "a directory")
    RunFiles(out / directory).require_plain()
    for ending in ("txt", "code", "lock"):
        status_of(out, log_name(directory, ending))


def _look(out: Path, entry: Entry) -> Look:
    run, outcome = RunFiles(out / entry.directory), _outcome(out, entry.directory)
    status = run.status if (run.path / "recipe.json").exists() else "new"
    state: State
    why, frames, seconds, score = "", 0, 0.0, None
    if status == "done":
        state = "done"
    elif run.is_locked:
        state = "running"
    elif status == "failed":
        state, why = "failed", run.why
    elif outcome not in (None, 0, *STOPPED):
        state, why = "failed", ending(outcome)
    else:
        state = "waiting" if status == "new" else "interrupted"
    for event in run.events():
        frames, seconds = max(frames, event["frames"]), max(seconds, event["seconds"])
        score = event["score"] if event["kind"] == "evaluation" else score
    return Look(entry.directory, state, frames, entry.frames, seconds, score, why)


def ending(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
    return f"ended by exit code {code}"


def log_of(out: Path, directory: str) -> Path:
    return out / log_name(directory)


def log_name(directory: str, ending: str = "txt") -> str:
    """The name of a run's log in the sweep; "code": of its newest exit code; "lock": of the executing process's lock."""
    return f"logs/{directory}.{ending}"


def tail(out: Path, directory: str, lines: int = 15) -> list[str]:
    """The last lines of a run's output."""
    with suppress(OSError), open_file(out, log_name(directory)) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2**16))
        return file.read(2**16).decode("utf-8", "replace").splitlines()[-lines:]
    return []


def _outcome(out: Path, directory: str) -> int | None:
    """The exit code of the newest attempt; None if there is none yet, or while it runs."""
    with suppress(OSError, ValueError):
        return int(read_bytes(out, log_name(directory, "code"), most=100))
    return None


def seconds_left(looks: Sequence[Look], slots: int) -> float | None:
    """The seconds left with this many runs at once; None if nothing has run long enough for an estimate.

    Assumes that runs keep their speed, and that runs that have not begun are as fast as the others.
    """
    begun = [one for one in looks if one.frames]
    if not begun:
        return None
    usual = sum(one.seconds for one in begun) / sum(one.frames for one in begun)
    unfinished = [one for one in looks if one.state not in ("done", "failed")]
    rest = [(one.budget - one.frames) * (one.seconds / one.frames if one.frames else usual) for one in unfinished]
    return max([sum(rest) / max(1, slots), *rest], default=0.0)


# ── Execution ─────────────────────────────────────────────────────────────────────────────────────────────────────────


Tell = Callable[[str], None]
Watch = Callable[[], None]  # called a few times a second


class Backend(NamedTuple):
    """Executes runs."""

    words: str
    submit: Callable[[Job], "Future[int | None]"]  # starts or continues a run; gives its exit code, or BUSY
    fits: Callable[[Job, Collection[Job]], bool]  # whether a run fits beside the running ones
    cancel: Callable[[Sequence[int]], None]  # with the signals received: make all runs save themselves and end


def drive(
    jobs: Sequence[Job], out: Path, backend: Backend, *, retries: int, stop: Sequence[int], tell: Tell, watch: Watch
) -> dict[str, str]:
    """Execute all runs that are not done; return the failed ones with their reasons.

    A failed run is tried again from its checkpoint, but not one that refuses to start (exit code 2), which would refuse again. A
    run that another sweep executes is left to it, and checked again later.
    """
    waiting, active = list(jobs), dict[Future[int | None], Job]()
    failures, given_up, resting = Counter[str](), dict[str, str](), dict[str, float]()
    while active or (waiting and not stop):
        if stop:
            backend.cancel(stop)
        for job in [] if stop else list(waiting):
            if time.monotonic() >= resting.get(job.directory, 0.0) and backend.fits(job, active.values()):
                waiting.remove(job)
                if RunFiles(out / job.directory).status != "done":  # another sweep may have finished it meanwhile
                    active[backend.submit(job)] = job
        watch()
        if not active:
            time.sleep(0.3)  # other sweeps execute all remaining runs
        for future in wait(active, timeout=0.3, return_when=FIRST_COMPLETED).done:
            job = active.pop(future)
            resting[job.directory] = time.monotonic() + PAUSE
            code, failure = _result(future)
            if stop or code == 0:
                continue
            if failure:
                failures[job.directory] += 1
                if code == 2 or failures[job.directory] > retries:
                    given_up[job.directory] = failure
                    continue
                tell(f"{job.directory}: {failure}; trying again ({failures[job.directory]} of {retries})")
            waiting.append(job)
    return given_up


def _result(future: "Future[int | None]") -> tuple[int | None, str]:
    """The exit code, and the failure in words. An error of the backend itself has no code."""
    try:
        code = future.result()
    except Exception as error:
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    return code, "" if code in (0, BUSY) else ending(code)
