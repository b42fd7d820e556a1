"""Pixels to latent states. Encoders take floats in [0, 1]. The agent owns them; objectives only borrow them."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from maskrl.nn.layers import Convolutions, orthogonal_init, rescaled, truncated_normal_init


class Encoder(nn.Module):
    """An encoder in two halves: an agent may share the convolutions, and an objective may mask their maps."""

    convolutions: nn.Module
    latent_dim: int
    feature_shape: tuple[int, int, int]  # (F, h, w), what `features` returns for one observation
    latent_order: Tensor | None = None  # each latent unit's index in channels-first order; None: units have no order

    def features(self, pixels: Tensor) -> Tensor:
        """(N, C, H, W) in [0, 1] → (N, F, h, w)."""
        raise NotImplementedError

    def embed(self, features: Tensor) -> Tensor:
        """(N, F, h, w) → (N, d)."""
        raise NotImplementedError

    def forward(self, pixels: Tensor) -> Tensor:
        return self.embed(self.features(pixels))


class ControlEncoder(Encoder):
    """CURL's encoder: four 3 × 3 convolutions, a linear layer, a layer norm. 4 036 182 parameters at its defaults.

    `squash` adds a final tanh, as in SAC+AE, DrQ and DrQ-v2. `centre` subtracts ½ from the pixels, as DrQ-v2 does.
    """

    def __init__(
        self,
        obs_shape: tuple[int, int, int] = (9, 84, 84),
        *,
        filters: int = 64,
        latent_dim: int = 50,
        strides: Sequence[int] = (2, 1, 1, 1),
        convolution_init: Literal["delta_orthogonal", "orthogonal"] = "delta_orthogonal",
        linear_init: Literal["orthogonal", "truncated_normal"] = "orthogonal",
        squash: bool = False,
        centre: bool = False,
    ) -> None:
        super().__init__()
        self.latent_dim, self.centre = latent_dim, centre
        channels = [obs_shape[0], *[filters] * len(strides)]
        kernels = [(3, stride) for stride in strides]
        self.convolutions, self.feature_shape = _convolutions(obs_shape, channels, kernels)
        self.linear = nn.Linear(math.prod(self.feature_shape), latent_dim)
        self.norm = nn.LayerNorm(latent_dim)
        self.squash = nn.Tanh() if squash else nn.Identity()
        orthogonal_init(self, delta=convolution_init == "delta_orthogonal")
        if linear_init == "truncated_normal":
            truncated_normal_init(self.linear)

    def features(self, pixels: Tensor) -> Tensor:
        pixels = pixels - 0.5 if self.centre else pixels
        maps: Tensor = self.convolutions(pixels.contiguous(memory_format=torch.channels_last))
        return maps

    def embed(self, features: Tensor) -> Tensor:
        states: Tensor = self.squash(self.norm(self.linear(flat(features))))
        return states


class NatureEncoder(Encoder):
    """The DQN encoder: three convolutions, 77 984 parameters, its map rescaled to [0, 1] for every observation.

    Without `renormalise` the map stays as it is (CURL). `dropout` follows every convolution in training (SPR without augmentation).
    With a `latent_dim` a linear layer and a layer norm follow, so that larger frames do not make larger latent states.
    """

    def __init__(
        self,
        obs_shape: tuple[int, int, int] = (4, 84, 84),
        *,
        filters: Sequence[int] = (32, 64, 64),
        kernels: Sequence[int] = (8, 4, 3),
        strides: Sequence[int] = (4, 2, 1),
        epsilon: float = 1e-5,
        renormalise: bool = True,
        dropout: float = 0.0,
        latent_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.epsilon, self.renormalise = epsilon, renormalise and latent_dim is None
        self.convolutions, self.feature_shape = _convolutions(
            obs_shape, [obs_shape[0], *filters], list(zip(kernels, strides, strict=True)), dropout
        )
        self._finish(latent_dim)

    def _finish(self, latent_dim: int | None) -> None:
        """Set up the latent states: the map itself, or a linear layer's output."""
        units = math.prod(self.feature_shape)
        self.latent_dim = latent_dim or units
        layers = [] if latent_dim is None else [nn.Linear(units, latent_dim), nn.LayerNorm(latent_dim)]
        self.linear = nn.Sequential(*layers)
        if latent_dim is not None:
            return
        channels, height, width = self.feature_shape
        self.latent_order = torch.arange(units).view(channels, height, width).permute(1, 2, 0).flatten()

    def features(self, pixels: Tensor) -> Tensor:
        maps: Tensor = self.convolutions(pixels.contiguous(memory_format=torch.channels_last))
        return maps

    def embed(self, features: Tensor) -> Tensor:
        units: Tensor = self.linear(flat(features))
        return rescaled(units, self.epsilon) if self.renormalise else units


class ImpalaEncoder(NatureEncoder):
    """Espeholt et al., 2018: every stage is a convolution, a pool that halves the map, and two residual blocks.

    Deeper than the others, and its map is an eighth as wide as the frame: for large frames, or scenes with much detail.
    """

    def __init__(
        self,
        obs_shape: tuple[int, int, int],
        *,
        filters: Sequence[int] = (16, 32, 32),
        latent_dim: int | None = None,
    ) -> None:
        Encoder.__init__(self)
        self.epsilon, self.renormalise = 1e-5, latent_dim is None
        channels, height, width = obs_shape
        stages: list[nn.Module] = []
        for wide in filters:
            stages += [nn.Conv2d(channels, wide, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            stages += [_Residual(wide), _Residual(wide)]
            channels, height, width = wide, (height + 1) // 2, (width + 1) // 2
        self.convolutions, self.feature_shape = nn.Sequential(*stages, nn.ReLU()), (channels, height, width)
        self._finish(latent_dim)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        layers = (nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1))
        self.layers = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, maps: Tensor) -> Tensor:
        out: Tensor = maps + self.layers(maps)
        return out


class OwnEncoder(Encoder):
    """A user's module: (N, C, H, W) in [0, 1] → latent states (N, d), or a map (N, F, h, w), which is flattened."""

    def __init__(self, module: nn.Module, obs_shape: tuple[int, int, int], name: str) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"{name} returned {type(module).__name__}; expected an nn.Module.")
        self.convolutions = module
        was_training = module.training
        with torch.no_grad():
            made = module.eval()(torch.zeros(2, *obs_shape))
        module.train(was_training)
        if not isinstance(made, Tensor) or made.ndim not in (2, 4) or len(made) != 2 or not made.is_floating_point():
            seen = f"{made.dtype} {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
            raise ValueError(
                f"{name} returned {seen} for observations (2, {', '.join(map(str, obs_shape))}). Expected floats (2, d), or a map "
                "(2, F, h, w)."
            )
        self.feature_shape = (made.shape[1], *(made.shape[2:] if made.ndim == 4 else (1, 1)))
        self.latent_dim = math.prod(self.feature_shape)

    def features(self, pixels: Tensor) -> Tensor:
        made: Tensor = self.convolutions(pixels)
        return made if made.ndim == 4 else made[..., None, None]

    def embed(self, features: Tensor) -> Tensor:
        return flat(features)


def flat(features: Tensor) -> Tensor:
    """(N, F, h, w) → (N, h·w·F): a view, as maps are channels last in memory; (N, F·h·w) would be a copy."""
    return features.permute(0, 2, 3, 1).flatten(1)


def _convolutions(
    obs_shape: tuple[int, int, int],
    channels: Sequence[int],
    kernels: Sequence[tuple[int, int]],
    dropout: float = 0.0,
) -> tuple[Convolutions, tuple[int, int, int]]:
    """Unpadded convolutions with a ReLU after each, and the shape of their map for one observation."""
    layers: list[nn.Module] = []
    _, height, width = obs_shape
    for fan_in, fan_out, (kernel, stride) in zip(channels[:-1], channels[1:], kernels, strict=True):
        layers += [nn.Conv2d(fan_in, fan_out, kernel, stride), nn.ReLU(inplace=True)]
        layers += [nn.Dropout(dropout)] if dropout else []
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    if height < 1 or width < 1:
        raise ValueError(
            f"Observations of shape {obs_shape} are too small for this encoder: its map would be {height} × {width}. "
            "Use larger frames, fewer layers or smaller strides."
        )
    # Channels last is the fastest layout for CPU kernels and tensor cores. (Module.to(memory_format=...) does the same, but torch's
    # type stubs lack it.)
    convolutions = Convolutions(*layers)
    for parameter in convolutions.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return convolutions, (channels[-1], height, width)
