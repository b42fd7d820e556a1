"""Settings for the whole suite; builders that tests call by name are in builders.py."""

import hypothesis
import pytest
import torch

# The same examples every time: a red run can be repeated.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("repeatable")

# Two test processes share two cores.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
