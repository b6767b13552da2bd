"""Values that ranks gather cross as JSON, never as pickles."""

import re
from pathlib import Path

import pytest

import mimokit
from mimokit.cluster import RankError

PICKLED = re.compile(r"\b(all_gather|gather|broadcast|scatter|send|recv)_object(_list)?\b")
"""Torch's collectives of objects."""


def _gathered():
    import torch.distributed as dist

    from mimokit.engine.collectives import gather_json

    rank = dist.get_rank()
    return gather_json({"rank": rank, "names": ["né"] * rank, "nothing": None, "x": 0.1 * rank})


def test_values_of_any_size_are_gathered_in_rank_order(cluster) -> None:
    expected = [{"rank": r, "names": ["né"] * r, "nothing": None, "x": 0.1 * r} for r in range(3)]
    assert cluster.run(_gathered, world_size=3) == [expected] * 3


def _announced(most: int) -> None:
    from mimokit.engine import collectives

    collectives.MOST_JSON = most
    try:
        collectives.gather_json("a text")
    finally:
        collectives.MOST_JSON = 2**28


def test_a_length_that_no_value_has_is_refused_before_memory_is_taken(cluster) -> None:
    with pytest.raises(RankError, match=r"rank 0 announces 8 bytes of JSON, where 1 to 7 are"):
        cluster.run(_announced, 7, world_size=2)


def test_what_is_not_json_is_rejected() -> None:
    from mimokit.engine.collectives import gather_json

    with pytest.raises(TypeError, match="not JSON serializable"):
        gather_json(object())


def test_ranks_tell_each_other_no_objects() -> None:
    assert PICKLED.search("dist.all_gather_object(found, value)")
    files = list(Path(mimokit.__file__).parent.rglob("*.py"))
    assert len(files) > 100
    assert [str(file) for file in files if PICKLED.search(file.read_text())] == []
