"""Megatron's own communicators, which ask for NCCL, on the groups of a world of gloo."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any
from unittest import mock

import torch.distributed as dist
from packaging.version import Version

HAS_COLOCATED_BRIDGE = Version(version("megatron-core")) >= Version("0.18")


@contextmanager
def groups_of_gloo() -> Iterator[None]:
    """Make groups with the backend of the world, whichever is asked for."""
    group, subgroups = dist.new_group, dist.new_subgroups_by_enumeration
    with (
        mock.patch.object(dist, "new_group", lambda ranks, backend: group(ranks)),
        mock.patch.object(
            dist, "new_subgroups_by_enumeration", lambda ranks, backend: subgroups(ranks)
        ),
    ):
        yield


def colocated_bridge(source: Any, destination: Any) -> Any:
    """Return Megatron's bridge between two grids on the same ranks, for rows [rows, hidden]."""
    from megatron.core.models.mimo.comm.colocated_communicator import ColocatedBridgeCommunicator

    with groups_of_gloo():
        return ColocatedBridgeCommunicator(source, destination, dim_mapping={"b": 0, "h": 1})
