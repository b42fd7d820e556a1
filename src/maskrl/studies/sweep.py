"""Many runs: which of them are done, and how the others get done, here or on a cluster.

sweep.json     what the sweep is: its runs, and how it was asked for
logs/          what every run printed, and how its newest try ended
<run>/...      the runs: see `maskrl.runs.directory`

Every backend starts a run with the same function, `attempt`. All that is known of a run is read from its directory, so a sweep
may be started again, twice at the same time, or looked at from elsewhere.
"""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from maskrl.cost.forecast import process_memory, size, takes_of
from maskrl.cost.operations import blank_agent, spaces_of
from maskrl.envs.base import require_extra
from maskrl.machine import cores_allowed, free_memory
from maskrl.recipes.schema import Method, Profile, Recipe, as_json
from maskrl.runs.directory import RunFiles, lock

State = Literal["waiting", "running", "interrupted", "done", "failed"]

# Exit codes of a run that was told to stop: SIGHUP, SIGINT and SIGTERM. Negative: so early that there was nothing to save.
STOPPED = (128 + 1, 128 + 2, 128 + 15, -1, -2, -15)
BUSY = None  # what `attempt` returns of a run that somebody else is at
PAUSE = 2.0  # seconds until a run is tried again


class SweepError(Exception):
    """Something about a sweep that its user can put right; the message says how."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep: what it is, how one types it, and where it lives."""

    name: str  # of the recipe, dmcontrol/walker-walk
    overrides: tuple[str, ...]
    profile: Profile
    method: Method
    recipe: Recipe  # what all of that comes to
    directory: str  # within the sweep's

    def command(self, out: Path) -> list[str]:
        """What `maskrl` is told. The profile is always in it: what `auto` means depends on the machine."""
        words = ["train", self.name, *self.overrides, "--profile", self.profile]
        words += ["--method", self.method] if self.method != "mlr" else []
        return [*words, "--run-dir", str(out / self.directory)]


# ── What a sweep is ───────────────────────────────────────────────────────────────────────────────────────────────────


class Entry(NamedTuple):
    """A run in `sweep.json`."""

    directory: str
    frames: int  # its budget
    command: str


def read_manifest(out: Path) -> tuple[dict[str, Any], list[Entry]]:
    """How a sweep was asked for, and its runs."""
    file = out / "sweep.json"
    try:
        found = json.loads(file.read_text())
        return dict(found["asked"]), [Entry(**entry) for entry in found["runs"]]
    except FileNotFoundError:
        raise SweepError(f"{out} holds no sweep: there is no sweep.json in it. `maskrl sweep` makes one.") from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise SweepError(f"{file} cannot be read: {error}. Put it back, or choose another --out.") from error


def write_manifest(out: Path, asked: Mapping[str, Any], jobs: Sequence[Job], *, extend: bool = False) -> list[Entry]:
    """Make `out` the folder of this sweep, or see that it is; of two who do so at the same time, one is first.

    `extend`: a sweep that is there may also be a part of this one.
    """
    entries = [
        Entry(job.directory, job.recipe.frames, shlex.join(["maskrl", *job.command(Path("DIR"))])) for job in jobs
    ]
    text = json.dumps({"asked": dict(asked), "runs": [entry._asdict() for entry in entries]}, indent=2)
    file, aside = out / "sweep.json", out / f"sweep.json.{socket.gethostname()}-{os.getpid()}.new"
    try:
        out.mkdir(parents=True, exist_ok=True)
        # In this order: who has seen a run of a sweep also sees that there is one.
        if any(not path.name.startswith("sweep.json") for path in out.iterdir()) and not file.exists():
            raise SweepError(f"{out} is not empty and holds no sweep. Choose another --out.")
        aside.write_text(text)
        try:
            os.link(aside, file)  # unlike a rename, this leaves what is there
        except OSError:  # there is one already, or it is a file system without links
            if file.exists():
                _compare(out, asked, entries, extend=extend)
            if extend or not file.exists():
                aside.replace(file)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise SweepError(f"Cannot write to {out}: {error.strerror}. Choose another --out.") from error
    return entries


def _compare(out: Path, asked: Mapping[str, Any], entries: Sequence[Entry], *, extend: bool) -> None:
    """Refuse a folder of another sweep. The name of a run's directory has the digest of its recipe."""
    before, there = read_manifest(out)
    old, new = ([entry.directory for entry in some] for some in (there, entries))
    gone, added = [name for name in old if name not in new], [name for name in new if name not in old]
    if not gone and (extend or not added):
        return
    lines = [f"  {key}: {before.get(key)} -> {asked[key]}" for key in asked if before.get(key) != asked[key]]
    for what, some in (("only there", gone), ("only here", added)):
        if some:
            lines.append(f"  {what}: {len(some)} of {len(old if some is gone else new)} runs, such as {some[0]}")
    advice = "Choose another --out" + (", or --extend to add these runs to it." if not gone else ".")
    raise SweepError("\n".join([f"{out} holds another sweep. There and here:", *lines, advice]))


# ── Where the runs are ────────────────────────────────────────────────────────────────────────────────────────────────


class Look(NamedTuple):
    """A run as its directory has it."""

    directory: str
    state: State
    frames: int
    budget: int
    seconds: float  # of training
    score: float | None  # of the newest evaluation
    why: str = ""  # it failed


def look(out: Path, entry: Entry) -> Look:
    """What there is to know of a run, whoever runs it."""
    path, outcome = out / entry.directory, _outcome(out, entry.directory)
    run = RunFiles(path)
    status = run.status if (path / "recipe.json").exists() else "new"
    state: State
    if status == "done":
        state = "done"
    elif run.is_locked:
        state = "running"
    elif status == "failed" or (outcome is not None and outcome not in (0, *STOPPED)):
        state = "failed"
    else:
        state = "waiting" if status == "new" else "interrupted"
    frames, seconds, score = 0, 0.0, None
    for event in run.events():
        frames, seconds = max(frames, event["frames"]), max(seconds, event["seconds"])
        score = event["score"] if event["kind"] == "evaluation" else score
    why = (run.why if status == "failed" else f"ended by {_ending(outcome)}") if state == "failed" else ""
    return Look(entry.directory, state, frames, entry.frames, seconds, score, why)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def log_of(out: Path, directory: str) -> Path:
    return out / "logs" / f"{directory}.txt"


def tail(out: Path, directory: str, lines: int = 15) -> list[str]:
    """The last lines of what a run has printed."""
    with suppress(OSError):
        return log_of(out, directory).read_text(errors="replace").splitlines()[-lines:]
    return []


def _outcome(out: Path, directory: str) -> int | None:
    """The exit code of the newest try; None while there is none, or it goes on."""
    with suppress(OSError, ValueError):
        return int(log_of(out, directory).with_suffix(".code").read_text())
    return None


def seconds_left(looks: Iterable[Look], slots: int) -> float | None:
    """How long the rest will take with so many runs at a time; None if nothing has run long enough to tell.

    A run is taken to go on as fast as it has, or as others of its task and method, or as all.
    """
    looks = list(looks)
    spent: dict[str, tuple[float, int]] = {}
    for one in looks:
        for kind in (one.directory, _kind(one), ""):
            seconds, frames = spent.get(kind, (0.0, 0))
            spent[kind] = (seconds + one.seconds, frames + one.frames) if one.frames else (seconds, frames)
    if not spent.get("", (0, 0))[1]:
        return None

    def left(one: Look) -> float:
        seconds, frames = next(found for kind in (one.directory, _kind(one), "") if (found := spent[kind])[1])
        return (one.budget - one.frames) * seconds / frames

    rest = [left(one) for one in looks if one.state not in ("done", "failed")]
    return max([sum(rest) / max(1, slots), *rest], default=0.0)


def _kind(one: Look) -> str:
    return one.directory.rpartition("/")[0]


# ── One run ───────────────────────────────────────────────────────────────────────────────────────────────────────────

# `maskrl` with one more ear.
CHILD = "from maskrl.studies.sweep import heed_parent; heed_parent(); from maskrl.cli import main; main()"


def heed_parent() -> None:
    """Stop this process as SIGTERM does, saved, once standard input is closed: by its parent, or by its parent's end."""

    def listen() -> None:
        with suppress(OSError):
            while os.read(0, 1024):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()


def attempt(
    job: Job,
    out: Path,
    stop: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    here: Path | None = None,
) -> int | None:
    """Begin or continue a run in a process of its own, and return its exit code; BUSY if somebody else is at it.

    Once there is something in `stop`, the run saves itself and ends; with a second entry it just ends. `here`: the folder in which
    the sweep was started, from which paths in a recipe are meant.
    """
    run, log = RunFiles(out / job.directory), log_of(out, job.directory)
    log.parent.mkdir(parents=True, exist_ok=True)
    with _claimed(log.with_suffix(".lock")) as mine, log.open("a") as file:
        if not mine or run.is_locked:
            return BUSY
        log.with_suffix(".code").unlink(missing_ok=True)
        words = job.command(out)
        print(f"\n$ {shlex.join(['maskrl', *words])}", file=file, flush=True)
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, *words],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_threads(job), **(environment or {})},
            cwd=here if here is not None and here.is_dir() else None,
            start_new_session=True,  # Ctrl-C in a terminal is for us, and we tell them
        )
        code = _followed(child, stop)
        if code == 2 and run.is_locked:  # somebody was faster
            return BUSY
        if not stop:
            log.with_suffix(".code").write_text(str(code))
        return code


@contextmanager
def _claimed(path: Path) -> Iterator[bool]:
    """Whether we are the one who may start a run. The run's own lock comes later, when its process has woken up."""
    with path.open("a") as file:
        try:
            lock(file)
        except BlockingIOError:
            yield False
        else:
            yield True


def _threads(job: Job) -> dict[str, str]:
    """Torch has what its recipe says; this is for all else that computes, and for a segmentation fault to leave its trace."""
    if job.recipe.threads is None:
        return {"PYTHONFAULTHANDLER": "1"}
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {name: str(job.recipe.threads) for name in names} | {"PYTHONFAULTHANDLER": "1"}


def _followed(child: "subprocess.Popen[bytes]", stop: Sequence[int]) -> int:
    assert child.stdin is not None
    try:
        while True:
            try:
                return child.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                if stop:
                    child.stdin.close()
                if len(stop) > 1:
                    child.kill()
    finally:  # also if Ray interrupts us
        child.stdin.close()
        child.wait()


# ── All of them ───────────────────────────────────────────────────────────────────────────────────────────────────────

Submit = Callable[[Job], "Future[int | None]"]
Tell = Callable[[str], None]


class Backend(NamedTuple):
    """Where runs are made."""

    words: str
    submit: Submit
    fits: Callable[[Job, Collection[Job]], bool]  # whether a run may begin beside those that are being made
    cancel: Callable[[Sequence[int]], None]  # told of the signals that came: have all runs save themselves and end


def drive(
    jobs: Sequence[Job],
    out: Path,
    backend: Backend,
    *,
    retries: int,
    stop: Sequence[int],
    tell: Tell,
    draw: Callable[[], None],
) -> dict[str, str]:
    """Make all runs that are not done, and return those that cannot be made, with the reason.

    A run that fails is tried again from its checkpoint. One that refuses to start (exit code 2) would refuse again. A run that
    another sweep is making is left to it, and looked at again later.
    """
    waiting, active = list(jobs), dict[Future[int | None], Job]()
    failures, given_up, resting = Counter[str](), dict[str, str](), dict[str, float]()
    while active or (waiting and not stop):
        for job in [] if stop else list(waiting):
            if time.monotonic() >= resting.get(job.directory, 0.0) and backend.fits(job, active.values()):
                waiting.remove(job)
                if RunFiles(out / job.directory).status != "done":
                    active[backend.submit(job)] = job
        if stop:
            backend.cancel(stop)
        draw()
        if not active:
            time.sleep(0.3)  # all that is left is being made elsewhere
        for future in wait(active, timeout=0.3, return_when=FIRST_COMPLETED).done:
            job = active.pop(future)
            code, words = _result(future)
            resting[job.directory] = time.monotonic() + PAUSE
            if code == 0 or stop:
                continue
            if code is BUSY and not words:
                waiting.append(job)
                continue
            failures[job.directory] += 1
            if code != 2 and failures[job.directory] <= retries:
                tell(f"{job.directory}: {words}; trying again ({failures[job.directory]} of {retries})")
                waiting.append(job)
            else:
                given_up[job.directory] = words
    return given_up


def _result(future: "Future[int | None]") -> tuple[int | None, str]:
    """The exit code, and how to say it; an error of the backend itself has no code."""
    try:
        code = future.result()
    except Exception as error:
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    return code, "" if code is BUSY else f"ended by {_ending(code)}"


# ── Backends ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Size(NamedTuple):
    """Bytes that a run takes: of memory while it runs, and of disk in the end."""

    memory: int
    disk: int


def sizes_of(jobs: Sequence[Job]) -> dict[str, Size]:
    """Directory → size. Seeds are alike, and so is what does not change the size of anything: one of each kind is built."""
    kinds: dict[str, Size] = {}
    sizes: dict[str, Size] = {}
    for job in jobs:
        alike = replace(job.recipe, seed=0, name="")
        kind = re.sub(r'"(task|learning_rate|weight|momentum|ratio)": [^,]*', "", as_json(alike))
        if kind not in kinds:
            kinds[kind] = _size(job.recipe)
        sizes[job.directory] = kinds[kind]
    return sizes


def _size(recipe: Recipe) -> Size:
    spaces = spaces_of(recipe)
    agent = blank_agent(recipe, spaces)
    takes = takes_of(recipe, spaces, agent)
    return Size(takes.memory + process_memory(recipe, spaces, agent), takes.disk)


class Needs(NamedTuple):
    """What a run takes while it runs."""

    cores: int
    memory: int  # bytes
    gpu: float  # share of one; 0: none


def needs_of(job: Job, memory: int, *, gpus: bool, runs_per_gpu: int) -> Needs:
    """`gpus`: whether there are any."""
    device = job.recipe.device
    wants = device == "cuda" or (device == "auto" and gpus)
    cores = (job.recipe.threads or cores_allowed()) + job.recipe.overlap  # whose environment has a process of its own
    return Needs(cores, memory, 1 / runs_per_gpu if wants else 0.0)


@contextmanager
def local(
    out: Path,
    jobs: Sequence[Job],
    sizes: Mapping[str, Size],
    *,
    workers: int | None = None,
    runs_per_gpu: int = 1,
) -> Iterator[Backend]:
    """Processes on this machine, as many as its cores, memory and GPUs have room for."""
    cores, memory, told = cores_allowed(), free_memory(), list[int]()
    gpus = _gpus()
    if not gpus and any(job.recipe.device == "cuda" for job in jobs):
        raise SweepError("device=cuda, but torch sees no CUDA device here. Use device=cpu, or another backend.")
    needs = {
        job.directory: needs_of(job, sizes[job.directory].memory, gpus=bool(gpus), runs_per_gpu=runs_per_gpu)
        for job in jobs
    }
    for directory, need in needs.items():
        if memory is not None and need.memory > memory:
            raise SweepError(
                f"{directory} takes {size(need.memory)} of memory; {size(memory)} is free here. {LESS_MEMORY}"
            )
    load = dict.fromkeys(gpus, 0.0)

    def fits(job: Job, active: Collection[Job]) -> bool:
        both = [needs[other.directory] for other in (job, *active)]
        return not active or (
            len(active) < (workers or len(needs))
            and sum(need.cores for need in both) <= cores
            and (memory is None or sum(need.memory for need in both) <= memory)
            and (not both[0].gpu or min(load.values(), default=0.0) + both[0].gpu <= 1)
        )

    def submit(job: Job) -> "Future[int | None]":
        share = needs[job.directory].gpu
        device = min(load, key=lambda name: load[name]) if share and load else None
        if device is None:
            return pool.submit(attempt, job, out, told)
        load[device] += share
        future = pool.submit(attempt, job, out, told, {"CUDA_VISIBLE_DEVICES": device})
        future.add_done_callback(lambda _: load.update({device: load[device] - share}))
        return future

    def tell(stop: Sequence[int]) -> None:
        told[:] = stop[:1]  # a scheduler may say it twice

    with ThreadPoolExecutor(max_workers=max(1, cores)) as pool:  # a thread waits for each
        try:
            at_once = min(workers or cores, len(gpus) * runs_per_gpu or cores)
            yield Backend(_room(needs, cores, memory, at_once), submit, fits, tell)
        except BaseException as error:  # a second Ctrl-C is in a hurry
            told.extend([signal.SIGINT] * (2 if isinstance(error, KeyboardInterrupt) else 1))
            raise


def _gpus() -> list[str]:
    """The names of those that we may use, as a child is told which is its own."""
    allowed = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (allowed or [str(number) for number in range(torch.cuda.device_count())])[: torch.cuda.device_count()]


def _room(needs: Mapping[str, Needs], cores: int, memory: int | None, at_most: int) -> str:
    """How many of the largest runs go on at a time, in words."""
    if not needs:
        return "local"
    largest = _largest(needs)
    at_once = min(
        at_most, max(1, cores // largest.cores), cores if memory is None else max(1, memory // largest.memory)
    )
    free = "" if memory is None else f", {size(memory)} free"
    return f"local, {at_once} at a time ({cores} cores{free}); a run takes {_resources(_asked(largest))}"


def _largest(needs: Mapping[str, Needs]) -> Needs:
    """Of each kind, the most that any run takes."""
    return Needs(*(max(amounts) for amounts in zip(*needs.values(), strict=True)))


LESS_MEMORY = "Set replay.capacity or agent.batch_size lower, or use replay.storage=disk."
REACHABLE = 5.0  # seconds that an address may take to answer


@contextmanager
def on_ray(
    out: Path, jobs: Sequence[Job], sizes: Mapping[str, Size], *, address: str, runs_per_gpu: int = 1
) -> Iterator[Backend]:
    """Tasks of Ray, which finds a node for each, and another if that one is lost: the run goes on from its checkpoint.

    `out` is a folder that all nodes share. `address`: auto, HOST:PORT, ray://HOST:PORT, or local: a Ray that lives as long as we.
    """
    require_extra("ray", "ray")
    _require_reachable(address)
    os.environ.setdefault(
        "RAY_NUM_REDIS_GET_RETRIES", "1"
    )  # 40 seconds, not minutes, where something else than Ray answers
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        here: dict[str, Any] = {
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "object_store_memory": 100_000_000,
        }
        ray.init(address, **quiet, **here)
    else:
        try:
            ray.init(address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise SweepError(f"No Ray at {address}: {error}\n{START_RAY}") from error
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        gpus = any(node.get("GPU") for node in nodes)
        needs = {
            job.directory: needs_of(job, sizes[job.directory].memory, gpus=gpus, runs_per_gpu=runs_per_gpu)
            for job in jobs
        }
        _require_room(needs, nodes)
        refs: list[Any] = []

        def submit(job: Job) -> "Future[int | None]":
            need = needs[job.directory]
            task: Any = ray.remote(attempt).options(
                name=job.directory,
                num_cpus=need.cores,
                num_gpus=need.gpu,
                memory=need.memory,
                max_retries=-1,  # a lost node is no failure of the run
                scheduling_strategy="SPREAD",
            )
            refs.append(task.remote(job, out, (), None, Path.cwd()))
            return refs[-1].future()  # type: ignore[no-any-return]

        def cancel(_: Sequence[int]) -> None:
            while refs:
                ray.cancel(refs.pop())  # interrupts `attempt`, which has its run save itself

        cores = sum(node.get("CPU", 0.0) for node in nodes)
        takes = f"; a run takes {_resources(_asked(_largest(needs)))}" if needs else ""
        words = f"Ray, address {address}: nodes {len(nodes)}, {cores:.0f} CPU{takes}"
        yield Backend(words, submit, lambda job, active: True, cancel)
    finally:
        ray.shutdown()


START_RAY = "Start one with `ray start --head`, or use --address local for one on this machine alone."


def _require_reachable(address: str) -> None:
    """Find out in seconds what would take Ray minutes."""
    where = address.removeprefix("ray://")
    if where in ("auto", "local"):
        return
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal():
        raise SweepError(f"--address {address}: expected auto, local, HOST:PORT or ray://HOST:PORT.")
    try:
        socket.create_connection((host, int(port)), timeout=REACHABLE).close()
    except (OSError, OverflowError) as error:
        raise SweepError(
            f"Nobody answers at {where}: {error}. Is this the head node's address?\n{START_RAY}"
        ) from error


def _require_room(needs: Mapping[str, Needs], nodes: Sequence[Mapping[str, float]]) -> None:
    """Ray would wait for ever for a node that is large enough."""
    for directory, need in needs.items():
        asked = _asked(need)
        if not any(all(node.get(name, 0.0) >= amount for name, amount in asked.items()) for node in nodes):
            largest = ", ".join(
                _resources(node) for node in sorted(nodes, key=lambda node: -node.get("memory", 0.0))[:3]
            )
            raise SweepError(
                f"No node of the cluster can run {directory}, which takes {_resources(asked)}. There are {len(nodes)}: {largest}. "
                f"{LESS_MEMORY} threads=1 takes fewer cores."
            )


def _asked(need: Needs) -> dict[str, float]:
    """In Ray's words."""
    return {"CPU": float(need.cores), "memory": float(need.memory), "GPU": need.gpu}


def _resources(amounts: Mapping[str, float]) -> str:
    words = [f"{amounts.get('CPU', 0.0):.0f} CPU", size(int(amounts.get("memory", 0)))]
    return " and ".join([*words, f"{amounts['GPU']:.2g} GPU"] if amounts.get("GPU") else words)
