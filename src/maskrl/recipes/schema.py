"""A recipe is the full, frozen description of a run."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

import pydantic

from maskrl.agents.drqv2 import DrQv2Config
from maskrl.agents.rainbow import RainbowConfig
from maskrl.agents.sac import SACConfig
from maskrl.config import Config
from maskrl.envs import AnyEnv
from maskrl.objectives.autoencoder import AutoencoderConfig
from maskrl.objectives.base import Host, Needs, ObjectiveConfig
from maskrl.objectives.both import BothConfig
from maskrl.objectives.curl import CURLConfig
from maskrl.objectives.mlr import MLRConfig
from maskrl.objectives.mooss import MOOSSConfig
from maskrl.objectives.playvirtual import PlayVirtualConfig
from maskrl.objectives.spr import SPRConfig
from maskrl.recipes import methods


def members_of(union: Any) -> tuple[Any, ...]:
    """The members of a union of configs, or the single config."""
    union = get_args(union)[0] if get_origin(union) is Annotated else union
    return get_args(union) or (union,)


Profile = Literal["paper", "lite"]
# The kinds that can be read from a file. Add a member for a new agent or objective; from Python, any subclass works.
AnyAgent = Annotated[SACConfig | RainbowConfig | DrQv2Config, pydantic.Field(discriminator="kind")]
OneObjective = Annotated[
    MLRConfig | CURLConfig | AutoencoderConfig | SPRConfig | PlayVirtualConfig | MOOSSConfig,
    pydantic.Field(discriminator="kind"),
]


@dataclass(frozen=True, kw_only=True)
class TwoObjectives(BothConfig):
    """Two objectives at once."""

    first: OneObjective
    second: OneObjective


AnyObjective = Annotated[
    MLRConfig | CURLConfig | AutoencoderConfig | SPRConfig | PlayVirtualConfig | MOOSSConfig | TwoObjectives,
    pydantic.Field(discriminator="kind"),
]
OBJECTIVE_KINDS = tuple(member.kind for member in members_of(AnyObjective))


@dataclass(frozen=True, kw_only=True)
class Budget(Config):
    """The length of a run, either in frames of the simulator or in decisions of the agent (Atari-100k)."""

    frames: int | None = None
    decisions: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.frames is None) == (self.decisions is None):
            raise ValueError(
                f"budget.frames={as_override(self.frames)} and budget.decisions={as_override(self.decisions)}: a budget has one "
                "unit. Set the other to none."
            )


@dataclass(frozen=True, kw_only=True)
class Evaluation(Config):
    """Settings of evaluations, which use separate environments and no exploration."""

    every: int = 5000  # frames; also always at the start and the end of a run
    episodes: int = 10
    epsilon: float = 0.0  # share of random actions, which keeps a game from looping
    side_by_side: int = 1  # maximum episodes at once: in processes, one per core, or in one batch on a GPU

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "episodes", "side_by_side")
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"evaluation.epsilon={self.epsilon} must lie in [0, 1].")


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(Config):
    """See `Replay`."""

    capacity: int = 100_000  # decisions
    storage: Literal["disk", "memory"] = "disk"  # disk: memory-mapped files in the run directory, kept for a resume
    # Also keep the frames on the GPU and build batches there; None: if they fit into half of its free memory
    on_device: bool | None = None
    # Batches to gather in a thread while the device computes; None: 2 for a GPU, if draws are uniform and frames are on the host
    prefetch: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "capacity")
        self.require_at_least(0, "prefetch")


@dataclass(frozen=True, kw_only=True)
class Recipe(Config):
    """Everything that determines what a run computes."""

    name: str  # dmcontrol/cartpole-swingup
    profile: Profile  # lite: the same method scaled to a laptop; its scores are not the paper's
    env: Annotated[AnyEnv, pydantic.Field(discriminator="kind")]
    agent: AnyAgent
    objective: AnyObjective | None  # None: the agent alone, the paper's Baseline
    budget: Budget
    preset: str | None = None  # the name of the agent's settings, if they are not the suite's default
    # A file of `maskrl pretrain` from which the agent's encoder starts; {seed} stands for the run's seed. None: random weights
    encoder_from: str | None = None
    evaluation: Evaluation = field(default_factory=Evaluation)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    checkpoint_every: int = 5000  # frames
    overlap: bool = (
        False  # the environment steps in a separate process while the agent learns: faster, with the same results
    )
    seed: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "bfloat16"] = (
        "float32"  # bfloat16: for convolutions and matrix products; weights stay float32
    )
    compile: bool = False  # let torch.compile fuse the convolutional layers
    capture: bool = False  # record updates as CUDA graphs, which the host launches in one call
    threads: int | None = (
        None  # of torch on a CPU; None: one per core, or 1 for small layers. Fixed when the run is created
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(0, "seed")
        self.require_at_least(1, "threads")
        if not f"{self.name}{self.preset}".isprintable():  # it is shown in terminals
            raise ValueError(f"the name {self.name!r} of a recipe must not have control characters")
        self._check_times()
        self._check_sizes()

    @property
    def is_apart(self) -> bool:
        """Whether the training environment steps in a separate process, which can be killed when it hangs. Changes no result."""
        return self.overlap or self.env.parallel > 1 or self.env.timeout != type(self.env).timeout

    @property
    def frames(self) -> int:
        """The budget in frames of the simulator: decisions × action repeat."""
        budget = self.budget
        return (budget.decisions or 0) * self.env.action_repeat if budget.frames is None else budget.frames

    @property
    def method(self) -> str:
        """The name in reports: the published name of this pair of agent and objective, or "agent+objective"."""
        objective = None if self.objective is None else self.objective.name
        return methods.name_of(self.name, self.preset, self.agent.kind, objective)

    def _check_times(self) -> None:
        repeat = self.env.action_repeat
        self.budget.require_at_least(1, "decisions")
        for name, value in (
            ("budget.frames", self.frames),
            ("evaluation.every", self.evaluation.every),
            ("checkpoint_every", self.checkpoint_every),
        ):
            if value < 1 or value % repeat:
                raise ValueError(
                    f"{name}={value} frames must be a positive multiple of env.action_repeat={repeat}, the frames per decision."
                )

    def _check_sizes(self) -> None:
        """Raise ValueError for values that would fail at the first update, after the warm-up."""
        size, crop = self.env.size, self.agent.augment.crop
        if crop is not None and crop > size:
            raise ValueError(f"agent.augment.crop={crop} is larger than the frame, env.size={size}: lower it.")
        if self.objective is not None:
            self.objective.check(self.env, self.agent)
            if self.capture and not self.objective.recordable:
                raise ValueError(
                    f"capture=true, but objective {self.objective.name} computes values on the host in every update, so it "
                    "cannot be recorded. Use capture=false."
                )
        exponent = self.agent.replay_needs().priority_exponent
        if self.replay.prefetch and exponent is not None:
            raise ValueError(
                f"replay.prefetch={self.replay.prefetch}, but agent.priority_exponent={exponent}: draws by priority wait for the "
                "errors of the last update, so nothing can be gathered ahead. Use replay.prefetch=none."
            )


@dataclass(frozen=True, kw_only=True)
class UnknownObjective(ObjectiveConfig):
    """An objective of other code, read from a recipe.json: it can be reported, but not built."""

    values: dict[str, Any]

    @property
    def needs(self) -> Needs:
        return Needs(int(self.values.get("clip_length") or 0))

    def build(self, host: Host) -> NoReturn:
        raise ValueError(
            f"objective {self.kind} is not a part of maskrl. Call maskrl.train(recipe) from the "
            "program that defines it."
        )


def objective_named(name: str, known: Mapping[str, AnyObjective]) -> AnyObjective:
    """One of the known objectives, or two of them at once: "mlr+spr"."""
    parts = [known[part] for part in name.split("+")]
    if len(parts) == 1:
        return parts[0]
    first, second = (replace(part, when=None, every=1) for part in parts)
    assert not isinstance(first, TwoObjectives)
    assert not isinstance(second, TwoObjectives)
    places = [part.when for part in parts if part.when is not None]
    every = max(part.every for part in parts)
    return TwoObjectives(first=first, second=second, when=places[0] if places else None, every=every)


def settled(recipe: Recipe) -> Recipe:
    """The recipe of all updates but the first (`AgentConfig.settled`)."""
    return replace(recipe, agent=recipe.agent.settled())  # type: ignore[arg-type]


def with_objective(recipe: Recipe, objective: AnyObjective | None) -> Recipe:
    """The recipe with another objective, or with none, the agent's values for it, and its schedule at the agent's pace."""
    agent: Any = recipe.agent.beside(objective)
    paced: Any = objective
    if objective is not None:
        decision = recipe.env.action_repeat if recipe.budget.decisions is None else 1  # in the unit of the budget
        start, stride = agent.pace(objective)
        paced = objective.paced(decision * start, decision * stride)
    return replace(recipe, objective=paced, agent=agent)


# ── A recipe as text ──────────────────────────────────────────────────────────────────────────────────────────────────


def as_json(recipe: Recipe) -> str:
    """The recipe as indented JSON, in the order of the fields; equal recipes give equal text."""
    return json.dumps(asdict(recipe), indent=2)


def digest(recipe: Recipe) -> str:
    """Eight characters that distinguish recipes, for the names of run directories."""
    return digest_of_text(as_json(recipe))


def digest_of_text(text: str) -> str:
    """The digest of a recipe's text, which another version of maskrl may have written."""
    return hashlib.sha256(json.dumps(json.loads(text), indent=2).encode()).hexdigest()[:8]


def is_unused(recipe: Recipe, path: str) -> bool:
    """Whether nothing reads this value: without an objective, there is no optimiser of one."""
    return recipe.objective is None and path.startswith("agent.auxiliary.")


def leaves(recipe: Recipe) -> dict[str, Any]:
    """Dotted path → value, in the order of the fields. A missing objective is one leaf, None."""
    return dict(tree_leaves("", asdict(recipe)))


def difference(a: Recipe, b: Recipe) -> list[str]:
    """The differences between two recipes, with values as in overrides: "objective.mask.ratio: 0.5 -> 0.3"."""
    return list(_difference("", asdict(a), asdict(b)))


def tree_leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values of nested groups by their dotted paths."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from tree_leaves(f"{path}.{name}".lstrip("."), inner)
    else:
        yield path, value


def _difference(path: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict) and a.get("kind") == b.get("kind"):
        for name in {**a, **b}:  # free keys, such as an environment's arguments, may be in only one
            yield from _difference(f"{path}.{name}".lstrip("."), a.get(name), b.get(name))
    elif a != b:
        yield f"{path}: {as_override(a)} -> {as_override(b)}"


def as_override(value: Any) -> str:
    """A value as typed in an override; for a group, its kind."""
    if isinstance(value, dict):
        return str(value.get("kind") or json.dumps(value))
    if isinstance(value, tuple | list):
        return ",".join(as_override(item) for item in value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
