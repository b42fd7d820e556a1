"""maskrl: sample-efficient reinforcement learning from pixels by Mask-based Latent Reconstruction (MLR)."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maskrl.nn.augment import AugmentConfig
    from maskrl.nn.clip import Clip
    from maskrl.nn.encoders import ControlEncoder, Encoder, NatureEncoder
    from maskrl.nn.masking import CubeMasker
    from maskrl.objectives.base import AuxiliaryStep, Host, Loss, Objective
    from maskrl.objectives.mlr import MLR, MaskConfig, MLRConfig
    from maskrl.runs.loggers import Logger

__version__ = "0.1.0"

__all__ = [
    "MLR",
    "AugmentConfig",
    "AuxiliaryStep",
    "Clip",
    "ControlEncoder",
    "CubeMasker",
    "Encoder",
    "Host",
    "Logger",
    "Loss",
    "MLRConfig",
    "MaskConfig",
    "NatureEncoder",
    "Objective",
]

# Imported when first asked for: `maskrl --help` must not wait for torch.
_HOMES = {
    "maskrl.nn.augment": ("AugmentConfig",),
    "maskrl.nn.clip": ("Clip",),
    "maskrl.nn.encoders": ("ControlEncoder", "Encoder", "NatureEncoder"),
    "maskrl.nn.masking": ("CubeMasker",),
    "maskrl.objectives.base": ("AuxiliaryStep", "Host", "Loss", "Objective"),
    "maskrl.objectives.mlr": ("MLR", "MaskConfig", "MLRConfig"),
    "maskrl.runs.loggers": ("Logger",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            value: object = getattr(import_module(home), name)
            globals()[name] = value  # the next look-up does not come here
            return value
    raise AttributeError(f"module 'maskrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
