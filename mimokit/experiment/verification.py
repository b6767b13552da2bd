"""Proves that a layout computes what one process computes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.cluster import EngineCluster
from mimokit.config import (
    ExperimentConfig,
    ModuleArchitecture,
    ModuleParallelismConfig,
    check_runnable,
)
from mimokit.config.runtime import AS_DRAWN
from mimokit.config.user_code import OwnModule, UserCode, checked_code
from mimokit.experiment import on_rank
from mimokit.experiment.prepare import Config, prepared
from mimokit.planning import plan as make_plan
from mimokit.tables import html_table, rich_table

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource
    from mimokit.engine.verify.compare import StepDifference
    from mimokit.engine.verify.oracle import OracleStep

TOLERANCE = 1e-5
STEPS = 5
# Adam divides by the square root of the squared gradient plus epsilon: rounding noise in gradients
# that are zero in exact arithmetic (a key bias) becomes full-size updates under the usual 1e-8.
# An epsilon far above fp32 noise keeps the check about the layout.
ADAM_EPSILON = 1e-2


@dataclass(frozen=True)
class VerificationReport:
    """A layout against the one-process oracle, in fp32.

    Attributes:
        name: of the config.
        data: what was trained on.
        layout: module -> its parallel sizes as text.
        tolerance: largest difference that passes.
        losses: of the layout, per step, mean over the unmasked tokens.
        oracle_losses: of the oracle.
        gradient_differences: per step: module -> largest difference of a gradient entry over all
            ranks, relative to the largest entry of its tensor.
        weight_differences: the same for the weights after the step.
        worst_parameters: module -> the parameter that differs most, of all steps and ranks.
    """

    name: str
    data: str
    layout: dict[str, str]
    tolerance: float
    losses: tuple[float, ...]
    oracle_losses: tuple[float, ...]
    gradient_differences: tuple[dict[str, float], ...]
    weight_differences: tuple[dict[str, float], ...]
    worst_parameters: dict[str, str]

    @property
    def loss_differences(self) -> tuple[float, ...]:
        """Per step, relative to the oracle's loss."""
        pairs = zip(self.losses, self.oracle_losses, strict=True)
        return tuple(_relative(mine, theirs) for mine, theirs in pairs)

    @property
    def max_loss_difference(self) -> float:
        """Largest over the steps."""
        return _largest(self.loss_differences)

    @property
    def max_gradient_difference(self) -> float:
        """Largest over steps, modules, tensors and ranks."""
        return _largest(value for step in self.gradient_differences for value in step.values())

    @property
    def max_weight_difference(self) -> float:
        """Largest over steps, modules, tensors and ranks."""
        return _largest(value for step in self.weight_differences for value in step.values())

    @property
    def passed(self) -> bool:
        """Whether every difference is at or under the tolerance (a NaN is not)."""
        worst = (
            self.max_loss_difference,
            self.max_gradient_difference,
            self.max_weight_difference,
        )
        return all(value <= self.tolerance for value in worst)

    @property
    def verdict(self) -> str:
        """One sentence."""
        layout = ", ".join(f"{name} {sizes}" for name, sizes in self.layout.items())
        outcome = "computes what one process computes" if self.passed else "does NOT compute that"
        return (
            f"{layout}: after {len(self.losses)} steps on {self.data} the layout {outcome} "
            f"(loss {self.max_loss_difference:.1e}, gradients {self.max_gradient_difference:.1e}, "
            f"weights {self.max_weight_difference:.1e}; tolerance {self.tolerance:.0e}, fp32, "
            f"Adam epsilon {ADAM_EPSILON:.0e}).{self._where()}"
        )

    def _where(self) -> str:
        """Return a sentence about the parameter that differs most, of a layout that failed."""
        if self.passed or not self.worst_parameters:
            return ""
        module = max(self.worst_parameters, key=self._difference_of)
        return f" Most differs {self.worst_parameters[module]} of module {module!r}."

    def _difference_of(self, module: str) -> float:
        steps = (*self.gradient_differences, *self.weight_differences)
        return _largest(step[module] for step in steps)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "data": self.data,
            "layout": self.layout,
            "passed": self.passed,
            "tolerance": self.tolerance,
            "losses": list(self.losses),
            "oracle_losses": list(self.oracle_losses),
            "max_loss_difference": self.max_loss_difference,
            "max_gradient_difference": self.max_gradient_difference,
            "max_weight_difference": self.max_weight_difference,
            "gradient_differences": list(self.gradient_differences),
            "weight_differences": list(self.weight_differences),
            "worst_parameters": self.worst_parameters,
        }

    def _header(self) -> tuple[str, ...]:
        return ("step", "loss", "one process", "difference", "module", "gradient", "weight")

    def _rows(self) -> Iterable[list[str]]:
        for step, loss in enumerate(self.losses):
            losses = [f"{loss:.6f}", f"{self.oracle_losses[step]:.6f}"]
            first = [str(step + 1), *losses, f"{self.loss_differences[step]:.1e}"]
            for module in self.layout:
                gradient = self.gradient_differences[step][module]
                weight = self.weight_differences[step][module]
                yield [*first, module, f"{gradient:.1e}", f"{weight:.1e}"]
                first = ["", "", "", ""]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield rich_table("Layout against one process", self._header(), self._rows())
        yield self.verdict

    def _repr_html_(self) -> str:
        mark = "✔" if self.passed else "✘"
        table = html_table(self._header(), self._rows())
        return f"{table}<p>{mark} {escape(self.verdict)}</p>"


@dataclass(frozen=True)
class Oracle:
    """What one process computes: the reference for every layout of a model on the same batches.

    Attributes:
        config: the single-rank config; two layouts have the same oracle if theirs are equal.
        decoders: networks of the modules behind the language model, by name.
        source: makes the data; None for the default.
        data: the name of the data.
        code: of the user.
        steps: loss, gradients and weights of every optimizer step.
    """

    config: ExperimentConfig
    decoders: dict[str, ModuleArchitecture]
    source: DataSource | None
    data: str
    code: UserCode
    steps: tuple[OracleStep, ...]

    @property
    def losses(self) -> tuple[float, ...]:
        """The loss of every step."""
        return tuple(step.loss for step in self.steps)

    def is_for(
        self,
        config: Config,
        data: DataSource | None = None,
        modules: Mapping[str, OwnModule] | None = None,
    ) -> bool:
        """Whether a layout has the same model, global batches, runtime settings and data."""
        layout = _for_verification(prepared(config))
        return self._is_for(layout, data, checked_code(layout, modules))

    def _is_for(self, layout: ExperimentConfig, data: DataSource | None, code: UserCode) -> bool:
        return (
            self.source is data
            and self.code == code
            and self.config == single_rank(layout)
            and self.decoders == _decoders(layout)
        )


def compute_oracle(
    cluster: EngineCluster,
    config: Config,
    data: DataSource | None = None,
    *,
    steps: int = STEPS,
    modules: Mapping[str, OwnModule] | None = None,
) -> Oracle:
    """Train the model of a layout in one process; `verify` takes the result for any layout of it.

    Args:
        cluster: with at least one engine.
        config: any layout of the model, or the path of one; the parallel sizes do not matter, the
            global batch does.
        data: makes the samples, as for `verify`.
        steps: optimizer steps.
        modules: module -> what builds it in place of mimokit, as for `train`.

    Raises:
        ConfigError: the config is wrong or cannot run yet.
        RankError: training fails.
    """
    layout = _for_verification(prepared(config))
    check_runnable(layout)
    code = checked_code(layout, modules)
    alone, decoders = single_rank(layout), _decoders(layout)
    plan = make_plan(_unfrozen(alone))
    name, taken = cluster.run(
        on_rank.oracle_rank, plan, alone, data, steps, decoders, code, world_size=1
    )[0]
    return Oracle(alone, decoders, data, name, code, tuple(taken))


def verify(
    cluster: EngineCluster,
    config: Config,
    data: DataSource | None = None,
    *,
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
    oracle: Oracle | None = None,
    modules: Mapping[str, OwnModule] | None = None,
) -> VerificationReport:
    """Train a layout and the one-process oracle from the same seed on the same global batches.

    Args:
        cluster: with at least as many engines as the layout has ranks.
        config: a config, or the path of one.
        data: makes the samples; by default strips of digits if the model can read them, else noise.
        steps: optimizer steps.
        tolerance: largest relative difference that passes.
        oracle: of the same model, global batches and data, for at least `steps` steps; computed
            if None. All layouts of a model can share one.
        modules: module -> what builds it in place of mimokit, as for `train`.

    Raises:
        ConfigError: the config is wrong or cannot run yet.
        RankError: a rank fails.
        ValueError: the oracle is of another model, batch or data, or has too few steps.
    """
    layout = _for_verification(prepared(config))
    check_runnable(layout)
    code = checked_code(layout, modules)
    if oracle is None:
        oracle = compute_oracle(cluster, config, data, steps=steps, modules=modules)
    if not oracle._is_for(layout, data, code):
        raise ValueError(
            f"The oracle differs from {layout.name!r} in its model, global batches, runtime "
            f"settings, data or code; compute one with compute_oracle."
        )
    if len(oracle.steps) < steps:
        raise ValueError(f"The oracle has {len(oracle.steps)} steps; {steps} are to be compared.")
    expected = list(oracle.steps[:steps])
    plan = make_plan(layout)
    by_rank: list[list[StepDifference]] = cluster.run(
        on_rank.compare_rank, plan, layout, data, expected, code, world_size=plan.world_size
    )
    return VerificationReport(
        name=layout.name,
        data=oracle.data,
        layout={module: _sizes(layout.model.get_parallelism(module)) for module in plan.modules},
        tolerance=tolerance,
        losses=tuple(step.loss for step in by_rank[0]),
        oracle_losses=oracle.losses[:steps],
        gradient_differences=tuple(
            _worst([mine[step].gradients for mine in by_rank]) for step in range(steps)
        ),
        weight_differences=tuple(
            _worst([mine[step].weights for mine in by_rank]) for step in range(steps)
        ),
        worst_parameters=_worst_parameters(by_rank),
    )


def _for_verification(config: ExperimentConfig) -> ExperimentConfig:
    """Return a config with the full learning rate from the first step, above rounding noise."""
    runtime = config.runtime.model_copy(
        update={
            "adam_epsilon": ADAM_EPSILON,
            "learning_rate_warmup": 0,
            "learning_rate_decay": 0,
        }
    )
    data = config.data.model_copy(update={"num_workers": 0})
    return config.model_copy(update={"runtime": runtime, "data": data})


def single_rank(config: ExperimentConfig) -> ExperimentConfig:
    """Return the same encoders, language model and global batch on one rank.

    A homogeneous layout has no modules behind the language model; see `run_oracle`.
    """
    language = config.model.get_parallelism(config.model.llm_module_name)
    behind = _decoders(config)
    model = config.model.model_copy(
        update={
            "deployment_mode": "homogeneous",
            "module_parallelisms": {
                name: ModuleParallelismConfig(data_parallel=1)
                for name in config.model.module_parallelisms
                if name not in behind
            },
            "module_architectures": {
                name: network
                for name, network in config.model.module_architectures.items()
                if name not in behind
            },
            "topology": None,
        }
    )
    data = config.data.model_copy(
        update={"base_batch_size": config.data.base_batch_size * (language.data_parallel or 1)}
    )
    whole = {"pipeline_schedule": "homogeneous", "patch_type": [], "sample_order": AS_DRAWN}
    runtime = config.runtime.model_copy(update=whole)
    return ExperimentConfig(model=model, data=data, runtime=runtime, name="one process")


def _decoders(config: ExperimentConfig) -> dict[str, ModuleArchitecture]:
    model = config.model
    return {name: model.get_architecture(name) for name in model.decoder_module_names}


def _unfrozen(config: ExperimentConfig) -> ExperimentConfig:
    """Return a config without frozen modules, so that it can be planned.

    All trained modules may be behind the language model, and a plan needs a trained one. On one
    rank, freezing does not affect the plan.
    """
    networks = {
        name: network.model_copy(update={"frozen": False})
        for name, network in config.model.module_architectures.items()
    }
    model = config.model.model_copy(update={"module_architectures": networks})
    return config.model_copy(update={"model": model})


def _sizes(module: ModuleParallelismConfig) -> str:
    shown = [Axis.TENSOR, *([Axis.PIPELINE] if module.pipeline_parallel > 1 else []), Axis.DATA]
    return " ".join(f"{axis.label}{getattr(module, CONFIG_FIELDS[axis])}" for axis in shown)


def _relative(mine: float, theirs: float) -> float:
    """Return a difference relative to the oracle's loss, which is 0 if every token is masked."""
    if mine == theirs:
        return 0.0
    return abs(mine - theirs) / abs(theirs) if theirs else math.inf


def _worst(differences: list[dict[str, float]]) -> dict[str, float]:
    modules = {module for one in differences for module in one}
    return {m: _largest(one[m] for one in differences if m in one) for m in modules}


def _worst_parameters(by_rank: list[list[StepDifference]]) -> dict[str, str]:
    """Return the parameter of every module that differs most, where any does."""
    found: dict[str, tuple[float, str]] = {}
    for step in (step for steps in by_rank for step in steps):
        for module, parameter in step.parameters.items():
            difference = max(step.gradients[module], step.weights[module])
            found[module] = max(found.get(module, (0.0, "")), (difference, parameter))
    return {module: parameter for module, (_, parameter) in found.items() if parameter}


def _largest(values: Iterable[float]) -> float:
    """Return the maximum; a NaN counts as infinite."""
    return max((value if value == value else float("inf") for value in values), default=0.0)
