"""What the core asks of strategies between replicas of a layout, by `mimokit.planning.replicas`."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.extras.strategies.replicas.one_process import (
        ReplicasInOneProcess as ReplicasInOneProcess,
    )
    from mimokit.extras.strategies.replicas.plan import planned as planned
    from mimokit.extras.strategies.replicas.report import strategy_section as strategy_section
    from mimokit.extras.strategies.replicas.report import strategy_to_json as strategy_to_json
    from mimokit.extras.strategies.replicas.times import (
        exchange_seconds_of_replicas as exchange_seconds_of_replicas,
    )
    from mimokit.extras.strategies.replicas.times import (
        waiting_seconds_of_replicas as waiting_seconds_of_replicas,
    )
    from mimokit.extras.strategies.replicas.update import update_of_replica as update_of_replica
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
