"""Numbers as people read them."""

import pytest

from maskrl.words import count, duration, number, ranges, size


@pytest.mark.parametrize(
    ("seconds", "words"), [(5.4, "5 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (273600, "3 d 04 h")]
)
def test_durations_are_read_at_a_glance(seconds: float, words: str):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (0.12345, "0.123"), (12.34, "12.3"), (876.5, "876"), (1234.5, "1,234"), (1e-5, "1.00e-05")],
)
def test_numbers_have_three_digits(value: float, words: str):
    assert number(value) == words


@pytest.mark.parametrize(
    ("bytes_", "words"), [(999, "999 B"), (1500, "1.5 kB"), (23_400_000, "23 MB"), (4 * 10**15, "4,000 TB")]
)
def test_sizes_have_the_unit_that_a_person_would_choose(bytes_: int, words: str):
    assert size(bytes_) == words


def test_nouns_agree_with_their_number():
    assert [count(number, "episode") for number in (1, 2000)] == ["1 episode", "2,000 episodes"]


def test_numbers_that_follow_each_other_are_a_range():
    assert ranges([1, 2, 3, 7, 9, 10]) == "1–3, 7, 9–10"
    assert ranges([]) == ""
    assert ranges(range(0, 100, 2)).endswith("20, 22, …")
