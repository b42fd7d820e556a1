"""Encoders by kind, for frames of many sizes, and modules of the user's own."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import maskrl
from maskrl import recipes
from maskrl.agents.base import Spaces
from maskrl.agents.encoders import ImpalaEncoderConfig, NatureEncoderConfig, OwnEncoderConfig, _given
from maskrl.files import RunError
from maskrl.nn.encoders import ImpalaEncoder, NatureEncoder, OwnEncoder
from maskrl.outputs import OutputError
from maskrl.recipes.overrides import from_json
from maskrl.recipes.schema import as_json
from maskrl.runs.export import Proof, facts_of

REACH = (
    *("budget.frames=24", "evaluation.every=24", "evaluation.episodes=1", "checkpoint_every=12", "threads=1"),
    *("agent.warmup_decisions=12", "agent.batch_size=4", "agent.auxiliary.clips=1"),
)


class Small(nn.Module):
    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(shape[0], 4, 8, 8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(12))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.layers(pixels)


@pytest.mark.parametrize("kind", ["control", "nature", "impala"])
@pytest.mark.parametrize("name", ["toy/reach", "toy/catch"])
@pytest.mark.parametrize("size", [36, 100, 256])
def test_every_agent_takes_every_kind_at_every_size(kind: str, name: str, size: int):
    """Built without data: what matters are the shapes, and that nothing is too large to be."""
    whole = ["objective=none", "agent.augment.crop=none"]
    recipe = recipes.resolve(name, [*whole, f"agent.encoder.kind={kind}", "agent.encoder.latent_dim=50"])
    assert (recipe.agent.encoder.kind, recipe.agent.encoder.latent_dim) == (kind, 50)
    spaces = Spaces((9, size, size), 3, discrete=name == "toy/catch")
    with torch.device("meta"):
        agent = recipe.agent.build(spaces, None, torch.device("meta"))
    frames = torch.empty(2, *recipe.agent.obs_shape(spaces), device="meta")
    assert agent.encoder.features(frames).shape[1:] == agent.encoder.feature_shape
    assert agent.encoder(frames).shape == (2, 50)


def test_the_map_itself_is_the_latent_state_unless_a_size_is_named():
    nature, impala = NatureEncoderConfig().build((4, 84, 84)), ImpalaEncoderConfig().build((4, 84, 84))
    assert (nature.latent_dim, impala.feature_shape) == (3136, (32, 11, 11))
    states = impala(torch.rand(3, 4, 84, 84))
    assert states.shape == (3, impala.latent_dim)
    assert states.amin() == 0
    assert states.amax() <= 1


def test_another_kind_begins_with_its_own_values_and_keeps_the_size_of_latent_states():
    plain = recipes.find("toy/reach")
    changed = recipes.resolve("toy/reach", ["agent.encoder.filters=8,16", "agent.encoder.kind=impala"])
    assert changed.agent.encoder == ImpalaEncoderConfig(filters=(8, 16), latent_dim=plain.agent.encoder.latent_dim)
    assert from_json(as_json(changed)) == changed
    assert recipes.resolve("toy/reach", ["agent.encoder.kind=control"]) == plain
    assert recipes.resolve("toy/catch", ["agent.encoder.kind=impala"]).agent.encoder == ImpalaEncoderConfig()
    with pytest.raises(
        ValueError, match=r"agent.encoder.kind: expected control, nature, impala or own, got \"imapla\""
    ):
        recipes.resolve("toy/reach", ["agent.encoder.kind=imapla"])


@pytest.mark.parametrize("name", ["toy/reach", "toy/catch"])
def test_recipes_of_runs_before_there_were_kinds_are_read(name: str):
    recipe = recipes.find(name)
    tree = json.loads(as_json(recipe))
    del tree["agent"]["encoder"]["kind"]
    tree["agent"]["encoder"].pop("latent_dim" if name == "toy/catch" else "kind", None)
    assert from_json(json.dumps(tree)) == recipe


def test_runs_are_trained_with_another_encoder(tmp_path: Path):
    recipe = maskrl.recipe("toy/reach", *REACH, "agent.encoder.kind=impala", "agent.encoder.filters=4,4")
    run = maskrl.train(recipe, tmp_path / "run", [])
    assert run.status == "done"
    assert isinstance(maskrl.load(run.path).network.encoder, ImpalaEncoder)
    assert not isinstance(NatureEncoder(), ImpalaEncoder)


def test_a_module_of_ones_own_learns_and_is_loaded(tmp_path: Path):
    recipe = maskrl.recipe("toy/reach", *REACH, encoder=Small)
    run = maskrl.train(recipe, tmp_path / "run", [])
    assert maskrl.Run.open(run.path).recipe == recipe
    frame = np.zeros((3, 32, 32), np.uint8)
    policy = maskrl.load(run.path)
    assert isinstance(policy.network.encoder, OwnEncoder)
    known = _given.pop(recipe.agent.encoder.name)  # as in another process
    with pytest.raises(RunError, match=r"This run's encoder is .*Small, a class of your own.*encoder=Small"):
        maskrl.load(run.path)
    assert (maskrl.load(run.path, encoder=known).act(frame) == policy.act(frame)).all()


def test_a_run_with_a_module_of_ones_own_is_exported_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe = maskrl.recipe("toy/reach", *REACH, encoder=Small)
    run, out = maskrl.train(recipe, tmp_path / "run", []), tmp_path / "new" / "policy.onnx"
    monkeypatch.delitem(_given, recipe.agent.encoder.name)  # as in another process
    with pytest.raises(RunError, match=r"maskrl\.export\(run"):
        maskrl.export(run, out)
    assert not out.exists()
    proof = maskrl.export(run.path, str(out), encoder=Small, observations=30, episodes=1)
    assert (proof.on, proof.observations) == ("observations of its own play", 30)
    assert proof.largest_difference < 1e-5
    assert proof.returns == pytest.approx(proof.policy_returns)
    stored = facts_of(out)
    assert stored is not None
    assert Proof(**stored["proof"])._replace(returns=proof.returns, policy_returns=proof.policy_returns) == proof
    other = tmp_path / "other.onnx"
    other.write_text("notes")
    with pytest.raises(OutputError, match="exists already"):
        maskrl.export(run, other, encoder=Small)
    assert other.read_text() == "notes"


def test_what_is_no_encoder_is_refused():
    with pytest.raises(TypeError, match="expected a class or function"):
        OwnEncoderConfig.of(Small((9, 32, 32)))  # type: ignore[arg-type]
    wrong = {
        "returned int; expected an nn.Module": lambda shape: 3,
        r"Expected floats \(2, d\), or a map": lambda shape: nn.Flatten(0),
    }
    for words, factory in wrong.items():
        with pytest.raises((TypeError, ValueError), match=words):
            OwnEncoderConfig.of(factory).build((9, 32, 32))
