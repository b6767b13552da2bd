"""Puts dispatch around the forward of any encoder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any


def wrap_vit_forward(
    input_dispatch: Callable[..., tuple[Any, Any]],
    orig_forward: Callable[..., Any],
    output_dispatch: Callable[[Any, Any], Any],
) -> Callable[..., Any]:
    """Return a forward that dispatches its inputs and its outputs.

    Args:
        input_dispatch: takes what the forward takes; returns (inputs, context). The inputs are a
            mapping of keyword arguments or a sequence of positional ones, with `self` first where
            the forward has it.
        output_dispatch: (context, what the forward returned) -> what the wrapped one returns.
    """

    @functools.wraps(orig_forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        inputs, context = input_dispatch(*args, **kwargs)
        named = isinstance(inputs, Mapping)
        outputs = orig_forward(**inputs) if named else orig_forward(*inputs)
        return output_dispatch(context, outputs)

    return forward
