"""Frames carry their environment, episode and step, so a clip that crosses anything shows it in its pixels."""

from functools import cache

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskrl import ClipStore
from maskrl.replay.buffer import NothingToDrawError
from maskrl.replay.spaces import Actions, Pictures

SIDES = (2, 3)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)


def frame(column, episode, step):
    return np.stack([np.full(SIDES, value, np.uint8) for value in (column, episode, step + 10)])


@cache
def stacked(column, episode, step, stack):
    """Before an episode's first frame stands a mark of the episode, as nobody says what an environment puts there."""
    ages = range(step - stack + 1, step + 1)
    return np.concatenate(
        [frame(column, episode, age) if age >= 0 else frame(column, episode, -1 + age) for age in ages]
    )


def space(stack, channels=3):
    return gym.spaces.Box(0, 255, (stack * channels, *SIDES), np.uint8)


class Life:
    """Environments side by side with episodes of given lengths, in a loop: what every column sees and does, step by step."""

    def __init__(self, lengths):
        self.lengths, self.at = lengths, [(0, 0) for _ in lengths]

    def step(self, stack):
        at = self.at.copy()
        obs = np.stack([stacked(column, *where, stack) for column, where in enumerate(at)])
        actions = np.array(at, np.float32) / 100
        ended = [step + 1 == self._length(column, episode) for column, (episode, step) in enumerate(at)]
        self.at = [(e + 1, 0) if end else (e, s + 1) for (e, s), end in zip(at, ended, strict=True)]
        return obs, actions, np.array(ended)

    def _length(self, column, episode):
        return self.lengths[column][episode % len(self.lengths[column])]


def lived(lengths, steps, *, stack=2, capacity=1000, **options):
    life, clips = Life(lengths), ClipStore(space(stack), BOX, capacity, len(lengths), frame_stack=stack, **options)
    history = []
    for _ in range(steps):
        history.append(life.at.copy())
        clips.add(*life.step(stack))
    return clips, history


def windows(history, length, kept):
    """By brute force: (column, episode, step) of every whole window among the newest `kept` steps."""
    recent = history[max(0, len(history) - kept) :]
    return {
        (column, *recent[time][column])
        for time in range(len(recent) - length + 1)
        for column in range(len(recent[0]))
        if len({recent[time + k][column][0] for k in range(length)}) == 1
    }


def read(clip, stack):
    """(column, episode, step) of every clip's first step, once each step of it is what the environment showed."""
    starts = []
    for obs, actions in zip(clip.obs.numpy(), clip.actions.numpy(), strict=True):
        column, episode, first = (int(value) for value in obs[0, -3:, 0, 0])
        for k, (picture, action) in enumerate(zip(obs, actions, strict=True)):
            assert np.array_equal(picture, stacked(column, episode, first - 10 + k, stack))
            assert np.rint(100 * action).tolist() == [episode, first - 10 + k]
        starts.append((column, episode, first - 10))
    return starts


@given(
    lengths=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=3),
    steps=st.integers(1, 60),
    stack=st.integers(1, 3),
    room=st.integers(1, 30),
    length=st.integers(1, 5),
)
def test_exactly_the_whole_windows_of_one_environment_and_one_episode_are_drawn(lengths, steps, stack, room, length):
    clips, history = lived(lengths, steps, stack=stack, capacity=room * len(lengths))
    # The reserve is for episodes of 100 steps. With shorter ones the oldest steps may be gone, but no more than these.
    expected = windows(history, length, room)
    if not expected:
        with pytest.raises(NothingToDrawError, match="steps in a row within one episode"):
            clips.draw(4, length=length)
        return
    try:
        drawn = set(read(clips.draw(12 * len(expected), length=length), stack))
    except NothingToDrawError:
        drawn = set()
    assert drawn <= expected
    assert {
        window for window in expected if window in windows(history, length, clips_held(history, room, stack))
    } <= drawn


def clips_held(history, room, stack):
    """How many of the newest steps have all their frames, counted by hand in the column with the most episodes."""
    slots = room + (room // 100 + 2) * stack
    held = []
    for column in range(len(history[0])):
        frames, count = 0, 0
        for step in reversed([where[column] for where in history]):
            frames += 1 if step[1] else stack
            first = frames if step[1] == 0 else frames + stack - 1
            if first > slots:
                break
            count += 1
        held.append(count)
    return min([room, *held])


def test_draws_are_uniform_over_the_windows():
    clips, history = lived([[30, 4], [9]], 200, capacity=120)
    expected = windows(history, 4, clips_held(history, 60, 2))
    starts = [
        start for start in read(clips.draw(4_000, length=4), 2) if start in expected
    ]  # columns forget at their own pace
    assert len(starts) > 3_500
    counts = np.array([starts.count(window) for window in expected])
    assert counts.min() > 0
    assert (counts / counts.mean()).std() < 3 / np.sqrt(counts.mean())


def test_memory_and_disk_hold_the_same(tmp_path):
    in_memory, _ = lived([[30], [7, 9]], 100, capacity=80)
    on_disk, _ = lived([[30], [7, 9]], 100, capacity=80, directory=tmp_path)
    assert (tmp_path / "frames.u8").stat().st_size > 0
    ours, theirs = in_memory.draw(16, length=5), on_disk.draw(16, length=5)
    assert (ours.obs == theirs.obs).all()
    assert (ours.actions == theirs.actions).all()


def test_every_frame_is_stored_once():
    clips = ClipStore(gym.spaces.Box(0, 255, (9, 84, 84), np.uint8), BOX, 10_000, frame_stack=3)
    assert clips.nbytes < 1.05 * 10_000 * 3 * 84 * 84


def test_a_cut_ends_an_episode_and_without_one_a_jump_is_refused():
    clips, _ = lived([[50]], 6)
    with pytest.raises(ValueError, match="does not continue the last one"):
        clips.add(stacked(0, 3, 0, 2)[None], np.zeros((1, 2)), [False])
    assert set(read(clips.draw(100, length=6), 2)) == {(0, 0, 0)}  # what is stored is untouched
    clips.cut()
    clips.add(stacked(0, 3, 0, 2)[None], np.array([[0.03, 0]]), [False])
    assert set(read(clips.draw(200, length=3), 2)) == {(0, 0, step) for step in range(4)}


def test_one_environment_may_leave_out_its_axis():
    clips, life = ClipStore(space(2), BOX, 100, frame_stack=2), Life([[50]])
    for _ in range(5):
        obs, actions, ended = life.step(2)
        clips.add(obs[0], actions[0], ended[0])
    assert read(clips.draw(1, length=5), 2) == [(0, 0, 0)]
    assert len(clips) == 5


def test_discrete_actions_become_one_hot_and_bounded_ones_are_scaled():
    assert Actions(gym.spaces.Discrete(3, start=1)).rows(np.array([[1, 3]])).tolist() == [[[1, 0, 0], [0, 0, 1]]]
    steering = gym.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 1.0], np.float32))
    assert Actions(steering).rows(np.array([[-1.0, 0.5], [2.0, 1.0]])).tolist() == [[-1, 0], [1, 1]]
    assert Actions(BOX).rows(np.array([[0.5, 3.0]])).tolist() == [[0.5, 1]]  # as the environment gets it
    assert Actions(BOX).rows(np.array([[0.5, 3.0]]), scaled=True).tolist() == [[0.5, 3]]
    with pytest.raises(ValueError, match=r"expected Discrete or Box"):
        Actions(gym.spaces.MultiBinary(3))


@pytest.mark.parametrize(
    ("shape", "expected", "stack"),
    [
        ((9, 84, 84), (9, 84, 84), 1),
        ((96, 96, 3), (3, 96, 96), 1),
        ((4, 96, 96, 3), (12, 96, 96), 4),
        ((4, 84, 84), (4, 84, 84), 1),
    ],
)
def test_pictures_come_out_with_their_channels_first(shape, expected, stack):
    pictures = Pictures.of(gym.spaces.Box(0, 255, shape, np.uint8))
    assert (pictures.shape, pictures.stack) == (expected, stack)
    obs = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
    first = pictures.first(obs)
    assert first.shape == (2, *expected)
    if shape[-1] == 3:
        np.testing.assert_array_equal(first[1, -1], obs[1].reshape(-1, 96, 96, 3)[-1, ..., 2])


@pytest.mark.parametrize(
    "wrong",
    [gym.spaces.Box(-1, 1, (24,), np.float32), gym.spaces.Box(0, 1, (3, 8, 8), np.float32)],
    ids=["vector", "float"],
)
def test_what_is_no_picture_is_refused(wrong):
    with pytest.raises(ValueError, match=r"not pictures: expected uint8"):
        ClipStore(wrong, BOX, 100)


def test_what_does_not_fit_is_refused_before_anything_is_written():
    clips, life = ClipStore(space(2), BOX, 100, 2, frame_stack=2), Life([[9], [9]])
    obs, actions, ended = life.step(2)
    with pytest.raises(ValueError, match=r"obs must be uint8 of shape \(2, 6, 2, 3\)"):
        clips.add(obs.astype(np.float32), actions, ended)
    with pytest.raises(ValueError, match=r"actions must be finite"):
        clips.add(obs, actions * np.nan, ended)
    with pytest.raises(ValueError, match=r"frame_stack=4 does not divide the 6 channels"):
        ClipStore(space(2), BOX, 100, frame_stack=4)
    with pytest.raises(ValueError, match=r"capacity=1 steps for 2 environments"):
        ClipStore(space(2), BOX, 1, 2)
    assert len(clips) == 0


@pytest.mark.parametrize(("actions", "dim", "discrete"), [(BOX, 2, False), (gym.spaces.Discrete(3), 3, True)])
def test_a_store_tells_the_kind_of_its_actions(actions, dim, discrete):
    clips = ClipStore(space(2), actions, 10, frame_stack=2)
    assert (clips.action_dim, clips.discrete) == (dim, discrete)
