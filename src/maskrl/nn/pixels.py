"""From latent states back to observations.

Two decoders, because their sources differ: SAC+AE's scores were made with the encoder in reverse, and MLR's released code has a
decoder of its own. They share no layer.
"""

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from maskrl.nn.layers import orthogonal_init


class PixelDecoder(nn.Module):
    """Decode a latent state to an observation in [0, 1], for the MLR-Pixel ablation: (N, d) → (N, C, H, W).

    The layers are those of the unused decoder in the released code; 396 553 parameters for 50 → 9 × 84 × 84.
    """

    def __init__(self, latent_dim: int, obs_shape: tuple[int, int, int], *, filters: int = 32) -> None:
        super().__init__()
        channels, self.height, self.width = obs_shape
        # The map grows by 4, then by 2, and the last convolution removes 4 pixels: 11 → 44 → 88 → 84.
        rows, columns = math.ceil((self.height + 4) / 8), math.ceil((self.width + 4) / 8)
        self.layers = nn.Sequential(
            nn.Linear(latent_dim, filters * rows * columns),
            nn.Unflatten(1, (filters, rows, columns)),
            nn.Conv2d(filters, filters * 16, 3, padding=1),
            nn.PixelShuffle(4),
            nn.ReLU(),
            nn.Conv2d(filters, filters * 4, 3, padding=1),
            nn.PixelShuffle(2),
            nn.ReLU(),
            nn.ReflectionPad2d(1),
            nn.Conv2d(filters, channels, 7),
            nn.Tanh(),
        )

    def forward(self, states: Tensor) -> Tensor:
        pixels: Tensor = self.layers(states)
        return (pixels[..., : self.height, : self.width] + 1) / 2


class ReversedEncoder(nn.Module):
    """A `ControlEncoder` in reverse: (N, d) → (N, C, H, W). 2 029 545 parameters for 32 filters and 9 × 84 × 84.

    Delta-orthogonal kernels start with a nonzero centre only, so before training the last layer (stride 2) draws a quarter of the
    pixels and leaves the others at 0.
    """

    def __init__(
        self,
        latent_dim: int,
        obs_shape: tuple[int, int, int],
        feature_shape: tuple[int, int, int],
        strides: Sequence[int],
    ) -> None:
        super().__init__()
        channels, *sides = obs_shape
        filters = feature_shape[0]
        self.feature_shape, self.grow = feature_shape, nn.Linear(latent_dim, math.prod(feature_shape))
        layers: list[nn.Module] = []
        for number, stride in enumerate(strides):
            # Add back the border pixels that the encoder's stride cut off.
            missing = [(side - 3) % stride for side in sides]
            into = channels if number == 0 else filters
            layer = nn.ConvTranspose2d(filters, into, 3, stride, output_padding=(missing[0], missing[1]))
            layers = [layer, *([nn.ReLU()] if layers else []), *layers]
            sides = [(side - 3) // stride + 1 for side in sides]
        if feature_shape[1:] != tuple(sides):
            raise ValueError(
                f"The encoder's map is {feature_shape[1]} × {feature_shape[2]}, but of observations {obs_shape} it would be "
                f"{sides[0]} × {sides[1]}. Pass the obs_shape that the encoder was built for."
            )
        self.layers = nn.Sequential(*layers)
        orthogonal_init(self)

    def forward(self, states: Tensor) -> Tensor:
        maps = F.relu(self.grow(states)).view(-1, *self.feature_shape)
        drawn: Tensor = self.layers(maps)
        return drawn
