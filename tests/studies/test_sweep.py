"""How the runs of a sweep get done, whatever happens to them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from builders import Silent
from maskrl import cli
from maskrl.cli.sweep import News
from maskrl.clock import Clock
from maskrl.cost.operations import PROCESS
from maskrl.recipes.schema import Recipe, digest
from maskrl.runs.directory import Run, RunError
from maskrl.runs.signals import Stopped
from maskrl.studies import backends
from maskrl.studies import sweep as sweeping
from maskrl.studies.backends import Needs, Size
from maskrl.studies.jobs import Job, expand
from maskrl.studies.sweep import BUSY, Backend, Entry, Look, SweepError, drive, look
from sweeps import TINY, first_trainer, is_alive, maskrl
from tiny_runs import events, same_end, tiny_recipe, trained


def job(recipe: Recipe | None = None, **changes: object) -> Job:
    recipe = replace(recipe or tiny_recipe(), **changes)  # type: ignore[arg-type]
    return Job("toy/reach", (), "lite", "mlr", recipe, f"toy/reach/mlr/seed-{recipe.seed}-{digest(recipe)}")


def jobs(count: int) -> list[Job]:
    return [job(seed=seed) for seed in range(1, count + 1)]


def command(*arguments: str) -> int:
    """The exit code of `maskrl`, in this process."""
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    return int(end.value.code or 0)


# ── What a sweep is ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_keeps_what_its_sweep_is(tmp_path: Path):
    entries = sweeping.write_manifest(tmp_path / "new" / "sweep", {"sweep": "toy"}, jobs(2))
    assert [entry.frames for entry in entries] == [150, 150]
    assert sweeping.read_manifest(tmp_path / "new" / "sweep") == ({"sweep": "toy"}, entries)
    assert sweeping.write_manifest(tmp_path / "new" / "sweep", {"sweep": "other words"}, jobs(2)) == entries
    assert [path.name for path in (tmp_path / "new" / "sweep").iterdir()] == ["sweep.json"]


def test_another_sweep_is_refused_with_the_difference(tmp_path: Path):
    sweeping.write_manifest(tmp_path, {"sweep": "toy", "seeds": 3}, jobs(3))
    with pytest.raises(SweepError) as refused:
        sweeping.write_manifest(tmp_path, {"sweep": "toy", "seeds": 1}, [job(seed=1), job(seed=9)])
    words = str(refused.value)
    assert "seeds: 3 -> 1" in words
    assert "sweep:" not in words
    assert f"only there: 2 of 3 runs, such as {jobs(2)[1].directory}" in words
    assert f"only here: 1 of 2 runs, such as {job(seed=9).directory}" in words
    assert "--extend" not in words
    assert len(sweeping.read_manifest(tmp_path)[1]) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.json"]  # nothing is left lying about


def test_a_sweep_may_be_extended_but_not_cut(tmp_path: Path):
    sweeping.write_manifest(tmp_path, {"sweep": "toy"}, jobs(2))
    with pytest.raises(SweepError, match="--extend"):
        sweeping.write_manifest(tmp_path, {"sweep": "toy"}, jobs(3))
    sweeping.write_manifest(tmp_path, {"sweep": "toy"}, jobs(3), extend=True)
    assert len(sweeping.read_manifest(tmp_path)[1]) == 3
    with pytest.raises(SweepError, match="only there: 1 of 3"):
        sweeping.write_manifest(tmp_path, {"sweep": "toy"}, jobs(2), extend=True)


def test_a_folder_of_something_else_or_none_is_refused(tmp_path: Path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SweepError, match="not empty and holds no sweep"):
        sweeping.write_manifest(tmp_path, {"sweep": "toy"}, jobs(1))
    with pytest.raises(SweepError, match=r"Cannot write to .*thesis"):
        sweeping.write_manifest(tmp_path / "thesis.tex", {}, jobs(1))
    with pytest.raises(SweepError, match="holds no sweep"):
        sweeping.read_manifest(tmp_path)
    (tmp_path / "sweep.json").write_text('{"runs": 3')
    with pytest.raises(SweepError, match="cannot be read"):
        sweeping.read_manifest(tmp_path)


# ── Where the runs are ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_state_of_a_run_is_read_from_its_directory(tmp_path: Path):
    one = job(tiny_recipe(mlr=False))
    entry, path = Entry(one.directory, 150, ""), tmp_path / one.directory

    def state() -> str:
        return look(tmp_path, entry).state

    assert look(tmp_path, entry) == Look(one.directory, "waiting", 0, 150, 0.0, None)
    with pytest.raises(Stopped):
        trained(path, one.recipe, Silent(interrupt_at=70))
    seen = look(tmp_path, entry)
    assert (seen.state, seen.frames, seen.why) == ("interrupted", 70, "")
    run = Run.open(path)
    with run.locked():
        assert state() == "running"
    run.set_status("failed", "ValueError: no")
    assert look(tmp_path, entry)._replace(seconds=0.0, score=None) == Look(
        one.directory, "failed", 70, 150, 0.0, None, "ValueError: no"
    )
    with run.locked():
        assert state() == "running"  # again
    trained(path, one.recipe)
    seen, scores = look(tmp_path, entry), [event["score"] for event in run.events("evaluation")]
    assert (seen.state, seen.frames, seen.score) == ("done", 150, scores[-1])


@pytest.mark.parametrize(
    ("code", "state", "why"),
    [(2, "failed", "ended by exit code 2"), (-9, "failed", "ended by SIGKILL"), (143, "interrupted", "")],
)
def test_how_a_try_ended_tells_a_failed_run_from_a_stopped_one(tmp_path: Path, code: int, state: str, why: str):
    one = job()
    Run.create(tmp_path / one.directory, one.recipe).set_status("running")
    log = sweeping.log_of(tmp_path, one.directory)
    log.parent.mkdir(parents=True)
    log.with_suffix(".code").write_text(str(code))
    seen = look(tmp_path, Entry(one.directory, 150, ""))
    assert (seen.state, seen.why) == (state, why)


def test_to_look_at_a_lock_disturbs_nobody(tmp_path: Path):
    run = Run.create(tmp_path, tiny_recipe())
    assert not run.is_locked
    for _ in range(2):
        assert not run.is_locked
        with run.locked():
            assert run.is_locked
            with pytest.raises(RunError, match="is being trained by process"), run.locked():
                pass
    assert not run.is_locked


def test_a_run_that_was_killed_before_it_had_a_recipe_is_a_new_one(tmp_path: Path):
    (tmp_path / "versions.json").write_text("{}")
    (tmp_path / "recipe.json.17.new").write_text("{")
    assert Run.create(tmp_path, tiny_recipe()).status == "new"


def test_the_time_to_go_is_the_work_shared_out_but_no_less_than_the_longest_run():
    def one(directory: str, state: sweeping.State, frames: int, seconds: float) -> Look:
        return Look(directory, state, frames, 100, seconds, None)

    assert sweeping.seconds_left([one("a/1", "waiting", 0, 0.0)], 1) is None
    done, half, waiting = one("a/1", "done", 100, 10.0), one("b/1", "running", 50, 20.0), one("a/2", "waiting", 0, 0.0)
    assert sweeping.seconds_left([done, half], 1) == 20  # as fast as it was
    assert sweeping.seconds_left([done, half, waiting], 1) == 20 + 20  # as fast as all: 30 s for 150 frames
    assert sweeping.seconds_left([done, half, waiting], 2) == 20
    assert sweeping.seconds_left([half, one("c/1", "running", 90, 9.0)], 2) == 20  # not 10.5
    assert sweeping.seconds_left([done, one("b/1", "failed", 50, 20.0)], 1) == 0


# ── All of them ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Scripted:
    """A backend whose runs end as told, each at once: `ends[n]` are the results of the n-th run's tries."""

    def __init__(self, out: Path, ends: Sequence[Sequence[int | Exception | None]], room: int = 100) -> None:
        self.out, self.room = out, room
        self.ends = {one.directory: list(results) for one, results in zip(jobs(len(ends)), ends, strict=True)}
        self.tries = Counter[int]()
        self.most = 0

    def submit(self, one: Job) -> "Future[int | None]":
        self.tries[one.recipe.seed] += 1
        result, future = self.ends[one.directory].pop(0), Future[int | None]()
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
        if result == 0:
            Run.create(self.out / one.directory, one.recipe).set_status("done")
        return future

    def fits(self, one: Job, active: object) -> bool:
        self.most = max(self.most, len(active) + 1)  # type: ignore[arg-type]
        return len(active) < self.room  # type: ignore[arg-type]

    def drive(self, retries: int = 2, stop: Sequence[int] = ()) -> dict[str, str]:
        backend = Backend("", self.submit, self.fits, lambda stop: None)
        all_jobs = jobs(len(self.ends))
        return drive(
            all_jobs, self.out, backend, retries=retries, stop=stop, tell=lambda line: None, watch=lambda: None
        )


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "PAUSE", 0.0)


def test_a_failed_run_is_tried_again_so_often_and_the_others_go_on(tmp_path: Path):
    backend = Scripted(tmp_path, [[0], [1, -11, 0], [1, 1, -9], [RuntimeError("lost"), 0]])
    assert backend.drive() == {jobs(3)[2].directory: "ended by SIGKILL"}
    assert backend.tries == {1: 1, 2: 3, 3: 3, 4: 2}


def test_a_run_that_refuses_to_start_is_not_asked_again(tmp_path: Path):
    backend = Scripted(tmp_path, [[2], [0]])
    assert backend.drive() == {jobs(1)[0].directory: "ended by exit code 2"}
    assert backend.tries == {1: 1, 2: 1}


def test_a_run_that_somebody_else_is_at_is_not_a_failure(tmp_path: Path):
    backend = Scripted(tmp_path, [[BUSY, BUSY, BUSY, BUSY, 0]])
    assert backend.drive(retries=0) == {}
    assert backend.tries == {1: 5}


def test_what_is_done_is_left_alone_and_a_stop_begins_nothing(tmp_path: Path):
    for one in jobs(2):
        Run.create(tmp_path / one.directory, one.recipe).set_status("done")
    backend = Scripted(tmp_path, [[1], [1], [0]])
    assert backend.drive() == {}
    assert backend.tries == {3: 1}
    stopped = Scripted(tmp_path / "other", [[0]])
    assert stopped.drive(stop=[signal.SIGINT]) == {}
    assert not stopped.tries


# ── Rooms ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fits(monkeypatch: pytest.MonkeyPatch, *, cores: int, memory: int, **options: int) -> Callable[[int], bool]:
    """Whether one more run fits beside so many; each takes 2 cores and 1 GB."""
    monkeypatch.setattr(backends, "cores_allowed", lambda: cores)
    monkeypatch.setattr(backends, "free_memory", lambda: memory)
    some = [job(seed=seed, threads=2) for seed in range(1, 9)]
    sizes = {one.directory: Size(1_000_000_000, 0) for one in some}

    def asked(active: int) -> bool:
        with backends.local(Path(), some, sizes, **options) as backend:
            return backend.fits(some[-1], some[:active])

    return asked


def test_never_more_runs_than_cores_memory_and_workers_have_room_for(monkeypatch: pytest.MonkeyPatch):
    by_cores = fits(monkeypatch, cores=7, memory=10**11)
    assert [by_cores(active) for active in range(5)] == [True, True, True, False, False]
    by_memory = fits(monkeypatch, cores=64, memory=2_500_000_000)
    assert [by_memory(active) for active in range(4)] == [True, True, False, False]
    by_workers = fits(monkeypatch, cores=64, memory=10**11, workers=3)
    assert [by_workers(active) for active in range(5)] == [True, True, True, False, False]
    too_few_cores = fits(monkeypatch, cores=1, memory=10**11)
    assert [too_few_cores(active) for active in range(2)] == [True, False]


def test_a_run_that_never_fits_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        SweepError, match=r"takes 2 CPU and 1.0 GB. There is no room for it in .* 900 MB. .*replay.capacity"
    ):
        fits(monkeypatch, cores=4, memory=900_000_000)(0)
    nodes = [Needs(4, 5e8, 0), Needs(1, 9e9, 0)]
    for threads, memory, gpu, words in (
        (2, 10**9, False, "2 CPU and 1.0 GB"),  # each of the two on another node
        (1, 10**10, False, "1 CPU and 10 GB"),
        (1, 10**8, True, "1 CPU and 100 MB and 0.5 GPU"),
    ):
        one = job(threads=threads, device="cuda" if gpu else "cpu")
        with pytest.raises(SweepError, match=f"takes {words}. There is no room for it in 1 CPU and 9.0 GB, 4 CPU"):
            backends._needs([one], {one.directory: Size(memory, 0)}, nodes, 2)
    for threads, memory in ((1, 8 * 10**9), (4, 10**8)):
        one = job(threads=threads, device="cpu")
        need = backends._needs([one], {one.directory: Size(memory, 0)}, nodes, 1)
        assert need == {one.directory: Needs(threads, memory, 0.0)}


def test_a_run_takes_what_its_recipe_says():
    def takes(gpus: bool, **changes: object) -> Needs:
        return backends.needs_of(job(**changes).recipe, 5, gpus=gpus, runs_per_gpu=4)

    assert takes(False, threads=3) == Needs(3, 5, 0.0)
    assert takes(True, threads=1).gpus == 0.25
    assert takes(True, device="cpu").gpus == 0
    assert takes(False, device="cuda").gpus == 0.25  # for a node that has one


@pytest.mark.parametrize(("profile", "measured"), [("lite", 0.76e9), ("paper", 2.23e9)])
def test_what_a_run_takes_of_memory_is_not_much_above_what_was_measured(
    profile: Literal["lite", "paper"], measured: float
):
    """Each in docs/sweeps.md."""
    made = expand("dmcontrol/walker-walk", seeds=2, methods=["mlr"], profile=profile)
    for one in backends.sizes_of(made).values():
        assert measured <= one.memory <= 1.3 * measured


def test_the_baseline_takes_less_memory_than_mlr():
    made = expand("dmcontrol/walker-walk", seeds=1, profile="paper")
    sizes = {job.method: backends.sizes_of([job])[job.directory].memory for job in made}
    assert 700_000_000 < sizes["baseline"] < sizes["mlr"]


def test_an_environment_in_a_process_of_its_own_takes_a_core_and_memory():
    (alone,), (both,) = (
        expand("toy/reach", seeds=1, grid=[f"overlap={it}"], methods=["mlr"]) for it in ("false", "true")
    )
    sizes = backends.sizes_of([alone, both])
    assert sizes[both.directory].memory == sizes[alone.directory].memory + PROCESS
    assert [backends.needs_of(one.recipe, 1, gpus=False).cores for one in (alone, both)] == [1, 2]


@pytest.mark.parametrize(
    ("need", "expected"),
    [
        (Needs(2, 10**9, 0.0), 4),  # by cores
        (Needs(1, 3 * 10**9, 0.0), 3),  # by memory
        (Needs(1, 10**9, 1 / 3), 6),  # three on each GPU
        (Needs(9, 10**9, 0.0), 1),  # slowly
    ],
)
def test_as_many_runs_go_on_at_a_time_as_there_is_room_for(need: Needs, expected: int):
    assert backends.at_once(need, Needs(8, 10**10, 2)) == expected


def test_memory_of_which_the_system_tells_nothing_does_not_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backends, "cores_allowed", lambda: 4)
    monkeypatch.setattr(backends, "free_memory", lambda: None)
    some = [job(threads=1)]
    with backends.local(Path(), some, {some[0].directory: Size(10**12, 0)}) as backend:
        assert backend.words == "local, 4 at a time on 4 CPU; a run takes 1 CPU and 1.0 TB"


def test_gpus_are_those_that_we_may_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert backends._gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert backends._gpus() == ["3", "5"]


def test_a_gpu_that_is_asked_for_and_not_here_is_missed_by_this_machine_alone(tmp_path: Path):
    made = expand("toy/reach", seeds=1, methods=["mlr"], grid=["device=cuda"])
    sizes = backends.sizes_of(made)  # for a node that has one
    with (
        pytest.raises(SweepError, match=r"GPU. There is no room for it .*device=cpu"),
        backends.local(tmp_path, made, sizes),
    ):
        pass


def test_an_encoder_that_is_not_there_is_missed_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["sweep", "ablations/pretraining", "--tasks", "reacher-easy", "--seeds", "1", "--out", str(tmp_path / "s")]
    assert command(*words) == 2
    assert "`maskrl pretrain` makes one" in capsys.readouterr().err
    every = [word for job in expand("ablations", seeds=1) for word in job.overrides]
    assert not [word for word in every if word.startswith("encoder_from")]


def test_an_address_where_nobody_answers_is_refused_in_seconds():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        for address in (where, f"ray://{where}"):
            began = time.monotonic()
            with pytest.raises(SweepError, match=f"Nothing answers at {where}"):
                backends._require_reachable(address)
            assert time.monotonic() - began < 2 * backends.REACHABLE
    for address in ("somewhere", "ray://", ":6379", "host:port"):
        with pytest.raises(SweepError, match="expected auto, local, HOST:PORT or ray://HOST:PORT"):
            backends._require_reachable(address)


# ── The command ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_print_has_a_command_for_every_run_that_is_not_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "my sweep"
    cli_words = ["sweep", "toy", *TINY, "--seeds", "1", "--out", str(out), "--backend", "print"]
    assert command(*cli_words) == 0
    printed = capsys.readouterr().out
    made = expand("toy", seeds=1, grid=TINY)
    commands = [line for line in printed.splitlines() if not line.startswith("#")]
    script = "maskrl() { for word; do printf '%s\\n' \"$word\"; done; printf '\\n'; }\n" + printed
    read = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert [part.split("\n") for part in read.strip().split("\n\n")] == [one.command(out) for one in made]
    assert len(commands) == 4
    Run.create(out / made[0].directory, made[0].recipe).set_status("done")
    assert command(*cli_words) == 0
    assert capsys.readouterr().out.splitlines()[1:-1] == commands[1:]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["toi"], "did you mean toy"),
        (["toy", "--seeds", "0"], "at least one"),
        (["toy", "objective.mask.ration=0.1"], "did you mean ratio"),
        (["toy", "--out", "/dev/null/sweep"], "Cannot write to"),
        (["toy", "--backend", "ray", "--address", "127.0.0.1:1"], "Nothing answers at 127.0.0.1:1"),
        (["toy", "agent.batch_size=1000000"], "There is no room for it"),
        (["status", "nowhere"], "nowhere holds no sweep"),
    ],
)  # fmt: skip
def test_what_its_user_can_put_right_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], told: str
):
    monkeypatch.chdir(tmp_path)
    assert command("sweep", *words) == 2
    assert told in capsys.readouterr().err


def test_status_tells_of_every_run_and_of_the_log_of_a_failed_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["sweep", "toy", *TINY, "--seeds", "1", "--out", str(tmp_path), "--backend", "print"]
    assert command(*words) == 0
    first, second, *_ = expand("toy", seeds=1, grid=TINY)
    trained(tmp_path / first.directory, first.recipe)
    Run.create(tmp_path / second.directory, second.recipe).set_status("failed", "FloatingPointError: a loss is nan")
    capsys.readouterr()
    assert command("sweep", "status", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "1 of 4 runs done, 1 failed, 2 waiting; 25% of all frames" in printed
    assert f"{second.directory} failed: FloatingPointError: a loss is nan. See {tmp_path}/logs/" in printed
    assert command("sweep", "status", str(tmp_path), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counts"] == {"done": 1, "failed": 1, "waiting": 2}
    assert [run["frames"] for run in told["runs"]] == [120, 0, 0, 0]


def test_a_line_tells_of_every_beginning_and_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made = jobs(2)
    entries = sweeping.write_manifest(tmp_path, {"sweep": "toy"}, made)
    runs = [Run.create(tmp_path / one.directory, one.recipe) for one in made]
    news = News(tmp_path, entries)
    with runs[1].locked():
        news.watch(now=True)
        runs[0].log("evaluation", Clock(150, 150, 90, 12.0), {"score": 7.5, "returns": [7.5]})
        runs[0].set_status("done")
        news.watch(now=True)
        news.every_seconds = 0.0
        news.watch(now=True)
    begun, done, summary, *_ = capsys.readouterr().out.splitlines()
    assert begun == f"{made[1].directory}: begins"
    assert done == f"{made[0].directory}: done, score 7.5, 12 s"
    assert summary == "1 of 2 runs done, 1 running; 50% of all frames, 12 s to go"


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert command("sweep", "toy", *TINY, "--seeds", "1", "--out", str(tmp_path), "--backend", "ray") == 2
    assert "pip install 'maskrl[ray]'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_sweep_that_is_killed_stopped_and_started_twice_ends_with_the_bits_of_undisturbed_runs(tmp_path: Path):
    """2 methods × 3 seeds × 2 tasks on this machine."""
    out = tmp_path / "sweep"
    words = ["sweep", "toy", *TINY, "--seeds", "3", "--out", str(out)]
    with maskrl(*words) as first:
        trainer, killed = first_trainer(out, first, lambda parent: parent == first.pid)
        os.kill(trainer, signal.SIGKILL)
        with maskrl(*words) as second:  # while the first goes on
            first_trainer(out, first, lambda parent: parent == first.pid)
            os.kill(first.pid, signal.SIGINT)
            told = first.communicate()[0]
            assert first.returncode == 130, told
            assert re.search(
                r"Stopped; every run is saved. Continue with:\n  \S*maskrl sweep toy budget.frames=120 ", told
            )
            trainer, orphan = first_trainer(out, second, lambda parent: parent == second.pid)
            os.kill(second.pid, signal.SIGKILL)
            second.communicate()
            while is_alive(trainer):  # it saves itself, and ends
                time.sleep(0.05)
            assert look(out, Entry(str(orphan.relative_to(out)), 120, "")).state in ("interrupted", "done")
    with maskrl(*words) as third:
        told = third.communicate()[0]
    assert third.returncode == 0, told
    assert "12 of 12 runs done" in told
    assert re.search(rf"Next: \S*maskrl report {out}", told)
    log = sweeping.log_of(out, str(killed.relative_to(out))).read_text()
    assert len(re.findall(r"\$ \S*maskrl train", log)) >= 2
    for one in expand("toy", seeds=3, grid=TINY):
        run, twin = Run.open(out / one.directory), trained(tmp_path / "twins" / one.directory, one.recipe)[0]
        assert events(run) == events(twin)
        assert same_end(run, twin)
    assert command(*words) == 0  # nothing is left to do
    with maskrl("report", str(out), "--out", str(tmp_path / "report.html")) as report:
        told = report.communicate()[0]
    assert report.returncode == 0, told
    assert "toy/reach" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_a_run_that_cannot_be_done_is_listed_with_the_end_of_its_log_and_the_others_are_done(tmp_path: Path):
    """At that learning rate no loss stays finite."""
    grid = [*(word for word in TINY if not word.startswith("objective")), "agent.learning_rate=1e-3,1e6"]
    words = [
        "sweep",
        "toy/reach",
        *grid,
        "--seeds",
        "1",
        "--methods",
        "baseline",
        "--retries",
        "1",
        "--out",
        str(tmp_path),
    ]
    with maskrl(*words) as sweep:
        told = sweep.communicate()[0]
    good, bad = (one.directory for one in expand("toy/reach", seeds=1, methods=["baseline"], grid=grid))
    assert sweep.returncode == 1, told
    assert f"{good}: done, score" in told
    assert f"{bad}: ended by exit code 1; trying again (1 of 1)" in told
    assert "1 of 2 runs done" in told
    listed = told[told.index(f"{bad} failed: ended by exit code 1. The end of {tmp_path}/logs/") :]
    assert "not finite" in listed
    assert re.search(r"1 run failed. Once the cause is removed, go on with:\n  \S*maskrl sweep toy/reach", listed)
    assert look(tmp_path, Entry(bad, 120, "")).state == "failed"
