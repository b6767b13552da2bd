"""What can be planned but not run yet."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.experiment import ExperimentConfig
from mimokit.config.mimo import MimoParallelismConfig
from mimokit.config.problems import Problem, refuse_if_any

_NOT_RUNNING = ("context_parallel", "expert_parallel", "pipeline_parallel")


def check_runnable(config: ExperimentConfig | MimoParallelismConfig) -> None:
    """Refuse to run what can only be planned so far.

    Raises:
        ConfigError: a module has a context, expert or pipeline parallel size above 1, or the mode
            is heterogeneous.
    """
    model = config.model if isinstance(config, ExperimentConfig) else config
    refuse_if_any(_problems(model))


def _problems(model: MimoParallelismConfig) -> Iterator[Problem]:
    if model.deployment_mode == "heterogeneous":
        yield Problem(
            "model",
            "deployment_mode",
            model.deployment_mode,
            "Section 'model': deployment_mode is 'heterogeneous', which can be planned but not run "
            "yet; run it as 'homogeneous' or 'colocated' until then.",
        )
    for name, module in model.module_parallelisms.items():
        for field in _NOT_RUNNING:
            value = getattr(module, field)
            if value > 1:
                yield Problem(
                    name,
                    field,
                    value,
                    f"Module '{name}': {field} is {value}, which can be planned but not run yet; "
                    "run it with 1 until then.",
                    {"path": f"model.module_parallelisms.{name}.{field}", "value": 1},
                )
