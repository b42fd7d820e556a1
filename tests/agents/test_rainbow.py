import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from builders import at, parameters_of
from maskrl import AugmentConfig, MaskConfig, MLRConfig
from maskrl.agents.base import Spaces
from maskrl.agents.rainbow import Categorical, NatureEncoderConfig, QHead, Rainbow, RainbowConfig, Scalar
from maskrl.agents.sac import SACConfig
from maskrl.envs.toy import ToyArcade
from maskrl.nn.encoders import NatureEncoder
from maskrl.nn.layers import NoisyLinear
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Material
from maskrl.replay.buffer import Draw, Replay

SIZE, STACK, ACTIONS, STEPS = 16, 2, 3, 4
SPACES = Spaces(obs=(STACK, SIZE, SIZE), action_dim=ACTIONS, discrete=True)
CPU = torch.device("cpu")


def tiny_config(**changes: object) -> RainbowConfig:
    """Latent states of 16 numbers. The learning rate is large, so that a step is far larger than rounding."""
    settings: dict[str, object] = {
        "encoder": NatureEncoderConfig(filters=(8, 4), kernels=(4, 2), strides=(4, 2)),
        "hidden": 6,
        "atoms": 7,
        "support": 3.0,
        "augment": AugmentConfig(crop=None, shift=1),
        "batch_size": 12,
        "n_step": 3,
        "learning_rate": 0.05,
        "correction_updates": 10,
    }
    return RainbowConfig(**(settings | changes))  # type: ignore[arg-type]


def tiny_mlr(**changes: object) -> MLRConfig:
    """The parts of the paper's objective on Atari, on clips of 4 steps, with a mask of 2 × 4 × 4 pixels."""
    settings: dict[str, object] = {
        "clip_length": STEPS,
        "mask": MaskConfig(cube=(2, 4, 4), feature_patch=1),
        "augment": AugmentConfig(crop=None, shift=1),
        "projection": "q",
        "prediction": "linear",
        "momentum": 0.0,
        "init": "torch",
    }
    return MLRConfig(**(settings | changes))  # type: ignore[arg-type]


def tiny_rainbow(objective: MLRConfig | None = None, *, seed: int = 7, **changes: object) -> Rainbow:
    torch.manual_seed(seed)
    return tiny_config(**changes).build(SPACES, objective, CPU)


def lived_through(decisions: int = 90, *, exponent: float | None = 0.5) -> Replay:
    """Random play of Catch, whose episodes have 39 decisions and so 40 frames."""
    env, generator = ToyArcade(size=SIZE, frame_stack=STACK).make(seed=0, training=True), np.random.default_rng(0)
    replay = Replay(
        frame_shape=(1, SIZE, SIZE),
        action_dim=ACTIONS,
        frame_stack=STACK,
        capacity=200,
        seed=1,
        discrete=True,
        priority_exponent=exponent,
    )
    ended = True
    for _ in range(decisions):
        if ended:
            replay.begin_episode(env.reset()[0])
        action = SPACES.random_action(generator)
        obs, reward, ended, _, _ = env.step(action)
        replay.add(SPACES.as_vector(action), float(reward), obs, terminated=ended, truncated=False)
    if exponent is not None:
        prefer_ends(replay)
    return replay


def prefer_ends(replay: Replay) -> None:
    """All priorities differ, and every second draw is one of the last three transitions of an episode of Catch."""
    starts = np.flatnonzero(replay.state_dict()["leaf"])
    errors = np.random.default_rng(2).uniform(0.2, 2, len(starts)) + 200 * (starts % 40 > 35)
    replay.reprioritise(Draw(starts, torch.ones(len(starts))), errors)


def some_obs(count: int) -> np.ndarray:
    """Coarse squares of black and white, as unlike each other as can be."""
    squares = np.random.default_rng(3).integers(2, size=(count, STACK, 4, 4), dtype=np.uint8) * np.uint8(255)
    return squares.repeat(SIZE // 4, axis=2).repeat(SIZE // 4, axis=3)


def trained(agent: Rainbow) -> dict[str, nn.Parameter]:
    """Every parameter that learns, by name."""
    parts: dict[str, nn.Module] = {"encoder": agent.encoder, "head": agent.head}
    if agent.objective is not None:
        parts |= {"objective": agent.objective}
    return {
        f"{part}.{name}": parameter
        for part, module in parts.items()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def values(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, as they are now."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def all_values(agent: Rainbow) -> dict[str, Tensor]:
    modules = agent.state_dict()["modules"]
    return {f"{part}.{name}": value.clone() for part in modules for name, value in modules[part].items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ── What a Q function predicts ────────────────────────────────────────────────────────────────────────────────────────


def projected(rewards: Tensor, discounts: Tensor, probabilities: Tensor, low: float, high: float) -> Tensor:
    """C51's projection as in the paper's algorithm: for every atom, where it lands and how its mass is split."""
    width = probabilities.shape[1]
    target, gap = np.zeros(probabilities.shape, np.float32), (high - low) / (width - 1)
    for row, reward, discount, masses in zip(
        target, rewards.tolist(), discounts.tolist(), probabilities.tolist(), strict=True
    ):
        for atom, mass in enumerate(masses):
            place = (min(max(reward + discount * (low + atom * gap), low), high) - low) / gap
            below = min(math.floor(place), width - 2)
            row[below] += mass * (below + 1 - place)
            row[below + 1] += mass * (place - below)
    return torch.from_numpy(target)


@settings(max_examples=30)
@given(
    width=st.integers(2, 51),
    support=st.floats(0.5, 20),
    rewards=st.lists(st.floats(-30, 30), min_size=1, max_size=3),
    discount=st.sampled_from([0.0, 0.5, 0.99**10, 1.0]),
    seed=st.integers(0, 1000),
)
def test_the_categorical_target_is_c51s_projection(width, support, rewards, discount, seed):
    outputs = torch.randn(len(rewards), width, generator=torch.Generator().manual_seed(seed)) * 3
    r, discounts = torch.tensor(rewards), torch.full((len(rewards),), discount)
    target = Categorical(width, -support, support).target(r, discounts, outputs)
    torch.testing.assert_close(
        target, projected(r, discounts, outputs.softmax(-1), -support, support), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(target.sum(-1), torch.ones(len(rewards)), atol=1e-4, rtol=0)


def test_three_atoms_by_hand():
    """Atoms -1, 0, 1 halve and move by ½: to 0, ½ and 1. What is at ½ goes in equal parts to 0 and 1."""
    outputs = torch.tensor([[0.25, 0.5, 0.25]]).log()
    target = Categorical(3, -1.0, 1.0).target(torch.tensor([0.5]), torch.tensor([0.5]), outputs)
    torch.testing.assert_close(target, torch.tensor([[0.0, 0.5, 0.5]]))


def test_rewards_beyond_the_support_and_ends_put_all_mass_on_one_place():
    returns, outputs = Categorical(5, -2.0, 2.0), torch.randn(3, 5)
    target = returns.target(torch.tensor([9.0, -9.0, 1.5]), torch.tensor([0.9, 0.9, 0.0]), outputs)
    expected = [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0.5, 0.5]]
    torch.testing.assert_close(target, torch.tensor(expected), atol=1e-6, rtol=0)


def test_the_mean_is_that_of_the_distribution_over_the_atoms():
    outputs = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]]).log()
    torch.testing.assert_close(Categorical(3, -10.0, 10.0).mean(outputs), torch.tensor([6.0, -5.0]))


def test_the_categorical_loss_is_the_cross_entropy():
    outputs, target = torch.randn(5, 7), torch.randn(5, 7).softmax(-1)
    expected = F.cross_entropy(outputs, target, reduction="none")
    torch.testing.assert_close(Categorical(7, -1.0, 1.0).loss(outputs, target), expected)


def test_the_surprise_is_the_divergence_with_a_floor_under_the_target():
    """KL((0, 1, 0) ‖ (¼, ½, ¼)) = ln 2; two floored atoms add 1e-6 · ln(1e-6 / ¼) each."""
    outputs, target = torch.tensor([[0.25, 0.5, 0.25]]).double().log(), torch.tensor([[0.0, 1.0, 0.0]]).double()
    surprise = Categorical(3, -1.0, 1.0).surprise(outputs, target).item()
    assert surprise == pytest.approx(math.log(2) + 2e-6 * math.log(4e-6), rel=1e-12)
    assert surprise != pytest.approx(math.log(2), rel=1e-6)


@given(width=st.integers(2, 60), sharpness=st.floats(0, 60), seed=st.integers(0, 1000))
def test_the_surprise_is_finite_and_never_clearly_below_zero(width, sharpness, seed):
    outputs = torch.randn(4, width, generator=torch.Generator().manual_seed(seed)) * sharpness
    returns = Categorical(width, -1.0, 1.0)
    for target in (outputs.softmax(-1), outputs.flip(-1).softmax(-1), F.one_hot(outputs.argmin(-1), width).float()):
        surprise = returns.surprise(outputs, target)
        assert surprise.isfinite().all()
        assert (surprise > -1e-3).all()


def test_scalar_returns_are_those_of_dqn():
    returns, outputs = Scalar(), torch.tensor([[1.0], [2.0]])
    assert returns.mean(outputs).tolist() == [1.0, 2.0]
    target = returns.target(torch.tensor([1.0, -1.0]), torch.tensor([0.5, 0.0]), outputs)
    assert target.tolist() == [[1.5], [-1.0]]
    assert returns.loss(outputs, target).tolist() == [0.5 * 0.5**2, 3 - 0.5]  # Huber's, with its bend at 1
    assert returns.surprise(outputs, target).tolist() == [0.5, 3.0]


# ── The Q head ────────────────────────────────────────────────────────────────────────────────────────────────────────


def noisy(fan_in: int, fan_out: int) -> NoisyLinear:
    return NoisyLinear(fan_in, fan_out, 0.5)


def dueling_head() -> QHead:
    return QHead(5, 4, ACTIONS, 7, dueling=True, layer=noisy)


def test_the_networks_have_the_papers_sizes():
    """The released head has one more bias for each of the 51 atoms, shared by all actions: A − mean A cancels it."""
    agent = RainbowConfig().build(Spaces(obs=(4, 84, 84), action_dim=4, discrete=True), None, CPU)
    assert parameters_of(agent.encoder) == 77_984
    assert parameters_of(agent.head) == 3_343_409 - 51
    assert agent.head.first(torch.zeros(1, 3136)).shape == (1, 512)
    sigma = agent.head.first[0].weight_sigma.detach().unique()
    assert sigma.tolist() == pytest.approx([0.1 / 56])  # √3136 = 56


def test_a_dueling_head_is_value_plus_advantage_minus_its_mean():
    head, states = dueling_head(), torch.randn(6, 5)
    value = head.last[0](head.first[0](states).relu())  # (6, 7)
    advantage = head.last[1](head.first[1](states).relu()).reshape(6, ACTIONS, 7)
    for action in range(ACTIONS):
        expected = value + advantage[:, action] - (advantage[:, 0] + advantage[:, 1] + advantage[:, 2]) / 3
        torch.testing.assert_close(head(states)[:, action], expected)


def test_a_plain_head_is_one_stream():
    head, states = QHead(5, 4, ACTIONS, 7, dueling=False, layer=nn.Linear), torch.randn(6, 5)
    expected = head.last[0](head.first[0](states).relu()).reshape(6, ACTIONS, 7)
    assert torch.equal(head(states), expected)
    assert parameters_of(head) == 5 * 4 + 4 + 4 * 21 + 21


@pytest.mark.parametrize(("dueling", "scale"), [(True, 1 / math.sqrt(2)), (False, 1.0)])
def test_two_streams_send_back_gradients_scaled_by_one_over_root_two(dueling: bool, scale: float):
    head = QHead(5, 4, ACTIONS, 7, dueling=dueling, layer=noisy)
    states, coefficients = torch.randn(6, 5, requires_grad=True), torch.randn(6, ACTIONS, 7)

    def unscaled(states: Tensor) -> Tensor:
        *value, advantage = [last(first(states).relu()) for first, last in zip(head.first, head.last, strict=True)]
        outputs = advantage.reshape(6, ACTIONS, 7)
        return value[0][:, None] + outputs - outputs.mean(dim=1, keepdim=True) if value else outputs

    wanted = [states, *head.parameters()]
    expected = torch.autograd.grad((unscaled(states) * coefficients).sum(), wanted)
    seen = torch.autograd.grad((head(states) * coefficients).sum(), wanted)
    torch.testing.assert_close(seen[0], scale * expected[0])
    torch.testing.assert_close(seen[1:], expected[1:])  # the head's own gradients are whole
    (projection,) = torch.autograd.grad(head.first(states).sum(), [states])
    torch.testing.assert_close(projection, sum(layer.weight.sum(0) for layer in head.first).expand(6, 5))


def test_the_projection_is_the_first_layers_without_noise_and_relu_the_values_first():
    head, states = dueling_head(), torch.randn(6, 5)
    value, advantage = (states @ layer.weight.T + layer.bias for layer in head.first)
    torch.testing.assert_close(head.first(states), torch.cat([value, advantage], dim=1))
    assert (head.first(states) < 0).any()
    assert not torch.allclose(head.first[0](states), value)  # in training the layer itself has noise


def test_new_noise_reaches_every_layer():
    head = dueling_head()
    before = values(head)
    head.resample()
    changed = {name for name, value in values(head).items() if not torch.equal(value, before[name])}
    layers = ("first.0", "first.1", "last.0", "last.1")
    assert changed == {f"{layer}.{noise}" for layer in layers for noise in ("noise_in", "noise_out")}


# ── Acting ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def best_actions(agent: Rainbow, obs: np.ndarray) -> list[int]:
    """With the noise that the head has now."""
    with torch.no_grad():
        return agent.returns.mean(agent.head(agent.encoder(torch.from_numpy(obs) / 255))).argmax(dim=-1).tolist()


def test_exploring_is_acting_by_the_current_noise_and_evaluation_is_without():
    agent, obs = tiny_rainbow(noisy_std=5.0), some_obs(40)
    noisy_choice = best_actions(agent, obs)
    state = torch.get_rng_state()
    assert agent.act(obs, explore=True, clock=at(0)).tolist() == noisy_choice
    plain = agent.policy().act(obs)
    assert (plain.shape, plain.dtype) == ((40,), np.int64)
    assert torch.equal(torch.get_rng_state(), state)  # neither draws anything: evaluation must not disturb training
    assert best_actions(agent, obs) == noisy_choice  # the noise is back on for the updates, and the same
    for layer in (*agent.head.first, *agent.head.last):
        nn.init.zeros_(layer.weight_sigma)
        nn.init.zeros_(layer.bias_sigma)
    assert best_actions(agent, obs) == plain.tolist() != noisy_choice


def test_acting_sees_the_centre_crop():
    agent, obs = tiny_rainbow(augment=AugmentConfig(crop=12)), some_obs(50)
    nn.init.normal_(agent.head.last[1].weight)  # so that not all observations have the same best action
    border = obs.copy()
    border[..., :2, :] = border[..., -2:, :] = 0
    border[..., :, :2] = border[..., :, -2:] = 0
    assert (agent.policy().act(border) == agent.policy().act(obs)).all()
    inside = torch.from_numpy(obs[..., 2:14, 2:14]).float() / 255
    agent.head.eval()
    expected = agent.returns.mean(agent.head(agent.encoder(inside))).argmax(dim=-1)
    assert agent.policy().act(obs).tolist() == expected.tolist()
    assert len(expected.unique()) > 1


def test_the_share_of_random_actions_falls_in_a_line_with_the_decisions_after_the_warm_up():
    agent = tiny_rainbow(epsilon=0.1, epsilon_decisions=10, warmup_decisions=5)
    seen = [agent.epsilon(at(5 + decision)) for decision in range(13)]
    assert seen[:11] == pytest.approx([1 - 0.09 * decision for decision in range(11)])
    assert seen[10:] == pytest.approx([0.1, 0.1, 0.1])
    assert agent.epsilon(at(0)) == agent.epsilon(at(4)) == 1
    assert tiny_rainbow(epsilon=0.1).epsilon(at(2000)) == 0.1  # at once, if it has no decisions to fall over
    assert tiny_rainbow().epsilon(at(0)) == 0


@pytest.mark.parametrize(("explored", "share"), [(0, 1.0), (10, 0.3)])
def test_random_actions_are_uniform_and_as_many_as_their_share(explored: int, share: float):
    agent = tiny_rainbow(epsilon=0.3, epsilon_decisions=10, noisy_std=None, warmup_decisions=0)
    obs = some_obs(1).repeat(6000, axis=0)
    (best,) = set(agent.policy().act(obs).tolist())
    counts = np.bincount(agent.act(obs, explore=True, clock=at(explored)), minlength=ACTIONS) / len(obs)
    expected = [1 - share + share / 3 if action == best else share / 3 for action in range(ACTIONS)]
    assert counts == pytest.approx(expected, abs=0.03)


# ── One update ────────────────────────────────────────────────────────────────────────────────────────────────────────

CLIPS, WEIGHT, MAX_NORM = 5, 0.7, 0.01


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"double": False},
        {"returns": "scalar"},
        {"dueling": False},
        {"late_ends": False},
        {"noisy_std": None, "clips": None},
    ],
    ids=str,
)
def test_an_update_is_the_papers_joint_loss_written_out(changes: dict[str, object]):
    """Third update: the importance weights, Adam's moments, target network and momentum copies are all different by then."""
    common = {"clips": CLIPS, "micro_batch": 2 * STEPS, "target_every": 3, "max_grad_norm": MAX_NORM, "discount": 0.9}
    agent = tiny_rainbow(tiny_mlr(weight=WEIGHT, momentum=0.5), seed=6, **(common | changes))
    replay = lived_through()
    for layer in (*agent.head.last, *agent.target_head.copy.last):
        nn.init.normal_(layer.weight)  # apart, and different for every observation: so are the actions they choose
    for _ in range(2):
        agent.update(replay)
    prefer_ends(replay)
    old, old_replay = copy.deepcopy((agent, replay))
    torch.manual_seed(11)
    metrics = agent.update(replay)

    torch.manual_seed(11)
    config, objective = old.config, old.objective
    count = config.clips or 12
    draw = old_replay.draw(12, span=STEPS, whole=False, correction=0.4 + 0.6 * 2 / 10)
    batch = old_replay.transitions(draw, n_step=3, discount=0.9, late_ends=config.late_ends)
    obs, next_obs = old.augment(batch.obs).pixels(), old.augment(batch.next_obs).pixels()
    judged = old.augment(batch.next_obs).pixels() if config.double else next_obs  # a shift of its own
    old.renew_noise()

    # Q: the online network chooses the action if `double`, the target network says what it is worth.
    every = torch.arange(12)
    with torch.no_grad():
        next_outputs = old.target_head.copy(old.target_encoder.copy(next_obs))
        choices = [
            old.returns.mean(outputs).argmax(dim=1)
            for outputs in (next_outputs, old.head(old.encoder(judged)))
        ]  # fmt: skip
        outputs = next_outputs[every, choices[1 if config.double else 0]]
        if config.returns == "scalar":
            target = batch.rewards[:, None] + batch.discounts[:, None] * outputs
        else:
            target = projected(batch.rewards, batch.discounts, outputs.softmax(-1), -3.0, 3.0)
    all_outputs = old.head(old.encoder(obs))
    taken = all_outputs[every, batch.actions.argmax(dim=1)]
    if config.returns == "scalar":
        per_transition = F.huber_loss(taken, target, reduction="none")[:, 0]
        errors = (taken - target).abs()[:, 0]
        q = all_outputs[..., 0].amax(dim=1).mean()
    else:
        per_transition = F.cross_entropy(taken, target, reduction="none")
        floored = target.clamp(min=1e-6)
        errors = (floored * (floored.log() - taken.log_softmax(-1))).sum(-1)
        q = (all_outputs.softmax(-1) @ torch.linspace(-3, 3, 7)).amax(dim=1).mean()
    q_loss = (draw.weights * per_transition).mean()

    # The objective, on clips at the first of the same transitions, with their weights.
    clip = old_replay.clips(Draw(draw.starts[:count], draw.weights[:count]), length=STEPS)
    per_clip = objective.loss(objective.views(Material(clip))).per_clip
    (q_loss + WEIGHT * (draw.weights[:count] * per_clip).mean()).backward()

    # Two norms, and parameters that belong to neither.
    parameters = trained(old)
    assert set(parameters) == set(trained(agent))
    norms = {}
    for group, begins in (("critic", ("encoder.", "head.")), ("decoder", ("objective.decoder.blocks.",))):
        members = [p for name, p in parameters.items() if name.startswith(begins)]
        norms[group] = torch.stack([p.grad.square().sum() for p in members]).sum().sqrt()
        for p in members:
            p.grad *= MAX_NORM / (norms[group] + 1e-6)
    free = [name for name in parameters if not name.startswith(("encoder.", "head.", "objective.decoder.blocks."))]
    assert {name.rsplit(".", 1)[0] for name in free} == {
        "objective.decoder.embed_action",
        "objective.target.prediction",
    }

    # Adam, with the moments of two updates behind it.
    new = trained(agent)
    for name, p in parameters.items():
        state = old.optimizer.state[p]
        mean = 0.9 * state["exp_avg"] + 0.1 * p.grad
        square = 0.999 * state["exp_avg_sq"] + 0.001 * p.grad.square()
        step = (mean / (1 - 0.9**3)) / ((square / (1 - 0.999**3)).sqrt() + 1.5e-4)
        expected = p.detach() - 0.05 * step
        torch.testing.assert_close(
            new[name].detach(), expected, atol=2e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )

    # Around the step: momentum copies before it, the target network after it, noise drawn once.
    objective.update_momentum()
    momentum = {name: value for name, value in objective.state_dict().items() if ".copy." in name}
    assert {name.split(".copy.")[0] for name in momentum} == {"target.encoder", "target.momentum_projection"}
    for name, value in momentum.items():
        torch.testing.assert_close(agent.objective.state_dict()[name], value)
    assert same(values(agent.target_encoder.copy), values(agent.encoder))
    assert same(values(agent.target_head.copy), values(agent.head))
    assert all(torch.equal(a, b) for a, b in zip(agent.head.buffers(), old.head.buffers(), strict=True))

    # Priorities: of the drawn transitions alone, the first of any that were drawn twice, by the Q loss without weights.
    leaves = old_replay.state_dict()["leaf"]
    starts, first = np.unique(draw.starts, return_index=True)
    leaves[starts] = np.clip(errors.detach().double().numpy(), 1e-6, 1e6)[first] ** 0.5
    np.testing.assert_allclose(replay.state_dict()["leaf"], leaves, rtol=1e-3, atol=1e-5)

    expected_metrics = {
        "critic/loss": q_loss,
        "critic/q": q,
        "mlr/loss": per_clip.mean(),
        "critic/gradient_norm": norms["critic"],
        "decoder/gradient_norm": norms["decoder"],
    }
    for name, value in expected_metrics.items():
        torch.testing.assert_close(metrics[name], value.detach(), atol=1e-5, rtol=1e-3)

    # None of this would be worth much if the cases that differ were not among the drawn.
    assert (choices[0] != choices[1]).any()
    assert not clip.valid.all()
    assert draw.weights.std() > 0.05
    assert min(norms.values()) > MAX_NORM
    otherwise = old_replay.transitions(draw, n_step=3, discount=0.9, late_ends=not config.late_ends)
    assert not torch.equal(otherwise.discounts, batch.discounts)  # an episode ends at the second or third step of some


def test_gradients_below_the_limit_are_not_scaled():
    """Adam's first step is lr · g / (|g| + ε), so with ε = 1 the gradient can be read from it."""
    steps = []
    for limit in (1e3, 1e6):
        agent = tiny_rainbow(tiny_mlr(), max_grad_norm=limit, adam_epsilon=1.0)
        agent.update(lived_through())
        steps.append(all_values(agent))
    assert same(*steps)


def test_micro_batches_take_the_same_step():
    outcomes = []
    for micro_batch in (None, 2 * STEPS):
        agent, replay = tiny_rainbow(tiny_mlr(), micro_batch=micro_batch, clips=5, adam_epsilon=1e-2), lived_through()
        metrics = agent.update(replay)
        outcomes.append(metrics | all_values(agent))
    assert outcomes[0].keys() == outcomes[1].keys()
    for name, value in outcomes[0].items():
        if name != "mlr/target_std":  # over all clips of a piece, so pieces have their own
            torch.testing.assert_close(outcomes[1][name], value, atol=1e-5, rtol=1e-4)


def test_with_a_momentum_of_zero_the_copies_are_one_update_behind():
    agent, replay = tiny_rainbow(tiny_mlr()), lived_through()
    for _ in range(3):
        encoder, first = values(agent.encoder), dict(agent.head.first.named_parameters())
        first = {name: value.detach().clone() for name, value in first.items()}
        agent.update(replay)
        target = agent.objective.target
        assert same(values(target.encoder.copy), encoder)
        assert same({n: p.detach() for n, p in target.momentum_projection.copy.named_parameters()}, first)
        assert not same(values(agent.encoder), encoder)


@pytest.mark.parametrize("target_every", [1, 3])
def test_the_target_network_is_a_copy_after_every_so_many_updates_noise_included(target_every: int):
    agent, replay = tiny_rainbow(target_every=target_every), lived_through()
    assert same(values(agent.target_head.copy), values(agent.head))  # and from the start
    for update in range(1, 8):
        before = values(agent.target_encoder.copy), values(agent.target_head.copy)
        agent.update(replay)
        after = values(agent.target_encoder.copy), values(agent.target_head.copy)
        if update % target_every == 0:
            assert same(after[0], values(agent.encoder))
            assert same(after[1], values(agent.head))
            assert not same(after[1], before[1])
        else:
            assert same(after[0], before[0])
            assert same(weights_alone(after[1]), weights_alone(before[1]))


def weights_alone(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in values.items() if "noise" not in name}


def test_a_slow_target_draws_noise_in_every_update_after_the_online_network():
    agent, replay = tiny_rainbow(target_every=100), lived_through()
    for _ in range(3):
        stream = torch.Generator().set_state(agent.generators.explore.get_state())
        agent.update(replay)
        for head in (agent.head, agent.target_head.copy):
            for layer in (*head.first, *head.last):
                for noise in (layer.noise_in, layer.noise_out):
                    drawn = torch.randn(noise.shape, generator=stream)
                    assert torch.equal(noise, drawn.sign() * drawn.abs().sqrt())


def test_a_target_that_is_copied_in_every_update_has_the_noise_of_the_update_before():
    agent, replay = tiny_rainbow(target_every=1), lived_through()
    agent.update(replay)
    seen: list[dict[str, Tensor]] = []
    agent.target_head.copy.register_forward_pre_hook(lambda head, _: seen.append(values(head)))
    old = values(agent.head)
    agent.update(replay)
    assert same(seen[0], old)
    assert not same(values(agent.head), old)


def test_every_update_has_noise_of_its_own():
    agent, replay = tiny_rainbow(), lived_through()
    seen = {tuple(agent.head.first[0].noise_in.tolist())}
    for _ in range(3):
        agent.update(replay)
        seen.add(tuple(agent.head.first[0].noise_in.tolist()))
    assert len(seen) == 4


def test_the_objective_trains_the_encoder_and_the_means_of_the_heads_first_layers_alone():
    agent, replay = tiny_rainbow(tiny_mlr()), lived_through()
    clip = replay.clips(replay.draw(6, span=STEPS), length=STEPS)
    agent.objective.add_gradient(agent.objective.views(Material(clip)), weights=torch.ones(6))
    moved = {name for name, p in trained(agent).items() if p.grad is not None and p.grad.any()}
    assert {name for name in moved if name.startswith("head")} == {
        f"head.first.{stream}.{part}" for stream in (0, 1) for part in ("weight", "bias")
    }
    assert {name for name in trained(agent) if not name.startswith("head")} - moved == set()


def test_the_objectives_weights_are_one_for_each_clip():
    """The gradient of one clip alone, given the whole weight, is that of the batch with all others at zero."""
    agent, replay = tiny_rainbow(tiny_mlr(weight=2.0)), lived_through()
    clip = replay.clips(replay.draw(3, span=STEPS), length=STEPS)
    stream = agent.generators.objective
    stream.manual_seed(5)
    per_clip = agent.objective(clip).per_clip
    expected = torch.autograd.grad(2.0 * 0.6 * per_clip[1] / 3, agent.encoder.convolutions[0].weight)[0]
    stream.manual_seed(5)
    agent.objective.add_gradient(
        agent.objective.views(Material(clip)), micro_batch=2 * STEPS, weights=torch.tensor([0.0, 0.6, 0.0])
    )
    torch.testing.assert_close(agent.encoder.convolutions[0].weight.grad, expected)
    assert expected.any()


@pytest.mark.parametrize("every", [1, 3])
def test_the_objective_takes_its_turn_at_every_nth_update(every: int):
    agent, replay = tiny_rainbow(tiny_mlr(every=every)), lived_through()
    for update in range(6):
        before = values(agent.objective)
        has_loss = "mlr/loss" in agent.update(replay)
        assert has_loss == (update % every == 0)
        assert same(values(agent.objective), before) != has_loss


def test_without_an_objective_no_clips_are_read_and_newer_transitions_are_drawn():
    """Of 5 decisions, 3 and the newest frame leave starts 0 to 2 for a return of 3 steps; a clip of 4 leaves 0 and 1."""
    newest = {}
    for objective in (None, tiny_mlr()):
        agent, replay, drawn = tiny_rainbow(objective, batch_size=30), lived_through(5, exponent=None), []
        draw = replay.draw
        replay.draw = lambda *a, draw=draw, drawn=drawn, **k: drawn.append(draw(*a, **k)) or drawn[-1]  # type: ignore
        metrics = agent.update(replay)
        assert any(name.startswith("mlr/") for name in metrics) == (objective is not None)
        newest[objective is not None] = max(drawn[0].starts)
    assert newest == {False: 2, True: 1}


def test_the_correction_rises_in_a_line_with_the_updates():
    agent = tiny_rainbow(correction=0.4, correction_updates=10)
    seen = []
    for agent.updates in (0, 5, 10, 50):
        seen.append(agent.correction)
    assert seen == pytest.approx([0.4, 0.7, 1.0, 1.0])


def test_uniform_draws_have_neither_weights_nor_priorities():
    agent, replay = tiny_rainbow(tiny_mlr(), priority_exponent=None), lived_through(exponent=None)
    agent.update(replay)
    assert "leaf" not in replay.state_dict()


PARTS = [["categorical", "scalar"], [0.1, None], [True, False], [True, False], [0.5, None], [True, False]]


def has_every_pair(choices: tuple[int, ...]) -> bool:
    """Eight of all 64 combinations, in which any two parts meet in all four ways: `make check` runs these alone."""
    a, b, c, *sums = choices
    return sums == [a ^ b, a ^ c, b ^ c]


COMBINATIONS = [
    pytest.param(
        *(part[choice] for part, choice in zip(PARTS, choices, strict=True)),
        marks=[] if has_every_pair(choices) else pytest.mark.slow,
    )
    for choices in itertools.product([0, 1], repeat=6)
]


@pytest.mark.parametrize(("returns", "noisy_std", "dueling", "double", "exponent", "objective"), COMBINATIONS)
def test_all_combinations_of_parts_learn(returns, noisy_std, dueling, double, exponent, objective):
    agent = tiny_rainbow(
        tiny_mlr() if objective else None,
        returns=returns,
        noisy_std=noisy_std,
        dueling=dueling,
        double=double,
        priority_exponent=exponent,
    )
    replay = lived_through(40, exponent=exponent)
    before = {name: p.detach().clone() for name, p in trained(agent).items()}
    for _ in range(2):
        metrics = agent.update(replay)
        assert all(value.isfinite() for value in metrics.values())
    for name, p in trained(agent).items():
        assert p.isfinite().all()
        assert not torch.equal(p, before[name]), f"{name} does not learn"
    assert agent.act(some_obs(3), explore=True, clock=at(0)).shape == (3,)
    assert agent.updates == 2


# ── Saving ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("objective", [None, tiny_mlr(momentum=0.5)], ids=["baseline", "mlr"])
def test_state_round_trips_and_the_next_updates_are_bit_equal(objective: MLRConfig | None):
    """At a target network and noise of their own, in the middle of both schedules."""
    schedules = {"target_every": 3, "epsilon": 0.5, "epsilon_decisions": 8, "warmup_decisions": 0}
    first, second = tiny_rainbow(objective, **schedules), tiny_rainbow(objective, seed=8, **schedules)
    replay, obs = lived_through(), some_obs(30)
    for decision in range(4):
        first.act(obs, explore=True, clock=at(decision))
        first.update(replay)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.updates == 4
    state, seen = copy.deepcopy(replay.state_dict()), []
    for agent in (first, second):
        replay.load_state_dict(copy.deepcopy(state))
        torch.manual_seed(5)
        lives = [(agent.act(obs, explore=True, clock=at(n)).tolist(), agent.update(replay)) for n in range(4, 7)]
        seen.append([(actions, {name: value.item() for name, value in metrics.items()}) for actions, metrics in lives])
    assert seen[0] == seen[1]
    assert same(all_values(first), all_values(second))


def test_a_state_does_not_hold_what_is_only_borrowed():
    agent = tiny_rainbow(tiny_mlr())
    names = set(agent.state_dict()["modules"]["objective"])
    assert not any(name.startswith("target.projection") for name in names)
    held = [module for module in agent.objective.modules() if isinstance(module, Momentum)]
    assert len(held) == 2


# ── Refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("layer", [0, 2])
def test_a_weight_of_the_encoder_that_is_not_a_number_stops_the_next_update(layer: int):
    agent = tiny_rainbow(tiny_mlr())
    with torch.no_grad():
        agent.encoder.convolutions[layer].weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match="The Q loss is nan"):
        agent.update(lived_through())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda agent: agent.head.last[1].weight, "The Q loss is nan at update 1; the weights were left as they were"),
        (lambda agent: agent.objective.decoder.blocks[0].query.weight, "The gradient of the loss is nan at update 1"),
        (lambda agent: agent.objective.target.prediction.weight, "The gradient of the loss is nan at update 1"),
    ],
    ids=["head", "decoder", "prediction"],
)
def test_what_is_not_finite_stops_before_the_weights_change(broken, message: str):
    agent, replay = tiny_rainbow(tiny_mlr()), lived_through()
    agent.update(replay)
    with torch.no_grad():
        broken(agent).fill_(math.nan)
    before = {name: p.detach().clone() for name, p in trained(agent).items()}
    targets = values(agent.target_encoder)
    with pytest.raises(FloatingPointError, match=message):
        agent.update(replay)
    for name, p in trained(agent).items():
        torch.testing.assert_close(p.detach(), before[name], atol=0, rtol=0, equal_nan=True)
    assert same(values(agent.target_encoder), targets)
    assert agent.updates == 1


def test_a_q_loss_that_is_not_finite_leaves_the_priorities_as_they_were():
    agent, replay = tiny_rainbow(), lived_through()
    nn.init.constant_(agent.head.last[0].bias, math.nan)
    before = replay.state_dict()["leaf"]
    with pytest.raises(FloatingPointError):
        agent.update(replay)
    assert (replay.state_dict()["leaf"] == before).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"atoms": 1}, "atoms=1 must be at least 2; use returns=scalar for no distribution"),
        ({"hidden": 0}, "hidden=0 must be positive"),
        ({"support": -1.0}, "support=-1.0 must be positive"),
        ({"updates_per_decision": 0}, "updates_per_decision=0 must be positive"),
        ({"batch_size": 0}, "batch_size=0 must be positive"),
        ({"n_step": 0}, "n_step=0 must be positive"),
        ({"learning_rate": -1e-4}, "learning_rate=-0.0001 must be positive"),
        ({"adam_epsilon": 0.0}, "adam_epsilon=0.0 must be positive"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0 must be positive"),
        ({"target_every": 0}, "target_every=0 must be positive"),
        ({"correction_updates": 0}, "correction_updates=0 must be positive"),
        ({"clips": 0}, "clips=0 must be positive"),
        ({"micro_batch": 0}, "micro_batch=0 must be positive"),
        ({"noisy_std": -0.1}, "noisy_std=-0.1 must be positive"),
        ({"priority_exponent": -0.5}, "priority_exponent=-0.5 must be positive"),
        ({"discount": 1.5}, r"discount=1.5 must lie in \[0, 1\]"),
        ({"correction": -0.1}, r"correction=-0.1 must lie in \[0, 1\]"),
        ({"epsilon": 2.0}, r"epsilon=2.0 must lie in \[0, 1\]"),
        ({"epsilon_decisions": -1}, "epsilon_decisions and warmup_decisions must not be negative"),
        ({"warmup_decisions": -1}, "epsilon_decisions and warmup_decisions must not be negative"),
        ({"returns": "quantile"}, "returns='quantile' is not a choice of RainbowConfig"),
    ],
    ids=str,
)
def test_an_impossible_config_is_refused(change: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        tiny_config(**change)


def test_an_encoder_has_as_many_kernels_and_strides_as_layers():
    for change in ({"filters": (8, 8)}, {"kernels": (8, 4)}, {"strides": (4,)}):
        with pytest.raises(ValueError, match="must be equally long"):
            NatureEncoderConfig(**change)  # type: ignore[arg-type]


def test_the_encoders_config_reaches_the_encoder():
    encoder = NatureEncoderConfig(filters=(8, 4), kernels=(4, 2), strides=(4, 2)).build((STACK, SIZE, SIZE))
    assert isinstance(encoder, NatureEncoder)
    assert encoder.feature_shape == (4, 2, 2)  # 16 → 4 → 2


def test_each_agent_refuses_the_others_actions_and_names_it():
    with pytest.raises(ValueError, match=r"takes continuous ones. Use agent kind sac"):
        tiny_config().build(replace(SPACES, discrete=False), None, CPU)
    with pytest.raises(ValueError, match=r"takes discrete ones. Use agent kind rainbow"):
        SACConfig().build(SPACES, None, CPU)


def test_an_exponent_beyond_1_is_refused():
    with pytest.raises(ValueError, match=r"priority_exponent=2.0 must lie in \[0, 1\]"):
        RainbowConfig(priority_exponent=2.0)


@pytest.mark.parametrize(
    "layers", [{"filters": (0, 8, 8)}, {"strides": (0, 2, 1)}, dict.fromkeys(("filters", "kernels", "strides"), ())]
)
def test_an_encoder_without_layers_or_with_empty_ones_is_refused(layers):
    with pytest.raises(ValueError, match="at least one entry each, all at least 1"):
        NatureEncoderConfig(**layers)
