"""Frames count the steps within their episode and carry its number, so a crossed boundary shows in the pixels."""

import json
import re
import resource
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskrl.replay.buffer import Draw, NothingToDrawError, Replay

FRAME = (2, 2, 3)  # channel 0: the step within the episode; channel 1: the episode's number + 1, so that 0 is black


def frame(episode, step):
    return np.stack([np.full(FRAME[1:], step, np.uint8), np.full(FRAME[1:], episode + 1, np.uint8)])


def stack(episode, step, frames, pad="repeat"):
    """What a frame-stacking environment shows: the oldest frame first, the first frame repeated or black before it."""
    shown = [step - age for age in reversed(range(frames))]
    return np.concatenate([frame(episode, max(s, 0)) * np.uint8(s >= 0 or pad == "repeat") for s in shown])


def empty_replay(*, frame_stack=3, capacity=1000, seed=0, **options):
    return Replay(frame_shape=FRAME, action_dim=2, frame_stack=frame_stack, capacity=capacity, seed=seed, **options)


def live(replay, lengths, *, ending="truncated", last_is_open=False, first_episode=0):
    """Add episodes of so many decisions. The action at step s of episode e is (e, s), its reward s + 1."""
    for episode, length in enumerate(lengths, start=first_episode):
        is_open = last_is_open and episode == first_episode + len(lengths) - 1
        replay.begin_episode(stack(episode, 0, replay.frame_stack, replay.pad))
        for step in range(length):
            ends = step == length - 1 and not is_open
            obs = stack(episode, step + 1, replay.frame_stack, replay.pad)
            flags = {"terminated": ends and ending == "terminated", "truncated": ends and ending == "truncated"}
            replay.add([episode, step], step + 1, obs, **flags)
    return replay


def counting_replay(lengths, *, ending="truncated", last_is_open=False, **options):
    return live(empty_replay(**options), lengths, ending=ending, last_is_open=last_is_open)


def at(*starts):
    """A draw of exactly these frames, counted from the first one ever added."""
    return Draw(np.array(starts, np.int64), torch.ones(len(starts)))


def drawn_starts(replay):
    return set(replay.draw(1000).starts)


def valid_starts(lengths, *, frame_stack, capacity, span=1, whole=True):
    """By brute force, {number of the frame: (episode, step)} of every start with a stored stack and `span` transitions.

    Not `whole`: with one transition, and `span` frames of whatever episode after it.
    """
    where = [(episode, step) for episode, length in enumerate(lengths) for step in range(length + 1)]
    stored = set(where[-(capacity + capacity // 100 + frame_stack + 1) :])
    return {
        number: (episode, step)
        for number, (episode, step) in enumerate(where)
        if step + (span if whole else 1) <= lengths[episode]
        and number + span < len(where)
        and all((episode, max(step - age, 0)) in stored for age in range(frame_stack))
    }


lives = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(0, 12), min_size=1, max_size=8),
        "frame_stack": st.integers(1, 4),
        "capacity": st.integers(1, 40),
    }
)
pads = st.sampled_from(["repeat", "zero"])
exponents = pytest.mark.parametrize("exponent", [None, 0.5], ids=["uniform", "prioritised"])


# ── where ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=100, deadline=None)
@given(
    life=lives,
    span=st.integers(1, 6),
    whole=st.booleans(),
    last_is_open=st.booleans(),
    exponent=st.sampled_from([None, 0.5]),
)
def test_exactly_the_valid_starts_are_drawn(life, span, whole, last_is_open, exponent):
    replay = counting_replay(**life, last_is_open=last_is_open, priority_exponent=exponent)
    starts = valid_starts(**life, span=span, whole=whole)
    if starts:
        assert set(replay.draw(40 * len(starts), span=span, whole=whole).starts) == set(starts)
    else:
        with pytest.raises(NothingToDrawError, match="No stored episode has" if whole else "No stored ep|None of the"):
            replay.draw(1, span=span, whole=whole)


@settings(max_examples=50, deadline=None)
@given(life=lives)
def test_the_length_counts_the_drawable_transitions(life):
    assert len(counting_replay(**life)) == len(valid_starts(**life))


@pytest.mark.parametrize(
    ("lengths", "span"),
    [([30, 10, 20], 4), ([10] + [3] * 30, 4)],
    ids=["most starts are valid: rejection", "few are: enumeration"],
)
def test_draws_are_uniform_over_the_valid_starts(lengths, span):
    replay = counting_replay(lengths)
    starts = valid_starts(lengths, frame_stack=3, capacity=1000, span=span)
    counts = np.unique(replay.draw(1000 * len(starts), span=span).starts, return_counts=True)[1]
    chi_square = ((counts - 1000) ** 2 / 1000).sum()  # its mean is n - 1, its deviation √(2(n - 1))
    n = len(starts)
    assert len(counts) == n
    assert abs(chi_square - (n - 1)) < 5 * np.sqrt(2 * (n - 1))


def test_uniform_draws_are_plain_integers_of_the_seed():
    """Runs of older versions continue, and repeat, exactly: nothing else may take from the generator."""
    replay, generator = counting_replay([20], seed=5), np.random.default_rng(5)
    for _ in range(3):
        assert (replay.draw(8).starts == generator.integers(0, 20, size=32)[:8]).all()


@exponents
def test_a_span_that_is_not_whole_has_been_lived_even_past_the_end_of_its_episode(exponent):
    replay = counting_replay([5, 7], priority_exponent=exponent)  # frames 0 to 5 and 6 to 13
    assert set(replay.draw(1000, span=4, whole=False).starts) == {0, 1, 2, 3, 4, 6, 7, 8, 9}
    live(replay, [2], first_episode=2)  # frames 14 to 16
    assert set(replay.draw(1000, span=4, whole=False).starts) == {0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12}


@exponents
def test_a_span_that_is_not_yet_lived_says_so_and_what_to_change(exponent):
    replay = counting_replay([3, 4], priority_exponent=exponent)  # frames 0 to 3 and 4 to 8
    message = (
        r"None of the 7 stored.*the 9 frames.*has 8 after it.*agent\.n_step.*clip_length.*capacity.*warmup_decisions"
    )
    with pytest.raises(NothingToDrawError, match=message):
        replay.draw(4, span=9, whole=False)
    assert set(replay.draw(4, span=8, whole=False).starts) == {0}


def test_the_last_transition_of_every_episode_is_drawn():
    replay = counting_replay([5, 7, 16])
    starts = drawn_starts(replay)
    assert {4, 12, 29} <= starts  # 4; 6 + 6; 6 + 8 + 15
    assert not {5, 13, 30} & starts  # final frames: no action was taken at them


def test_a_whole_clip_may_end_with_the_episode():
    replay = counting_replay([16])
    assert set(replay.draw(50, span=16).starts) == {0}


def test_the_newest_transition_of_a_running_episode_is_drawn():
    assert 9 in drawn_starts(counting_replay([10], last_is_open=True))


def test_clips_never_cross_an_episode_end():
    replay = counting_replay([20, 20])
    clip = replay.clips(replay.draw(256, span=16), length=16)
    steps = clip.obs[:, :, -2, 0, 0].int()  # (256, 16), of the newest frame
    assert (steps.diff(dim=1) == 1).all()
    assert clip.valid.all()


def test_all_weights_of_a_uniform_draw_are_one():
    draw = counting_replay([5]).draw(7)
    assert len(draw) == 7
    assert torch.equal(draw.weights, torch.ones(7))


def test_the_same_seed_gives_the_same_draws_and_another_seed_others():
    first, second, other = (counting_replay([50], seed=seed).draw(100).starts for seed in (1, 1, 2))
    assert (first == second).all()
    assert (first != other).any()


def test_a_span_that_no_episode_has_says_how_long_the_longest_is_and_what_to_change():
    replay = counting_replay([3, 12, 7])
    message = r"16 transitions in a row.*longest of 3 has 12.*objective\.clip_length.*action_repeat.*agent\.warmup"
    with pytest.raises(ValueError, match=message):
        replay.draw(4, span=16)


@exponents
@pytest.mark.parametrize("lengths", [[], [0], [0] * 9], ids=["nothing", "a first frame alone", "first frames alone"])
def test_nothing_can_be_drawn_before_the_first_decision(lengths, exponent):
    replay = counting_replay(lengths, priority_exponent=exponent)
    assert len(replay) == 0
    for span in (1, 3):
        with pytest.raises(NothingToDrawError, match="has 0"):
            replay.draw(1, span=span, whole=False)


# ── priorities ────────────────────────────────────────────────────────────────────────────────────────────────────────


def leaves_of(replay):
    return replay.state_dict()["leaf"].tolist()


def test_a_new_start_has_the_leaf_one_and_frames_without_a_decision_have_none():
    replay = counting_replay([2, 0, 3], last_is_open=True, priority_exponent=0.5)
    assert replay.is_prioritised
    assert leaves_of(replay) == [1, 1, 0, 0, 1, 1, 1, 0]
    replay.add(**GOOD)
    assert leaves_of(replay) == [1, 1, 0, 0, 1, 1, 1, 1, 0]


def test_a_leaf_is_the_bounded_error_to_the_power_of_the_exponent():
    replay = counting_replay([6], priority_exponent=0.5)
    errors = torch.tensor([4.0, 9.0, 1e-9, -0.1, 1e9], requires_grad=True)
    replay.reprioritise(at(0, 1, 2, 3, 5), errors)
    assert leaves_of(replay) == [2, 3, 1e-6**0.5, 1e-6**0.5, 1, 1e6**0.5, 0]
    replay.reprioritise(at(1), [16])  # any numbers will do
    assert leaves_of(replay)[:2] == [2, 4]


def test_of_a_start_drawn_twice_the_first_error_counts():
    replay = counting_replay([3], priority_exponent=0.5)
    replay.reprioritise(at(1, 2, 1, 1), np.array([4.0, 9.0, 16.0, 25.0]))
    assert leaves_of(replay) == [1, 2, 3, 0]


def test_importance_weights_by_hand():
    replay = counting_replay([3], priority_exponent=1.0)
    replay.reprioritise(at(0, 1, 2), [0.5, 2.0, 8.0])
    for correction, expected in ((0.0, [1.0, 1, 1]), (0.5, [1.0, 1 / 2, 1 / 4]), (1.0, [1.0, 1 / 4, 1 / 16])):
        draw = replay.draw(300, correction=correction)
        assert set(draw.starts) == {0, 1, 2}
        assert draw.weights.dtype == torch.float32
        assert draw.weights.tolist() == pytest.approx(np.array(expected)[draw.starts], abs=2e-5)  # 1e-5 is added below


def test_importance_weights_take_a_little_more_than_the_leaf():
    replay = counting_replay([2], priority_exponent=1.0)
    replay.reprioritise(at(0, 1), [1e-6, 4e-6])
    draw = replay.draw(100, correction=1.0)
    assert set(draw.starts) == {0, 1}
    assert draw.weights.tolist() == pytest.approx(np.array([1, 11 / 14])[draw.starts])


def test_the_largest_weight_is_the_batchs_not_the_replays():
    replay = counting_replay([3], priority_exponent=1.0)
    replay.reprioritise(at(0, 1, 2), [0.5, 2.0, 8.0])
    assert {replay.draw(1, correction=1.0).weights.item() for _ in range(20)} == {1}


@pytest.mark.parametrize("seed", range(5))
def test_a_stratified_draw_takes_one_start_of_each_equal_share(seed):
    """Leaves 1 to 8 and a ninth of 0 at the end: share i of 36 / 12 = 3 lies where the running sum is in [3i, 3i + 3)."""
    replay = counting_replay([8], priority_exponent=1.0, seed=seed)
    replay.reprioritise(at(*range(8)), [1.0, 2, 3, 4, 5, 6, 7, 8])
    starts = replay.draw(12, stratified=True).starts
    ends = np.cumsum([1, 2, 3, 4, 5, 6, 7, 8])
    for share, start in enumerate(starts):
        assert ends[start] - (start + 1) < 3 * share + 3
        assert ends[start] > 3 * share


def test_a_share_without_a_start_leaves_its_place_to_the_others():
    replay = counting_replay([4, 4], priority_exponent=1.0)
    replay.reprioritise(at(0, 1, 2, 5), [1e-6, 1e-6, 1e-6, 1e6])  # nearly all of the sum
    starts = replay.draw(6, span=4, stratified=True).starts  # of which only 0 and 5 have four transitions before them
    assert len(starts) == 6
    assert set(starts) <= {0, 5}


def test_a_uniform_replay_has_nothing_to_correct():
    replay = counting_replay([5])
    assert not replay.is_prioritised
    assert torch.equal(replay.draw(7, correction=1.0).weights, torch.ones(7))


@pytest.mark.parametrize(
    "too_short_error", [1.0, 1e6], ids=["most candidates are valid: rejection", "few: enumeration"]
)
@pytest.mark.parametrize("whole", [True, False])
def test_starts_are_drawn_in_proportion_to_their_leaves(whole, too_short_error):
    replay = counting_replay([12, 2], priority_exponent=0.5, seed=1)  # frames 0 to 12 and 13 to 15
    starts = np.array([*range(10)] if whole else [*range(12)])  # with three transitions; with three frames after them
    errors = np.full(15, too_short_error)
    errors[starts] = (starts + 1.0) ** 2  # leaves 1, 2, 3, …
    decided = [number for number in range(15) if number != 12]
    replay.reprioritise(at(*decided), errors[decided])
    count = 20_000
    drawn = replay.draw(count, span=3, whole=whole).starts
    expected = count * (starts + 1) / (starts + 1).sum()
    observed = np.bincount(drawn, minlength=len(starts))
    assert len(observed) == len(starts)
    assert ((observed - expected) ** 2 / expected).sum() < 31.26  # chi-square of 11 degrees of freedom: 1 in 1000 above


def test_starts_are_drawn_independently_not_one_from_each_stratum():
    replay = counting_replay([2], priority_exponent=0.5)
    counts = [int((replay.draw(32).starts == 0).sum()) for _ in range(200)]
    assert np.var(counts) == pytest.approx(32 / 4, rel=0.4)  # the binomial's; 4 deviations of its estimate


def test_a_start_that_was_overwritten_since_the_draw_is_passed_over():
    replay = counting_replay([4], frame_stack=1, capacity=4, priority_exponent=0.5)  # 6 slots
    live(replay, [3], first_episode=1)  # frames 5 to 8: 6, 7 and 8 lie where 0, 1 and 2 lay
    assert leaves_of(replay) == [1, 1, 0, 1, 0, 1]
    replay.reprioritise(at(0, 1, 2, 3), [4.0, 4.0, 4.0, 9.0])
    assert leaves_of(replay) == [1, 1, 0, 3, 0, 1]
    live(replay, [20], first_episode=2)
    before = leaves_of(replay)
    replay.reprioritise(at(0, 3), [4.0, 4.0])
    assert leaves_of(replay) == before


@settings(max_examples=100, deadline=None)
@given(
    frame_stack=st.integers(1, 3),
    capacity=st.integers(1, 15),
    reserve=st.integers(0, 5),
    acts=st.lists(
        st.one_of(
            st.tuples(st.just("live"), st.integers(0, 12)),
            st.tuples(st.just("draw"), st.integers(1, 4)),
            st.tuples(st.just("learn"), st.integers(0, 99)),
        ),
        max_size=15,
    ),
)
def test_leaves_equal_a_dictionary_of_all_starts_ever(frame_stack, capacity, reserve, acts):
    """Episodes, draws and the updates after them, in any order and however long after: so a draw may be stale."""
    options = {"frame_stack": frame_stack, "capacity": capacity, "reserve": reserve}
    replay, lengths, pending, leaves = empty_replay(**options, priority_exponent=0.5), [], None, {}
    for act, number in acts:
        end = sum(lengths) + len(lengths)
        if act == "live":
            live(replay, [number], first_episode=len(lengths))
            leaves |= {end + step: 1.0 for step in range(number)}
            lengths.append(number)
        elif act == "draw":
            starts = valid_starts(lengths, frame_stack=frame_stack, capacity=capacity, span=number, whole=False)
            if starts:
                pending = replay.draw(8, span=number, whole=False, correction=1.0)
                drawn = np.array([leaves[start] for start in pending.starts])
                assert set(pending.starts) <= set(starts)
                assert pending.weights.tolist() == pytest.approx((drawn.min() + 1e-5) / (drawn + 1e-5))
        elif pending is not None:
            errors = 10 ** np.random.default_rng(number).uniform(-8, 8, 8)
            replay.reprioritise(pending, errors)
            leaves |= dict(zip(reversed(pending.starts), errors[::-1].clip(1e-6, 1e6) ** 0.5, strict=True))
        end = sum(lengths) + len(lengths)
        window = capacity + capacity // 100 + frame_stack + 1
        expected = np.zeros(min(end, window + reserve))
        for start in range(max(0, end - window), end):
            expected[start % (window + reserve)] = leaves.get(start, 0)
        assert leaves_of(replay) == expected.tolist()


def test_a_uniform_replay_has_no_priorities_to_change():
    with pytest.raises(RuntimeError, match=r"draws uniformly.*priority_exponent=0\.5"):
        counting_replay([5]).reprioritise(at(0), [1.0])


@pytest.mark.parametrize(
    ("starts", "errors", "message"),
    [
        ([0, 1], [1.0, np.nan], r"each of the 2 starts; got shape \(2,\), 1 not finite"),
        ([0, 1], [np.inf, 1.0], "1 not finite"),
        ([0, 1], [1.0], r"got shape \(1,\)"),
        ([0, 1], [[1.0, 1.0]], r"got shape \(1, 2\)"),
        ([0, 4], [1.0, 1.0], "Some of the 2 starts are not transitions"),  # a final frame
        ([0, 7], [1.0, 1.0], "Some of the 2 starts are not transitions"),  # not yet lived
    ],
)
def test_bad_priorities_are_refused_and_leave_no_trace(starts, errors, message):
    replay = counting_replay([4, 1], priority_exponent=0.5)
    for given_errors in (errors, torch.tensor(errors)):
        with pytest.raises(ValueError, match=message):
            replay.reprioritise(at(*starts), given_errors)
    assert leaves_of(replay) == [1, 1, 1, 1, 0, 1, 0]


# ── what ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=100, deadline=None)
@given(life=lives, pad=pads, n_step=st.integers(1, 6), ending=st.sampled_from(["terminated", "truncated"]))
def test_transitions_equal_a_loop_over_the_episode(life, pad, n_step, ending):
    replay = counting_replay(**life, pad=pad, ending=ending)
    starts = valid_starts(**life)
    if not starts:
        return
    batch = replay.transitions(at(*starts), n_step=n_step, discount=0.5)
    for row, (episode, step) in enumerate(starts.values()):
        end = min(step + n_step, life["lengths"][episode])
        bootstrap = not (ending == "terminated" and end == life["lengths"][episode])
        assert (batch.obs[row].numpy() == stack(episode, step, life["frame_stack"], pad)).all()
        assert (batch.next_obs[row].numpy() == stack(episode, end, life["frame_stack"], pad)).all()
        assert batch.actions[row].tolist() == [episode, step]
        assert batch.rewards[row] == sum((s + 1) * 0.5 ** (s - step) for s in range(step, end))
        assert batch.discounts[row] == 0.5 ** (end - step) * bootstrap


@settings(max_examples=100, deadline=None)
@given(life=lives, pad=pads, length=st.integers(1, 6), last_is_open=st.booleans())
def test_clips_equal_a_loop_over_the_episode(life, pad, length, last_is_open):
    replay = counting_replay(**life, pad=pad, last_is_open=last_is_open)
    starts = valid_starts(**life)
    if not starts:
        return
    clip = replay.clips(at(*starts), length=length)
    for row, (episode, start) in enumerate(starts.values()):
        last = life["lengths"][episode] - 1  # the last observation that has an action
        for k in range(length):
            inside = start + k <= last
            shown = stack(episode, min(start + k, last), life["frame_stack"], pad)
            assert clip.valid[row, k] == inside
            assert (clip.obs[row, k].numpy() == shown).all()
            assert clip.actions[row, k].tolist() == ([episode, start + k] if inside else [0, 0])


def test_a_clip_past_the_end_repeats_the_last_observation_with_zero_actions_and_is_marked():
    clip = counting_replay([4, 9]).clips(at(2), length=4)
    assert clip.obs[0, :, -2, 0, 0].tolist() == [2, 3, 3, 3]
    assert clip.actions[0].tolist() == [[0, 2], [0, 3], [0, 0], [0, 0]]
    assert clip.valid[0].tolist() == [True, True, False, False]


def test_before_the_first_frame_stands_that_frame_or_black():
    for pad, older in (("repeat", [1, 1, 1]), ("zero", [0, 0, 1])):
        obs = counting_replay([4], pad=pad).transitions(at(0)).obs
        assert obs[0, 1::2, 0, 0].tolist() == older  # the episode's number + 1 in each of the three frames


def test_the_return_stops_at_a_termination_and_nothing_is_bootstrapped():
    """The case that the pinned rlpyt gets wrong: rewards 1 to 12, the end after the fifth, ten steps, no discount."""
    replay = empty_replay()
    replay.begin_episode(stack(0, 0, 3))
    for step in range(5):
        replay.add([0, step], step + 1, stack(0, step + 1, 3), terminated=step == 4, truncated=False)
    replay.begin_episode(stack(1, 0, 3))
    for step in range(7):
        replay.add([1, step], step + 6, stack(1, step + 1, 3), terminated=False, truncated=False)
    batch = replay.transitions(at(0), n_step=10, discount=1.0)
    assert batch.rewards.tolist() == [1 + 2 + 3 + 4 + 5]
    assert batch.discounts.tolist() == [0]
    as_released = replay.transitions(at(0), n_step=10, discount=1.0, late_ends=False)
    assert as_released.rewards.tolist() == [1 + 2 + 3 + 4 + 5]
    assert as_released.discounts.tolist() == [1]
    assert as_released.next_obs[0, -2:, 0, 0].tolist() == [4, 1]  # where the last decision was taken


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_the_released_code_only_notices_an_end_in_the_first_step(ending):
    replay = live(counting_replay([5], ending=ending), [9], first_episode=1, last_is_open=True)  # 0 to 5 and 6 to 15
    batch = replay.transitions(at(1, 2, 3, 4, 6, 14), n_step=3, discount=0.5, late_ends=False)
    assert batch.rewards.tolist() == [2 + 3 / 2 + 4 / 4, 3 + 4 / 2 + 5 / 4, 4 + 5 / 2, 5, 1 + 2 / 2 + 3 / 4, 9]
    assert batch.discounts.tolist() == [1 / 8, 1 / 8, 1 / 8, 0, 1 / 8, 1 / 2]  # the last step is the newest, not an end
    assert batch.next_obs[:, -2:, 0, 0].tolist() == [[4, 1], [4, 1], [4, 1], [4, 1], [3, 2], [9, 2]]


@settings(max_examples=50, deadline=None)
@given(life=lives, n_step=st.integers(1, 6), ending=st.sampled_from(["terminated", "truncated", "open"]))
def test_the_released_codes_ends_equal_a_loop_over_the_episode(life, n_step, ending):
    replay, starts = counting_replay(**life, ending=ending), valid_starts(**life)
    if not starts:
        return
    right = replay.transitions(at(*starts), n_step=n_step, discount=0.5)
    batch = replay.transitions(at(*starts), n_step=n_step, discount=0.5, late_ends=False)
    for name in ("obs", "actions", "rewards"):
        assert torch.equal(getattr(batch, name), getattr(right, name))
    for row, (episode, step) in enumerate(starts.values()):
        left = life["lengths"][episode] - step  # steps until the end; an open episode ends where the next one begins
        if left > n_step or (ending == "open" and episode == len(life["lengths"]) - 1):
            assert torch.equal(batch.next_obs[row], right.next_obs[row])
            assert batch.discounts[row] == right.discounts[row] > 0
        else:
            last = stack(episode, step + left - 1, life["frame_stack"])
            assert (batch.next_obs[row].numpy() == last).all()
            assert batch.discounts[row] == (0 if left == 1 else 0.5**n_step)


@pytest.mark.parametrize(("ending", "discount"), [("terminated", 0), ("truncated", 0.5**2), ("open", 0.5**2)])
def test_only_a_termination_stops_the_bootstrap(ending, discount):
    replay = counting_replay([5], ending=ending)
    batch = replay.transitions(at(3), n_step=10, discount=0.5)  # two steps are left
    assert batch.rewards.tolist() == [4 + 0.5 * 5]
    assert batch.discounts.tolist() == [discount]
    assert batch.next_obs[0, -2, 0, 0] == 5


def test_transitions_have_a_length_and_move_to_a_device():
    batch = counting_replay([5]).transitions(at(0, 1, 2))
    assert len(batch) == 3
    assert batch.to("meta").next_obs.device.type == "meta"
    assert {batch.obs.dtype, batch.next_obs.dtype} == {torch.uint8}
    assert {batch.actions.dtype, batch.rewards.dtype, batch.discounts.dtype} == {torch.float32}


def test_one_draw_can_be_read_as_transitions_and_as_clips():
    replay = counting_replay([20, 20])
    draw = replay.draw(32, span=8, whole=False)
    assert torch.equal(replay.transitions(draw, n_step=3).obs, replay.clips(draw, length=8).obs[:, 0])


def test_what_was_read_does_not_change_when_the_ring_is_written():
    replay = counting_replay([5], capacity=5)
    obs = replay.transitions(at(0)).obs
    before = obs.clone()
    live(replay, [9], first_episode=1)
    assert torch.equal(obs, before)


# ── episodes and room ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("decisions", [1, 0])
def test_beginning_an_episode_closes_the_open_one_as_truncated(decisions):
    replay = counting_replay([3, decisions, 2], ending="open")
    flags = replay.state_dict()["truncated"].tolist()
    assert flags == [
        False,
        False,
        True,
        False,
        *[True] * decisions,
        False,
        False,
        False,
        False,
    ]  # the last is still open
    assert not replay.state_dict()["terminated"].any()
    assert replay.transitions(at(0), n_step=10, discount=1.0).next_obs[0, -2:, 0, 0].tolist() == [3, 1]


def test_termination_and_truncation_are_kept_apart():
    state = live(counting_replay([2], ending="terminated"), [2], first_episode=1).state_dict()
    assert state["terminated"].tolist() == [False, True, False, False, False, False]
    assert state["truncated"].tolist() == [False, False, False, False, True, False]
    assert state["first"].tolist() == [0, 0, 0, 3, 3, 3]


def test_a_slot_that_is_used_again_keeps_nothing_of_its_past():
    state = counting_replay(
        [3, 3, 3], frame_stack=1, capacity=3, ending="terminated"
    ).state_dict()  # 12 frames, 5 slots
    assert state["first"].tolist() == [8, 8, 4, 8, 8]  # frames 10, 11, 7, 8, 9
    assert state["reward"].tolist() == [3, 0, 0, 1, 2]  # 11 and 7 are final frames
    assert state["terminated"].tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("capacity", [100, 250, 399])
def test_the_capacity_holds_for_episodes_of_a_hundred_decisions_wherever_the_ring_is_cut(capacity):
    replay = counting_replay([100] * 5, capacity=capacity)
    for step in range(110):
        if step % 101 == 0:
            replay.begin_episode(stack(5, 0, 3))
        else:
            replay.add([0, 0], 0.0, stack(5, step % 101, 3), terminated=False, truncated=step % 101 == 100)
        assert len(replay) >= capacity


def test_what_is_kept_of_episodes_does_not_grow():
    replay = counting_replay([1] * 100, capacity=20)
    assert len(replay._firsts) <= 24  # as many as there are slots


@exponents
@pytest.mark.parametrize("reserve", [0, 7])
def test_the_forecast_is_what_is_allocated(tmp_path, reserve, exponent):
    forecast = Replay.forecast(FRAME, 2, 3, 500, reserve, exponent)
    options = {"capacity": 500, "reserve": reserve, "priority_exponent": exponent}
    for directory in (None, tmp_path):
        assert empty_replay(**options, directory=directory).nbytes == forecast
    sums = 2 * 8 * (512 if reserve == 0 else 1024)  # 509 or 516 slots, rounded up to a power of two
    assert forecast == Replay.forecast(FRAME, 2, 3, 500, reserve) + (sums if exponent else 0)
    frames, stamps = (tmp_path / name for name in ("frames.u8", "stamps.u32"))
    assert frames.stat().st_size == (500 + 5 + 3 + 1 + reserve) * 12
    assert stamps.stat().st_size == (500 + 5 + 3 + 1 + reserve) * 4


def test_the_papers_replay_takes_three_gigabytes():
    """DMControl: 100 000 transitions of 3 × 100 × 100 frames; the released code takes 18 GB."""
    assert Replay.forecast((3, 100, 100), 6, 3, 100_000) <= 3.1e9
    assert Replay.forecast((3, 100, 100), 6, 3, 100_000, reserve=1000) <= 3.1e9


def test_a_million_transitions_of_atari_take_little_more_than_their_frames():
    """7.056 GB of 84 × 84 bytes; of the rest, a byte is for the action, whose one-hot vector of 18 numbers would take 72."""
    atari = Replay.forecast((1, 84, 84), 18, 4, 1_000_000, priority_exponent=0.5, discrete=True)
    slots, tree = 1_000_000 + 1000 + 4 + 1, 2 * 8 * 2**20
    assert atari == slots * (84 * 84 + (8 + 1 + 4 + 1 + 1) + 4) + tree <= 7.1e9


@pytest.mark.parametrize("actions", [1, 2, 3, 256, 300])
def test_discrete_actions_come_back_one_hot(actions):
    replays = [
        Replay(frame_shape=FRAME, action_dim=actions, frame_stack=3, capacity=50, seed=0, discrete=discrete)
        for discrete in (False, True)
    ]
    numbers = [0, actions - 1, actions // 2, 0, actions - 1]
    for replay in replays:
        replay.begin_episode(stack(0, 0, 3))
        for step, number in enumerate(numbers, start=1):
            replay.add(
                np.eye(actions)[number], 0.0, stack(0, step, 3), terminated=False, truncated=step == len(numbers)
            )
    draw = replays[0].spread(5)
    vectors, from_numbers = (replay.transitions(draw).actions for replay in replays)
    assert torch.equal(vectors, from_numbers)
    assert from_numbers.dtype == torch.float32
    assert from_numbers.argmax(dim=1).tolist() == numbers
    clips = [replay.clips(draw, length=8) for replay in replays]
    assert torch.equal(clips[0].actions, clips[1].actions)  # zeros past the end


@pytest.mark.parametrize("action", [[0, 0, 0], [1, 1, 0], [0, 0.5, 0], [2, 0, 0], [-1, 1, 0]])
def test_a_discrete_action_that_is_not_one_hot_is_refused(action):
    replay = Replay(frame_shape=FRAME, action_dim=3, frame_stack=3, capacity=50, seed=0, discrete=True)
    replay.begin_episode(stack(0, 0, 3))
    with pytest.raises(ValueError, match=re.escape("A discrete action must be one-hot; got [")):
        replay.add(action, 0.0, stack(0, 1, 3), terminated=False, truncated=False)
    assert len(replay) == 0


# ── files and resuming ────────────────────────────────────────────────────────────────────────────────────────────────


def assert_same_batches(first, second):
    for round in range(3):
        draws = [replay.draw(20, span=3, correction=0.4) for replay in (first, second)]
        assert (draws[0].starts == draws[1].starts).all()
        assert torch.equal(draws[0].weights, draws[1].weights)
        if first.is_prioritised:
            errors = 10 ** np.random.default_rng(round).uniform(-2, 2, 20)
            for replay, draw in zip((first, second), draws, strict=True):
                replay.reprioritise(draw, errors)
        clips = [replay.clips(draw, length=5) for replay, draw in zip((first, second), draws, strict=True)]
        batches = [replay.transitions(draw, n_step=3) for replay, draw in zip((first, second), draws, strict=True)]
        for name in ("obs", "actions", "valid"):
            assert torch.equal(*(getattr(clip, name) for clip in clips))
        for name in ("obs", "actions", "rewards", "next_obs", "discounts"):
            assert torch.equal(*(getattr(batch, name) for batch in batches))


@pytest.mark.parametrize("pad", ["repeat", "zero"])
def test_batches_built_from_a_mirror_are_the_same(pad):
    plain, mirrored = (empty_replay(capacity=30, pad=pad, mirror=mirror) for mirror in (None, torch.device("cpu")))
    for replay in (plain, mirrored):
        live(replay, [20, 7, 20])  # more than it holds, so it has begun again from its front
    late = empty_replay(capacity=30, pad=pad, mirror=torch.device("cpu"))
    late.load_state_dict(plain.state_dict())
    for other in (mirrored, late):
        draw = plain.draw(200, span=3, whole=False)
        one, two = plain.transitions(draw), other.transitions(draw)
        assert torch.equal(one.obs, two.obs)
        assert torch.equal(one.next_obs, two.next_obs)
        assert torch.equal(plain.clips(draw, length=3).obs, other.clips(draw, length=3).obs)


@exponents
def test_a_replay_in_files_equals_one_in_memory(tmp_path, exponent):
    options = {"lengths": [9, 4, 12, 7], "capacity": 20, "priority_exponent": exponent}  # the ring has wrapped
    assert_same_batches(counting_replay(**options), counting_replay(**options, directory=tmp_path))


@pytest.mark.parametrize("capacity", [20, 1000], ids=["wrapped", "not wrapped"])
@pytest.mark.parametrize("in_files", [False, True])
@exponents
def test_a_loaded_replay_draws_and_reads_the_same_and_goes_on_the_same(tmp_path, capacity, in_files, exponent):
    options = {"capacity": capacity, "directory": tmp_path if in_files else None, "priority_exponent": exponent}
    saved = counting_replay([9, 4, 12, 7], last_is_open=True, **options)
    draw = saved.draw(5)  # the generator has moved
    if exponent:
        saved.reprioritise(draw, [0.001, 0.1, 3.0, 20.0, 5.0])
    state = saved.state_dict()
    assert ("frames" in state) == (not in_files)

    if in_files:  # the two must not share their files once both go on
        options["directory"] = shutil.copytree(tmp_path, tmp_path.with_name(tmp_path.name + "-copy"))
    loaded = empty_replay(**options, seed=99)
    loaded.load_state_dict(state)
    assert len(loaded) == len(saved)
    assert_same_batches(saved, loaded)
    for replay in (saved, loaded):
        replay.add([3, 7], 8, stack(3, 8, 3), terminated=True, truncated=False)
        live(replay, [6, 5], first_episode=4)
    assert_same_batches(saved, loaded)


@exponents
def test_a_state_is_json_and_arrays_that_later_steps_do_not_touch(exponent):
    replay = counting_replay([9, 4], capacity=5, priority_exponent=exponent)
    state = replay.state_dict()
    arrays = {name: value.copy() for name, value in state.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in state.items() if name not in arrays}
    assert set(arrays) - {"leaf"} == {"frames", "action", "reward", "terminated", "truncated", "first"}
    assert ("leaf" in arrays) == ("priority_exponent" in state["layout"]) == (exponent is not None)  # older states load
    assert json.loads(json.dumps(plain)) == plain
    live(replay, [9], first_episode=2)
    assert all((state[name] == array).all() for name, array in arrays.items())


@exponents
def test_frames_written_after_a_checkpoint_and_within_the_reserve_leave_the_resume_exact(tmp_path, exponent):
    options = {"capacity": 20, "reserve": 6, "priority_exponent": exponent}
    replay, expected = (counting_replay([9, 4, 12, 7], **options, directory=where) for where in (tmp_path, None))
    if exponent:
        for either in (replay, expected):
            either.reprioritise(at(20, 30), [9.0, 0.01])
    state = replay.state_dict()
    live(replay, [5], first_episode=4)  # six frames and an update, then the process dies
    if exponent:
        replay.reprioritise(at(20, 40), [1e6, 1e6])
    resumed = empty_replay(**options, directory=tmp_path)
    resumed.load_state_dict(state)
    assert_same_batches(resumed, expected)


@exponents
def test_frames_lost_beyond_the_reserve_are_left_out_counted_and_never_shown(tmp_path, exponent):
    options = {"capacity": 20, "directory": tmp_path, "priority_exponent": exponent}
    replay = counting_replay([9, 4, 12, 7], **options)  # 24 slots: frames 12 to 35 of 36
    state, length = replay.state_dict(), len(replay)
    live(replay, [5], first_episode=4)  # frames 36 to 41 replace 12 to 17
    resumed = empty_replay(**options)
    assert resumed.load_state_dict(state) == 6
    assert len(resumed) < length
    assert drawn_starts(resumed) == {*range(20, 27), *range(28, 35)}  # 18 and 19 miss a frame of their stack
    batch = resumed.transitions(at(*range(20, 27)))
    assert batch.obs[:, -2, 0, 0].tolist() == list(range(5, 12))  # the third episode began at frame 15
    assert (batch.obs[:, 1::2] == 3).all()
    if exponent:
        resumed.reprioritise(at(16, 17, 18), [4.0, 4.0, 4.0])  # as if drawn before the crash: 16 and 17 are lost
        by_number = dict(zip([*range(24, 36), *range(12, 24)], leaves_of(resumed), strict=True))
        assert [by_number[number] for number in range(12, 20)] == [0, 0, 0, 0, 0, 0, 2, 1]
    live(resumed, [30], first_episode=4)  # the ring turns once more and forgets the loss
    assert len(resumed) == len(live(replay, [30], first_episode=5))


def test_a_state_does_not_load_next_to_other_files(tmp_path):
    state = counting_replay([9], directory=tmp_path / "run").state_dict()
    with pytest.raises(ValueError, match="not even the newest"):
        empty_replay(directory=tmp_path / "elsewhere").load_state_dict(state)
    with pytest.raises(ValueError, match="build the replay with its directory"):
        empty_replay().load_state_dict(state)


@exponents
def test_a_state_in_memory_can_be_moved_to_files(tmp_path, exponent):
    saved = counting_replay([9, 4], priority_exponent=exponent)
    loaded = empty_replay(directory=tmp_path, priority_exponent=exponent)
    loaded.load_state_dict(saved.state_dict())
    again = empty_replay(directory=tmp_path, priority_exponent=exponent)
    again.load_state_dict(loaded.state_dict())
    assert_same_batches(saved, again)


def test_a_state_of_another_layout_is_refused():
    with pytest.raises(ValueError, match=r"'frame_stack': 3.*'frame_stack': 4"):
        empty_replay(frame_stack=4).load_state_dict(counting_replay([5]).state_dict())
    for saved, loaded in ((None, 0.5), (0.5, None), (0.5, 0.6)):
        state = counting_replay([5], priority_exponent=saved).state_dict()
        with pytest.raises(ValueError, match="'priority_exponent': 0"):
            empty_replay(priority_exponent=loaded).load_state_dict(state)


def test_a_loaded_replay_forgets_the_leaves_it_had():
    loaded = counting_replay([9, 9], priority_exponent=0.5)
    loaded.load_state_dict(counting_replay([2], priority_exponent=0.5).state_dict())
    assert set(loaded.draw(100).starts) == {0, 1}
    assert loaded._tree.total == 2


def test_a_file_of_another_size_is_refused(tmp_path):
    empty_replay(capacity=10, directory=tmp_path)
    with pytest.raises(ValueError, match=r"frames\.u8 has 168 bytes, this replay needs 180"):
        empty_replay(capacity=11, directory=tmp_path)


def test_a_disk_that_is_too_small_is_refused_before_it_is_full(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match=r"the replay needs 168 bytes there. Lower replay\.capacity.*frames\.u8"):
            empty_replay(capacity=10, directory=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_the_whole_file_is_taken_from_the_disk_at_once(tmp_path):
    """A sparse one would be filled by assignments to memory, and a full disk then ends the process without a word."""
    empty_replay(capacity=10_000, directory=tmp_path)
    assert (tmp_path / "frames.u8").stat().st_blocks * 512 >= 10_000 * 12


def test_a_flipped_bit_in_a_frame_is_found(tmp_path):
    state = counting_replay([9, 4], directory=tmp_path).state_dict()
    with (tmp_path / "frames.u8").open("rb+") as file:
        file.seek(3 * 12 + 5)  # frame 3
        value = file.read(1)[0]
        file.seek(3 * 12 + 5)
        file.write(bytes([value ^ 16]))
    resumed = empty_replay(directory=tmp_path)
    assert resumed.load_state_dict(state) == 4  # it and those before it
    assert min(drawn_starts(resumed)) == 6  # frames 4 and 5 miss one of their stack


def test_two_states_back_are_safe_until_the_replay_asks_to_be_saved(tmp_path):
    """Episodes of one decision take two frames each: more than anybody would reserve for."""
    options = {"capacity": 20, "reserve": 12}  # 36 slots, frames of the newest 24 can be drawn
    replay = counting_replay([1] * 17, **options, directory=tmp_path / "a")  # 34 frames
    states, asked = [], []
    for episode in range(17, 40):
        if replay.must_be_saved:
            asked.append(episode)
            states = [*states[-1:], replay.state_dict()]
        live(replay, [1], first_episode=episode)
        for state in states:
            copy = shutil.copytree(tmp_path / "a", tmp_path / "b", dirs_exist_ok=True)
            assert empty_replay(**options, directory=copy).load_state_dict(state) == 0
    assert asked == [18, 19, 24, 25, 30, 31, 36, 37]
    assert not counting_replay([1] * 50, **options).must_be_saved  # in memory, a state has its own frames


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

GOOD = {"action": [0.0, 0.0], "reward": 1.0, "obs": stack(0, 1, 3), "terminated": False, "truncated": False}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"obs": frame(0, 1)}, r"shape \(6, 2, 3\), a stack of 3 frames.*got uint8 of shape \(2, 2, 3\)"),
        ({"obs": stack(0, 1, 3) / 255}, "must be uint8.*got float64"),
        ({"obs": stack(0, 1, 3).transpose(1, 2, 0)}, r"got uint8 of shape \(2, 3, 6\)"),
        ({"reward": float("nan")}, "reward must be a finite number; got nan"),
        ({"reward": float("inf")}, "reward must be a finite number; got inf"),
        ({"action": 1}, r"must be 2 finite numbers; got shape \(\).*One-hot"),
        ({"action": [0.0, 0.0, 0.0]}, r"must be 2 finite numbers; got shape \(3,\)"),
        ({"action": [0.0, np.nan]}, "must be 2 finite numbers"),
    ],
)
def test_a_bad_step_is_refused_and_leaves_no_trace(bad, message):
    replay = counting_replay([4], last_is_open=True)
    with pytest.raises(ValueError, match=message):
        replay.add(**GOOD | bad)
    assert len(replay) == 4
    replay.add(**GOOD)
    assert len(replay) == 5


def test_a_bad_first_observation_is_refused():
    with pytest.raises(ValueError, match="An observation must be uint8"):
        empty_replay().begin_episode(frame(0, 0))


def test_a_step_outside_an_episode_is_refused():
    with pytest.raises(RuntimeError, match=r"none was begun.*begin_episode"):
        empty_replay().add(**GOOD)
    for ending in ("terminated", "truncated"):
        with pytest.raises(RuntimeError, match=r"the last one has ended.*begin_episode"):
            counting_replay([4], ending=ending).add(**GOOD)


@pytest.mark.parametrize("start", [-1, 4, 5, 9, 100], ids=["negative", "final", "newest", "future", "far future"])
def test_a_start_that_is_no_stored_transition_is_refused(start):
    replay = counting_replay([4, 0])  # frames 0 to 4 and 5
    for read in (replay.transitions, lambda draw: replay.clips(draw, length=1)):
        with pytest.raises(ValueError, match="1 of 2 starts are not stored"):
            read(at(0, start))


def test_a_draw_that_was_overwritten_is_refused():
    replay = counting_replay([5], capacity=5)
    draw = replay.draw(8)
    live(replay, [20], first_episode=1)
    with pytest.raises(ValueError, match="8 of 8 starts are not stored"):
        replay.transitions(draw)


@pytest.mark.parametrize(
    "call",
    [
        lambda replay: replay.draw(0),
        lambda replay: replay.draw(1, span=0),
        lambda replay: replay.transitions(at(0), n_step=0),
        lambda replay: replay.transitions(at(0), discount=1.1),
        lambda replay: replay.clips(at(0), length=0),
    ],
)
def test_sizes_must_be_sensible(call):
    with pytest.raises(ValueError, match="must be at least 1"):
        call(counting_replay([5]))


@exponents
@pytest.mark.parametrize("correction", [-0.1, float("nan"), float("inf")])
def test_a_correction_that_makes_no_sense_is_refused(correction, exponent):
    with pytest.raises(ValueError, match="must be a finite number of at least 0"):
        counting_replay([5], priority_exponent=exponent).draw(1, correction=correction)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"frame_shape": (84, 84)}, r"frame_shape=\(84, 84\) must be \(channels, height, width\)"),
        ({"frame_shape": (0, 84, 84)}, "frame_shape"),
        ({"action_dim": 0}, "action_dim=0"),
        ({"frame_stack": 0}, "frame_stack=0"),
        ({"capacity": 0}, "capacity=0"),
        ({"reserve": -1}, "reserve=-1"),
        ({"pad": "reflect"}, "pad='reflect' must be 'repeat'"),
        ({"priority_exponent": -0.1}, r"priority_exponent=-0\.1 must lie in \[0, 1\]"),
        ({"priority_exponent": 1.1}, "priority_exponent"),
        ({"priority_exponent": float("nan")}, "priority_exponent"),
    ],
)
def test_a_replay_that_makes_no_sense_is_refused(bad, message):
    good = {"frame_shape": FRAME, "action_dim": 2, "frame_stack": 3, "capacity": 10, "seed": 0}
    with pytest.raises(ValueError, match=message):
        Replay(**good | bad)


@settings(max_examples=100)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    count=st.integers(1, 20),
    span=st.integers(1, 8),
    capacity=st.integers(5, 60),
)
def test_a_spread_is_even_does_not_overlap_and_disturbs_no_draw(lengths, count, span, capacity):
    replay, twin = (counting_replay(lengths, frame_stack=2, capacity=capacity) for _ in range(2))
    starts = replay.spread(count, span=span).starts
    valid = sorted(valid_starts(lengths, frame_stack=2, capacity=capacity, span=span))
    assert set(starts) <= set(valid)
    assert len(starts) == min(count, max(1, len(valid) // span), len(valid))
    assert (np.diff(starts) >= span).all()
    gaps = np.diff([valid.index(start) for start in starts])
    assert gaps.max(initial=0) - gaps.min(initial=len(valid)) <= 1
    if len(replay):
        assert (replay.draw(9).starts == twin.draw(9).starts).all()


def test_nothing_is_spread_over_an_empty_replay():
    assert len(empty_replay().spread(3)) == 0
    assert len(counting_replay([4]).spread(3, span=5)) == 0
