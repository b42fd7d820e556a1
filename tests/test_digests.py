"""Short runs end with the bits that were recorded for them in tests/digests.json: a refactoring changes none.

A deliberate change of the computation records new digests in a commit of its own: `python tests/digests.py`.
"""

import json
import platform
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from builders import require_drawing
from digests import RECORDED, RUNS, digest, run, start

pytestmark = pytest.mark.slow

EXPECTED: dict[str, dict[str, str]] = json.loads(RECORDED.read_text())


def require_comparable(name: str) -> None:
    """Skip, with the reason, where another processor or another torch rounds otherwise."""
    if platform.machine() != "x86_64" or not torch.cpu._is_avx2_supported():
        pytest.skip("the digests are of x86 with AVX2")
    if not torch.__version__.startswith("2.13.0"):
        pytest.skip(f"the digests are of torch 2.13.0; this is {torch.__version__}, whose kernels may round otherwise")
    if name.startswith("cartpole"):
        require_drawing()


@pytest.mark.parametrize("name", RUNS)
def test_a_short_run_ends_with_the_recorded_bits(name: str, tmp_path: Path):
    require_comparable(name)
    found, expected = run(name, tmp_path / "run"), EXPECTED[name]
    if name.startswith("cartpole") and found["frames"] != expected["frames"]:
        pytest.skip("the renderer of this machine draws other pixels than the one that the digests were recorded with")
    assert found == expected


@pytest.mark.parametrize("name", ["reach-mlr", "catch-mlr"])
def test_a_run_that_is_killed_and_continued_ends_with_the_same_bits(name: str, tmp_path: Path):
    require_comparable(name)
    path = tmp_path / "run"
    process = start(name, path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoints = path / "checkpoints"
    while process.poll() is None and len(list(checkpoints.glob("*.safetensors"))) < 2:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run(name, path)
    assert digest(path) == EXPECTED[name]
