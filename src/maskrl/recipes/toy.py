"""The toy suite: complete runs in seconds, without a simulator."""

from dataclasses import replace

from maskrl.agents.drqv2 import ENCODER, DrQv2Config
from maskrl.agents.encoders import ControlEncoderConfig, NatureEncoderConfig
from maskrl.agents.rainbow import RainbowConfig
from maskrl.agents.sac import SACConfig
from maskrl.envs.toy import ToyArcade, ToyControl
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.masking import MaskConfig
from maskrl.objectives.autoencoder import AutoencoderConfig
from maskrl.objectives.curl import CURLConfig
from maskrl.objectives.mlr import MLRConfig
from maskrl.objectives.mooss import MOOSSConfig
from maskrl.objectives.playvirtual import PlayVirtualConfig
from maskrl.objectives.spr import SPRConfig
from maskrl.objectives.step import AuxiliaryConfig
from maskrl.recipes import atari, dmcontrol
from maskrl.recipes.overrides import with_known, with_overrides
from maskrl.recipes.schema import AnyObjective, Budget, Evaluation, Profile, Recipe, objective_named, with_objective
from maskrl.recipes.suggest import misfit

TASKS = ("reach", "catch")

# Named settings of agents, as differences: for reach those of DMControl and for catch those of Atari, except for sizes.
OWN = (
    *("agent.auxiliary.", "agent.encoder.squash", "agent.encoder.dropout", "agent.encoder.renormalise", "agent.views"),
    *("agent.priority=", "agent.stratified", "agent.noisy_std", "agent.encoder_momentum", "agent.temperature_"),
    *("objective.weight", "objective.momentum"),
)
ON_REACH = ("sac", "curl_sac", "playvirtual_sac", "spr_mean_sac", "mooss_sac", "sac_pixel", "drq_sac", "drqv2")
ON_CATCH = ("rainbow", "spr_rainbow", "spr_dropout", "curl_rainbow")
FITTING = {"toy/reach": ON_REACH, "toy/catch": ON_CATCH}
SMALL: dict[str, tuple[str, ...]] = {  # smaller sizes of the others' settings
    "mooss_sac": ("agent.encoder.latent_dim=64",),
    "sac_pixel": ("agent.burst=100", "agent.augment.crop=none"),
    "drq_sac": ("agent.augment.crop=none", "agent.augment.shift=2"),
    "drqv2": (),
}
AGENTS: dict[str, tuple[str, ...]] = {
    name: (*(line for line in suite.AGENTS[name] if line.startswith(OWN)), *SMALL.get(name, ()))
    for suite, known in ((dmcontrol, ON_REACH), (atari, ON_CATCH))
    for name in known
}


def objectives(task: str, profile: Profile = "lite") -> dict[str, AnyObjective]:
    """The objectives by name."""
    recipe = MAKERS[task]()
    mlr = recipe.objective
    assert isinstance(mlr, MLRConfig)
    length = recipe.frames / 2
    if task == "catch":
        known = atari.objectives("alien", "lite")
        curl, spr, virtual = known["curl"], known["spr"], known["playvirtual"]
        assert isinstance(curl, CURLConfig)
        assert isinstance(spr, SPRConfig)
        assert isinstance(virtual, PlayVirtualConfig)
        small = AugmentConfig(crop=28, enlarge=32, intensity=0.0)
        virtual = replace(virtual, every=mlr.every, weight=3.0, steps=3, augment=mlr.augment, cycle_steps=3, cycles=1)
        return {
            "mlr": mlr,
            "curl": replace(curl, every=mlr.every, augment=small, head=(64, 32)),
            "spr": replace(spr, every=mlr.every, weight=3.0, steps=3, augment=mlr.augment),
            "playvirtual": replace(virtual, ramp_length=length),
        }
    virtual = PlayVirtualConfig(augment=mlr.augment, steps=4, weight=4.0, hidden=128, cycle_steps=4, cycles=2)
    return {
        "mlr": mlr,
        "curl": CURLConfig(augment=recipe.agent.augment),
        "autoencoder": AutoencoderConfig(),
        "spr": SPRConfig(augment=mlr.augment, steps=4, weight=4.0, hidden=128),
        "playvirtual": replace(virtual, ramp_length=length),
        "mooss": MOOSSConfig(
            clip_length=8, mask=MaskConfig(strategy="walk", cube=(4, 7, 7)), augment=mlr.augment, levels=3
        ),
    }


def recipe(task: str, profile: Profile = "lite", agent: str | None = None, objective: str | None = "mlr") -> Recipe:
    """A toy task: reach for SAC, catch for Rainbow. Always in the lite profile, because the paper has no such task."""
    full = with_objective(MAKERS[task](), None)
    fitting = FITTING[f"toy/{task}"]
    if agent is not None and agent not in fitting:
        raise ValueError(misfit(full.name, full.agent.kind, agent, fitting))
    if agent not in (None, full.agent.kind):
        full = replace(full, agent=DRQV2) if agent == "drqv2" else full
        lines = [line.format(learning_rate=full.agent.learning_rate) for line in AGENTS[agent]]
        full = with_overrides(with_known(full, lines), [f"preset={agent}"])
    known = {name: dmcontrol.suited(known, full, patch=8) for name, known in objectives(task).items()}
    chosen = None if objective is None else objective_named(objective, known)
    return with_known(with_objective(full, chosen), AGENTS[agent or full.agent.kind], of="objective.")


def _reach() -> Recipe:
    return Recipe(
        name="toy/reach",
        profile="lite",
        env=ToyControl(),
        agent=SACConfig(
            encoder=ControlEncoderConfig(filters=16, strides=(2, 2), linear_init="truncated_normal"),
            hidden=128,
            augment=AugmentConfig(crop=28, intensity=0.0),
            warmup_decisions=300,
            batch_size=64,
            auxiliary=AuxiliaryConfig(clips=4, warmup_updates=500),
        ),
        objective=MLRConfig(clip_length=8, mask=MaskConfig(cube=(4, 8, 8)), augment=AugmentConfig(crop=28)),
        budget=Budget(frames=3000),
        evaluation=Evaluation(every=500, episodes=5),
        checkpoint_every=500,
        threads=1,
    )


def _catch() -> Recipe:
    return Recipe(
        name="toy/catch",
        profile="lite",
        env=ToyArcade(),
        agent=RainbowConfig(
            encoder=NatureEncoderConfig(filters=(16, 32), kernels=(4, 2), strides=(4, 2)),
            hidden=64,
            augment=AugmentConfig(crop=None, intensity=0.0),
            warmup_decisions=500,
            updates_per_decision=1,
            batch_size=128,  # hardly slower than 32 for a network this small
            n_step=3,
            learning_rate=1e-3,
            correction_updates=4000,
            clips=4,
        ),
        objective=MLRConfig(
            every=2,
            clip_length=8,
            mask=MaskConfig(cube=(4, 8, 8)),
            augment=AugmentConfig(crop=None, intensity=0.0),
            decoder_width=32,
            projection="q",
            prediction="linear",
            momentum=0.0,
            init="torch",
        ),
        budget=Budget(frames=4500),
        evaluation=Evaluation(every=500, episodes=10, side_by_side=10),
        checkpoint_every=500,
        threads=1,
    )


MAKERS = {"reach": _reach, "catch": _catch}

DRQV2 = DrQv2Config(
    encoder=replace(ENCODER, filters=16, strides=(2, 2)),
    hidden=128,
    augment=AugmentConfig(crop=None, shift=2, intensity=0.0),
    warmup_decisions=300,
    updates_per_decision=1,
    batch_size=128,
    n_step=1,
    learning_rate=1e-3,
    momentum=0.95,
    noise_decisions=800,
    auxiliary=AuxiliaryConfig(clips=4, learning_rate=1e-3, schedule="constant"),
)
