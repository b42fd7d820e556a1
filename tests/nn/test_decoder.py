import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from builders import parameters_of
from maskrl.nn.decoder import Block, LatentDecoder, NarrowDecoder, attention, sinusoid


@pytest.fixture(autouse=True)
def _double() -> object:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_a_block_has_20_400_parameters_at_width_50():
    assert parameters_of(Block(50)) == 20_400


@pytest.mark.parametrize(("depth", "parameters"), [(1, 20_400), (2, 40_800), (4, 81_600), (8, 163_200)])
def test_the_depths_of_the_ablation_have_the_papers_sizes(depth: int, parameters: int):
    decoder = LatentDecoder(50, 6, depth=depth)
    assert parameters_of(decoder.blocks) == parameters
    assert parameters_of(decoder) - parameters == 50 * 6 + 50  # the action embedding


def test_an_atari_block_has_78_701_056_parameters():
    with torch.device("meta"):
        assert parameters_of(Block(3136)) == 78_701_056


def test_a_narrow_decoder_is_small_and_adds_to_the_states():
    with torch.device("meta"):
        assert parameters_of(NarrowDecoder(3136, LatentDecoder(256, 4), width=256)) < 4_000_000
    decoder, states, actions = (
        NarrowDecoder(20, LatentDecoder(8, 3), width=8),
        torch.randn(2, 5, 20),
        torch.randn(2, 5, 3),
    )
    found = decoder(states, actions) - states
    assert torch.linalg.matrix_rank(found.flatten(0, 1) - decoder.widen.bias) == 8  # of 10 tokens of 20 numbers
    nn.init.zeros_(decoder.widen.weight)
    nn.init.zeros_(decoder.widen.bias)
    assert torch.equal(decoder(states, actions), states)  # nothing that a state has is lost on the way
    assert parameters_of(decoder.core) == parameters_of(decoder) - 8 * 3 - 8  # the action embedding is not in it


@pytest.mark.parametrize(("d", "norm"), [(50, 5.0), (3136, 39.6)])
def test_positions_start_at_0_1_0_1_and_have_norm_root_of_half_d(d: int, norm: float):
    table = sinusoid(16, torch.zeros(d))
    assert torch.equal(table[0], torch.tensor([0.0, 1.0]).repeat(d // 2))
    assert table.norm(dim=1).tolist() == pytest.approx([math.sqrt(d / 2)] * 16)
    assert math.sqrt(d / 2) == pytest.approx(norm, abs=0.01)


def test_positions_follow_the_papers_formula():
    table = sinusoid(16, torch.zeros(50))
    for position, j in ((3, 0), (7, 5), (15, 24)):
        angle = position / 10_000 ** (2 * j / 50)
        assert table[position, 2 * j].item() == pytest.approx(math.sin(angle))
        assert table[position, 2 * j + 1].item() == pytest.approx(math.cos(angle))


def plain(decoder: LatentDecoder, tokens: Tensor) -> Tensor:
    """All blocks in full, no shortcut in the last one."""
    for block in decoder.blocks:
        tokens = block(tokens)
    return tokens


def test_computing_only_the_state_tokens_in_the_last_layer_changes_no_output():
    decoder, states, actions = LatentDecoder(12, 3), torch.randn(4, 6, 12), torch.randn(4, 6, 3)
    position = sinusoid(6, states)
    everything = plain(decoder, torch.cat([states + position, decoder.embed_action(actions) + position], dim=1))
    torch.testing.assert_close(decoder(states, actions), everything[:, :6], rtol=0, atol=1e-12)


def test_interleaved_and_concatenated_tokens_agree():
    decoder, states, actions = LatentDecoder(12, 3), torch.randn(4, 6, 12), torch.randn(4, 6, 3)
    position = sinusoid(6, states)
    interleaved = torch.stack([states + position, decoder.embed_action(actions) + position], dim=2).flatten(1, 2)
    torch.testing.assert_close(decoder(states, actions), plain(decoder, interleaved)[:, ::2], rtol=0, atol=1e-12)


def test_a_block_is_the_papers_equations():
    block, x = Block(12), torch.randn(2, 5, 12)
    normed = block.norm_attention(x)
    query, (key, value) = block.query(normed), block.key_value(normed).chunk(2, dim=-1)
    weights = (query @ key.transpose(1, 2) / math.sqrt(12)).softmax(dim=-1)
    z = block.project(weights @ value) + x
    torch.testing.assert_close(block(x), block.mlp(block.norm_mlp(z)) + z, rtol=0, atol=1e-12)


def test_the_mlp_has_the_exact_gelu():
    assert [type(layer).__name__ for layer in Block(12).mlp] == ["Linear", "GELU", "Linear"]
    x = torch.linspace(-3, 3, 7)
    torch.testing.assert_close(Block(12).mlp[1](x), x * 0.5 * (1 + torch.erf(x / math.sqrt(2))))


def test_without_action_tokens_the_actions_are_not_read():
    decoder, states = LatentDecoder(12, 3, action_tokens=False), torch.randn(4, 6, 12)
    assert torch.equal(decoder(states, torch.randn(4, 6, 3)), decoder(states, torch.randn(4, 6, 3)))
    assert parameters_of(decoder) == parameters_of(decoder.blocks)


def test_with_action_tokens_every_state_depends_on_every_action():
    decoder, states = LatentDecoder(12, 3), torch.randn(1, 6, 12)
    actions = torch.randn(1, 6, 3, requires_grad=True)
    for step in range(6):
        (gradient,) = torch.autograd.grad(decoder(states, actions)[0, step].sum(), actions)
        assert (gradient.abs().sum(dim=-1) > 0).all()


def test_the_order_of_the_steps_matters():
    decoder, states, actions = LatentDecoder(12, 3), torch.randn(1, 6, 12), torch.randn(1, 6, 3)
    assert not torch.allclose(decoder(states.flip(1), actions.flip(1)).flip(1), decoder(states, actions))


def test_invalid_steps_are_seen_by_no_other():
    decoder, states, actions = LatentDecoder(12, 3), torch.randn(2, 6, 12), torch.randn(2, 6, 3)
    valid = torch.arange(6) < torch.tensor([[4], [6]])
    before = decoder(states, actions, valid)
    states[0, 4:], actions[0, 4:] = 100.0, -100.0
    after = decoder(states, actions, valid)
    assert torch.equal(before[0, :4], after[0, :4])
    torch.testing.assert_close(before[1], after[1])
    torch.testing.assert_close(before[0, :4], decoder(states[:1, :4], actions[:1, :4])[0])


def test_a_decoder_without_layers_is_refused():
    with pytest.raises(ValueError, match="decoder_depth=0 must be at least 1"):
        LatentDecoder(12, 3, depth=0)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_has_the_bits_of_torchs_own(masked: bool):
    query, both = torch.randn(5, 4, 6, requires_grad=True), torch.randn(5, 8, 12, requires_grad=True)
    valid = torch.rand(5, 8) < 0.6 if masked else None
    if valid is not None:
        valid[:, 0] = True
    found = []
    for attend in (
        lambda q, k, v: attention(q, k, v, valid),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, None if valid is None else valid[:, None]),
    ):
        attended = attend(query, *both.chunk(2, dim=-1))
        found.append([attended, *torch.autograd.grad(attended.square().sum(), [query, both])])
    assert all(map(torch.equal, *found))


def test_where_no_key_is_valid_attention_stays_finite():
    tokens = torch.randn(2, 3, 4)
    assert attention(tokens, tokens, tokens, torch.zeros(2, 3, dtype=torch.bool)).isfinite().all()
