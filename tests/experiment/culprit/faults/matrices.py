"""Faults of matrices that tensor-parallel ranks share."""

from typing import Any

from tests import seams
from tests.experiment.culprit.faults.fault import BACKWARD, FORWARD, IMAGES, LANGUAGE, LAST, Fault
from tests.experiment.culprit.faults.layouts import parts, recomputed
from tests.planted import replacing


def _identity(original: Any) -> Any:
    return lambda tensor, *args, **named: tensor


@replacing
def _twice(original: Any, tensor: Any, *args: Any, **named: Any) -> Any:
    return original(original(tensor, *args, **named), *args, **named)


@replacing
def _no_input_reduction(original: Any, self: Any, *args: Any, **named: Any) -> Any:
    """Leave the sum of the input's gradient over tensor-parallel ranks out."""
    self.allreduce_dgrad, self.disable_grad_reduce = False, True
    return original(self, *args, **named)


@replacing
def _no_reduction_of_fc1(original: Any, self: Any, *args: Any, **named: Any) -> Any:
    self.linear_fc1.allreduce_dgrad = False
    self.linear_fc1.disable_grad_reduce = True
    return original(self, *args, **named)


@replacing
def _other_group_when_recomputed(original: Any, tensor: Any, *args: Any, **named: Any) -> Any:
    """Add up over a group of one rank where layers are computed again.

    Finding 4 of Megatron-LM 7452.
    """
    import torch

    in_backward = torch._C._current_graph_task_id() != -1
    return tensor if in_backward else original(tensor, *args, **named)


FAULTS = (
    Fault("no sum over tensor-parallel ranks", parts,
          seams.REDUCE_TENSOR_PARALLEL, _identity,
          IMAGES, "self_attention.linear_proj", FORWARD, "not added up"),
    Fault("a sum over tensor-parallel ranks done twice", parts,
          seams.REDUCE_TENSOR_PARALLEL, _twice,
          IMAGES, "self_attention.linear_proj", FORWARD, "which is tensor_parallel"),
    Fault("no sum of the input's gradient", parts,
          seams.COLUMN_PARALLEL, _no_input_reduction,
          LANGUAGE, "output_layer", BACKWARD, "not added up"),
    Fault("the same in feed-forward layers alone", parts,
          seams.MLP, _no_reduction_of_fc1,
          LANGUAGE, f"{LAST}.mlp.linear_fc1", BACKWARD, "not added up"),
    Fault("layers computed again over another group", recomputed,
          seams.REDUCE_TENSOR_PARALLEL, _other_group_when_recomputed,
          LANGUAGE, f"{LAST}.mlp.linear_fc1", BACKWARD),
)  # fmt: skip
