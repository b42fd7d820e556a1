import subprocess
import sys

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from builders import require_drawing
from maskrl.envs.dmcontrol import VIDEO_SIZE, DMControl, load

require_drawing()


@pytest.fixture
def make():
    """Make environments with small frames, and close them after the test."""
    made = []

    def of(task="cartpole-swingup", *, action_repeat=8, seed=1, **options):
        config = DMControl(task=task, action_repeat=action_repeat, **{"size": 24, "shadow_size": 64} | options)
        made.append(config.make(seed=seed, training=True))
        return made[-1]

    yield of
    for env in made:
        env.close()


def rollout(env, actions, **reset):
    """Observations of an episode's beginning: (1 + decisions, C, H, W)."""
    return np.stack([env.reset(**reset)[0], *(env.step(action)[0] for action in actions)])


ACTIONS = np.random.default_rng(0).uniform(-1, 1, (5, 1)).astype(np.float32)


def test_observations_are_three_rgb_frames_of_100_pixels(make):
    obs, info = make(size=100, shadow_size=None).reset()
    assert obs.shape == (9, 100, 100)
    assert obs.dtype == np.uint8
    assert obs.std() > 10  # a picture, not a blank
    assert info == {"frames": 0}


def test_the_frames_are_those_of_dm_control_itself(make):
    ours = rollout(make(size=100, shadow_size=None, action_repeat=2), ACTIONS, seed=3)
    suite = load("cartpole-swingup")
    suite.task.random.seed(3)
    suite.reset()
    theirs = [suite.physics.render(100, 100, camera_id=0)]
    for action in ACTIONS:
        suite.step(action)
        suite.step(action)
        theirs.append(suite.physics.render(100, 100, camera_id=0))
    suite.physics.free()
    assert np.array_equal(ours[:, -3:], np.stack(theirs).transpose(0, 3, 1, 2))


def test_1000_frames_are_125_decisions_of_8_and_cut_the_episode_without_ending_it(make):
    env = make(size=8)
    env.reset()
    ends, frames = [], []
    for _ in range(125):
        _, _, terminated, truncated, info = env.step(np.zeros(1, np.float32))
        ends.append((terminated, truncated))
        frames.append(info["frames"])
    assert ends == [(False, False)] * 124 + [(False, True)]
    assert frames == [8] * 125
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(np.zeros(1, np.float32))


def test_a_repeat_that_does_not_divide_1000_makes_the_last_decision_shorter(make):
    env = make(size=8, action_repeat=300)
    env.reset()
    frames = [env.step(np.zeros(1, np.float32))[-1]["frames"] for _ in range(4)]
    assert frames == [300, 300, 300, 100]


def test_a_task_that_the_suite_ends_by_itself_is_terminated(make):
    env = make("lqr-lqr_2_1", size=8)
    env.reset()
    with env.unwrapped._suite.physics.reset_context():
        pass  # the springs at rest, which is where lqr ends
    _, _, terminated, truncated, info = env.step(np.zeros(1, np.float32))
    assert (terminated, truncated, info["frames"]) == (True, False, 1)


def test_the_same_seed_gives_the_same_frames_whatever_came_before(make):
    fresh, used = make(seed=1), make(seed=2)
    rollout(used, ACTIONS[::-1])
    first, again = (rollout(env, ACTIONS, seed=7) for env in (fresh, used))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, rollout(fresh, ACTIONS, seed=8))


def test_without_a_seed_the_generator_of_make_goes_on(make):
    env, twin = make(seed=5), make(seed=5)
    first, second = (rollout(env, ACTIONS) for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, rollout(twin, ACTIONS))
    assert np.array_equal(second, rollout(twin, ACTIONS))


def test_one_frame_is_drawn_per_decision(make, monkeypatch):
    from dm_control.mujoco.engine import Camera

    drawn = []
    real = Camera.render
    monkeypatch.setattr(
        Camera, "render", lambda self, *args, **options: (drawn.append(1), real(self, *args, **options))[1]
    )
    rollout(make(action_repeat=8), ACTIONS)
    assert len(drawn) == 1 + len(ACTIONS)


def test_a_reset_repeats_the_first_frame_and_then_the_oldest_leaves_first(make):
    obs = rollout(make(), ACTIONS)
    frames = obs.reshape(len(obs), 3, 3, 24, 24)  # (1 + decisions, frame of the stack, RGB, H, W)
    assert np.array_equal(frames[0, 0], frames[0, 2])
    assert np.array_equal(frames[0, 1], frames[0, 2])
    assert np.array_equal(frames[1:, :2], frames[:-1, 1:])
    assert not np.array_equal(frames[-1, 1], frames[-1, 2])


def test_the_rewards_of_repeated_frames_are_summed(make):
    env = make(action_repeat=4)
    env.reset(seed=3)
    ours = [env.step(action)[1] for action in ACTIONS]
    suite = load("cartpole-swingup")
    suite.task.random.seed(3)
    suite.reset()
    theirs = [sum(suite.step(action).reward for _ in range(4)) for action in ACTIONS]
    assert ours == theirs
    assert sum(ours) > 0


@pytest.mark.parametrize("task", ["cartpole-swingup", "quadruped-walk", "lqr-lqr_6_2"])
def test_actions_from_minus_one_to_one_span_the_true_bounds(make, task):
    env = make(task, action_repeat=1)
    env.reset(seed=0)
    suite = env.unwrapped._suite
    low, high = suite.action_spec().minimum, suite.action_spec().maximum
    if task.startswith("lqr"):
        low, high = np.full(2, -1.0), np.full(2, 1.0)  # no bounds: as they are
    for action, control in [(-1, low), (0, (low + high) / 2), (1, high)]:
        env.step(np.full(len(low), action, np.float32))
        assert suite.physics.control() == pytest.approx(control)


def test_a_video_frame_is_large_and_changes_nothing(make):
    env, twin = make(), make()
    env.reset(seed=1)
    image = env.render()
    assert image.shape == (VIDEO_SIZE, VIDEO_SIZE, 3)
    assert image.dtype == np.uint8
    assert image.std() > 10
    assert np.array_equal(rollout(env, ACTIONS, seed=2), rollout(twin, ACTIONS, seed=2))
    assert env.metadata["render_fps"] == pytest.approx(12.5)  # 100 frames per second, 8 per decision


def test_shadow_size_changes_shadows_only(make):
    sharp, coarse = (make("reacher-easy", size=64, shadow_size=side).reset(seed=0)[0] for side in (None, 64))
    changed = sharp != coarse
    assert 0 < changed.mean() < 0.2


@pytest.mark.parametrize("task", ["reacher-easy", "cartpole-swingup"])
def test_a_plain_drawing_has_the_bodies_but_neither_shadows_nor_reflections(make, task):
    full, plain = (
        make(task, size=48, shadow_size=None, drawing=how).reset(seed=0)[0][-3:] for how in ("full", "plain")
    )
    red, _, blue = full.astype(int)
    body = red > blue + 30  # all bodies of the suite are yellow or red, all else is blue
    assert body.sum() > 20
    apart = np.abs(full.astype(int) - plain.astype(int)).mean(axis=0)
    assert np.median(apart[body]) < 8
    red, _, blue = plain.astype(int)
    assert (body == (red > blue + 30)).mean() > 0.98  # the same places
    assert (apart > 2).any()  # the scene around them is another


def test_a_video_is_drawn_as_the_suite_draws_whatever_the_agent_sees(make):
    images = []
    for drawing in ("full", "plain"):
        env = make("quadruped-escape", shadow_size=None, drawing=drawing, action_repeat=2)
        for seed in (1, 2):  # the second episode has another terrain
            env.reset(seed=seed)
            env.step(np.zeros(env.action_space.shape, np.float32))
            images.append(env.render())
    assert np.array_equal(images[0], images[2])
    assert np.array_equal(images[1], images[3])
    suite = load("quadruped-escape")
    suite.task.random.seed(2)
    suite.reset()
    middle = (suite.action_spec().minimum + suite.action_spec().maximum) / 2
    suite.step(middle)
    suite.step(middle)
    suite.physics.model.vis.global_.offheight = VIDEO_SIZE
    theirs = suite.physics.render(VIDEO_SIZE, VIDEO_SIZE, camera_id=0)
    suite.physics.free()
    assert np.array_equal(images[1], theirs)


@pytest.mark.filterwarnings("ignore:.*not having a spec", "ignore:.*different from the unwrapped")
def test_gymnasium_finds_no_fault(make):
    check_env(make())
    check_env(make().unwrapped)


def test_closing_frees_the_opengl_context_and_may_be_repeated(make):
    env = make()
    env.reset()
    physics = env.unwrapped._suite.physics
    assert physics._contexts is not None
    env.close()
    env.close()
    assert physics._contexts is None


def test_an_unknown_task_is_reported_with_the_likely_one_and_the_list():
    with pytest.raises(
        ValueError, match=r"'cartpole-swingpu' is not in the suite: did you mean 'cartpole-swingup'\?.*walker-run"
    ):
        DMControl(task="cartpole-swingpu", action_repeat=8).make(seed=0, training=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "cartpole"}, "task='cartpole' must be a domain and a task"),
        ({"action_repeat": 0}, "action_repeat=0 of DMControl must be at least 1"),
        ({"shadow_size": 0}, "shadow_size=0 of DMControl must be at least 1"),
        ({"shadow_size": 512, "drawing": "plain"}, "shadow_size=512 has no effect with drawing=plain"),
        ({"kind": "atari"}, "kind='atari' is not a choice of DMControl"),
    ],
)
def test_an_impossible_config_is_refused_when_it_is_made(options, message):
    with pytest.raises(ValueError, match=message):
        DMControl(**{"task": "cartpole-swingup", "action_repeat": 8} | options)


def test_naming_a_task_does_not_import_a_simulator():
    script = (
        "import sys; from maskrl.envs import DMControl; DMControl(task='cartpole-swingup', action_repeat=8)\n"
        "print(*{'dm_control', 'mujoco', 'OpenGL'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.slow
def test_every_task_of_the_suite_loads():
    for task in tasks():
        env = load(task)
        assert env.physics.model.ncam > 0  # there is a camera 0
        env.physics.free()


@pytest.mark.slow
def test_every_task_is_a_function_of_seed_and_actions():
    for task in tasks():
        config = DMControl(task=task, action_repeat=2, size=16, shadow_size=64)
        fresh, used = (config.make(seed=seed, training=True) for seed in (1, 2))
        actions = np.random.default_rng(0).uniform(-1, 1, (4, *fresh.action_space.shape)).astype(np.float32)
        rollout(used, actions[::-1])
        first, again = (rollout(env, actions, seed=7) for env in (fresh, used))
        assert np.array_equal(first, again), task
        assert np.array_equal(*(env.unwrapped._suite.physics.get_state() for env in (fresh, used))), task
        fresh.close()
        used.close()


def tasks():
    load("cartpole-swingup").physics.free()  # settles the OpenGL backend before the suite is imported
    from dm_control import suite

    return ["-".join(names) for names in suite.ALL_TASKS]
