"""`maskrl bench load`: each variant in a process whose OpenMP was told how to wait, beside real busy processes."""

import os
import subprocess

import pytest

from maskrl.bench import load
from maskrl.threads import NAMES, PASSIVE
from tiny_runs import tiny_recipe


def told(name):
    return os.environ.get(name)


@pytest.mark.parametrize(("waiting", "settings"), [("passive", PASSIVE), ("7", {"GOMP_SPINCOUNT": "7"})])
def test_a_process_is_told_how_to_wait_and_ours_stays_as_it_was(waiting, settings, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    with load._process(tiny_recipe(), load.Variant(1, waiting)) as process:
        there = {name: process.submit(told, name).result() for name in NAMES}
    assert there == {name: settings.get(name) for name in NAMES}
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_busy_processes_are_there_and_then_gone(monkeypatch):
    monkeypatch.setattr(load, "SETTLE", 0.0)
    started, start = [], subprocess.Popen

    def started_by_us(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(load.subprocess, "Popen", started_by_us)
    with load._busy(2):
        assert [process.poll() for process in started] == [None, None]
    assert all(process.poll() is not None for process in started)


def test_one_thread_has_nothing_to_compare():
    with pytest.raises(ValueError, match="threads=2"):
        load.bench_load(tiny_recipe(threads=1))


@pytest.mark.parametrize(
    ("threads", "busy_range", "idle_range"),
    [(2, (0.75, 1.0), (0.9, 0.9)), (None, (2 / 3, 1.0), (0.45, 0.45))],
    ids=["asked for", "of a small recipe: one"],
)
def test_speeds_are_ratios_within_a_round(threads, busy_range, idle_range):
    one, passive, untold = variants = [
        load.Variant(1, "passive"),
        load.Variant(2, "passive"),
        load.Variant(2, "untold"),
    ]
    samples = {
        **{(0, one): [2.0, 4.0], (0, passive): [1.0, 2.0], (0, untold): [0.9, 1.8]},
        **{(2, one): [3.0, 3.0], (2, passive): [4.0, 2.0], (2, untold): [9.0, 9.0]},
    }
    result = load._result(tiny_recipe(threads=threads), samples, 2, variants)
    busy, idle = result.values["busy_speed"], result.values["idle_speed"]
    assert (busy.low, busy.high) == pytest.approx(busy_range)
    assert (idle.low, idle.high) == pytest.approx(idle_range)
    assert [row["of_the_best"].median for row in result.values["load"][:3]] == pytest.approx([0.45, 0.9, 1.0])
    assert result.values["threads"] == (threads or 1)
    assert "the better of 1 and 2" in " ".join(result.text().split())
