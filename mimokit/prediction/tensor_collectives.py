"""Collectives of the tensor parallel groups of a layout in one optimizer step.

Those of layers, embedding, output and projector are in `mimokit.architecture.layer_work`; here are
those around the slices of sequence parallelism. A part through which no gradient passes has none
backward. Those by which a bridge on shared ranks compares the outputs of an encoder's ranks, in
some steps, are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mimokit.architecture.from_config import branch_of_config, net_of_config
from mimokit.architecture.layer_work.collectives import (
    WAYS,
    End,
    LayerCollective,
    end_collectives,
    layer_collectives,
    tensor_calls,
)
from mimokit.architecture.layers_on_stage import stage_layers
from mimokit.axes import Axis, Choice
from mimokit.config import ExperimentConfig, ModuleArchitecture
from mimokit.config.runtime import FRAME_PARALLEL
from mimokit.config.sizes import RECOMPUTE_FULL, ParallelSizes
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.types import LayoutPlan


@dataclass(frozen=True)
class CollectiveSpan:
    """How many collectives are planned: from `least`, where micro-batches lack items, to `most`."""

    least: int
    most: int

    def __contains__(self, counted: int) -> bool:
        return self.least <= counted <= self.most

    def __add__(self, other: CollectiveSpan) -> CollectiveSpan:
        return CollectiveSpan(self.least + other.least, self.most + other.most)

    def __str__(self) -> str:
        return f"{self.most}" if self.least == self.most else f"{self.least} to {self.most}"


def tensor_collectives(
    config: ExperimentConfig, plan: LayoutPlan, rank: int, lacking: Collection[str] = ()
) -> Mapping[str, CollectiveSpan]:
    """Return module -> planned collectives of the tensor parallel group of a rank in a step.

    Where modules share a group, the first of them has those of all.
    """
    shared: dict[tuple[object, ...], list[str]] = {}
    for name, ranks in plan.modules.items():
        if rank in ranks.ranks and ranks.tensor_parallel > 1:
            shared.setdefault(plan.groups_key(name), []).append(name)
    counts = {}
    for names in shared.values():
        spans = [_of_step(config, plan, name, rank, lacking) for name in names]
        counts[names[0]] = sum(spans, CollectiveSpan(0, 0))
    return counts


def may_lack_items(config: ExperimentConfig) -> frozenset[str]:
    """Return the encoders that may have no items in a micro-batch of the default data."""
    encoders = frozenset(config.model.encoder_module_names)
    if FRAME_PARALLEL in config.runtime.patch_type:  # a replica may be given no frame
        return encoders
    data = config.data
    without = {name for name, counts in data.modality_frames.items() if 0 in counts}
    lacking = {*without, *data.modality_presence}
    return frozenset(name for name in encoders if lacking.issuperset(config.model.inputs_of(name)))


def _of_step(
    config: ExperimentConfig, plan: LayoutPlan, name: str, rank: int, lacking: Collection[str]
) -> CollectiveSpan:
    ranks, sizes = plan.modules[name], plan.executions[name].sizes
    network = config.model.get_architecture(name)
    net, is_encoder = net_of_config(network, causal=True), name in config.model.encoder_module_names
    stage, further = ranks.coordinates(rank)["pp"], network.mtp_num_layers or 0
    layers = stage_layers(net.layers, net.dense_layers, sizes, stage, further)
    is_last, ends = rank in ranks.stage(-1), list[End]()
    further *= is_last
    dense = int(layers.dense) + further * (net.moe is None)
    mixed = int(layers.expert) + further * (net.moe is not None)
    is_frozen = "encoder" in network.frozen_parts
    of_experts = expert_calls(network, ranks, plan.executions[name], is_encoder)
    more_ahead, more_back = net.attention.more_calls(net, sizes, not is_frozen)
    more_back += more_ahead * (sizes.recompute == RECOMPUTE_FULL)
    ahead, back = (
        dense * tensor_calls(layer_collectives(net, None, sizes, way))
        + mixed * (tensor_calls(layer_collectives(net, net.moe, sizes, way)) + calls)
        + (dense + mixed) * more
        for way, calls, more in zip(WAYS, of_experts, (more_ahead, more_back), strict=True)
    )
    if name == plan.llm_module_name and rank in ranks.stage(0):
        ends.append("embedding")
    if is_last and is_encoder:
        receivers = map(config.model.get_architecture, config.model.receivers_of(name))
        projectors = branch_of_config(name, network, *receivers).projectors
        ends += ["projector"] * sum(projector.meetings for projector in projectors)
    elif is_last:
        ends += ["output"] * (1 + further)
    cut, put_together = _around_slices(config, plan, name, rank)
    end_ahead, end_back = (
        sum(tensor_calls(end_collectives(end, 1, sizes, way)) for end in ends) for way in WAYS
    )
    joining_ahead, joining_back = _joining(sizes, is_frozen)
    forward = ahead + end_ahead + put_together + further * joining_ahead
    back += cut + further * joining_back
    if is_frozen:
        back -= dense * _gathers(layer_collectives(net, None, sizes, "forward"))
        back -= mixed * _gathers(layer_collectives(net, net.moe, sizes, "forward"))
        back -= sum(_gathers(end_collectives(end, 1, sizes, "forward")) for end in ends)
    if is_encoder:
        backward = config.model.layers_have_backward(name) * back
        most = forward + backward + config.model.has_backward(name) * end_back
        least = 0 if name in lacking else most
    else:
        most = forward + config.model.has_backward(name) * (back + end_back)
        # What is frozen has a gradient only from the items of an encoder before it.
        least = forward if lacking and config.model.is_frozen(name) else most
    count = plan.batch.num_microbatches
    of_ranks = sizes.sequence_parallel or net.qk_norm  # ranks norm other positions, or other heads
    summed = int(of_ranks and _trains_slices(config, name))
    if not config.model.is_frozen(name):
        summed += expert_reductions(network, ranks, mixed)
    return CollectiveSpan(count * least + summed, count * most + summed)


def _joining(sizes: ParallelSizes, is_frozen: bool) -> tuple[int, int]:
    """Return those in which a token further on is joined with a hidden state, of both passes.

    | | forward | backward |
    |---|---|---|
    | the embedding | an all-reduce | with slices an all-gather |
    | the projection | an all-gather, with slices two | an all-reduce, with slices three others |

    A layer that is recomputed projects again; what is frozen gathers nothing backward.
    """
    whole = 2 if is_frozen else 4
    projection, back = (2, whole) if sizes.sequence_parallel else (1, 1)
    again = sizes.recompute == RECOMPUTE_FULL
    return 1 + projection, back + projection * int(again)


def _gathers(collectives: Iterable[LayerCollective]) -> int:
    """Count the inputs of matrices that are gathered; backward again where these are trained."""
    return tensor_calls(
        each for each in collectives if each.kind == "all-gather" and not each.projected
    )


def _around_slices(
    config: ExperimentConfig, plan: LayoutPlan, name: str, rank: int
) -> tuple[int, int]:
    """Return what slices of a sequence need outside of layers, embedding and output.

    Returns:
        All-gathers backward, of the gradient of what was cut, and forward, of what is put together
        for work that all ranks do alike.
    """
    model, ranks = config.model, plan.modules[name]
    if not plan.executions[name].sizes.sequence_parallel:
        return 0, 0
    begins, ends = rank in ranks.stage(0), rank in ranks.stage(-1)
    if name in model.encoder_module_names:
        return int(begins and _trains_inputs(config, name)), int(ends)
    if name == plan.llm_module_name:
        return 0, int(ends and bool(plan.topology[name]))
    return int(begins and model.has_backward(plan.llm_module_name)), 0


def _trains_inputs(config: ExperimentConfig, name: str) -> bool:
    """Return whether what an encoder's layers take has a gradient: not that of frozen rows."""
    model = config.model
    if model.get_architecture(name).has_learned_positions(by_default=True):
        return True
    feeding = model.feeders_of(name)
    return not feeding or any(map(model.has_backward, feeding))


def _trains_slices(config: ExperimentConfig, name: str) -> bool:
    """Return whether gradients of slices are summed, once per step: those of norms, say."""
    network = config.model.get_architecture(name)
    if name in config.model.encoder_module_names:
        return "encoder" not in network.frozen_parts
    return not config.model.is_frozen(name)


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
