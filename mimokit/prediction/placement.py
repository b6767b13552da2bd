"""Where the modules of a layout begin, and what a config of ranks alone cannot say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.prediction.layout import Layout
from mimokit.prediction.workload import Workload

LANGUAGE = "language"
"""What the language module is called where its own name is no plain one, and in Megatron-Bridge."""


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
