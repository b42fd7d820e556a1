"""Try bfloat16 and torch.compile in a separate process, because they may crash on this machine.

An unsupported instruction kills the process, and torch.compile needs a C++ compiler. Without the trial, a run would fail at its
first update, after its directory was created.
"""

import signal
import subprocess
import sys

from maskrl.files import RunError
from maskrl.recipes.schema import Recipe

SECONDS = 600  # a first compilation on a slow machine

_UPDATE = """
import sys
sys.path[:] = {path!r}
import torch
device, lower, fuse = {device!r}, {lower!r}, {fuse!r}
nn = torch.nn
layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(392, 4)).to(device)
if fuse:
    layers.forward = torch.compile(layers.forward)
with torch.autocast(device, torch.bfloat16, enabled=lower):
    loss = layers(torch.rand(2, 3, 16, 16, device=device)).float().square().mean()
loss.backward()
if not torch.isfinite(loss):
    raise SystemExit("the loss of a small network is not finite")
"""


def require_numerics(recipe: Recipe, device: str) -> None:
    """Raise RunError, with the reason, if the recipe's precision or compilation does not work on this machine."""
    wishes = {"precision=bfloat16": recipe.precision == "bfloat16", "compile=true": recipe.compile}
    for wish, wanted in wishes.items():
        if wanted:
            lower, fuse = wish.startswith("precision"), wish.startswith("compile")
            script = _UPDATE.format(path=sys.path, device=device, lower=lower, fuse=fuse)
            if (why := failure(script)) is not None:
                instead = "precision=float32" if lower else "compile=false"
                raise RunError(f"{wish} does not work on this machine: {why}. Use {instead}.")


def failure(script: str) -> str | None:
    """The reason why a script fails in a fresh Python process; None if it succeeds."""
    try:
        trial = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, errors="replace", timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"a trial took more than {SECONDS} seconds"
    if trial.returncode == 0:
        return None
    if trial.returncode < 0:
        name = signal.Signals(-trial.returncode).name
        return f"a trial was ended by {name}" + (" (the processor lacks an instruction)" if name == "SIGILL" else "")
    lines = [line.strip() for line in trial.stderr.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "rror:" in line]
    return (told or lines or ["a trial failed without a message"])[-1].rstrip(".")[:300]
