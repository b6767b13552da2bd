"""Collectives of the tensor parallel groups of a layout in one optimizer step.

| of a micro-batch | forward | backward |
|---|---|---|
| each layer | 2 | 2 |
| each layer with fewer key and value groups than ranks | 3 | 3 |
| token embedding | 1 | 0 |
| output layer and loss | 2 | 1 |
| projector of an encoder | 1 | 1 |
| bridge on shared ranks, which compares the outputs of an encoder's ranks | 1 | 0 |

A part through which no gradient passes has none backward.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from mimokit.architecture.layer_split import stage_layers
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.config import ExperimentConfig
from mimokit.config.runtime import FRAME_PARALLEL
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.types import LayoutPlan


@dataclass(frozen=True)
class CollectiveSpan:
    """How many collectives are planned: from `least`, where micro-batches lack items, to `most`."""

    least: int
    most: int

    def __contains__(self, counted: int) -> bool:
        """Whether a number is as planned."""
        return self.least <= counted <= self.most

    def __add__(self, other: CollectiveSpan) -> CollectiveSpan:
        """Return what both together have."""
        return CollectiveSpan(self.least + other.least, self.most + other.most)

    def __str__(self) -> str:
        """Return 12, or 12 to 19."""
        return f"{self.most}" if self.least == self.most else f"{self.least} to {self.most}"


def tensor_collectives(
    config: ExperimentConfig, plan: LayoutPlan, rank: int, lacking: Collection[str] = ()
) -> Mapping[str, CollectiveSpan]:
    """Return module -> planned collectives of the tensor parallel group of a rank in a step.

    Where modules share a group, the first of them has those of all.

    Args:
        config: finalized; of a layout that runs.
        plan: of the config, or of one replica of it.
        rank: in the plan.
        lacking: encoders that may have no items in a micro-batch; see `may_lack_items`.
    """
    shared: dict[ModuleRanks, list[str]] = {}
    for name, ranks in plan.modules.items():
        if rank in ranks.ranks and ranks.tensor_parallel > 1:
            shared.setdefault(replace(ranks, module=""), []).append(name)
    found = {}
    for names in shared.values():
        spans = [_of_step(config, plan, name, rank, lacking) for name in names]
        found[names[0]] = sum(spans, CollectiveSpan(0, 0))
    return found


def may_lack_items(config: ExperimentConfig) -> frozenset[str]:
    """Return the encoders that may have no items in a micro-batch of the default data."""
    encoders = frozenset(config.model.encoder_module_names)
    if FRAME_PARALLEL in config.runtime.patch_type:  # a replica may be given no frame
        return encoders
    data = config.data
    without = {name for name, counts in data.modality_frames.items() if 0 in counts}
    return encoders & {*without, *data.modality_presence}


def _of_step(
    config: ExperimentConfig, plan: LayoutPlan, name: str, rank: int, lacking: Collection[str]
) -> CollectiveSpan:
    if name in config.model.encoder_module_names:
        most = _of_encoder(config, plan, name, rank)
        least = 0 if name in lacking else most
    else:
        forward, backward = _of_language(config, plan, name, rank)
        most = forward + backward
        # What is frozen has a gradient only from the items of an encoder before it.
        least = forward if lacking and config.model.is_frozen(name) else most
    count = plan.batch.num_microbatches
    return CollectiveSpan(count * least, count * most)


def _of_encoder(config: ExperimentConfig, plan: LayoutPlan, name: str, rank: int) -> int:
    frozen = config.model.get_architecture(name).frozen_parts
    layers = _of_layers(config, plan.modules[name], rank)
    compared = any(bridge.source == name for bridge in plan.colocated_bridges)
    ends = _is_last(plan.modules[name], rank)
    forward = layers + (1 + compared if ends else 0)
    trained = "encoder" not in frozen
    backward = (layers if trained else 0) + int(ends and len(frozen) < 2)
    return forward + backward


def _of_language(
    config: ExperimentConfig, plan: LayoutPlan, name: str, rank: int
) -> tuple[int, int]:
    ranks = plan.modules[name]
    layers, ends = _of_layers(config, ranks, rank), _is_last(ranks, rank)
    embeds = name == plan.llm_module_name and rank in ranks.stage(0)
    forward = layers + embeds + 2 * ends
    return forward, layers + ends if config.model.has_backward(name) else 0


def _of_layers(config: ExperimentConfig, ranks: ModuleRanks, rank: int) -> int:
    """Return the collectives of the layers of a rank in one direction."""
    network = config.model.get_architecture(ranks.module)
    sizes = ParallelSizes(tensor=ranks.tensor_parallel, pipeline=ranks.pipeline_parallel)
    stage = ranks.coordinates(rank)["pp"]
    layers = int(stage_layers(network.num_layers, network.num_layers, sizes, stage).total)
    groups = network.num_query_groups or network.num_attention_heads
    return (2 + (groups < ranks.tensor_parallel)) * layers


def _is_last(ranks: ModuleRanks, rank: int) -> bool:
    return rank in ranks.stage(-1)
