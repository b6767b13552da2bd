"""Calls a forward step of the user's: what it is handed, and what it has to return."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from mimokit.config.user_code import ForwardStep
from mimokit.engine.data.batch import Batch
from mimokit.engine.parallel.loss import sum_and_tokens

LossFunction = Callable[[torch.Tensor], tuple[Any, ...]]
"""Output -> (sum of the losses of unmasked tokens, their number, anything else)."""

_PACKAGE = Path(__file__).parents[2]


class ForwardStepError(RuntimeError):
    """A forward step of the user's raised, or returned something else than it must."""


class OneBatch(Iterator[Batch]):
    """The data iterator of one micro-batch in `train` and `verify`: it gives one batch.

    Args:
        batch: of the micro-batch on this rank.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch: Batch | None = dict(batch)

    def __next__(self) -> Batch:
        """Return the batch.

        Raises:
            ForwardStepError: it has been taken.
        """
        if self._batch is None:
            raise ForwardStepError(
                "The forward step took a second batch from its data iterator; it is called for "
                "every micro-batch and must take one."
            )
        batch, self._batch = self._batch, None
        return batch


def call_forward_step(
    forward_step: ForwardStep, data_iterator: Any, model: torch.nn.Module
) -> tuple[Any, Any]:
    """Return the output of a micro-batch and its loss function.

    Args:
        forward_step: of the user.
        data_iterator: is handed to it.
        model: is handed to it.

    Raises:
        ForwardStepError: it raised outside of mimokit, or returned something else.
    """
    returned = _called("forward step", forward_step, data_iterator, model)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise ForwardStepError(
            f"The forward step {_name(forward_step)} returned {_described(returned)}; it must "
            "return two things: the output of the model, and a function of it that returns the "
            "sum of the losses and the number of their tokens."
        )
    output, loss_function = returned
    return output, loss_function


def loss_of_output(
    forward_step: ForwardStep, output: Any, loss_function: Any
) -> tuple[torch.Tensor, float]:
    """Return the sum of the losses of a micro-batch and the number of their tokens.

    Args:
        forward_step: that returned both.
        output: of the model.
        loss_function: of the output.

    Raises:
        ForwardStepError: the loss function is not a function, or raised outside of mimokit.
        ValueError: it returned something else than a sum and a number of tokens.
    """
    if not callable(loss_function):
        raise ForwardStepError(
            f"The forward step {_name(forward_step)} returned {_described(loss_function)} as its "
            "loss function; it must be a function of the output that returns the sum of the "
            "losses and the number of their tokens."
        )
    return sum_and_tokens(_called("loss function", loss_function, output))


def _called(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's; an error of mimokit or of a collective stays as it is."""
    try:
        return function(*arguments)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]
        if isinstance(error, ForwardStepError) or any(_ours(frame) for frame in frames):
            error.add_note(f"In the {what} {_name(function)}.")
            raise
        where = f" in line {frames[0].lineno} of {frames[0].filename}" if frames else ""
        raise ForwardStepError(
            f"The {what} {_name(function)} raised {type(error).__name__}{where}: {error}"
        ) from error


def _ours(frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename).is_relative_to(_PACKAGE)


def _name(function: Any) -> str:
    inner = getattr(function, "func", function)  # of a partial
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def _described(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
