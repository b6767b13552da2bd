"""The cluster room: engines that form a torch.distributed world and run functions on its ranks.

`emit` and `should_stop` are for code that runs on a rank and cost nothing to import; everything
that needs ipyparallel is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mimokit.cluster.rank import emit, should_stop

if TYPE_CHECKING:
    from mimokit.cluster.cluster import EngineCluster
    from mimokit.cluster.errors import ClusterError, RankDied, RankError, RunAborted
    from mimokit.cluster.run import ClusterRun
    from mimokit.cluster.sample_log import Sample

__all__ = [
    "ClusterError",
    "ClusterRun",
    "EngineCluster",
    "RankDied",
    "RankError",
    "RunAborted",
    "Sample",
    "emit",
    "should_stop",
]

_HOMES = {
    "EngineCluster": "cluster",
    "ClusterRun": "run",
    "Sample": "sample_log",
    "ClusterError": "errors",
    "RankDied": "errors",
    "RankError": "errors",
    "RunAborted": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
