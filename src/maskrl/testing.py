"""Checks for your own classes: whether an objective, an agent, an environment or a logger fulfils its contract.

    from maskrl.testing import check_objective

    def test_my_objective():
        check_objective(MyConfig())

Each raises an AssertionError that says what was seen and what was expected. The project's own classes pass the same checks.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from maskrl.agents.base import AgentConfig, Spaces
from maskrl.clock import Clock
from maskrl.envs.base import EnvConfig, episode_seed
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.clip import Clip
from maskrl.nn.encoders import ControlEncoder
from maskrl.nn.momentum import Momentum
from maskrl.objectives.base import Host, Material, Needs, Objective, ObjectiveConfig, PolicyBatch
from maskrl.objectives.step import AuxiliaryConfig, AuxiliaryStep
from maskrl.replay.buffer import Replay
from maskrl.runs.loggers import Logger, Loggers

__all__ = ["check_agent", "check_env", "check_logger", "check_objective", "tiny_host", "tiny_material"]


COUNT = 5  # clips or observations for the check of an objective


def _require(holds: Any, words: str) -> None:
    if not holds:
        raise AssertionError(words)


# ── Objectives ────────────────────────────────────────────────────────────────────────────────────────────────────────


def tiny_host(*, size: int = 24, action_dim: int = 2) -> Host:
    """A host with a small encoder, slow encoder and Q projection, in double precision, with its own generator."""
    encoder = ControlEncoder((3, size, size), filters=4, latent_dim=10)
    for layer in encoder.convolutions[::2]:  # type: ignore[index]
        layer.reset_parameters()  # torch's default weights: a few delta-orthogonal filters may all be dead
    encoder.double()
    return Host(
        encoder,
        latent_dim=10,
        action_dim=action_dim,
        q_projection=nn.Linear(10, 6).double(),
        obs_shape=(3, size, size),
        target_encoder=copy.deepcopy(encoder),
        generator=torch.Generator().manual_seed(1),
    )


def tiny_material(needs: Needs, *, frame: int = 28, size: int = 24, action_dim: int = 2) -> Material:
    """Random clips and observations with 3 channels, as far as `needs` names them."""
    clip = batch = None
    if needs.clip_length:
        obs = torch.randint(256, (COUNT, needs.clip_length, 3, frame, frame), dtype=torch.uint8)
        clip = Clip(obs, torch.rand(COUNT, needs.clip_length, action_dim, dtype=torch.float64) * 2 - 1)
    if needs.policy_batch:
        obs = torch.randint(256, (COUNT, 3, frame, frame), dtype=torch.uint8)
        crop = None if frame == size else size
        batch = PolicyBatch(obs, AugmentConfig(crop=crop, intensity=0.0).build()(obs, torch.float64))
    return Material(clip, batch)


def check_objective(config: ObjectiveConfig, *, frame: int = 28, size: int = 24) -> None:
    """Check an objective on small random data: frames of `frame` pixels, of which the encoder sees `size`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)  # always the same weights and data: a few filters drawn by chance may all be dead
        _check_objective(config, frame, size)


def _check_objective(config: ObjectiveConfig, frame: int, size: int) -> None:
    needs = config.needs
    host, material = tiny_host(size=size), tiny_material(needs, frame=frame, size=size)
    objective = _built_without_a_trace(config, host)
    _require(objective.needs.clip_length == needs.clip_length, "The config and the objective need different clips.")
    _check_randomness(objective, material)
    _check_loss(objective, material)
    _check_gradients(objective, material)
    _check_groups(objective)
    _check_pieces(objective, material)
    _check_state(config, host, material, size)


def _built_without_a_trace(config: ObjectiveConfig, host: Host) -> Objective[Any]:
    lent = [module for module in (host.encoder, host.target_encoder, host.q_projection) if module is not None]
    before = copy.deepcopy([module.state_dict() for module in lent])
    objective = config.build(host)
    for module, state in zip(lent, before, strict=True):
        for name, tensor in module.state_dict().items():
            _require(
                torch.equal(tensor, state[name]),
                f"build() changed {name} of the {type(module).__name__} that the host lent: it must not change it.",
            )
    own = {id(parameter) for parameter in objective.parameters()}
    registered = [type(module).__name__ for module in lent if any(id(p) in own for p in module.parameters())]
    _require(
        not registered,
        f"The objective registers {registered} of the host as its own: wrap it in maskrl.nn.momentum.Borrowed.",
    )
    return objective


def _check_randomness(objective: Objective[Any], material: Material) -> None:
    generator = objective.host.generator
    assert generator is not None
    state = generator.get_state()
    with _default_generator_untouched("views"):
        first = objective.views(material)
    generator.set_state(state)
    second = objective.views(material)
    for (name, one), (_, other) in zip(_tensors(first), _tensors(second), strict=True):
        _require(torch.equal(one, other), f"views() gives another {name} from the same state of the host's generator.")
        _require(not one.requires_grad, f"views().{name} carries a gradient: views() must not.")
        _require(
            one.shape[:1] in ((COUNT,), (1,)),
            f"views().{name} has shape {tuple(one.shape)}: its first axis must be the {COUNT} clips, or 1 if all share it.",
        )
    with _default_generator_untouched("loss"):
        losses = [objective.loss(first).per_clip for _ in range(2)]
    _require(torch.equal(losses[0], losses[1]), "loss() differs between two calls on the same views: it must not draw.")


@contextmanager
def _default_generator_untouched(name: str) -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    _require(
        torch.equal(before, torch.get_rng_state()),
        f"{name}() draws from torch's own generator. Draw only in views(), from Host.generator, so that equal seeds of two "
        "methods stay paired.",
    )


def _check_loss(objective: Objective[Any], material: Material) -> None:
    views = objective.views(material)
    loss, count = objective.loss(views), len(views)
    _require(
        loss.per_clip.shape == (count,),
        f"Loss.per_clip has shape {tuple(loss.per_clip.shape)}, expected ({count},): one number per clip.",
    )
    _require(loss.per_clip.isfinite().all(), "Loss.per_clip is not finite on random data.")
    if loss.priorities is not None:
        fine = loss.priorities.shape == (count,) and not loss.priorities.requires_grad
        _require(fine, f"Loss.priorities must be ({count},) without a gradient.")
    names = {part.name for part in objective.modules() if isinstance(part, Objective)}
    for name, value in loss.metrics.items():
        _require(name.partition("/")[0] in names, f"The metric {name!r} must begin with {objective.name + '/'!r}.")
        _require(value.ndim == 0 and not value.requires_grad, f"The metric {name!r} must be a detached scalar.")


def _check_gradients(objective: Objective[Any], material: Material) -> None:
    host = objective.host
    objective.zero_grad()
    host.encoder.zero_grad()
    torch.autograd.backward(objective(material.clip, material.batch).per_clip.mean())
    reached = any(p.grad is not None and p.grad.abs().sum() > 0 for p in host.encoder.parameters())
    _require(reached, "The loss has no gradient at the encoder, so it cannot train it.")
    copies = [module for module in objective.modules() if isinstance(module, Momentum)]
    slow: list[nn.Module] = [*(copy.copy for copy in copies), *([host.target_encoder] if host.target_encoder else [])]
    for module in slow:
        _require(
            all(p.grad is None for p in module.parameters()),
            f"A gradient reaches a slow copy ({type(module).__name__}). Compute its output without a gradient.",
        )
    _require(
        not any(p.requires_grad for module in copies for p in module.copy.parameters()),
        "A momentum copy is trainable: an optimiser would change it. Keep its requires_grad False.",
    )
    before = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
    objective.update_momentum()
    moved = [name for name, tensor in objective.state_dict().items() if not torch.equal(tensor, before[name])]
    strays = [name for name in moved if ".copy." not in f".{name}."]
    _require(not strays, f"update_momentum() moves {strays}, which are not momentum copies.")


def _check_groups(objective: Objective[Any]) -> None:
    grouped = [id(parameter) for group in objective.parameter_groups() for parameter in group.parameters]
    own = [id(parameter) for parameter in objective.own_parameters()]
    _require(
        sorted(grouped) == sorted(own),
        f"parameter_groups() has {len(grouped)} parameters, {len(set(grouped) & set(own))} of the {len(own)} that the "
        "objective trains: each must be in exactly one group.",
    )


def _check_pieces(objective: Objective[Any], material: Material) -> None:
    """Check that pieces of two clips give the whole batch's gradient, and that separable clips do not affect each other."""
    views = objective.views(material)
    whole, pieces = (_gradient(objective, views, size) for size in (None, 2 * max(1, objective.needs.clip_length)))
    for name, expected in whole.items():
        _require(
            torch.allclose(pieces[name], expected, rtol=1e-8, atol=1e-12),
            f"The gradient of {name} differs between the whole batch and pieces of it. If a term of the loss couples two clips "
            "(contrast, batch norm), set separable = False.",
        )
    if not objective.separable:
        return
    alone = torch.cat([objective.loss(piece).per_clip for piece in views.split(1)])
    _require(
        torch.allclose(alone, objective.loss(views).per_clip, rtol=1e-8, atol=1e-12),
        "A clip's loss differs alone and in its batch, so it depends on other clips: set separable = False.",
    )


def _gradient(objective: Objective[Any], views: Any, micro_batch: int | None) -> dict[str, Tensor]:
    trained = {f"host[{place}]": p for place, p in enumerate(objective.host.parameters())}
    trained |= dict(objective.named_parameters())
    for parameter in trained.values():
        parameter.grad = None
    objective.add_gradient(views, micro_batch=micro_batch)
    return {name: p.grad.clone() for name, p in trained.items() if p.grad is not None}


def _check_state(config: ObjectiveConfig, host: Host, material: Material, size: int) -> None:
    """Check that a second objective that loads the state takes the same next step."""
    step = AuxiliaryStep(config.build(host), AuxiliaryConfig(warmup_updates=2))
    step(material.clip, material.batch)
    twin_host = tiny_host(size=size)
    for name in ("encoder", "target_encoder", "q_projection"):
        getattr(twin_host, name).load_state_dict(getattr(host, name).state_dict())
    twin = AuxiliaryStep(config.build(twin_host), AuxiliaryConfig(warmup_updates=2))
    twin.load_state_dict(copy.deepcopy(step.state_dict()))
    for one in (step, twin):
        generator = one.objective.host.generator
        assert generator is not None
        generator.manual_seed(7)
        one(material.clip, material.batch)
    for mine, other in zip(step.parameters, twin.parameters, strict=True):
        _require(torch.equal(mine, other), "After state_dict() and load_state_dict() the next step differs.")


def _tensors(views: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    for field in fields(views):
        value, name = getattr(views, field.name), f"{path}{field.name}"
        if isinstance(value, Tensor):
            yield name, value
        else:
            yield from _tensors(value, f"{name}.")


# ── Agents ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_agent(
    config: AgentConfig, spaces: Spaces, objective: ObjectiveConfig | None = None, *, stack: int = 3
) -> None:
    """Check an agent on a small replay of random transitions, with an objective if one is given."""
    replay = _random_replay(spaces, stack, config.replay_needs().priority_exponent)
    agent, twin = (config.build(spaces, objective, torch.device("cpu")) for _ in range(2))
    clock = Clock(0, config.warmup_decisions, 0, 0.0)
    obs = np.random.default_rng(0).integers(256, size=(2, *spaces.obs), dtype=np.uint8)

    best = [agent.policy().act(obs), agent.act(obs, explore=False, clock=clock)]
    _require(np.array_equal(best[0], best[1]), "The policy differs between two calls.")
    shape = (2,) if spaces.discrete else (2, spaces.action_dim)
    for actions in (best[0], agent.act(obs, explore=True, clock=clock)):
        _require(actions.shape == shape, f"Actions have shape {actions.shape}, expected {shape}.")
    _require(
        agent.updates_due(Clock(0, 0, 0, 0.0)) == 0 or not config.warmup_decisions, "Updates are due in the warm-up."
    )
    _require(agent.updates_due(clock) == config.updates_due(clock), "Agent and config disagree on the updates due.")

    for _ in range(2):
        metrics = agent.update(replay)
        _require(all(value.isfinite() for value in metrics.values()), f"An update gives metrics {metrics}.")
    _require(agent.updates == 2, f"After two updates, agent.updates is {agent.updates}.")
    twin.load_state_dict(copy.deepcopy(agent.state_dict()))
    ends = []
    for one in (agent, twin):
        torch.manual_seed(5)
        same = _random_replay(spaces, stack, config.replay_needs().priority_exponent)
        one.update(same)
        ends.append(torch.cat([parameter.detach().flatten() for parameter in one.policy().parameters()]))
    _require(torch.equal(*ends), "After state_dict() and load_state_dict() the next update differs.")
    _require(config.scaled(0.5).batch_size <= config.batch_size, "scaled(0.5) does not make the batch smaller.")
    _require(min(config.workload(objective, torch.device("cpu"))) > 0, "workload() must name observations.")


def _random_replay(spaces: Spaces, stack: int, priority_exponent: float | None) -> Replay:
    chance, (channels, height, width) = np.random.default_rng(0), spaces.obs
    replay = Replay(
        frame_shape=(channels // stack, height, width), action_dim=spaces.action_dim, frame_stack=stack, capacity=200,
        seed=0, discrete=spaces.discrete, priority_exponent=priority_exponent,
    )  # fmt: skip
    for _ in range(3):
        replay.begin_episode(chance.integers(256, size=spaces.obs, dtype=np.uint8))
        for step in range(40):
            obs, action = chance.integers(256, size=spaces.obs, dtype=np.uint8), spaces.random_action(chance)
            replay.add(spaces.as_vector(action), float(chance.normal()), obs, terminated=step == 39, truncated=False)
    return replay


# ── Environments ──────────────────────────────────────────────────────────────────────────────────────────────────────


def check_env(config: EnvConfig, *, decisions: int = 30) -> None:
    """Check an environment's config: spaces, stacks, and whether an episode depends only on its seed and actions."""
    first, again = (_played(config, decisions) for _ in range(2))
    for step, (one, other) in enumerate(zip(first, again, strict=True)):
        same = np.array_equal(one[0], other[0]) and one[1:] == other[1:]
        _require(same, f"Decision {step} differs after reset() with the same seed: resumes will not be exact.")
    obs = first[0][0]
    older, newest = np.split(obs, [-obs.shape[0] // config.frame_stack])
    expected = np.tile(newest, (config.frame_stack - 1, 1, 1)) if config.pad == "repeat" else np.zeros_like(older)
    _require(np.array_equal(older, expected), f"pad is {config.pad!r}, but the first stack is padded differently.")
    _require(obs.shape[1:] == (config.size, config.size), f"Frames are {obs.shape[1:]}, but size is {config.size}.")


def _played(config: EnvConfig, decisions: int) -> list[tuple[np.ndarray[Any, Any], float, bool, bool]]:
    env = config.make(seed=1, training=True)
    try:
        spaces, chance = Spaces.of(env), np.random.default_rng(2)
        obs, _ = env.reset(seed=episode_seed(1, 0))
        seen = [(obs, 0.0, False, False)]
        for _ in range(decisions):
            obs, reward, terminated, truncated, _ = env.step(spaces.random_action(chance))
            _require(obs.dtype == np.uint8 and obs.shape == spaces.obs, f"An observation is {obs.dtype} {obs.shape}.")
            seen.append((obs.copy(), float(reward), terminated, truncated))
            if terminated or truncated:
                break
        return seen
    finally:
        env.close()


# ── Loggers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_logger(make: Callable[[], Logger]) -> None:
    """Check a logger with the calls of a short run and of a continued one."""
    failures: list[str] = []
    for start in (0, 40):
        loggers = Loggers([make()], tell=lambda text, _: failures.append(text))
        loggers.write({}, Clock(start, start, 0, 0.0))
        loggers.write({"random/score": 1.0, "evaluation/score": 2.0}, Clock(start, start, 0, 1.0))
        for decision in range(start, start + 30):
            clock = Clock(decision, decision, decision, float(decision))
            loggers.write({"critic/loss": 0.5} if decision % 10 == 0 else {}, clock)
        loggers.note("A sentence.", clock)
        loggers.write({"evaluation/score": float("nan"), "training/return": 3.0}, clock)
        loggers.close()
        loggers.close()
    _require(not failures, f"The logger raised an error: {failures}")
