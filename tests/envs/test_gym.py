"""Any Gymnasium environment: what it shows becomes frames, an agent's action becomes its own, and bad ones are refused."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import maskrl
import own_env
from maskrl.envs import Gym, consent
from maskrl.envs.actions import Actions
from maskrl.envs.gym import EnvironmentRefusedError
from maskrl.envs.pixels import Picture, area_weights, channels_last
from maskrl.files import EnvironmentFailedError

FILE = Path(own_env.__file__)


def named(function: str = "make_env", **changes: object) -> Gym:
    found = Gym.named(f"{FILE}:{function}")
    fields = {name: getattr(found, name) for name in ("task", "source", "file", "sha256")}
    made = Gym(**fields, **changes)  # type: ignore[arg-type]
    consent.allow(made.identity)
    return made


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    """What is trusted stays in the test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv(consent.INHERITED, "")


# ── pixels ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("source", "target"), [(96, 48), (210, 84), (56, 64), (60, 36), (1000, 36), (36, 36)])
def test_every_weight_is_a_multiple_of_a_256th_and_they_sum_to_1(source, target):
    weights = area_weights(source, target) * 256
    assert (weights == np.round(weights)).all()
    assert (weights.sum(axis=1) == 256).all()
    exact = np.array([[max(0, min(j + 1, (i + 1) * source / target) - max(j, i * source / target)) for j in range(source)]
                      for i in range(target)]) * target / source  # fmt: skip
    assert abs(weights / 256 - exact).max() <= 1 / 256


def test_frames_are_the_means_of_areas():
    picture = np.random.default_rng(0).integers(256, size=(96, 192, 3), dtype=np.uint8)
    frame = Picture(96, 192, 3, 48).frame(picture)
    means = picture.reshape(48, 2, 48, 4, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
    assert frame.shape == (3, 48, 48)
    assert (frame == np.floor(means + 0.5)).all()


def test_frames_do_not_depend_on_the_order_of_sums():
    """The same as in whole numbers of any length: what makes an exported policy see the same frames."""
    picture = np.random.default_rng(1).integers(256, size=(210, 160, 3), dtype=np.uint8)
    rows, columns = ((area_weights(side, 84) * 256).astype(np.int64) for side in (210, 160))
    whole = np.einsum("ih,hwc,jw->cij", rows, picture.astype(np.int64), columns)
    assert (Picture(210, 160, 3, 84).frame(picture) == (whole + 2**15) // 2**16).all()


def test_grey_is_the_luma_and_transparency_is_left_out():
    picture = np.random.default_rng(2).integers(256, size=(40, 40, 4), dtype=np.uint8)
    red, green, blue = picture[..., :3].astype(int).transpose(2, 0, 1)
    assert (
        Picture(40, 40, 4, 40, grey=True).frame(picture)[0] == (77 * red + 150 * green + 29 * blue + 128) // 256
    ).all()
    assert (Picture(40, 40, 4, 40).frame(picture) == picture[..., :3].transpose(2, 0, 1)).all()


def test_layouts_are_told_apart_by_their_shapes():
    shapes = {(96, 96, 3): (96, 96, 3), (3, 96, 96): (96, 96, 3), (96, 64): (96, 64, 1), (210, 160, 4): (210, 160, 4)}
    assert all(channels_last(shape) == found for shape, found in shapes.items())
    assert [channels_last(shape) for shape in ((7, 7, 3), (2,), (3, 4, 96, 96), (64, 64, 64))] == [None] * 4


@pytest.mark.parametrize("layout", ["HWC", "CHW", "dict"])
def test_all_layouts_give_the_same_frames(layout):
    frames = [
        named(kwargs={"layout": one}, size=40).make(seed=1, training=True).reset(seed=3)[0] for one in ("HWC", layout)
    ]
    assert frames[0].shape == (9, 40, 40)
    assert (frames[0] == frames[1]).all()


def test_an_environment_of_vectors_is_learned_from_what_it_draws():
    seen = named(kwargs={"layout": "vector", "render_mode": "rgb_array"}, pixels="render", size=40)
    plain = named(size=40)
    obs = [config.make(seed=1, training=True).reset(seed=3)[0] for config in (seen, plain)]
    assert (obs[0] == obs[1]).all()


# ── actions ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_box_is_rescaled_to_its_bounds_and_never_leaves_them():
    actions = Actions.of(own_env.BOX)
    assert actions.outward(np.array([-1.0, -1.0])).tolist() == [-2.0, 0.0]
    assert actions.outward(np.array([1.0, 0.0])).tolist() == [2.0, 0.5]
    assert actions.outward(np.array([9.0, -9.0])) in own_env.BOX
    square = gym.spaces.Box(-3.0, 3.0, (2, 2), np.float64)
    assert Actions.of(square).space.shape == (4,)
    assert Actions.of(square).outward(np.zeros(4)) in square


def test_choices_become_what_the_environment_takes():
    late, many = gym.spaces.Discrete(3, start=5), gym.spaces.MultiDiscrete([2, 3, 4])
    assert [int(Actions.of(late).outward(choice)) for choice in range(3)] == [5, 6, 7]
    combined = Actions.of(many)
    taken = [tuple(combined.outward(choice)) for choice in range(24)]
    assert combined.space.n == len(set(taken)) == 24
    assert all(combined.outward(choice) in many for choice in range(24))
    buttons = gym.spaces.MultiBinary(3)
    assert {tuple(Actions.of(buttons).outward(choice)) for choice in range(8)} == set(np.ndindex(2, 2, 2))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (gym.spaces.Box(-np.inf, np.inf, (2,)), "env.action_limit=1"),
        (gym.spaces.Tuple([gym.spaces.Discrete(2)] * 2), "Expected Discrete"),
        (gym.spaces.MultiDiscrete([20, 20]), "400 combinations"),
        (gym.spaces.Box(0, 9, (2,), np.int64), "Expected Discrete"),
    ],
)
def test_actions_that_no_agent_can_take_are_refused(space, words):
    with pytest.raises(ValueError, match=words):
        Actions.of(space)


def test_a_limit_stands_for_infinite_bounds():
    assert Actions.of(gym.spaces.Box(-np.inf, np.inf, (2,)), limit=3.0).outward(np.array([1.0, -1.0])).tolist() == [
        3,
        -3,
    ]


# ── decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_action_is_held_and_its_rewards_add_up():
    env = named(action_repeat=4, size=40, frame_stack=1).make(seed=1, training=True)
    env.reset(seed=3)
    user = env.unwrapped._env.unwrapped
    x = user.x
    _, reward, _, truncated, info = env.step(np.array([0.5, 0.0], np.float32))
    assert (len(user.taken), info["frames"], reward, truncated) == (4, 4, user.x - x, False)
    assert user.taken[0].tolist() == [1.0, 0.5]


def test_the_last_decision_may_be_shorter():
    env = named(action_repeat=3, size=40, kwargs={"length": 20}).make(seed=1, training=True)
    env.reset(seed=3)
    steps = [env.step(np.zeros(2, np.float32)) for _ in range(7)]
    assert [step[4]["frames"] for step in steps] == [3] * 6 + [2]
    assert [step[3] for step in steps] == [False] * 6 + [True]
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(2, np.float32))


def test_the_time_limit_truncates():
    env = named(time_limit=5, action_repeat=2, size=40).make(seed=1, training=True)
    env.reset(seed=3)
    ends = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_training_scales_and_clips_rewards_and_evaluation_does_not():
    config = named(reward_scale=0.5, reward_clip=0.75, size=40)
    for training, expected in ((True, 0.75), (False, 2.0)):
        env = config.make(seed=1, training=training)
        env.reset(seed=3)
        assert env.step(np.array([1.0, 0.0], np.float32))[1] == expected


def test_the_brighter_of_the_last_two_pictures():
    env = named(max_of_two=True, action_repeat=2, size=40, frame_stack=1).make(seed=1, training=True)
    env.reset(seed=3)
    env.step(np.array([1.0, 0.0], np.float32))
    both = env.unwrapped.raw()[..., 0]
    assert (both == 200).sum() == 10 * 12  # a square, and where it was two pixels before


def test_an_episode_is_a_function_of_its_seed_and_actions():
    frames = []
    for _ in range(2):
        env = named(size=40).make(seed=1, training=True)
        env.reset(seed=3)
        frames.append([env.step(np.array([0.3, 0.0], np.float32))[0] for _ in range(5)])
    assert np.array_equal(*frames)


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("function", "changes", "words"),
    [
        ("make_env", {"kwargs": {"layout": "vector"}}, "env.pixels=render"),
        ("make_env", {"kwargs": {"layout": "float"}}, r"float32\)\. Expected a picture: uint8 .*astype\(np.uint8\)"),
        ("make_env", {"pixels": "render"}, "render_mode=None"),
        ("make_env", {"kwargs": {"wings": 2}}, "wings.*own_env.py, line"),
        ("make_env", {"image": "sight", "kwargs": {"layout": "dict"}}, "env.image=KEY"),
        ("make_env", {"wrappers": ("own_env:Nothing",)}, "module:Name"),
        ("class_itself", {}, r"returned the class Dot: return Dot\(\)"),
        ("Old", {}, "not a gymnasium.Env"),
        ("fails", {}, "the robot is not plugged in .*own_env.py, line"),
        ("make_enf", {}, "did you mean 'make_env'"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_do(function, changes, words):
    with pytest.raises(EnvironmentRefusedError, match=words):
        named(function, **changes).make(seed=1, training=True)


def test_an_id_that_is_not_there_names_the_nearest():
    with pytest.raises(EnvironmentRefusedError, match="did you mean gym/CartPole-v1"):
        Gym.named("CartPol-v1").open()
    pytest.importorskip("minigrid")
    with pytest.raises(EnvironmentRefusedError, match="did you mean gym/MiniGrid-Empty-5x5-v0"):
        Gym.named("MiniGird-Empty-5x5-v0").open()  # of a package that is imported for this only
    with pytest.raises(EnvironmentRefusedError, match=r"No module named 'no_such_package'$"):  # no line of importlib
        Gym.named("no_such_package:Thing-v0").open()


PACKAGE = """
import gymnasium
gymnasium.register("{name}/Mine-v0", entry_point="own_env:Dot", kwargs={{"length": 7}})
"""


def test_an_id_of_a_module_is_registered_by_its_import(tmp_path, monkeypatch):
    (tmp_path / "my_package.py").write_text(PACKAGE.format(name="my_package"))
    monkeypatch.syspath_prepend(str(tmp_path))
    env = Gym.named("my_package:my_package/Mine-v0").make(seed=1, training=True)
    env.reset(seed=1)
    action = np.zeros(2, np.float32)
    assert [env.step(action)[3] for _ in range(7)] == [False] * 6 + [True]


def test_a_module_of_the_current_folder_can_be_named_on_the_command_line(tmp_path):
    """The console script has its own folder on the import path, and not the current one; an installed package comes first."""
    (tmp_path / "my_module.py").write_text(PACKAGE.format(name="my_module"))
    (tmp_path / "gymnasium.py").write_text("raise ValueError('not the installed one')\n")
    words = ["recipes", "show", "gym/my_module:my_module/Mine-v0", "--json"]
    script = "import sys; sys.path[:1] = []; from maskrl.cli import main; main(sys.argv[1:])"
    path = os.pathsep.join([str(Path(maskrl.__file__).parents[1]), str(FILE.parent)])

    def said(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    assert json.loads(said(*words))["env"]["task"] == "my_module:my_module/Mine-v0"
    # Nothing else is looked for there. Packages that may have an id are imported to name the nearest, if they are installed.
    (tmp_path / "metaworld.py").write_text("open('ran', 'w').close()\n")
    assert "is not registered" in said("recipes", "show", "gym/no_such_id-v0")
    assert not (tmp_path / "ran").exists()


def test_a_file_that_cannot_be_imported_is_named_with_its_line(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import os\nimport no_such_module\n")
    with pytest.raises(EnvironmentRefusedError, match=r"No module named 'no_such_module' \(.*broken.py, line 2\)"):
        Gym.named(f"{broken}:make_env").open()
    with pytest.raises(EnvironmentRefusedError, match="cannot be read"):
        Gym.named(f"{tmp_path / 'missing.py'}:make_env")
    with pytest.raises(EnvironmentRefusedError, match="Name the function"):
        Gym.named("broken.py")


def test_a_picture_that_is_not_what_the_space_says_is_an_error():
    env = named(size=40).make(seed=1, training=True)
    env.unwrapped._env.layout = "HW"
    with pytest.raises(ValueError, match=r"the picture is uint8 \(40, 60\), and its space says uint8 \(40, 60, 3\)"):
        env.reset(seed=3)


def test_actions_that_change_at_a_reset_are_an_error():
    env = named(size=40).make(seed=1, training=True)
    env.reset(seed=3)
    env.unwrapped._env.action_space = gym.spaces.Discrete(3)
    with pytest.raises(
        ValueError, match=r"Discrete\(3\) after a reset, and were Box.*Set action_space in the constructor"
    ):
        env.reset(seed=3)


class Speaks(own_env.Dot):
    def reset(self, **options):
        print("reset")
        return super().reset(**options)

    def step(self, action):
        print("step")
        if self.steps == 2:
            raise KeyError("gripper")
        return super().step(action)

    def render(self):
        print("render")
        return super().render()


def test_prints_of_every_call_go_to_standard_error_and_an_error_names_the_call(capsys):
    env = Gym.named(lambda: Speaks(render_mode="rgb_array")).make(seed=1, training=True)
    env.reset(seed=3)
    env.step(np.zeros(2, np.float32))
    env.render()
    env.step(np.zeros(2, np.float32))
    with pytest.raises(
        EnvironmentFailedError, match=r"failed in step\(\): KeyError: 'gripper' \(.*test_gym.py, line \d+\)"
    ):
        env.step(np.zeros(2, np.float32))
    print("ours")
    assert tuple(capsys.readouterr()) == ("ours\n", "reset\nstep\nrender\nstep\nstep\n")


# ── consent ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE.read_text() + f"\nopen({str(tmp_path / 'ran')!r}, 'a').close()\n")
    return path


def test_code_that_nobody_named_does_not_run(tmp_path):
    path = mine(tmp_path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    stored = Gym(task="mine.py:make_env", source="file", file=str(path), sha256=digest)
    with pytest.raises(consent.ConsentError, match=r"--trust.*--env"):
        stored.make(seed=1, training=False)
    assert not (tmp_path / "ran").exists()
    stored.trust()
    stored.make(seed=1, training=False).close()
    assert (tmp_path / "ran").exists()


def test_what_this_user_trained_here_runs_again_and_a_changed_file_does_not(tmp_path, monkeypatch):
    path = mine(tmp_path)
    config = Gym.named(f"{path}:make_env")
    config.trust()
    monkeypatch.setenv(consent.INHERITED, "")  # another process
    config.make(seed=1, training=False).close()
    path.write_text(path.read_text() + "\n# changed\n")
    for name in [name for name in sys.modules if name.startswith("maskrl_env_mine")]:
        del sys.modules[name]
    with pytest.raises(EnvironmentRefusedError, match="has changed since the run was made"):
        config.make(seed=1, training=False)
    other = Gym(**{**config.identity, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
    with pytest.raises(consent.ConsentError):
        other.make(seed=1, training=False)


def test_other_arguments_are_another_environment():
    config = named()
    with pytest.raises(consent.ConsentError):
        Gym(**config.identity | {"kwargs": {"length": 3}}).make(seed=1, training=False)


def test_a_callable_runs_where_it_was_given_and_is_asked_for_elsewhere():
    here = Gym.named(lambda: own_env.Dot())
    assert not here.is_portable
    here.make(seed=1, training=True).close()
    elsewhere = Gym(task="__main__.make_env", source="python")
    consent.allow(elsewhere.identity)
    with pytest.raises(EnvironmentRefusedError, match=r"__main__.make_env.*--env FILE.py:FUNCTION"):
        elsewhere.make(seed=1, training=True)
    assert Gym.named(own_env.make_env).is_portable
    with pytest.raises(EnvironmentRefusedError, match="pass the function, not its result"):
        Gym.named(own_env.Dot())  # type: ignore[arg-type]
