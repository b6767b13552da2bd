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
| all that share a sequence | where an expert has a capacity: scores, samples, what counts | |

Ranks that gather all tokens first tell each other how many there are, where these may differ.
Layers that are recomputed whole have those of the forward pass in the backward pass, too; a loss is
computed only there, as the forward pass has no gradients.
"""

from mimokit.architecture.parallel_sizes import RECOMPUTE_FULL
from mimokit.axes import Axis, Choice
from mimokit.config import ModuleArchitecture
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.ranks import ModuleRanks

_DISPATCH = 3
"""Tokens, their weights, results."""

_CAPACITY = 3
"""Scores, the samples of tokens, and which tokens count."""

_EXPERTS = (Axis.EXPERT_TENSOR, Axis.EXPERT)
_SEQUENCE = (Axis.TENSOR, Axis.CONTEXT)
_REPLICAS = (*_SEQUENCE, Axis.DATA)


def expert_calls(
    network: ModuleArchitecture, ranks: ModuleRanks, execution: ModuleExecution, of_items: bool
) -> tuple[int, int]:
    """Return how often ranks of a tensor-parallel group meet for the experts of a layer.

    Args:
        of_items: the layer is an encoder's; ranks then have other numbers of tokens.

    Returns:
        In the forward pass of training, and in the backward pass.
    """
    gathered = execution.token_dispatcher == "allgather"
    groups = [_EXPERTS] if gathered else [(axis,) for axis in _EXPERTS]
    dispatch = _DISPATCH * sum(has_experts(ranks, axes) for axes in groups)
    uneven = gathered and (of_items or execution.samples_in_row)
    ahead = dispatch + (1 + uneven) * has_experts(ranks, _EXPERTS)
    if network.moe_expert_capacity_factor is not None:
        ahead += _CAPACITY * _has_tensors(ranks, _SEQUENCE)
    losses = _losses(network, ranks)
    if execution.size(Choice.RECOMPUTE) == RECOMPUTE_FULL:
        return ahead, dispatch + ahead + losses
    return ahead + losses, dispatch


def expert_reductions(network: ModuleArchitecture, ranks: ModuleRanks, layers: int) -> int:
    """Return how often they meet in a step for gradients of experts, and to move their biases."""
    gradients = layers > 0 and has_experts(ranks, (Axis.EXPERT_DATA,))
    moved = bool(network.moe_router_enable_expert_bias) and _has_tensors(ranks, _REPLICAS)
    return int(gradients) + layers * int(moved)


def _losses(network: ModuleArchitecture, ranks: ModuleRanks) -> int:
    kind = network.moe_router_load_balancing_type or "aux_loss"
    if not network.moe_aux_loss_coeff or kind == "none":
        return 0
    return int(_has_tensors(ranks, _SEQUENCE if kind == "seq_aux_loss" else _REPLICAS))


def has_experts(ranks: ModuleRanks, axes: tuple[Axis, ...]) -> bool:
    """Return whether groups over axes of experts are those of tensor parallelism."""
    return ranks.expert_view().groups(*axes) == ranks.groups(Axis.TENSOR)


def _has_tensors(ranks: ModuleRanks, axes: tuple[Axis, ...]) -> bool:
    return ranks.size_of(*axes) == ranks.tensor_parallel
