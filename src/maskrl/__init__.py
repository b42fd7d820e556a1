"""maskrl: sample-efficient reinforcement learning from pixels by Mask-based Latent Reconstruction (MLR)."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maskrl.nn.augment import AugmentConfig
    from maskrl.nn.clip import Clip
    from maskrl.nn.encoders import ControlEncoder, Encoder, NatureEncoder
    from maskrl.nn.masking import CubeMasker, MaskConfig
    from maskrl.objectives.base import Host, Loss, Objective
    from maskrl.objectives.mlr import MLR, MLRConfig
    from maskrl.objectives.step import AuxiliaryStep

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
    "maskrl.nn.masking": ("CubeMasker", "MaskConfig"),
    "maskrl.objectives.base": (
        "Group",
        "Host",
        "Loss",
        "Material",
        "Needs",
        "Objective",
        "ObjectiveConfig",
        "PolicyBatch",
    ),
    "maskrl.objectives.step": ("AuxiliaryConfig", "AuxiliaryStep"),
    "maskrl.objectives.mlr": ("MLR", "MLRConfig"),
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
