"""The base of every configuration: frozen, keyword-only, living beside what it builds, and read by its `build` alone."""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True, kw_only=True)
class Config:
    """Refuses a value outside a closed set of choices when it is made, not when it is first used."""

    # Whoever reads one from JSON refuses what it does not have; pydantic is not needed for that here.
    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    def __post_init__(self) -> None:
        types = get_type_hints(type(self))
        for field in fields(self):
            value, annotation = getattr(self, field.name), types[field.name]
            if get_origin(annotation) is Literal and value not in get_args(annotation):
                choices = ", ".join(repr(choice) for choice in get_args(annotation))
                raise ValueError(
                    f"{field.name}={value!r} is not a choice of {type(self).__name__}: use one of {choices}."
                )
