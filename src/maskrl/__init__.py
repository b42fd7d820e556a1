"""maskrl: sample-efficient reinforcement learning from pixels by Mask-based Latent Reconstruction (MLR)."""

from maskrl.nn.augment import AugmentConfig
from maskrl.nn.clip import Clip
from maskrl.nn.encoders import ControlEncoder, Encoder, NatureEncoder
from maskrl.nn.masking import CubeMasker
from maskrl.objectives.base import AuxiliaryStep, Host, Loss, Objective
from maskrl.objectives.mlr import MLR, MaskConfig, MLRConfig

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
