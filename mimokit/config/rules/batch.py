"""Every module's replicas divide the samples of a micro-batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mimokit.config.errors import Problem
from mimokit.config.rules.context import ValidationContext


def batch_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield one problem per module whose replicas do not divide the samples of a micro-batch."""
    language = context.model.llm_module_name
    data = context.data
    if (
        data is None
        or language not in context.sizes
        or not context.is_valid("data.base_batch_size")
    ):
        return
    replicas = context.sizes[language].data_parallel
    if replicas is None or not context.has_valid_sizes(language):
        return
    if not context.is_valid("model.llm_module_name"):
        return
    samples_per_microbatch = data.base_batch_size * replicas
    for name, module in context.sizes.items():
        if module.data_parallel is None or not context.has_valid_sizes(name):
            continue
        if samples_per_microbatch % module.data_parallel:
            step = module.data_parallel // math.gcd(module.data_parallel, replicas)
            fitting = math.ceil(data.base_batch_size / step) * step
            yield Problem(
                name,
                "data_parallel",
                module.data_parallel,
                f"Module '{name}': data_parallel is {module.data_parallel}, which does not divide "
                f"the {samples_per_microbatch} samples of a micro-batch (data.base_batch_size "
                f"{data.base_batch_size} x data_parallel {replicas} of '{language}'); a "
                f"base_batch_size of {fitting} would do.",
                {"path": "data.base_batch_size", "value": fitting},
            )
