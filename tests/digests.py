"""Short runs, and digests of all that they leave behind: a refactoring must keep every bit of them.

`python tests/digests.py` records them in tests/digests.json. The digests hold for one instruction set, which the libraries' own
variables pin to AVX2, so that machines with newer ones compute the same.
"""

import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PINNED = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "DNNL_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "MKL_CBWR": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "",  # filled in by `_newer_than_avx2`
    "LP_NATIVE_VECTOR_WIDTH": "256",  # of the software renderer
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
RECORDED = Path(__file__).with_name("digests.json")

_TOY = ("budget.frames=420", "evaluation.every=140", "evaluation.episodes=2", "checkpoint_every=140", "threads=1")
_REACH = (*_TOY, "agent.warmup_decisions=330", "agent.batch_size=16")
_CATCH = (*_TOY, "agent.warmup_decisions=330", "agent.batch_size=16", "agent.updates_per_decision=2")
_CARTPOLE = (
    *("budget.frames=1600", "evaluation.every=800", "evaluation.episodes=1", "checkpoint_every=800", "threads=1"),
    *("agent.warmup_decisions=170", "agent.batch_size=32", "agent.auxiliary.clips=2", "agent.encoder.filters=32"),
)
_DER = (
    *("budget.decisions=300", "evaluation.every=600", "evaluation.episodes=2", "checkpoint_every=400", "threads=1"),
    *("evaluation.side_by_side=2", "env.max_frames=400", "env.size=84", "agent.warmup_decisions=285"),
    "agent.learning_rate=1e-4",
)
_BREAKOUT = (*_DER, "agent.clips=4", "agent.augment.shift=4", "agent.epsilon=0", "agent.epsilon_decisions=0")
_BREAKOUT_MLR = (*_BREAKOUT, "objective.every=1", "objective.augment.shift=4", "objective.mask.cube=8,12,12")

# Name → recipe, method, overrides. Values of lite that were others when the digests were recorded are among the overrides.
RUNS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "reach-mlr": ("toy/reach", "mlr", _REACH),
    "reach-baseline": ("toy/reach", "baseline", _REACH),
    "reach-mlr-overlap": ("toy/reach", "mlr", (*_REACH, "overlap=true")),
    "catch-mlr": ("toy/catch", "mlr", _CATCH),
    "catch-baseline": ("toy/catch", "baseline", _CATCH),
    "cartpole-mlr": ("dmcontrol/cartpole-swingup", "mlr", (*_CARTPOLE, "objective.every=1")),
    "cartpole-baseline": ("dmcontrol/cartpole-swingup", "baseline", _CARTPOLE),
    "breakout-mlr": ("atari/breakout", "mlr", _BREAKOUT_MLR),
    # As wide as the latent, so that positions are added in the latent's own order.
    "breakout-mlr-wide": (
        "atari/breakout",
        "mlr",
        (*_BREAKOUT_MLR, "agent.encoder.filters=4,4,4", "objective.decoder_width=none"),
    ),
    "breakout-baseline": ("atari/breakout", "baseline", _BREAKOUT),
    "breakout-der": ("atari/breakout", "der", _DER),
}


def start(name: str, path: Path, **options: Any) -> subprocess.Popen[str]:
    """Begin or continue a run in a process of its own, with the instruction set pinned."""
    recipe, method, overrides = RUNS[name]
    words = ["train", recipe, "--profile", "lite", "--method", method, "--run-dir", str(path), *overrides]
    pinned = PINNED | {"NPY_DISABLE_CPU_FEATURES": _newer_than_avx2()}
    return subprocess.Popen([sys.executable, "-m", "maskrl", *words], text=True, env=os.environ | pinned, **options)


def run(name: str, path: Path) -> dict[str, str]:
    """Run it to its end, and digest it."""
    process = start(name, path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    printed, _ = process.communicate(timeout=500)
    if process.returncode != 0:
        raise RuntimeError(f"{name} ended with {process.returncode}:\n{printed}")
    return digest(path)


def digest(path: Path) -> dict[str, str]:
    """Of frames, agent (networks and optimisers), the rest of the replay, and logged values: without names, without timings."""
    from safetensors import safe_open

    newest = max((path / "checkpoints").glob("*.safetensors"))
    with safe_open(newest, "pt") as file:
        state = dict(json.loads(file.metadata()["state"])["dict"])
        parts = {part: hashlib.sha256() for part in ("agent", "replay")}
        for part, total in parts.items():
            for name in _tensors(state[part]):
                tensor = file.get_tensor(name)
                total.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                total.update(tensor.contiguous().flatten().view(dtype=_bytes()).numpy().tobytes())
    frames = hashlib.sha256((path / "replay" / "frames.u8").read_bytes())
    values, kinds = hashlib.sha256(), ("update", "episode", "evaluation", "random", "probe")
    for line in (path / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] in kinds:
            for number in _numbers({name: value for name, value in event.items() if not name.endswith("seconds")}):
                values.update(struct.pack("<d", number))
    digests = {"frames": frames, **parts, "metrics": values}
    return {name: total.hexdigest()[:16] for name, total in digests.items()}


def _bytes() -> Any:
    import torch

    return torch.uint8


def _tensors(value: Any) -> Iterator[str]:
    """The names of the tensors in a packed state, in its order."""
    match value:
        case {"tensor": str(name), **_rest}:
            yield name
        case {"dict": list(pairs)}:
            for _, inner in pairs:
                yield from _tensors(inner)
        case {"tuple": list(items)} | list(items):
            for item in items:
                yield from _tensors(item)


def _numbers(value: Any) -> Iterator[float]:
    match value:
        case bool() | str() | None:
            return
        case int() | float():
            yield float(value)
        case dict():
            for inner in value.values():
                yield from _numbers(inner)
        case list():
            for inner in value:
                yield from _numbers(inner)


def _newer_than_avx2() -> str:
    """Numpy's names of the features of this processor that came after AVX2."""
    import numpy as np

    known = np._core._multiarray_umath
    enabled = [name for name in known.__cpu_dispatch__ if known.__cpu_features__.get(name)]
    return " ".join(name for name in enabled if "512" in name or name == "X86_V4")


if __name__ == "__main__":
    found = {}
    for name in sys.argv[1:] or RUNS:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = run(name, Path(folder) / "run")
        print(name, found[name], flush=True)
    if not sys.argv[1:]:
        RECORDED.write_text(json.dumps(found, indent=2) + "\n")
