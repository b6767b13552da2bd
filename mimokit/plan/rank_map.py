"""Which rank holds which shard of a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RankMap:
    """The ranks of one module as a hyperrectangle."""

    module: str
    tensor_parallel: int
    context_parallel: int
    data_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    rank_offset: int

    def coordinates(self, rank: int) -> Mapping[str, int]:
        """Return {"tp", "cp", "dp", "pp"} of a rank."""
        raise NotImplementedError

    def groups(self, *dimensions: str) -> tuple[tuple[int, ...], ...]:
        """Return the rank groups over one or several dimensions."""
        raise NotImplementedError
