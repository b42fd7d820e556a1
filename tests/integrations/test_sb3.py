"""Against the real stable-baselines3: where clips come from, who trains the encoder, what is saved, what is refused."""

import io
import subprocess
import sys
import warnings
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from counting import SIZE, Counting, assert_whole

pytest.importorskip("stable_baselines3")

from sb3_contrib import QRDQN
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from maskrl import AugmentConfig, AuxiliaryConfig, MaskConfig, MLRConfig
from maskrl.envs.toy import ToyArcade, ToyControl
from maskrl.integrations.sb3 import Auxiliary, FrameReplayBuffer, PixelSACPolicy, PixelTD3Policy
from maskrl.objectives.base import ObjectiveConfig
from maskrl.objectives.collapse import CollapseAlarm
from maskrl.objectives.curl import CURLConfig
from maskrl.objectives.mooss import MOOSSConfig
from maskrl.objectives.playvirtual import PlayVirtualConfig
from maskrl.objectives.spr import SPRConfig
from tiny_objectives import PairsConfig

K = 4
MLR = MLRConfig(
    clip_length=K,
    mask=MaskConfig(cube=(2, 9, 9)),
    augment=AugmentConfig(crop=None, shift=2),
    decoder_width=16,
    head_width=16,
)
FAST = AuxiliaryConfig(clips=4, warmup_updates=10)
SMALL = {"features_extractor_kwargs": {"features_dim": 16}, "net_arch": [16]}
FRAMES = {"replay_buffer_class": FrameReplayBuffer, "replay_buffer_kwargs": {"frame_stack": 2}}


def envs(*lengths: int, **options: bool) -> DummyVecEnv:
    return DummyVecEnv([lambda c=c, n=n: Counting(c, n, **options) for c, n in enumerate(lengths)])


def auxiliary(**options: object) -> Auxiliary:
    return Auxiliary(MLR, optimiser=FAST, **options)  # type: ignore[arg-type]


def off_policy(algorithm: type, policy: object, env: object, **options: object) -> object:
    defaults = {
        "buffer_size": 60,
        "learning_starts": 20,
        "batch_size": 8,
        "policy_kwargs": SMALL,
        "seed": 3,
        "device": "cpu",
    }
    return algorithm(policy, env, **deepcopy(defaults | options))  # type: ignore[operator]  # SB3 writes into policy_kwargs


def sac(env: object | None = None, **options: object) -> SAC:
    return off_policy(SAC, PixelSACPolicy, env or envs(23), **options)  # type: ignore[return-value]


def on_policy(algorithm: type, env: object, **options: object) -> object:
    batch = {"batch_size": 16} if algorithm is PPO else {}
    defaults = {"n_steps": 32, "policy_kwargs": SMALL, "seed": 0, "device": "cpu", **batch}
    return algorithm("CnnPolicy", env, **deepcopy(defaults | options))


class Drawn(BaseCallback):
    """Looks at many clips after every rollout, beside the objective's own."""

    def __init__(self, beside: Auxiliary) -> None:
        super().__init__()
        self.beside, self.clips, self.draws = beside, 0, np.random.default_rng(0)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        assert self.beside.step is not None
        if self.beside.step.updates:
            obs, _ = self.beside._source.draw_clips(self.draws, 32, K)  # type: ignore[union-attr]
            assert_whole(obs)
            self.clips += len(obs)


BUFFERS = {
    "theirs": {},
    "theirs, memory optimised": {
        "optimize_memory_usage": True,
        "replay_buffer_kwargs": {"handle_timeout_termination": False},
    },
    "ours": FRAMES,
}


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("discrete", [False, True], ids=["SAC", "DQN"])
@pytest.mark.filterwarnings("ignore:The last trajectory in the replay buffer will be truncated")
def test_every_clip_is_of_one_environment_and_one_episode_with_the_ring_full_and_learn_called_again(
    buffer: str, discrete: bool
) -> None:
    algorithm, policy = (DQN, "CnnPolicy") if discrete else (SAC, PixelSACPolicy)
    mlr = auxiliary()
    drawn = Drawn(mlr)
    env = envs(7, 12, discrete=discrete)
    kwargs = {"train_freq": 3, "buffer_size": 60, **BUFFERS[buffer]}
    model = off_policy(algorithm, policy, env, **kwargs)
    for steps, anew in ((50, True), (31, True), (43, False), (61, True)):  # none is a multiple of an episode
        model.learn(steps, callback=CallbackList([mlr, drawn]), reset_num_timesteps=anew)
    assert model.replay_buffer.full
    assert drawn.clips > 32 * 20
    assert mlr.step is not None
    assert mlr.step.updates > 20


def test_steps_that_were_taken_without_the_callback_are_read_by_their_pictures(tmp_path: Path) -> None:
    model, mlr = sac(envs(50), learning_starts=0), auxiliary()
    model.learn(11)
    model.learn(13)  # a reset that nothing in the buffer tells
    model.save_replay_buffer(tmp_path / "replay.pkl")
    fresh = sac(envs(50), learning_starts=0)
    fresh.load_replay_buffer(tmp_path / "replay.pkl")
    fresh.learn(5, callback=CallbackList([mlr, drawn := Drawn(mlr)]))
    assert drawn.clips > 0


def test_a_run_with_the_objective_starts_from_the_same_weights_and_sees_the_same_batches() -> None:
    seen = []
    for callback in (None, auxiliary()):
        model = sac(envs(23), learning_starts=10)
        weights = [parameter.clone() for parameter in model.policy.parameters()]
        model.learn(11, callback=callback)
        seen.append([*weights, *model.replay_buffer.sample(8)[:5], torch.rand(3)])
    assert all(with_it.equal(without) for with_it, without in zip(*seen, strict=True))


AGENTS = {
    "SAC": (SAC, PixelSACPolicy, False),
    "TD3": (TD3, PixelTD3Policy, False),
    "DDPG": (DDPG, PixelTD3Policy, False),
    "DQN": (DQN, "CnnPolicy", True),
    "QR-DQN": (QRDQN, "CnnPolicy", True),
}


def encoder_of(model: object) -> torch.nn.Module:
    policy = model.policy  # type: ignore[attr-defined]
    return next(
        getattr(policy, name) for name in ("critic", "q_net", "quantile_net") if hasattr(policy, name)
    ).features_extractor


@pytest.mark.parametrize("agent", AGENTS)
def test_the_objective_moves_the_encoder_and_the_actors_optimiser_does_not_hold_it(agent: str) -> None:
    algorithm, policy, discrete = AGENTS[agent]
    model = off_policy(algorithm, policy, envs(23, discrete=discrete), gradient_steps=0, train_freq=1)
    before = [parameter.clone() for parameter in encoder_of(model).parameters()]
    mlr = auxiliary(updates=1)
    model.learn(30, callback=mlr)
    assert mlr.step is not None
    assert mlr.step.updates == 10
    assert all((a != b).any() for a, b in zip(before, encoder_of(model).parameters(), strict=True))
    if not discrete:
        held = {id(p) for group in model.policy.actor.optimizer.param_groups for p in group["params"]}
        assert not held & {id(p) for p in encoder_of(model).parameters()}
        trained = {id(p) for group in model.policy.critic.optimizer.param_groups for p in group["params"]}
        assert trained >= {id(p) for p in encoder_of(model).parameters()}


CLIPS_ALONE = [
    SPRConfig(augment=MLR.augment),
    PlayVirtualConfig(augment=MLR.augment),
    MOOSSConfig(augment=MLR.augment, mask=MLR.mask),
    PairsConfig(augment=MLR.augment),
]


@pytest.mark.parametrize("objective", CLIPS_ALONE, ids=lambda objective: objective.kind)
def test_any_objective_that_needs_clips_alone_will_do(objective: ObjectiveConfig) -> None:
    model, beside = sac(), Auxiliary(objective, optimiser=FAST)
    before = [parameter.clone() for parameter in encoder_of(model).parameters()]
    model.learn(25, callback=beside)
    assert beside.step is not None
    assert beside.step.updates == 5
    assert any((a != b).any() for a, b in zip(before, encoder_of(model).parameters(), strict=True))


@pytest.mark.parametrize("discrete", [False, True], ids=["SAC", "DQN"])
def test_an_objective_that_draws_actions_knows_whether_they_are_discrete(discrete: bool) -> None:
    algorithm, policy = (DQN, "CnnPolicy") if discrete else (SAC, PixelSACPolicy)
    virtual = Auxiliary(PlayVirtualConfig(augment=MLR.augment), optimiser=FAST)
    off_policy(algorithm, policy, envs(23, discrete=discrete)).learn(25, callback=virtual)  # type: ignore[attr-defined]
    assert virtual.step is not None
    assert virtual.step.objective.host.discrete == discrete


def test_the_objective_makes_as_many_updates_as_the_agent_or_every_second() -> None:
    """`gradient_steps=-1`: as many as steps of all environments."""
    for every, updates in ((1, 30), (2, 15)):
        mlr = Auxiliary(replace(MLR, every=every), optimiser=FAST)
        sac(envs(23, 23), train_freq=3, gradient_steps=-1, learning_starts=12).learn(42, callback=mlr)
        assert mlr.step is not None
        assert mlr.step.updates == updates


@pytest.mark.parametrize("agent", ["SAC", "TD3"])
def test_the_critics_loss_moves_the_encoder_and_the_actor_sees_the_move(agent: str) -> None:
    algorithm, policy, _ = AGENTS[agent]
    model = off_policy(algorithm, policy, envs(23))
    obs = torch.rand(2, 6, SIZE, SIZE)
    before = model.policy.actor.features_extractor(obs)
    model.learn(30)
    after = model.policy.actor.features_extractor(obs)
    assert (before != after).any()
    assert after.equal(encoder_of(model)(obs))
    assert not after.requires_grad


def test_the_policy_computes_what_sb3s_would_with_the_same_weights() -> None:
    torch.manual_seed(0)
    ours, theirs = sac(), off_policy(SAC, "CnnPolicy", envs(23))
    theirs.policy.critic.load_state_dict(ours.policy.critic.state_dict())
    obs, actions = torch.randint(256, (3, 6, SIZE, SIZE), dtype=torch.uint8), torch.rand(3, 2)
    for mine, reference in zip(ours.critic(obs, actions), theirs.critic(obs, actions), strict=True):
        assert mine.equal(reference)
    for q in (ours.critic, theirs.critic):
        q.zero_grad()
        sum(value.sum() for value in q(obs, actions)).backward()
    for mine, reference in zip(ours.critic.parameters(), theirs.critic.parameters(), strict=True):
        assert mine.grad.equal(reference.grad)


@pytest.mark.parametrize("algorithm", [PPO, A2C])
@pytest.mark.parametrize("discrete", [False, True], ids=["box", "discrete"])
def test_on_policy_agents_give_clips_of_their_rollouts(algorithm: type, discrete: bool) -> None:
    model = on_policy(algorithm, envs(7, 12, discrete=discrete))
    before = [parameter.clone() for parameter in model.policy.features_extractor.parameters()]
    mlr = auxiliary()
    model.learn(128, callback=CallbackList([mlr, drawn := Drawn(mlr)]))
    assert mlr.step is not None
    assert mlr.step.updates == 2 * (32 * 2) // (4 * K)  # one pass over each of two rollouts
    assert drawn.clips == 2 * 32
    assert any((a != b).any() for a, b in zip(before, model.policy.features_extractor.parameters(), strict=True))


class Dictionary(gym.ObservationWrapper):  # type: ignore[type-arg]
    def __init__(self, env: gym.Env) -> None:  # type: ignore[type-arg]
        super().__init__(env)
        vector = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.observation_space = gym.spaces.Dict({"camera": env.observation_space, "joints": vector})

    def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        return {"camera": observation, "joints": np.zeros(3, np.float32)}


COMBINED = {"features_extractor_kwargs": {"cnn_output_dim": 16}, "net_arch": [16]}


def dictionaries() -> DummyVecEnv:
    return DummyVecEnv([lambda: Dictionary(Counting(0, 9)), lambda: Dictionary(Counting(1, 14))])


@pytest.mark.parametrize("algorithm", [SAC, PPO])
def test_one_key_of_a_dict_is_enough(algorithm: type) -> None:
    env, small = dictionaries(), deepcopy(COMBINED)
    if algorithm is SAC:
        model = off_policy(SAC, PixelSACPolicy, env, policy_kwargs=small)
    else:
        model = PPO("MultiInputPolicy", env, n_steps=32, batch_size=16, policy_kwargs=small, device="cpu")
    with pytest.raises(ValueError, match=r"pictures under 'camera'; got key=None"):
        model.learn(30, callback=auxiliary())
    mlr = auxiliary(key="camera")
    model.learn(64, callback=CallbackList([mlr, drawn := Drawn(mlr)]))
    assert drawn.clips > 0


# ── FrameReplayBuffer ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_our_replay_returns_sb3s_batches_bit_for_bit() -> None:
    ours, theirs = (
        sac(envs(29, 37, terminates=False), **options).learn(70)  # the ring of 30 steps for each environment is full
        for options in (FRAMES, {})
    )
    for mine, reference in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        assert mine.equal(reference)
    np.random.seed(5)
    mine = ours.replay_buffer.sample(64)
    np.random.seed(5)
    for name, reference in theirs.replay_buffer.sample(64)._asdict().items():
        value = getattr(mine, name)
        assert value is None if reference is None else value.equal(reference) and value.dtype == reference.dtype


def test_shifts_move_pictures_and_leave_the_draws_alone() -> None:
    kwargs = {"replay_buffer_class": FrameReplayBuffer}
    plain = sac(envs(23), replay_buffer_kwargs={"frame_stack": 2}, **kwargs)
    moved = sac(
        DummyVecEnv([lambda: ToyControl(size=SIZE, frame_stack=2).make(seed=0, training=True)]),
        **kwargs,
        replay_buffer_kwargs={"frame_stack": 2, "shift": 4},
    )
    for model in (plain, moved):
        model.learn(20)
    np.random.seed(0)
    first = moved.replay_buffer.sample(16)
    np.random.seed(0)
    second = moved.replay_buffer.sample(16)
    assert first.rewards.equal(second.rewards)
    assert first.observations.shape == (16, 6, SIZE, SIZE)
    assert not first.observations.equal(second.observations)
    assert first.observations.float().mean() > 0


def test_a_full_ring_of_short_episodes_forgets_its_oldest_steps_and_nothing_else() -> None:
    space, box = gym.spaces.Box(0, 255, (6, SIZE, SIZE), np.uint8), gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    buffer = FrameReplayBuffer(50, space, box, "cpu", frame_stack=2)
    env = Counting(0, 2)
    obs, _ = env.reset()
    for _ in range(120):
        then, reward, over, _, _ = env.step(None)
        buffer.add(obs[None], then[None], np.zeros((1, 2)), np.array([reward]), np.array([over]), [{}])
        obs = env.reset()[0] if over else then
    batch = buffer.sample(256)
    now, then = (pictures[:, :, 0, 0].int() for pictures in (batch.observations, batch.next_observations))
    assert (now[:, 3:5] == then[:, 3:5]).all()  # the same environment and episode
    assert (now[:, 5] + 1 == then[:, 5]).all()
    assert (batch.dones.flatten() == (then[:, 5] == 3)).all()


def test_our_replay_takes_a_sixth_of_the_memory() -> None:
    space, box = gym.spaces.Box(0, 255, (9, 84, 84), np.uint8), gym.spaces.Box(-1.0, 1.0, (6,), np.float32)
    ours = FrameReplayBuffer(1000, space, box, "cpu", frame_stack=3).nbytes
    assert 5.5 < 1000 * 2 * 9 * 84 * 84 / ours < 6


def test_our_replay_in_a_file_and_through_a_pickle(tmp_path: Path) -> None:
    in_file = {"frame_stack": 2, "shift": 2, "directory": tmp_path / "frames"}
    model = sac(envs(7, 12), **(FRAMES | {"replay_buffer_kwargs": in_file}))
    model.learn(70)
    assert (tmp_path / "frames" / "frames.u8").stat().st_size > 0
    model.save_replay_buffer(tmp_path / "replay.pkl")
    again = sac(envs(7, 12), **FRAMES)
    again.load_replay_buffer(tmp_path / "replay.pkl")
    batches = []
    for replay in (model.replay_buffer, again.replay_buffer):
        np.random.seed(1)
        batches.append(replay.sample(32))
    assert all(a is b is None or a.equal(b) for a, b in zip(*batches, strict=True))
    mlr = auxiliary()
    again.learn(40, callback=CallbackList([mlr, drawn := Drawn(mlr)]))
    assert drawn.clips > 0


def test_our_replay_refuses_what_it_cannot_store() -> None:
    space, box = gym.spaces.Box(0, 255, (6, SIZE, SIZE), np.uint8), gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    with pytest.raises(ValueError, match="stores every frame once anyway"):
        FrameReplayBuffer(50, space, box, "cpu", optimize_memory_usage=True)
    with pytest.raises(ValueError, match="the observations are a Dict"):
        FrameReplayBuffer(50, gym.spaces.Dict({"camera": space}), box, "cpu")
    buffer = FrameReplayBuffer(50, space, box, "cpu", frame_stack=3)
    env = Counting()
    obs, then = env.reset()[0], env.step(None)[0]
    with pytest.raises(ValueError, match="frame_stack=3 its older frames must be the newer"):
        buffer.add(obs[None], then[None], np.zeros((1, 2)), np.zeros(1), np.zeros(1), [{}])
    assert buffer.size() == 0


# ── saving ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("agent", ["SAC", "TD3"])
def test_a_loaded_model_acts_the_same_and_shares_the_encoder_again(agent: str, tmp_path: Path) -> None:
    algorithm, policy, _ = AGENTS[agent]
    model = off_policy(algorithm, policy, envs(23), **FRAMES)
    model.learn(30, callback=auxiliary())
    model.save(tmp_path / "agent")
    again = algorithm.load(tmp_path / "agent", env=envs(23), device="cpu")
    obs = np.random.default_rng(0).integers(0, 256, (5, 6, SIZE, SIZE), np.uint8)
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], again.predict(obs, deterministic=True)[0])
    assert again.policy.actor.features_extractor.lender is encoder_of(again)
    for name, value in model.policy.state_dict().items():
        assert again.policy.state_dict()[name].equal(value)
    again.learn(30, callback=auxiliary())


@pytest.mark.parametrize(("agent", "policy"), [("SAC", PixelSACPolicy), ("TD3", PixelTD3Policy)])
def test_the_policy_alone_is_saved_and_loaded_as_sb3s_own_are(agent: str, policy: type, tmp_path: Path) -> None:
    """What SB3's tests of save and load do: parameters out and in, the policy and the actor by themselves, a zip in memory."""
    model = off_policy(AGENTS[agent][0], policy, envs(23))
    model.learn(25)
    parameters = deepcopy(model.get_parameters())
    obs = np.random.default_rng(0).integers(0, 256, (5, 6, SIZE, SIZE), np.uint8)
    actions = model.predict(obs, deterministic=True)[0]
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.add_(torch.rand_like(parameter))
    assert (model.predict(obs, deterministic=True)[0] != actions).any()
    model.set_parameters(parameters)
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], actions)
    model.policy.save(tmp_path / "policy.pt")
    alone = policy.load(tmp_path / "policy.pt", device="cpu")
    np.testing.assert_array_equal(alone.predict(obs, deterministic=True)[0], actions)
    model.actor.save(tmp_path / "actor.pt")
    actor = type(model.actor).load(tmp_path / "actor.pt", device="cpu")
    np.testing.assert_array_equal(actor.predict(obs, deterministic=True)[0], actions)
    model.save(zipped := io.BytesIO())
    zipped.seek(0)
    again = type(model).load(zipped, device="cpu")
    np.testing.assert_array_equal(again.predict(obs, deterministic=True)[0], actions)


@pytest.mark.filterwarnings("ignore:No update of mlr yet")
def test_the_objective_continues_where_it_was_saved(tmp_path: Path) -> None:
    model, mlr = sac(learning_starts=0), auxiliary()
    model.learn(30, callback=mlr)
    model.save(tmp_path / "agent")
    mlr.save(tmp_path / "agent.mlr.safetensors")
    loaded = SAC.load(tmp_path / "agent", env=envs(23), device="cpu")
    again = auxiliary().load(tmp_path / "agent.mlr.safetensors")
    loaded.learn(1, callback=again, reset_num_timesteps=False)  # too few steps for a clip: nothing but the state moves
    assert mlr.step is not None
    assert again.step is not None
    assert again.step.updates == mlr.step.updates > 0
    ours, theirs = mlr.step.state_dict(), again.step.state_dict()
    for name, value in ours["objective"].items():
        assert value.equal(theirs["objective"][name])
    for index, moments in ours["optimizer"]["state"].items():
        assert all(value.equal(theirs["optimizer"]["state"][index][name]) for name, value in moments.items())
    assert (mlr._draws.random(3) == again._draws.random(3)).all()


def test_the_same_callback_goes_on_with_a_loaded_model(tmp_path: Path) -> None:
    model, mlr = sac(), auxiliary()
    model.learn(30, callback=mlr)
    assert mlr.step is not None
    updates = mlr.step.updates
    model.save(tmp_path / "agent")
    loaded = SAC.load(tmp_path / "agent", env=envs(23), device="cpu")
    loaded.learn(30, callback=mlr)
    assert mlr.step.updates > updates
    assert mlr.step.objective.host.encoder is encoder_of(loaded)


def test_a_file_of_another_objective_is_refused(tmp_path: Path) -> None:
    model, mlr = sac(), auxiliary()
    with pytest.raises(ValueError, match="nothing to save before the first learn"):
        mlr.save(tmp_path / "mlr.safetensors")
    model.learn(25, callback=mlr)
    mlr.save(tmp_path / "mlr.safetensors")
    with pytest.raises(ValueError, match="belongs to an objective with other values"):
        Auxiliary(MLR, clips=5).load(tmp_path / "mlr.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"no such thing")
    with pytest.raises(ValueError, match=r"was not written by Auxiliary\.save"):
        auxiliary().load(tmp_path / "torn.safetensors")


def test_with_sb3s_own_classes_a_saved_model_needs_no_maskrl(tmp_path: Path) -> None:
    model = off_policy(DQN, "CnnPolicy", envs(23, discrete=True))
    model.learn(30, callback=auxiliary())
    model.save(tmp_path / "agent")
    script = (
        "import sys; sys.modules['maskrl'] = None\n"
        "import numpy as np\nfrom stable_baselines3 import DQN\n"
        f"model = DQN.load({str(tmp_path / 'agent')!r}, device='cpu')\n"
        f"print(model.predict(np.zeros((6, {SIZE}, {SIZE}), np.uint8), deterministic=True)[0])"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(printed) == model.predict(np.zeros((6, SIZE, SIZE), np.uint8), deterministic=True)[0]


# ── what one sees ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Kept(KVWriter):
    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def write(self, key_values: dict, key_excluded: dict, step: int = 0) -> None:  # type: ignore[type-arg]
        self.rows.append(dict(key_values))

    def close(self) -> None:
        pass


def test_the_metrics_are_in_sb3s_log() -> None:
    model, kept = sac(envs(7)), Kept()
    model.set_logger(Logger(folder=None, output_formats=[kept]))
    model.learn(60, callback=auxiliary(), log_interval=1)
    newest = kept.rows[-1]
    assert {"mlr/loss", "mlr/cosine", "mlr/target_std", "mlr/gradient_norm", "mlr/learning_rate"} <= newest.keys()
    assert newest["mlr/loss"] > 0


def test_a_collapse_is_said_once_in_words() -> None:
    alarm = CollapseAlarm(bound=0.1, patience=3)
    low, fine = {"mlr/target_std": torch.tensor(0.01)}, {"mlr/target_std": torch.tensor(0.5)}
    for metrics in (low, low, fine, low, low):
        alarm(metrics)
    with pytest.warns(UserWarning, match="The objective mlr has collapsed: for 3 updates"):
        alarm(low)
    alarm(low)  # a second warning would be an error here


def test_the_callback_looks_for_a_collapse_at_every_update() -> None:
    model, mlr = sac(), auxiliary()
    mlr.alarm = CollapseAlarm(bound=2.0, patience=5)  # above any standard deviation of directions
    model.learn(24, callback=mlr)  # 4 updates
    assert not mlr.alarm.rung
    with pytest.warns(UserWarning, match="The objective mlr has collapsed: for 5 updates"):
        model.learn(3, callback=mlr, reset_num_timesteps=False)


def test_too_short_episodes_are_told_once_and_training_goes_on() -> None:
    model, mlr = sac(envs(3)), auxiliary()
    with pytest.warns(UserWarning, match=r"No update of mlr yet. There are no 4 steps in a row") as caught:
        model.learn(40, callback=mlr)
    assert len(caught) == 1
    assert model.num_timesteps == 40


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────


class Dividing(NatureCNN):
    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return super().forward(observations / 255)


class Vector(gym.Env):  # type: ignore[type-arg]
    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, **_: object) -> tuple[np.ndarray, dict]:  # type: ignore[type-arg]
        return np.zeros(4, np.float32), {}


def own(extractor: type[BaseFeaturesExtractor]) -> dict[str, object]:
    return {**SMALL, "features_extractor_class": extractor}


WRONG = {
    "an actor with an encoder of its own": (
        lambda: (off_policy(SAC, "CnnPolicy", envs(23)), auxiliary()),
        r"The actor of CnnPolicy has a separate encoder.*PixelSACPolicy",
    ),
    "an encoder that the actor trains": (
        lambda: (
            off_policy(SAC, "CnnPolicy", envs(23), policy_kwargs={**SMALL, "share_features_extractor": True}),
            auxiliary(),
        ),
        "lets only the actor train the encoder",
    ),
    "PPO with two encoders": (
        lambda: (on_policy(PPO, envs(23), policy_kwargs={**SMALL, "share_features_extractor": False}), auxiliary()),
        "gives the actor a separate encoder",
    ),
    "an encoder that divides again": (
        lambda: (sac(policy_kwargs=own(Dividing)), auxiliary()),
        "The encoder divides its pixels by 255",
    ),
    "pixels that nobody divides": (
        lambda: (sac(policy_kwargs={**SMALL, "normalize_images": False}), auxiliary()),
        "normalize_images=False",
    ),
    "vectors": (
        lambda: (SAC("MlpPolicy", Vector(), device="cpu"), auxiliary()),
        "not pictures: expected uint8",
    ),
    "a crop that the encoder does not take": (
        lambda: (
            sac(),
            Auxiliary(MLRConfig(clip_length=K, mask=MaskConfig(cube=(2, 9, 9)), augment=AugmentConfig(crop=28))),
        ),
        r"fails on observations \(6, 28, 28\).*shift=4",
    ),
    "a crop larger than the frame": (
        lambda: (sac(), Auxiliary(MLRConfig(clip_length=K, mask=MaskConfig(cube=(2, 9, 9))))),
        "Cannot crop 84 × 84 from frames of 36 × 36",
    ),
    "a cube larger than the frame": (
        lambda: (sac(), Auxiliary(MLRConfig(mask=MaskConfig(cube=(8, 40, 40)), augment=AugmentConfig(crop=None)))),
        "larger than the frame of 36 × 36",
    ),
    "a shift larger than the frame": (
        lambda: (sac(), Auxiliary(replace(MLR, augment=AugmentConfig(crop=None, shift=SIZE)))),
        "can move a whole frame of 36 × 36 pixels out of sight",
    ),
    "a replay shorter than a clip": (
        lambda: (sac(envs(7, 9), buffer_size=6), auxiliary()),
        "holds 3 steps of each of 2 environments, but a clip has 4",
    ),
    "a rollout shorter than a clip": (
        lambda: (on_policy(A2C, envs(23), n_steps=3), auxiliary()),
        "A rollout has n_steps=3 steps of each environment, but a clip has 4",
    ),
    "an objective on the critic's batch": (
        lambda: (sac(), Auxiliary(CURLConfig(when=None))),
        "needs the observations of the critic's batch and the slow encoder",
    ),
    "an objective with a Q projection": (
        lambda: (sac(), Auxiliary(MLRConfig(projection="q"))),
        "needs the first layers of a Q head.*objective.projection=mlp",
    ),
    "a key without a Dict": (lambda: (sac(), auxiliary(key="camera")), "not a Dict. Leave it out"),
    "pictures through VecNormalize": (
        lambda: (
            sac(VecNormalize(dictionaries(), norm_obs_keys=["camera"]), policy_kwargs=COMBINED),
            auxiliary(key="camera"),
        ),
        "VecNormalize normalises the pictures",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.filterwarnings("ignore:A patch of")
def test_what_cannot_work_is_refused_before_the_first_step(wrong: str) -> None:
    build, message = WRONG[wrong]
    model, mlr = build()
    with pytest.raises(ValueError, match=message):
        model.learn(100, callback=mlr)
    assert model.num_timesteps == 0


def test_the_critics_encoder_alone_is_trained_if_one_says_so() -> None:
    model = off_policy(SAC, "CnnPolicy", envs(23))
    mlr = auxiliary(encoder="critic")
    model.learn(25, callback=mlr)
    assert mlr.step is not None
    assert mlr.step.objective.host.encoder is model.critic.features_extractor


def test_sharing_by_sb3s_option_and_a_place_in_the_update_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="leave the option out"):
        sac(policy_kwargs={**SMALL, "share_features_extractor": True})
    with pytest.raises(ValueError, match=r"objective.when=last, but a callback runs between"):
        Auxiliary(CURLConfig())


def test_a_crop_of_the_whole_frame_is_told() -> None:
    model = sac()
    config = MLRConfig(clip_length=K, mask=MaskConfig(cube=(2, 9, 9)), augment=AugmentConfig(crop=SIZE))
    with pytest.warns(UserWarning, match="is the whole frame of 36 × 36 pixels, so nothing moves"):
        model.learn(1, callback=Auxiliary(config))


@pytest.mark.parametrize("config", [ToyControl(size=48), ToyArcade(size=48)], ids=["reach", "catch"])
def test_our_environments_pass_sb3s_check(config: ToyControl | ToyArcade) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(config.make(seed=0, training=True), warn=True)
