"""Which rank sends what to which rank when a stage sends to a stage."""

from __future__ import annotations

from mimokit.planning.bridges.routes import Transfer
from mimokit.planning.schedule import Action, StageEdge
from mimokit.planning.types import LayoutPlan


def edge_transfers(plan: LayoutPlan, edge: StageEdge, *, backward: bool) -> tuple[Transfer, ...]:
    """Return what crosses an edge of the pipeline, in one direction, per micro-batch.

    Between modules it is the route of their bridge. Inside a module every rank sends to the one
    with its own coordinates in the next stage.

    Raises:
        ValueError: the plan has no pipeline.
    """
    if plan.pipeline is None:
        raise ValueError("the layout has no pipeline")
    graph = plan.pipeline.graph
    source, destination = graph.stages[edge.source], graph.stages[edge.destination]
    if source.module != destination.module:
        bridge = next(
            found
            for found in plan.disjoint_bridges
            if (found.source, found.destination) == (source.module, destination.module)
        )
        return bridge.backward.transfers if backward else bridge.forward.transfers
    here, there = (plan.pipeline.ranks[index] for index in (edge.source, edge.destination))
    samples = plan.batch.modules[source.module].samples
    pairs = zip(there, here, strict=True) if backward else zip(here, there, strict=True)
    return tuple(Transfer(a, b, *samples[a]) for a, b in pairs)


def rank_transfers(plan: LayoutPlan, rank: int, action: Action) -> tuple[Transfer, ...]:
    """Return the transfers in which a rank takes part when its stage does an action.

    Empty for an action that is no message, and for a rank to which its group hands the message on.

    Raises:
        ValueError: the plan has no pipeline.
    """
    if plan.pipeline is None:
        raise ValueError("the layout has no pipeline")
    if action.edge is None:
        return ()
    edge = plan.pipeline.graph.edges[action.edge]
    every = edge_transfers(plan, edge, backward=action.kind.endswith("backward"))
    if action.kind.startswith("send"):
        return tuple(transfer for transfer in every if transfer.source_rank == rank)
    return tuple(transfer for transfer in every if transfer.destination_rank == rank)
