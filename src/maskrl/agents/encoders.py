"""The encoders of agents: the paper's two, a larger one for larger frames, or a user's module."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pydantic
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from maskrl.config import Config
from maskrl.files import RunError
from maskrl.nn.encoders import ControlEncoder, Encoder, ImpalaEncoder, NatureEncoder, OwnEncoder

Shape = tuple[int, int, int]  # (C, H, W) of an observation
Factory = Callable[[Shape], nn.Module]

# Factories passed from Python in this process, by name: a recipe is text and cannot hold them.
_given: dict[str, Factory] = {}


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """The base of every encoder's config."""

    kind: str

    def build(self, obs_shape: Shape) -> Encoder:
        raise NotImplementedError

    def flops(self, obs_shape: Shape) -> float:
        """FLOP of a forward pass for one observation, counted on tensors without data."""
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), torch.device("meta"):
            encoder, obs = self.build(obs_shape), torch.empty(1, *obs_shape)
            with counter:
                encoder(obs)
        return counter.get_total_flops()

    @property
    def squashes(self) -> bool:
        """Whether a tanh ends the encoder, and then also the actor's own layer."""
        return False

    @property
    def is_portable(self) -> bool:
        """Whether another process can build it."""
        return True

    def with_linear_init(self, linear_init: str) -> "EncoderConfig":
        """The config with this initialisation of the linear layer, if the encoder has that option."""
        return self


@dataclass(frozen=True, kw_only=True)
class ControlEncoderConfig(EncoderConfig):
    """See `ControlEncoder`."""

    kind: Literal["control"] = "control"
    filters: int = 64
    latent_dim: int = 50
    strides: tuple[int, ...] = (2, 1, 1, 1)
    convolution_init: Literal["delta_orthogonal", "orthogonal"] = "delta_orthogonal"
    linear_init: Literal["orthogonal", "truncated_normal"] = "orthogonal"  # MLR's recipes set truncated_normal
    squash: bool = False  # True: a tanh at the end, also of the actor's own layer (SAC+AE, DrQ)
    centre: bool = False  # True: pixels in [-½, ½] (DrQ-v2)

    @property
    def squashes(self) -> bool:
        return self.squash

    def with_linear_init(self, linear_init: Any) -> "ControlEncoderConfig":
        return replace(self, linear_init=linear_init)

    def build(self, obs_shape: Shape) -> ControlEncoder:
        return ControlEncoder(obs_shape, **_values(self))


@dataclass(frozen=True, kw_only=True)
class NatureEncoderConfig(EncoderConfig):
    """See `NatureEncoder`."""

    kind: Literal["nature"] = "nature"
    filters: tuple[int, ...] = (32, 64, 64)
    kernels: tuple[int, ...] = (8, 4, 3)
    strides: tuple[int, ...] = (4, 2, 1)
    renormalise: bool = True  # False: leave the map unscaled (CURL)
    dropout: float = 0.0  # after every convolution, in updates only (SPR without augmentation)
    latent_dim: int | None = None  # a linear layer of this width and a norm at the end; None: the map itself

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "latent_dim")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must lie in [0, 1): it is the share of units that are dropped.")
        if not len(self.filters) == len(self.kernels) == len(self.strides):
            raise ValueError(
                f"filters={self.filters}, kernels={self.kernels} and strides={self.strides} must be equally long."
            )
        if min((*self.filters, *self.kernels, *self.strides), default=0) < 1:
            raise ValueError("filters, kernels and strides must have at least one entry each, all at least 1.")

    def build(self, obs_shape: Shape) -> NatureEncoder:
        return NatureEncoder(obs_shape, **_values(self))


@dataclass(frozen=True, kw_only=True)
class ImpalaEncoderConfig(EncoderConfig):
    """See `ImpalaEncoder`."""

    kind: Literal["impala"] = "impala"
    filters: tuple[int, ...] = (16, 32, 32)  # per stage; each stage halves the sides of the map
    latent_dim: int | None = None  # as for nature

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "latent_dim")
        if min(self.filters, default=0) < 1:
            raise ValueError(f"filters={self.filters} must have at least one entry, all at least 1.")

    def build(self, obs_shape: Shape) -> ImpalaEncoder:
        return ImpalaEncoder(obs_shape, **_values(self))


@dataclass(frozen=True, kw_only=True)
class OwnEncoderConfig(EncoderConfig):
    """A user's module: `maskrl.recipe(…, encoder=MyEncoder)`. See `OwnEncoder`."""

    kind: Literal["own"] = "own"
    name: str  # of the class or function that builds it

    @classmethod
    def of(cls, factory: Factory) -> "OwnEncoderConfig":
        if not callable(factory) or isinstance(factory, nn.Module):
            raise TypeError(
                f"encoder={type(factory).__name__}: expected a class or function that takes the shape (C, H, W) of an observation "
                "and returns an nn.Module. An agent builds it more than once, so pass the class, not a module."
            )
        name = f"{factory.__module__}.{getattr(factory, '__qualname__', type(factory).__name__)}"
        _given[name] = factory
        return cls(name=name)

    @property
    def is_portable(self) -> bool:
        return False

    def flops(self, obs_shape: Shape) -> float:
        """Unknown, so it is never taken for small."""
        return math.inf

    def build(self, obs_shape: Shape) -> OwnEncoder:
        factory = _given.get(self.name)
        if factory is None:
            raise RunError(
                f"This run's encoder is {self.name}, a class of your own, which maskrl does not import by itself. Pass it: "
                f"maskrl.load(run, encoder={self.name.rpartition('.')[2]}), maskrl.export(run, file, encoder=…) to export, or "
                "maskrl.recipe(…, encoder=…) to train."
            )
        return OwnEncoder(factory(obs_shape), obs_shape, self.name)


AnyEncoder = Annotated[
    ControlEncoderConfig | NatureEncoderConfig | ImpalaEncoderConfig | OwnEncoderConfig,
    pydantic.Field(discriminator="kind"),
]


def _values(config: EncoderConfig) -> dict[str, Any]:
    return {name: value for name, value in vars(config).items() if name != "kind"}
