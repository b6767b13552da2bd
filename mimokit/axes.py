"""The parallel axes, and every spelling of each.

A module is sharded along axes. An axis has different names in configs, in layouts and in
Megatron-Core, and a short label. All of them are listed here, and nowhere else.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Axis(StrEnum):
    """A parallel axis. Its value is the dimension of Megatron-Core's `HyperCommGrid`.

    Virtual pipeline stages take no ranks: "vpp" is in no grid.
    """

    TENSOR = "tp"
    CONTEXT = "cp"
    DATA = "dp"
    PIPELINE = "pp"
    VIRTUAL_PIPELINE = "vpp"
    EXPERT = "ep"
    EXPERT_TENSOR = "expt_tp"
    EXPERT_DATA = "expt_dp"

    @property
    def label(self) -> str:
        """The short label, such as TP."""
        return SPELLINGS[self].label


class Choice(StrEnum):
    """What a layout sets per module next to its axes. Its value is the `ParallelSizes` field."""

    MICRO_BATCH = "micro_batch"
    RECOMPUTE = "recompute"
    OPTIMIZER_INSTANCES = "instances"
    SEQUENCE_PARALLEL = "sequence_parallel"
    DISTRIBUTED_OPTIMIZER = "distributed_optimizer"
    FULLY_SHARDED = "fully_sharded"


@dataclass(frozen=True)
class Spelling:
    """The names of one axis or choice; None where it has none.

    Attributes:
        words: in a sentence.
        label: short, on a button or in a table.
        size: field of `ParallelSizes`.
        config: field of `ModuleParallelismConfig`.
        layout: in the JSON of layouts and the constraints of a search.
        megatron: field of Megatron-Core's configs and of Megatron-Bridge's.
        argument: Megatron-LM's command-line argument, without the dashes in front.
    """

    words: str
    label: str
    size: str | None
    config: str | None
    layout: str | None
    megatron: str | None
    argument: str | None


SPELLINGS: Mapping[Axis | Choice, Spelling] = {
    Axis.TENSOR: Spelling(
        "tensor parallel", "TP", "tensor", "tensor_parallel", "tensor_parallel",
        "tensor_model_parallel_size", "tensor-model-parallel-size",
    ),
    Axis.PIPELINE: Spelling(
        "pipeline parallel", "PP", "pipeline", "pipeline_parallel", "pipeline_parallel",
        "pipeline_model_parallel_size", "pipeline-model-parallel-size",
    ),
    Axis.VIRTUAL_PIPELINE: Spelling(
        "virtual pipeline", "VPP", "virtual",
        "virtual_pipeline_model_parallel_size", "virtual_pipeline",
        "virtual_pipeline_model_parallel_size", "num-virtual-stages-per-pipeline-rank",
    ),
    Axis.CONTEXT: Spelling(
        "context parallel", "CP", "context", "context_parallel", "context_parallel",
        "context_parallel_size", "context-parallel-size",
    ),
    Axis.EXPERT: Spelling(
        "expert parallel", "EP", "expert", "expert_parallel", "expert_parallel",
        "expert_model_parallel_size", "expert-model-parallel-size",
    ),
    Axis.DATA: Spelling(
        "data parallel", "DP", "data", "data_parallel", "data_parallel",
        "data_parallel_size", None,
    ),
    Axis.EXPERT_TENSOR: Spelling(
        "expert tensor parallel", "ETP", "expert_tensor", "expert_tensor_parallel", None,
        "expert_tensor_parallel_size", "expert-tensor-parallel-size",
    ),
    Axis.EXPERT_DATA: Spelling("expert data parallel", "EDP", None, None, None, None, None),
    Choice.MICRO_BATCH: Spelling(
        "samples per replica and micro-batch", "micro-batch", "micro_batch",
        None, "micro_batch_size", "micro_batch_size", "micro-batch-size",
    ),
    Choice.RECOMPUTE: Spelling(
        "recomputation", "recompute", "recompute", "recompute_granularity", "recompute",
        "recompute_granularity", "recompute-granularity",
    ),
    Choice.OPTIMIZER_INSTANCES: Spelling(
        "optimizer instances", "optimizer instances", "instances",
        "num_distributed_optimizer_instances", "optimizer_instances",
        "num_distributed_optimizer_instances", "num-distributed-optimizer-instances",
    ),
    Choice.SEQUENCE_PARALLEL: Spelling(
        "sequence parallel", "SP", "sequence_parallel",
        "sequence_parallel", "sequence_parallel", "sequence_parallel", "sequence-parallel",
    ),
    Choice.DISTRIBUTED_OPTIMIZER: Spelling(
        "distributed optimizer", "distributed optimizer", "distributed_optimizer",
        "use_distributed_optimizer", "distributed_optimizer",
        "use_distributed_optimizer", "use-distributed-optimizer",
    ),
    Choice.FULLY_SHARDED: Spelling(
        "fully sharded", "FSDP", "fully_sharded", "use_megatron_fsdp", "fully_sharded",
        "use_megatron_fsdp", "use-megatron-fsdp",
    ),
}  # fmt: skip
"""Every axis and choice, in the order in which layouts list them."""


def _spelled(kind: str) -> dict[Axis | Choice, str]:
    spelled = {axis: getattr(spelling, kind) for axis, spelling in SPELLINGS.items()}
    return {axis: name for axis, name in spelled.items() if name}


SIZE_FIELDS = _spelled("size")
CONFIG_FIELDS = _spelled("config")
LAYOUT_FIELDS = _spelled("layout")
MEGATRON_FIELDS = _spelled("megatron")
MEGATRON_ARGUMENTS = _spelled("argument")

GRID_AXES = (Axis.TENSOR, Axis.CONTEXT, Axis.DATA, Axis.PIPELINE)
"""The axes whose product is a module's ranks; neighbouring ranks differ in the first."""

EXPERT_GRID_AXES = (Axis.EXPERT_TENSOR, Axis.EXPERT, Axis.EXPERT_DATA, Axis.PIPELINE)
"""The axes of the same ranks as experts see them."""

RANK_AXES = (Axis.TENSOR, Axis.PIPELINE, Axis.CONTEXT, Axis.EXPERT, Axis.DATA)
"""The axes that a module of a config has, in the order of its fields."""

SHOWN_AXES = (Axis.TENSOR, Axis.CONTEXT, Axis.PIPELINE, Axis.DATA, Axis.EXPERT)
"""The axes that the report of a plan shows, in its order."""


def short_sizes(sizes: Mapping[Axis, int], always: Collection[Axis] = ()) -> str:
    """Return sizes such as TP2 DP4, in the order of `SHOWN_AXES`; those of 1 only of `always`."""
    return " ".join(
        f"{axis.label}{sizes[axis]}"
        for axis in SHOWN_AXES
        if axis in sizes and (sizes[axis] > 1 or axis in always)
    )


COUNTS = (
    Axis.TENSOR,
    Axis.PIPELINE,
    Axis.VIRTUAL_PIPELINE,
    Axis.CONTEXT,
    Axis.EXPERT,
    Axis.DATA,
    Choice.MICRO_BATCH,
    Choice.OPTIMIZER_INSTANCES,
)
"""What is a whole number of at least 1 in every layout."""

COUNT_FIELDS = tuple(SIZE_FIELDS[count] for count in COUNTS)
"""The fields of `ParallelSizes` that are counts."""
