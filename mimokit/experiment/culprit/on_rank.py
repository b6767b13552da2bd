"""The functions that record the seams of a model on ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mimokit.config import ExperimentConfig
from mimokit.config.user_code import UserCode
from mimokit.planning.expert_choices import ExpertChoices
from mimokit.planning.types import LayoutPlan

if TYPE_CHECKING:
    from mimokit.experiment.proofs_on_rank import OneProcessRun
    from mimokit.planning.seams import Recording, Seam


def seams_of_one_rank(
    process: OneProcessRun,
    wholes: Sequence[Seam],
    nudge: int | None,
    in_row: bool,
    choices: Sequence[ExpertChoices],
) -> Recording:
    """Record the seams of the model in one process, in the precision of the layout.

    Args:
        in_row: the layout puts samples in a row, without padding.
        choices: of experts, in every step; none: its own.
    """
    from mimokit.engine.verify.seams.one_process import record_one_process

    return record_one_process(
        process.run, process.steps, process.begin(nudge), wholes, in_row, choices
    )


def seams_rank(
    plan: LayoutPlan,
    config: ExperimentConfig,
    reference: Recording,
    code: UserCode,
    wholes: Sequence[Seam],
) -> Recording:
    """Record the seams of a layout on this rank, in steps like those of one process."""
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.verify.seams.layout import record_layout

    return record_layout(RunOfRank.with_code(plan, config, code), reference, wholes)
