"""A recipe's encoder as a features extractor of stable-baselines3."""

from typing import Any

import gymnasium as gym
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

from maskrl.agents.encoders import EncoderConfig


class RecipeEncoder(BaseFeaturesExtractor):
    def __init__(self, observation_space: gym.Space[Any], encoder: EncoderConfig) -> None:
        channels, height, width = observation_space.shape or ()
        built = encoder.build((channels, height, width))
        super().__init__(observation_space, built.latent_dim)
        self.encoder = built

    def forward(self, observations: Tensor) -> Tensor:
        latents: Tensor = self.encoder(observations)
        return latents
