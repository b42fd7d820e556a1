"""A recipe is the full, frozen description of a run; an override is one value of it, by its dotted path."""

from dataclasses import dataclass, field
from typing import Literal

from maskrl.agents.sac import SACConfig
from maskrl.config import Config
from maskrl.envs import AnyEnv
from maskrl.objectives.mlr import MLRConfig


@dataclass(frozen=True, kw_only=True)
class Evaluation(Config):
    """When the agent is evaluated, in an environment of its own, by its mean actions."""

    every: int = 5000  # frames; the start and the end of the run are always among them
    episodes: int = 10


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(Config):
    """See `Replay`."""

    capacity: int = 100_000  # decisions
    storage: Literal["disk", "memory"] = "disk"  # disk: memory-mapped files in the run directory, which a resume needs


@dataclass(frozen=True, kw_only=True)
class Recipe(Config):
    """Everything that decides what a run computes."""

    name: str  # dmcontrol/cartpole-swingup
    profile: Literal["paper", "lite"]  # lite: the same method scaled to a laptop; its scores are not the paper's
    env: AnyEnv
    agent: SACConfig
    objective: MLRConfig | None  # None: the paper's Baseline
    frames: int  # the budget, in simulator frames: decisions × action repeat
    evaluation: Evaluation = field(default_factory=Evaluation)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    checkpoint_every: int = 5000  # frames
    seed: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None  # of torch on a CPU; None: as many as there are cores

    def __post_init__(self) -> None:
        super().__post_init__()
        repeat = self.env.action_repeat
        for name, value in (
            ("frames", self.frames),
            ("evaluation.every", self.evaluation.every),
            ("checkpoint_every", self.checkpoint_every),
        ):
            if value < 1 or value % repeat:
                raise ValueError(
                    f"{name}={value} frames must be a positive multiple of env.action_repeat={repeat}: a decision takes that many."
                )
