"""Sampling from vocabulary shards: `python -m benchmarks.sampling_speed`.

Bytes are what a rank gives to collectives. Ranks are threads of this process with a gloo group.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.table import show
from tests.extras.generation.threads import on_threads

RANKS, VOCAB, ROWS, PAIRS = 4, 128_256, 8, 9
SETTINGS: dict[str, tuple[dict[str, Any], float]] = {
    "greedy": ({}, 0.001),
    "temperature": ({"temperature": 0.8}, 0.001),
    "top-k 50": ({"temperature": 0.8, "top_k": 50}, 0.02),
    "top-p 0.9": ({"temperature": 0.8, "top_p": 0.9}, 0.05),
}


def rows() -> list[dict[str, Any]]:
    """Compare with gathering the logits and sampling from them on every rank."""
    found = []
    for name, (how, target) in SETTINGS.items():
        measured = on_threads(RANKS, lambda group, how=how: _rank(group, how))
        share = max(one["bytes"] for one in measured) / measured[0]["gathered"]
        ratio = statistics.median(max(pair) for pair in zip(*(one["ratios"] for one in measured)))  # noqa: B905
        found += [
            {
                "name": f"{name}: bytes of a row against gathering {VOCAB:,} logits at TP {RANKS}",
                "measured": share, "target": target, "unit": "", "ok": share <= target,
            },
            {
                "name": f"{name}: time against gathering and sampling, median of {PAIRS} pairs",
                "measured": ratio, "target": 1.0, "unit": "", "ok": ratio <= 1.0,
            },
        ]  # fmt: skip
    return found


def _rank(group: Any, how: dict[str, Any]) -> dict[str, Any]:
    import torch

    from mimokit.extras.generation.network.exchange import all_gathered, counting_traffic
    from mimokit.extras.generation.network.sampling import sample

    generator = torch.Generator().manual_seed(group.rank())
    shard = torch.randn(ROWS, VOCAB // RANKS, generator=generator) * 3

    def sharded() -> None:
        sample(shard, group, seed=1, **how)

    def whole() -> None:
        sample(all_gathered(shard, group).movedim(0, 1).flatten(1), None, seed=1, **how)

    with counting_traffic() as mine:
        sharded()
    ratios = [_seconds(sharded, group) / _seconds(whole, group) for _ in range(PAIRS)]
    return {"bytes": mine.bytes, "gathered": shard.nbytes, "ratios": ratios}


def _seconds(call: Any, group: Any) -> float:
    import torch

    from mimokit.extras.generation.network.exchange import summed

    summed(torch.zeros(1), group)  # all begin together
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    show("Sampling from shards", rows())
