"""The function that proves on ranks that a run goes on from a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mimokit.config import ExperimentConfig
from mimokit.config.user_code import UserCode
from mimokit.planning.types import LayoutPlan

if TYPE_CHECKING:
    from mimokit.engine.verify.resume import RankRecord


def resume_rank(
    plan: LayoutPlan, config: ExperimentConfig, before: int | None, after: int, code: UserCode
) -> RankRecord:
    """Train, save and train on; with None before it, go on from a checkpoint."""
    from mimokit.engine.run_of_rank import in_replica
    from mimokit.engine.verify.resume import record_resumed, record_saved

    with in_replica(plan, config, code) as run:
        return record_resumed(run, after) if before is None else record_saved(run, before, after)
