"""MOOSS: its walk, its contrast and its decoder, as arithmetic."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from by_hand import check_update
from maskrl.agents.base import Spaces
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.clip import Clip
from maskrl.nn.decoder import CausalDecoder
from maskrl.nn.masking import MaskConfig, WalkMasker
from maskrl.objectives.base import Material
from maskrl.objectives.mooss import MOOSS, MOOSSConfig, MOOSSViews, temporal_contrast
from maskrl.recipes import find
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


def decoded_by_hand(decoder: CausalDecoder, states: Tensor, actions: Tensor) -> Tensor:
    """One clip, (K, d), (K, A) → (K, d): every token and every head by itself."""
    steps, width = states.shape
    tokens = []
    for time in range(steps):
        place = torch.zeros(width, dtype=torch.float64)
        for j in range(width // 2):
            angle = time / 10_000 ** (2 * j / width)
            place[2 * j], place[2 * j + 1] = math.sin(angle), math.cos(angle)
        tokens += [states[time] + place, decoder.embed_action(actions[time]) + place]
    for block in decoder.blocks:
        heads = block.self_attn.num_heads  # type: ignore[union-attr]
        asked, offered, values = zip(
            *(block.self_attn.in_proj_weight.matmul(block.norm1(token)).add(block.self_attn.in_proj_bias).chunk(3)  # type: ignore[union-attr, operator, arg-type]
              for token in tokens), strict=True
        )  # fmt: skip
        attended = []
        for at in range(len(tokens)):
            parts = []
            for head in range(heads):
                own = slice(head * width // heads, (head + 1) * width // heads)
                scores = torch.stack([asked[at][own] @ offered[to][own] for to in range(at + 1)])  # nothing later
                shares = (scores / math.sqrt(width // heads)).softmax(dim=0)
                parts.append(sum(share * values[to][own] for to, share in enumerate(shares)))
            attended.append(tokens[at] + block.self_attn.out_proj(torch.cat(parts)))  # type: ignore[union-attr, operator, arg-type]
        tokens = [
            token + block.linear2(torch.nn.functional.gelu(block.linear1(block.norm2(token))))  # type: ignore[operator]
            for token in attended
        ]
    return torch.stack([decoder.norm(token) for token in tokens[::2]])


def losses_by_hand(mooss: MOOSS, views: MOOSSViews) -> list[Tensor]:
    """Every state with every other one."""
    asked, answers = [], []
    for clip, pixels in enumerate(views.masked.pixels()):
        states = torch.cat([mooss.host.encoder(each[None]) for each in pixels])
        predicted = [mooss.prediction(each) for each in decoded_by_hand(mooss.decoder, states, views.actions[clip])]
        original = [mooss.encoder.copy(each[None])[0].detach() for each in views.original.pixels()[clip]]
        asked.append([each / each.norm() for each in predicted])
        answers.append([each / each.norm() for each in original])
    losses, steps = [], views.valid.shape[1]
    for clip, valid in enumerate(views.valid.tolist()):
        per_step = []
        for time in range(sum(valid)):
            levels = []
            for level, temperature in enumerate(mooss.temperatures):
                positives, candidates = [], []
                for other, states in enumerate(answers):
                    for then in (t for t in range(steps) if views.valid[other, t]):
                        score = (asked[clip][time] @ mooss.product @ states[then] / temperature).exp()
                        positives += [score] if other == clip and abs(then - time) == level else []
                        candidates += [score] if other != clip or abs(then - time) >= level else []
                if positives:
                    levels.append((sum(candidates) / sum(positives)).log())  # type: ignore[union-attr]
            per_step.append(sum(levels) / len(levels))
        losses.append(sum(per_step) / len(per_step))
    return losses  # type: ignore[return-value]


@pytest.mark.parametrize("micro_batch", [None, 8])
def test_an_update_is_the_released_one_written_out(micro_batch: int | None):
    config = replace(TINY, clip_length=4, mask=MaskConfig(strategy="walk", cube=(2, 4, 4)), levels=3)
    mooss = config.build(tiny_host())
    material = tiny_material(mooss.needs)
    clip = Clip(material.clip.obs[:3], material.clip.actions[:3], material.clip.valid[:3])
    clip.valid[0, 2:] = False
    check_update(mooss, Material(clip), losses_by_hand, micro_batch=micro_batch, max_grad_norm=0.1)


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


def test_the_views_keep_no_copy_of_the_clips():
    mooss = TINY.build(tiny_host())
    material = tiny_material(mooss.needs)
    views = mooss.views(material)
    assert material.clip is not None
    assert views.masked.whole is views.original.whole is material.clip.obs


def test_the_graph_of_the_contrast_keeps_no_matrix_per_level():
    """At the paper's size, a matrix of all pairs of states has 16 MB."""
    saved, similar = list[Tensor](), torch.randn(48, 48, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda kept: kept):
        temporal_contrast(similar, torch.ones(6, 8, dtype=torch.bool), (0.1,) * 6)
    matrices = [tensor for tensor in saved if tensor.is_floating_point() and tensor.numel() == 48 * 48]
    assert {tensor.data_ptr() for tensor in matrices} == {similar.data_ptr()}


def test_one_clip_is_refused():
    mooss = TINY.build(tiny_host())
    with pytest.raises(
        ValueError, match=r"^clips=1: a contrast compares the members of a batch .* needs at least 2. Raise it.$"
    ):
        mooss.compare(torch.zeros(1, 8, 10), torch.zeros(1, 8, 10), torch.ones(1, 8, dtype=torch.bool))


def test_pixels_up_to_255_make_only_the_biases_before_the_layer_norm_matter_less():
    """The released code does not divide pixels. M1 in docs/fidelity-systems.md says why there is no switch for it."""
    recipe = find("dmcontrol/walker-walk", "lite", "mooss")
    agent: Any = recipe.agent.build(Spaces((9, 48, 48), 6, discrete=False), recipe.objective, torch.device("cpu"))
    encoder, actor, pixels = agent.encoder.double(), agent.actor.double(), torch.rand(4, 9, 48, 48).double()
    states, actions, gradients = list[Tensor](), list[Tensor](), list[dict[str, Tensor]]()
    for scale in (1, 255):
        states.append(encoder(scale * pixels))
        torch.manual_seed(0)
        actions.append(actor(encoder.features(scale * pixels))[0])
        slopes = torch.autograd.grad(states[-1].pow(3).sum(), list(encoder.parameters()))
        gradients.append(dict(zip((name for name, _ in encoder.named_parameters()), slopes, strict=True)))
    close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-3)  # the norm adds 1e-5 to the variance
    close(*states)
    close(*actions)
    for name, slope in gradients[0].items():
        shrinks = name.endswith("bias") and not name.startswith("norm")
        close(gradients[1][name] * (255 if shrinks else 1), slope)
