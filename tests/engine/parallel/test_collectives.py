"""Values that ranks gather cross as JSON, never as pickles."""

from __future__ import annotations

import pytest


def _gathered():
    import torch.distributed as dist

    from mimokit.engine.parallel.collectives import gather_json

    rank = dist.get_rank()
    return gather_json({"rank": rank, "names": ["né"] * rank, "nothing": None, "x": 0.1 * rank})


def test_values_of_any_size_are_gathered_in_rank_order(cluster) -> None:
    expected = [{"rank": r, "names": ["né"] * r, "nothing": None, "x": 0.1 * r} for r in range(3)]
    assert cluster.run(_gathered, world_size=3) == [expected] * 3


def test_what_is_not_json_is_rejected() -> None:
    from mimokit.engine.parallel.collectives import gather_json

    with pytest.raises(TypeError, match="not JSON serializable"):
        gather_json(object())
