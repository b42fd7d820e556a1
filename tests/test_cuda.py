"""What only an owner of a GPU can check: `make test-cuda`. Everything else about devices is in `test_device.py`.

Kernels of a GPU round in their own way, and some sums come in another order every time. So the CPU is met to a tolerance, and
what must be the same bit for bit (recorded updates, batches ahead, resume) is compared on the GPU with itself, with torch's
deterministic kernels.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import maskrl
from builders import Silent, at
from maskrl.agents.base import Agent, numbers
from maskrl.bench.noise import noise_replay
from maskrl.cost.operations import spaces_of
from maskrl.objectives.curl import CURLConfig
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Replay
from maskrl.runs.build import mirror_of, numerics, prefetch_of, replay_size
from maskrl.runs.directory import Run
from maskrl.runs.loop import train
from maskrl.runs.signals import Stopped
from tiny_runs import events, same, same_end, tiny_rainbow, tiny_recipe, trained

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]

CPU, GPU = torch.device("cpu"), torch.device("cuda")
RECIPES: dict[str, Callable[..., Recipe]] = {"SAC": tiny_recipe, "Rainbow": tiny_rainbow}
each_agent = pytest.mark.parametrize("make", RECIPES.values(), ids=RECIPES.keys())


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark, tf32 = False, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def learner(recipe: Recipe, device: torch.device) -> tuple[Agent, Replay]:
    """The same weights and the same replay on every device."""
    torch.manual_seed(7)
    spaces = spaces_of(recipe)
    agent = recipe.agent.build(spaces, recipe.objective, CPU, seed=3)
    moved = recipe.agent.build(spaces, recipe.objective, device, seed=3)
    for name, module in agent.modules.items():
        moved.modules[name].load_state_dict(module.state_dict())
    if agent.auxiliary is not None and moved.auxiliary is not None:
        moved.auxiliary.objective.load_state_dict(agent.auxiliary.objective.state_dict())
    torch.manual_seed(8)
    return moved, noise_replay(recipe, spaces)


def left(agent: Agent, replay: Replay, updates: int, recipe: Recipe) -> dict[str, Any]:
    metrics = []
    for _ in range(updates):
        with numerics(recipe):
            metrics.append(agent.update(replay))
    return {"metrics": [numbers(found) for found in metrics], "agent": agent.state_dict()}


# ── Device and precision ──────────────────────────────────────────────────────────────────────────────────────────────


@each_agent
def test_the_policy_chooses_as_on_the_cpu(make):
    recipe = make()
    obs = np.random.default_rng(0).integers(256, size=(3, *spaces_of(recipe).obs), dtype=np.uint8)
    ours, theirs = (learner(recipe, device)[0].act(obs, explore=False, clock=at(1)) for device in (GPU, CPU))
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@each_agent
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_updates_learn_and_stay_finite(make, precision: str):
    recipe = replace(make(), precision=precision, device="cuda")
    if precision == "bfloat16" and not torch.cuda.is_bf16_supported():
        pytest.skip("this GPU has no bfloat16")
    agent, replay = learner(recipe, GPU)
    before = [parameter.detach().clone() for parameter in agent.encoder.parameters()]
    found = left(agent, replay, 20, recipe)
    assert all(np.isfinite(list(values.values())).all() for values in found["metrics"])
    assert not same(before, [parameter.detach() for parameter in agent.encoder.parameters()])


@each_agent
def test_a_first_critic_loss_is_of_the_size_of_the_cpus(make):
    """The draws of the replay are the same; augmentation and noise come from the GPU's own generators."""
    recipe = make()
    losses = [
        numbers(learner(recipe, device)[0].update(learner(recipe, device)[1]))["critic/loss"] for device in (GPU, CPU)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.5)


# ── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("recipe", [tiny_recipe(), replace(tiny_recipe(), objective=None)], ids=["MLR", "none"])
def test_an_update_of_sac_waits_for_the_device_nowhere(recipe: Recipe):
    agent, replay = learner(recipe, GPU)
    for _ in range(4):
        agent.update(replay)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            agent.update(replay)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@each_agent
def test_what_is_not_finite_is_reported_and_nothing_moves(make):
    agent, replay = learner(make(), GPU)
    for _ in range(3):
        agent.update(replay)
    with torch.no_grad():
        next(agent.encoder.parameters()).fill_(torch.nan)
    before = [parameter.detach().clone() for module in agent.modules.values() for parameter in module.parameters()]
    agent.update(replay)
    with pytest.raises(FloatingPointError, match="at update 3; the weights were left as they were"):
        agent.check()
    after = [parameter.detach() for module in agent.modules.values() for parameter in module.parameters()]
    assert same([value.nan_to_num(5.0) for value in after], [value.nan_to_num(5.0) for value in before])


# ── Recorded updates, batches ahead, frames on the device, resume ─────────────────────────────────────────────────────

RECORDED = {
    "SAC": tiny_recipe(),
    "CURL": replace(tiny_recipe(), objective=CURLConfig(augment=tiny_recipe().agent.augment)),
    "Rainbow": tiny_rainbow(),
}


@pytest.mark.parametrize("recipe", RECORDED.values(), ids=RECORDED.keys())
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_recorded_update_is_the_plain_one_bit_for_bit(recipe: Recipe, precision: str):
    recipe = replace(recipe, precision=precision, device="cuda")

    def found(capture: bool) -> dict[str, Any]:
        agent, replay = learner(recipe, GPU)
        if capture:
            agent.capture()
        return left(agent, replay, 24, recipe)

    assert same(found(capture=True), found(capture=False))


@each_agent
@pytest.mark.parametrize("capture", [False, True])
def test_a_run_that_is_stopped_and_continued_ends_with_the_same_bits(tmp_path: Path, make, capture: bool):
    recipe = make(device="cuda", capture=capture)
    expected, _ = trained(tmp_path / "whole", recipe)
    run = Run.create(tmp_path / "parts", recipe)
    with pytest.raises(Stopped):
        train(recipe, run, [Silent(interrupt_at=87)])
    train(recipe, run)
    assert events(run) == events(expected)
    assert same_end(run, expected)


@pytest.mark.parametrize("changes", [{"prefetch": 0}, {"prefetch": 3}, {"on_device": True}], ids=str)
def test_where_batches_are_gathered_makes_no_difference(tmp_path: Path, changes: dict[str, Any]):
    recipe = tiny_recipe(device="cuda")
    plain = replace(recipe, replay=replace(recipe.replay, on_device=False, prefetch=0))
    (one, _), (other, _) = (
        trained(tmp_path / name, chosen)
        for name, chosen in (
            ("plain", plain),
            ("other", replace(recipe, replay=replace(plain.replay, **changes))),
        )
    )
    assert events(one) == events(other)
    assert same_end(one, other)


def test_frames_are_on_the_gpu_by_default_if_they_fit():
    recipe = tiny_recipe(device="cuda")
    assert mirror_of(recipe, replay_size(recipe, spaces_of(recipe))) == GPU
    assert (prefetch_of(recipe), prefetch_of(tiny_rainbow(device="cuda"))) == (2, 0)


@each_agent
def test_a_policy_of_the_gpu_is_loaded_on_the_cpu(tmp_path: Path, make):
    run, agent = trained(tmp_path / "run", make(device="cuda"))
    policy, there = maskrl.load(run.path), maskrl.load(run.path, device="cuda")
    frames = np.random.default_rng(0).integers(256, size=(4, *policy.frame_shape), dtype=np.uint8)
    np.testing.assert_allclose(there.encode(frames), policy.encode(frames), rtol=1e-3, atol=1e-3)
    assert {parameter.device.type for parameter in agent.encoder.parameters()} == {"cuda"}
