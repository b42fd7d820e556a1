"""Numbers beside the picture: they go to actor and critic, and through replay, resume, loading and export."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch
from test_own_environment import RAINBOW, SAC, config, main_ends, own

import maskrl
import own_env
from maskrl import AugmentConfig
from maskrl.agents.base import Spaces
from maskrl.agents.drqv2 import DrQv2Config
from maskrl.agents.rainbow import NatureEncoderConfig, RainbowConfig
from maskrl.agents.sac import ControlEncoderConfig, SACConfig
from maskrl.envs import consent
from maskrl.envs.gym import EnvironmentRefusedError, Gym
from maskrl.envs.vectors import Vector
from maskrl.replay.buffer import Replay
from maskrl.runs import export
from maskrl.runs.state import State
from tiny_runs import same_end, trained

__all__ = ["config"]  # a fixture
FILE = Path(own_env.__file__)
DICT = "env.kwargs.layout=dict"


def dict_env(**options) -> gym.Env:
    config = replace(Gym.named(f"{FILE}:make_env"), **{"kwargs": {"layout": "dict"}, "size": 36} | options)
    consent.allow(config.identity)
    return config.make(seed=1, training=True)


def test_numbers_are_scaled_by_their_bounds_or_compressed():
    env = dict_env()
    vector = env.unwrapped.outside.vector
    assert vector.keys == ("speed", "score")
    _, info = env.reset(seed=3)
    inner = env.unwrapped._env
    expected = [(0 - 2) / 4, (inner.y / 10 - 2) / 4, np.log1p(inner.x * 10)]
    np.testing.assert_allclose(info["vector"], expected, rtol=1e-6)
    assert env.unwrapped.raw_vector().tolist() == [0, np.float32(inner.y / 10), inner.x * 10]
    assert Spaces.of(env).vector == 3


def test_numbers_can_be_chosen_or_left_out():
    assert Spaces.of(dict_env(vectors=None)).vector == 0
    assert dict_env(vectors=("speed",)).unwrapped.outside.vector.keys == ("speed",)
    assert Spaces.of(dict_env(pixels="render", kwargs={"layout": "dict", "render_mode": "rgb_array"})).vector == 0
    for wrong in ("sight", "mission"):
        with pytest.raises(EnvironmentRefusedError, match="Expected keys of Boxes, all or none"):
            dict_env(vectors=(wrong,))


def test_numbers_that_are_none_are_refused():
    vector = Vector(("speed",), (None,), (None,))
    with pytest.raises(ValueError, match=r"speed of the observation are not all finite: \[\[nan\]\]"):
        vector.raw({"speed": np.nan})
    with pytest.raises(ValueError, match=r"have shape \(2,\), and their space says 1"):
        vector.raw({"speed": np.zeros(2)})


SMALL = {
    "hidden": 32, "batch_size": 16, "micro_batch": 8, "learning_rate": 0.01,
    "augment": AugmentConfig(crop=None, intensity=0.0),
}  # fmt: skip
ENCODER = ControlEncoderConfig(filters=4, strides=(2, 2))
AGENTS = [
    SACConfig(encoder=ENCODER, **SMALL),
    DrQv2Config(encoder=ENCODER, n_step=1, **SMALL),
    RainbowConfig(encoder=NatureEncoderConfig(filters=(4,), kernels=(8,), strides=(4,)), n_step=1, **SMALL),
]


@pytest.mark.parametrize("config", AGENTS, ids=lambda config: config.kind)
def test_every_agent_learns_from_them(config):
    """All pictures are black: what an episode is worth is in the number alone."""
    torch.manual_seed(0)
    spaces = Spaces((9, 36, 36), 2, discrete=config.kind == "rainbow", vector=1)
    agent = config.build(spaces, None, torch.device("cpu"))
    size = {"frame_shape": (3, 36, 36), "action_dim": 2, "frame_stack": 3, "capacity": 80, "seed": 0, "vector_dim": 1}
    replay, obs = Replay(**size, discrete=spaces.discrete), np.zeros((1, 9, 36, 36), np.uint8)
    for number in np.random.default_rng(0).choice([-1.0, 1.0], (24, 1)).astype(np.float32):
        replay.begin_episode(obs[0], number)
        replay.add([1, 0], 3 * float(number[0]), obs[0], number, terminated=True, truncated=False)
    batch = replay.transitions(replay.draw(8))
    assert (batch.rewards == 3 * batch.vectors[:, 0]).all()
    assert (batch.next_vectors == batch.vectors).all()
    losses = [float(agent.update(replay)["critic/loss"]) for _ in range(60)]
    assert np.mean(losses[-5:]) < 0.5 * losses[0]
    policy, pictures = agent.policy().eval(), torch.from_numpy(obs)
    good, bad = (policy.outputs(pictures, torch.full((1, 1), number))[0] for number in (1.0, -1.0))
    assert not torch.equal(good, bad)
    if config.kind == "rainbow":
        assert good[0, 0] > bad[0, 0] + 1


@pytest.mark.parametrize("overrides", [SAC, RAINBOW])
def test_a_run_with_numbers_continues_to_the_same_end_and_is_exported(tmp_path, overrides, monkeypatch, capsys):
    recipe = own(*overrides, DICT)
    whole, _ = trained(tmp_path / "whole", recipe)
    add = State.add

    def until(self, *arguments):
        if self.clock.decisions == 70:
            raise OSError("the plug was pulled")
        return add(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(State, "add", until)
        with pytest.raises(OSError, match="plug"):
            trained(tmp_path / "broken", recipe)
    assert same_end(whole, trained(tmp_path / "broken", recipe)[0])

    out = tmp_path / "policy.onnx"
    main_ends("export", str(whole.path), "--out", str(out), "--observations", "30", "--episodes", "1")
    assert "the same returns over 1 episode" in capsys.readouterr().out
    session, policy = onnxruntime.InferenceSession(out), maskrl.load(whole.path)
    about = json.loads(session.get_modelmeta().custom_metadata_map["maskrl.json"])
    assert about["vector"]["keys"] == ["speed", "score"]
    env = own_env.make_env(layout="dict", choices=3 if overrides is RAINBOW else 0)
    seen, _ = env.reset(seed=4)
    action = policy.act(seen)
    assert action in env.action_space
    policy.reset()
    numbers = [*seen["speed"], seen["score"]]
    assert np.array_equal(policy.act(seen["view"], numbers), action)
    recent = np.stack([seen["view"]] * about["frame_stack"])[None]
    played = session.run(None, {"pictures": recent, "vectors": np.array([numbers], np.float32)})[0][0]
    np.testing.assert_allclose(played, action, rtol=1e-4, atol=1e-5)
    if overrides is SAC:
        play = runpy.run_path(str(FILE.parents[1] / "examples" / "play_onnx.py"))["main"]
        assert play(str(out), f"{FILE}:make_dict") == pytest.approx([played_by(policy)])
    with pytest.raises(ValueError, match="takes 3 numbers with a picture"):
        policy.act(seen["view"])


def played_by(policy: maskrl.Policy) -> float:
    policy.reset()
    env, total, ended = own_env.make_dict(), 0.0, False
    seen, _ = env.reset(seed=0)
    while not ended:
        seen, reward, terminated, truncated, _ = env.step(policy.act(seen))
        total, ended = total + reward, terminated or truncated
    return total


def test_the_file_scales_numbers_as_the_policy_does(tmp_path):
    run, _ = trained(tmp_path / "run", own(*SAC, DICT, "budget.frames=20", "evaluation.every=20"))
    policy = maskrl.load(run.path)
    raw = np.random.default_rng(0).normal(scale=5, size=(100, 3)).astype(np.float32)
    made = export.Exported(policy).numbers(torch.from_numpy(raw)).numpy()
    np.testing.assert_allclose(made, policy.outside.vector.scaled(raw), rtol=1e-6, atol=1e-7)
