"""Faults of bridges between modules, and of messages between stages."""

from dataclasses import replace
from functools import partial
from typing import Any

from tests import seams
from tests.experiment.culprit.faults.fault import BACKWARD, FORWARD, IMAGES, LANGUAGE, LAST, Fault
from tests.experiment.culprit.faults.layouts import apart, fan_in, fan_out, stages
from tests.planted import replacing
from tests.whole_runs import inner_layers_on_stages


@replacing
def _zero_padded(original: Any, whole: Any, sizes: Any, group: Any) -> None:
    """Leave the rows of other replicas 0 where their gradient is gathered."""
    for rank, part in enumerate(whole.split(list(sizes))):
        if rank != group.rank():
            part.zero_()


def _halves_of_gradients(original: Any) -> Any:
    """Average instead of adding: the backward pass of a fan-in, which keeps rows."""
    return lambda self: [piece / (1 + self.tag.direction) for piece in original(self)]


@replacing
def _gathered_backwards(original: Any, whole: Any, sizes: Any, group: Any) -> None:
    """Put the pieces of a gather group together in reverse order of the ranks."""
    import torch

    original(whole, sizes, group)
    whole.copy_(torch.cat(torch.split(whole, list(sizes))[::-1]))


@replacing
def _one_further(original: Any, self: Any, message: Any, microbatch: int) -> None:
    """Keep the rows after those of this rank."""
    if self._direction == 0:
        message = message.carrying(message.tensor.roll(-1, 0))
    original(self, message, microbatch)


@replacing
def _rows_flipped(
    backward: bool,
    original: Any,
    self: Any,
    message: Any,
    edge: Any,
    microbatch: int,
    direction: int,
) -> None:
    """Send rows in the wrong order."""
    if bool(direction) == backward:
        message = replace(message, tensor=message.tensor.flip(0))
    original(self, message, edge, microbatch, direction)


@replacing
def _sent_twice(
    backward: bool,
    original: Any,
    self: Any,
    message: Any,
    edge: Any,
    microbatch: int,
    direction: int,
) -> None:
    """Send twice the numbers between the stages of one module."""
    stages = self.pipeline.graph.stages
    inside = stages[edge.source].module == stages[edge.destination].module
    if bool(direction) == backward and inside:
        message = replace(message, tensor=2 * message.tensor)
    original(self, message, edge, microbatch, direction)


@replacing
def _in_another_order(
    original: Any, self: Any, *args: Any, context: Any = None, **options: Any
) -> Any:
    """Add the rows of inner layers of an encoder in the layers of each other."""
    if context is not None and self.number == 1 and not self._inner:
        context = context.roll(self.config.hidden_size, -1)
    return original(self, *args, context=context, **options)


FAULTS = (
    Fault("inner layers in another order", inner_layers_on_stages,
          seams.LAYER, _in_another_order,
          LANGUAGE, "decoder.layers.0", FORWARD),
    Fault("rows of other replicas are 0", fan_out, seams.GATHER_ROWS, _zero_padded,
          IMAGES, "bridge", BACKWARD, "not added up"),
    Fault("a bridge averages gradients", fan_in, seams.ROWS_KEPT, _halves_of_gradients,
          IMAGES, "bridge", BACKWARD, "0.5 times"),
    Fault("pieces gathered in reverse order", fan_in, seams.GATHER_ROWS, _gathered_backwards,
          IMAGES, "bridge", FORWARD),
    Fault("rows kept one too far", fan_out, seams.SEND_ROWS, _one_further,
          IMAGES, "bridge", FORWARD, "shifted by -1"),
    Fault("rows sent in reverse order", apart, seams.SEND, partial(_rows_flipped, False),
          IMAGES, "bridge", FORWARD, "reverse order"),
    Fault("gradients sent in reverse order", apart, seams.SEND, partial(_rows_flipped, True),
          IMAGES, "bridge", BACKWARD, "reverse order"),
    Fault("hidden states doubled between stages", stages, seams.SEND, partial(_sent_twice, False),
          LANGUAGE, "decoder.layers.2.input", FORWARD, "2 times"),
    Fault("gradients doubled between stages", stages, seams.SEND, partial(_sent_twice, True),
          LANGUAGE, f"{LAST}.output", BACKWARD, "2 times"),
)  # fmt: skip
