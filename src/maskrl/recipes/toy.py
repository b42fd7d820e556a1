"""The toy suite: every part of a run, in seconds, without a simulator."""

from maskrl.agents.sac import ControlEncoderConfig, SACConfig
from maskrl.envs.toy import ToyControl
from maskrl.experiments.recipe import Evaluation, Method, Recipe, without_objective
from maskrl.nn.augment import AugmentConfig
from maskrl.objectives.base import AuxiliaryConfig
from maskrl.objectives.mlr import MaskConfig, MLRConfig

TASKS = ("reach",)


def recipe(task: str, method: Method = "mlr") -> Recipe:
    """A toy task for SAC. There is but one profile, and the paper has no such task."""
    assert task == "reach"
    full = Recipe(
        name=f"toy/{task}",
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
        frames=3000,
        evaluation=Evaluation(every=500, episodes=5),
        checkpoint_every=500,
        threads=1,
    )
    return full if method == "mlr" else without_objective(full)
