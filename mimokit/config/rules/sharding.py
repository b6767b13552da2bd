"""Chunks, recomputation and optimizer of a module agree with its sizes."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.errors import Problem
from mimokit.config.messages import written
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.rules.context import ValidationContext

OF_LANGUAGE_WHERE_HOMOGENEOUS = (
    "recompute_granularity",
    "num_distributed_optimizer_instances",
    "sequence_parallel",
    "use_distributed_optimizer",
    "use_megatron_fsdp",
)
"""Fields that encoders in the language module's first stage have from it."""
OF_PIPELINES = (
    "virtual_pipeline_model_parallel_size",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)
"""Fields about the chunks of a pipeline, which encoders in a first stage have not."""


def planned_layout_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what is wrong with fields that no question of ranks decides."""
    for name, module in context.sizes.items():
        if not context.has_valid_sizes(name):
            continue
        yield from _chunks(context, name, module)
        yield from _ends(name, module)
        yield from _instances(name, module)
        yield from _sharded(name, module)
    yield from _homogeneous(context)


def _path(name: str, field: str) -> str:
    return f"model.module_parallelisms.{name}.{field}"


def _chunks(
    context: ValidationContext, name: str, module: ModuleParallelismConfig
) -> Iterator[Problem]:
    field = "virtual_pipeline_model_parallel_size"
    chunks = module.virtual_pipeline_model_parallel_size
    if chunks is None or chunks == 1:
        return
    if module.pipeline_parallel == 1:
        yield Problem(
            name,
            field,
            chunks,
            f"Module '{name}': {field} is {chunks}, but its pipeline_parallel is 1; chunks are of "
            "the stages of a pipeline, so leave it out.",
            {"path": _path(name, field), "value": None},
        )
        return
    data = context.data
    if data is None or not context.is_valid("data.num_microbatches"):
        return
    if data.num_microbatches % module.pipeline_parallel:
        yield Problem(
            name,
            field,
            chunks,
            f"Module '{name}': {field} is {chunks}, and interleaved chunks take micro-batches in "
            f"multiples of the {module.pipeline_parallel} stages, which {data.num_microbatches} "
            "(data.num_microbatches) is not; change that, or leave the field out.",
            {"path": _path(name, field), "value": None},
        )


def _ends(name: str, module: ModuleParallelismConfig) -> Iterator[Problem]:
    embedding = bool(module.account_for_embedding_in_pipeline_split)
    loss = bool(module.account_for_loss_in_pipeline_split)
    if embedding == loss:
        return
    fields = [f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss")]
    given, other = fields if embedding else fields[::-1]
    yield Problem(
        name,
        given,
        True,
        f"Module '{name}': {given} is true, but {other} is not; layers are dealt to stages with "
        "both ends or with none, so write both or none.",
        {"path": _path(name, other), "value": True},
    )


def _instances(name: str, module: ModuleParallelismConfig) -> Iterator[Problem]:
    field = "num_distributed_optimizer_instances"
    count, replicas = module.num_distributed_optimizer_instances, module.data_parallel
    if count is None or replicas is None:
        return
    every = replicas * module.context_parallel
    if every % count:
        yield Problem(
            name,
            field,
            count,
            f"Module '{name}': {field} is {count}, which does not divide its {every} replicas "
            f"(data x context parallel); choose a divisor of {every}.",
        )


def _sharded(name: str, module: ModuleParallelismConfig) -> Iterator[Problem]:
    field = "use_distributed_optimizer"
    if module.use_megatron_fsdp and module.use_distributed_optimizer is False:
        yield Problem(
            name,
            field,
            False,
            f"Module '{name}': {field} is false, but use_megatron_fsdp is true, which cuts the "
            "optimizer's state as well; leave it out.",
            {"path": _path(name, field), "value": None},
        )


def _homogeneous(context: ValidationContext) -> Iterator[Problem]:
    """Yield the fields in which an encoder differs from the language module around it."""
    model = context.model
    if model.deployment_mode != "homogeneous" or model.llm_module_name not in context.sizes:
        return
    language = context.sizes[model.llm_module_name]
    for name in model.encoder_module_names:
        if not context.has_valid_sizes(name, model.llm_module_name):
            continue
        for field in (*OF_LANGUAGE_WHERE_HOMOGENEOUS, *OF_PIPELINES):
            value, right = getattr(context.sizes[name], field), getattr(language, field)
            if value is not None and value != right:
                yield Problem(
                    name,
                    field,
                    value,
                    f"Module '{name}': {field} is {written(value)}, but in homogeneous mode it has "
                    f"what '{model.llm_module_name}' has; leave it out, or use colocated mode.",
                    {"path": _path(name, field), "value": None},
                )
