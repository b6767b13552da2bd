"""The replicas of a plan as a table and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mimokit.tables import Section
from mimokit.units import bytes_text, counted, seconds_text, span_text

if TYPE_CHECKING:
    from mimokit.extras.strategies.exchanges.rules import Rule
    from mimokit.extras.strategies.replicas.plan import ExchangingReplicas
    from mimokit.planning.report import Estimates

_HEADINGS = (
    "ranks of a replica",
    "exchange with",
    "train each",
    "give to an exchange",
    "send as a ring",
)
PEERS_SHOWN = 4


def strategy_section(plan: ExchangingReplicas, estimates: Estimates) -> Section:
    """Return a row per run of ranks that exchange as much, and what falls due when."""
    rows: list[tuple[str, ...]] = []
    kept = estimates.strategy_bytes

    for entries, same in groupby(range(plan.layout_ranks), plan.entries.__getitem__):
        ranks = list(same)
        row = (
            span_text(ranks),
            _peers_text(plan, ranks),
            f"{entries:,}",
            _sizes_text(plan.payload_bytes(ranks[0])),
            _sizes_text(plan.sent_bytes(ranks[0])),
        )
        rows.append(row if kept is None else (*row, bytes_text(kept * entries)))
    return Section(
        f"Strategy: {plan.config.name} between {counted(plan.replicas, 'replica')} of "
        f"{counted(plan.layout_ranks, 'rank')}",
        _HEADINGS if kept is None else (*_HEADINGS, "strategy keeps"),
        rows,
        _sentences(plan, estimates),
    )


def _sentences(plan: ExchangingReplicas, estimates: Estimates) -> list[str]:
    rules = plan.plan_of(0).rules
    sentences = [_due_text(rule, plan.steps) for rule in rules]
    if rules and not any(len(rule.numbers(plan.steps)) for rule in rules):
        sentences.append(
            f"Nothing is ever exchanged, as the run has {counted(plan.steps, 'step')}: each "
            "replica trains alone. Exchange more often, or train for longer."
        )
    times, line = estimates.exchange_seconds, plan.config.network
    if times is not None and line is not None:
        longest = sorted(times.items(), key=lambda item: -item[1])[:PEERS_SHOWN]
        each = ", ".join(f"{purpose} {seconds_text(seconds)}" for purpose, seconds in longest)
        sentences.append(
            f"Predicted time of an exchange of all ranks of a replica over its line of "
            f"{line.bandwidth} with {line.latency}: {each}."
        )
    return [*sentences, *_host_sentences(plan)]


def _host_sentences(plan: ExchangingReplicas) -> Iterator[str]:
    placement = plan.placement
    if placement is None:
        return
    places = groupby(range(plan.replicas), placement.hosts_of)
    each = [(list(replicas), hosts) for hosts, replicas in places]
    shown = [
        f"{span_text(replicas)} on {' and '.join(hosts)}" for replicas, hosts in each[:PEERS_SHOWN]
    ]
    more = ", …" if len(each) > PEERS_SHOWN else ""
    yield f"Replicas on hosts: {', '.join(shown)}{more}."
    for links, same in groupby(range(plan.layout_ranks), plan.links):
        yield f"Exchanges of ranks {span_text(same)} of the replicas cross {_links_text(links)}."
    if placement.problem is not None:
        yield placement.problem


def _links_text(links: Sequence[tuple[str, str]]) -> str:
    if not links:
        return "no link between hosts"
    shown = [f"{host} – {other}" for host, other in links[:PEERS_SHOWN]]
    word = "the link" if len(links) == 1 else f"{counted(len(links), 'link')}:"
    return f"{word} {', '.join(shown)}" + (", …" if len(links) > PEERS_SHOWN else "")


def strategy_to_json(plan: ExchangingReplicas, estimates: Estimates) -> dict[str, Any]:
    """Return the replicas as lists and dicts; ranks as keys are text."""
    times, kept = estimates.exchange_seconds, estimates.strategy_bytes
    layout = range(plan.layout_ranks)
    rules = plan.plan_of(0).rules
    return {
        **plan.config.model_dump(mode="json", exclude_none=True),
        "ranks_per_replica": plan.layout_ranks,
        "ranks": {str(replica): list(plan.ranks_of(replica)) for replica in range(plan.replicas)},
        "peers": {str(rank): list(plan.peers(rank)) for rank in range(plan.world_size)},
        "due": plan.due(),
        "exchanges": [
            {
                "purpose": rule.purpose,
                "operation": rule.operation,
                "every": rule.interval,
                "first": rule.step(0),
                "overlap_steps": rule.late,
                "replicas_together": rule.grouping.largest(),
                "in_run": len(rule.numbers(plan.steps)),
            }
            for rule in rules
        ],
        "parameters": {str(rank): plan.entries[rank] for rank in layout},
        "bytes_per_exchange": {
            str(rank): sum(plan.payload_bytes(rank).values()) for rank in layout
        },
        "sent_bytes_per_exchange": {
            str(rank): sum(plan.sent_bytes(rank).values()) for rank in layout
        },
        "bytes_by_purpose": {str(rank): plan.payload_bytes(rank) for rank in layout},
        "outer_state_bytes": None
        if kept is None
        else {str(rank): kept * plan.entries[rank] for rank in layout},
        "exchange_seconds": None if times is None else dict(times),
        **_hosts_to_json(plan),
    }


def _hosts_to_json(plan: ExchangingReplicas) -> dict[str, Any]:
    placement = plan.placement
    if placement is None:
        return {"hosts": None, "links": None, "split_replicas": []}
    return {
        "hosts": {str(rank): host for rank, host in enumerate(placement.hosts)},
        "links": {
            str(rank): [list(pair) for pair in plan.links(rank)]
            for rank in range(plan.layout_ranks)
        },
        "split_replicas": list(placement.split),
    }


def _peers_text(plan: ExchangingReplicas, ranks: Sequence[int]) -> str:
    if plan.replicas == 1:
        return "none"
    peers = plan.peers(ranks[0])
    shown = [span_text([peer + rank - ranks[0] for rank in ranks]) for peer in peers[:PEERS_SHOWN]]
    return " · ".join(shown) + (" · …" if len(peers) > PEERS_SHOWN else "")


def _sizes_text(sizes: dict[str, float]) -> str:
    each = list(dict.fromkeys(bytes_text(round(size)) for size in sizes.values()))
    return " + ".join(each[:PEERS_SHOWN]) + (" + …" if len(each) > PEERS_SHOWN else "")


def _due_text(rule: Rule, steps: int) -> str:
    count = len(rule.numbers(steps)) if steps // rule.interval < 10**6 else steps // rule.interval
    every = "after every step" if rule.interval == 1 else f"after every {rule.interval:,} steps"
    first = f", first after {rule.step(0):,}" if rule.step(0) > 1 else ""
    late = f", written {counted(rule.late, 'step')} later" if rule.late else ""
    operation = rule.operation.replace("_", "-")
    return (
        f"{rule.purpose}: {operation} {every}{first}{late}; {count:,} in the "
        f"{counted(steps, 'step')} of the run."
    )
