"""A run that something else makes slow says so, once, with the cause that shows; and else it is silent."""

from dataclasses import replace

import pytest

from maskrl.runs import pace
from maskrl.runs.directory import Run
from maskrl.runs.loop import train
from maskrl.runs.pace import Pace, Reading, judged, read
from tiny_runs import tiny_recipe

QUIET = Reading(load=2.0, throttled=0.0, stalled=0.0, frequency=0.9)
ALL_THE_TIME, LITTLE = {"seconds": 60.0, "worked": 59.0, "cores": 2}, {"seconds": 60.0, "worked": 12.0, "cores": 2}
UNKNOWN = Reading(None, None, None, None)


def machine(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


FILES = {
    "proc/loadavg": "7.25 4.0 2.0 9/500 12345\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=1.00 avg300=0.00 total=30000000\nfull avg10=0.00 total=7\n",
    "proc/self/cgroup": "0::/jobs/mine\n",
    "sys/fs/cgroup/jobs/cpu.stat": "usage_usec 9\nnr_throttled 3\nthrottled_usec 20000000\n",
    "sys/fs/cgroup/jobs/mine/cpu.stat": "usage_usec 9\nnr_throttled 3\nthrottled_usec 5000000\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "800000\n",
    "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "4000000\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "1000000\n",
    "sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq": "4000000\n",
}


def test_a_machine_is_read_from_its_files(tmp_path):
    assert read(machine(tmp_path, FILES)) == Reading(load=7.25, throttled=20.0, stalled=30.0, frequency=0.25)


def test_a_control_group_of_version_1_is_read(tmp_path):
    files = {"proc/self/cgroup": "4:cpu,cpuacct:/mine\n", "sys/fs/cgroup/cpu/cpu.stat": "throttled_time 3000000000\n"}
    assert read(machine(tmp_path, files)).throttled == 3.0


@pytest.mark.parametrize("text", ["", "nonsense", "\n\n", "a=b c=d"])
def test_what_a_machine_does_not_tell_is_unknown(tmp_path, text):
    assert read(tmp_path) == UNKNOWN
    assert read(machine(tmp_path, dict.fromkeys(FILES, text) | {"proc/self/cgroup": "0::/jobs/mine\n"})) == UNKNOWN


@pytest.mark.parametrize(
    ("change", "worked", "words"),
    [
        ({"load": 9.4}, LITTLE, "the load is 9.4, and there are 2 cores"),
        ({"throttled": 40.0, "load": 9.4}, LITTLE, "quota of its control group"),
        ({"stalled": 40.0, "load": 9.4}, LITTLE, "waited for memory 67% of the time"),
    ],
)
def test_the_cause_that_shows_is_named_with_what_to_do(change, worked, words):
    text = judged(QUIET, replace(QUIET, **change), **worked)
    assert "about 6 times slower" in text  # 12 of 60 seconds, at 0.9 of the frequency
    assert words in text


def test_a_hot_processor_is_named_if_it_is_slow_at_both_moments():
    hot = replace(QUIET, frequency=0.25)
    assert "runs at 25% of its frequency" in judged(hot, hot, **ALL_THE_TIME)
    assert judged(QUIET, hot, **ALL_THE_TIME) is None


@pytest.mark.parametrize(
    ("after", "worked"),
    [
        (replace(QUIET, load=50.0, throttled=50.0, stalled=50.0), ALL_THE_TIME),  # the run is not slow
        (replace(QUIET, load=4.5), {"seconds": 60.0, "worked": 30.0, "cores": 2}),  # it is, but not far
        (QUIET, LITTLE),  # far, but why does not show
        (replace(QUIET, load=9.4), {**LITTLE, "cores": 8}),
        (UNKNOWN, LITTLE),
    ],
)
def test_nothing_is_said_without_slowness_and_a_cause(after, worked):
    assert judged(QUIET, after, **worked) is None
    assert judged(UNKNOWN, UNKNOWN, **worked) is None


def test_a_run_says_it_once(tmp_path, monkeypatch):
    run = Run.create(tmp_path / "run", tiny_recipe())
    monkeypatch.setattr(pace, "WINDOW", 1e-9)  # every update is a window
    monkeypatch.setattr(pace, "FAR", 1e9)  # and every one is slow
    monkeypatch.setattr(pace, "read", lambda root: replace(QUIET, load=1e6))
    train(run.recipe, run)
    notes = [event["text"] for event in run.events("note")]
    assert len(notes) == 1
    assert "Other programs want the same cores" in notes[0]


def test_only_the_time_of_updates_counts(monkeypatch):
    seconds, work = iter([0.0, 50.0, 1000.0, 1020.0]), iter([0.0, 5.0, 900.0, 902.0])
    monkeypatch.setattr(pace.time, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(pace.time, "thread_time", lambda: next(work))
    monkeypatch.setattr(pace, "read", lambda root: replace(QUIET, load=9.4))
    watched = Pace()
    with watched:
        pass
    assert watched.complaint() is None  # 50 seconds
    with watched:
        pass
    assert "11 times slower" in watched.complaint()  # 7 of 70 seconds, at 0.9 of the frequency
    assert watched.complaint() is None
