"""Where the modules of a layout begin, and what a config of ranks alone cannot say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.axes import COUNT_FIELDS
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.prediction.layout import Layout
from mimokit.prediction.workload import Workload

LANGUAGE = "language"
"""What the language module is called where its own name is no plain one, and in Megatron-Bridge."""


def check_sizes(layout: Layout) -> None:
    """Refuse a layout of no modules, and sizes that are no whole numbers of at least 1.

    Raises:
        ConfigError: one problem per wrong size.
    """
    none = Problem("layout", "modules", None, "Layout: it has no modules; give each its sizes.")
    refuse_if_any([] if layout.modules else [none])
    refuse_if_any(
        Problem(
            name,
            field,
            value,
            f"Module '{name}': {field} is {value}; it must be a whole number of at least 1.",
        )
        for name, sizes in layout.modules.items()
        for field in COUNT_FIELDS
        if (value := getattr(sizes, field)) != value // 1 or value < 1
    )


def in_first_stage(language: ParallelSizes) -> ParallelSizes:
    """Return the sizes of an encoder that lies in the language model's first stage."""
    return replace(
        language,
        pipeline=1 + 0 * language.pipeline,
        virtual=1 + 0 * language.virtual,
        expert=1 + 0 * language.expert,
    )


def rank_offsets(layout: Layout) -> Mapping[str, int]:
    """Return the first rank of every module: one after the other where they have own ranks."""
    offsets, begin = {}, 0
    for name, sizes in layout.modules.items():
        offsets[name] = begin
        begin += int(sizes.ranks) if layout.mode == "heterogeneous" else 0
    return offsets


def plain_name(name: str, layout: Layout) -> str:
    """Return a module's name as configs allow it."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return name
    return LANGUAGE if name == layout.language else re.sub(r"[^A-Za-z0-9_-]+", "_", name)


def micro_batches(layout: Layout, workload: Workload) -> int:
    """Return the micro-batches of a step."""
    own = layout.modules[layout.language]
    return int(workload.global_batch_size // (own.data * own.micro_batch))
