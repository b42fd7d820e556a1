"""MOOSS: its walk, its contrast and its decoder, as arithmetic."""

import math

import pytest
import torch

from maskrl.nn.augment import AugmentConfig
from maskrl.nn.decoder import CausalDecoder
from maskrl.nn.masking import MaskConfig, WalkMasker
from maskrl.objectives.mooss import MOOSSConfig, temporal_contrast
from maskrl.testing import tiny_host, tiny_material

TINY = MOOSSConfig(
    clip_length=8,
    mask=MaskConfig(strategy="walk", cube=(4, 4, 4)),
    augment=AugmentConfig(crop=24),
    heads=2,
    head_width=12,
    levels=4,
)


@pytest.mark.parametrize(("depth", "nodes"), [(8, 288), (4, 576)])
def test_the_walk_hides_exactly_half_of_the_released_grid_in_one_piece(depth: int, nodes: int):
    masker = WalkMasker((depth, 7, 7))
    for seed in range(5):
        keep = masker(torch.zeros(2, 16, 3, 84, 84, dtype=torch.uint8), torch.Generator().manual_seed(seed))
        assert keep.shape == (1, 16, 1, 84, 84)
        cells = keep[0, ::depth, 0, ::7, ::7]
        assert torch.equal(
            cells.repeat_interleave(depth, 0).repeat_interleave(7, 1).repeat_interleave(7, 2), keep[0, :, 0]
        )
        hidden = {tuple(place) for place in (~cells).nonzero().tolist()}
        assert (cells.numel(), len(hidden)) == (nodes, nodes // 2)
        middle = tuple(side // 2 for side in cells.shape)
        assert middle in hidden
        # All of them can be reached from the middle over hidden neighbours.
        reached, edge = {middle}, [middle]
        while edge:
            place = edge.pop()
            for other in hidden - reached:
                if max(abs(a - b) for a, b in zip(place, other, strict=True)) == 1:
                    reached.add(other)
                    edge.append(other)
        assert reached == hidden


def test_walks_differ_and_a_generator_repeats_them():
    masker, clip = WalkMasker((4, 4, 4)), torch.zeros(1, 8, 3, 24, 24, dtype=torch.uint8)
    first, second, other = (masker(clip, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_the_contrast_compares_every_state_with_every_other():
    """Two clips of 5 steps, 3 levels, in loops."""
    torch.manual_seed(0)
    similar, temperatures = torch.randn(10, 10, dtype=torch.float64), (0.07, 0.145, 0.22)
    valid = torch.ones(2, 5, dtype=torch.bool)
    valid[1, 4] = False
    found = temporal_contrast(similar, valid, temperatures)
    for asked in range(10):
        clip, time, losses = asked // 5, asked % 5, []
        for level, temperature in enumerate(temperatures):
            positives = candidates = 0.0
            for answer in range(10):
                if not valid.flatten()[answer]:
                    continue
                same, apart = answer // 5 == clip, abs(answer % 5 - time)
                score = math.exp(similar[asked, answer].item() / temperature)
                positives += score if same and apart == level else 0
                candidates += score if not same or apart >= level else 0
            if positives:
                losses.append(math.log(candidates / positives))
        assert found[clip, time].item() == pytest.approx(sum(losses) / len(losses), rel=1e-9)


def test_the_first_loss_is_the_logarithm_of_candidates_by_positives_if_all_is_alike():
    valid = torch.ones(2, 4, dtype=torch.bool)
    found = temporal_contrast(torch.zeros(8, 8), valid, (0.07, 0.145))
    # Level 0: one of 8. Level 1: of 7, one neighbour at the ends of a clip and two within.
    ends, within = (math.log(8) + math.log(7)) / 2, (math.log(8) + math.log(3.5)) / 2
    assert found[0].tolist() == pytest.approx([ends, within, within, ends], rel=1e-6)


def test_the_decoder_does_not_see_the_future():
    decoder = CausalDecoder(8, 2, heads=2).double()
    states, actions = torch.randn(1, 6, 8, dtype=torch.float64), torch.randn(1, 6, 2, dtype=torch.float64)
    before = decoder(states, actions)
    states[:, 3:] += 1
    actions[:, 3:] += 1
    after = decoder(states, actions)
    torch.testing.assert_close(after[:, :3], before[:, :3], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, 3:], before[:, 3:])
    actions[:, 2] += 1  # an action is seen by what follows it, not by the state that it was taken at
    torch.testing.assert_close(decoder(states, actions)[:, :3], before[:, :3], rtol=0, atol=1e-12)


def test_heads_must_divide_the_latent_state():
    with pytest.raises(ValueError, match=r"50 numbers.*4 attention heads.*latent_dim=64"):
        CausalDecoder(50, 1)


def test_predictions_and_the_product_learn_and_targets_do_not():
    mooss = TINY.build(tiny_host())
    torch.autograd.backward(mooss(tiny_material(mooss.needs).clip).per_clip.mean())
    for parameters in ([mooss.product], mooss.decoder.parameters(), mooss.host.encoder.parameters()):
        assert any(parameter.grad is not None and parameter.grad.any() for parameter in parameters)
    assert all(parameter.grad is None for parameter in mooss.encoder.parameters())


def test_the_mask_lies_on_the_crop():
    mooss = TINY.build(tiny_host())
    material = tiny_material(mooss.needs)
    material.clip.obs.fill_(255)
    views = mooss.views(material)
    shares = (views.masked.obs == 0).double().mean(dim=(1, 2, 3, 4))
    assert shares.tolist() == pytest.approx([0.5] * 5)  # of every crop, wherever it lies
    assert (views.original.obs == 255).all()


def test_one_clip_is_refused():
    mooss = TINY.build(tiny_host())
    with pytest.raises(ValueError, match="at least 2 clips"):
        mooss.compare(torch.zeros(1, 8, 10), torch.zeros(1, 8, 10), torch.ones(1, 8, dtype=torch.bool))
