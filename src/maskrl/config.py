"""The base of every config: frozen and keyword-only, in the module of the class it builds, and read only by its `build`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

# The maximum of a number, by its name. A larger one is a typing error, and would cause a memory error or a crash after the run's
# directory was created. cost/forecast.py later checks what fits on the machine.
LARGEST = 10**6
MOST: Mapping[str, int] = {
    **dict.fromkeys(("frames", "decisions", "every", "capacity", "checkpoint_every", "max_frames"), 10**12),
    **dict.fromkeys(("warmup_decisions", "epsilon_decisions", "noise_decisions", "burst"), 10**12),
    **dict.fromkeys(("correction_updates", "warmup_updates"), 10**12),
    **dict.fromkeys(("target_every", "actor_every", "momentum_every"), 10**12),
    **{"seed": 2**62, "threads": 1024, "size": 4096, "timeout": 10**7, "parallel": 256},
    **dict.fromkeys(("frame_stack", "prefetch", "kernels", "strides", "decoder_depth"), 256),
    **dict.fromkeys(("filters", "hidden", "latent_dim", "decoder_width", "head_width", "atoms", "side_by_side"), 2**16),
}
LONGEST = 4096  # maximum characters of a text, and items of a list


# The types of the fields of a dataclass, cached: finding one recipe creates hundreds of configs, and each needs its types.
types_of: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Validates field values at construction, and normalises numbers: 2.0 updates become 2, a rate of 1 becomes 1.0."""

    # For parsers of external configs (see recipes/schema.py): no unknown keys, no NaN.
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    def __post_init__(self) -> None:
        types = types_of(type(self))
        for field in fields(self):
            value, annotation = getattr(self, field.name), types[field.name]
            if get_origin(annotation) is Literal and value not in get_args(annotation):
                choices = ", ".join(repr(choice) for choice in get_args(annotation))
                raise ValueError(
                    f"{field.name}={value!r} is not a choice of {type(self).__name__}: use one of {choices}."
                )
            accepted = (annotation, *get_args(annotation))
            if isinstance(value, float) and int in accepted and float not in accepted:
                raise ValueError(f"{field.name}={value!r} of {type(self).__name__} must be a whole number.")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{field.name}={value!r} of {type(self).__name__} must be finite.")
            self._require_within(field.name, value)
            if isinstance(value, float) and value.is_integer() and int in accepted:
                object.__setattr__(self, field.name, int(value))
            if type(value) is int and float in accepted and int not in accepted:
                object.__setattr__(self, field.name, float(value))

    def _require_within(self, name: str, value: object) -> None:
        """Raise ValueError for numbers, texts and lists above the limits."""
        if isinstance(value, str | tuple | list) and len(value) > LONGEST:
            raise ValueError(
                f"{name} of {type(self).__name__} has {len(value):,} characters or items: at most {LONGEST:,}."
            )
        most = MOST.get(name, LARGEST)
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, int | float) and abs(number) > most:
                seen = f"{number:.3g}" if isinstance(number, float) else _shortened(number)
                raise ValueError(f"{name}={seen} of {type(self).__name__} must be at most {most:,}.")

    def require_positive(self, *names: str) -> None:
        """Raise ValueError for fields that are not above 0; None is allowed."""
        for name in names:
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name}={value} must be positive.")

    def require_at_least(self, least: int, *names: str) -> None:
        """Raise ValueError for smaller fields; None is allowed."""
        for name in names:
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name}={value} of {type(self).__name__} must be at least {least}.")


def _shortened(number: int) -> str:
    """A whole number, or its number of digits if it is very long."""
    return (
        str(number) if abs(number) < 10**24 else f"a number of {math.ceil(number.bit_length() * math.log10(2))} digits"
    )
