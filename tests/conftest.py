"""Settings for the whole suite; builders that tests call by name are in builders.py."""

import os
import signal

# Before torch is loaded: two test processes share two cores.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

import hypothesis
import pytest
import torch

# `nohup make test` ignores SIGHUP, and `make test &` in a script ignores SIGINT. Without these lines, every process of a test would
# ignore them, too.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time: a red run can be repeated.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take minutes: at the end, one process would do them while the others have nothing left."""
    items.sort(key=lambda item: item.get_closest_marker("learning") is None)
