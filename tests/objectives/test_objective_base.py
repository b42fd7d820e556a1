"""What an objective asks of its host and of an agent, and objectives whose loss must not be split."""

import re
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from builders import CROP, FRAME, STEPS, tiny_clip, tiny_host, tiny_mlr
from maskrl import AugmentConfig, AuxiliaryStep, Loss, Objective
from maskrl.agents.rainbow import RainbowConfig
from maskrl.agents.sac import SACConfig
from maskrl.envs import ToyControl
from maskrl.objectives.base import Group, Material, Needs, ObjectiveConfig, Offers
from maskrl.objectives.contrast import info_nce
from maskrl.objectives.step import AuxiliaryConfig, optimizer_groups
from tiny_objectives import Centred, CentredConfig, Pairs, PairsConfig, Seen, batch_of

AUGMENT = AugmentConfig(crop=CROP)


def pairs(weight: float = 1.0) -> Pairs:
    return PairsConfig(augment=AUGMENT, weight=weight).build(tiny_host())


def centred() -> Centred:
    return CentredConfig().build(tiny_host())


def gradients(objective: Objective) -> dict[str, Tensor]:
    """And clears them."""
    named = {**dict(objective.named_parameters()), **dict(objective.host.encoder.named_parameters(prefix="encoder"))}
    found = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
    objective.zero_grad()
    objective.host.encoder.zero_grad()
    return found


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=0, atol=1e-12)


# ── Contrast ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "weights", [None, torch.tensor([0.5, 2.0, 0.0, 1.0, 0.3], dtype=torch.float64)], ids=["even", "weighted"]
)
@pytest.mark.parametrize(
    ("micro_batch", "pieces"), [(STEPS, [1] * 5), (2 * STEPS, [2, 2, 1]), (3 * STEPS + 1, [3, 2]), (1, [1] * 5)]
)
def test_a_contrast_in_pieces_has_the_gradient_of_the_whole_batch(
    micro_batch: int, pieces: list[int], weights: Tensor | None
):
    objective = pairs(weight=2.0)
    views = objective.views(Material(tiny_clip()))
    loss = objective.loss(views)
    (2.0 * (loss.per_clip if weights is None else weights * loss.per_clip).mean()).backward()
    expected = gradients(objective)
    assert {"product", "encoder.linear.weight", "encoder.convolutions.0.weight"} <= expected.keys()
    assert not any(name.startswith("slow") for name in expected)

    objective.pieces.clear()
    cached = objective.add_gradient(views, micro_batch=micro_batch, weights=weights)
    assert objective.pieces == 2 * pieces  # once without a graph, once with
    assert_same(gradients(objective), expected)
    torch.testing.assert_close(cached.per_clip, loss.per_clip.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(cached.priorities, loss.priorities, rtol=0, atol=1e-12)
    torch.testing.assert_close(cached.metrics["pairs/loss"], loss.metrics["pairs/loss"], rtol=0, atol=1e-12)
    assert not any(tensor.requires_grad for tensor in (cached.per_clip, cached.priorities, *cached.metrics.values()))


@pytest.mark.parametrize("micro_batch", [None, 5 * STEPS, 99 * STEPS])
def test_a_contrast_that_fits_is_embedded_once(micro_batch: int | None):
    objective = pairs()
    views = objective.views(Material(tiny_clip()))
    objective.loss(views).per_clip.mean().backward()
    expected = gradients(objective)
    objective.pieces.clear()
    objective.add_gradient(views, micro_batch=micro_batch)
    assert objective.pieces == [5]
    assert_same(gradients(objective), expected)


def test_contrasts_over_parts_of_a_batch_are_another_loss():
    objective = pairs()
    views = objective.views(Material(tiny_clip()))
    parts = torch.cat([objective.loss(piece).per_clip for piece in views.split(3)])
    assert (parts < objective.loss(views).per_clip).all()  # fewer clips to be told from


def test_the_contrast_of_a_row_with_its_own_column_written_out():
    logits = torch.tensor([[1.0, 0.0], [2.0, 5.0]])
    expected = -torch.tensor([1.0, 5.0]) + logits.exp().sum(dim=1).log()
    torch.testing.assert_close(info_nce(logits), expected)


def test_a_contrast_learns_by_a_step_of_its_own_and_whole_or_in_pieces_alike():
    outcomes = []
    for micro_batch in (None, 2 * STEPS):
        torch.manual_seed(1)
        settings = AuxiliaryConfig(learning_rate=1e-2, schedule="constant")
        step, clip = AuxiliaryStep(pairs(), settings, micro_batch=micro_batch), tiny_clip()
        darker = replace(clip, obs=clip.obs // torch.arange(1, 6, dtype=torch.uint8)[:, None, None, None, None])
        outcomes.append([step(darker)["pairs/loss"].item() for _ in range(10)])
    assert outcomes[0][-1] < 0.8 * outcomes[0][0]
    assert outcomes[1] == pytest.approx(outcomes[0], abs=1e-6)


# ── A loss that must stay whole ───────────────────────────────────────────────────────────────────────────────────────


def test_a_loss_that_couples_the_batch_and_cannot_be_cached_is_run_whole():
    objective = centred()
    assert not objective.splits
    assert pairs().splits
    assert tiny_mlr().build(tiny_host()).splits
    views = objective.views(Material(batch=batch_of(6, CROP)))
    objective.loss(views).per_clip.mean().backward()
    expected = gradients(objective)
    objective.pieces.clear()
    objective.add_gradient(views, micro_batch=2)
    assert objective.pieces == [6]
    assert_same(gradients(objective), expected)


def test_without_clips_a_piece_is_counted_in_observations_all_the_same():
    class Squares(Centred):
        separable = True

        def loss(self, views: Seen) -> Loss:
            self.pieces.append(len(views))
            return Loss(self.host.encoder(views.view.pixels()).square().mean(dim=1), {})

    objective = Squares(tiny_host(), Needs(policy_batch=True), weight=1.0)
    views = objective.views(Material(batch=batch_of(6, CROP)))
    objective.add_gradient(views, micro_batch=4)
    assert objective.pieces == [4, 2]


# ── What it needs ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["target_encoder", "q_projection"])
def test_a_host_that_lends_less_than_an_objective_needs_is_refused(name: str):
    host = replace(tiny_host(), target_encoder=tiny_host().encoder)
    Centred(host, Needs(**{name: True}), weight=1.0)
    with pytest.raises(ValueError, match=f"centred needs Host.{name}, which is None. Pass it"):
        Centred(replace(host, **{name: None}), Needs(**{name: True}), weight=1.0)


def test_material_that_lacks_what_is_needed_is_refused():
    with pytest.raises(ValueError, match=f"pairs needs clips of {STEPS} steps; got none"):
        pairs()(batch=batch_of(2, CROP))
    with pytest.raises(ValueError, match=re.escape("Pass PolicyBatch(obs, view)")):
        centred()(tiny_clip())


@dataclass(frozen=True, kw_only=True)
class Asking(ObjectiveConfig):
    """Needs what it is told to need."""

    kind: str = "asking"
    asks: Needs

    @property
    def needs(self) -> Needs:
        return self.asks


class Mean(SACConfig):
    """Offers nothing."""

    offers = Offers(places=("last",), lacks=("clip_length", "policy_batch", "target_encoder", "q_projection"))


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (Needs(clip_length=2), "clips"),
        (Needs(policy_batch=True), "policy batch"),
        (Needs(target_encoder=True), "target encoder"),
        (Needs(q_projection=True), "q projection"),
        (
            Needs(2, policy_batch=True, target_encoder=True, q_projection=True),
            "clips, policy batch, target encoder, q projection",
        ),
    ],
)
def test_an_agent_that_does_not_offer_what_is_needed_is_refused(needs: Needs, words: str):
    env, generous = ToyControl(size=FRAME), RainbowConfig()
    Asking(asks=needs).check(env, generous)
    with pytest.raises(
        ValueError, match=f"objective asking needs {words}, which agent sac does not offer. Choose another"
    ):
        Asking(asks=needs).check(env, Mean())


@pytest.mark.parametrize(
    ("agent", "places"), [(SACConfig(), {"after_critic", "last"}), (RainbowConfig(), {"joint"}), (Mean(), {"last"})]
)
def test_an_objective_runs_where_its_agent_runs_objectives(agent, places: set[str]):
    for when in ("joint", "after_critic", "last", None):
        objective = Asking(asks=Needs(), when=when)
        if when is None or when in places:
            objective.check(ToyControl(), agent)
        else:
            with pytest.raises(ValueError, match=f"objective.when={when}, .* Use one of these, or none"):
                objective.check(ToyControl(), agent)


def test_mlr_needs_clips_and_a_q_projection_only_if_it_projects_by_one():
    assert tiny_mlr().needs == Needs(STEPS)
    assert tiny_mlr(projection="q").needs == Needs(STEPS, q_projection=True)
    assert tiny_mlr(projection="q", reconstruct="pixels").needs == Needs(STEPS)
    built = tiny_mlr(clip_length=12).build(tiny_host())
    assert built.needs.clip_length == 12


# ── Groups of parameters ──────────────────────────────────────────────────────────────────────────────────────────────


def test_by_default_all_that_an_objective_owns_is_one_group_under_its_name():
    objective = pairs()
    (group,) = objective.parameter_groups()
    assert (group.name, group.clipped, group.learning_rate, group.weight_decay) == ("pairs", True, None, 0.0)
    assert group.parameters == [objective.product]  # neither the encoder, which is borrowed, nor the slow copy


def test_every_parameter_of_mlr_is_in_one_group_and_the_transformer_in_one_of_its_own():
    mlr = tiny_mlr().build(tiny_host())
    core, rest = mlr.parameter_groups()
    assert (core.name, core.clipped, rest.name, rest.clipped) == ("decoder", True, None, False)
    grouped = [*core.parameters, *rest.parameters]
    assert len(grouped) == len({*grouped}) == len(mlr.own_parameters())
    assert {*grouped} == {*mlr.own_parameters()}
    assert {*core.parameters} == {*mlr.decoder.core.parameters()}


def test_a_group_has_its_own_learning_rate_and_decay_and_the_schedule_scales_both():
    objective = centred()
    step = AuxiliaryStep(objective, AuxiliaryConfig(learning_rate=0.5, warmup_updates=4))
    rates = []
    for _ in range(6):
        step(batch=batch_of(4, CROP))
        rates.append(
            [(float(group["lr"]), group["weight_decay"], len(group["params"])) for group in step.optimizer.param_groups]
        )
    borrowed = len(list(objective.host.parameters()))
    assert [[(lr / 0.5, decay, n) for lr, decay, n in at[:1]] for at in rates] == [
        [(pytest.approx(factor), 0.0, borrowed)] for factor in (5e-4, 0.250375, 0.50025, 0.750125, 1.0, (4 / 5) ** 0.5)
    ]
    assert [at[1] for at in rates] == [(pytest.approx(at[0][0] / 2), 0.125, 1) for at in rates]


def test_parameters_with_equal_options_share_a_group_in_their_order():
    a, b, c, d = (torch.nn.Parameter(torch.zeros(1)) for _ in range(4))
    groups = optimizer_groups(
        [a, b, c, d], [Group([b], learning_rate=0.1), Group([d]), Group([c], weight_decay=0.2)], 0.01
    )
    assert [(g["params"], g["lr"], g["weight_decay"]) for g in groups] == [
        ([a, d], 0.01, 0.0),
        ([b], 0.1, 0.0),
        ([c], 0.01, 0.2),
    ]
