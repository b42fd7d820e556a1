"""Encoders that somebody else made are checked before they are borrowed."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from maskrl import AugmentConfig, MaskConfig, MLRConfig, host_for
from maskrl.objectives.curl import CURLConfig
from maskrl.objectives.spr import SPRConfig

SHAPE = (3, 24, 24)
CONFIG = MLRConfig(clip_length=4, mask=MaskConfig(cube=(2, 8, 8)), augment=AugmentConfig(crop=None, shift=2))


class Encoder(nn.Module):
    def __init__(self, *, flatten: bool = True) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU())
        self.end = nn.Sequential(nn.Flatten(), nn.Linear(4 * 11 * 11, 10)) if flatten else nn.Identity()

    def forward(self, pixels: Tensor) -> Tensor:
        return self.end(self.layers(pixels))


def checked(encoder: nn.Module, config: MLRConfig | CURLConfig | SPRConfig = CONFIG):
    return host_for(config, encoder, obs_shape=SHAPE, action_dim=2)


def test_a_host_knows_the_encoders_width_and_leaves_it_as_it_was():
    encoder = Encoder()
    encoder.train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    state = torch.get_rng_state()
    host = checked(encoder)
    assert (host.latent_dim, host.action_dim, host.obs_shape) == (10, 2, SHAPE)
    assert encoder.training
    assert all(value.equal(before[name]) for name, value in encoder.state_dict().items())
    assert torch.get_rng_state().equal(state)
    CONFIG.build(host)


@pytest.mark.parametrize("scale", ["div", "mul"])
def test_an_encoder_that_divides_by_255_is_refused(scale: str):
    class Only(Encoder):
        def forward(self, pixels: Tensor) -> Tensor:
            return self.end(self.layers(pixels / 255 if scale == "div" else pixels * (1 / 255)))

    with pytest.raises(ValueError, match="The encoder divides its pixels by 255"):
        checked(Only())


def test_other_arithmetic_on_the_pixels_is_fine():
    class Centred(Encoder):
        def forward(self, pixels: Tensor) -> Tensor:
            return self.end(self.layers((pixels - 0.5) * 2 / 1.5))

    assert checked(Centred()).latent_dim == 10


def test_maps_and_wrong_sizes_are_refused_in_words():
    with pytest.raises(ValueError, match=r"returned \(2, 4, 11, 11\) for 2 observations"):
        checked(Encoder(flatten=False))
    with pytest.raises(ValueError, match=r"fails on observations \(3, 16, 16\).*crop=None, shift=4"):
        checked(Encoder(), MLRConfig(clip_length=4, mask=MaskConfig(cube=(2, 8, 8)), augment=AugmentConfig(crop=16)))
    with pytest.raises(ValueError, match=r"shift=24 can move a whole frame of 24 × 24 pixels out of sight"):
        checked(Encoder(), replace(CONFIG, augment=AugmentConfig(crop=None, shift=24)))


def test_what_host_for_does_not_offer_is_named_with_a_value_that_does_without_it():
    with pytest.raises(ValueError, match=r"needs the observations of the critic's batch.*such as mlr\.$"):
        checked(Encoder(), CURLConfig())
    with pytest.raises(ValueError, match=r"needs latent states that are feature maps.*objective\.transition=vector"):
        checked(Encoder(), SPRConfig(transition="map"))


def test_a_host_knows_whether_actions_are_discrete():
    assert not checked(Encoder()).discrete
    assert host_for(CONFIG, Encoder(), obs_shape=SHAPE, action_dim=2, discrete=True).discrete
