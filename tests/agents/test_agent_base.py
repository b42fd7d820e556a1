"""What every agent answers: when it learns, how it plays, what it does with an objective that it does not know by name."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from builders import STEPS, at, tiny_mlr
from maskrl import AugmentConfig
from maskrl.agents.base import Agent, AgentConfig, Spaces
from maskrl.agents.rainbow import NatureEncoderConfig, RainbowConfig
from maskrl.agents.sac import ControlEncoderConfig, SACConfig
from maskrl.objectives.base import ObjectiveConfig
from maskrl.objectives.step import AuxiliaryConfig
from maskrl.recipes import find
from maskrl.recipes.schema import with_objective
from maskrl.replay.buffer import Draw, Replay
from tiny_objectives import CentredConfig, PairsConfig

CPU, SIZE, BATCH, CLIPS = torch.device("cpu"), 28, 6, 4
PLAIN = AugmentConfig(crop=None, shift=2)  # in place, where nobody else wants the batch


def tiny_sac(**changes: object) -> SACConfig:
    settings: dict[str, object] = {
        "encoder": ControlEncoderConfig(filters=4, latent_dim=10),
        "hidden": 8,
        "augment": PLAIN,
        "batch_size": BATCH,
        "auxiliary": AuxiliaryConfig(clips=CLIPS, schedule="constant"),
    }
    return SACConfig(**(settings | changes))  # type: ignore[arg-type]


def tiny_rainbow(**changes: object) -> RainbowConfig:
    settings: dict[str, object] = {
        "encoder": NatureEncoderConfig(filters=(4, 4), kernels=(4, 3), strides=(4, 2)),
        "hidden": 8,
        "augment": PLAIN,
        "batch_size": BATCH,
        "clips": CLIPS,
        "n_step": 3,
    }
    return RainbowConfig(**(settings | changes))  # type: ignore[arg-type]


CONFIGS: dict[str, Callable[..., Any]] = {"sac": tiny_sac, "rainbow": tiny_rainbow}
each_agent = pytest.mark.parametrize("make", CONFIGS.values(), ids=CONFIGS.keys())


def spaces(config: AgentConfig) -> Spaces:
    return Spaces((9, SIZE, SIZE), 2, discrete=config.kind == "rainbow")


def build(config: AgentConfig, objective: ObjectiveConfig | None = None) -> Any:
    torch.manual_seed(7)
    return config.build(spaces(config), objective, CPU)


def lived_through(config: AgentConfig, decisions: int = 40) -> Replay:
    generator = np.random.default_rng(0)
    replay = Replay(
        frame_shape=(3, SIZE, SIZE),
        action_dim=2,
        frame_stack=3,
        capacity=100,
        seed=1,
        discrete=config.kind == "rainbow",
        priority_exponent=config.replay_needs().priority_exponent,
    )
    obs = generator.integers(256, size=(decisions + 1, 9, SIZE, SIZE), dtype=np.uint8)
    replay.begin_episode(obs[0])
    for step in range(decisions):
        action = spaces(config).as_vector(spaces(config).random_action(generator))
        replay.add(action, 1.0, obs[step + 1], terminated=False, truncated=False)
    return replay


def contrast(**changes: object) -> PairsConfig:
    return PairsConfig(augment=PLAIN, **changes)  # type: ignore[arg-type]


# ── When it learns ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ratio", "due"),
    [
        (0.5, [0, 1, 0, 1, 0, 1, 0]),
        (1, [1, 1, 1, 1, 1, 1, 1]),
        (2, [2, 2, 2, 2, 2, 2, 2]),
        (8, [8, 8, 8, 8, 8, 8, 8]),
        (1.5, [1, 2, 1, 2, 1, 2, 1]),
        (1 / 3, [0, 0, 1, 0, 0, 1, 0]),
        (0.3, [0, 0, 0, 1, 0, 0, 1]),
    ],
)
@each_agent
def test_updates_follow_decisions_after_the_warm_up_at_their_ratio(make, ratio: float, due: list[int]):
    config = make(updates_per_decision=ratio, warmup_decisions=5)
    assert [config.updates_due(at(decision)) for decision in range(5)] == [0] * 5
    assert [config.updates_due(at(5 + decision)) for decision in range(7)] == due
    assert [build(config).updates_due(at(decision)) for decision in (4, 5, 6)] == [0, *due[:2]]


@pytest.mark.parametrize("ratio", [0.5, 1, 2, 8, 0.3, 1 / 3, 2.7])
@pytest.mark.parametrize("warmup", [0, 7])
def test_the_updates_of_a_run_are_the_sum_over_its_decisions(ratio: float, warmup: int):
    config = tiny_sac(updates_per_decision=ratio, warmup_decisions=warmup)
    total = 0
    for decisions in range(60):
        assert config.updates_by(decisions) == total
        total += config.updates_due(at(decisions))
    assert config.updates_by(warmup + 30) == math.floor(30 * ratio + 1e-9)


@each_agent
def test_a_ratio_that_is_not_positive_is_refused(make):
    for ratio in (0, -0.5):
        with pytest.raises(ValueError, match=f"updates_per_decision={ratio} must be positive"):
            make(updates_per_decision=ratio)


# ── How it plays ──────────────────────────────────────────────────────────────────────────────────────────────────────


@each_agent
def test_a_policy_shares_the_agents_weights_and_can_be_filled_from_its_state(make):
    config, obs = make(), np.random.default_rng(0).integers(256, size=(5, 9, SIZE, SIZE), dtype=np.uint8)
    agent, other = build(config), config.build(spaces(config), None, CPU)
    names = {name for name, _ in agent.policy().named_children()} & {*agent.state_dict()["modules"]}
    assert names == ({"encoder", "actor"} if make is tiny_sac else {"encoder", "head"})
    agent.update(lived_through(config))
    actions, values = agent.policy().act(obs), agent.policy().outputs(torch.from_numpy(obs))[0]
    other.policy().load_agent_state(agent.state_dict())
    assert (other.policy().act(obs) == actions).all()
    other.policy().eval()
    agent.policy().eval()
    torch.testing.assert_close(
        other.policy().outputs(torch.from_numpy(obs))[0], agent.policy().outputs(torch.from_numpy(obs))[0]
    )
    assert (values.shape, actions.shape) == ((5, 2), (5, 2) if make is tiny_sac else (5,))


@each_agent
def test_a_policy_is_a_module_from_raw_observations_to_actions_and_draws_nothing(make):
    agent, obs = build(make()), torch.randint(256, (3, 9, SIZE, SIZE), dtype=torch.uint8)
    policy = agent.policy().eval()
    before = torch.get_rng_state()
    torch.testing.assert_close(policy(obs), torch.from_numpy(policy.act(obs.numpy())))
    assert torch.equal(torch.get_rng_state(), before)
    assert not policy.training
    policy.train()
    policy.act(obs.numpy())
    assert policy.training  # left as it was
    assert policy.encode(obs).shape == (3, agent.encoder.latent_dim)


# ── What its config answers ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_is_over_when_every_part_had_its_own():
    assert tiny_sac(actor_every=2).turn(None) == 2
    assert tiny_sac(actor_every=2).turn(tiny_mlr(every=3)) == 6
    assert tiny_sac(actor_every=1).turn(tiny_mlr(every=4)) == 4
    assert tiny_rainbow().turn(None) == 1
    assert tiny_rainbow().turn(tiny_mlr(every=3)) == 3


def test_a_scaled_agent_has_a_share_of_its_batches_and_at_least_one_of_each():
    sac, rainbow = SACConfig(), RainbowConfig(clips=48)
    small = sac.scaled(1 / 64)
    assert (small.batch_size, small.auxiliary.clips) == (8, 2)
    assert replace(small, batch_size=512, auxiliary=sac.auxiliary) == sac
    assert (sac.scaled(1e-9).batch_size, sac.scaled(1e-9).auxiliary.clips) == (1, 1)
    assert (rainbow.scaled(0.25).batch_size, rainbow.scaled(0.25).clips) == (8, 8)  # of 48 clips, 32 are drawn
    assert RainbowConfig().scaled(0.25).clips is None


def test_the_work_of_an_update_in_observations():
    mlr, without_clips = tiny_mlr(), CentredConfig()
    sac, rainbow = tiny_sac(micro_batch=4), tiny_rainbow(micro_batch=2 * STEPS)
    assert sac.workload(None, CPU) == (4, 2 * BATCH)
    assert sac.workload(mlr, CPU) == (STEPS, 2 * BATCH + CLIPS * STEPS)  # a clip is not split
    assert tiny_sac().workload(mlr, CPU) == (CLIPS * STEPS, 2 * BATCH + CLIPS * STEPS)
    assert rainbow.workload(None, CPU) == (BATCH, 2 * BATCH)
    assert rainbow.workload(mlr, CPU) == (2 * STEPS, 2 * BATCH + CLIPS * STEPS)
    assert tiny_rainbow().workload(mlr, CPU) == (CLIPS * STEPS, 2 * BATCH + CLIPS * STEPS)
    assert sac.workload(without_clips, CPU) == sac.workload(None, CPU)


@pytest.mark.parametrize("name", ["dmcontrol/walker-walk", "atari/pong"])
def test_an_agent_beside_an_objective_is_what_the_methods_recipe_has(name: str):
    mlr, baseline = find(name, "lite"), find(name, "lite", "baseline")
    assert with_objective(mlr, None) == baseline
    assert with_objective(baseline, mlr.objective) == mlr
    assert mlr.agent.beside(None) == baseline.agent
    assert baseline.agent.beside(mlr.objective) == mlr.agent


# ── Objectives that it does not know ──────────────────────────────────────────────────────────────────────────────────


def parameters(agent: Agent) -> list[torch.Tensor]:
    assert agent.objective is not None
    return [p.detach().clone() for p in (*agent.encoder.parameters(), *agent.objective.own_parameters())]


@pytest.mark.parametrize(
    "objective", [contrast(), CentredConfig(), CentredConfig(target_encoder=True)], ids=["clips", "batch", "target"]
)
@each_agent
def test_any_objective_learns_with_the_agent_and_alone(make, objective: ObjectiveConfig):
    agent, replay = build(make(), objective), lived_through(make())
    name = agent.objective.name
    for update in (agent.update, agent.update_objective):
        before = parameters(agent)
        metrics = update(replay)
        assert metrics[f"{name}/loss"].isfinite()
        assert all(not torch.equal(old, new) for old, new in zip(before, parameters(agent), strict=True))


@each_agent
def test_an_objective_alone_does_not_wait_for_its_turn(make):
    agent, replay = build(make(), contrast(every=3)), lived_through(make())
    assert all("pairs/loss" in agent.update_objective(replay) for _ in range(3))
    agent.update(replay)
    assert "pairs/loss" in agent.update_objective(replay)


@each_agent
def test_an_agent_without_an_objective_cannot_learn_from_it_alone(make):
    with pytest.raises(ValueError, match="has no objective, so update_objective has nothing to do"):
        build(make()).update_objective(lived_through(make()))


@each_agent
def test_the_critics_batch_is_given_as_it_was_stored_and_as_the_critic_saw_it(make):
    config = make()
    agent, replay, drawn = build(config, CentredConfig()), lived_through(config), list[Draw]()
    draw = replay.draw
    replay.draw = lambda *a, **k: drawn.append(draw(*a, **k)) or drawn[-1]  # type: ignore[method-assign, func-returns-value]
    agent.update(replay)
    (material,) = agent.objective.seen
    count = BATCH if make is tiny_sac else CLIPS
    assert material.clip is None
    assert torch.equal(material.batch.obs, replay.transitions(drawn[0]).obs[:count])
    assert len(material.batch.view.obs) == count
    assert not torch.equal(material.batch.view.obs, material.batch.obs)
    assert agent.objective.pieces == [count]


@pytest.mark.parametrize(("when", "is_last"), [(None, False), ("after_critic", False), ("last", True)])
def test_sac_runs_an_objective_after_the_critic_or_last(when, is_last: bool):
    agent = build(tiny_sac(), CentredConfig(when=when))
    found, views = list[tuple[bool, bool]](), agent.objective.views

    def look(material):
        found.append(
            (bool(agent.optimizers["critic"].state), bool(agent.optimizers["actor"].state))
        )  # whether they have stepped
        return views(material)

    agent.objective.views = look
    agent.update(lived_through(tiny_sac()))
    assert found == [(True, is_last)]


@pytest.mark.parametrize("every", [1, 3])
@each_agent
def test_an_objective_takes_its_turn_at_every_nth_update(make, every: int):
    agent, replay = build(make(), contrast(every=every)), lived_through(make())
    turns = ["pairs/loss" in agent.update(replay) for _ in range(6)]
    assert turns == [update % every == 0 for update in range(6)]


@each_agent
def test_a_contrast_is_cached_in_pieces_of_the_agents_micro_batch(make):
    metrics = []
    for micro_batch, pieces in ((None, [CLIPS]), (STEPS, [1] * 2 * CLIPS), (3 * STEPS, [3, 1, 3, 1])):
        agent, replay = build(make(micro_batch=micro_batch), contrast()), lived_through(make())
        metrics.append(agent.update_objective(replay))
        assert agent.objective.pieces == pieces
    for found in metrics[1:]:
        torch.testing.assert_close(found, metrics[0], rtol=1e-4, atol=1e-5)


@each_agent
def test_what_cannot_be_split_is_run_whole_and_refused_with_a_micro_batch_that_was_asked_for(make):
    agent = build(make(batch_size=200, clips=None) if make is tiny_rainbow else make(batch_size=200), CentredConfig())
    agent.update(lived_through(make()))
    assert agent.objective.pieces == [200]  # more than SAC computes at once on a CPU
    with pytest.raises(ValueError, match=r"agent.micro_batch=4, .*centred couples.* Use agent.micro_batch=none"):
        build(make(micro_batch=4), CentredConfig())


def test_an_objectives_priorities_are_added_to_those_of_the_transitions_that_it_saw():
    config, errors = tiny_rainbow(), list[torch.Tensor]()
    for more in (None, torch.arange(1.0, CLIPS + 1)):
        agent, replay = build(config, contrast()), lived_through(config)
        compare = agent.objective.compare
        agent.objective.compare = lambda *e, compare=compare, more=more: compare(*e)._replace(priorities=more)
        replay.reprioritise = lambda _, found: errors.append(torch.as_tensor(found).clone())  # type: ignore[method-assign]
        agent.update(replay)
    expected = torch.tensor([*range(1, CLIPS + 1), *[0] * (BATCH - CLIPS)], dtype=torch.float32)
    torch.testing.assert_close(errors[1] - errors[0], expected)


def test_rainbow_clips_the_groups_that_ask_for_it_and_reports_those_that_have_a_name():
    agent = build(tiny_rainbow(max_grad_norm=1e-3), CentredConfig(weight=1e3))
    metrics = agent.update(lived_through(tiny_rainbow()))
    assert {name for name in metrics if name.endswith("/gradient_norm")} == {
        "critic/gradient_norm",
        "scale/gradient_norm",
    }
    assert metrics["scale/gradient_norm"] > 1e-3
    assert agent.objective.scale.grad.norm().item() == pytest.approx(1e-3, rel=1e-3)
    own, scale = agent.optimizer.param_groups
    assert (own["lr"], own["weight_decay"]) == (1e-4, 0.0)
    assert (scale["params"], scale["lr"], scale["weight_decay"]) == ([agent.objective.scale], 0.25, 0.125)
