"""Bit layout of the 31-bit message tag, and the limits that it sets.

Tags distinguish the messages between pipeline stages (`mimokit.planning.message_tags`). Whether
they are wide enough for a layout is known before an engine starts, so that planning and running
both reject a layout for which they are not.
"""

from collections.abc import Iterator, Mapping

from mimokit.config.data import DataConfig
from mimokit.config.errors import Fix, Problem
from mimokit.config.model import MimoParallelismConfig
from mimokit.units import counted

FIELD_BITS = (("direction", 1), ("edge", 7), ("microbatch", 10), ("slot", 8), ("split", 5))
"""Field of a tag -> its bits, from the highest."""

ROOM: Mapping[str, int] = {name: 1 << bits for name, bits in FIELD_BITS}
"""Field of a tag -> the values that it holds."""


_CHUNKS = "virtual_pipeline_model_parallel_size"
HEADER_SLOTS = 1
_ROWS_SLOTS = 2
"""Rows, and rows per sample, which come with the header."""
_GRID_SLOTS = 2
"""Items per sample, and the grid of each."""


def slots_between_modules(with_grids: bool) -> int:
    """Return the slots of the tensors that one module sends another in a micro-batch.

    Args:
        with_grids: of its items, see `MimoParallelismConfig.sends_grids`.
    """
    return HEADER_SLOTS + _ROWS_SLOTS + _GRID_SLOTS * with_grids


def too_many(field: str, count: int) -> str | None:
    """Return a sentence if a field of a tag holds fewer values than a pipeline has, or None."""
    if count <= ROOM[field]:
        return None
    return (
        f"The pipeline has {counted(count, 'value')} of {field}, but a message tag holds "
        f"{ROOM[field]:,}; plan for at most as many."
    )


def tag_problems(model: MimoParallelismConfig, data: DataConfig) -> Iterator[Problem]:
    """Yield the micro-batches, edges and slots that are more than a tag holds.

    Only stages of a pipeline, and modules on separate ranks, send messages with tags. An edge leads
    from each stage to the next of its module, and from each module to those that it feeds; on the
    ranks of a pipeline from each set of ranks that computes an encoder. Only a first stage can have
    many slots: other modules feed it.
    """
    language = model.get_parallelism(model.llm_module_name)
    mode, sets = model.deployment_mode, language.pipeline_parallel
    if mode != "heterogeneous" and sets == 1:
        return
    sentence = too_many("microbatch", data.num_microbatches)
    if sentence is not None:
        fix: Fix = {"path": "data.num_microbatches", "value": ROOM["microbatch"]}
        yield Problem("data", "num_microbatches", data.num_microbatches, sentence, fix)
    topology, sizes = model.module_topology, model.module_parallelisms
    cut = [language] if mode == "homogeneous" else sizes.values()
    within = sum(module.pipeline_parallel * module.in_runs(_CHUNKS) - 1 for module in cut)
    between = sum(
        len(fed) * (sets if mode == "colocated" and sizes[name].pipeline_parallel == 1 else 1)
        for name, fed in topology.items()
    )
    sentence = too_many("edge", within + between)
    if sentence is not None:
        yield Problem("model", "pipeline_parallel", within + between, sentence)
    most = max(first_stage_slots(model).values(), default=0)
    sentence = too_many("slot", most)
    if sentence is not None:
        yield Problem("model", "topology", most, sentence)


def first_stage_slots(model: MimoParallelismConfig) -> dict[str, int]:
    """Return module -> the slots of the tensors that other modules send its first stage."""
    slots = dict.fromkeys(model.module_parallelisms, 0)
    for source, fed in model.module_topology.items():
        if source not in model.module_architectures:
            continue
        with_grids = source in model.encoder_module_names and model.sends_grids(source)
        for target in fed:
            slots[target] += slots_between_modules(with_grids)
    return slots
