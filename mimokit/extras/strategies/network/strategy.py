"""How long training under a strategy takes on a network, from the plan alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mimokit.config.strategy import TAKES, StrategyConfig
from mimokit.extras.strategies.exchanges import Exchange, Rule, StrategyPlan
from mimokit.extras.strategies.network.network import Network

SAMPLED = 32
"""Exchanges of changing groups whose mean is taken where links differ."""

LONGEST = 2**40
"""Steps between exchanges up to which `smallest_h` looks."""


@dataclass(frozen=True)
class StrategyPrediction:
    """Time of a strategy on a network.

    A round is `H` steps: those between two exchanges of DiLoCo, of SPARTA alone its interval, of
    strategies that exchange in each step one.

    Attributes:
        parameters: entries of all tensors that train.
        payload_bytes: what a node gives to collectives in a round.
        sent_bytes: what a node sends in a round, as a ring does it.
        exchange_seconds: time on the links in a round that nothing overlaps.
        waiting_seconds: time in a round that a node waits for the slowest to compute.
        compute_utilisation: share of a round in which the slowest node computes.
        smallest_h: the least H with the utilisation that was asked for, or None.
    """

    name: str
    nodes: int
    parameters: int
    H: int
    payload_bytes: float
    sent_bytes: float
    exchange_seconds: float
    waiting_seconds: float
    round_seconds: float
    compute_utilisation: float
    wall_seconds: float
    steps: int
    smallest_h: int | None

    @property
    def sync_seconds(self) -> float:
        """Time in a round in which a node neither computes nor overlaps: waits and exchanges."""
        return self.exchange_seconds + self.waiting_seconds

    def to_json(self) -> dict[str, Any]:
        """Return all figures; bytes are whole numbers unless they are means of random masks."""
        figures = {**vars(self), "sync_seconds": self.sync_seconds}
        for size in ("payload_bytes", "sent_bytes"):
            figures[size] = int(figures[size]) if figures[size] % 1 == 0 else figures[size]
        return figures


def predict_strategy(
    plan: StrategyPlan,
    network: Network,
    compute_seconds: float,
    *,
    steps: int = 1000,
    target_utilisation: float = 0.9,
) -> StrategyPrediction:
    """Predict rounds and the whole time.

    Args:
        compute_seconds: of a step on a node of speed 1.
        target_utilisation: what `smallest_h` reaches.

    Raises:
        ConfigError: the network is not one of the plan's nodes.
    """
    network.check_nodes(plan.nodes)
    times = network.step_seconds(compute_seconds, plan.nodes)
    slowest, mean = max(times), sum(times) / len(times)
    if not network.speeds:
        mean = compute_seconds
    length = round_steps(plan.config)
    blocked = {rule: _blocked_seconds(rule, network, slowest) for rule in plan.rules}
    exchange = sum(length / rule.interval * blocked[rule] for rule in plan.rules)
    total = length * slowest + exchange
    return StrategyPrediction(
        name=plan.config.name,
        nodes=plan.nodes,
        parameters=plan.entries,
        H=length,
        payload_bytes=sum(_per_round(plan, "payload_bytes", length)),
        sent_bytes=sum(_per_round(plan, "sent_bytes", length)),
        exchange_seconds=exchange,
        waiting_seconds=length * (slowest - mean),
        round_seconds=total,
        compute_utilisation=length * slowest / total,
        wall_seconds=steps * slowest
        + sum(len(rule.numbers(steps)) * blocked[rule] for rule in plan.rules),
        steps=steps,
        smallest_h=_smallest_h(plan, network, slowest, target_utilisation),
    )


def round_steps(config: StrategyConfig) -> int:
    """Return the steps of a round."""
    field = _length_field(config)
    return 1 if field is None else int(getattr(config, field))


def _length_field(config: StrategyConfig) -> str | None:
    fields = TAKES[config.name]
    return next((field for field in ("H", "sparta_interval") if field in fields), None)


def _per_round(plan: StrategyPlan, size: str, length: int) -> Iterator[float]:
    for rule in plan.rules:
        first = Exchange(rule, 0, rule.step(0), rule.step(0))
        yield length / rule.interval * getattr(first, size)(rule.grouping.largest())


def _blocked_seconds(rule: Rule, network: Network, slowest: float) -> float:
    changing = not rule.grouping.fixed
    durations = [
        max(network.exchange_seconds(exchange, group) for group in exchange.groups)
        for number in range(SAMPLED if changing else 1)
        for exchange in [Exchange(rule, number, rule.step(number), rule.step(number) + rule.late)]
    ]
    return max(0.0, sum(durations) / len(durations) - rule.late * slowest)


def _smallest_h(plan: StrategyPlan, network: Network, slowest: float, target: float) -> int | None:
    field = _length_field(plan.config)
    if field is None:
        return None
    blocked = [_blocked_seconds(rule, network, slowest) for rule in plan.rules]
    rounds = [rule.interval == getattr(plan.config, field) for rule in plan.rules]
    unit = plan.config.fragments if "fragments" in TAKES[plan.config.name] else 1
    least = unit * (plan.config.overlap_steps + 1) if unit > 1 else 1

    def utilisation(length: int) -> float:
        exchange = sum(
            seconds if whole else seconds * length / rule.interval
            for rule, seconds, whole in zip(plan.rules, blocked, rounds, strict=True)
        )
        return length * slowest / (length * slowest + exchange)

    low, high = -(-least // unit), LONGEST // unit
    if utilisation(high * unit) < target:
        return None
    while low < high:
        middle = (low + high) // 2
        if utilisation(middle * unit) >= target:
            high = middle
        else:
            low = middle + 1
    return low * unit
