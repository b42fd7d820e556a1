"""How the benchmarks measure and print. How long anything takes is asserted nowhere."""

import json
import math
import os
import time

import pytest

from maskrl.bench.measure import Measured, fresh_processes, in_turns
from maskrl.bench.result import Result, table, words
from maskrl.cost.timing import seconds_each


def test_a_measurement_is_its_median_with_its_extremes():
    assert Measured.of([3.0, 1.0, 10.0]) == Measured(3.0, 1.0, 10.0)


def test_a_ratio_is_taken_round_by_round():
    """In the second round all was ten times as slow; 20 / 3 would come of the medians."""
    assert Measured.ratio([2.0, 20.0, 6.0], [1.0, 10.0, 3.0]) == Measured(2.0, 2.0, 2.0)


def test_turns_are_taken_round_by_round():
    calls, told = list[str](), list[str]()

    def sampler(name: str, seconds: float):
        return lambda: calls.append(name) or seconds

    samples = in_turns({"slow": sampler("slow", 2.0), "fast": sampler("fast", 0.5)}, 2, told.append)
    assert calls == ["slow", "fast", "slow", "fast"]
    assert samples == {"slow": [2.0, 2.0], "fast": [0.5, 0.5]}
    assert told == ["Round 1 of 2: slow 2, fast 0.5.", "Round 2 of 2: slow 2, fast 0.5."]


def test_seconds_of_each_call():
    calls = []
    seconds = seconds_each(lambda: calls.append(time.sleep(0.02)), 3)
    assert len(calls) == 3
    assert seconds >= 0.02


@pytest.mark.slow
def test_processes_answer_or_say_what_failed():
    with fresh_processes(2) as pool:
        assert list(pool.map(math.sqrt, (4, 9))) == [2, 3]
        with pytest.raises(ValueError, match=r"math domain error|nonnegative"):
            pool.submit(math.sqrt, -1).result()
    with pytest.raises(RuntimeError, match="ended without an answer"), fresh_processes(1) as pool:
        pool.submit(os._exit, 3).result()


# ── Printing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("seconds_per_update", 0.1354, "135.4 ms"),
        ("share", 0.3421, "34.2%"),
        ("share", 0.00123, "0.123%"),
        ("replay_bytes", 3_030_000_000, "3.0 GB"),
        ("flop_per_update", 8.377e9, "8.377 GFLOP"),
        ("flop_per_second", Measured(62e9, 60e9, 64e9), "62 GFLOP/s (60 GFLOP/s – 64 GFLOP/s)"),
        ("transitions", 100_000, "100,000"),
        ("frames_per_second", 12_002.4, "12,002"),
        ("speed_up", 1.7412, "1.74"),
        ("milliseconds", {"drawing": 20.04, "rest": 0.154}, "drawing 20, rest 0.154"),
        ("compared", ["overlap=true", "seed=3"], "overlap=true, seed=3"),
        ("backend", None, "–"),
    ],
)
def test_a_value_is_printed_in_the_unit_of_its_name(name: str, value: object, expected: str):
    assert words(name, value) == expected


def test_words_are_to_the_left_and_numbers_to_the_right_and_empty_columns_are_left_out():
    rows = [{"task": "pong", "size": 48, "shadow_size": None}, {"task": "reach", "size": 100, "shadow_size": None}]
    assert table(rows) == "task   size\npong     48\nreach   100"


def test_a_result_is_facts_tables_and_notes_or_one_object():
    values = {
        "recipe": "toy/reach",
        "speed": Measured(2.0, 1.0, 3.0),
        "note": None,
        "seconds_by_part": {"critic": 0.03, "other": 0.01},
        "share_by_part": {"critic": 0.75},
        "rows": [{"value": 3}],
    }
    text = Result(values, ["That is all."]).text()
    assert text.split("\n\n") == [
        "recipe  toy/reach\nspeed   2 (1 – 3)",
        "part    seconds  share\ncritic    30 ms    75%\nother     10 ms      –",
        "value\n    3",
        "That is all.",
    ]
    assert json.loads(Result(values).json()) == values | {"speed": {"median": 2.0, "low": 1.0, "high": 3.0}}
