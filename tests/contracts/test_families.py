"""Every objective, agent and environment of ours passes the checks that a newcomer can run; planted defects do not.

Loggers have a file of their own, `test_loggers.py`; the variants of MLR are in `test_objectives.py`.
"""

import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import own_env
from builders import require_drawing, tiny_mask, tiny_mlr
from maskrl.agents.base import AgentConfig, Spaces
from maskrl.agents.drqv2 import DrQv2Config
from maskrl.agents.rainbow import NatureEncoderConfig, RainbowConfig
from maskrl.agents.sac import ControlEncoderConfig, SACConfig
from maskrl.envs import AnyEnv, Atari, DMControl, Gym, ToyArcade, ToyControl
from maskrl.envs.base import EnvConfig
from maskrl.nn.augment import Augment, AugmentConfig, View
from maskrl.nn.clip import over_time
from maskrl.nn.masking import MaskConfig
from maskrl.nn.momentum import Momentum
from maskrl.objectives.autoencoder import AutoencoderConfig
from maskrl.objectives.base import Host, Loss, Material, Needs, Objective, ObjectiveConfig, Views
from maskrl.objectives.curl import CURLConfig
from maskrl.objectives.mooss import MOOSSConfig
from maskrl.objectives.playvirtual import PlayVirtualConfig
from maskrl.objectives.spr import SPRConfig
from maskrl.recipes.schema import AnyAgent, AnyObjective, TwoObjectives, members_of
from maskrl.testing import check_agent, check_env, check_objective

# ── Objectives ────────────────────────────────────────────────────────────────────────────────────────────────────────

CROPPED = AugmentConfig(crop=24, intensity=0.0)
WALK = MaskConfig(strategy="walk", cube=(4, 6, 6))
OBJECTIVES: list[ObjectiveConfig] = [
    tiny_mlr(),
    CURLConfig(augment=CROPPED),
    CURLConfig(augment=CROPPED, shares_view=False, head=(8, 4), momentum=0.9, scale=0.1, joins_priorities=True),
    AutoencoderConfig(),
    SPRConfig(steps=3, hidden=8, head_width=8, augment=CROPPED),
    SPRConfig(steps=2, hidden=8, augment=CROPPED, projection="q", prediction="linear", shares_view=True),
    PlayVirtualConfig(steps=3, hidden=8, head_width=8, augment=CROPPED, cycle_steps=2, cycles=2),
    MOOSSConfig(clip_length=8, mask=WALK, augment=CROPPED, heads=2, head_width=8, levels=3),
    TwoObjectives(
        first=tiny_mlr(weight=0.5), second=SPRConfig(steps=3, hidden=8, head_width=8, augment=CROPPED, weight=2.0)
    ),
]


def test_every_objective_of_a_recipe_is_checked():
    assert {type(config) for config in OBJECTIVES} == set(members_of(AnyObjective))


@pytest.mark.parametrize("config", OBJECTIVES, ids=lambda config: config.kind)
def test_every_objective_keeps_its_contract(config: ObjectiveConfig):
    check_objective(config)


@dataclass(frozen=True)
class PlainViews(Views):
    obs: View
    target: View


class Plain(Objective[PlainViews]):
    """Match the slow encoder's states of another view; without a defect."""

    name = "plain"

    def __init__(self, host: Host, augment: Augment) -> None:
        super().__init__(host, needs=Needs(clip_length=3))
        self.augment, self.slow = augment, Momentum(host.encoder, 0.9)

    @torch.no_grad()
    def views(self, material: Material) -> PlainViews:
        obs, dtype = self.clip_of(material).obs, self.clip_of(material).actions.dtype
        return PlainViews(self.augment(obs, dtype), self.augment(obs, dtype))

    def targets(self, views: PlainViews) -> Tensor:
        return over_time(self.slow, views.target.pixels())

    def loss(self, views: PlainViews) -> Loss:
        states = over_time(self.host.encoder, views.obs.pixels())
        per_clip = (states - self.targets(views)).square().mean(dim=(1, 2))
        return Loss(per_clip, {"plain/loss": per_clip.detach().mean()})


class Coupled(Plain):
    def loss(self, views: PlainViews) -> Loss:
        states = over_time(self.host.encoder, views.obs.pixels())
        per_clip = (states - states.mean(dim=0)).square().mean(dim=(1, 2))  # the mean of the batch
        return Loss(per_clip, {})


class TrainsItsCopy(Plain):
    def __init__(self, host: Host, augment: Augment) -> None:
        super().__init__(host, augment)
        self.slow.copy.requires_grad_(True)

    def targets(self, views: PlainViews) -> Tensor:
        return over_time(self.slow.copy, views.target.pixels())

    def own_parameters(self) -> list[nn.Parameter]:
        return []


class TrainsTheTargetEncoder(Plain):
    def targets(self, views: PlainViews) -> Tensor:
        assert self.host.target_encoder is not None
        return over_time(self.host.target_encoder, views.target.pixels())


class Reinitialises(Plain):
    def __init__(self, host: Host, augment: Augment) -> None:
        nn.init.orthogonal_(host.encoder.linear.weight)  # type: ignore[union-attr, arg-type]
        super().__init__(host, augment)


class LeakyViews(Plain):
    @torch.no_grad()
    def views(self, material: Material) -> PlainViews:
        torch.rand(1)  # from the generator that the agent's own noise comes from
        return super().views(material)


class LeakyLoss(Plain):
    def loss(self, views: PlainViews) -> Loss:
        loss = super().loss(views)
        return loss._replace(per_clip=loss.per_clip * torch.rand(()))


class TimeFirst(Plain):
    @torch.no_grad()
    def views(self, material: Material) -> PlainViews:
        views = super().views(material)
        turned = View(views.obs.obs.transpose(0, 1), views.obs.gain.T)
        return PlainViews(turned, View(views.target.obs.transpose(0, 1), views.target.gain.T))


class Registers(Plain):
    def __init__(self, host: Host, augment: Augment) -> None:
        super().__init__(host, augment)
        self.encoder = host.encoder


@dataclass(frozen=True, kw_only=True)
class PlainConfig(ObjectiveConfig):
    kind: Literal["plain"] = "plain"
    made: Any = Plain
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig(crop=24))

    @property
    def needs(self) -> Needs:
        return Needs(clip_length=3)

    def build(self, host: Host) -> Objective[Any]:
        objective: Objective[Any] = self.made(host, self.augment.build(host.generator))
        return objective


def test_an_objective_without_a_defect_passes():
    check_objective(PlainConfig())


@pytest.mark.parametrize(
    ("defect", "words"),
    [
        (Coupled, "separable = False"),
        (TrainsItsCopy, "slow copy"),
        (TrainsTheTargetEncoder, "slow copy"),
        (Reinitialises, "must not change it"),
        (LeakyViews, "torch's own generator"),
        (LeakyLoss, "torch's own generator"),
        (TimeFirst, "first axis"),
        (Registers, "Borrowed"),
    ],
)
def test_a_planted_defect_is_found(defect: Any, words: str):
    with pytest.raises(AssertionError, match=words):
        check_objective(PlainConfig(made=defect))


# ── Agents ────────────────────────────────────────────────────────────────────────────────────────────────────────────

CONTROL, ARCADE = Spaces((9, 28, 28), 2, discrete=False), Spaces((4, 28, 28), 3, discrete=True)
SAC = SACConfig(
    encoder=ControlEncoderConfig(filters=4, latent_dim=10, strides=(2, 2)),
    hidden=16,
    augment=AugmentConfig(crop=24, intensity=0.0),
    batch_size=8,
    warmup_decisions=5,
)
RAINBOW = RainbowConfig(
    encoder=NatureEncoderConfig(filters=(4, 4), kernels=(4, 3), strides=(4, 2)),
    hidden=8,
    augment=AugmentConfig(crop=None, shift=1),
    batch_size=8,
    n_step=3,
    warmup_decisions=5,
    clips=3,
)
DRQV2 = DrQv2Config(
    encoder=ControlEncoderConfig(filters=4, latent_dim=10, strides=(2, 2), convolution_init="orthogonal", squash=True),
    hidden=16,
    augment=AugmentConfig(crop=24, intensity=0.0),
    batch_size=8,
    warmup_decisions=5,
)
SHIFTED = AugmentConfig(crop=None, shift=1)
SPR_ON_MAPS = {"transition": "map", "projection": "q", "prediction": "linear", "momentum": 0.0, "shares_view": True}
FOR_RAINBOW: list[ObjectiveConfig] = [
    CURLConfig(when=None, augment=SHIFTED, shares_view=False, head=(8, 4), momentum=0.9, joins_priorities=True),
    SPRConfig(steps=2, augment=SHIFTED, momentum_init="copy", **SPR_ON_MAPS),
    PlayVirtualConfig(steps=2, augment=SHIFTED, momentum_init="copy", cycle_steps=2, cycles=1, **SPR_ON_MAPS),
]
MLR_FOR_RAINBOW = tiny_mlr(augment=AugmentConfig(crop=None, shift=1), projection="q", prediction="linear")
AGENTS: list[tuple[AgentConfig, Spaces, int, list[ObjectiveConfig | None]]] = [
    (SAC, CONTROL, 3, [None, tiny_mlr(mask=tiny_mask()), OBJECTIVES[1], *OBJECTIVES[3:5], *OBJECTIVES[6:]]),
    (replace(SAC, views=2, burst=3), CONTROL, 3, [None]),
    (RAINBOW, ARCADE, 4, [None, MLR_FOR_RAINBOW, *FOR_RAINBOW]),
    (replace(RAINBOW, priority="cross_entropy", stratified=True), ARCADE, 4, [None]),
    (DRQV2, CONTROL, 3, [None, tiny_mlr(mask=tiny_mask()), OBJECTIVES[4]]),
]


def test_every_agent_of_a_recipe_is_checked():
    assert {type(config) for config, *_ in AGENTS} == set(members_of(AnyAgent))


@pytest.mark.parametrize(
    ("config", "spaces", "stack", "objectives"), AGENTS, ids=lambda value: getattr(value, "kind", "")
)
def test_every_agent_keeps_its_contract(
    config: AgentConfig, spaces: Spaces, stack: int, objectives: list[ObjectiveConfig | None]
):
    for objective in objectives:
        check_agent(config, spaces, objective, stack=stack)


# ── Environments ──────────────────────────────────────────────────────────────────────────────────────────────────────

ENVS: list[EnvConfig] = [
    ToyControl(),
    ToyArcade(),
    Atari(task="breakout", size=42),
    DMControl(task="cartpole-swingup", action_repeat=8, size=32, shadow_size=512),
    Gym.named(f"{own_env.__file__}:make_env"),
]


def test_every_environment_of_a_recipe_is_checked():
    assert {type(config) for config in ENVS} == set(members_of(AnyEnv))


@pytest.mark.parametrize("config", ENVS, ids=lambda config: config.kind)
def test_every_environment_keeps_its_contract(config: EnvConfig):
    if config.renderer() is not None or config.kind == "dmcontrol":
        require_drawing()
    check_env(config)


def test_an_environment_that_forgets_its_seed_is_found(monkeypatch: pytest.MonkeyPatch):
    make, made = ToyControl.make, []

    def other_every_time(self: ToyControl, *, seed: int, training: bool) -> Any:
        env = make(self, seed=seed, training=training)
        reset, shift = env.reset, len(made)
        made.append(env)
        env.reset = lambda *, seed=None, options=None: reset(seed=seed + shift, options=options)  # type: ignore[operator]
        return env

    monkeypatch.setattr(ToyControl, "make", other_every_time)
    with pytest.raises(AssertionError, match="resumes will not be exact"):
        check_env(copy.copy(ToyControl()))
