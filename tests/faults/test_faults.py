"""What can go wrong with a run, done for real: whatever happens, at most one checkpoint interval of work is repeated, the end is
the same bits as that of the twin whom nothing happened to, and where that cannot be, the run says so.
"""

import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from builders import Silent, require_drawing
from maskrl import cli, recipes
from maskrl.clock import Clock
from maskrl.envs import DMControl, ToyControl
from maskrl.files import EnvironmentFailedError
from maskrl.recipes.schema import Budget, Evaluation, Recipe, ReplayConfig, digest
from maskrl.runs import checkpoint
from maskrl.runs.directory import Run, RunError
from maskrl.runs.loop import train
from maskrl.runs.signals import Stopped
from tiny_runs import events, same_end, same_weights, tiny_breakout, tiny_rainbow, tiny_recipe, trained

pytestmark = pytest.mark.faults

# A server that has imported everything, and forks: children start at once and share no thread with this process.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["maskrl.cli", "maskrl.runs.loop"])


def child(connection: Any, path: Path, recipe: Recipe, hang_at_sync: int | None) -> None:
    torch.set_num_threads(1)
    if hang_at_sync is not None:
        count, sync = [0], os.fsync

        def fsync(handle: int) -> None:
            count[0] += path.joinpath("checkpoints").exists()
            if count[0] == hang_at_sync:
                os.write(connection.fileno(), (1 << 30).to_bytes(4, "little"))
                time.sleep(60)
            sync(handle)

        os.fsync = fsync
    trained(path, recipe, Reporting(connection.fileno()))


class Reporting(Silent):
    """Sends every decision down a pipe."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self.pipe = pipe

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        if not points:
            os.write(self.pipe, clock.decisions.to_bytes(4, "little"))


def killed(path: Path, recipe: Recipe, *, at: int, delay: float = 0.0, hang_at_sync: int | None = None) -> None:
    """Train in another process, and kill it (SIGKILL) at a decision, and some time after that."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(theirs, path, recipe, hang_at_sync))
    process.start()
    theirs.close()
    while int.from_bytes(os.read(ours.fileno(), 4), "little") < at:
        assert process.is_alive() or process.exitcode == 0
    time.sleep(delay)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def end_of(recipe: Recipe, path: Path, *, at_least: int = 0) -> Run:
    """Continue to the end, here; the run must not have lost more than an interval."""
    watcher = Silent()
    run, _ = trained(path, recipe, watcher)
    assert watcher.began.frames >= at_least // recipe.checkpoint_every * recipe.checkpoint_every
    assert run.status == "done"
    return run


def assert_same_run(run: Run, whole: Run) -> None:
    assert events(run) == events(whole)
    assert same_end(run, whole)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The twin of `tiny_recipe` whom nothing happens to."""
    return trained(tmp_path_factory.mktemp("whole"), tiny_recipe())[0]


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stopped):
        trained(path, tiny_recipe(), Silent(interrupt_at=130))
    return path


@pytest.fixture
def stopped(tmp_path: Path, stopped_once: Path) -> Run:
    """The same, stopped at decision 130, in its fourth episode: checkpoints of decision 100 and 130."""
    return Run.open(shutil.copytree(stopped_once, tmp_path / "run"))


def command(*arguments: str) -> int:
    """The exit code of `maskrl`, in this process."""
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    return int(end.value.code or 0)


# ── kill -9 ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("make", [tiny_recipe, tiny_rainbow], ids=["SAC", "Rainbow"])
@pytest.mark.parametrize("mlr", [True, False], ids=["MLR", "Baseline"])
def test_a_run_killed_five_times_ends_with_the_same_bits(tmp_path: Path, make: Callable[..., Recipe], mlr: bool):
    """The replay of `tiny_rainbow` is a ring that has wrapped by the third kill or so."""
    recipe = make(mlr=mlr)
    whole, agent = trained(tmp_path / "whole", recipe)
    chance = random.Random(f"{recipe.name} {mlr}")
    for at in sorted(chance.sample(range(5, 150), 5)):
        killed(tmp_path / "killed", recipe, at=at, delay=chance.uniform(0, 0.02))
    watcher = Silent()
    run, twin = trained(tmp_path / "killed", recipe, watcher)
    assert watcher.began.frames >= at // 50 * 50
    assert_same_run(run, whole)
    assert same_weights(agent, twin)


SHORT = (
    *("budget.frames=150", "evaluation.every=50", "evaluation.episodes=2", "checkpoint_every=50"),
    *("agent.warmup_decisions=60", "agent.batch_size=8"),
)
OWN = {
    ("toy/reach", "sac_ae"): ["agent.burst=10"],
    ("toy/reach", "spr"): ["agent.auxiliary.second_encoder_rate=1e-3"],  # two optimisers to save
}


@pytest.mark.parametrize(
    ("name", "halves"),
    [
        ("toy/reach", {"method": "drqv2"}),
        ("toy/reach", {"method": "sac_ae"}),
        ("toy/reach", {"method": "drq"}),
        ("toy/reach", {"method": "curl"}),
        ("toy/reach", {"method": "spr"}),
        ("toy/reach", {"method": "mooss"}),
        ("toy/reach", {"objective": "mlr+playvirtual"}),
        ("toy/catch", {"method": "playvirtual"}),
        ("toy/catch", {"method": "curl"}),
        ("toy/catch", {"method": "spr"}),
        ("toy/catch", {"method": "spr_dropout"}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value.values())),
)
def test_a_run_of_another_system_that_is_killed_ends_with_the_same_bits(
    tmp_path: Path, name: str, halves: dict[str, str]
):
    recipe = recipes.resolve(name, [*SHORT, *OWN.get((name, halves.get("method")), [])], **halves)
    whole, agent = trained(tmp_path / "whole", recipe)
    for at in (75, 131):
        killed(tmp_path / "killed", recipe, at=at)
    run, twin = trained(tmp_path / "killed", recipe)
    assert_same_run(run, whole)
    assert same_weights(agent, twin)


@pytest.mark.parametrize("sync", [1, 2, 3, 4, 5, 6])
def test_a_run_killed_while_it_writes_a_checkpoint_ends_with_the_same_bits(tmp_path: Path, whole: Run, sync: int):
    """Three times in each checkpoint something is brought to the disk: the log, the file, the directory."""
    killed(tmp_path, whole.recipe, at=1 << 30, hang_at_sync=sync)
    assert_same_run(end_of(whole.recipe, tmp_path, at_least=0 if sync < 3 else 50), whole)


def test_a_game_of_atari_survives_kills(tmp_path: Path):
    recipe = tiny_breakout()
    whole, _ = trained(tmp_path / "whole", recipe)
    for at in (70, 155, 231):
        killed(tmp_path / "killed", recipe, at=at)
    assert_same_run(end_of(recipe, tmp_path / "killed", at_least=4 * 231), whole)


def test_a_task_of_dmcontrol_survives_kills(tmp_path: Path):
    require_drawing()
    recipe = tiny_recipe(
        name="dmcontrol/cartpole-swingup",
        env=DMControl(task="cartpole-swingup", action_repeat=8, size=28, frame_stack=3),
        agent=replace(tiny_recipe().agent, warmup_decisions=20),
        budget=Budget(frames=8 * 45),
        evaluation=Evaluation(every=8 * 200, episodes=1),
        checkpoint_every=8 * 15,
    )
    whole, _ = trained(tmp_path / "whole", recipe)
    for at in (12, 37):
        killed(tmp_path / "killed", recipe, at=at)
    assert_same_run(end_of(recipe, tmp_path / "killed", at_least=8 * 37), whole)


# ── stopping ──────────────────────────────────────────────────────────────────────────────────────────────────────────

LONG = ["evaluation.episodes=100000", "threads=1"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_stops_at_once_even_within_an_evaluation(tmp_path: Path, number: int, code: int):
    """One of 100 000 episodes, which would take an hour."""
    process = _maskrl(tmp_path, "train", "toy/reach", *LONG, "--run-dir", "run")
    try:
        _wait_for(process, tmp_path / "run" / "status.json")
        time.sleep(0.5)
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()  # if the signal did not stop it
    assert process.returncode == code, out
    assert "Stopped and saved at 0 frames" in out
    assert len(checkpoint.checkpoints(tmp_path / "run" / "checkpoints")) == 1


def test_a_second_start_is_refused_by_name_and_the_lock_of_the_dead_is_taken_over(tmp_path: Path):
    arguments = ["train", "toy/reach", *LONG, "--run-dir", "run"]
    first = _maskrl(tmp_path, *arguments)
    _wait_for(first, tmp_path / "run" / "status.json")
    second = _maskrl(tmp_path, *arguments)
    out, _ = second.communicate(timeout=60)
    assert second.returncode == 2
    assert f"is being trained by process {first.pid} on " in out
    assert first.poll() is None
    first.kill()
    first.communicate()
    third = _maskrl(tmp_path, *arguments)
    _wait_for(third, tmp_path / "run" / "lock", containing=str(third.pid))
    third.kill()
    third.communicate()


def _maskrl(cwd: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "maskrl", *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _wait_for(process: "subprocess.Popen[str]", path: Path, containing: str = "") -> None:
    while not (path.exists() and containing in path.read_text()):
        assert process.poll() is None, process.stdout.read()  # type: ignore[union-attr]
        time.sleep(0.1)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path, where: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(where * (len(content) - 1))] ^= 1
    path.write_bytes(content)


def delete(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [truncate, flip, lambda path: flip(path, 0.001), empty, delete])
def test_after_harm_to_the_newest_checkpoint_the_one_before_leads_to_the_same_end(stopped: Run, whole: Run, harm):
    newest, before = checkpoint.checkpoints(stopped.checkpoints)
    harm(newest.path)
    watcher = Silent()
    run, _ = trained(stopped.path, stopped.recipe, watcher)
    assert watcher.began.frames == 100
    assert_same_run(run, whole)
    if harm is not delete:
        assert f"{newest.path.name} is damaged" in watcher.notes[0]
        assert f"using the previous checkpoint, {before.path.name}" in watcher.notes[0]
        assert [event["text"] for event in run.events("note")] == watcher.notes
        assert newest.path.with_suffix(".damaged").exists()  # nothing is thrown away


def test_an_evaluation_takes_the_one_before_and_touches_nothing(stopped: Run, capsys):
    newest, before = checkpoint.checkpoints(stopped.checkpoints)
    truncate(newest.path)
    assert command("evaluate", str(stopped.path), "--episodes", "1") == 0
    out, complaint = capsys.readouterr()
    assert "checkpoint at 100 frames" in out
    assert f"{newest.path.name} is damaged" in complaint
    assert checkpoint.checkpoints(stopped.checkpoints) == [newest, before]


def test_the_one_before_is_complete_even_if_the_ring_has_wrapped_since(tmp_path: Path):
    recipe = tiny_rainbow(replay=ReplayConfig(capacity=30), budget=Budget(decisions=250))
    whole, _ = trained(tmp_path / "whole", recipe)
    killed(tmp_path / "killed", recipe, at=249)  # checkpoints of 150 and 200, and 85 slots written since the older one
    delete(checkpoint.checkpoints(tmp_path / "killed" / "checkpoints")[0].path)
    assert_same_run(end_of(recipe, tmp_path / "killed", at_least=150), whole)


def test_without_any_good_checkpoint_nothing_is_begun_again(stopped: Run):
    log = (stopped.path / "metrics.jsonl").read_bytes()
    both = checkpoint.checkpoints(stopped.checkpoints)
    for one in both:
        truncate(one.path)
    with pytest.raises(RunError, match=r"no checkpoint that can be read: .* and|damaged.*start again"):
        train(stopped.recipe, stopped)
    for file in stopped.checkpoints.iterdir():
        file.unlink()
    with pytest.raises(RunError, match="has reached 130 frames, but its checkpoints are gone"):
        train(stopped.recipe, stopped)
    assert (stopped.path / "metrics.jsonl").read_bytes() == log


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path, stopped: Run):
    other, _ = trained(tmp_path / "other", tiny_recipe(seed=2, budget=Budget(frames=50)))
    (source, *_) = checkpoint.checkpoints(other.checkpoints)
    shutil.copy(source.path, stopped.checkpoints / f"000099-{source.digest}.safetensors")
    with pytest.raises(RunError, match=rf"is of another recipe.*here {digest(stopped.recipe)}"):
        train(stopped.recipe, stopped)


def test_a_checkpoint_of_the_future_is_refused(stopped: Run, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 99)
        stopped.save({"whatever": "comes"})
    with pytest.raises(RunError, match=r"has format 99; .*Use the version that the run was made with"):
        train(stopped.recipe, stopped)


def test_a_run_of_another_format_is_told_so_whatever_its_replay_looks_like(
    stopped: Run, monkeypatch: pytest.MonkeyPatch
):
    """That of format 3 had the stamps of its frames in another file."""
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 3)
        stopped.save({"whatever": "was"})
    (stopped.path / "replay" / "stamps.u32").unlink()
    (stopped.path / "replay" / "stamps.bin").write_bytes(bytes(3000))
    with pytest.raises(RunError, match=r"has format 3; .*Use the version that the run was made with"):
        train(stopped.recipe, stopped)


def test_a_replay_cut_short_where_nothing_was_leads_to_the_same_end(stopped: Run, whole: Run):
    for name in ("frames.u8", "stamps.u32"):
        truncate(stopped.path / "replay" / name)
    assert_same_run(end_of(stopped.recipe, stopped.path, at_least=100), whole)


@pytest.mark.parametrize("name", ["frames.u8", "stamps.u32"])
def test_a_replay_that_has_lost_its_newest_frames_is_refused(stopped: Run, name: str):
    os.truncate(stopped.path / "replay" / name, 100)
    with pytest.raises(RunError, match=r"cannot be continued.*files do not hold the .* frames of the state"):
        train(stopped.recipe, stopped)


def test_a_replay_that_is_too_long_is_refused(stopped: Run):
    with (stopped.path / "replay" / "frames.u8").open("ab") as file:
        file.write(b"more")
    with pytest.raises(RunError, match=r"frames\.u8 has \d+ bytes, this replay needs \d+: it is damaged"):
        train(stopped.recipe, stopped)


def test_a_deleted_replay_is_refused(stopped: Run):
    shutil.rmtree(stopped.path / "replay")
    with pytest.raises(RunError, match=r"cannot be continued.*files do not hold the .* frames of the state"):
        train(stopped.recipe, stopped)


def test_a_damaged_frame_is_left_out_and_told_of(stopped: Run):
    flip(stopped.path / "replay" / "frames.u8", 0.2)
    watcher = Silent()
    run, _ = trained(stopped.path, stopped.recipe, watcher)
    assert re.match(r"\d+ frames of the replay are damaged, or older", watcher.notes[0])
    assert run.status == "done"


@pytest.mark.parametrize("tail", [b'{"kind": "upd', b"\xff\xfe", b"\n\n", b'{"kind": "update", "frames": 121}'])
def test_a_torn_log_is_repaired_without_losing_or_doubling_a_line(stopped: Run, whole: Run, tail: bytes):
    with (stopped.path / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    assert_same_run(end_of(stopped.recipe, stopped.path, at_least=100), whole)
    for line in (stopped.path / "metrics.jsonl").read_text().splitlines():
        assert "kind" in json.loads(line)


@pytest.mark.parametrize("name", ["status.json", "versions.json", "lock"])
@pytest.mark.parametrize("harm", [truncate, empty, delete])
def test_lesser_files_are_not_needed_to_continue(stopped: Run, whole: Run, name: str, harm):
    harm(stopped.path / name)
    assert_same_run(end_of(stopped.recipe, stopped.path, at_least=100), whole)


def test_other_versions_are_told_of(stopped: Run):
    versions = json.loads((stopped.path / "versions.json").read_text())
    (stopped.path / "versions.json").write_text(json.dumps(versions | {"torch": "1.0"}))
    watcher = Silent()
    trained(stopped.path, stopped.recipe, watcher)
    assert f"torch 1.0 → {torch.__version__}" in watcher.notes[0]


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────

SMALL = [
    *("budget.frames=120", "checkpoint_every=60", "evaluation.every=60", "evaluation.episodes=1", "threads=1"),
    *("agent.warmup_decisions=50", "agent.batch_size=8", "agent.auxiliary.clips=2"),
]


def limited(connection: Any, which: int, limit: int, arguments: list[str]) -> None:
    """The command with a limit of the system on it."""
    os.dup2(connection.fileno(), 1)
    os.dup2(connection.fileno(), 2)
    torch.set_num_threads(1)
    if which == resource.RLIMIT_AS:  # beyond what the process has now
        limit += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(which, (limit, limit))
    cli.main(arguments)


def under_limit(which: int, limit: int, arguments: list[str]) -> tuple[int | None, str]:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=limited, args=(theirs, which, limit, arguments))
    process.start()
    theirs.close()
    out = b""
    while block := os.read(ours.fileno(), 1 << 16):
        out += block
    process.join()
    return process.exitcode, out.decode()


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path: Path):
    """A limit on the size of a file, which the checkpoint of decision 60 is within and that of decision 120 is not."""
    arguments = ["train", "toy/reach", *SMALL, "--profile", "lite", "--run-dir"]
    assert command(*arguments, str(tmp_path / "whole")) == 0
    whole = Run.open(tmp_path / "whole")
    sizes = [event["bytes"] for event in whole.events("checkpoint")]
    assert sizes[0] < sizes[1]  # the optimisers have begun
    limit = max(sum(sizes) // 2, 1 + max(file.stat().st_size for file in (whole.path / "replay").iterdir()))
    assert limit < sizes[1]
    code, out = under_limit(resource.RLIMIT_FSIZE, limit, [*arguments, str(tmp_path / "run")])
    assert code == 2, out
    assert "File too large. The last checkpoint is kept. Make room and continue with:" in out
    assert len(checkpoint.checkpoints(tmp_path / "run" / "checkpoints")) == 1
    assert command(*arguments, str(tmp_path / "run")) == 0
    assert_same_run(Run.open(tmp_path / "run"), whole)


def test_a_replay_larger_than_a_file_may_be_is_refused_at_the_start(tmp_path: Path):
    arguments = ["train", "toy/reach", *SMALL, "--run-dir", str(tmp_path / "run")]
    code, out = under_limit(resource.RLIMIT_FSIZE, 100_000, arguments)
    assert code == 2, out
    assert "File too large: the replay needs" in out


@pytest.fixture
def small_disk(tmp_path: Path):
    """A real one, of 64 MB, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64M", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


class Filling(Silent):
    """Somebody else takes what is left of the disk."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self.ballast = place / "ballast"

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        if clock.decisions == 60 and not self.ballast.exists():
            self.ballast.write_bytes(bytes(shutil.disk_usage(self.ballast.parent).free - 8192))


def test_a_disk_that_fills_up_stops_the_run_and_room_lets_it_go_on(small_disk: Path, whole: Run):
    watcher = Filling(small_disk)
    with pytest.raises(OSError, match="No space left on device"):
        trained(small_disk / "run", whole.recipe, watcher)
    watcher.ballast.unlink()
    assert_same_run(end_of(whole.recipe, small_disk / "run", at_least=50), whole)


def test_a_disk_that_is_full_already_is_refused_with_the_figures(small_disk: Path, capsys):
    (small_disk / "ballast").write_bytes(bytes(60_000_000))
    assert command("train", "toy/reach", *SMALL, "--profile", "lite", "--run-dir", str(small_disk / "run")) == 2
    assert re.search(r"The replay and the checkpoints will take \d+ MB on the disk of .*free", capsys.readouterr().err)
    assert not (small_disk / "run").exists()


def test_a_directory_that_became_read_only_is_refused(small_disk: Path):
    recipe = tiny_recipe()
    with pytest.raises(Stopped):
        trained(small_disk / "run", recipe, Silent(interrupt_at=60))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(RunError, match=r"Cannot write to .*Read-only file system"):
        train(recipe, Run.open(small_disk / "run"))
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert end_of(recipe, small_disk / "run", at_least=50).status == "done"


def test_too_little_memory_for_the_replay_is_refused(tmp_path: Path):
    arguments = ["train", "toy/reach", *SMALL, "--run-dir", str(tmp_path / "run"), "replay.storage=memory"]
    large = ["budget.frames=1000000", "replay.capacity=1000000"]
    code, out = under_limit(resource.RLIMIT_AS, 400_000_000, [*arguments, *large])
    assert code == 2, out
    assert re.search(r"replay will take .* of memory|not enough memory for the replay", out)


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch):
    start = [2e9]

    def backwards() -> float:
        start[0] -= 3600
        return start[0]

    monkeypatch.setattr(time, "time", backwards)
    assert_same_run(end_of(whole.recipe, tmp_path), whole)


# ── environments ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Trouble(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that fails at its nth step or reset over all its copies, as often as asked."""

    def __init__(self, env: gym.Env[Any, Any], trouble: "Plan") -> None:
        super().__init__(env)
        self.trouble = trouble

    def reset(self, **options: Any) -> Any:
        self.trouble.meet("reset")
        return self.trouble.spoil(self.env.reset(**options), "reset")

    def step(self, action: Any) -> Any:
        self.trouble.meet("step")
        return self.trouble.spoil(self.env.step(action), "step")


class Plan:
    def __init__(self, what: str, at: int, *, times: int = 1, spoil: Callable[[Any], Any] | None = None) -> None:
        self.what, self.at, self.times, self._spoil, self.calls = what, at, times, spoil, 0

    def due(self, what: str) -> bool:
        return what == self.what and self.at <= self.calls and self.times > 0

    def meet(self, what: str) -> None:
        self.calls += what == self.what
        if self._spoil is None and self.due(what):
            self.times -= 1
            raise OSError("the robot is out of reach")

    def spoil(self, result: Any, what: str) -> Any:
        if self._spoil is not None and self.due(what):
            self.times -= 1
            return self._spoil(result)
        return result


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    make = ToyControl.make

    def use(plan: Plan, *, training: bool = True) -> None:
        def troubled(self: ToyControl, *, seed: int, training: bool) -> Any:
            env = make(self, seed=seed, training=training)
            return Trouble(env, plan) if training is wanted else env

        wanted = training
        monkeypatch.setattr(ToyControl, "make", troubled)

    return use


def nan_reward(result: Any) -> Any:
    obs, _, *rest = result
    return obs, float("nan"), *rest


def wrong_shape(result: Any) -> Any:
    obs, *rest = result
    return obs[:, 1:], *rest


def wrong_type(result: Any) -> Any:
    obs, *rest = result
    return obs / np.float32(255), *rest


@pytest.mark.parametrize("spoil", [None, nan_reward, wrong_shape, wrong_type])
@pytest.mark.parametrize(("what", "at"), [("step", 3), ("step", 77), ("reset", 1), ("reset", 3)])
def test_one_hiccup_of_the_environment_changes_nothing(tmp_path: Path, whole: Run, plan, what: str, at: int, spoil):
    if what == "reset" and spoil is nan_reward:
        return  # a reset has no reward
    plan(Plan(what, at, spoil=spoil))
    watcher = Silent()
    run, _ = trained(tmp_path, whole.recipe, watcher)
    assert_same_run(run, whole)
    assert re.match(r"The environment failed at .* Trying once more in a fresh one\.", watcher.notes[0])
    assert len(watcher.notes) == 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(None, "the robot is out of reach"), (nan_reward, "the reward is nan"), (wrong_shape, r"is uint8 \(9, 27, 28\)")],
)
def test_an_environment_that_stays_broken_stops_the_run_with_the_checkpoint_safe(
    tmp_path: Path, whole: Run, plan, spoil, words: str, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context():
        plan(Plan("step", 77, times=10**6, spoil=spoil))
        with pytest.raises(EnvironmentFailedError, match=f"decision 37 of episode 1, and again.*{words}"):
            trained(tmp_path, whole.recipe)
    run = Run.open(tmp_path)
    assert run.status == "failed"
    monkeypatch.undo()
    assert_same_run(end_of(run.recipe, tmp_path, at_least=50), whole)


def test_a_hiccup_in_an_evaluation_changes_nothing(tmp_path: Path, whole: Run, plan):
    plan(Plan("step", 300), training=False)
    watcher = Silent()
    run, _ = trained(tmp_path, whole.recipe, watcher)
    assert_same_run(run, whole)
    assert "An evaluation failed (OSError: the robot is out of reach)" in watcher.notes[0]


def test_an_evaluation_that_stays_broken_stops_the_run(tmp_path: Path, whole: Run, plan, monkeypatch):
    plan(Plan("step", 300, times=10**6), training=False)
    with pytest.raises(EnvironmentFailedError, match="An evaluation failed, and again in fresh environments"):
        trained(tmp_path, whole.recipe)
    monkeypatch.undo()
    assert_same_run(end_of(whole.recipe, tmp_path), whole)


class Weather(gym.Wrapper[Any, Any, Any, Any]):
    """An environment of which no seed decides what it shows."""

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        return obs ^ np.uint8(os.urandom(1)[0]), info


def test_an_environment_that_does_not_come_back_loses_the_episode_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make = ToyControl.make
    monkeypatch.setattr(ToyControl, "make", lambda self, **options: Weather(make(self, **options)))
    with pytest.raises(Stopped):
        trained(tmp_path, tiny_recipe(), Silent(interrupt_at=130))
    watcher = Silent()
    run, _ = trained(tmp_path, tiny_recipe(), watcher)
    assert len(watcher.notes) == 1
    assert re.match(
        r"The environment was not restored: the first observation of episode 3 differs from before\. "
        r"Episode 3 is closed as truncated",
        watcher.notes[0],
    )
    state = run.restore()
    assert state is not None
    replay = state["replay"]
    third = replay["first"].unique()[3]
    assert replay["truncated"][replay["first"] == third].nonzero().flatten().tolist() == [9]  # of decisions 121 to 130
    assert not replay["terminated"].any()
    assert run.status == "done"
