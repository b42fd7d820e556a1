"""Where positions are added to the latents of Atari: the released code flattens maps channels first, ours has the channels last."""

import torch

from maskrl import Host, MLRConfig, NatureEncoder
from maskrl.nn.decoder import LatentDecoder, sinusoid


def test_a_unit_gets_the_position_of_its_place_with_the_channels_first():
    encoder = NatureEncoder((4, 28, 28), filters=(3, 5), kernels=(4, 3), strides=(4, 2))
    channels, height, width = encoder.feature_shape
    assert (channels, height, width) == (5, 3, 3)
    for row in range(height):
        for column in range(width):
            for channel in range(channels):
                ours = (row * width + column) * channels + channel
                assert encoder.latent_order[ours] == (channel * height + row) * width + column


def test_the_decoder_computes_what_one_with_the_channels_first_does():
    """Permute every weight along the latent, and the states: both decoders must then agree, as they would in the released order."""
    torch.manual_seed(0)
    order = NatureEncoder((4, 28, 28), filters=(3, 5), kernels=(4, 3), strides=(4, 2)).latent_order
    d = len(order)
    ours, released = (LatentDecoder(d, 2, order=chosen).double() for chosen in (order, None))
    released.load_state_dict(ours.state_dict())
    back = order.argsort()  # released place → ours
    with torch.no_grad():
        released.embed_action.weight.copy_(ours.embed_action.weight[back])
        released.embed_action.bias.copy_(ours.embed_action.bias[back])
        for mine, theirs in zip(ours.blocks, released.blocks, strict=True):
            for norm in ("norm_attention", "norm_mlp"):
                for name in ("weight", "bias"):
                    getattr(getattr(theirs, norm), name).copy_(getattr(getattr(mine, norm), name)[back])
            theirs.query.weight.copy_(mine.query.weight[:, back])
            theirs.key_value.weight.copy_(mine.key_value.weight[:, back])
            theirs.project.weight.copy_(mine.project.weight[back])
            theirs.project.bias.copy_(mine.project.bias[back])
            theirs.mlp[0].weight.copy_(mine.mlp[0].weight[:, back])
            theirs.mlp[2].weight.copy_(mine.mlp[2].weight[back])
            theirs.mlp[2].bias.copy_(mine.mlp[2].bias[back])
    states, actions = torch.randn(2, 6, d, dtype=torch.float64), torch.randn(2, 6, 2, dtype=torch.float64)
    assert torch.allclose(released(states[..., back], actions), ours(states, actions)[..., back], rtol=0, atol=1e-12)
    # Without the order, no permutation of weights makes up for the table, which is fixed.
    plain = LatentDecoder(d, 2).double()
    plain.load_state_dict(ours.state_dict())
    assert not torch.allclose(released(states[..., back], actions), plain(states, actions)[..., back], atol=1e-3)


def test_the_papers_decoder_on_atari_has_the_order_and_a_narrow_one_has_none():
    encoder = NatureEncoder((4, 28, 28), filters=(3, 5), kernels=(4, 3), strides=(4, 2))
    host = Host(encoder, encoder.latent_dim, 3)
    wide, narrow = (MLRConfig(decoder_width=width).build(host).decoder for width in (None, 8))
    assert torch.equal(wide.order, encoder.latent_order)
    assert narrow.decoder.order is None
    table = sinusoid(16, torch.zeros(encoder.latent_dim))
    assert not torch.equal(table[:, wide.order], table)
    assert sorted(wide.order.tolist()) == list(range(encoder.latent_dim))
