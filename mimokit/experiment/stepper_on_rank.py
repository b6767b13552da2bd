"""What a stepper sends to the ranks; the engine is imported there, not here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mimokit.config import ExperimentConfig
from mimokit.planning.types import LayoutPlan

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource
    from mimokit.planning.stepper.records import StepRecord


def open_rank(
    name: str,
    plan: LayoutPlan,
    config: ExperimentConfig,
    source: DataSource | None,
    keep: int,
) -> None:
    """Build the model of this rank and stand before its first step."""
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.stepper.session import open_session

    open_session(name, plan, config, source or default_data, keep)


def advance_rank(name: str, first: int, count: int) -> list[StepRecord] | None:
    """Do this rank's part of some ticks; None where its model is gone."""
    from mimokit.engine.stepper.session import session_of

    session = session_of(name)
    return None if session is None else session.advance(first, count)


def inspect_rank(name: str, number: int, tensor: str) -> tuple[Any] | None:
    """Return a tensor as it was after a tick, (None,) where it is not kept; None as above."""
    from mimokit.engine.stepper.session import session_of

    session = session_of(name)
    return None if session is None else (session.inspect(number, tensor),)


def close_rank(name: str) -> bool:
    """Let go of the model of this rank."""
    from mimokit.engine.stepper.session import close_session

    close_session(name)
    return True
