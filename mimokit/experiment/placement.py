"""Replicas on the hosts of a cluster: a replica fills a host before the next one begins."""

from __future__ import annotations

import warnings
from dataclasses import replace

from mimokit.cluster import EngineCluster
from mimokit.planning.types import LayoutPlan


def placed(cluster: object, plan: LayoutPlan) -> LayoutPlan:
    """Form the world of a layout's replicas, and return the plan with the hosts of its ranks.

    Only exchanges cross hosts then. Where a replica does not fit a host, a warning says so. On one
    host, and where ranks have places already, as in a torchrun job, nothing happens.

    Args:
        cluster: to run on; it has an engine for each rank.

    Raises:
        ClusterError: an engine does not answer, or the world cannot be formed.
    """
    if plan.replicas is None or not isinstance(cluster, EngineCluster):
        return plan
    hosts = cluster.hosts
    if len(set(hosts)) < 2:
        return plan
    replicas, placement = plan.replicas.placed(hosts)
    if placement.problem is not None:
        warnings.warn(placement.problem, stacklevel=3)
    cluster.form_world(ranks=placement.slots)
    return replace(plan, replicas=replicas)
