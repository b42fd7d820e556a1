"""Backends that execute the runs of a sweep: processes on this machine, or tasks of a Ray cluster.

Both start a run with the same function, `attempt`, and allocate the same resources: cores, memory and GPUs.
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
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import torch

from maskrl.cost.forecast import blank_agent, takes_of
from maskrl.cost.operations import process_memory, spaces_of
from maskrl.envs.base import require_extra
from maskrl.files import open_file, status_of, write_whole
from maskrl.machine import cores_allowed, free_memory
from maskrl.recipes.schema import Recipe, as_json
from maskrl.runs.directory import RunFiles
from maskrl.runs.lock import claim
from maskrl.runs.threads import threads_of
from maskrl.studies.jobs import Job
from maskrl.studies.sweep import BUSY, Backend, SweepError, log_name, log_of
from maskrl.words import size

TAKE_LESS = (
    "Less memory: lower replay.capacity or agent.batch_size, or set replay.storage=disk. Fewer cores: threads=1. "
    "No GPU: device=cpu."
)
START_RAY = "Start one with `ray start --head`, or use --address local for one on this machine only."
REACHABLE = 5.0  # seconds for an address to answer

# ── One run ───────────────────────────────────────────────────────────────────────────────────────────────────────────

# Runs `maskrl`, and ends when the parent does.
CHILD = "from maskrl.studies.backends import heed_parent; heed_parent(); from maskrl.cli import main; main()"


def heed_parent() -> None:
    """Stop this process like SIGTERM, with its state saved, once its parent ends or closes its standard input."""

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
    """Start or continue a run in a separate process, and return its exit code; BUSY if another process executes it.

    Once `stop` has an entry, the run saves itself and ends; with a second entry it just ends. `here`: the folder in which the sweep
    was started, to which paths in a recipe are relative.
    """
    run, log = RunFiles(out / job.directory), log_of(out, job.directory)
    for folder in (job.directory, str(Path("logs", job.directory).parent)):
        status_of(out, folder, "a directory")  # not a link
    log.parent.mkdir(parents=True, exist_ok=True)
    name = partial(log_name, job.directory)
    with open_file(out, name("lock"), "ab") as locked, open_file(out, name(), "ab") as file:
        try:
            claim(locked)  # the run's own lock is taken later, by its process
        except BlockingIOError:
            return BUSY
        if run.is_locked:
            return BUSY
        (out / name("code")).unlink(missing_ok=True)
        words = job.command(out)
        file.write(f"\n$ {shlex.join(['maskrl', *words])}\n".encode("utf-8", "backslashreplace"))
        file.flush()
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, *words],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_settings(job.recipe), **(environment or {})},
            cwd=here if here is not None and here.is_dir() else None,
            start_new_session=True,  # Ctrl-C in a terminal reaches this process, which stops the others
        )
        code = _followed(child, stop)
        if code == 2 and run.is_locked:  # another process started it first
            return BUSY
        if not stop:
            write_whole(out / name("code"), str(code))
        return code


def _settings(recipe: Recipe) -> dict[str, str]:
    """Environment variables: thread counts of libraries other than torch, and a traceback for segmentation faults."""
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
    finally:  # also if Ray interrupts
        child.stdin.close()
        child.wait()


# ── Resources of a run ────────────────────────────────────────────────────────────────────────────────────────────────


class Size(NamedTuple):
    """The bytes of a run: peak memory, and disk at the end."""

    memory: int
    disk: int


def sizes_of(jobs: Sequence[Job]) -> dict[str, Size]:
    """Directory → size. Builds one agent per kind of run: seeds and other values do not change sizes."""
    kinds: dict[str, Size] = {}
    sizes: dict[str, Size] = {}
    for job in jobs:
        recipe = job.recipe
        alike = as_json(replace(recipe, seed=0, name=""))
        kind = re.sub(r'"(task|learning_rate|weight|momentum|ratio)": [^,]*', "", alike)
        if kind not in kinds:
            spaces = spaces_of(recipe)
            agent = blank_agent(recipe, spaces)
            takes = takes_of(recipe, spaces, agent)
            kinds[kind] = Size(takes.memory + process_memory(recipe, spaces, agent), takes.disk)
        sizes[job.directory] = kinds[kind]
    return sizes


class Needs(NamedTuple):
    """The resources of a running run, or of a machine."""

    cores: float
    memory: float  # bytes
    gpus: float  # for a run, a share of one GPU; 0: none

    def within(self, room: "Needs") -> bool:
        return all(need <= there + 1e-9 for need, there in zip(self, room, strict=True))  # shares are rounded

    def __str__(self) -> str:
        memory = [size(int(self.memory))] if self.memory < sys.maxsize else []
        return " and ".join([f"{self.cores:.0f} CPU", *memory, *([f"{self.gpus:.2g} GPU"] if self.gpus else [])])


def needs_of(recipe: Recipe, memory: int, *, gpus: bool, runs_per_gpu: int = 1) -> Needs:
    """The resources of a run. `gpus`: whether there are any."""
    cores = threads_of(recipe) + recipe.is_apart  # its environment has a separate process
    wants = recipe.device == "cuda" or (recipe.device == "auto" and gpus)
    return Needs(cores, memory, 1 / runs_per_gpu if wants else 0.0)


def this_machine() -> Needs:
    """The free resources of this machine. Memory is unlimited if the system does not report it."""
    memory = free_memory()
    return Needs(cores_allowed(), sys.maxsize if memory is None else memory, len(_gpus()))


def _gpus() -> list[str]:
    """The names of the available GPUs; each child gets its own."""
    allowed = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (allowed or [str(number) for number in range(torch.cuda.device_count())])[: torch.cuda.device_count()]


def largest(needs: Iterable[Needs]) -> Needs:
    """The maximum of each resource over all runs."""
    return Needs(*map(max, zip(*needs, strict=True)))


def at_once(need: Needs, room: Needs) -> int:
    """How many runs of this size fit at once; at least one, because a run with too few cores is only slow."""
    return max(1, min(int((there + 1e-9) // amount) for amount, there in zip(need, room, strict=True) if amount))


# ── Backends ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _needs(
    jobs: Sequence[Job], sizes: Mapping[str, Size], rooms: Sequence[Needs], runs_per_gpu: int, *, slow: bool = False
) -> dict[str, Needs]:
    """Directory → the needs of its run. Raises SweepError for a run that fits nowhere: it would wait forever.

    `slow`: accept a run with fewer cores than it needs, which is only slow.
    """
    gpus, needs = any(room.gpus for room in rooms), {}
    for job in jobs:
        need = needs_of(job.recipe, sizes[job.directory].memory, gpus=gpus, runs_per_gpu=runs_per_gpu)
        if not any(need._replace(cores=0 if slow else need.cores).within(room) for room in rooms):
            there = ", ".join(map(str, sorted(rooms, key=lambda room: -room.memory)[:3]))
            raise SweepError(f"{job.directory} takes {need}. There is no room for it in {there}. {TAKE_LESS}")
        needs[job.directory] = need
    return needs


@contextmanager
def local(
    out: Path, jobs: Sequence[Job], sizes: Mapping[str, Size], *, workers: int | None = None, runs_per_gpu: int = 1
) -> Iterator[Backend]:
    """A backend of processes on this machine, as many at once as its cores, memory and GPUs allow."""
    here, told = this_machine(), list[int]()
    needs = _needs(jobs, sizes, [here], runs_per_gpu, slow=True)
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

    def cancel(stop: Sequence[int]) -> None:
        told[:] = stop[:1]  # a scheduler may send a signal twice

    each = largest(needs.values())
    fit = min(at_once(each, here), workers or sys.maxsize)
    words = f"local, {fit} at a time on {here}; a run takes {each}"
    with ThreadPoolExecutor(max_workers=max(1, int(here.cores))) as pool:  # a thread waits for each run
        try:
            yield Backend(words, submit, fits, cancel)
        except BaseException as error:  # a second Ctrl-C ends the runs immediately
            told.extend([signal.SIGINT] * (2 if isinstance(error, KeyboardInterrupt) else 1))
            raise


@contextmanager
def on_ray(
    out: Path, jobs: Sequence[Job], sizes: Mapping[str, Size], *, address: str, runs_per_gpu: int = 1
) -> Iterator[Backend]:
    """A backend of Ray tasks. Ray finds a node for each, and another if it is lost: the run continues from its checkpoint.

    `out`: a folder that all nodes share. `address`: auto, HOST:PORT, ray://HOST:PORT, or local, a Ray that ends with this process.
    """
    ray = _connected(address)
    try:
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        nodes = [Needs(*(node.get(name, 0.0) for name in ("CPU", "memory", "GPU"))) for node in alive]
        needs = _needs(jobs, sizes, nodes, runs_per_gpu)
        refs: list[Any] = []

        def submit(job: Job) -> "Future[int | None]":
            need = needs[job.directory]
            task = ray.remote(attempt).options(
                name=job.directory,
                num_cpus=need.cores,
                num_gpus=need.gpus,
                memory=need.memory,
                max_retries=-1,  # a lost node is not a failure of the run
                scheduling_strategy="SPREAD",
            )
            refs.append(task.remote(job, out, (), None, Path.cwd()))
            return refs[-1].future()  # type: ignore[no-any-return]

        def cancel(_: Sequence[int]) -> None:
            while refs:
                ray.cancel(refs.pop())  # interrupts `attempt`, which tells its run to save itself

        cores = sum(node.cores for node in nodes)
        words = f"Ray, address {address}: nodes {len(nodes)}, {cores:.0f} CPU; a run takes {largest(needs.values())}"
        yield Backend(words, submit, lambda job, active: True, cancel)
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:
    """Connect to Ray and return the module."""
    require_extra("ray", "ray")
    _require_reachable(address)
    # 40 seconds instead of minutes if something other than Ray answers
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    if address == "local":
        # Ray's servers listen on all interfaces, unless a variable (named after macOS and Windows) is set before its import. Ray
        # replaces an address of 127.0.0.1 by that of the network.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    import ray

    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "object_store_memory": 100_000_000}
    try:
        ray.init(address, **settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SweepError(f"No Ray at {address}: {error}\n{START_RAY}") from error
    found: Any = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call, unused-ignore]
    if address == "local" and not ip_address(found).is_loopback:
        ray.shutdown()
        raise SweepError(
            f"Ray listens on {found}, not only on this machine, because ray was imported before. Start the sweep from a fresh "
            "process, such as `maskrl sweep`."
        )
    return ray


def _require_reachable(address: str) -> None:
    """Raise SweepError within seconds if nothing answers; Ray would take minutes."""
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
        raise SweepError(f"Nothing answers at {where}: {error}. {question}\n{START_RAY}") from error
