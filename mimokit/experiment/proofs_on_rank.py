"""The functions that prove a layout on ranks: against one process, and against a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from mimokit.config import ExperimentConfig, ModuleArchitecture
from mimokit.config.user_code import UserCode
from mimokit.planning.execution import Dtype
from mimokit.planning.expert_choices import ExpertChoices, together
from mimokit.planning.types import LayoutPlan

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource
    from mimokit.engine.verify.resume import RankRecord
    from mimokit.engine.verify.steps import Noise, OracleStep, StepDifference, StepRounding
    from mimokit.planning.seams import Recording, Seam

    _OracleArguments: TypeAlias = tuple[
        ExperimentConfig, DataSource, int, Mapping[str, ModuleArchitecture], UserCode
    ]


@dataclass(frozen=True)
class OneProcessRun:
    """What one process trains.

    Attributes:
        plan, config: of a single rank, with the global batch of the layout that is compared.
    """

    plan: LayoutPlan
    config: ExperimentConfig
    steps: int
    decoders: Mapping[str, ModuleArchitecture]
    code: UserCode

    @property
    def arguments(self) -> _OracleArguments:
        """What `run_oracle` takes besides a plan."""
        from mimokit.engine.data.sources import default_data

        data = self.code.data or default_data
        return self.config, data, self.steps, self.decoders, self.code

    @property
    def start(self) -> Dtype:
        """The type to which the first weights are rounded."""
        return self.plan.executions[self.plan.llm_module_name].weights


def oracle_rank(process: OneProcessRun) -> tuple[str, list[list[OracleStep]], list[list[Noise]]]:
    """Run the oracle in fp32; return the name of the data and the steps of each replica.

    For a run of fewer bits also return how much each step of one process in these differs.
    """
    from mimokit.engine.data.sources import data_of, default_data

    reference, noise, loss_scale = _in_both(process)
    if noise:
        # The partial sums of a layout may be larger than those of one process.
        scale = max(1.0, loss_scale / 4)
        reference = [[replace(step, loss_scale=scale) for step in whole] for whole in reference]
    return data_of(process.code.data or default_data, process.config).name, reference, noise


def _in_both(
    process: OneProcessRun,
    nudge: int | None = None,
    choices: Sequence[Sequence[ExpertChoices]] | None = None,
) -> tuple[list[list[OracleStep]], list[list[Noise]], float]:
    """Run the oracle in fp32, and in the precision of the plan if that has fewer bits.

    Tokens visit the same experts in both: those that are given, or are chosen in fewer bits.

    Returns the steps of each replica in fp32, how much those of fewer bits differ from them, and a
    loss scale at which no gradient overflows.
    """
    from mimokit.engine.verify.compare import noise_of
    from mimokit.engine.verify.oracle import run_oracle

    plan, start = process.plan, process.start
    arguments = *process.arguments, start
    if start == "fp32":
        return run_oracle(plan, *arguments, nudge=nudge), [], 1.0
    loss_scale = process.config.runtime.initial_loss_scale if start == "fp16" else 1.0
    rounded = run_oracle(plan, *arguments, loss_scale, nudge, choices)
    while loss_scale > 1 and not all(step.is_finite for own in rounded for step in own):
        loss_scale /= 2
        rounded = run_oracle(plan, *arguments, loss_scale, nudge, choices)
    chosen = [[step.choices for step in own] for own in rounded]
    in_fp32 = {name: execution.in_fp32() for name, execution in plan.executions.items()}
    whole = replace(plan, executions=in_fp32)
    reference = run_oracle(whole, *arguments, nudge=nudge, choices=chosen)
    noise = [noise_of(exact, own) for exact, own in zip(reference, rounded, strict=True)]
    return _with_choices(reference), noise, loss_scale


def _with_choices(reference: list[list[OracleStep]]) -> list[list[OracleStep]]:
    """Return steps with the choices of experts that layouts take where theirs nearly tie."""
    apart = together(step.rerouted for replica in reference for step in replica).scores

    return [
        [replace(step, choices=step.choices.that_tie(apart)) for step in replica]
        for replica in reference
    ]


def noise_rank(
    process: OneProcessRun, seeds: Sequence[int], choices: Sequence[Sequence[ExpertChoices]]
) -> list[list[Noise]]:
    """Run one process in fewer bits and in fp32 again, once per seed, from weights rounded alike.

    Tokens visit the experts that they visited before.

    Returns how much each step differs, for each seed and replica.
    """
    return [own for seed in seeds for own in _in_both(process, seed, choices)[1]]


def rounding_rank(
    process: OneProcessRun, oracle: Sequence[Sequence[OracleStep]], seeds: Sequence[int]
) -> list[list[StepRounding]]:
    """Run the oracle again, once per seed, from weights that are rounded differently.

    Returns, for each seed and replica, how its steps differ from those of the oracle.
    """
    from mimokit.engine.verify.compare import rounding_of
    from mimokit.engine.verify.oracle import run_oracle

    runs = (run_oracle(process.plan, *process.arguments, nudge=seed) for seed in seeds)
    return [
        rounding_of(expected, nudged)
        for replicas in runs
        for expected, nudged in zip(oracle, replicas, strict=True)
    ]


def compare_rank(
    plan: LayoutPlan,
    config: ExperimentConfig,
    oracle: Sequence[Sequence[OracleStep]],
    code: UserCode,
) -> list[StepDifference]:
    """Run the layout and compare it with the oracle of its replica, step by step."""
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.replicas import replica_world
    from mimokit.engine.verify.compare import compare_on_rank

    with replica_world(plan) as (of_replica, peers):
        expected = oracle[0 if peers is None else peers.replica]
        data = code.data or default_data
        return compare_on_rank(of_replica, config, data, expected, peers, code)


def resume_rank(
    plan: LayoutPlan, config: ExperimentConfig, before: int | None, after: int, code: UserCode
) -> RankRecord:
    """Train, save and train on; with None before it, go on from a checkpoint."""
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.replicas import replica_world
    from mimokit.engine.verify.resume import record_resumed, record_saved

    data = code.data or default_data
    with replica_world(plan) as (of_replica, peers):
        if before is None:
            return record_resumed(of_replica, config, data, after, code, peers)
        return record_saved(of_replica, config, data, before, after, code, peers)


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
        process.plan, *process.arguments, process.start, wholes, nudge, in_row, choices
    )


def seams_rank(
    plan: LayoutPlan,
    config: ExperimentConfig,
    reference: Recording,
    code: UserCode,
    wholes: Sequence[Seam],
) -> Recording:
    """Record the seams of a layout on this rank, in steps like those of one process."""
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.verify.seams.layout import record_layout

    data = code.data or default_data
    return record_layout(plan, config, data, reference, code, wholes)
