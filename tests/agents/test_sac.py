import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import row_by_row as by_row
from builders import at, parameters_of, tiny_mask, tiny_mlr
from maskrl import AugmentConfig
from maskrl.agents.base import Spaces
from maskrl.agents.sac import SAC, Actor, ControlEncoderConfig, Critic, SACConfig
from maskrl.clock import Stopwatch
from maskrl.nn.encoders import ControlEncoder
from maskrl.objectives.step import AuxiliaryConfig
from maskrl.recipes import find
from maskrl.replay.buffer import Replay, Transitions

SPACES = Spaces(obs=(9, 28, 28), action_dim=2, discrete=False)
CPU = torch.device("cpu")


def tiny_config(**changes: object) -> SACConfig:
    settings: dict[str, object] = {
        "encoder": ControlEncoderConfig(filters=4, latent_dim=10),
        "hidden": 16,
        "augment": AugmentConfig(crop=24, intensity=0.0),
        "batch_size": 12,
        "auxiliary": AuxiliaryConfig(clips=3, warmup_updates=10),
    }
    return SACConfig(**(settings | changes))  # type: ignore[arg-type]


def tiny_sac(*, mlr: bool = False, every: int = 1, **changes: object) -> SAC:
    torch.manual_seed(7)
    objective = tiny_mlr(mask=tiny_mask(), every=every) if mlr else None
    return tiny_config(**changes).build(SPACES, objective, CPU)


def lived_through(decisions: int = 60, episode: int = 30) -> Replay:
    generator = np.random.default_rng(0)
    replay = Replay(frame_shape=(3, 28, 28), action_dim=2, frame_stack=3, capacity=100, seed=1)
    for step in range(decisions):
        if step % episode == 0:
            replay.begin_episode(generator.integers(256, size=(9, 28, 28), dtype=np.uint8))
        replay.add(
            generator.uniform(-1, 1, 2).astype(np.float32),
            float(generator.random()),
            generator.integers(256, size=(9, 28, 28), dtype=np.uint8),
            terminated=False,
            truncated=step % episode == episode - 1,
        )
    return replay


def weights(agent: SAC) -> dict[str, list[torch.Tensor]]:
    parts = {
        "convolutions": agent.encoder.convolutions,
        "linear": agent.encoder.linear,
        "critic": agent.critic,
        "actor": agent.actor,
        "target_encoder": agent.target_encoder,
        "target_critic": agent.target_critic,
    }
    return {name: [p.detach().clone() for p in part.parameters()] for name, part in parts.items()} | {
        "temperature": [agent.log_temperature.detach().clone()]
    }


def moved(before: dict[str, list[torch.Tensor]], after: dict[str, list[torch.Tensor]]) -> set[str]:
    return {
        name for name in before if not all(torch.equal(a, b) for a, b in zip(before[name], after[name], strict=True))
    }


# ── Networks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_networks_have_the_papers_sizes():
    encoder = ControlEncoder()
    actor, critic = Actor(encoder, 6, 1024), Critic(50, 6, 1024)
    assert parameters_of(actor.embed) == 3_920_150
    assert parameters_of(critic.q1) == 56 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 + 1 == 1_108_993
    assert parameters_of(actor.trunk) == 50 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 12 + 12


def test_the_actor_has_no_convolutions_of_its_own():
    assert not any(isinstance(module, nn.Conv2d) for module in tiny_sac().actor.modules())


def test_linears_start_orthogonal_and_slow_copies_as_copies():
    agent = tiny_sac(mlr=True, encoder=ControlEncoderConfig(filters=4, latent_dim=10, linear_init="truncated_normal"))
    weight = agent.actor.embed[0].weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(10), atol=1e-5, rtol=0)
    assert torch.equal(agent.target_encoder.copy.linear.weight, agent.encoder.linear.weight)
    assert torch.equal(agent.target_critic.copy.q1[0].weight, agent.critic.q1[0].weight)
    assert agent.encoder.linear.weight.abs().max() <= 0.02


def test_the_log_probability_is_that_of_a_squashed_gaussian():
    actor = Actor(ControlEncoder((9, 24, 24), filters=4, latent_dim=10), 2, 16)
    features = torch.rand(5, 4, 5, 5)
    action, log_prob = actor(features)
    mean, log_std = actor.distribution(features)
    gaussian = torch.distributions.Normal(mean, log_std.exp())
    before_squashing = torch.atanh(action.clamp(-0.999999, 0.999999))
    expected = (gaussian.log_prob(before_squashing) - (1 - action.square() + 1e-6).log()).sum(dim=-1)
    torch.testing.assert_close(log_prob, expected, atol=1e-3, rtol=1e-3)


def test_the_standard_deviation_lies_between_exp_minus_10_and_exp_2():
    actor = Actor(ControlEncoder((9, 24, 24), filters=4, latent_dim=10), 2, 16)
    for bias, bound in ((-100.0, -10.0), (100.0, 2.0)):
        nn.init.constant_(actor.trunk[-1].bias, bias)
        assert actor.distribution(torch.rand(3, 4, 5, 5))[1].unique().item() == pytest.approx(bound)


# ── Acting ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_acting_sees_the_centre_crop_and_is_deterministic_unless_exploring():
    agent, obs = tiny_sac(), np.random.default_rng(0).integers(256, size=(1, 9, 28, 28), dtype=np.uint8)
    action = agent.policy().act(obs)
    assert (agent.act(obs, explore=False, clock=at(0)) == action).all()
    assert action.shape == (1, 2)
    assert action.dtype == np.float32
    border = obs.copy()
    border[..., :2, :] = border[..., -2:, :] = 0
    border[..., :2] = border[..., -2:] = 0
    assert (agent.policy().act(border) == action).all()
    assert (agent.act(obs, explore=True, clock=at(0)) != agent.act(obs, explore=True, clock=at(0))).any()
    state = torch.get_rng_state()
    agent.policy().act(obs)
    assert torch.equal(torch.get_rng_state(), state)  # evaluation must not disturb training


def test_a_batch_of_observations_has_the_action_of_each():
    agent, obs = tiny_sac(), np.random.default_rng(0).integers(256, size=(3, 9, 28, 28), dtype=np.uint8)
    together, alone = agent.policy().act(obs), [agent.policy().act(one[None])[0] for one in obs]
    assert together.shape == (3, 2)
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert np.ptp(together, axis=0).min() > 1e-4


# ── Learning ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_critic_loss_is_the_soft_bellman_error_written_out():
    agent, batch = tiny_sac(), lived_through().transitions(lived_through().draw(12))
    discounts = batch.discounts.clone()
    discounts[:3] = 0  # as after a termination
    obs, next_obs = agent.augment(batch.obs), agent.augment(batch.next_obs)
    torch.manual_seed(3)
    with torch.no_grad():
        pixels = next_obs.pixels()
        next_actions, log_prob = agent.actor(agent.encoder.features(pixels))
        q1, q2 = agent.target_critic(agent.target_encoder(pixels), next_actions)
        y = batch.rewards + discounts * (torch.minimum(q1, q2) - 0.1 * log_prob)
        p1, p2 = agent.critic(agent.encoder(obs.pixels()), batch.actions)
        expected = (p1 - y).square().mean() + (p2 - y).square().mean()
    torch.manual_seed(3)
    loss = agent.update_critic([obs], replace(batch, discounts=discounts), [next_obs])["critic/loss"]
    torch.testing.assert_close(loss, expected)
    assert discounts[3:].unique().item() == pytest.approx(0.99)


@pytest.mark.parametrize("micro_batch", [None, 5])
def test_of_two_views_targets_are_averaged_and_losses_added_up(micro_batch: int | None):
    """DrQ with K = M = 2, in double precision: the loss, and its gradient, row by row."""
    agent = tiny_sac(views=2, micro_batch=micro_batch, temperature=1e-12)
    for module in agent.modules.values():
        module.double()
    nn.init.zeros_(agent.actor.trunk[-1].weight)
    nn.init.constant_(
        agent.actor.trunk[-1].bias, 50.0
    )  # an action of exactly 1, whatever the noise: cuts then draw alike
    replay = lived_through()
    batch = replay.transitions(replay.draw(12))
    rewards, discounts, actions = (part.double() for part in (batch.rewards, batch.discounts, batch.actions))
    views = [[agent.augment(obs, torch.float64) for _ in range(2)] for obs in (batch.obs, batch.next_obs)]
    agent.update_critic(views[0], replace(batch, actions=actions, rewards=rewards, discounts=discounts), views[1])
    found = [parameter.grad.clone() for parameter in agent.encoder.parameters()]
    twin = tiny_sac(views=2)
    for module in twin.modules.values():
        module.double()
    twin.actor.load_state_dict(agent.actor.state_dict())
    total = torch.zeros((), dtype=torch.float64)
    for row in range(12):
        with torch.no_grad():
            values = []
            for view in views[1]:
                pixels = view.pixels()[row : row + 1]
                action, _ = twin.actor(twin.encoder.features(pixels))
                q1, q2 = twin.target_critic(twin.target_encoder(pixels), action)
                values.append(torch.minimum(q1, q2))
            y = rewards[row] + discounts[row] * (values[0] + values[1]) / 2
        for view in views[0]:
            p1, p2 = twin.critic(twin.encoder(view.pixels()[row : row + 1]), actions[row : row + 1])
            total = total + ((p1 - y).square() + (p2 - y).square()).sum() / 12
    total.backward()
    for one, other in zip(found, twin.encoder.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad, rtol=1e-9, atol=1e-9)


def test_a_burst_follows_the_warm_up_in_which_every_part_learns():
    agent = tiny_sac(burst=4, warmup_decisions=10)
    assert [agent.updates_due(at(decisions)) for decisions in (9, 10, 11, 12)] == [0, 4, 1, 1]
    assert agent.config.updates_by(1000) == 990 + 3
    replay, everything = lived_through(), {"convolutions", "linear", "critic", "actor", "temperature"}
    for update in range(6):
        before = weights(agent)
        agent.update(replay)
        slow = update < 4 or update % 2 == 0
        assert ({"actor", "target_encoder"} <= moved(before, weights(agent))) == slow
        assert everything - {"actor", "temperature"} <= moved(before, weights(agent))


def test_a_tanh_ends_the_encoder_and_the_actors_own_layer():
    agent = tiny_sac(encoder=ControlEncoderConfig(filters=4, latent_dim=10, squash=True))
    states = agent.encoder(torch.rand(5, 9, 24, 24))
    assert states.abs().max() < 1
    assert isinstance(agent.actor.embed[-1], nn.Tanh)


def test_the_actor_and_temperature_losses_are_the_papers_written_out():
    agent, batch = tiny_sac(), lived_through().transitions(lived_through().draw(12))
    obs = agent.augment(batch.obs)
    torch.manual_seed(3)
    with torch.no_grad():
        features = agent.encoder.features(obs.pixels())
        actions, log_prob = agent.actor(features)
        q = agent.critic(agent.encoder.embed(features), actions).amin(dim=0)
    torch.manual_seed(3)
    metrics = agent.update_actor_and_temperature(obs)
    torch.testing.assert_close(metrics["actor/loss"], (0.1 * log_prob - q).mean())
    torch.testing.assert_close(metrics["actor/entropy"], -log_prob.mean())
    # d/d(log α) of mean(α·(−log π − H*)) with H* = −A = −2
    torch.testing.assert_close(agent.log_temperature.grad, 0.1 * (-log_prob.mean() + 2))


def test_each_loss_moves_its_own_part():
    agent, batch = tiny_sac(), lived_through().transitions(lived_through().draw(12))
    obs, next_obs = agent.augment(batch.obs), agent.augment(batch.next_obs)
    start = weights(agent)
    agent.update_critic([obs], batch, [next_obs])
    after_critic = weights(agent)
    assert moved(start, after_critic) == {"convolutions", "linear", "critic"}
    agent.update_actor_and_temperature(obs)
    assert moved(after_critic, weights(agent)) == {"actor", "temperature"}


def test_actor_temperature_and_targets_move_at_every_second_update_the_first_included():
    agent, replay = tiny_sac(), lived_through()
    for update in range(4):
        before = weights(agent)
        agent.update(replay)
        slow = {"actor", "temperature", "target_encoder", "target_critic"} if update % 2 == 0 else set()
        assert moved(before, weights(agent)) == {"convolutions", "linear", "critic"} | slow


def test_the_slow_copies_keep_95_percent_of_the_encoder_and_99_of_the_q_heads():
    agent, replay = tiny_sac(), lived_through()
    old = weights(agent)
    agent.update(replay)
    new = weights(agent)
    torch.testing.assert_close(new["target_critic"][0], 0.99 * old["critic"][0] + 0.01 * new["critic"][0])
    torch.testing.assert_close(new["target_encoder"][0], 0.95 * old["convolutions"][0] + 0.05 * new["convolutions"][0])


def test_micro_batches_take_the_same_step():
    outcomes = []
    for micro_batch in (None, 5):
        agent, batch = (
            tiny_sac(mlr=True, micro_batch=micro_batch),
            lived_through().transitions(lived_through().draw(12)),
        )
        agent.actor.forward = lambda features, _, actor=agent.actor: (  # type: ignore[method-assign]
            actor.distribution(features)[0].tanh(),
            actor.distribution(features)[1].sum(dim=-1),
        )  # without noise, whose order of drawing depends on the pieces
        obs, next_obs = agent.augment(batch.obs), agent.augment(batch.obs)
        outcomes.append(agent.update_critic([obs], batch, [next_obs]))
        outcomes[-1] |= {f"gradient {i}": p.grad.clone() for i, p in enumerate(agent.encoder.parameters())}
        outcomes[-1] |= agent.update_actor_and_temperature(obs)
    for name, value in outcomes[0].items():
        torch.testing.assert_close(outcomes[1][name], value, atol=1e-5, rtol=1e-4)


def test_batches_that_are_shifted_where_they_lie_take_the_same_steps_and_leave_the_replay_alone():
    outcomes, augment = [], AugmentConfig(crop=None, shift=2)
    for inplace in (False, True):
        agent, replay = tiny_sac(augment=augment), lived_through()
        if not inplace:
            agent.augment = augment.build(agent.generators.augment)
        torch.manual_seed(1)
        outcomes.append([agent.update(replay)["critic/loss"] for _ in range(3)])
        stored = replay.transitions(replay.spread(50)).obs
        assert torch.equal(stored, lived_through().transitions(replay.spread(50)).obs)
    assert agent.augment.geometry[0].inplace  # type: ignore[index]
    assert outcomes[0] == outcomes[1]


def test_the_baseline_draws_no_clips_and_has_no_objective():
    agent, replay = tiny_sac(), lived_through()
    replay.clips = None  # type: ignore[assignment, method-assign]  # would fail if called
    metrics = agent.update(replay)
    assert agent.auxiliary is None
    assert not any(name.startswith("mlr/") for name in metrics)


@pytest.mark.parametrize("every", [1, 3])
def test_the_objective_takes_its_turn_at_every_nth_update(every: int):
    agent, replay = tiny_sac(mlr=True, every=every), lived_through()
    turns = ["mlr/loss" in agent.update(replay) for _ in range(6)]
    assert turns == [update % every == 0 for update in range(6)]


def test_the_objective_moves_the_shared_convolutions_and_neither_actor_nor_critic():
    agent, replay = tiny_sac(mlr=True), lived_through()
    before = weights(agent)
    agent.auxiliary(replay.clips(replay.draw(3, span=8), length=8))
    assert moved(before, weights(agent)) == {"convolutions", "linear"}


def test_state_round_trips_and_the_next_update_is_bit_equal():
    for mlr in (False, True):
        first, second, replay = tiny_sac(mlr=mlr), tiny_sac(mlr=mlr, temperature=0.5), lived_through()
        for _ in range(3):
            first.update(replay)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        state, losses = copy.deepcopy(replay.state_dict()), []
        for agent in (first, second):
            replay.load_state_dict(copy.deepcopy(state))
            torch.manual_seed(5)
            losses.append({name: value.item() for name, value in agent.update(replay).items()})
        assert losses[0] == losses[1]
        assert moved(weights(first), weights(second)) == set()


@pytest.mark.parametrize("layer", [0, 2, 4, 6])
def test_a_weight_of_the_encoder_that_is_not_a_number_stops_the_next_update(layer: int):
    agent = tiny_sac(mlr=True)
    with torch.no_grad():
        agent.encoder.convolutions[layer].weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match="The critic loss is nan"):
        agent.update(lived_through())


def test_a_loss_that_is_not_finite_stops_before_the_weights_change():
    agent, batch = tiny_sac(), lived_through().transitions(lived_through().draw(12))
    before = weights(agent)
    obs = agent.augment(batch.obs)
    with pytest.raises(
        FloatingPointError, match="The critic loss is inf at update 0; the weights were left as they were"
    ):
        agent.update_critic([obs], replace(batch, rewards=torch.full((12,), math.inf)), [obs])
    assert moved(before, weights(agent)) == set()


@pytest.mark.parametrize(
    ("change", "seen"),
    [({"batch_size": 0}, "batch_size=0 must be positive"), ({"discount": 1.5}, r"discount=1.5 must be in \(0, 1\]")],
)
def test_an_impossible_config_is_refused(change: dict[str, object], seen: str):
    with pytest.raises(ValueError, match=seen):
        tiny_config(**change)


def test_discrete_actions_are_refused():
    with pytest.raises(ValueError, match=r"SAC needs continuous actions.*Use agent kind rainbow"):
        tiny_config().build(replace(SPACES, discrete=True), None, CPU)


def test_a_stopwatch_takes_inner_parts_out_of_outer_ones():
    watch = Stopwatch()
    with watch("outer"), watch("inner"):
        sum(range(200_000))
    assert watch.seconds["inner"] > 10 * watch.seconds["outer"] >= 0


# ── Whole updates, row by row ─────────────────────────────────────────────────────────────────────────────────────────

# What the papers say; the other values are the same for all three.
WRITTEN: dict[str, dict[str, Any]] = {
    "baseline": {"squash": False, "encoder_momentum": 0.95, "temperature_rate": 1e-4, "temperature_beta": 0.5},
    "sac_pixel": {"squash": True, "encoder_momentum": 0.95, "temperature_rate": 1e-4, "temperature_beta": 0.5},
    "drq": {"squash": True, "encoder_momentum": 0.99, "temperature_rate": 1e-3, "temperature_beta": 0.9},
}
BURST = {"baseline": 0, "sac_pixel": 2, "drq": 0}  # the released 1000 of sac_pixel, made short


def recipes_agent(method: str, micro_batch: int | None) -> SAC:
    """The agent of a recipe, with tiny networks and batches, in double precision."""
    known = find("dmcontrol/walker-walk", "paper", method).agent
    assert isinstance(known, SACConfig)
    assert bool(known.burst) == bool(BURST[method])
    config = replace(
        known, encoder=replace(known.encoder, filters=4, latent_dim=6), hidden=7, batch_size=by_row.ROWS,
        burst=BURST[method], micro_batch=micro_batch,
        augment=replace(known.augment, crop=None if known.augment.crop is None else 17),
    )  # fmt: skip
    agent: SAC = by_row.agent_in_double(config.build)
    assert agent.log_temperature.item() == pytest.approx(math.log(0.1), rel=1e-6)  # which float32 cannot hold
    agent.log_temperature.data = torch.tensor(math.log(0.1), dtype=torch.float64)
    return agent


class WrittenOut:
    """SAC of pixels, and DrQ with K = M = 2: each loss in a loop over the rows of a batch, with steps of its own."""

    def __init__(self, agent: SAC, method: str, micro_batch: int | None) -> None:
        self.method, self.values, self.pieces = method, WRITTEN[method], by_row.pieces(micro_batch)
        self.encoder, self.actor, self.critic = map(by_row.weights_of, (agent.encoder, agent.actor, agent.critic))
        self.slow_encoder = by_row.weights_of(agent.target_encoder.copy)
        self.slow_critic = by_row.weights_of(agent.target_critic.copy)
        self.log_temperature = torch.tensor(math.log(0.1), dtype=torch.float64, requires_grad=True)
        self.stream = by_row.stream_of(agent)
        self.critic_adam = by_row.Adam([self.encoder, self.critic], rate=1e-3)
        self.actor_adam = by_row.Adam([self.actor], rate=1e-3)
        temperature = {"log_temperature": self.log_temperature}
        self.temperature_adam = by_row.Adam(
            [temperature], self.values["temperature_rate"], self.values["temperature_beta"]
        )

    def views(self, obs: Tensor) -> list[Tensor]:
        if self.method == "drq":
            return [by_row.shifted(obs, 4, self.stream), by_row.shifted(obs, 4, self.stream)]
        return [by_row.cropped(obs, 17, self.stream) if self.method == "baseline" else obs.double() / 255]

    def state(self, encoder: by_row.Weights, maps: Tensor) -> Tensor:
        return by_row.state_of(encoder, maps, squash=self.values["squash"])

    def act(self, maps: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action, and the logarithm of its probability: a sum over its numbers."""
        state = by_row.embedded(self.actor, "embed.0", "embed.1", maps, squash=self.values["squash"])
        out, action, log_prob = by_row.layers(self.actor, "trunk", state), [], torch.zeros((), dtype=torch.float64)
        for i in range(2):
            log_std = -10 + 6 * (torch.tanh(out[2 + i]) + 1)
            action.append(torch.tanh(out[i] + log_std.exp() * noise[i]))
            log_prob = log_prob - noise[i] ** 2 / 2 - log_std - math.log(2 * math.pi) / 2
            log_prob = log_prob - torch.log(1 - action[i] ** 2 + 1e-6)
        return torch.stack(action), log_prob

    def update(self, batch: Transitions, number: int) -> dict[str, Tensor]:
        obs, next_obs = self.views(batch.obs), self.views(batch.next_obs)
        losses, values = self.critic_losses(obs, batch, next_obs)
        metrics = {"critic/loss": by_row.mean(losses), "critic/q": by_row.mean(values)}
        self.critic_adam.step(metrics["critic/loss"])
        if number % 2 == 0 or number < BURST[self.method]:
            metrics |= self.update_actor_and_temperature(obs[0])
            by_row.follow(self.slow_encoder, self.encoder, self.values["encoder_momentum"])
            by_row.follow(self.slow_critic, self.critic, 0.99)
        return metrics

    def critic_losses(
        self, obs: list[Tensor], batch: Transitions, next_obs: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Each row's sum of the squared errors of both Q functions on all views, and its mean Q."""
        temperature, losses, values = self.log_temperature.detach().exp(), [], []
        for piece in self.pieces:
            noises = [torch.randn(len(piece), 2, dtype=torch.float64) for _ in next_obs]
            for place, row in enumerate(piece):
                targets = []
                for pixels, noise in zip(next_obs, noises, strict=True):
                    action, log_prob = self.act(by_row.maps(self.encoder, pixels[row]), noise[place])
                    slow = self.state(self.slow_encoder, by_row.maps(self.slow_encoder, pixels[row]))
                    value = min(by_row.both_q(self.slow_critic, slow, action)) - temperature * log_prob
                    targets.append(batch.rewards[row] + batch.discounts[row] * value.detach())
                target, found = by_row.mean(targets), []
                for pixels in obs:
                    state = self.state(self.encoder, by_row.maps(self.encoder, pixels[row]))
                    found += by_row.both_q(self.critic, state, batch.actions[row])
                losses.append(torch.stack([(q - target) ** 2 for q in found]).sum())
                values.append(by_row.mean(found))
        return losses, values

    def update_actor_and_temperature(self, obs: Tensor) -> dict[str, Tensor]:
        temperature, losses, surprises = self.log_temperature.detach().exp(), [], []
        for piece in self.pieces:
            noise = torch.randn(len(piece), 2, dtype=torch.float64)
            for place, row in enumerate(piece):
                maps = by_row.maps(self.encoder, obs[row])
                action, log_prob = self.act(maps, noise[place])
                losses.append(
                    temperature * log_prob - min(by_row.both_q(self.critic, self.state(self.encoder, maps), action))
                )
                surprises.append(-log_prob.detach())
        loss, entropy = by_row.mean(losses), by_row.mean(surprises)
        self.actor_adam.step(loss)
        self.temperature_adam.step(self.log_temperature.exp() * (entropy + 2))  # towards −A
        return {"actor/loss": loss, "actor/entropy": entropy, "actor/temperature": temperature}


@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("method", WRITTEN)
def test_four_updates_are_those_written_out_row_by_row(method: str, micro_batch: int | None):
    """Losses, weights, temperature and slow copies after each; the actor's turns are the first and the third, or in a burst."""
    agent, (replay, batches) = recipes_agent(method, micro_batch), by_row.replay_in_double()
    written = WrittenOut(agent, method, micro_batch)
    for number in range(4):
        torch.manual_seed(number)
        found = agent.update(replay)
        torch.manual_seed(number)
        expected = written.update(batches[-1], number)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].item() == pytest.approx(value.item(), rel=1e-9)
        for module, weights in (
            (agent.encoder, written.encoder), (agent.actor, written.actor), (agent.critic, written.critic),
            (agent.target_encoder.copy, written.slow_encoder), (agent.target_critic.copy, written.slow_critic),
        ):  # fmt: skip
            by_row.check_same(module, weights)
        torch.testing.assert_close(agent.log_temperature, written.log_temperature, rtol=1e-9, atol=0)
    assert len(batches) == 4
