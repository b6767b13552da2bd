"""Remember what functions of one layout returned: variants of a layout share most modules."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

MOST = 512
"""Answers of a function that are remembered."""

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def remembered(compute: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Return a function that computes the same arguments once; arrays of layouts each time."""
    once = functools.lru_cache(MOST)(compute)

    @functools.wraps(compute)
    def of_one_or_many(*given: Given.args, **named: Given.kwargs) -> Answer:
        try:
            return once(*given, **named)  # type: ignore[arg-type]
        except TypeError:  # an array has no hash
            return compute(*given, **named)

    return of_one_or_many
