"""The autoencoder of SAC+AE (Yarats et al., AAAI 2021): reconstruct the observation from its latent state.

A decoder, the encoder's layers in reverse, reconstructs the observations of the critic's batch. The targets have 5 bits instead
of 8, plus noise as large as the bits that were cut off. Small penalties on the latent state and on the decoder's weights (weight
decay) make it a regularised autoencoder (Ghosh et al., 2020).

Departures from the released code (reasons in docs/fidelity-systems.md): none in the loss. The burst of 1000 updates after
the warm-up and the tanh after the encoder are settings of the agent.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from maskrl.nn.augment import View
from maskrl.nn.encoders import ControlEncoder
from maskrl.nn.pixels import ReversedEncoder
from maskrl.objectives.base import Group, Host, Loss, Material, Needs, Objective, ObjectiveConfig, Views, When, on_host

BITS = 5


@dataclass(frozen=True)
class AutoencoderViews(Views):
    obs: View  # (B, C, H', W'), what the critic saw
    target: Tensor  # (B, C, H', W') in [-½, ½)


class Autoencoder(Objective[AutoencoderViews]):
    name = "autoencoder"

    def __init__(
        self, host: Host, decoder: nn.Module, *, latent_penalty: float, weight_decay: float, weight: float = 1.0
    ) -> None:
        super().__init__(host, needs=Needs(policy_batch=True), weight=weight)
        self.decoder, self.latent_penalty, self.weight_decay = decoder, latent_penalty, weight_decay

    def parameter_groups(self) -> list[Group]:
        return [Group(self.own_parameters(), self.name, weight_decay=self.weight_decay)]

    @torch.no_grad()
    def views(self, material: Material) -> AutoencoderViews:
        view = self.batch_of(material).view
        noise = torch.rand(view.obs.shape, generator=self.host.generator, dtype=view.gain.dtype, device=view.obs.device)
        return AutoencoderViews(view, dequantised(view.obs, noise))

    def loss(self, views: AutoencoderViews) -> Loss:
        states: Tensor = self.host.encoder(views.obs.pixels())  # h (B, d)
        drawn: Tensor = self.decoder(states)  # (B, C, H', W')
        if drawn.shape != views.target.shape:  # `build` does not see the size of the views
            raise ValueError(
                f"The decoder draws {tuple(drawn.shape[1:])}, but observations are {tuple(views.target.shape[1:])}. Build the "
                "objective with a host that has this obs_shape."
            )
        error = (drawn - views.target).square().mean(dim=(1, 2, 3))
        size = 0.5 * states.square().sum(dim=1)
        metrics = {"loss": error.mean(), "latent_size": size.mean()}
        return Loss(
            error + self.latent_penalty * size, {f"{self.name}/{key}": value.detach() for key, value in metrics.items()}
        )


def dequantised(obs: Tensor, noise: Tensor) -> Tensor:
    """uint8 → [-½, ½): the upper 5 bits plus `noise`, in [0, 1) of one quantisation step (Kingma and Dhariwal, 2018)."""
    steps = 2**BITS
    upper = torch.div(obs, 256 // steps, rounding_mode="floor")
    target: Tensor = (upper + noise) / steps - 0.5
    return target


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig(ObjectiveConfig):
    """SAC+AE's values."""

    kind: Literal["autoencoder"] = "autoencoder"
    when: When | None = "last"  # after the update of the slow copies, as released
    latent_penalty: float = 1e-6
    weight_decay: float = 1e-7  # of the decoder

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(0, "latent_penalty")
        self.require_at_least(0, "weight_decay")

    @property
    def needs(self) -> Needs:
        return Needs(policy_batch=True)

    def build(self, host: Host) -> Autoencoder:
        encoder = host.encoder
        if not isinstance(encoder, ControlEncoder) or host.obs_shape is None:
            raise TypeError(
                f"The autoencoder needs maskrl's ControlEncoder and the shape of observations; got {type(encoder).__name__} and "
                f"obs_shape={host.obs_shape}. Pass Host(encoder=ControlEncoder(…), obs_shape=(C, H, W))."
            )
        layers = [layer for layer in encoder.convolutions.children() if isinstance(layer, nn.Conv2d)]
        if layers[0].in_channels != host.obs_shape[0]:
            raise ValueError(
                f"The encoder takes {layers[0].in_channels} channels, but observations {host.obs_shape} have "
                f"{host.obs_shape[0]}. Pass the obs_shape that the encoder was built for."
            )
        strides = [layer.stride[0] for layer in layers]
        decoder = ReversedEncoder(host.latent_dim, host.obs_shape, encoder.feature_shape, strides)
        built = Autoencoder(
            host, decoder, latent_penalty=self.latent_penalty, weight_decay=self.weight_decay, weight=self.weight
        )
        return on_host(built, host)
