"""The functions that prove a layout on ranks against one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mimokit.config import ExperimentConfig, ModuleArchitecture
from mimokit.config.user_code import UserCode
from mimokit.planning.execution import Dtype
from mimokit.planning.expert_choices import ExpertChoices, together
from mimokit.planning.types import LayoutPlan

if TYPE_CHECKING:
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.verify.oracle import OracleStart
    from mimokit.engine.verify.steps import Noise, OracleStep, StepDifference, StepRounding


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
    def run(self) -> RunOfRank:
        """What its rank is told."""
        from mimokit.engine.run_of_rank import RunOfRank

        return RunOfRank.with_code(self.plan, self.config, self.code)

    def begin(self, nudge: int | None = None, loss_scale: float = 1.0) -> OracleStart:
        """Return with what it begins."""
        from mimokit.engine.verify.oracle import OracleStart

        return OracleStart(self.decoders, self.start, loss_scale, nudge)

    @property
    def start(self) -> Dtype:
        """The type to which the first weights are rounded."""
        return self.plan.executions[self.plan.llm_module_name].weights


def oracle_rank(process: OneProcessRun) -> tuple[str, list[list[OracleStep]], list[list[Noise]]]:
    """Run the oracle in fp32; return the name of the data and the steps of each replica.

    For a run of fewer bits also return how much each step of one process in these differs.
    """
    from mimokit.engine.data.sources import data_of

    run, (reference, noise, loss_scale) = process.run, _in_both(process)
    if noise:
        # The partial sums of a layout may be larger than those of one process.
        scale = max(1.0, loss_scale / 4)
        reference = [[replace(step, loss_scale=scale) for step in whole] for whole in reference]
    return data_of(run.source, run.config).name, reference, noise


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

    run, steps, start = process.run, process.steps, process.start
    if start == "fp32":
        return run_oracle(run, steps, process.begin(nudge)), [], 1.0
    loss_scale = process.config.runtime.initial_loss_scale if start == "fp16" else 1.0
    rounded = run_oracle(run, steps, process.begin(nudge, loss_scale), choices)
    while loss_scale > 1 and not all(step.is_finite for own in rounded for step in own):
        loss_scale /= 2
        rounded = run_oracle(run, steps, process.begin(nudge, loss_scale), choices)
    chosen = [[step.choices for step in own] for own in rounded]
    in_fp32 = {name: execution.in_fp32() for name, execution in run.plan.executions.items()}
    exact = replace(run, plan=replace(run.plan, executions=in_fp32))
    reference = run_oracle(exact, steps, process.begin(nudge), chosen)
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

    runs = (run_oracle(process.run, process.steps, process.begin(seed)) for seed in seeds)
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
    from mimokit.engine.run_of_rank import in_replica
    from mimokit.engine.verify.compare import compare_on_rank

    with in_replica(plan, config, code) as run:
        return compare_on_rank(run, oracle[0 if run.peers is None else run.peers.replica])
