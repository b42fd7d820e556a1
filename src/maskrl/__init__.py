"""maskrl: sample-efficient reinforcement learning from pixels, with representation objectives such as MLR beside the agent.

Train, read the scores, use the policy:

    import maskrl

    recipe = maskrl.recipe("toy/reach", "seed=3", method="mlr")   # or "dmcontrol/cartpole-swingup", "atari/pong"
    run = maskrl.train(recipe)            # the same call again continues it
    run.scores                            # one record per evaluation; run.frame() is a DataFrame
    policy = maskrl.load(run.path)        # needs no simulator
    policy.reset(); policy.act(frame)     # frame: uint8 (c, H, W)
    policy.encode(frames)                 # latent states
    maskrl.export(run.path, "policy.onnx")  # one file for onnxruntime

Use an objective in your own agent (needs only torch):

    host = maskrl.Host(encoder, latent_dim=50, action_dim=6)
    mlr = maskrl.MLRConfig().build(host)
    loss = mlr(maskrl.Clip(obs, actions)).per_clip.mean()    # add it to your loss, then mlr.update_momentum(); or
    metrics = maskrl.AuxiliaryStep(mlr)(clip)                # let it take its own step

To write your own objective, agent, environment or logger, subclass `Objective` and `ObjectiveConfig`, `Logger`, … and check it with
`maskrl.testing`. From a shell: `maskrl --help`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from maskrl import threads as threads  # before torch: it sets how torch's threads wait

if TYPE_CHECKING:
    from maskrl.api import Policy, Recipe, Run, check_env, export, load, recipe, train
    from maskrl.nn.augment import AugmentConfig, View
    from maskrl.nn.clip import Clip, over_time
    from maskrl.nn.encoders import ControlEncoder, Encoder, NatureEncoder
    from maskrl.nn.masking import CubeMasker, MaskConfig
    from maskrl.nn.momentum import Momentum
    from maskrl.objectives.base import (
        Group,
        Host,
        Loss,
        Material,
        Needs,
        Objective,
        ObjectiveConfig,
        PolicyBatch,
        Views,
    )
    from maskrl.objectives.contrast import Contrast
    from maskrl.objectives.door import host_for
    from maskrl.objectives.mlr import MLR, MLRConfig
    from maskrl.objectives.step import AuxiliaryConfig, AuxiliaryStep
    from maskrl.replay.clips import ClipStore
    from maskrl.runs.loggers import Logger

__version__ = "0.2.0"

# Imported at first use: `maskrl --help` must not wait for torch.
_HOMES = {
    "maskrl.api": ("Policy", "Recipe", "Run", "check_env", "export", "load", "recipe", "train"),
    "maskrl.nn.augment": ("AugmentConfig", "View"),
    "maskrl.nn.clip": ("Clip", "over_time"),
    "maskrl.nn.encoders": ("ControlEncoder", "Encoder", "NatureEncoder"),
    "maskrl.nn.masking": ("CubeMasker", "MaskConfig"),
    "maskrl.nn.momentum": ("Momentum",),
    "maskrl.objectives.base": (
        *("Group", "Host", "Loss", "Material", "Needs", "Objective", "ObjectiveConfig", "PolicyBatch", "Views"),
    ),
    "maskrl.objectives.contrast": ("Contrast",),
    "maskrl.objectives.door": ("host_for",),
    "maskrl.objectives.mlr": ("MLR", "MLRConfig"),
    "maskrl.objectives.step": ("AuxiliaryConfig", "AuxiliaryStep"),
    "maskrl.replay.clips": ("ClipStore",),
    "maskrl.runs.loggers": ("Logger",),
}

__all__ = [
    "MLR",
    "AugmentConfig",
    "AuxiliaryConfig",
    "AuxiliaryStep",
    "Clip",
    "ClipStore",
    "Contrast",
    "ControlEncoder",
    "CubeMasker",
    "Encoder",
    "Group",
    "Host",
    "Logger",
    "Loss",
    "MLRConfig",
    "MaskConfig",
    "Material",
    "Momentum",
    "NatureEncoder",
    "Needs",
    "Objective",
    "ObjectiveConfig",
    "Policy",
    "PolicyBatch",
    "Recipe",
    "Run",
    "View",
    "Views",
    "check_env",
    "export",
    "host_for",
    "load",
    "over_time",
    "recipe",
    "train",
]


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            value: object = getattr(import_module(home), name)
            globals()[name] = value  # so that the next look-up is direct
            return value
    raise AttributeError(f"module 'maskrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
