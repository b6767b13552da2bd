"""Values that ranks gather cross as JSON, never as pickles."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mimokit

OF_OBJECTS = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
}
"""Collectives of torch that send pickles."""


def object_collectives(source: str) -> set[str]:
    """Return which of them a source names."""
    parts = ast.walk(ast.parse(source))
    return {part.attr for part in parts if isinstance(part, ast.Attribute)} & OF_OBJECTS


def test_no_rank_unpickles_what_another_sends() -> None:
    for file in sorted(Path(mimokit.__file__).parent.rglob("*.py")):
        assert not object_collectives(file.read_text()), file
    assert object_collectives("dist.all_gather_object(found, mine)") == {"all_gather_object"}


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
