"""How long replicas of a layout exchange, and wait for it, over the links of their config."""

from mimokit.extras.strategies.exchanges import Rule
from mimokit.extras.strategies.network.network import Network
from mimokit.extras.strategies.replicas.plan import ExchangingReplicas


def exchange_seconds_of_replicas(plan: ExchangingReplicas) -> dict[str, float] | None:
    """Return purpose -> time of an exchange of all ranks of the replicas.

    The ranks of a replica share its line, and exchange at the same time.

    Returns:
        The seconds; None if the config does not describe the links between replicas.
    """
    exchanges = _exchanges_of_replicas(plan)
    return None if exchanges is None else {rule.purpose: seconds for rule, seconds in exchanges}


def waiting_seconds_of_replicas(plan: ExchangingReplicas, step_seconds: float) -> float | None:
    """Return how long replicas wait for exchanges, in seconds per step on average.

    Steps that follow an exchange before its result is written hide that much of it.

    Returns:
        The seconds; None if the config does not describe the links between replicas.
    """
    exchanges = _exchanges_of_replicas(plan)
    if exchanges is None:
        return None
    return sum(
        max(0.0, seconds - rule.late * step_seconds) / rule.interval for rule, seconds in exchanges
    )


def _exchanges_of_replicas(plan: ExchangingReplicas) -> list[tuple[Rule, float]] | None:
    line = plan.config.network
    if line is None:
        return None
    network = Network(line.bandwidth, line.latency, line.jitter)
    return [
        (exchange.rule, max(network.collective_seconds(exchange.rule.operation, size, group)
                            for group in exchange.groups))
        for exchange, size in plan.replica_payloads()
    ]  # fmt: skip
