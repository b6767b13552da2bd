"""`error.json`: why an experiment failed, or why it was rejected."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from mimokit.config import ConfigError


class TimeLimitError(RuntimeError):
    """A run took longer than it was allowed to."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"The run was ended at its time limit of {seconds:g} s.")

    def __reduce__(self) -> tuple[type[TimeLimitError], tuple[float]]:
        return type(self), (self.seconds,)


def error_record(error: BaseException, completed: Mapping[int, int]) -> dict[str, Any]:
    """Return the content of `error.json`.

    Args:
        completed: rank -> the number of iterations that it has reported.

    Returns:
        type and message of the error; `cause`, the type of the exception on the rank; rank, or
        None; step, the iteration (0-based) that was in progress, None if there was none;
        traceback, or None; sentences, the problems of a rejected config.
    """
    return {
        "type": type(error).__name__,
        "message": _first_paragraph(error),
        "cause": getattr(error, "type_name", None),
        "rank": getattr(error, "rank", None),
        # No rank ends an iteration before all have done their part of it, and the last report of
        # a rank that was killed may be lost.
        "step": max(completed.values(), default=None),
        "traceback": _traceback(error),
        "sentences": [one.sentence for one in error.problems]
        if isinstance(error, ConfigError)
        else [],
    }


def _first_paragraph(error: BaseException) -> str:
    """Return the message without the traceback that the message of a rank's error ends with."""
    trace = getattr(error, "traceback_text", None)
    text = str(error)
    return text.replace(trace.rstrip(), "").rstrip() if trace else text


def _traceback(error: BaseException) -> str | None:
    trace = getattr(error, "traceback_text", None)
    if trace is not None or hasattr(error, "rank") or isinstance(error, ConfigError):
        return trace
    if error.__traceback__ is None:
        return None
    return "".join(traceback.format_exception(error))
