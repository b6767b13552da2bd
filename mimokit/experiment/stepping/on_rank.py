"""The functions of a stepper that run on ranks."""

from typing import Any

from mimokit.config import ExperimentSections
from mimokit.config.user_code import UserCode
from mimokit.planning.types import LayoutPlan


def open_stepper(
    name: str, plan: LayoutPlan, config: ExperimentSections, keep: int, code: UserCode
) -> None:
    """Build the model of this rank and stop before its first step."""
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.stepper.session import open_session

    open_session(name, RunOfRank.with_code(plan, config, code), keep)


def ask_stepper(name: str, method: str, *args: Any) -> tuple[Any] | None:
    """Return what a method of this rank's session returns; None if its model was released."""
    from mimokit.engine.stepper.session import session_of

    session = session_of(name)
    return None if session is None else (getattr(session, method)(*args),)


def close_stepper(name: str) -> bool:
    """Release the model of this rank."""
    from mimokit.engine.stepper.session import close_session

    close_session(name)
    return True
