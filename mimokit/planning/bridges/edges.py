"""The messages between ranks when one pipeline stage sends to another."""

from __future__ import annotations

from mimokit.planning.bridges.routes import Route, Transfer
from mimokit.planning.schedule import Action, StageEdge
from mimokit.planning.types import LayoutPlan


def edge_route(plan: LayoutPlan, edge: StageEdge, *, backward: bool) -> Route | None:
    """Return the route of an edge between modules in one direction; None inside a module.

    Raises:
        ValueError: the plan has no pipeline.
    """
    if plan.pipeline is None:
        raise ValueError("the layout has no pipeline")
    stages = plan.pipeline.graph.stages
    ends = stages[edge.source].module, stages[edge.destination].module
    for bridge in plan.disjoint_bridges:
        if (bridge.source, bridge.destination) == ends:
            return bridge.backward if backward else bridge.forward
    return None


def edge_transfers(plan: LayoutPlan, edge: StageEdge, *, backward: bool) -> tuple[Transfer, ...]:
    """Return what crosses an edge of the pipeline, in one direction, per micro-batch.

    Between modules it is the route of their bridge. Inside a module every rank sends to its peer,
    the rank with the same coordinates in the other stage.

    Raises:
        ValueError: the plan has no pipeline.
    """
    if plan.pipeline is None:
        raise ValueError("the layout has no pipeline")
    route = edge_route(plan, edge, backward=backward)
    if route is not None:
        return route.transfers
    samples = plan.batch.modules[edge.modality].samples
    senders = plan.pipeline.ranks[edge.destination if backward else edge.source]
    return tuple(Transfer(rank, plan.pipeline.peer(rank, edge), *samples[rank]) for rank in senders)


def rank_transfers(plan: LayoutPlan, rank: int, action: Action) -> tuple[Transfer, ...]:
    """Return the transfers in which a rank takes part when its stage does an action.

    Empty for an action that sends and receives nothing, and for a rank that gets the message from
    its group.

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
