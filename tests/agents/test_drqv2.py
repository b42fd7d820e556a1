"""DrQ-v2: what its paper and its released code say, as arithmetic, and an update that a reader can follow."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import row_by_row as by_row
from builders import at, parameters_of, tiny_mask, tiny_mlr
from maskrl.agents.base import Spaces
from maskrl.agents.drqv2 import EDGE, Actor, DrQv2, DrQv2Config
from maskrl.agents.sac import ControlEncoderConfig, Critic
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.encoders import ControlEncoder, flat
from maskrl.recipes import find
from maskrl.recipes.dmcontrol import OTHER_TASKS, PAPER_TASKS
from maskrl.replay.buffer import Transitions
from maskrl.testing import _random_replay

SPACES, CPU = Spaces((9, 28, 28), 2, discrete=False), torch.device("cpu")
TINY = DrQv2Config(
    encoder=ControlEncoderConfig(filters=4, latent_dim=10, strides=(2, 2), convolution_init="orthogonal", squash=True,
                                 centre=True),
    hidden=16,
    augment=AugmentConfig(crop=None, intensity=0.0),
    batch_size=8,
    warmup_decisions=5,
    noise_decisions=100,
)  # fmt: skip


def tiny(**changes: object) -> DrQv2:
    torch.manual_seed(3)
    return DrQv2Config(**(vars(TINY) | changes)).build(SPACES, None, CPU)  # type: ignore[arg-type]


def in_double(agent: DrQv2) -> DrQv2:
    for module in agent.modules.values():
        module.double()
    return agent


# ── Networks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_networks_have_the_released_sizes():
    encoder = DrQv2Config().encoder.build((9, 84, 84))
    assert parameters_of(encoder.convolutions) == 30_368
    assert math.prod(encoder.feature_shape) == 39_200
    trunk = parameters_of(encoder.linear) + parameters_of(encoder.norm)
    assert trunk == parameters_of(Actor(encoder, 6, 1024).embed) == 1_960_150  # the critic's, and the actor's own
    assert parameters_of(Critic(50, 6, 1024).q1) == 1_108_993


def test_kernels_are_orthogonal_as_a_whole_and_pixels_centred():
    torch.manual_seed(0)
    encoder: ControlEncoder = DrQv2Config().encoder.build((9, 84, 84))
    kernel = encoder.convolutions[0].weight.detach().reshape(32, -1)  # type: ignore[index, union-attr, operator]
    torch.testing.assert_close(kernel @ kernel.T, 2 * torch.eye(32), atol=1e-4, rtol=0)
    grey = torch.full((2, 9, 84, 84), 0.5)
    assert encoder.features(grey).abs().max() == 0  # ½ − ½, and biases of 0


# ── Acting ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_noise_falls_in_a_line_with_the_decisions():
    easy = DrQv2Config()
    assert [easy.noise_at(decisions) for decisions in (0, 50_000, 100_000, 10**6)] == pytest.approx([1, 0.55, 0.1, 0.1])
    medium = find("dmcontrol/cheetah-run", "paper", "drqv2").agent
    assert medium.noise_at(50_000) == pytest.approx(0.91)  # after 100 000 frames


def test_exploring_adds_gaussian_noise_of_that_size_without_a_clip():
    agent, obs = tiny(), np.random.default_rng(0).integers(256, size=(1, 9, 28, 28), dtype=np.uint8)
    mean = agent.policy().act(obs)
    assert (agent.act(obs, explore=False, clock=at(0)) == mean).all()
    drawn = np.concatenate([agent.act(obs, explore=True, clock=at(100)) for _ in range(400)])
    assert drawn.std(axis=0) == pytest.approx([0.1, 0.1], rel=0.15)
    wide = np.concatenate([agent.act(obs, explore=True, clock=at(0)) for _ in range(400)])
    assert wide.min() == -1
    assert wide.max() == 1


def test_half_an_update_follows_a_decision():
    agent = tiny()
    due = [agent.updates_due(at(decisions)) for decisions in range(5, 15)]
    assert sum(due) == 5
    assert set(due) == {0, 1}
    # 1 per 4 frames: 24 000 in 100 000 frames, of which 4000 are random
    assert find("dmcontrol/walker-walk", "paper", "drqv2").agent.updates_by(50_000) == 24_000


# ── Learning ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def random_batch(count: int = 8) -> Transitions:
    obs, next_obs = (torch.randint(256, (count, 9, 28, 28), dtype=torch.uint8) for _ in range(2))
    actions = torch.rand(count, 2, dtype=torch.float64) * 2 - 1
    numbers = torch.rand(2, count, dtype=torch.float64)
    return Transitions(obs, actions, numbers[0], next_obs, numbers[1])


def by_hand(agent: DrQv2, batch: Transitions, sigma: float) -> tuple[Tensor, Tensor]:
    """The losses of critic and actor, written out; noise is drawn in the agent's order. Between them, the critic's step."""

    def pixels(obs: Tensor) -> Tensor:
        return obs.double() / 255

    def noisy(mean: Tensor) -> Tensor:
        moved = mean + (sigma * torch.randn_like(mean)).clamp(-0.3, 0.3)
        return moved + (moved.clamp(-EDGE, EDGE) - moved).detach()

    encoder, actor, slow = agent.encoder, agent.actor, agent.slow_critic.copy

    def trunk(of: nn.Module, maps: Tensor) -> Tensor:
        return torch.tanh(of.norm(of.linear(flat(maps))))  # type: ignore[operator, union-attr]

    with torch.no_grad():
        maps = encoder.convolutions(pixels(batch.next_obs) - 0.5)
        next_actions = noisy(torch.tanh(actor.trunk(actor.embed(flat(maps)))))
        both = torch.cat([trunk(agent.slow_encoder.copy, maps), next_actions], dim=1)
        value = torch.minimum(slow.q1(both), slow.q2(both)).squeeze(1)  # type: ignore[operator]
        target = batch.rewards + batch.discounts * value
    both = torch.cat([trunk(encoder, encoder.convolutions(pixels(batch.obs) - 0.5)), batch.actions], dim=1)
    q1, q2 = (q(both).squeeze(1) for q in (agent.critic.q1, agent.critic.q2))
    critic_loss = ((q1 - target) ** 2).mean() + ((q2 - target) ** 2).mean()
    agent.optimizers["critic"].zero_grad()
    critic_loss.backward()
    agent.optimizers["critic"].step()

    with torch.no_grad():
        maps = encoder.convolutions(pixels(batch.obs) - 0.5)
        states = trunk(encoder, maps)
    actions = noisy(torch.tanh(actor.trunk(actor.embed(flat(maps)))))
    both = torch.cat([states, actions], dim=1)
    actor_loss = -torch.minimum(agent.critic.q1(both), agent.critic.q2(both)).mean()
    agent.optimizers["actor"].zero_grad()
    actor_loss.backward(inputs=list(actor.parameters()))
    agent.optimizers["actor"].step()
    return critic_loss.detach(), actor_loss.detach()


@pytest.mark.parametrize("micro_batch", [8, 3])
def test_an_update_is_the_papers_written_out(micro_batch: int):
    agent = in_double(tiny(micro_batch=micro_batch))
    twin = in_double(tiny())
    batch = random_batch()
    agent.noise.fill_(0.7)
    torch.manual_seed(1)
    view = agent.augment(batch.obs, torch.float64), agent.augment(batch.next_obs, torch.float64)
    if micro_batch < 8:  # pieces draw their noise one after the other: without noise, cuts make no difference
        agent.noise.fill_(0.0)
    found = agent.update_critic(view[0], batch, view[1])
    found |= agent.update_actor(view[0])
    torch.manual_seed(1)
    expected = by_hand(twin, batch, 0.7 if micro_batch == 8 else 0.0)
    assert found["critic/loss"].item() == pytest.approx(expected[0].item(), rel=1e-9)
    assert found["actor/loss"].item() == pytest.approx(expected[1].item(), rel=1e-9)
    for name in ("encoder", "critic", "actor"):
        for one, other in zip(agent.modules[name].parameters(), twin.modules[name].parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


class WrittenOut:
    """DrQ-v2's update: each loss in a loop over the rows of a batch, with steps of its own."""

    def __init__(self, agent: DrQv2, micro_batch: int | None) -> None:
        self.pieces, self.stream = by_row.pieces(micro_batch), by_row.stream_of(agent)
        self.encoder, self.actor, self.critic = map(by_row.weights_of, (agent.encoder, agent.actor, agent.critic))
        self.slow_encoder = by_row.weights_of(agent.slow_encoder.copy)
        self.slow_critic = by_row.weights_of(agent.slow_critic.copy)
        self.critic_adam = by_row.Adam([self.encoder, self.critic], rate=1e-4)
        self.actor_adam = by_row.Adam([self.actor], rate=1e-4)
        self.at_the_edge = 0  # numbers of actions that were clamped

    def act(self, maps: Tensor, noise: Tensor) -> Tensor:
        """The mean plus clipped noise, clamped: the gradient is that of the mean."""
        state = by_row.embedded(self.actor, "embed.0", "embed.1", maps, squash=True)
        mean, action = torch.tanh(by_row.layers(self.actor, "trunk", state)), []
        for i in range(2):
            moved = mean[i].item() + min(max(noise[i].item(), -0.3), 0.3)
            self.at_the_edge += abs(moved) > 1 - 1e-6
            action.append(mean[i] - mean[i].item() + min(max(moved, -1 + 1e-6), 1 - 1e-6))
        return torch.stack(action)

    def noises(self, sigma: float) -> list[Tensor]:
        return [noise for piece in self.pieces for noise in sigma * torch.randn(len(piece), 2, dtype=torch.float64)]

    def update(self, batch: Transitions, sigma: float) -> dict[str, Tensor]:
        obs = by_row.shifted(batch.obs, 4, self.stream) - 0.5
        next_obs = by_row.shifted(batch.next_obs, 4, self.stream) - 0.5
        losses, values = [], []
        for row, noise in enumerate(self.noises(sigma)):
            maps = by_row.maps(self.encoder, next_obs[row])  # of the convolutions in training
            slow = by_row.state_of(self.slow_encoder, maps, squash=True)
            value = min(by_row.both_q(self.slow_critic, slow, self.act(maps, noise)))
            target = batch.rewards[row] + batch.discounts[row] * value.detach()
            state = by_row.state_of(self.encoder, by_row.maps(self.encoder, obs[row]), squash=True)
            q1, q2 = by_row.both_q(self.critic, state, batch.actions[row])
            losses.append((q1 - target) ** 2 + (q2 - target) ** 2)
            values.append((q1 + q2) / 2)
        critic_loss = by_row.mean(losses)
        self.critic_adam.step(critic_loss)
        losses = []
        for row, noise in enumerate(self.noises(sigma)):
            maps = by_row.maps(self.encoder, obs[row])
            state = by_row.state_of(self.encoder, maps, squash=True)
            losses.append(-min(by_row.both_q(self.critic, state, self.act(maps, noise))))
        actor_loss = by_row.mean(losses)
        self.actor_adam.step(actor_loss)
        by_row.follow(self.slow_encoder, self.encoder, 0.99)
        by_row.follow(self.slow_critic, self.critic, 0.99)
        told = {"critic/loss": critic_loss, "critic/q": by_row.mean(values), "actor/loss": actor_loss}
        return told | {"actor/noise": torch.tensor(sigma, dtype=torch.float64)}


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_three_updates_are_those_written_out_row_by_row(micro_batch: int | None):
    """The recipe's agent with tiny networks and noise that falls fast: losses, weights and slow copies after each update."""
    known = find("dmcontrol/cartpole-swingup", "paper", "drqv2").agent
    assert isinstance(known, DrQv2Config)
    config = replace(
        known, encoder=replace(known.encoder, filters=4, latent_dim=6), hidden=7, batch_size=by_row.ROWS,
        micro_batch=micro_batch, warmup_decisions=10, noise_decisions=20,
    )  # fmt: skip
    agent: DrQv2 = by_row.agent_in_double(config.build)
    agent.noise = agent.noise.double()
    agent.actor.trunk[-1].bias.data[0] += 1.5  # type: ignore[operator, union-attr]  # so that noise leads past the edge
    replay, batches = by_row.replay_in_double()
    written = WrittenOut(agent, micro_batch)
    for update, sigma in enumerate((0.55, 0.46, 0.37)):  # after 10, 12 and 14 decisions of 20 on the way from 1 to 0.1
        torch.manual_seed(update)
        found = agent.update(replay)
        torch.manual_seed(update)
        expected = written.update(batches[-1], sigma)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].item() == pytest.approx(value.item(), rel=1e-9)
        for module, weights in (
            (agent.encoder, written.encoder), (agent.actor, written.actor), (agent.critic, written.critic),
            (agent.slow_encoder.copy, written.slow_encoder), (agent.slow_critic.copy, written.slow_critic),
        ):  # fmt: skip
            by_row.check_same(module, weights)
    assert written.at_the_edge
    assert len(batches) == 3


def test_the_actor_shapes_neither_encoder_nor_critic():
    agent = in_double(tiny())
    before = copy.deepcopy([agent.encoder.state_dict(), agent.critic.state_dict()])
    agent.update_actor(agent.augment(random_batch().obs, torch.float64))
    for state, module in zip(before, (agent.encoder, agent.critic), strict=True):
        assert all(torch.equal(value, module.state_dict()[name]) for name, value in state.items())


def test_only_the_critic_and_its_trunk_have_slow_copies_that_are_used():
    """Next observations go through the convolutions in training: changing the slow ones changes nothing."""
    agent, twin = in_double(tiny()), in_double(tiny())
    for parameter in twin.slow_encoder.copy.convolutions.parameters():  # type: ignore[union-attr]
        parameter.data.fill_(9.0)
    batch, losses = random_batch(), []
    for each in (agent, twin):
        torch.manual_seed(1)
        views = (each.augment(obs, torch.float64) for obs in (batch.obs, batch.next_obs))
        obs, next_obs = views
        losses.append(each.update_critic(obs, batch, next_obs)["critic/loss"])
    assert torch.equal(*losses)


def test_returns_have_three_steps_and_the_noise_of_an_update_is_that_of_its_time():
    agent, replay = tiny(n_step=3), _random_replay(SPACES, 3, None)
    assert agent.reading(replay, 0)().batch.discounts.max() == pytest.approx(0.99**3)
    noises = [agent.update(replay)["actor/noise"].item() for _ in range(3)]
    assert noises == pytest.approx([TINY.noise_at(5), TINY.noise_at(7), TINY.noise_at(9)], rel=1e-6)


def test_beyond_the_edge_the_gradient_still_passes():
    agent = tiny()
    agent.noise.fill_(0.0)
    mean = torch.tensor([[1.5, 0.2]], requires_grad=True)
    moved = agent.noisy(mean)
    assert moved[0, 0].item() == pytest.approx(EDGE)
    moved.sum().backward()
    assert mean.grad.tolist() == [[1.0, 1.0]]


# ── Recipes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["drqv2", "drqv2-100k"])
@pytest.mark.parametrize("profile", ["paper", "lite"])
def test_every_task_of_the_suite_has_it(method: str, profile):
    for task in (*PAPER_TASKS, *OTHER_TASKS):
        recipe = find(f"dmcontrol/{task}", profile, method)
        assert (recipe.method, recipe.agent.kind, recipe.env.action_repeat) == (method, "drqv2", 2)


def test_the_authors_values():
    def of(task: str, method: str = "drqv2") -> tuple[object, ...]:
        agent = find(f"dmcontrol/{task}", "paper", method).agent
        return agent.noise_decisions, agent.n_step, agent.batch_size, agent.learning_rate, agent.encoder.latent_dim

    assert of("cartpole-swingup") == (100_000, 3, 256, 1e-4, 50)
    assert of("walker-walk") == (100_000, 1, 512, 1e-4, 50)
    assert of("cheetah-run") == of("reacher-easy") == (500_000, 3, 256, 1e-4, 50)
    assert of("humanoid-run") == (2_000_000, 3, 256, 8e-5, 100)
    recipe = find("dmcontrol/cheetah-run", "paper", "drqv2")
    assert (recipe.env.size, recipe.agent.augment.shift, recipe.agent.warmup_decisions) == (84, 4, 2000)
    ours = find("dmcontrol/cheetah-run", "paper", "drqv2-100k").agent
    assert (ours.noise_decisions, ours.updates_per_decision, ours.batch_size) == (25_000, 1, 256)


def test_with_mlr_it_masks_whole_frames_before_the_shift_with_a_quarter_of_the_clips():
    recipe = find("dmcontrol/walker-walk", "paper", agent="drqv2")
    assert recipe.method == "drqv2+mlr"
    assert recipe.agent.auxiliary.clips == 32
    assert recipe.objective.mask.cube == (8, 12, 12)
    assert (recipe.objective.augment.crop, recipe.objective.augment.shift) == (None, 4)


def test_an_objective_moves_the_encoder_after_the_critic():
    agent = DrQv2Config(**(vars(TINY) | {"augment": AugmentConfig(crop=24, intensity=0.0)})).build(  # type: ignore[arg-type]
        SPACES, tiny_mlr(mask=tiny_mask()), CPU
    )
    metrics = agent.update(_random_replay(SPACES, 3, None))
    assert {"critic/loss", "actor/loss", "mlr/loss"} <= metrics.keys()


def test_discrete_actions_are_refused():
    with pytest.raises(ValueError, match=r"continuous actions.*rainbow"):
        TINY.build(Spaces((4, 28, 28), 3, discrete=True), None, CPU)


@pytest.mark.parametrize("change", [{"noise": -1.0}, {"noise_decisions": 0}, {"discount": 0.0}, {"n_step": 0}])
def test_an_impossible_config_is_refused(change: dict[str, object]):
    with pytest.raises(ValueError, match=next(iter(change))):
        DrQv2Config(**change)  # type: ignore[arg-type]
