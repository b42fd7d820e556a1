import copy
import math
import re

import pytest
import torch
from torch import nn

from builders import STEPS, tiny_clip, tiny_host, tiny_mlr
from maskrl import AuxiliaryStep, Objective
from maskrl.agents.sac import SACConfig
from maskrl.objectives.step import AuxiliaryConfig, printed, unit_peak


def objective() -> Objective:
    return tiny_mlr().build(tiny_host()).double()


def step_of(objective: Objective, *, micro_batch: int | None = None, **settings: object) -> AuxiliaryStep:
    return AuxiliaryStep(objective, AuxiliaryConfig(**settings), micro_batch=micro_batch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("update", "factor"),
    [(0, 5e-4), (1000, 0.167), (6000, 1.0), (11_500, 0.722), (24_000, 0.5), (49_000, 0.350), (249_000, 0.155)],
)
def test_the_released_schedule_peaks_at_one_after_the_warm_up(update: int, factor: float):
    assert unit_peak(update, 6000) == pytest.approx(factor, abs=5e-4)


def test_the_first_updates_use_the_released_codes_learning_rates():
    assert [5e-4 * unit_peak(n, 6000) for n in (0, 1, 6000)] == pytest.approx([2.5e-7, 3.3329e-7, 5e-4], rel=1e-4)


def test_the_printed_formula_is_the_released_one_without_the_factor_root_of_the_warm_up():
    assert printed(5999, 6000) == pytest.approx(1 / math.sqrt(6000)) == pytest.approx(0.0129, abs=1e-4)
    for n in (3000, 20_000):
        assert printed(n - 1, 6000) * math.sqrt(6000) == pytest.approx(unit_peak(n, 6000), abs=5e-4)


def test_the_learning_rate_follows_the_schedule():
    step = step_of(objective(), learning_rate=0.1, warmup_updates=4)
    rates = [step(tiny_clip())["mlr/learning_rate"].item() for _ in range(7)]
    assert rates == pytest.approx([0.1 * unit_peak(n, 4) for n in range(7)])
    assert rates[4] == pytest.approx(0.1)
    assert step.optimizer.param_groups[0]["lr"] == pytest.approx(rates[6])  # what Adam used, not only what was said
    assert rates[6] == pytest.approx(0.1 * math.sqrt(4 / 6))


def test_the_first_step_moves_by_the_learning_rate():
    """Adam's first step is ±lr in every weight whose gradient is not tiny."""
    for schedule, rate in (("constant", 0.01), ("unit_peak", 0.01 * 5e-4), ("printed", 0.01 * 6000**-1.5)):
        mlr = objective()
        step = step_of(mlr, learning_rate=0.01, schedule=schedule)
        bias = mlr.target.prediction[-1].bias
        before = bias.detach().clone()
        step(tiny_clip())
        moved = (bias - before).abs().max().item()
        assert moved == pytest.approx(rate, rel=1e-3)


def test_a_recipe_and_a_step_made_by_hand_have_the_same_defaults():
    by_hand = AuxiliaryStep(objective())
    assert by_hand.config == AuxiliaryConfig() == SACConfig().auxiliary
    assert by_hand.micro_batch is None


def test_the_gradient_norm_is_reported_before_clipping_and_the_step_is_taken_after():
    step = step_of(objective(), schedule="constant", max_grad_norm=0.5)
    reported = step(tiny_clip())["mlr/gradient_norm"]
    clipped = nn.utils.get_total_norm([p.grad for p in step.parameters if p.grad is not None])
    assert reported > 0.5
    assert clipped.item() == pytest.approx(0.5)


def test_micro_batches_take_the_same_step():
    outcomes = []
    for micro_batch in (None, 1, 2 * STEPS, 2 * STEPS + 1, 5 * STEPS, 99 * STEPS):  # observations
        torch.manual_seed(1)
        step = step_of(objective(), learning_rate=1e-3, schedule="constant", micro_batch=micro_batch)
        metrics = step(tiny_clip())
        outcomes.append((metrics, [p.detach().clone() for p in step.parameters]))
    for metrics, parameters in outcomes[1:]:
        for key in ("mlr/loss", "mlr/cosine", "mlr/hidden", "mlr/gradient_norm"):
            torch.testing.assert_close(metrics[key], outcomes[0][0][key])
        for actual, expected in zip(parameters, outcomes[0][1], strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-7)


def test_the_weight_of_the_config_scales_the_gradient():
    norms = []
    for weight in (1.0, 3.0):
        torch.manual_seed(1)
        mlr = tiny_mlr(weight=weight).build(tiny_host()).double()
        norms.append(AuxiliaryStep(mlr)(tiny_clip())["mlr/gradient_norm"])
    torch.testing.assert_close(norms[1], 3 * norms[0])


@pytest.mark.parametrize("every", [1, 2, 3])
def test_momentum_copies_move_at_every_nth_update(every: int):
    mlr = objective()
    step = step_of(mlr, learning_rate=1e-2, schedule="constant", momentum_every=every)
    moved = []
    for _ in range(6):
        before = mlr.target.encoder.copy.linear.weight.clone()
        step(tiny_clip())
        moved.append(not torch.equal(before, mlr.target.encoder.copy.linear.weight))
    assert moved == [update % every == 0 for update in range(6)]  # the first update included, as in the released code


def test_a_second_adam_steps_the_encoder_with_the_same_gradient():
    """As CURL, SPR and PlayVirtual were released on DMControl. Adam's first steps are ±lr: they add up."""
    clip, moved = tiny_clip(), {}
    for second in (None, 0.03):
        torch.manual_seed(5)
        step = step_of(objective(), learning_rate=0.01, schedule="constant", second_encoder_rate=second)
        host, own = step.objective.host.encoder, step.objective.own_parameters()[0]
        before = host.linear.weight.detach().clone(), own.detach().clone()
        torch.manual_seed(6)
        step(clip)
        moved[second] = (host.linear.weight.detach() - before[0], own.detach() - before[1])
    known = moved[None][0].abs() > 0.0099
    assert known.any()
    torch.testing.assert_close(moved[0.03][0][known], 4 * moved[None][0][known], rtol=1e-2, atol=0)
    torch.testing.assert_close(moved[0.03][1], moved[None][1])  # what the objective owns moves once


def test_the_second_adam_is_saved_and_goes_on():
    step, twin = (step_of(objective(), schedule="constant", second_encoder_rate=1e-3) for _ in range(2))
    step(tiny_clip())
    twin.objective.host.encoder.load_state_dict(step.objective.host.encoder.state_dict())
    twin.objective.host.q_projection.load_state_dict(step.objective.host.q_projection.state_dict())
    twin.load_state_dict(copy.deepcopy(step.state_dict()))
    clip = tiny_clip()
    for each in (step, twin):
        torch.manual_seed(6)
        each(clip)
    for one, other in zip(step.parameters, twin.parameters, strict=True):
        assert torch.equal(one, other)
    assert "second_optimizer" not in step_of(objective()).state_dict()


def test_training_on_one_batch_lowers_the_loss():
    step = step_of(objective(), learning_rate=1e-3, schedule="constant")
    clip = tiny_clip()
    losses = [step(clip)["mlr/loss"].item() for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]


def test_gradients_left_by_the_host_do_not_leak_into_the_step():
    norms = []
    for leftover in (None, 1e6):
        torch.manual_seed(1)
        mlr = objective()
        if leftover:
            for parameter in mlr.host.parameters():
                parameter.grad = torch.full_like(parameter, leftover)
        norms.append(AuxiliaryStep(mlr)(tiny_clip())["mlr/gradient_norm"])
    assert norms[0] == norms[1]


def test_a_gradient_that_is_not_finite_stops_before_the_weights_change():
    mlr = objective()
    step = AuxiliaryStep(mlr)
    step(tiny_clip())
    with torch.no_grad():
        mlr.host.encoder.linear.bias[0] = torch.nan
    before = [p.detach().clone() for p in step.parameters]
    with pytest.raises(
        FloatingPointError, match=re.escape("The gradient of mlr has norm nan at update 1; the weights were left")
    ):
        step(tiny_clip())
    for parameter, old in zip(step.parameters, before, strict=True):
        torch.testing.assert_close(parameter, old, rtol=0, atol=0, equal_nan=True)
    assert step.updates == 1


@pytest.mark.parametrize(
    ("option", "seen"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be positive"),
        ({"learning_rate": math.inf}, "learning_rate=inf of AuxiliaryConfig must be finite"),
        ({"momentum_every": 1.5}, "momentum_every=1.5 of AuxiliaryConfig must be a whole number"),
        ({"warmup_updates": 0}, "warmup_updates=0 must be positive"),
        ({"max_grad_norm": -1.0}, "max_grad_norm=-1.0 must be positive"),
        ({"momentum_every": 0}, "momentum_every=0 must be positive"),
        ({"micro_batch": 0}, "micro_batch=0 must be at least 1 observation, or None"),
        (
            {"schedule": "cosine"},
            "schedule='cosine' is not a choice of AuxiliaryConfig: use one of 'unit_peak', 'printed', 'constant'",
        ),
    ],
)
def test_an_impossible_step_is_refused(option: dict[str, object], seen: str):
    with pytest.raises(ValueError, match=re.escape(seen)):
        step_of(objective(), **option)
