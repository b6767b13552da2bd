"""Proves that a layout computes what one process computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mimokit.axes import CONFIG_FIELDS, SHOWN_AXES, Axis, short_sizes
from mimokit.cluster import EngineCluster
from mimokit.config import (
    ExperimentConfig,
    ModuleArchitecture,
    ModuleParallelismConfig,
    check_runnable,
)
from mimokit.config.checked_code import checked_code
from mimokit.config.user_code import ForwardStep, OwnLoss, OwnModule, UserCode
from mimokit.experiment import proofs_on_rank
from mimokit.experiment.prepare import Config, check_room, finalized_copy, with_hosts
from mimokit.experiment.reference import (
    decoder_networks,
    for_verification,
    single_rank,
)
from mimokit.experiment.verification_report import (
    FROZEN,
    NO_GRADIENT,
    NO_SAMPLE,
    VerificationReport,
    largest,
    relative,
)
from mimokit.experiment.yardstick import FURTHER, Yardstick
from mimokit.planning import plan_layout
from mimokit.planning.expert_choices import together
from mimokit.planning.layout import plan_checked
from mimokit.planning.types import LayoutPlan
from mimokit.progress import shown
from mimokit.units import counted

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource
    from mimokit.engine.verify.steps import Noise, OracleStep, StepDifference, StepRounding

TOLERANCE = 1e-5
ROUNDINGS = (1, 2, 3)
"""Seeds of the weights from which rounding is measured, where a layout in fp32 nearly passes."""

STEPS = 5


@dataclass(frozen=True)
class Oracle:
    """What one process computes: the reference for every layout of a model on the same batches.

    Attributes:
        config: the single-rank config; two layouts have the same oracle if theirs are equal.
        decoders: networks of the modules behind the language model, by name.
        replicas: loss, gradients and weights of every optimizer step, of each replica, in fp32.
        noise: how much each step of one process differs from it in the precision of the layout, of
            each replica; empty in fp32.
    """

    config: ExperimentConfig
    decoders: dict[str, ModuleArchitecture]
    data: str
    code: UserCode
    replicas: tuple[tuple[OracleStep, ...], ...]
    noise: tuple[tuple[Noise, ...], ...] = ()

    @property
    def steps(self) -> tuple[OracleStep, ...]:
        """The steps of the first replica."""
        return self.replicas[0]

    @property
    def losses(self) -> tuple[float, ...]:
        """The loss of every step of the first replica."""
        return tuple(step.loss for step in self.steps)

    def is_for(
        self,
        config: Config,
        data: DataSource | None = None,
        modules: Mapping[str, OwnModule] | None = None,
        loss_func: OwnLoss | None = None,
        forward_step: ForwardStep | None = None,
    ) -> bool:
        """Whether a layout has the same model, global batches, runtime settings and data."""
        layout = for_verification(finalized_copy(config))
        return self._is_for(layout, checked_code(layout, modules, loss_func, forward_step, data))

    def _is_for(self, layout: ExperimentConfig, code: UserCode) -> bool:
        return (
            self.code == code
            and not self.code.is_older_than(code)
            and self.config == single_rank(layout)
            and self.decoders == decoder_networks(layout)
        )


def compute_oracle(
    cluster: EngineCluster,
    config: Config,
    data: DataSource | None = None,
    *,
    steps: int = STEPS,
    modules: Mapping[str, OwnModule] | None = None,
    loss_func: OwnLoss | None = None,
    forward_step: ForwardStep | None = None,
) -> Oracle:
    """Train the model of a layout in one process; `verify` takes the result for any layout of it.

    Args:
        config: any layout of the model, or the path of one; the parallel sizes do not matter, the
            global batch does.
        data: makes the samples, as for `verify`.
        modules, loss_func, forward_step: as for `train`.

    Raises:
        ConfigError: the config is wrong or cannot run.
        RankError: training fails.
    """
    layout = for_verification(finalized_copy(config))
    check_runnable(layout)
    code = checked_code(layout, modules, loss_func, forward_step, data)
    return _computed(cluster, layout, steps, code)


def _computed(
    cluster: EngineCluster, layout: ExperimentConfig, steps: int, code: UserCode
) -> Oracle:
    alone, decoders = single_rank(layout), decoder_networks(layout)
    process = proofs_on_rank.OneProcessRun(plan_checked(alone), alone, steps, decoders, code)
    with shown(f"Training in one process, {counted(steps, 'step')}"):
        name, steps_taken, noise = cluster.run(proofs_on_rank.oracle_rank, process, world_size=1)[0]
    recorded = tuple(map(tuple, steps_taken))
    return Oracle(alone, decoders, name, code, recorded, tuple(map(tuple, noise)))


def verify(
    cluster: EngineCluster,
    config: Config,
    data: DataSource | None = None,
    *,
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
    oracle: Oracle | None = None,
    modules: Mapping[str, OwnModule] | None = None,
    loss_func: OwnLoss | None = None,
    forward_step: ForwardStep | None = None,
) -> VerificationReport:
    """Train a layout and the one-process oracle from the same seed on the same global batches.

    Args:
        cluster: with at least as many engines as the layout has ranks.
        data: makes the samples; by default strips of digits if the model can read them, else noise.
        tolerance: largest relative difference that passes in fp32; see
            `VerificationReport.passed`. In fewer bits as much passes as `Yardstick` says.
        oracle: of the same model, global batches and data, for at least `steps` steps; computed
            if None. All layouts of a model can share one.
        modules, loss_func, forward_step: as for `train`.

    Raises:
        ConfigError: the config is wrong or cannot run.
        RankError: a rank fails.
        ValueError: the oracle is of another model, batch or data, or has too few steps.
    """
    layout = for_verification(finalized_copy(config))
    check_runnable(layout)
    check_room(layout, len(cluster))
    code = checked_code(layout, modules, loss_func, forward_step, data)
    if oracle is None:
        oracle = _computed(cluster, layout, steps, code)
    if not oracle._is_for(layout, code):
        raise ValueError(
            f"The oracle differs from {layout.name!r} in its model, global batches, runtime "
            f"settings, data or code; compute one with compute_oracle."
        )
    if len(oracle.steps) < steps:
        raise ValueError(
            f"The oracle has {counted(len(oracle.steps), 'step')}; {steps} are to be compared."
        )
    expected = [list(replica[:steps]) for replica in oracle.replicas]
    plan = with_hosts(cluster, plan_layout(layout))
    with shown(f"Training on {counted(plan.world_size, 'rank')}, {counted(steps, 'step')}"):
        by_rank: list[list[StepDifference]] = cluster.run(
            proofs_on_rank.compare_rank, plan, layout, expected, code, world_size=plan.world_size
        )
    report = _report(layout, plan, oracle, expected, by_rank, tolerance)
    return _with_rounding(report, cluster, oracle, expected) if report.is_near else report


def _report(
    layout: ExperimentConfig,
    plan: LayoutPlan,
    oracle: Oracle,
    expected: list[list[OracleStep]],
    by_rank: list[list[StepDifference]],
    tolerance: float,
) -> VerificationReport:
    steps = range(len(expected[0]))
    of_all = [step for replica in expected for step in replica]
    pairs = [_worst_losses(plan, by_rank, expected, step) for step in steps]
    precision = layout.runtime.precision
    noise = [replica[: len(steps)] for replica in oracle.noise]
    return VerificationReport(
        name=layout.name,
        data=oracle.data,
        layout={module: _sizes(layout.model.get_parallelism(module)) for module in plan.modules},
        tolerance=tolerance,
        losses=tuple(layout_loss for layout_loss, _ in pairs),
        oracle_losses=tuple(theirs for _, theirs in pairs),
        gradient_differences=tuple(
            _worst([records[step].gradients for records in by_rank]) for step in steps
        ),
        weight_differences=tuple(
            _worst([records[step].weights for records in by_rank]) for step in steps
        ),
        worst_parameters=_worst_parameters(by_rank),
        strategy=_strategy_text(layout),
        rerouted=together(records[step].rerouted for records in by_rank for step in steps),
        nearly_tied=of_all[0].choices.near,
        adam_epsilon=max(step.epsilon for step in of_all),
        unproved=dict(_unproved(plan.modules, of_all)),
        yardstick=Yardstick.of(precision, noise) if precision is not None and noise else None,
    )


def _with_rounding(
    report: VerificationReport,
    cluster: EngineCluster,
    oracle: Oracle,
    expected: list[list[OracleStep]],
) -> VerificationReport:
    plan, count = plan_checked(oracle.config), len(expected[0])
    process = proofs_on_rank.OneProcessRun(plan, oracle.config, count, oracle.decoders, oracle.code)
    with shown("Finding what rounding alone changes"):
        if report.yardstick is not None:
            choices = [[step.choices for step in replica] for replica in expected]
            noise: list[list[Noise]] = cluster.run(
                proofs_on_rank.noise_rank, process, FURTHER, choices, world_size=1
            )[0]
            return replace(report, yardstick=report.yardstick.of_several(noise, len(FURTHER)))
        by_seed: list[list[StepRounding]] = cluster.run(
            proofs_on_rank.rounding_rank, process, expected, ROUNDINGS, world_size=1
        )[0]
    steps = list(zip(*by_seed, strict=True))
    return replace(
        report,
        gradient_rounding=tuple(_worst([of_seed.gradients for of_seed in step]) for step in steps),
        weight_rounding=tuple(_worst([of_seed.weights for of_seed in step]) for step in steps),
    )


def _unproved(modules: Iterable[str], expected: Sequence[OracleStep]) -> Iterator[tuple[str, str]]:
    for name in modules:
        gradients = [gradient for step in expected for gradient in step.gradients[name].values()]
        if any(gradient.any() for gradient in gradients):
            continue
        if not any(name in step.reached for step in expected):
            yield name, NO_SAMPLE
        else:
            yield name, NO_GRADIENT if gradients else FROZEN


def _worst_losses(
    plan: LayoutPlan,
    by_rank: list[list[StepDifference]],
    expected: list[list[OracleStep]],
    step: int,
) -> tuple[float, float]:
    ranks = [0] if plan.replicas is None else range(0, plan.world_size, plan.replicas.layout_ranks)
    pairs = [
        (by_rank[rank][step].loss, theirs[step].loss)
        for rank, theirs in zip(ranks, expected, strict=True)
    ]
    return max(pairs, key=lambda pair: largest([relative(*pair)]))


def _strategy_text(config: ExperimentConfig) -> str:
    if config.strategy is None:
        return ""
    return f"{counted(config.replicas, 'replica')} with {config.strategy.name}"


def _sizes(module: ModuleParallelismConfig) -> str:
    sizes = {axis: getattr(module, CONFIG_FIELDS[axis]) for axis in SHOWN_AXES}
    return short_sizes(sizes, always=(Axis.TENSOR, Axis.DATA))


def _worst(differences: list[dict[str, float]]) -> dict[str, float]:
    modules = {module for of_rank in differences for module in of_rank}
    return {m: largest(of_rank[m] for of_rank in differences if m in of_rank) for m in modules}


def _worst_parameters(by_rank: list[list[StepDifference]]) -> dict[str, str]:
    worst: dict[str, tuple[float, str]] = {}
    for step in (step for steps in by_rank for step in steps):
        for module, parameter in step.parameters.items():
            difference = max(step.gradients[module], step.weights[module])
            worst[module] = max(worst.get(module, (0.0, "")), (difference, parameter))
    return {module: parameter for module, (_, parameter) in worst.items() if parameter}
