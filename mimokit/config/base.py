"""The base of every config class: strict values, unknown keys rejected, sentences for errors."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mimokit.config.errors import ConfigError
from mimokit.config.messages import problems_of

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]

LARGEST_NUMBER = 2**53
"""Of a config. Up to it floats hold whole numbers exactly, so that no prediction overflows."""

Positive = Annotated[int, Field(ge=1, le=LARGEST_NUMBER)]
NotNegative = Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]

LARGEST_SIZE = 2**31 - 1
"""Of a network; no width, count or vocabulary reaches it."""

Size = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]
SizeOrZero = Annotated[int, Field(ge=0, le=LARGEST_SIZE)]


class PassedChecks(dict[str, str]):
    """The checks that a config has passed, each with the content that it had.

    A config is mutable: a check is valid for as long as the content is the same. Configs that
    differ in passed checks alone are equal.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PassedChecks)


def world_check(world_size: object) -> str:
    """Return the name of the check of all rules in a world; None: in the world that is needed."""
    return f"all rules with {world_size!r} ranks"


class ConfigModel(BaseModel):
    """A mutable record whose constructor and attributes reject wrong values.

    Raises:
        ConfigError: one problem per wrong, missing or unknown field, all at once.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        validate_assignment=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        defer_build=True,
    )

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(problems_of(error, type(self))) from None

    # Without this mark pydantic would call the constructor above for nested records too, and
    # the path of a nested problem would be lost.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            raise ConfigError(problems_of(error, type(self))) from None
