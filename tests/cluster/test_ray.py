"""Sweeps on a real Ray cluster: several nodes on this machine, which listen on 127.0.0.1 alone."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import pytest

from maskrl.runs.directory import Run
from maskrl.studies.jobs import expand
from sweeps import TINY, first_trainer, maskrl, parent
from tiny_runs import events, same_end, trained

pytest.importorskip("ray")

# Else a driver takes 127.0.0.1 for the address by which other machines reach this one. The name of the switch is Ray's.
STAY_HERE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class TwoNodes(NamedTuple):
    address: str
    raylet: int  # the process that is the second node
    script: "subprocess.Popen[str]"

    def kill(self) -> None:
        assert self.script.stdin is not None
        assert self.script.stdout is not None
        self.script.stdin.write("kill\n")
        self.script.stdin.flush()
        assert self.script.stdout.readline() == "killed\n"


@pytest.fixture
def two_nodes() -> Iterator[TwoNodes]:
    script = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("two_nodes.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with script:
        assert script.stdout is not None
        address, raylet = script.stdout.readline().split()
        yield TwoNodes(address, int(raylet), script)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_sweep_outlives_a_node_and_its_results_are_those_of_this_machine(tmp_path: Path, two_nodes: TwoNodes):
    """2 methods × 3 seeds × 2 tasks. The node goes as if by a power cut: whoever trains there does not save."""
    jobs = expand("toy", seeds=3, grid=TINY)
    out = tmp_path / "sweep"
    words = ["sweep", "toy", *TINY, "--seeds", "3", "--out", str(out), "--backend", "ray"]
    words += ["--address", two_nodes.address]
    with maskrl(*words, **STAY_HERE) as sweep:
        trainer, path = first_trainer(out, sweep, lambda worker: parent(worker) == two_nodes.raylet)
        worker = parent(trainer)
        os.kill(trainer, signal.SIGSTOP)
        assert Run.open(path).status == "running"
        two_nodes.kill()
        for process in (worker, trainer):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        told = sweep.communicate()[0]

    assert sweep.returncode == 0, told
    assert "12 of 12 runs done" in told
    log = (out / "logs" / f"{path.relative_to(out)}.txt").read_text()
    assert log.count("$ maskrl train") == 2
    assert "continues at" in log  # not from its beginning
    for job in jobs:
        run, twin = Run.open(out / job.directory), trained(tmp_path / "twins" / job.directory, job.recipe)[0]
        assert events(run) == events(twin)
        assert same_end(run, twin)

    with maskrl("report", str(out), "--out", str(tmp_path / "report.html")) as report:
        told = report.communicate()[0]
    assert report.returncode == 0, told
    assert "12 runs" in told
    assert all(task in (tmp_path / "report.html").read_text() for task in ("toy/reach", "toy/catch"))


@pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss, of iproute2")
def test_a_ray_on_this_machine_alone_listens_on_loopback_alone(tmp_path: Path):
    """Asked of the system while a sweep trains: of every process that the sweep has started, and of those that these have."""
    tiny = [word for word in TINY if not word.startswith(("objective", "budget"))]
    words = ["sweep", "toy/reach", *tiny, "budget.frames=3000", "--seeds", "1", "--methods", "baseline"]
    words += ["--out", str(tmp_path / "sweep")]
    with maskrl(*words, "--backend", "ray", "--address", "local") as sweep:
        first_trainer(tmp_path / "sweep", sweep, lambda _: True)
        lines = subprocess.run(["ss", "-tlnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
        ours = family(sweep.pid)
        sweep.send_signal(signal.SIGTERM)
        told = sweep.communicate()[0]
    assert sweep.returncode == 143, told
    heard = [(re.findall(r'\("([^"]+)",pid=(\d+)', line), line.split()[3]) for line in lines]
    mine = {(name, address) for owners, address in heard for name, process in owners if int(process) in ours}
    assert {"gcs_server", "raylet"} <= {name for name, _ in mine}
    open_to_others = [
        f"{name} at {address}"
        for name, address in mine
        if not ip_address(address.rpartition(":")[0].strip("[]").replace("*", "::").replace("::ffff:", "")).is_loopback
    ]
    assert not open_to_others


def family(process: int) -> set[int]:
    """A process and all that it has started, directly or not; Ray's servers are in sessions of their own."""
    parents = dict[int, int]()
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            parents[int(entry)] = parent(int(entry))
    found = {process}
    while more := {child for child, above in parents.items() if above in found} - found:
        found |= more
    return found
