"""The toy suite: every part of a run, in seconds, without a simulator."""

from maskrl.agents.rainbow import NatureEncoderConfig, RainbowConfig
from maskrl.agents.sac import ControlEncoderConfig, SACConfig
from maskrl.envs.toy import ToyArcade, ToyControl
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.masking import MaskConfig
from maskrl.objectives.curl import CURLConfig
from maskrl.objectives.mlr import MLRConfig
from maskrl.objectives.step import AuxiliaryConfig
from maskrl.recipes.schema import AnyObjective, Budget, Evaluation, Profile, Recipe, with_objective

TASKS = ("reach", "catch")
AGENTS: dict[str, tuple[str, ...]] = {"sac": (), "rainbow": ()}


def objectives(task: str, profile: Profile = "lite") -> dict[str, AnyObjective]:
    """The objectives by name."""
    recipe = MAKERS[task]()
    assert recipe.objective is not None
    curl = {"curl": CURLConfig(augment=recipe.agent.augment)} if task == "reach" else {}
    return {"mlr": recipe.objective, **curl}


def recipe(task: str, profile: Profile = "lite", agent: str | None = None, objective: str | None = "mlr") -> Recipe:
    """A toy task: reach for SAC, catch for Rainbow. It is always the lite profile: the paper has no such task."""
    full = MAKERS[task]()
    if agent not in (None, full.agent.kind):
        raise ValueError(f"toy/{task} is for agent {full.agent.kind}: agent {agent!r} cannot act there.")
    return with_objective(full, None if objective is None else objectives(task)[objective])


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
            batch_size=128,  # for so small a network hardly dearer than 32
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
