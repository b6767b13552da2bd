"""Bytes between ranks in one optimizer step, by kind of traffic.

Collectives are counted as rings, as NCCL and gloo run them for large tensors: every member sends
only to the next one. Numbers are fp32, as in mimokit's engine.

| kind | what | bytes that a rank sends, per step |
|---|---|---|
| bridge | outputs of one module to the next, and their gradients | the plan's transfers |
| pipeline | activations to the next stage, and gradients | samples x tokens x hidden / CP, twice |
| tensor | 2 all-reduces per layer, micro-batch and way; one gather of | 2 (t - 1) / t of what is |
| | queries where key and value heads are fewer than ranks | reduced, (t - 1) / t if gathered |
| context | keys and values around the ring, back with gradients | 6 (c - 1) x their size |
| expert | tokens to the experts that they visit and back, evenly | 2 (e - 1) / e of what they are |
| data | all-reduce of the gradients | 2 (d - 1) / d of the rank's parameters |

Frozen modules reduce no gradients. If no gradient passes a module, nothing is sent backward.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.from_config import model_of_config, net_of_config
from mimokit.architecture.layer_work.collectives import WAYS, LayerCollective, layer_collectives
from mimokit.architecture.modules import Module
from mimokit.architecture.rank_parameters import rank_parameters
from mimokit.architecture.tokens import geometry_of
from mimokit.axes import Axis
from mimokit.config import ExperimentConfig
from mimokit.config.sizes import ParallelSizes
from mimokit.planning.bridges.routes import Route
from mimokit.planning.execution import NUMBER_BYTES
from mimokit.planning.layout import ConfigSource, checked_config, plan_checked
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.workload import modules_of

KINDS = ("bridge", "pipeline", "tensor", "context", "expert", "data")

Ranks = NDArray[np.int64]
Bytes = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Flow:
    """Bytes per step from rank to rank; a pair may be listed several times."""

    kind: str
    sources: Ranks
    destinations: Ranks
    sent: Bytes


@dataclass(frozen=True, eq=False)
class Traffic:
    """All flows of a layout.

    Attributes:
        flows: by kind, without kinds that move no bytes.
    """

    world_size: int
    flows: Mapping[str, Flow]

    @cached_property
    def total(self) -> Mapping[str, float]:
        """Kind -> bytes per step over all ranks."""
        return {kind: float(flow.sent.sum()) for kind, flow in self.flows.items()}

    def matrix(self, kind: str, ranks_per_block: int = 1) -> Bytes:
        """Return bytes [sending block, receiving block] between blocks of consecutive ranks.

        Raises:
            KeyError: the layout has no traffic of this kind.
        """
        flow = self.flows[kind]
        blocks = -(-self.world_size // ranks_per_block)
        places = flow.sources // ranks_per_block * blocks + flow.destinations // ranks_per_block
        counted = np.bincount(places, weights=flow.sent, minlength=blocks * blocks)
        matrix: Bytes = counted.astype(np.float64).reshape(blocks, blocks)
        return matrix


def traffic(config: ConfigSource, world_size: int | None = None) -> Traffic:
    """Return what the ranks of a layout send each other in one step.

    Args:
        config: a config, a mapping in the form of a YAML file, the path of one, or `preset:NAME`.
        world_size: ranks of the world; None: as many as the modules need.

    Raises:
        ConfigError: as `plan`.
    """
    checked = checked_config(config, world_size)
    return traffic_of_plan(checked, plan_checked(checked, world_size))


def traffic_of_plan(config: ExperimentConfig, plan: LayoutPlan) -> Traffic:
    """Return what the ranks of a plan, or of one replica of it, send each other in one step."""
    plan = plan.of_replica(0)
    by_kind: dict[str, list[Flow]] = {kind: [] for kind in KINDS}
    for flow in (*_bridges(plan), *_modules(config, plan)):
        if flow.sent.any():
            by_kind[flow.kind].append(flow)
    return Traffic(
        plan.world_size, {kind: _joined(kind, flows) for kind, flows in by_kind.items() if flows}
    )


def _joined(kind: str, flows: list[Flow]) -> Flow:
    return Flow(
        kind,
        np.concatenate([flow.sources for flow in flows]),
        np.concatenate([flow.destinations for flow in flows]),
        np.concatenate([flow.sent for flow in flows]),
    )


def _ring(kind: str, groups: Ranks, sent: float) -> Flow:
    return _pairs(kind, groups.reshape(-1), np.roll(groups, -1, axis=1).reshape(-1), sent)


def _pairs(kind: str, sources: Ranks, destinations: Ranks, sent: Any) -> Flow:
    whole = np.broadcast_to(np.asarray(sent, dtype=np.float64), sources.shape)
    return Flow(kind, sources, destinations, whole)


def _bridges(plan: LayoutPlan) -> Iterator[Flow]:
    count = plan.batch.num_microbatches
    for bridge in plan.bridges:
        for route in (bridge.forward, bridge.backward):
            yield from _between(route, count)
            yield from _within(route, count)


def _between(route: Route, count: int) -> Iterator[Flow]:
    moving = [transfer for transfer in route.transfers if transfer.moves]
    if moving:
        rows = np.array([_columns(transfer) for transfer in moving], dtype=np.int64)
        samples = rows[:, 3] - rows[:, 2]
        per_sample = route.bytes_between / max(1, int(samples.sum()))
        yield _pairs("bridge", rows[:, 0], rows[:, 1], samples * per_sample * count)


def _columns(transfer: Any) -> tuple[int, int, int, int]:
    return transfer.source_rank, transfer.destination_rank, transfer.start, transfer.stop


def _within(route: Route, count: int) -> Iterator[Flow]:
    if not route.bytes_within:
        return
    groups = np.array(route.groups, dtype=np.int64)
    if route.form == "shards":
        yield _ring("bridge", groups, route.bytes_within / groups.size * count)
        return
    # A broadcast is a chain from the rank that received: all except its end send once.
    receiving = {transfer.destination_rank for transfer in route.transfers}
    first = np.isin(groups, list(receiving)).argmax(axis=1)
    places = (first[:, None] + np.arange(groups.shape[1])) % groups.shape[1]
    chain = np.take_along_axis(groups, places, axis=1)
    sources, destinations = chain[:, :-1].reshape(-1), chain[:, 1:].reshape(-1)
    yield _pairs("bridge", sources, destinations, route.bytes_within / sources.size * count)


def _modules(config: ExperimentConfig, plan: LayoutPlan) -> Iterator[Flow]:
    described = model_of_config(config.model)
    nets = {module.name: module for module in modules_of(described)}
    for name, ranks in plan.modules.items():
        architecture = config.model.get_architecture(name)
        tokens: float = config.data.seq_length
        if name in config.model.encoder_module_names:
            geometry = geometry_of(architecture)
            tokens = config.tokens_of(name) / geometry.tokens * geometry.positions
        samples = plan.batch.modules[name].micro_batch_size * plan.batch.num_microbatches
        rows = samples * tokens / ranks.context_parallel
        backward = config.model.has_backward(name)
        execution = plan.executions[name]
        number_bytes, sizes = execution.activation_bytes, execution.sizes
        yield from _stages(ranks, rows * architecture.hidden_size * number_bytes, backward)
        net = net_of_config(architecture, causal=True)
        for way in WAYS[: 1 + backward]:
            dense = layer_collectives(net, None, sizes, way)
            yield from _layers(dense, ranks, rows * net.dense_layers * number_bytes)
            if net.moe is not None:
                mixed = layer_collectives(net, net.moe, sizes, way)
                of_mixtures = rows * (net.layers - net.dense_layers) * number_bytes
                yield from _layers(mixed, ranks, of_mixtures, net.moe.top_k)
        if not config.model.is_frozen(name):
            yield from _gradients(nets[name], ranks, sizes, NUMBER_BYTES[execution.gradients])


def _stages(ranks: ModuleRanks, activation: float, backward: bool) -> Iterator[Flow]:
    """Yield the flows between the stages of a module; `activation` is in bytes per step."""
    if ranks.pipeline_parallel > 1:
        stages = ranks.group_array("pp")
        here, there = stages[:, :-1].reshape(-1), stages[:, 1:].reshape(-1)
        yield _pairs("pipeline", here, there, activation)
        if backward:
            yield _pairs("pipeline", there, here, activation)


def _layers(
    collectives: Iterable[LayerCollective], ranks: ModuleRanks, held: float, visits: int = 1
) -> Iterator[Flow]:
    """Yield the flows of a layer's collectives.

    Args:
        held: tokens times layers times the bytes of a number, per step.
        visits: experts that a token is sent to.
    """
    moved = held / ranks.pipeline_parallel
    for each in collectives:
        if not each.count:
            continue
        if each.axis == Axis.EXPERT:
            groups = ranks.expert_view().group_array(Axis.EXPERT)
            sent = float(each.count * each.numbers) * visits * moved
            yield from _all_to_all("expert", groups, sent)
            continue
        groups = ranks.group_array(each.axis)
        share = 1 - 1 / groups.shape[1]
        kind = "tensor" if each.axis == Axis.TENSOR else "context"
        yield _ring(kind, groups, float(each.gathers * each.numbers) * share * moved)


def _all_to_all(kind: str, groups: Ranks, held: float) -> Iterator[Flow]:
    """Yield the flows in which every member sends an equal part of what it holds to each other."""
    members = groups.shape[1]
    for distance in range(1, members):
        others = np.roll(groups, -distance, axis=1)
        yield _pairs(kind, groups.reshape(-1), others.reshape(-1), held / members)


def _gradients(
    module: Module, ranks: ModuleRanks, sizes: ParallelSizes, number_bytes: int
) -> Iterator[Flow]:
    """Yield the all-reduces of gradients: those of experts over the replicas of these alone."""
    experts = ranks.expert_view()
    for stage in range(ranks.pipeline_parallel):
        parameters = rank_parameters(module, sizes, stage)
        for groups, held in (
            (ranks.group_array(Axis.CONTEXT, Axis.DATA), parameters.ordinary),
            (experts.group_array(Axis.EXPERT_DATA), parameters.expert),
        ):
            replicas = groups.shape[1]
            if replicas > 1 and held:
                sent = 2 * (replicas - 1) / replicas * float(held) * number_bytes
                yield _ring("data", _of_stage(groups, ranks.stage(stage)), sent)


def _of_stage(groups: Ranks, stage: range) -> Ranks:
    firsts = groups[:, 0]
    chosen: Ranks = groups[(firsts >= stage.start) & (firsts < stage.stop)]
    return chosen
