"""What can be planned but not run yet."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.experiment import ExperimentConfig
from mimokit.config.mimo import MimoParallelismConfig
from mimokit.config.problems import Problem, refuse_if_any

_NOT_RUNNING = ("context_parallel", "expert_parallel")


def check_runnable(config: ExperimentConfig | MimoParallelismConfig) -> None:
    """Refuse to run what can only be planned so far.

    Raises:
        ConfigError: a module has a context or expert parallel size above 1, a pipeline in a mode
            other than heterogeneous, or a graph of modules other than encoders that feed the
            language module.
    """
    model = config.model if isinstance(config, ExperimentConfig) else config
    refuse_if_any(_problems(model))


def _problems(model: MimoParallelismConfig) -> Iterator[Problem]:
    heterogeneous = model.deployment_mode == "heterogeneous"
    fields = _NOT_RUNNING if heterogeneous else (*_NOT_RUNNING, "pipeline_parallel")
    for name, module in model.module_parallelisms.items():
        for field in fields:
            if getattr(module, field) > 1:
                yield _too_large(name, field, getattr(module, field))
    language = model.llm_module_name
    for name, fed in model.module_topology.items():
        if tuple(fed) != (() if name == language else (language,)):
            yield Problem(
                name,
                "topology",
                ", ".join(fed),
                f"Module '{name}': it feeds {', '.join(fed) or 'nobody'}, which can be planned but "
                f"not run yet; let every encoder feed '{language}' until then.",
            )


def _too_large(name: str, field: str, value: int) -> Problem:
    return Problem(
        name,
        field,
        value,
        f"Module '{name}': {field} is {value}, which can be planned but not run yet; run it with "
        "1 until then.",
        {"path": f"model.module_parallelisms.{name}.{field}", "value": 1},
    )
