"""Conversion between layouts and Megatron-LM's command-line arguments."""

import math
from collections.abc import Iterator, Mapping, Sequence

from mimokit.axes import COUNTS, GRID_AXES, MEGATRON_ARGUMENTS, SIZE_FIELDS, Axis, Choice
from mimokit.config.errors import ConfigError, Problem, refuse_if_any
from mimokit.config.sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_NAMES,
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    ParallelSizes,
)
from mimokit.interop.command_line import (
    MEGATRON_LM,
    Options,
    number,
    options_of,
    word,
    wrong_file,
)
from mimokit.interop.imported_layout import Imported
from mimokit.interop.megatron_lm_model import model_of
from mimokit.prediction import Layout, Workload
from mimokit.prediction.layout import LANGUAGE
from mimokit.prediction.validity import check_counts
from mimokit.units import counted

_SIZES = {
    MEGATRON_ARGUMENTS[axis]: SIZE_FIELDS[axis] for axis in COUNTS if axis in MEGATRON_ARGUMENTS
}
"""Megatron-LM's argument -> field of `ParallelSizes`."""

_OF_A_REPLICA = tuple(SIZE_FIELDS[axis] for axis in GRID_AXES if axis is not Axis.DATA)

_MICRO_BATCH = MEGATRON_ARGUMENTS[Choice.MICRO_BATCH]
_RECOMPUTE = MEGATRON_ARGUMENTS[Choice.RECOMPUTE]

FULLY_SHARDED = "optim_grads_params"
"""Megatron-FSDP's strategy that shards weights and gradients as well (ZeRO 3)."""

NOT_PLANNED = (
    MEGATRON_ARGUMENTS[Axis.EXPERT_TENSOR],
    "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers",
    "pipeline-model-parallel-layout",
    "hierarchical-context-parallel-sizes",
    "cpu-offloading",
    "optimizer-cpu-offload",
)
"""Arguments that change memory or time and are not planned; a note reports each one."""

PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "bf16": (),
    "fp8": ("--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"),
    "mxfp8": ("--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"),
    "nvfp4": ("--fp4-format", "e2m1"),
}
"""Precision -> its arguments next to `--bf16`; fp8 has one current scale per tensor."""


def to_megatron_arguments(layout: Layout, workload: Workload) -> list[str]:
    """Return Megatron-LM's arguments of a layout; reject one that is not homogeneous."""
    check_counts(layout)
    if layout.mode != "homogeneous":
        sentence = (
            f"{MEGATRON_LM}: they have one set of sizes for all modules, and this layout is "
            f"{layout.mode}; choose a homogeneous one."
        )
        refuse_if_any([Problem(MEGATRON_LM, "layout", str(layout), sentence)])
    sizes = layout.modules[layout.language]
    words: list[str] = []
    for flag, field in _SIZES.items():
        value = int(getattr(sizes, field))
        if value > 1 or flag == _MICRO_BATCH:
            words += [f"--{flag}", str(value)]
    words += ["--global-batch-size", str(workload.global_batch_size)]
    words += ["--seq-length", str(workload.seq_length)]
    if int(sizes.recompute):
        words += [f"--{_RECOMPUTE}", RECOMPUTE_NAMES[int(sizes.recompute)]]
    if int(sizes.recompute) == RECOMPUTE_FULL:
        words += ["--recompute-method", "uniform", "--recompute-num-layers", "1"]
    if sizes.sequence_parallel and sizes.tensor > 1:
        words.append("--sequence-parallel")
    if sizes.distributed_optimizer:
        words.append("--use-distributed-optimizer")
    if sizes.fully_sharded:
        words += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", FULLY_SHARDED]
    return words + _precision_words(workload.precision)


def _precision_words(precision: str) -> list[str]:
    if precision in PRECISIONS:
        return ["--bf16", *PRECISIONS[precision]]
    names = ", ".join(PRECISIONS)
    sentence = f"{MEGATRON_LM}: precision is {precision}, for which there is none; choose {names}."
    raise ConfigError([Problem(MEGATRON_LM, "precision", precision, sentence)])


def from_megatron_arguments(arguments: str | Sequence[str], gpus: int | None = None) -> Imported:
    """Return the layout, samples and language model that a Megatron-LM command line describes.

    Args:
        arguments: as typed, with or without a torchrun command in front and line continuations, or
            as a list of words.
        gpus: number of GPUs; by default nnodes x nproc-per-node of the torchrun command.

    Raises:
        ConfigError: there is no argument, a value is not a whole number, the number of GPUs is
            unknown, or the sizes do not divide it.
    """
    options = options_of(arguments)
    if not options:
        sentence = "there are none; give the words of a command line, such as --num-layers 32."
        raise wrong_file(MEGATRON_LM, "arguments", None, sentence)
    sizes = {field: number(options, flag) for flag, field in _SIZES.items() if flag in options}
    if "num-layers-per-virtual-pipeline-stage" in options:
        sizes["virtual"] = _chunks(options, sizes.get("pipeline", 1))
    language = ParallelSizes(
        **sizes,
        data=_replicas(_world(options) if gpus is None else gpus, sizes),
        recompute=_recompute(options),
        sequence_parallel="sequence-parallel" in options,
        distributed_optimizer="use-distributed-optimizer" in options
        or "use-megatron-fsdp" in options,
        fully_sharded=_fully_sharded(options),
    )
    model, notes = model_of(options)
    notes += tuple(_ignored(options))
    workload = None
    if {"seq-length", "global-batch-size"} <= set(options):
        samples = number(options, "global-batch-size")
        workload = Workload(number(options, "seq-length"), samples, _precision(options))
    else:
        notes += ("Without --seq-length and --global-batch-size the samples are not known.",)
    return Imported(Layout("homogeneous", {LANGUAGE: language}, LANGUAGE), workload, model, notes)


def _chunks(options: Options, stages: int) -> int:
    flag = "num-layers-per-virtual-pipeline-stage"
    each, layers = number(options, flag), number(options, "num-layers", 0)
    if not layers or layers % (stages * each):
        sentence = (
            f"--{flag} is {each}, and chunks of {each} layers do not split "
            f"{counted(layers, 'layer')} over {counted(stages, 'stage')}; correct it or "
            "--num-layers."
        )
        raise wrong_file(MEGATRON_LM, flag, each, sentence)
    return layers // (stages * each)


def _replicas(world: int, sizes: Mapping[str, int]) -> int:
    each = math.prod(sizes.get(name, 1) for name in _OF_A_REPLICA)
    if world % each or world < 1:
        sentence = (
            f"a replica takes {counted(each, 'GPU')} (tensor x pipeline x context), which does not "
            f"divide {world}; correct one of them."
        )
        raise wrong_file(MEGATRON_LM, "gpus", world, sentence)
    return world // each


def _world(options: Options) -> int:
    if "nproc-per-node" not in options:
        sentence = (
            "they do not state how many GPUs there are; give --gpus (gpus=... in Python), or a "
            "torchrun command with --nnodes and --nproc-per-node."
        )
        raise wrong_file(MEGATRON_LM, "gpus", None, sentence)
    return number(options, "nnodes", 1) * number(options, "nproc-per-node")


def _recompute(options: Options) -> int:
    if _RECOMPUTE not in options:
        return RECOMPUTE_SELECTIVE if "recompute-activations" in options else RECOMPUTE_NONE
    chosen = word(options, _RECOMPUTE)
    if chosen not in RECOMPUTE_NAMES[1:]:
        right = " or ".join(RECOMPUTE_NAMES[1:])
        sentence = f"--{_RECOMPUTE} is '{chosen}'; choose {right}."
        raise wrong_file(MEGATRON_LM, _RECOMPUTE, chosen, sentence)
    return RECOMPUTE_NAMES.index(chosen)


def _fully_sharded(options: Options) -> bool:
    strategy = word(options, "data-parallel-sharding-strategy")
    return "use-torch-fsdp2" in options or (
        "use-megatron-fsdp" in options and strategy == FULLY_SHARDED
    )


def _precision(options: Options) -> str:
    """Return the precision of matrix products; fp8 of any recipe except mxfp8 is fp8."""
    if "fp4-format" in options:
        return "nvfp4"
    if "fp8-format" in options:
        return "mxfp8" if word(options, "fp8-recipe") == "mxfp8" else "fp8"
    return "bf16"


def _ignored(options: Options) -> Iterator[str]:
    for flag in NOT_PLANNED:
        if flag in options and word(options, flag) not in ("1", "0"):
            yield f"--{flag} was ignored: layouts have no field for it."
    layers = word(options, "recompute-num-layers", "1")
    if word(options, _RECOMPUTE) == "full" and (
        layers != "1" or word(options, "recompute-method", "uniform") != "uniform"
    ):
        yield "Full recomputation is predicted with --recompute-method uniform, layer by layer."
    strategy = word(options, "data-parallel-sharding-strategy", FULLY_SHARDED)
    if "use-megatron-fsdp" in options and strategy != FULLY_SHARDED:
        yield f"The sharding strategy {strategy} is treated as the distributed optimizer alone."
