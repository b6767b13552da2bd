"""Which modules of a plan share process groups."""

from __future__ import annotations

from mimokit.planning.types import LayoutPlan


def groups_key(plan: LayoutPlan, name: str) -> tuple[object, ...]:
    """Return what a module has alike with exactly those whose process groups it shares."""
    ranks, execution = plan.modules[name], plan.executions[name]
    shape = ranks.shape, ranks.expert_view().shape, ranks.rank_offset
    key = (*shape, execution.optimizer_instances, has_embedding_group(plan, name))
    # Not every rank starts the reductions of two modules in one order: a replica without items has
    # no backward of its encoder. With a group for each module, orders may differ.
    return (*key, name) if execution.overlap_reduction else key


def has_embedding_group(plan: LayoutPlan, name: str) -> bool:
    """Return whether both ends of a module's pipeline may have a copy of the embedding."""
    return name == plan.llm_module_name and plan.modules[name].pipeline_parallel > 1
