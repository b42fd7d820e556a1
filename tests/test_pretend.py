"""The pretend accelerator itself: it must refuse and count what a real one refuses and waits for, and change no result."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import pretend
from maskrl.nn.transfer import Arriving
from pretend import DEVICE


@pytest.fixture
def seen() -> Iterator[pretend.Seen]:
    with pretend.accelerator() as seen:
        yield seen


@pytest.fixture
def tensor(seen: pretend.Seen) -> Tensor:
    made = torch.arange(6.0, device=DEVICE).view(2, 3)
    seen.clear()
    return made


def test_tensors_claim_the_device_and_compute_as_the_cpu_does(tensor: Tensor):
    assert tensor.device == DEVICE
    assert (tensor @ tensor.T).device == DEVICE
    plain = torch.arange(6.0).view(2, 3)
    assert torch.equal(pretend.on_host(tensor @ tensor.T), plain @ plain.T)


@pytest.mark.parametrize(
    "mix",
    [
        lambda tensor: tensor + torch.ones(3),
        lambda tensor: torch.cat([tensor, torch.ones(2, 3)]),
        lambda tensor: tensor[torch.tensor([0, 1])],
        lambda tensor: tensor.normal_(generator=torch.Generator()),
        lambda tensor: nn.Linear(3, 2)(tensor),
    ],
)
def test_mixing_with_the_cpu_is_refused(tensor: Tensor, mix):
    with pytest.raises(RuntimeError, match=r"mixes pretend:0 with .* of the CPU"):
        mix(tensor)


def test_a_number_of_the_cpu_may_join_in(seen: pretend.Seen, tensor: Tensor):
    assert torch.equal(pretend.on_host(tensor * torch.tensor(2.0) + 1), torch.arange(6.0).view(2, 3) * 2 + 1)
    assert not seen.synchronisations


@pytest.mark.parametrize(
    "wait",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: bool(tensor.isfinite().all()),
        lambda tensor: tensor.cpu(),
        lambda tensor: tensor.tolist(),
        lambda tensor: tensor[tensor > 2],
        lambda tensor: (tensor > 2).nonzero(),
        lambda tensor: torch.equal(tensor, tensor),
        lambda tensor: torch.empty(2, 3).copy_(tensor, non_blocking=True),  # not pinned
        lambda tensor: tensor.copy_(torch.ones(2, 3)),
        lambda tensor: torch.ones(3).to(DEVICE),
        lambda tensor: torch.ones(3).to(DEVICE, non_blocking=True),  # not pinned
        lambda tensor: torch.ones(3).pin_memory().to(DEVICE),
        lambda tensor: torch.tensor(3.0, device=DEVICE),
    ],
)
def test_what_waits_for_the_device_is_counted_once(seen: pretend.Seen, tensor: Tensor, wait):
    wait(tensor)
    assert seen.synchronisations.total() == 1


@pytest.mark.parametrize(
    "go_on",
    [
        lambda tensor: torch.ones(3).pin_memory().to(DEVICE, non_blocking=True),
        lambda tensor: tensor.copy_(torch.ones(2, 3).pin_memory(), non_blocking=True),
        lambda tensor: tensor.to("cpu", non_blocking=True),
        lambda tensor: tensor.masked_fill(tensor > 2, 0),
        lambda tensor: tensor[:, torch.arange(2, device=DEVICE)],
        lambda tensor: torch.zeros(3, device=DEVICE) + torch.full((), 2.0, device=DEVICE),
        lambda tensor: nn.utils.clip_grad_norm_([tensor], 1.0),
    ],
)
def test_what_does_not_wait_is_not_counted(seen: pretend.Seen, tensor: Tensor, go_on):
    go_on(tensor)
    assert not seen.synchronisations


def test_synchronisations_are_told_by_the_line_of_the_package(seen: pretend.Seen, tensor: Tensor):
    tensor.cpu()
    assert set(seen.synchronisations) == {"outside"}
    Arriving(tensor).value()
    assert any(line.startswith("nn/transfer.py:") for line in seen.synchronisations)


def test_a_copy_to_the_host_holds_nonsense_until_it_is_awaited(seen: pretend.Seen, tensor: Tensor):
    arriving, event = tensor.to("cpu", non_blocking=True), torch.Event(DEVICE)
    event.record()
    tensor.zero_()  # comes later in the queue
    assert (arriving == 77).all()
    event.synchronize()
    assert torch.equal(arriving, torch.arange(6.0).view(2, 3))
    assert seen.synchronisations.total() == 1


def test_an_event_that_was_recorded_too_early_says_nothing_of_a_copy(tensor: Tensor):
    event = torch.Event(DEVICE)
    event.record()
    arriving = tensor.to("cpu", non_blocking=True)
    event.synchronize()
    assert (arriving == 77).all()


def test_an_event_is_passed_when_it_is_asked_again(seen: pretend.Seen, tensor: Tensor):
    arriving, event = tensor.to("cpu", non_blocking=True), torch.Event(DEVICE)
    event.record()
    assert (event.query(), (arriving == 77).all(), event.query()) == (False, True, True)
    assert torch.equal(arriving, torch.arange(6.0).view(2, 3))
    assert not seen.synchronisations


def test_pinned_memory_is_pinned(seen: pretend.Seen):
    plain = torch.ones(3)
    assert not plain.is_pinned()
    assert plain.pin_memory().is_pinned()
    assert torch.equal(plain.pin_memory(), plain)


def test_generators_of_the_device_draw_what_those_of_the_cpu_draw(seen: pretend.Seen):
    ours, plain = torch.Generator(DEVICE).manual_seed(3), torch.Generator().manual_seed(3)
    assert (ours.device, plain.device) == (DEVICE, torch.device("cpu"))
    drawn = torch.randint(9, (5,), generator=ours, device=DEVICE), torch.randn(5, generator=ours, device=DEVICE)
    expected = torch.randint(9, (5,), generator=plain), torch.randn(5, generator=plain)
    assert all(torch.equal(pretend.on_host(a), b) for a, b in zip(drawn, expected, strict=True))
    state = ours.get_state()
    first = torch.rand(3, generator=ours, device=DEVICE)
    ours.set_state(state)
    assert torch.equal(pretend.on_host(first), pretend.on_host(torch.rand(3, generator=ours, device=DEVICE)))


def test_modules_and_optimisers_move_there_and_learn_the_same(seen: pretend.Seen):
    def learned(device: torch.device) -> Tensor:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
        slow = copy.deepcopy(module)
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            module(torch.randn(5, 4, device=device)).square().mean().backward()
            optimizer.step()
        slow.load_state_dict(module.state_dict())
        assert {parameter.device for parameter in slow.parameters()} == {device}
        return torch.cat([parameter.flatten() for parameter in slow.parameters()]).detach()

    assert torch.equal(pretend.on_host(learned(DEVICE)), learned(torch.device("cpu")))
    assert not seen.synchronisations.keys() - {"outside"}


def test_autocast_computes_products_in_bfloat16(seen: pretend.Seen):
    torch.manual_seed(0)
    module, images = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(36, 3)), torch.randn(2, 2, 5, 5)

    def gradients(module: nn.Module, images: Tensor) -> list[Tensor]:
        with torch.autocast(images.device.type, torch.bfloat16):
            output = module(images)
        assert output.dtype == torch.bfloat16
        output.float().square().sum().backward()
        return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]

    theirs = gradients(copy.deepcopy(module).to(DEVICE), images.to(DEVICE))
    assert all(torch.equal(pretend.on_host(a), b) for a, b in zip(theirs, gradients(module, images), strict=True))


def test_outside_of_it_torch_is_as_it_was():
    assert torch.Generator().device.type == "cpu"
    assert torch.tensor([1.0]).device.type == "cpu"
    assert not torch.__future__.get_swap_module_params_on_conversion()
