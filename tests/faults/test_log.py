"""The log of a run is exact: no event twice, none missing, under any order of signals, kills, deletions and restarts."""

import os
import random
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import killing
from builders import Silent
from killing import START, Trainer, _between, child, counts, kills, sequences
from maskrl.clock import Clock
from maskrl.recipes.schema import Recipe
from maskrl.runs import checkpoint
from maskrl.runs.directory import Run, RunError
from maskrl.runs.signals import Stopped
from tiny_runs import events, same_end, tiny_recipe, trained

pytestmark = pytest.mark.faults

DECISIONS, SAVE, EVALUATE, EPISODE = 24, 6, 8, 5


class Sitting:
    """A trainer without networks. It does to the directory of a run what the loop and its state do."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.run = Run.create(path, recipe)
        self.context = self.run.locked()
        self.context.__enter__()
        try:
            state = self.run.restore(set_aside=True)
        except BaseException:
            self.leave()
            raise
        self.decisions, self.evaluated = (0, -1) if state is None else (state["decisions"], state["evaluated"])
        self.saved = None if state is None else (self.decisions, self.evaluated)
        clock, mark = (None, None) if state is None else (self.clock, state.get("log"))
        rewound = self.run.rewind(clock, mark, evaluated=self.evaluated)
        if rewound.complaint:
            self.run.log("note", self.clock, {"text": rewound.complaint})
        if state is not None and not rewound.checkpoint:
            self.log("checkpoint", bytes=1)

    @property
    def clock(self) -> Clock:
        return Clock(self.decisions, self.decisions, max(0, self.decisions - 4), 0.0)

    @property
    def done(self) -> bool:
        return self.decisions >= DECISIONS and self.evaluated == self.decisions

    def log(self, kind: Any, **values: Any) -> None:
        self.run.log(kind, self.clock, values)

    def evaluate(self) -> None:
        if self.evaluated != self.decisions and (self.decisions % EVALUATE == 0 or self.decisions == DECISIONS):
            if self.decisions == 0:
                self.log("random", score=1.0, returns=[1.0])
            self.log("evaluation", score=float(self.decisions), returns=[float(self.decisions)])
            self.evaluated = self.decisions
            self.log("probe", rank=1.0)
            self.log("timing", parts={})

    def save(self, *, line: bool = True) -> None:
        state = {"decisions": self.decisions, "evaluated": self.evaluated, "weights": torch.zeros(1)}
        self.run.save(state)
        if line:
            self.log("checkpoint", bytes=1)
        self.saved = (self.decisions, self.evaluated)

    def turn(self) -> None:
        """One round of the loop."""
        self.evaluate()
        if (
            (self.decisions % SAVE == 0 or self.done)
            and self.decisions
            and self.saved != (self.decisions, self.evaluated)
        ):
            self.save()
        if not self.done:
            self.decisions += 1
            if self.decisions > 4:
                self.log("update", loss=0.5)
            if self.decisions % EPISODE == 0:
                self.log("episode", **{"return": 1.0})

    def leave(self) -> None:
        self.context.__exit__(None, None, None)


def own_events(run: Run) -> list[dict[str, Any]]:
    return [event for event in run.events() if event["kind"] not in ("checkpoint", "note")]


class LogMachine(RuleBasedStateMachine):
    """A run in the hands of fate."""

    expected: list[dict[str, Any]]

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.path, self.recipe = Path(self.folder.name, "run"), tiny_recipe(checkpoint_every=SAVE)
        self.sitting: Sitting | None = None
        self.harmed, self.old_log = False, b""

    def _sit(self) -> Sitting:
        self.sitting = self.sitting or Sitting(self.path, self.recipe)
        return self.sitting

    @rule(turns=st.integers(1, 12))
    def work(self, turns: int) -> None:
        for _ in range(turns):
            self._sit().turn()

    @precondition(lambda self: self.sitting is not None)
    @rule(torn=st.binary(max_size=30), evaluate=st.booleans())
    def kill(self, torn: bytes, evaluate: bool) -> None:
        """At once, or after the result of an evaluation was logged; perhaps in the middle of a line."""
        if evaluate:
            self._sit().evaluate()
        self._sit().leave()
        self.sitting = None
        if torn:
            with (self.path / "metrics.jsonl").open("ab") as file:
                file.write(torn.replace(b"\n", b""))

    @precondition(lambda self: self.sitting is not None and self.sitting.decisions > 0)
    @rule()
    def kill_after_a_checkpoint(self) -> None:
        """Before its line was logged."""
        self._sit().save(line=False)
        self._sit().leave()
        self.sitting = None

    @precondition(lambda self: self.sitting is not None)
    @rule()
    def terminate(self) -> None:
        """Saved between two decisions, or within an evaluation, which is given up."""
        self._sit().save()
        self._sit().leave()
        self.sitting = None

    @precondition(lambda self: self.sitting is not None)
    @rule(delete=st.booleans())
    def start_a_second(self, delete: bool) -> None:
        if delete:
            (self.path / "lock").unlink(missing_ok=True)
        with pytest.raises(RunError, match="is being trained by"):
            Sitting(self.path, self.recipe)

    @precondition(lambda self: self.sitting is None and len(self._checkpoints()) > 1)
    @rule(torn=st.booleans())
    def lose_the_newest_checkpoint(self, torn: bool) -> None:
        newest, *_ = self._checkpoints()
        if torn:
            os.truncate(newest.path, newest.path.stat().st_size - 1)
        else:
            newest.path.unlink()

    @precondition(lambda self: self.sitting is None and self._checkpoints())
    @rule(how=st.sampled_from(["deleted", "older", "emptied", "changed"]))
    def harm_the_log(self, how: str) -> None:
        log = self.path / "metrics.jsonl"
        content = log.read_bytes() if log.exists() else b""
        changed = {"deleted": b"", "older": self.old_log, "emptied": b"", "changed": content[3:]}[how]
        self.harmed |= changed != content
        if how == "deleted":
            log.unlink(missing_ok=True)
        else:
            log.write_bytes(changed)

    @precondition(lambda self: self.sitting is None and (self.path / "metrics.jsonl").exists())
    @rule()
    def back_up_the_log(self) -> None:
        self.old_log = (self.path / "metrics.jsonl").read_bytes()

    def _checkpoints(self) -> list[checkpoint.Checkpoint]:
        return checkpoint.checkpoints(self.path / "checkpoints")

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        while not self._sit().done or self._sit().saved != (DECISIONS, DECISIONS):
            self._sit().turn()
        self._sit().leave()
        found = own_events(self._sit().run)
        keys = [(event["kind"], event["frames"]) for event in found]
        assert len(keys) == len(set(keys)), "an event twice"
        saves = list(self._sit().run.events("checkpoint"))
        if not self.harmed:
            assert found == self.expected
            assert saves[-1]["decisions"] == DECISIONS
        elif found != self.expected:
            notes = [event["text"] for event in self._sit().run.events("note")]
            assert any("metrics.jsonl does not match the checkpoint" in text for text in notes), notes
        self.folder.cleanup()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    sitting = Sitting(tmp_path_factory.mktemp("undisturbed") / "run", tiny_recipe(checkpoint_every=SAVE))
    while not sitting.done or sitting.saved != (DECISIONS, DECISIONS):
        sitting.turn()
    sitting.leave()
    return own_events(sitting.run)


def test_no_order_of_faults_doubles_or_loses_an_event(undisturbed: list[dict[str, Any]]):
    """500 sequences through the layer of run directories."""
    LogMachine.expected = undisturbed
    few = settings(max_examples=500, stateful_step_count=12, deadline=None, derandomize=True)
    run_state_machine_as_test(LogMachine, settings=few)


def test_twenty_sequences_of_faults_with_real_processes_end_as_their_twins():
    done = sum(sequences(20).values(), Counter[str]())
    assert done["sequences"] == 20
    assert done["SIGKILL"]
    assert done["SIGTERM"]


def test_runs_of_every_agent_that_are_killed_twenty_times_end_as_their_twins():
    """A slice of `make kills`: the toys. DMControl and Atari are killed in test_faults.py and by hand."""
    done = kills(60, only="toy/")  # at most 20 of a run: at least three runs, in turn
    assert sum(map(counts.kills_of, done.values())) >= 60
    assert all(
        done[name]["runs"] for name in ("toy/reach, SAC with MLR", "toy/reach, DrQ-v2", "toy/catch, Rainbow with MLR")
    )
    assert all(counted["differences"] == 0 for counted in done.values())


def test_a_trainer_that_is_not_refused_does_not_wait_for_ever(tmp_path: Path):
    assert Trainer(tmp_path, tiny_recipe(), START).end() == 1


def test_a_fault_before_the_run_begins_leaves_nothing_behind(tmp_path: Path):
    for seed in range(50):
        _between(tmp_path / "run", random.Random(seed))
    assert not list(tmp_path.iterdir())


def test_ctrl_c_after_the_end_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(killing, "trained", lambda *_: None)
    before, threads = signal.getsignal(signal.SIGINT), torch.get_num_threads()
    try:
        child(None, tmp_path, tiny_recipe(), 1)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
        torch.set_num_threads(threads)


# ── The findings that led here ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("whole"), tiny_recipe())[0]


@pytest.mark.parametrize("how", ["deleted", "older"])
def test_a_lost_log_is_told_of_in_the_run_and_the_note_says_how_much(tmp_path: Path, whole: Run, how: str):
    watcher = Silent(interrupt_at=130)
    with pytest.raises(Stopped):
        trained(tmp_path, whole.recipe, watcher)
    log = tmp_path / "metrics.jsonl"
    content = log.read_bytes().splitlines(keepends=True)
    if how == "deleted":
        log.unlink()
    else:
        log.write_bytes(b"".join(content[:5]))
    watcher = Silent()
    run, _ = trained(tmp_path, whole.recipe, watcher)
    assert "metrics.jsonl does not match the checkpoint" in watcher.notes[0]
    assert " lines are missing" in watcher.notes[0]
    assert [event["text"] for event in run.events("note")] == watcher.notes
    assert same_end(run, whole)


def test_an_evaluation_that_was_stopped_and_then_lost_by_a_kill_is_logged_once(tmp_path: Path, whole: Run):
    """The checkpoint was made at the time of the evaluation, and before it."""
    recipe = whole.recipe
    for number in range(3):
        trainer = Trainer(tmp_path, recipe, at=50)
        assert trainer.arrives()
        trainer.struck(15 if number == 0 else 9)
    run, _ = trained(tmp_path, recipe, Silent())
    assert events(run) == events(whole)


def test_a_log_that_is_removed_under_the_trainer_is_told_of(tmp_path: Path):
    class Removes(Silent):
        def write(self, points: Any, clock: Clock) -> None:
            super().write(points, clock)
            if clock.decisions == 75:
                (tmp_path / "metrics.jsonl").unlink(missing_ok=True)

    watcher = Removes()
    trained(tmp_path, tiny_recipe(), watcher)
    assert any("removed, replaced or changed metrics.jsonl" in note for note in watcher.notes)


def test_every_checkpoint_has_its_line_once(tmp_path: Path, whole: Run):
    chance = random.Random(0)
    for at in (20, 60, 110):
        trainer = Trainer(tmp_path, whole.recipe, at)
        assert trainer.arrives()
        trainer.struck(chance.choice([9, 15]))
    run, _ = trained(tmp_path, whole.recipe, Silent())
    lines = [(event["decisions"], event["updates"]) for event in run.events("checkpoint")]
    assert lines == sorted(lines)
    assert len(lines) - len(set(lines)) <= 1  # within an evaluation, and after it
