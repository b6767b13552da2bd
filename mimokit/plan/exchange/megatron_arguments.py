"""Between layouts and Megatron-LM's command-line arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mimokit.config.problems import Problem, refuse_if_any
from mimokit.plan.exchange.imported import Imported, refused
from mimokit.plan.exchange.megatron_model import model_of
from mimokit.plan.exchange.megatron_options import WHERE, Options, number, options_of, word
from mimokit.plan.exchange.placement import LANGUAGE, check_sizes
from mimokit.plan.prediction import Layout, Workload
from mimokit.plan.sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_NAMES,
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    ParallelSizes,
)

_SIZES = {
    "tensor-model-parallel-size": "tensor",
    "pipeline-model-parallel-size": "pipeline",
    "num-virtual-stages-per-pipeline-rank": "virtual",
    "context-parallel-size": "context",
    "expert-model-parallel-size": "expert",
    "micro-batch-size": "micro_batch",
    "num-distributed-optimizer-instances": "instances",
}
"""Megatron-LM's argument -> field of `ParallelSizes`."""


def to_megatron_arguments(layout: Layout, workload: Workload) -> list[str]:
    """Return the arguments that give Megatron-LM a layout's sizes and samples.

    Raises:
        ConfigError: the layout is not homogeneous; Megatron-LM has one set of sizes.
    """
    check_sizes(layout)
    if layout.mode != "homogeneous":
        sentence = (
            f"{WHERE}: they have one set of sizes for all modules, and this layout is "
            f"{layout.mode}; choose a homogeneous one."
        )
        refuse_if_any([Problem(WHERE, "layout", str(layout), sentence)])
    own = layout.modules[layout.language]
    words: list[str] = []
    for flag, field in _SIZES.items():
        value = int(getattr(own, field))
        if value > 1 or flag == "micro-batch-size":
            words += [f"--{flag}", str(value)]
    words += ["--global-batch-size", str(workload.global_batch)]
    words += ["--seq-length", str(workload.seq_length)]
    if int(own.recompute):
        words += ["--recompute-granularity", RECOMPUTE_NAMES[int(own.recompute)]]
    if int(own.recompute) == RECOMPUTE_FULL:
        words += ["--recompute-method", "uniform", "--recompute-num-layers", "1"]
    if own.sequence_parallel and own.tensor > 1:
        words.append("--sequence-parallel")
    if own.distributed_optimizer:
        words.append("--use-distributed-optimizer")
    return words


def from_megatron_arguments(arguments: str | Sequence[str], gpus: int | None = None) -> Imported:
    """Return the layout, samples and language model that a Megatron-LM command line describes.

    Args:
        arguments: as typed, a torchrun command in front and line continuations included, or as a
            list of words.
        gpus: how many there are; by default nnodes x nproc-per-node of the torchrun command.

    Raises:
        ConfigError: a value that is no whole number, no number of GPUs, or sizes that do not
            divide it.
    """
    given = options_of(arguments)
    sizes = {own: number(given, flag) for flag, own in _SIZES.items() if flag in given}
    if "num-layers-per-virtual-pipeline-stage" in given:
        sizes["virtual"] = _chunks(given, sizes.get("pipeline", 1))
    own = ParallelSizes(
        **sizes,
        data=_replicas(_world(given) if gpus is None else gpus, sizes),
        recompute=_recompute(given),
        sequence_parallel="sequence-parallel" in given,
        distributed_optimizer="use-distributed-optimizer" in given,
    )
    model, notes = model_of(given)
    workload = None
    if {"seq-length", "global-batch-size"} <= set(given):
        workload = Workload(number(given, "seq-length"), number(given, "global-batch-size"))
    else:
        notes += ("Without --seq-length and --global-batch-size the samples are not known.",)
    return Imported(Layout("homogeneous", {LANGUAGE: own}), workload, model, notes)


def _chunks(given: Options, stages: int) -> int:
    """Return the chunks per stage of which each has so many layers."""
    flag = "num-layers-per-virtual-pipeline-stage"
    each, layers = number(given, flag), number(given, "num-layers", 0)
    if not layers or layers % (stages * each):
        sentence = (
            f"--{flag} is {each}, and chunks of {each} layers do not deal {layers} layers to "
            f"{stages} stages; correct it or --num-layers."
        )
        raise refused(WHERE, flag, each, sentence)
    return layers // (stages * each)


def _replicas(world: int, sizes: Mapping[str, int]) -> int:
    each = math.prod(sizes.get(name, 1) for name in ("tensor", "pipeline", "context"))
    if world % each or world < 1:
        sentence = (
            f"a replica takes {each} GPUs (tensor x pipeline x context), which does not divide "
            f"{world}; correct one of them."
        )
        raise refused(WHERE, "gpus", world, sentence)
    return world // each


def _world(given: Options) -> int:
    if "nproc-per-node" not in given:
        sentence = (
            "they do not say how many GPUs there are; give gpus, or a torchrun command with "
            "--nnodes and --nproc-per-node."
        )
        raise refused(WHERE, "gpus", None, sentence)
    return number(given, "nnodes", 1) * number(given, "nproc-per-node")


def _recompute(given: Options) -> int:
    if "recompute-granularity" not in given:
        return RECOMPUTE_SELECTIVE if "recompute-activations" in given else RECOMPUTE_NONE
    chosen = word(given, "recompute-granularity")
    if chosen not in RECOMPUTE_NAMES[1:]:
        right = " or ".join(RECOMPUTE_NAMES[1:])
        sentence = f"--recompute-granularity is '{chosen}'; choose {right}."
        raise refused(WHERE, "recompute-granularity", chosen, sentence)
    return RECOMPUTE_NAMES.index(chosen)
