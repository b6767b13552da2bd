"""The functions that run on ranks: each calls the engine and reports through the cluster.

The engine is imported on the rank, so that the notebook's process does not import torch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mimokit import cluster
from mimokit.config import ExperimentSections
from mimokit.config.runtime import Evaluations
from mimokit.config.user_code import NO_CODE, UserCode
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.device_peak import peak_of_device
from mimokit.samples import CalibrationSample, Sample, StepSample, to_wire

if TYPE_CHECKING:
    from mimokit.engine.run_of_rank import Peers


def send_sample(sample: Sample) -> None:
    """Hand a sample to the caller."""
    cluster.emit(to_wire(sample))


def _send_from(peers: Peers, sample: Sample) -> None:
    """Send a sample of a replica, whose ranks count from 0, with its rank in the whole world."""
    if not isinstance(sample, CalibrationSample):
        sample = replace(sample, rank=sample.rank + peers.first_rank)
    if isinstance(sample, StepSample):
        sample = replace(sample, replica=peers.replica)
    send_sample(sample)


def train_rank(
    plan: LayoutPlan,
    config: ExperimentSections,
    evaluations: Evaluations | None,
    trace: bool = False,
    peak_flops: float | None = None,
    code: UserCode = NO_CODE,
) -> None:
    """Train on this rank; the caller receives its samples."""
    from mimokit.engine.device import rank_facts
    from mimokit.engine.run_of_rank import in_replica
    from mimokit.engine.training.loop import train_on_rank

    facts = rank_facts()
    if peak_flops is None:
        peak_flops = peak_of_device(facts.hardware.accelerator, config.runtime.precision)
    send_sample(replace(facts, peak_flops_per_sec=peak_flops))
    with in_replica(plan, config, code) as run:
        emit = send_sample if run.peers is None else partial(_send_from, run.peers)
        train_on_rank(run, emit, cluster.should_stop, evaluations, trace, peak_flops)
