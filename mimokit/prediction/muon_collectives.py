"""Collectives in which ranks put the matrices together that Muon makes orthogonal."""

from __future__ import annotations

from mimokit.architecture.from_config import modules_of_config
from mimokit.architecture.tensors import ModuleTensor, stage_tensors
from mimokit.axes import Axis
from mimokit.config import ExperimentConfig
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.expert_collectives import has_experts


def muon_gathers(config: ExperimentConfig, plan: LayoutPlan, name: str, rank: int) -> int:
    """Return how often a rank's tensor-parallel group meets for them in a step.

    Once for each matrix of the layers that its ranks share. Embedding, output and projector are
    stepped by AdamW.
    """
    inner = None if config.strategy is None else config.strategy.inner_optimizer
    if inner is None or inner.name != "muon" or "encoder" in plan.executions[name].frozen_parts:
        return 0
    ranks = plan.modules[name]
    (module,) = (one for one in modules_of_config(config.model) if one.name == name)
    stage = ranks.coordinates(rank)["pp"]
    cut = [row for row in stage_tensors(module, plan.executions[name].sizes, stage) if _is_cut(row)]
    of_experts = sum(row.cut.expert is not None for row in cut)
    shared = has_experts(ranks, (Axis.EXPERT_TENSOR,))
    return len(cut) - of_experts + shared * (of_experts // ranks.expert_parallel)


def _is_cut(row: ModuleTensor) -> bool:
    in_layer = isinstance(row.place, int) or ".mtp_model_layer." in row.name
    return in_layer and row.cut.dimension is not None and len(row.cut.whole) == 2
