"""The base of every config class: strict values, unknown keys refused, sentences for errors."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mimokit.config.errors import ConfigError
from mimokit.config.messages import problems_of

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]


class ConfigModel(BaseModel):
    """A mutable record whose constructor and attributes refuse wrong values.

    Raises:
        ConfigError: one problem per wrong, missing or unknown field, all at once.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        validate_assignment=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
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
