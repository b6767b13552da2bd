"""How much a message between pipeline stages can say of itself, and what is too much for it.

Messages are told apart by a tag of 31 bits (`mimokit.planning.message_tags`). The sizes of its
fields stand here, where they are known before an engine starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mimokit.config.data import DataConfig
from mimokit.config.errors import Problem
from mimokit.config.model import MimoParallelismConfig

FIELD_BITS = (("direction", 1), ("edge", 6), ("microbatch", 10), ("slot", 8), ("split", 6))
"""Field of a tag -> its bits, from the highest."""

ROOM: Mapping[str, int] = {name: 1 << bits for name, bits in FIELD_BITS}
"""Field of a tag -> the values that it holds."""


def too_many(field: str, count: int) -> str | None:
    """Return what is to be said of more values than a field of a tag holds, or None."""
    if count <= ROOM[field]:
        return None
    return (
        f"The pipeline has {count:,} values of {field}, but a message tag holds {ROOM[field]:,}; "
        "plan for at most as many."
    )


def tag_problems(model: MimoParallelismConfig, data: DataConfig) -> Iterator[Problem]:
    """Yield the micro-batches and edges that are more than a tag holds.

    Only stages of modules on ranks of their own send messages with tags. An edge leads from each
    stage to the next of its module, and from each module to those that it feeds. How many slots
    the edges into a stage take only its plan knows (`mimokit.plan`).
    """
    if model.deployment_mode != "heterogeneous":
        return
    sentence = too_many("microbatch", data.num_microbatches)
    if sentence is not None:
        yield Problem(
            "data",
            "num_microbatches",
            data.num_microbatches,
            sentence,
            {"path": "data.num_microbatches", "value": ROOM["microbatch"]},
        )
    within = sum(module.pipeline_parallel - 1 for module in model.module_parallelisms.values())
    between = sum(len(fed) for fed in model.module_topology.values())
    sentence = too_many("edge", within + between)
    if sentence is not None:
        yield Problem("model", "pipeline_parallel", within + between, sentence)
