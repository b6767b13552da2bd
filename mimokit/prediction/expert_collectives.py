"""Collectives of experts that the ranks of a tensor-parallel group have.

Experts see the ranks of a stage in groups of their own, which may have the same ranks as those of
tensor parallelism: then both are one process group. Per layer with experts, and way:

| group | forward | backward |
|---|---|---|
| expert tensor and expert parallel | how many tokens go to each expert | |
| expert parallel | tokens and their weights there, results back | their gradients |
| expert tensor parallel | the same | their gradients |
| both, where all tokens are gathered | the same, and to which experts they go | their gradients |
| all that share the tokens of a mean | tokens of each expert, for an auxiliary loss | |
| all that share a sequence | scores, where an expert has a capacity | |
"""

from __future__ import annotations

from mimokit.axes import Axis
from mimokit.config import ModuleArchitecture
from mimokit.planning.ranks import ModuleRanks

_DISPATCH = 3
"""Tokens, their weights, results."""

_EXPERTS = (Axis.EXPERT_TENSOR, Axis.EXPERT)
_SEQUENCE = (Axis.TENSOR, Axis.CONTEXT)


def expert_calls(
    network: ModuleArchitecture, ranks: ModuleRanks, dispatcher: str
) -> tuple[int, int]:
    """Return how often ranks of a tensor-parallel group meet for the experts of a layer.

    Returns:
        In the forward pass of training, and in the backward pass.
    """
    groups = [_EXPERTS] if dispatcher == "allgather" else [(axis,) for axis in _EXPERTS]
    dispatch = _DISPATCH * sum(_has_experts(ranks, axes) for axes in groups)
    ahead = dispatch + _has_experts(ranks, _EXPERTS)
    kind = network.moe_router_load_balancing_type or "aux_loss"
    if network.moe_aux_loss_coeff and kind != "none":
        of_mean = _SEQUENCE if kind == "seq_aux_loss" else (*_SEQUENCE, Axis.DATA)
        ahead += _has_tensors(ranks, of_mean)
    if network.moe_expert_capacity_factor is not None:
        ahead += _has_tensors(ranks, _SEQUENCE)
    return ahead, dispatch


def expert_reductions(ranks: ModuleRanks) -> int:
    """Return how often they meet in a step for the sum of gradients of experts."""
    return int(_has_experts(ranks, (Axis.EXPERT_DATA,)))


def _has_experts(ranks: ModuleRanks, axes: tuple[Axis, ...]) -> bool:
    """Whether groups over axes of experts are those of tensor parallelism."""
    return ranks.expert_view().groups(*axes) == ranks.groups(Axis.TENSOR)


def _has_tensors(ranks: ModuleRanks, axes: tuple[Axis, ...]) -> bool:
    """Whether groups over the axes are those of tensor parallelism."""
    return ranks.size_of(*axes) == ranks.tensor_parallel
