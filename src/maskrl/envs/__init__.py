"""Environments: configs that make a Gymnasium environment with uint8 observations (C, H, W). This package does not import torch.

A new suite is one file with such a config and one name in the union. Its simulator is imported when an environment is made, not
when the config is created.
"""

from maskrl.envs.atari import Atari
from maskrl.envs.dmcontrol import DMControl
from maskrl.envs.gym import Gym
from maskrl.envs.toy import ToyArcade, ToyControl

__all__ = ["AnyEnv", "Atari", "DMControl", "Gym", "ToyArcade", "ToyControl"]

AnyEnv = DMControl | Atari | ToyControl | ToyArcade | Gym
