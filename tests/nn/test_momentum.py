import copy

import pytest
import torch
from torch import nn

from maskrl.nn.momentum import Borrowed, Momentum


def test_the_copy_keeps_m_of_itself_and_takes_the_rest_from_its_source():
    online = nn.Linear(1, 1, bias=False)
    slow = Momentum(online, 0.75)
    nn.init.constant_(slow.copy.weight, 8.0)
    nn.init.constant_(online.weight, 4.0)
    slow.update()
    assert slow.copy.weight.item() == 0.75 * 8 + 0.25 * 4


def test_momentum_zero_is_an_exact_copy():
    online = nn.Linear(7, 5)
    slow = Momentum(online, 0.0)
    nn.init.normal_(online.weight)
    slow.update()
    assert torch.equal(slow.copy.weight, online.weight)


def test_no_gradient_passes_and_the_source_is_not_a_part():
    online = nn.Linear(3, 3)
    slow = Momentum(online, 0.9)
    assert not slow(torch.randn(2, 3, requires_grad=True)).requires_grad
    assert not any(parameter.requires_grad for parameter in slow.parameters())
    assert len(list(slow.parameters())) == 2
    assert all(parameter.requires_grad for parameter in online.parameters())


def test_buffers_are_copied_whole():
    online = nn.BatchNorm1d(2)
    slow = Momentum(online, 0.9)
    online(torch.randn(10, 2))
    slow.update()
    assert torch.equal(slow.copy.running_mean, online.running_mean)


def test_a_deep_copy_follows_its_own_source():
    pair = nn.ModuleList([nn.Linear(2, 2)])
    pair.append(Momentum(pair[0], 0.0))
    twin = copy.deepcopy(pair)
    nn.init.zeros_(twin[0].weight)
    twin[1].update()
    assert not twin[1].copy.weight.any()
    assert pair[1].copy.weight.any()


def test_a_borrowed_module_is_called_but_not_owned():
    owner = nn.Linear(3, 2)
    borrowed, x = Borrowed(owner), torch.randn(4, 3)
    assert torch.equal(borrowed(x), owner(x))
    assert list(borrowed.parameters()) == []
    assert borrowed.state_dict() == {}


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_an_impossible_momentum_is_refused(momentum: float):
    with pytest.raises(ValueError, match=r"must be in \[0, 1\)"):
        Momentum(nn.Linear(1, 1), momentum)
