import subprocess
import sys

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from builders import fast_for
from maskrl.envs import base
from maskrl.envs.atari import Atari, AtariEnv, normalise

ale_py = pytest.importorskip("ale_py")
cv2 = pytest.importorskip("cv2")

ACTIONS = {
    "alien": 18,
    "amidar": 10,
    "assault": 7,
    "asterix": 9,
    "bank_heist": 18,
    "battle_zone": 18,
    "boxing": 18,
    "breakout": 4,
    "chopper_command": 18,
    "crazy_climber": 9,
    "demon_attack": 6,
    "freeway": 3,
    "frostbite": 18,
    "gopher": 8,
    "hero": 18,
    "jamesbond": 18,
    "kangaroo": 18,
    "krull": 18,
    "kung_fu_master": 14,
    "ms_pacman": 9,
    "pong": 6,
    "private_eye": 18,
    "qbert": 6,
    "road_runner": 18,
    "seaquest": 18,
    "up_n_down": 6,
}  # the 26 games of the benchmark, and how many actions each has


def make(task="breakout", *, seed=0, training=True, **options):
    return Atari(task=task, **options).make(seed=seed, training=training)


def moves(task, count, seed=0):
    return np.random.default_rng(seed).integers(ACTIONS[task], size=count)


def fresh(task):
    """ALE with a game just loaded and reset."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0)
    ale.loadROM(ale_py.roms.get_rom_path(task))
    ale.reset_game()
    return ale


def ours(env, actions, seed):
    """What an agent sees that resets whenever it must: (stack, reward, score, terminated, truncated, continues) …"""
    seen, begun = [], False
    for action in actions:
        if not begun:
            stack, info = env.reset(seed=seed)
            seed += not info["continues"]  # a seed for every game
            seen.append((stack, 0, info["score"], False, False, info["continues"]))
        stack, reward, terminated, truncated, info = env.step(action)
        seen.append((stack, reward, info["score"], terminated, truncated, None))
        begun = not (terminated or truncated)
    return seen


def benchmark(task, actions, seed, *, training, max_decisions):
    """The same from spec 2.1 alone, with an emulator of its own for every game."""
    seen = []
    ale, fresh_life = None, False
    for action in actions:
        if ale is None:
            ale, decisions = fresh(task), 0
            for _ in range(1 + np.random.default_rng(seed).integers(1, 31)):
                ale.act(0)
            seed += 1
            stack = np.stack([np.zeros((84, 84), np.uint8)] * 3 + [cv2.resize(ale.getScreenGrayscale(), (84, 84))])
            seen.append((stack, 0, 0, False, False, False))
        elif fresh_life:
            stack = np.stack([np.zeros((84, 84), np.uint8)] * 3 + [stack[3]])
            seen.append((stack, 0, 0, False, False, True))

        pressed = ale.getMinimalActionSet()[action]
        before, screens, scores = ale.lives(), [], []
        for _ in range(4):
            scores.append(ale.act(pressed))
            screens.append(ale.getScreenGrayscale())
        fresh_life = ale.lives() < before and ale.lives() > 0
        if fresh_life:
            ale.act(0)
            screens[3] = ale.getScreenGrayscale()
        decisions += 1
        over, cut = ale.game_over(), decisions == max_decisions
        stack = np.stack([*stack[1:], cv2.resize(np.where(screens[2] > screens[3], screens[2], screens[3]), (84, 84))])
        reward = sum(scores) if not training else min(max(sum(scores), -1), 1)
        fresh_life = fresh_life and training
        seen.append((stack, reward, sum(scores), over or fresh_life, cut, None))
        if over or cut:
            ale = None
    return seen


# Decisions, seed and cap, enough for: game over in Breakout; a lost life, scores of 10 and then the cap in Ms. Pac-Man; a
# lost life and scores of 25 in Q*bert; lost points and the cap in Pong.
GAMES = {"breakout": (260, 200, 108_000), "ms_pacman": (270, 1, 1000), "qbert": (70, 2, 108_000), "pong": (110, 1, 400)}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("task", fast_for(GAMES, "breakout", "pong"))
def test_every_frame_reward_and_ending_is_that_of_the_benchmark(task, training):
    count, seed, cap = GAMES[task]
    actions = moves(task, count)
    mine = ours(make(task, seed=9, training=training, max_frames=cap), actions, seed)
    theirs = benchmark(task, actions, seed, training=training, max_decisions=cap // 4)
    for time, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        assert a[1:] == b[1:], time
        assert np.array_equal(a[0], b[0]), time

    # … and what the games were chosen for happened.
    continued, started = ([seen[5] for seen in theirs].count(flag) for flag in (True, False))
    assert started == (1 if task == "qbert" else 2)
    assert (continued > 0) == (training and task != "pong")
    assert {np.sign(seen[2]) for seen in theirs} - {0} == ({-1} if task == "pong" else {1})
    assert any(seen[4] for seen in theirs) == (task in ("ms_pacman", "pong"))


def until_the_end(env, task="breakout", seed=0, **reset):
    """(frames, terminated, truncated, lives left) of one episode of random moves."""
    env.reset(**reset)
    frames = 0
    for action in moves(task, 3000, seed):
        _, _, terminated, truncated, info = env.step(action)
        frames += info["frames"]
        if terminated or truncated:
            break
    return frames, terminated, truncated, env.unwrapped._ale.lives()


def test_observations_are_four_grey_frames_of_84_pixels():
    env = make("pong")
    obs, info = env.reset()
    assert obs.shape == env.observation_space.shape == (4, 84, 84)
    assert obs.dtype == np.uint8
    assert obs[-1].std() > 10  # a picture, not a blank
    assert not obs[:-1].any()
    assert info == {"frames": 0, "score": 0.0, "continues": False}


def test_repeat_size_and_stack_are_as_asked_for():
    env = make(action_repeat=3, size=50, frame_stack=2)
    assert env.reset()[0].shape == env.observation_space.shape == (2, 50, 50)
    before = env.unwrapped._ale.getEpisodeFrameNumber()
    assert env.step(0)[-1]["frames"] == env.unwrapped._ale.getEpisodeFrameNumber() - before == 3


@pytest.mark.slow
def test_the_games_have_their_minimal_sets_of_actions():
    assert {task: int(AtariEnv(Atari(task=task), 0, training=True).action_space.n) for task in ACTIONS} == ACTIONS


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.filterwarnings("ignore:.*not having a spec", "ignore:.*different from the unwrapped")
def test_gymnasium_finds_no_fault(training):
    env = make(training=training)
    check_env(env)
    check_env(env.unwrapped)


# ── episodes and games ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_five_lives_are_five_episodes_in_training_and_one_in_evaluation():
    training, evaluation = make(), make(training=False)
    ends = [until_the_end(training, seed=episode) for episode in range(5)]
    assert [end[1:] for end in ends] == [(True, False, lives) for lives in (4, 3, 2, 1, 0)]
    assert until_the_end(evaluation)[1:] == (True, False, 0)


def test_a_game_goes_on_after_a_lost_life_with_an_empty_stack_and_starts_anew_after_its_last():
    env, last = make(), None
    for continues in (False, True, True, True, True, False):
        obs, info = env.reset()
        assert info == {"frames": 0, "score": 0.0, "continues": continues}
        assert not obs[:-1].any()
        if continues:
            assert np.array_equal(obs[-1], last[-1])  # the frame that the last life ended with
        for action in moves("breakout", 3000):
            last, _, ended, *_ = env.step(action)
            if ended:
                break


def test_a_game_is_restarted_on_demand_or_in_the_middle_of_an_episode():
    env = make()
    first, _ = env.reset(seed=3)
    for options, continues in [({"restart": True}, False), ({"restart": False}, True), (None, True)]:
        until_the_end(env, seed=4, options={"restart": True})
        obs, info = env.reset(seed=3, options=options)
        assert info["continues"] == continues
        assert np.array_equal(obs, first) == (not continues)
    for decisions in (0, 1):  # of the episode that is given up: the next life of the game above, and then another game
        for action in moves("breakout", decisions):
            env.step(action)
        obs, info = env.reset(seed=3)
        assert not info["continues"]
        assert np.array_equal(obs, first)


LIVES = 0x55  # where they are in the memory of Bank Heist, in which a game goes on for a while with no life left


def test_only_the_loss_of_a_life_that_is_not_the_last_ends_an_episode():
    env = make("bank_heist")
    for left, ends in [(3, True), (0, False), (5, False)]:
        env.reset(options={"restart": True})
        env.unwrapped._ale.setRAM(LIVES, left)
        _, _, terminated, truncated, _ = env.step(0)
        assert env.unwrapped._ale.lives() == left
        assert (terminated, truncated) == (ends, False)


def test_the_frame_after_a_lost_life_counts_neither_itself_nor_its_score(monkeypatch):
    env = make("bank_heist")
    env.reset()
    env.unwrapped._ale.setRAM(LIVES, 3)

    class Generous:
        """ALE, with 7 points for every frame without an action."""

        def __init__(self, ale):
            self.ale, self.idle = ale, 0

        def __getattr__(self, name):
            return getattr(self.ale, name)

        def act(self, action):
            self.idle += action == 0
            return self.ale.act(action) + 7 * (action == 0)

    monkeypatch.setattr(env.unwrapped, "_ale", Generous(env.unwrapped._ale))
    _, reward, terminated, _, info = env.step(1)  # FIRE
    assert (terminated, env.unwrapped._ale.idle) == (True, 1)
    assert (reward, info) == (0, {"frames": 4, "score": 0})


def test_a_life_lost_in_the_last_decision_before_the_cap_ends_and_cuts():
    env = make("bank_heist", max_frames=4)
    env.reset()
    env.unwrapped._ale.setRAM(LIVES, 3)
    assert env.step(0)[2:4] == (True, True)
    assert not env.reset()[1]["continues"]


def test_the_cap_cuts_a_game_and_counts_through_its_lives():
    env = make(max_frames=400)
    lives = []
    while not lives or not lives[-1][2]:
        lives.append(until_the_end(env, seed=len(lives)))
    assert len(lives) > 1
    assert sum(frames for frames, *_ in lives) == 400
    assert lives[-1][1:3] == (False, True)
    assert not env.reset()[1]["continues"]

    env = make(max_frames=400, training=False)
    assert until_the_end(env)[:3] == (400, False, True)


def test_a_cap_that_is_no_multiple_of_the_repeat_is_reached_by_a_whole_decision():
    assert until_the_end(make(max_frames=10))[:3] == (12, False, True)


def test_a_decision_outside_an_episode_is_refused():
    env = make()
    for _ in range(2):
        with pytest.raises(ResetNeeded, match="call reset"):
            env.step(0)
        assert until_the_end(env)[1]


# ── seeds ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def rollout(env, actions, **reset):
    """Everything of a game's beginning that can differ: stacks (1 + decisions, C, H, W) and the state of the emulator."""
    stacks = [env.reset(options={"restart": True}, **reset)[0]]
    for action in actions:
        obs, _, terminated, *_ = env.step(action)
        stacks.append(obs)
        if terminated:
            stacks.append(env.reset()[0])
    return np.stack(stacks), env.unwrapped._ale.cloneState(include_rng=True)


# The three in which ALE's reset or a restored state, each alone, lets the past shine through; and an innocent one.
@pytest.mark.parametrize("task", fast_for(["assault", "kung_fu_master", "qbert", "breakout"], "breakout"))
def test_the_same_seed_gives_the_same_game_whatever_came_before(task):
    new, old = make(task, seed=1), make(task, seed=2)
    first, state = rollout(new, moves(task, 40), seed=7)
    for past in (1, 60):
        rollout(old, moves(task, past, seed=past))
        again, same = rollout(old, moves(task, 40), seed=7)
        assert np.array_equal(first, again)
        assert state == same


@pytest.mark.slow
@pytest.mark.parametrize("task", ACTIONS)
def test_the_start_of_every_game_is_that_of_a_rom_just_loaded(task):
    env = make(task, training=False)
    for past in (0, 1, 100, 400):
        rollout(env, moves(task, past, seed=past))
        env.reset(seed=past)
        ale = fresh(task)
        for _ in range(1 + np.random.default_rng(past).integers(1, 31)):
            ale.act(0)
        for action in moves(task, 50):
            for _ in range(4):
                for emulator in (env.unwrapped._ale, ale):
                    emulator.act(ale.getMinimalActionSet()[action])
            assert np.array_equal(env.unwrapped.ram(), ale.getRAM())
            assert np.array_equal(env.render(), ale.getScreenRGB())


def lengths_of_start(env, count=6):
    """How many frames have passed when a game begins, for the next games of the generator."""
    return [(env.reset(), env.unwrapped._ale.getEpisodeFrameNumber())[1] for _ in range(count)]


def test_without_a_seed_the_generator_of_make_goes_on():
    env, twin, other = (make("pong", seed=seed) for seed in (5, 5, 6))
    starts = lengths_of_start(env)
    assert len(set(starts)) > 1
    assert starts == lengths_of_start(twin)
    assert starts != lengths_of_start(other)


@pytest.mark.parametrize("noops", [1, 3])
def test_a_game_starts_after_one_and_then_one_to_so_many_frames_without_an_action(noops):
    assert set(lengths_of_start(make("pong", noops=noops), 30)) == set(range(2, 2 + noops))


def test_curl_may_start_without_a_frame_and_shrinks_before_it_takes_the_brighter_pixels():
    assert set(lengths_of_start(make("pong", noops=2, least_noops=0), 30)) == {0, 1, 2}
    with pytest.raises(ValueError, match="least_noops=3 must not be above noops=2"):
        Atari(noops=2, least_noops=3)
    first, last = (make("breakout", training=False, shrink_first=each) for each in (True, False))
    frames = []
    for env in (first, last):
        env.reset(seed=1)
        frames.append(np.stack([env.step(action)[0][-1] for action in moves("breakout", 40)]).astype(int))
    assert not np.array_equal(*frames)
    assert np.abs(frames[0] - frames[1]).max() < 128  # the same pictures but for edges of what moves
    assert (frames[0] <= frames[1] + 1).all()  # a maximum of means is never above the mean of maxima


# ── what else an environment shows ──────────────────────────────────────────────────────────────────────────────────────


def test_a_video_frame_and_the_memory_are_those_of_the_emulator_and_change_nothing():
    env, ale = make(), fresh("breakout")
    env.reset(seed=1)
    for _ in range(1 + np.random.default_rng(1).integers(1, 31)):
        ale.act(0)
    for action in moves("breakout", 10):
        assert env.render().shape == (210, 160, 3)
        assert np.array_equal(env.render(), ale.getScreenRGB())
        assert env.unwrapped.ram().shape == (128,)
        assert np.array_equal(env.unwrapped.ram(), ale.getRAM())
        env.step(action)
        for _ in range(4):
            ale.act(ale.getMinimalActionSet()[action])
    assert env.render_mode == "rgb_array"
    assert env.metadata["render_fps"] == 15
    assert make(action_repeat=2).metadata["render_fps"] == 30


def test_what_was_given_away_is_not_written_to_again():
    env = make()
    given = [env.reset()[0], env.unwrapped.ram(), env.render()]
    kept = [array.copy() for array in given]
    for action in moves("breakout", 20):
        env.step(action)
    assert all(np.array_equal(*pair) for pair in zip(given, kept, strict=True))
    assert not np.array_equal(env.unwrapped.ram(), kept[1])


def test_making_a_game_says_nothing():
    script = "from maskrl.envs.atari import Atari; Atari().make(seed=0, training=True).reset()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "game"),
    [
        ("Pong-v5", "pong"),
        ("ALE/Pong-v5", "pong"),
        ("PongNoFrameskip-v4", "pong"),
        ("PongDeterministic-v0", "pong"),
        ("UpNDown", "up_n_down"),
        ("up_n_down", "up_n_down"),
        ("ALE/TicTacToe3D-v5", "tic_tac_toe_3d"),
        ("ALE/Pitfall2-v5", "pitfall2"),
    ],
)
def test_names_of_gymnasium_are_turned_into_those_of_ale(name, game):
    assert normalise(name) == game
    assert Atari(task=name) == Atari(task=game)
    assert Atari(task=name).task == game


@given(
    game=st.sampled_from(ale_py.roms.get_all_rom_ids()),
    namespace=st.sampled_from(["", "ALE/"]),
    kind=st.sampled_from(["", "NoFrameskip", "Deterministic"]),
    version=st.sampled_from(["", "-v0", "-v4", "-v5"]),
)
def test_every_spelling_of_every_game_is_understood(game, namespace, kind, version):
    camel = ale_py.registration.rom_id_to_name(game)  # as Gymnasium registers it
    assert normalise(namespace + camel + kind + version) == normalise(game) == game


@pytest.mark.parametrize("name", ["Pong-ram-v5", "ALE/Pong-ram-v5", "Pong-ramNoFrameskip-v4", "pong-ram"])
def test_the_memory_as_observation_is_refused(name):
    with pytest.raises(ValueError, match=f"task='{name}' observes the memory of the console, not pixels: use 'pong'"):
        Atari(task=name)


def test_an_unknown_game_is_reported_with_the_likely_one_and_the_list():
    with pytest.raises(ValueError, match=r"'brakeout' is not a game of ALE: did you mean 'breakout'\?.*zaxxon"):
        make("brakeout")
    with pytest.raises(ValueError, match=r"'xyz123' is not a game of ALE\. It has adventure"):
        make("xyz123")


def test_a_game_for_several_players_is_refused_before_ale_ends_the_process():
    with pytest.raises(ValueError, match="task='combat' cannot be played alone"):
        make("combat")


@pytest.mark.parametrize("field", ["action_repeat", "size", "frame_stack", "noops", "max_frames"])
def test_an_impossible_config_is_refused_when_it_is_made(field):
    with pytest.raises(ValueError, match=f"{field}=0 of Atari must be at least 1"):
        Atari(**{field: 0})


@pytest.mark.parametrize("module", ["ale_py", "cv2"])
def test_what_is_not_installed_is_said_with_the_extra_that_has_it(module, monkeypatch):
    find = base.importlib.util.find_spec
    monkeypatch.setattr(base.importlib.util, "find_spec", lambda name: None if name == module else find(name))
    config = Atari(task="ALE/Pong-v5")  # naming a game needs nothing
    with pytest.raises(ModuleNotFoundError, match=rf"{module} is not installed: pip install 'maskrl\[atari\]'"):
        config.make(seed=0, training=True)


def test_naming_a_game_does_not_import_an_emulator():
    script = (
        "import sys; from maskrl.envs.atari import Atari; Atari(task='ALE/Pong-v5')\n"
        "print(*{'ale_py', 'cv2', 'torch'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "\n"
