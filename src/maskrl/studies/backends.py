"""Where the runs of a sweep are made: processes on this machine, or tasks of a Ray cluster.

Both start a run with the same function, `attempt`, and share out the same needs: cores, memory and GPUs.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from maskrl.cost.forecast import process_memory, size, takes_of
from maskrl.cost.operations import blank_agent, spaces_of
from maskrl.envs.base import require_extra
from maskrl.machine import cores_allowed, free_memory
from maskrl.recipes.schema import Recipe, as_json
from maskrl.runs.directory import RunFiles, lock
from maskrl.studies.jobs import Job
from maskrl.studies.sweep import BUSY, Backend, SweepError, log_of

LESS_MEMORY = "Set replay.capacity or agent.batch_size lower, or use replay.storage=disk."
START_RAY = "Start one with `ray start --head`, or use --address local for one on this machine alone."
REACHABLE = 5.0  # seconds that an address may take to answer

# ── One run ───────────────────────────────────────────────────────────────────────────────────────────────────────────

# `maskrl`, which also ends when its parent does.
CHILD = "from maskrl.studies.backends import heed_parent; heed_parent(); from maskrl.cli import main; main()"


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
    """Begin or continue a run in a process of its own, and return its exit code; BUSY if another process makes it.

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
            env={**os.environ, **_settings(job.recipe), **(environment or {})},
            cwd=here if here is not None and here.is_dir() else None,
            start_new_session=True,  # Ctrl-C in a terminal is for us, and we tell them
        )
        code = _followed(child, stop)
        if code == 2 and run.is_locked:  # another process was faster
            return BUSY
        if not stop:
            log.with_suffix(".code").write_text(str(code))
        return code


@contextmanager
def _claimed(path: Path) -> Iterator[bool]:
    """Whether this process may start a run. The run's own lock comes later, when its process has woken up."""
    with path.open("a") as file:
        try:
            lock(file)
        except BlockingIOError:
            yield False
        else:
            yield True


def _settings(recipe: Recipe) -> dict[str, str]:
    """Environment variables: threads of all that computes beside torch, and a trace of a segmentation fault."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS") if recipe.threads is not None else ()
    return {name: str(recipe.threads) for name in names} | {"PYTHONFAULTHANDLER": "1"}


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


# ── What a run takes ──────────────────────────────────────────────────────────────────────────────────────────────────


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
    """What a run takes while it runs, or what a machine has."""

    cores: float
    memory: float  # bytes
    gpus: float  # of a run, a share of one; 0: none

    def within(self, room: "Needs") -> bool:
        return all(need <= there + 1e-9 for need, there in zip(self, room, strict=True))  # shares are rounded

    def __str__(self) -> str:
        words = [f"{self.cores:.0f} CPU", size(int(self.memory))]
        return " and ".join([*words, f"{self.gpus:.2g} GPU"] if self.gpus else words)


def needs_of(recipe: Recipe, memory: int, *, gpus: bool, runs_per_gpu: int = 1) -> Needs:
    """`gpus`: whether there are any."""
    cores = (recipe.threads or cores_allowed()) + recipe.overlap  # whose environment has a process of its own
    wants = recipe.device == "cuda" or (recipe.device == "auto" and gpus)
    return Needs(cores, memory, 1 / runs_per_gpu if wants else 0.0)


def this_machine() -> Needs:
    """What is free here. Where the system does not tell how much memory is, it does not count."""
    memory = free_memory()
    return Needs(cores_allowed(), sys.maxsize if memory is None else memory, len(_gpus()))


def _gpus() -> list[str]:
    """The names of those that we may use, as a child is told which is its own."""
    allowed = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (allowed or [str(number) for number in range(torch.cuda.device_count())])[: torch.cuda.device_count()]


def largest(needs: Iterable[Needs]) -> Needs:
    """Of each kind, the most that any run takes."""
    return Needs(*map(max, zip(*needs, strict=True)))


def at_once(need: Needs, room: Needs) -> int:
    """How many runs that take this much go on at a time. One always does: with too few cores it is only slow."""
    return max(1, min(int((there + 1e-9) // amount) for amount, there in zip(need, room, strict=True) if amount))


# ── Backends ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _needs(jobs: Sequence[Job], sizes: Mapping[str, Size], **options: Any) -> dict[str, Needs]:
    return {job.directory: needs_of(job.recipe, sizes[job.directory].memory, **options) for job in jobs}


@contextmanager
def local(
    out: Path, jobs: Sequence[Job], sizes: Mapping[str, Size], *, workers: int | None = None, runs_per_gpu: int = 1
) -> Iterator[Backend]:
    """Processes on this machine, as many as its cores, memory and GPUs have room for."""
    here, told = this_machine(), list[int]()
    needs = _needs(jobs, sizes, gpus=here.gpus > 0, runs_per_gpu=runs_per_gpu)
    _require_here(needs, here)
    load = dict.fromkeys(_gpus(), 0.0)

    def fits(job: Job, active: Collection[Job]) -> bool:
        together = Needs(*map(sum, zip(*(needs[other.directory] for other in (job, *active)), strict=True)))
        return not active or (len(active) < (workers or len(needs)) and together.within(here))

    def submit(job: Job) -> "Future[int | None]":
        share = needs[job.directory].gpus
        if not share:
            return pool.submit(attempt, job, out, told)
        device = min(load, key=lambda name: load[name])
        load[device] += share
        future = pool.submit(attempt, job, out, told, {"CUDA_VISIBLE_DEVICES": device})
        future.add_done_callback(lambda _: load.update({device: load[device] - share}))
        return future

    def tell(stop: Sequence[int]) -> None:
        told[:] = stop[:1]  # a scheduler may say it twice

    with ThreadPoolExecutor(max_workers=max(1, int(here.cores))) as pool:  # a thread waits for each
        try:
            yield Backend(_room(needs, here, workers), submit, fits, tell)
        except BaseException as error:  # a second Ctrl-C is in a hurry
            told.extend([signal.SIGINT] * (2 if isinstance(error, KeyboardInterrupt) else 1))
            raise


def _require_here(needs: Mapping[str, Needs], here: Needs) -> None:
    """Refuse what never fits. A run that wants more cores than there are is only slow."""
    for directory, need in needs.items():
        if need.gpus and not here.gpus:
            raise SweepError("device=cuda, but torch sees no CUDA device here. Use device=cpu, or another backend.")
        if need.memory > here.memory:
            takes, free = size(int(need.memory)), size(int(here.memory))
            raise SweepError(f"{directory} takes {takes} of memory; {free} is free here. {LESS_MEMORY}")


def _room(needs: Mapping[str, Needs], here: Needs, workers: int | None) -> str:
    """How many of the largest runs go on at a time, in words."""
    if not needs:
        return "local"
    each = largest(needs.values())
    fit = at_once(each, here)
    free = "" if here.memory == sys.maxsize else f", {size(int(here.memory))} free"
    return f"local, {min(fit, workers or fit)} at a time ({here.cores} cores{free}); a run takes {each}"


@contextmanager
def on_ray(
    out: Path, jobs: Sequence[Job], sizes: Mapping[str, Size], *, address: str, runs_per_gpu: int = 1
) -> Iterator[Backend]:
    """Tasks of Ray, which finds a node for each, and another if that one is lost: the run goes on from its checkpoint.

    `out` is a folder that all nodes share. `address`: auto, HOST:PORT, ray://HOST:PORT, or local: a Ray that lives as long as we.
    """
    ray = _connected(address)
    try:
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        nodes = [Needs(*(node.get(name, 0.0) for name in ("CPU", "memory", "GPU"))) for node in alive]
        gpus = any(node.gpus for node in nodes)
        needs = _needs(jobs, sizes, gpus=gpus, runs_per_gpu=runs_per_gpu)
        _require_room(needs, nodes)
        refs: list[Any] = []

        def submit(job: Job) -> "Future[int | None]":
            need = needs[job.directory]
            task = ray.remote(attempt).options(
                name=job.directory,
                num_cpus=need.cores,
                num_gpus=need.gpus,
                memory=need.memory,
                max_retries=-1,  # a lost node is no failure of the run
                scheduling_strategy="SPREAD",
            )
            refs.append(task.remote(job, out, (), None, Path.cwd()))
            return refs[-1].future()  # type: ignore[no-any-return]

        def cancel(_: Sequence[int]) -> None:
            while refs:
                ray.cancel(refs.pop())  # interrupts `attempt`, which has its run save itself

        cores = sum(node.cores for node in nodes)
        takes = f"; a run takes {largest(needs.values())}" if needs else ""
        words = f"Ray, address {address}: nodes {len(nodes)}, {cores:.0f} CPU{takes}"
        yield Backend(words, submit, lambda job, active: True, cancel)
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:
    """Ray, once it is connected."""
    require_extra("ray", "ray")
    _require_reachable(address)
    # 40 seconds, not minutes, where something else than Ray answers
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    import ray

    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "object_store_memory": 100_000_000}
    try:
        ray.init(address, **settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SweepError(f"No Ray at {address}: {error}\n{START_RAY}") from error
    return ray


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
        question = "Is this the head node's address?"
        raise SweepError(f"Nobody answers at {where}: {error}. {question}\n{START_RAY}") from error


def _require_room(needs: Mapping[str, Needs], nodes: Sequence[Needs]) -> None:
    """Ray would wait for ever for a node that is large enough."""
    for directory, need in needs.items():
        if not any(need.within(node) for node in nodes):
            there = ", ".join(map(str, sorted(nodes, key=lambda node: -node.memory)[:3]))
            raise SweepError(
                f"No node of the cluster can run {directory}, which takes {need}. There are {len(nodes)}: {there}. "
                f"{LESS_MEMORY} threads=1 takes fewer cores."
            )
