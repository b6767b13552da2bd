"""The cluster room: engines that form a torch.distributed world and run functions on its ranks.

`emit`, `should_stop` and `on_leave` are for code that runs on a rank and cost nothing to import;
everything that needs ipyparallel is loaded on first use.
"""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.cluster.cluster import EngineCluster as EngineCluster
    from mimokit.cluster.errors import ClusterError as ClusterError
    from mimokit.cluster.errors import EnginesMissing as EnginesMissing
    from mimokit.cluster.errors import RankAbsent as RankAbsent
    from mimokit.cluster.errors import RankDied as RankDied
    from mimokit.cluster.errors import RankError as RankError
    from mimokit.cluster.errors import RankFrozen as RankFrozen
    from mimokit.cluster.errors import RunAborted as RunAborted
    from mimokit.cluster.rank import emit as emit
    from mimokit.cluster.rank import on_leave as on_leave
    from mimokit.cluster.rank import should_stop as should_stop
    from mimokit.cluster.run import ClusterRun as ClusterRun
    from mimokit.cluster.sample_log import Sample as Sample
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
