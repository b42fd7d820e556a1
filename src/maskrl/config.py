"""The base of every configuration: frozen, keyword-only, beside what it builds, and read by its `build` alone."""

import math
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True, kw_only=True)
class Config:
    """Validates field values at construction, and writes equal numbers in one way: 2.0 updates are 2, a rate of 1 is 1.0."""

    # Read by whoever parses a config from outside (see recipes/schema.py): no unknown keys, no NaN.
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    def __post_init__(self) -> None:
        types = get_type_hints(type(self))
        for field in fields(self):
            value, annotation = getattr(self, field.name), types[field.name]
            here = f"{field.name}={value!r} of {type(self).__name__}"
            if get_origin(annotation) is Literal and value not in get_args(annotation):
                choices = ", ".join(repr(choice) for choice in get_args(annotation))
                raise ValueError(
                    f"{field.name}={value!r} is not a choice of {type(self).__name__}: use one of {choices}."
                )
            accepted = (annotation, *get_args(annotation))
            if isinstance(value, float) and int in accepted and float not in accepted:
                raise ValueError(f"{here} must be a whole number.")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{here} must be finite.")
            if isinstance(value, float) and value.is_integer() and int in accepted:
                object.__setattr__(self, field.name, int(value))
            if type(value) is int and float in accepted and int not in accepted:
                object.__setattr__(self, field.name, float(value))

    def require_positive(self, *names: str) -> None:
        """Refuse fields that are not above 0; None is left out."""
        for name in names:
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name}={value} must be positive.")

    def require_at_least(self, least: int, *names: str) -> None:
        """Refuse fields that are smaller; None is left out."""
        for name in names:
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name}={value} of {type(self).__name__} must be at least {least}.")
