"""An environment that hangs: its process is killed and brought back, a signal is heeded within seconds, nobody is left behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from builders import Silent
from maskrl.envs import subprocess as worker
from maskrl.runs import watchdog
from maskrl.runs.directory import Run, RunError
from maskrl.runs.players import Players
from maskrl.runs.signals import Stopped
from sweeps import is_alive, parent
from tiny_runs import events, same_end, tiny_rainbow, tiny_recipe, trained

pytestmark = pytest.mark.faults

LONG = 30.0  # seconds that a slow machine may take to start a process


def test_a_signal_is_heeded_within_five_seconds_by_the_times_that_we_wait():
    """The tests below have real processes and allow for a busy machine; these are the waits themselves."""
    for waits in (worker, watchdog):
        assert waits.LOOK + waits.GRACE < 5


def children(process: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            if parent(int(entry)) == process:
                found.append(int(entry))
    return found


def command_of(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def workers(process: int) -> list[int]:
    """The processes that step environments for this one."""
    return [one for one in children(process) if "spawn_main" in command_of(one) or "help_out" in command_of(one)]


class StopsWorker(Silent):
    """Somebody stops the environment's process at a decision."""

    def write(self, points: object, clock: object) -> None:
        super().write(points, clock)  # type: ignore[arg-type]
        if self.clock.decisions == 75:
            for one in workers(os.getpid()):
                os.kill(one, signal.SIGSTOP)


def test_a_worker_that_hangs_is_killed_and_the_run_ends_with_the_same_bits(tmp_path: Path):
    base = tiny_recipe()
    recipe = tiny_recipe(overlap=True, env=type(base.env)(size=28, timeout=5.0))
    whole, _ = trained(tmp_path / "whole", recipe)
    watcher = StopsWorker()
    run, _ = trained(tmp_path / "run", recipe, watcher)
    assert any("did not answer for 5 seconds and was killed" in note for note in watcher.notes)
    assert events(run) == events(whole)
    assert same_end(run, whole)
    assert not workers(os.getpid())


def test_a_helper_of_an_evaluation_that_hangs_is_killed_and_its_episode_played_again(monkeypatch: pytest.MonkeyPatch):
    base, notes = tiny_rainbow(threads=2), list[str]()
    recipe = tiny_rainbow(threads=2, env=type(base.env)(size=28, timeout=5.0))
    monkeypatch.setattr("maskrl.runs.players.START", 1e-9)  # so that a helper pays
    monkeypatch.setattr("maskrl.runs.players.cores_allowed", lambda: 2)
    stopped: list[int] = []

    def stop(ended: int) -> None:
        if together._helpers and not stopped:
            while not together._helpers[0]._begun:  # until it plays
                time.sleep(0.05)
            for one in workers(os.getpid()):
                os.kill(one, signal.SIGSTOP)
                stopped.append(one)

    alone = Players(tiny_rainbow(threads=1), notes.append)
    together = Players(recipe, notes.append)
    try:
        expected = alone.play(None, episodes=200, seed=3)
        found = together.play(None, episodes=200, seed=3, counter=stop)
    finally:
        alone.close()
        together.close()
    assert found == expected
    assert stopped
    assert notes == [
        "A process that plays evaluation episodes failed (it did not answer for 5 seconds and was killed). The others play its "
        "episodes."
    ]


# ── Signals ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SLOW = """
import sys, time, ctypes
sys.path[:0] = {path!r}
from pathlib import Path
from maskrl.envs.toy import Reach
from maskrl.runs.signals import Stopped
from tiny_runs import tiny_recipe, trained
step = Reach.step
def hang(self, action):
    if Path({flag!r}).exists():
        {hang}
    return step(self, action)
Reach.step = hang
try:
    trained(Path({run!r}), tiny_recipe({options}))
except Stopped as stopped:
    sys.exit(128 + stopped.signal_number)
"""
HANGS = {"in Python": "time.sleep(600)", "in C": "ctypes.CDLL(None).sleep(600)"}


@pytest.mark.parametrize("hang", HANGS)
def test_a_signal_is_heeded_while_the_environment_of_this_process_hangs(tmp_path: Path, hang: str):
    flag = tmp_path / "hang"
    flag.touch()
    code = SLOW.format(
        path=[str(Path(__file__).parents[1])], run=str(tmp_path / "run"), flag=str(flag), hang=HANGS[hang], options=""
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    _wait(lambda: (tmp_path / "run" / "status.json").exists())
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    _, complaint = process.communicate(timeout=60)
    assert time.monotonic() - begun < LONG  # the promise is 5 seconds, on cores that are not busy
    assert process.returncode == 143, complaint
    assert Run.open(tmp_path / "run").status == "stopped"
    flag.unlink()
    run, _ = trained(tmp_path / "run", tiny_recipe())
    assert run.status == "done"


def test_a_signal_is_heeded_while_a_worker_is_stopped(tmp_path: Path):
    arguments = ["train", "toy/reach", "overlap=true", "threads=1", "--run-dir", str(tmp_path / "run")]
    arguments += ["evaluation.episodes=1", "agent.warmup_decisions=2000"]
    process = subprocess.Popen([sys.executable, "-m", "maskrl", *arguments], stdout=subprocess.PIPE, text=True)
    _wait(
        lambda: (
            (tmp_path / "run" / "metrics.jsonl").exists()
            and b"episode" in (tmp_path / "run" / "metrics.jsonl").read_bytes()
        )
    )
    (worker,) = workers(process.pid)
    os.kill(worker, signal.SIGSTOP)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    out, _ = process.communicate(timeout=60)
    assert time.monotonic() - begun < LONG  # the promise is 5 seconds, on cores that are not busy
    assert process.returncode == 143
    assert "Stopped without saving, because the environment did not answer." in out
    assert not is_alive(worker)


@pytest.mark.parametrize("stop", [False, True], ids=["awake", "stopped"])
def test_no_worker_outlives_its_parent(tmp_path: Path, stop: bool):
    arguments = ["train", "toy/reach", "overlap=true", "threads=1", "--run-dir", str(tmp_path / "run")]
    process = subprocess.Popen([sys.executable, "-m", "maskrl", *arguments], stdout=subprocess.DEVNULL)
    _wait(lambda: (tmp_path / "run" / "status.json").exists() and workers(process.pid))
    found = workers(process.pid)
    if stop:
        for one in found:
            os.kill(one, signal.SIGSTOP)
    process.kill()
    process.wait()
    begun = time.monotonic()
    while any(is_alive(one) for one in found):
        assert time.monotonic() - begun < LONG  # the promise is 5 seconds, on cores that are not busy
        time.sleep(0.05)


def _wait(until: object) -> None:
    begun = time.monotonic()
    while not until():  # type: ignore[operator]
        assert time.monotonic() - begun < 4 * LONG
        time.sleep(0.1)


# ── Locks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Disturbs(Silent):
    """Somebody does something to the run's files at a decision."""

    def __init__(self, disturb: object, at: int = 60) -> None:
        super().__init__()
        self.disturb, self.at = disturb, at

    def write(self, points: object, clock: object) -> None:
        super().write(points, clock)  # type: ignore[arg-type]
        if self.clock.decisions == self.at and self.disturb is not None:
            disturb, self.disturb = self.disturb, None
            disturb()  # type: ignore[operator]


def test_a_deleted_lock_does_not_let_a_second_trainer_in_and_comes_back(tmp_path: Path):
    refused = []

    def start_another() -> None:
        (tmp_path / "lock").unlink()
        try:
            trained(tmp_path, tiny_recipe())
        except RunError as error:
            refused.append(str(error))

    watcher = Disturbs(start_another)
    run, _ = trained(tmp_path, tiny_recipe(), watcher)
    assert "is being trained by another process" in refused[0]
    assert watcher.notes == [
        "Something removed or replaced the run's file `lock`. It is back, and no other process trains this run."
    ]
    assert f"process {os.getpid()} " in (tmp_path / "lock").read_text()
    assert run.status == "done"


def test_a_lock_that_another_process_has_taken_stops_the_first_before_it_saves(tmp_path: Path):
    """As on NFS, where the directory itself cannot be locked."""
    import fcntl

    taken = []

    def take_over() -> None:
        (tmp_path / "lock").unlink()
        file = (tmp_path / "lock").open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("process 1 on elsewhere")
        file.flush()
        taken.append(file)

    before = set[str]()

    def look_and_take() -> None:
        before.update(os.listdir(tmp_path / "checkpoints"))
        take_over()

    with pytest.raises(RunError, match=r"process 1 on elsewhere trains the run now. This process stops without saving"):
        trained(tmp_path, tiny_recipe(), Disturbs(look_and_take))
    assert set(os.listdir(tmp_path / "checkpoints")) == before
    taken[0].close()
    assert trained(tmp_path, tiny_recipe())[0].status == "done"


def test_a_directory_that_was_replaced_is_not_written_to(tmp_path: Path):
    def replace() -> None:
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "run").mkdir()

    with pytest.raises((RunError, FileNotFoundError), match=r"was removed or replaced|No such file"):
        trained(tmp_path / "run", tiny_recipe(), Disturbs(replace))
    assert not list((tmp_path / "run").rglob("*.safetensors"))


def test_a_signal_between_two_decisions_saves(tmp_path: Path):
    with pytest.raises(Stopped) as stopped:
        trained(tmp_path, tiny_recipe(), Silent(interrupt_at=70))
    assert stopped.value.saved
