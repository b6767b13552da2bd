"""Faults that a stepper's view must find and name by itself; each runs on the ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests import seams


@dataclass(frozen=True)
class StepFault:
    """A fault of a fan-out on shared ranks.

    Attributes:
        make: takes the original function, returns what takes its place.
        words: what the view says, in this order.
        module: whose ranks are red.
        pictures: of what came; ranks that took the same share one.
    """

    name: str
    target: str
    make: Callable[[Any], Any]
    words: str
    module: str
    pictures: int


def _rows_shifted(original: Any) -> Any:
    import torch.distributed as dist

    def send(self: Any, message: Any, microbatch: int) -> None:
        rank = dist.get_rank()
        if self._direction == 0 and self._taken_by[rank][0] > self._sent_by[rank][0]:
            message = message.carrying(message.tensor.roll(1, 0))
        original(self, message, microbatch)

    return send


def _gradient_rolled(original: Any) -> Any:
    def gather_in_place(whole: Any, sizes: Any, group: Any) -> None:
        original(whole, sizes, group)
        whole.copy_(whole.roll(1, 0))

    return gather_in_place


def _images_reversed(original: Any) -> Any:
    import torch.distributed as dist

    def inputs(self: Any, given: Any) -> Any:
        items, tensors = original(self, given)
        if tensors is not None and dist.get_rank() > 1:
            tensors = {name: tensor.flip(0) for name, tensor in tensors.items()}
        return items, tensors

    return inputs


FAULTS = (
    StepFault(
        "rows shifted",
        seams.SEND_ROWS,
        _rows_shifted,
        r"rank.* took the output of 'images', micro-batch 0: rows \d+–\d+ came instead of rows",
        "language_module",
        2,
    ),
    StepFault(
        "gradient rolled",
        seams.GATHER_ROWS,
        _gradient_rolled,
        r"took the gradient of 'images', micro-batch 0: the rows are rolled by 1",
        "images",
        2,
    ),
    StepFault(
        "images reversed",
        seams.ENCODER_INPUTS,
        _images_reversed,
        r"ranks 2–3 took the input of 'images', micro-batch 0: the items are in reverse order: "
        r"item \d+ came for item 0",
        "images",
        1,
    ),
)
