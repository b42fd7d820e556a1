"""Small things to test with: everything is tiny, double precision, and drawn from the current torch seed."""

import os
import signal
from collections.abc import Iterable, Mapping
from functools import partial

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor, nn

from maskrl import AugmentConfig, Clip, ControlEncoder, Host, MaskConfig, MLRConfig
from maskrl.clock import Clock
from maskrl.envs.gl import choose_gl
from maskrl.nn.layers import NoisyLinear
from maskrl.nn.pixels import PixelDecoder
from maskrl.objectives import mlr
from maskrl.runs.loggers import Logger

FRAME, CROP, STEPS, ACTIONS, LATENT = 28, 24, 8, 2, 10


class QProjection(nn.Module):
    """The first layers of a dueling head, as an Atari agent lends them: mean weights, value first."""

    def __init__(self, latent_dim: int, width: int) -> None:
        super().__init__()
        self.value, self.advantage = NoisyLinear(latent_dim, width), NoisyLinear(latent_dim, width)

    def forward(self, states: Tensor) -> Tensor:
        return torch.cat([self.value.mean(states), self.advantage.mean(states)], dim=-1)


def tiny_host() -> Host:
    """An encoder whose map is 4 × 5 × 5, a Q projection of width 6, in double precision.

    Four filters of torch's own weights: delta-orthogonal ones are so few here that, for some seeds, all of them are dead.
    """
    encoder = ControlEncoder((3, CROP, CROP), filters=4, latent_dim=LATENT, linear_init="truncated_normal")
    for layer in encoder.convolutions[::2]:
        layer.reset_parameters()
    return Host(
        encoder.double(),
        latent_dim=LATENT,
        action_dim=ACTIONS,
        q_projection=QProjection(LATENT, 3).double(),
        obs_shape=(3, CROP, CROP),
    )


def tiny_clip(clips: int = 5, steps: int = STEPS) -> Clip:
    obs = torch.randint(256, (clips, steps, 3, FRAME, FRAME), dtype=torch.uint8)
    return Clip(obs, torch.rand(clips, steps, ACTIONS, dtype=torch.float64) * 2 - 1)


def tiny_mlr(**changes: object) -> MLRConfig:
    """MLR at the size of `tiny_host`: 2 blocks of 4 steps, 4 × 4 cells of 7 pixels."""
    settings: dict[str, object] = {
        "clip_length": STEPS,
        "mask": tiny_mask(),
        "augment": AugmentConfig(crop=CROP),
        "head_width": 12,
    }
    return MLRConfig(**(settings | changes))  # type: ignore[arg-type]


def tiny_mask(**changes: object) -> MaskConfig:
    return MaskConfig(**({"cube": (4, 7, 7), "feature_patch": 1} | changes))  # type: ignore[arg-type]


def shrink_pixel_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give MLR-Pixel 4 filters: with the paper's 32, its few variants take three quarters of the time of all others."""
    monkeypatch.setattr(mlr, "PixelDecoder", partial(PixelDecoder, filters=4))


def fast_for(names: Iterable[str], *fast: str) -> list[ParameterSet]:
    """Parameters of which only some are among the fast tests: all others are marked slow."""
    return [pytest.param(name, marks=[] if name in fast else [pytest.mark.slow]) for name in names]


def at(decisions: int, updates: int = 0) -> Clock:
    """A time of a run, for those who ask for decisions and updates alone."""
    return Clock(decisions, decisions, updates, 0.0)


def parameters_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


class Silent(Logger):
    """A logger that counts, and that can interrupt."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.evaluations: list[int] = []
        self.notes: list[str] = []
        self.interrupt_at = interrupt_at
        self.began: Clock | None = None
        self.clock = Clock(0, 0, 0, 0.0)

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        self.clock = clock
        if self.began is None:
            self.began = clock
        elif clock.decisions == self.interrupt_at:
            self.interrupt_at = None  # once: a second Ctrl-C would leave without saving
            os.kill(os.getpid(), signal.SIGINT)
        if "evaluation/score" in points:
            self.evaluations.append(clock.frames)

    def note(self, text: str, clock: Clock) -> None:
        self.notes.append(text)


def require_drawing() -> None:
    """Skip, on a machine without the simulator or OpenGL, what must draw. CI must be able to, so there it fails."""
    pytest.importorskip("dm_control")
    try:
        choose_gl()
    except RuntimeError:
        if os.environ.get("CI"):
            raise
        pytest.skip("nothing draws here: on Debian, apt install libegl1", allow_module_level=True)
