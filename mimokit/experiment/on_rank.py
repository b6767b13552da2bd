"""What the experiment room sends to the ranks: the engine's work, the cluster's channel.

The engine is imported on the rank, so that the notebook's own process stays free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mimokit import cluster
from mimokit.config import ExperimentConfig, ModuleArchitecture
from mimokit.config.evaluations import Evaluations
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.calibration import RankMeasurements
from mimokit.samples import Sample, to_wire

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource
    from mimokit.engine.verify.compare import StepDifference
    from mimokit.engine.verify.oracle import OracleStep
    from mimokit.planning.stepper.check import StepRecord


def _send(sample: Sample) -> None:
    cluster.emit(to_wire(sample))


def train_rank(
    plan: LayoutPlan,
    config: ExperimentConfig,
    source: DataSource | None,
    evaluations: Evaluations | None,
    trace: bool = False,
) -> None:
    """Train on this rank; its rows reach the caller as samples."""
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.training.loop import train_on_rank

    train_on_rank(
        plan, config, _send, cluster.should_stop, source or default_data, evaluations, trace
    )


def oracle_rank(
    plan: LayoutPlan,
    config: ExperimentConfig,
    source: DataSource | None,
    steps: int,
    decoders: Mapping[str, ModuleArchitecture],
) -> tuple[str, list[OracleStep]]:
    """Run the oracle; return the name of the data and the steps."""
    from mimokit.engine.data.sources import data_of, default_data
    from mimokit.engine.verify.oracle import run_oracle

    data = source or default_data
    return data_of(data, config).name, run_oracle(plan, config, data, steps, decoders)


def compare_rank(
    plan: LayoutPlan,
    config: ExperimentConfig,
    source: DataSource | None,
    oracle: list[OracleStep],
) -> list[StepDifference]:
    """Run the layout and compare it with the oracle, step by step."""
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.verify.compare import compare_on_rank

    return compare_on_rank(plan, config, source or default_data, oracle)


def calibrate_rank() -> RankMeasurements:
    """Measure on this rank; what comes next reaches the caller as samples."""
    from mimokit.engine.calibration import measure

    return measure(_send)


def open_stepper(
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


def advance_stepper(name: str, first: int, count: int) -> list[StepRecord] | None:
    """Do this rank's part of some ticks; None where its model is gone."""
    from mimokit.engine.stepper.session import session_of

    session = session_of(name)
    return None if session is None else session.advance(first, count)


def inspect_stepper(name: str, number: int, tensor: str) -> tuple[Any] | None:
    """Return a tensor as it was after a tick, (None,) where it is not kept; None as above."""
    from mimokit.engine.stepper.session import session_of

    session = session_of(name)
    return None if session is None else (session.inspect(number, tensor),)


def close_stepper(name: str) -> bool:
    """Let go of the model of this rank."""
    from mimokit.engine.stepper.session import close_session

    close_session(name)
    return True
