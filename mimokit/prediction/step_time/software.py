"""Training stacks: shipped ones by name, and those that a user's runs calibrated."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, get_args

from mimokit.config.errors import ConfigError, Problem, unknown_name
from mimokit.config.text_file import MOST_CHARACTERS, read_json, read_text_file, reason_of
from mimokit.prediction.step_time.constants import CONSTANTS, chip_of, value
from mimokit.units import shown

FUSED_LOSS, UNFUSED_LOSS = 8.0, 17.3
"""Bytes per logit that the loss moves in a forward pass, and twice as many behind. Fused: 16 bits
written, cast to fp32, its maximum, sum and softmax, half of it per pass. Unfused: a cast (6),
maximum (4), difference (8), exponential (8), sum (4), quotient (8), and 14 behind (Megatron-Core's
`vocab_parallel_cross_entropy`): 52 in all."""
TensorOverlap = Literal["none", "async", "pipelined"]


@dataclass(frozen=True)
class Software:
    """A training stack. The constants have bounds and sources in `step_time.constants`.

    Attributes:
        host_layer: host seconds of launching the forward or backward pass of a dense layer, or of
            what a layer has besides experts, in 16 bits.
        host_experts: host seconds that experts add to it: routing, permutation, their products.
        host_collective: host seconds of a tensor-parallel gather, scatter or all-reduce.
        host_counts: host seconds of waiting for the counts of tokens per expert.
        host_micro_batch: host seconds at the start of a micro-batch in which the GPU of a stage
            waits: samples are read and broadcast to tensor-parallel ranks.
        host_softmax: additional host seconds per pass of a layer if the fused softmax does not
            support its number of scores (`host.SCORES_PER_BLOCK`).
        launches_ahead: the host launches the next kernels while a tensor-parallel collective runs.
            Otherwise the time of collectives is added to the launch time.
        matrix_share: share of the GPU's sustained matrix rate that the products of this stack
            reach. Kernels tuned for the shapes of a model reach 1.
        memory_share: the same of memory bandwidth.
        network_share: the same of the bandwidth between domains.
        tensor_overlap: overlap of tensor-parallel communication with matrix products; see
            `tensor_seconds`.
        overlaps_data: gradients are reduced during the backward pass, weights are gathered during
            the forward pass.
        overlaps_shards: the same where each rank owns a shard of the optimizer.
        overlaps_sends: sends between chunks of an interleaved schedule run beside passes.
        main_gradient_bytes: bytes per gradient in memory, between backward passes and optimizer.
        fp8_weight_bytes: bytes per weight in the matrices of a dense model that trains in fp8: 1
            if only 8 bits are stored, 2 with a transposed copy or in 16 bits.
        expert_passes: number of times that a token is moved through memory between the router and
            the matrix product of its expert, and back.
        dummy_gradients: gradients are added up in the products, and Transformer Engine keeps an
            unused gradient of each shape of a weight.
        deals_layers: layers are dealt to stages so that these have equal products, the logits among
            them; otherwise stages have equally many layers.
        fills_pipelines: a pipeline refuses fewer micro-batches than its stages less one.
        ties_sharded: what is tied over stages on several domains needs a sharded optimizer.
        reserved: memory that the allocator reserves for activations, over what these take.
        keeps_copies: for want of fused kernels a layer keeps the activated gate, and the output of
            attention once more.
        keeps_gradients: gradients in 16 bits are kept until all of a backward pass are there.
        whole_buffers: activations of all tensor-parallel ranks that buffers of collectives hold.
        outside_bytes: on a GPU, outside the allocator: CUDA's context, buffers of communicators.
        logit_copies: bytes that the loss keeps of a logit, beside the logit.
        loss_bytes: bytes per logit that the loss moves in a forward pass; twice as many behind.
        host_piped: seconds per rank of a tensor-parallel group that a collective takes longer in a
            pipeline that spans domains.
        straggling: share by which a step takes longer for each doubling of the domains.
        memory_error: standard deviation of predicted peaks of memory, as a share.
        retries: times its passes that a step takes longer where the allocator retries in all of
            its micro-batches; 0: its segments expand, so that it does not.
        gpu: name of the GPU on whose runs the constants were calibrated; empty: on published ones.
    """

    name: str
    fused_attention: bool = True
    fused_elementwise: bool = True
    rotates: bool = True
    host_layer: float = 0.0
    host_experts: float = 0.0
    host_collective: float = 0.0
    host_counts: float = 0.0
    host_micro_batch: float = 0.0
    host_softmax: float = 0.0
    launches_ahead: bool = True
    matrix_share: float = 1.0
    memory_share: float = 1.0
    network_share: float = 1.0
    tensor_overlap: TensorOverlap = "none"
    overlaps_data: bool = True
    overlaps_shards: bool = True
    overlaps_sends: bool = True
    gradient_bytes: int = 4
    main_gradient_bytes: int = 4
    fp8_weight_bytes: float = 2.0
    expert_passes: float = 4.0
    dummy_gradients: bool = False
    deals_layers: bool = False
    fills_pipelines: bool = False
    ties_sharded: bool = False
    reserved: float = 1.0
    keeps_copies: bool = False
    keeps_gradients: bool = False
    whole_buffers: float = 1.0
    outside_bytes: float = 0.0
    logit_copies: float = 4.0
    loss_bytes: float = FUSED_LOSS
    host_piped: float = 0.0
    straggling: float = 0.0
    memory_error: float = 0.03
    retries: float = 0.0
    gpu: str = ""


BRIDGE = Software(
    "megatron-bridge",
    gradient_bytes=2,
    main_gradient_bytes=2,
    fp8_weight_bytes=1.0,
    host_layer=value("host_layer"),
    host_collective=value("host_collective"),
    host_experts=value("host_experts"),
    host_counts=value("host_counts"),
    tensor_overlap="pipelined",
    expert_passes=value("fused passes"),
    dummy_gradients=True,
)
"""Megatron-Bridge's performance recipes since 26.02.01 (`grad_reduce_in_fp32=False`; for dense
models in fp8 `fp8_param_gather=True` and `disable_parameter_transpose_cache=True`)."""

BRIDGE_2025 = replace(BRIDGE, name="megatron-bridge-2025", expert_passes=value("unfused passes"))
"""The same from 25.09 to 26.02: the permutations of expert dispatch are not fused."""

BRIDGE_DROPPING = replace(BRIDGE_2025, name="megatron-bridge-dropping")
"""The same in 25.09: experts drop tokens above their capacity, so the host does not wait for token
counts."""

MEGATRON_CORE = replace(
    BRIDGE_2025,
    name="megatron-core",
    fused_elementwise=False,
    gradient_bytes=4,
    main_gradient_bytes=4,
    fp8_weight_bytes=2.0,
    tensor_overlap="async",
    overlaps_data=False,
    host_layer=2 * value("host_layer"),
    loss_bytes=UNFUSED_LOSS,
)
"""Megatron-LM on megatron-core with default options: flash attention; gradient reduction and weight
gathering are not overlapped (no `--overlap-grad-reduce`, no `--overlap-param-gather`). A layer has
twice the kernels of a fused one (`traffic.UNFUSED_KERNELS`), and its launch takes twice as long."""

MEGATRON_MIMO = Software(
    "megatron-mimo",
    host_layer=value("host_layer"),
    host_collective=value("host_collective"),
    overlaps_data=False,
    gradient_bytes=2,
    main_gradient_bytes=2,
)
"""Megatron-LM with modules of different layouts (arXiv 2605.27678): gradients are reduced after the
last backward pass, in bf16 (fp32 gradients would not fit in the memory of those runs)."""

MEGATRON_2021 = Software(
    "megatron-2021",
    fused_attention=False,
    rotates=False,
    host_layer=value("host_layer 2021"),
    host_micro_batch=value("host_micro_batch 2021"),
    host_softmax=value("host_softmax 2021"),
    launches_ahead=False,
    overlaps_data=False,
    overlaps_sends=False,
    gradient_bytes=2,
)
"""Megatron-LM of 2021 and 2022 (arXiv 2104.04473, 2205.05198): learned positions; bias and GELU,
bias, dropout and residual are one kernel each (2104.04473, sec. 4.2), attention is not. Sends
between chunks wait: only megatron-core overlaps them (`overlap_p2p_comm`)."""

NANOTRON = Software(
    "nanotron",
    fused_elementwise=False,
    host_layer=value("host_layer nanotron"),
    host_collective=value("host_collective"),
    host_piped=value("host_piped"),
    matrix_share=value("matrix nanotron"),
    overlaps_shards=False,
    overlaps_sends=False,
    deals_layers=True,
    fills_pipelines=True,
    ties_sharded=True,
    reserved=1.15,
    keeps_copies=True,
    keeps_gradients=True,
    whole_buffers=10.0,
    outside_bytes=2.0 * 2**30,
    logit_copies=8.0,
    loss_bytes=UNFUSED_LOSS,
    straggling=value("straggling"),
    memory_error=0.1,
    retries=3.0,
    memory_share=1.25,
)
"""Nanotron, as in the Ultra-Scale Playbook of February 2025 (commit e24d2483): layers are dealt by
their products (`get_block_compute_costs`); gradients are added up in fp32 after a backward pass
(`FP32GradientAccumulator`), reduced during the last one without ZeRO, and behind it with ZeRO 1.
1F1B asserts a number of micro-batches. `reserved` and `whole_buffers` are of the 868 peaks of the
Playbook's first stages. Of pipelines of a tied model over nodes with more than 8 micro-batches and
without ZeRO none of 28 ran; the Playbook does not say why."""

MIMOKIT = Software("mimokit", fused_attention=False, fused_elementwise=False, overlaps_data=False)
"""mimokit's own engine on CPUs: Megatron's local layers in fp32. What the host takes is part of the
kernels, micro-batches and steps of the hardware file that `calibrate` writes."""

_ALL = {
    stack.name: stack
    for stack in (
        BRIDGE, BRIDGE_2025, BRIDGE_DROPPING, MEGATRON_CORE, MEGATRON_MIMO, MEGATRON_2021, NANOTRON,
        MIMOKIT,
    )
}  # fmt: skip


def software_names() -> tuple[str, ...]:
    """Return the names of the known training stacks."""
    return tuple(_ALL)


def load_software(name: str | os.PathLike[str] | Software) -> Software:
    """Return a training stack by its name, or from a file that calibration from runs wrote.

    Raises:
        ConfigError: the name is unknown (the sentence suggests similar names), or the file is not
            such a file, or has a constant outside its bounds.
    """
    if isinstance(name, Software):
        return name
    if not isinstance(name, str) or name.endswith(".json"):
        return _from_file(Path(name))
    if name not in _ALL:
        raise unknown_name("Software", name, _ALL)
    return _ALL[name]


FORMAT = 2
"""Of the files of training stacks."""

BOUNDS: Mapping[str, tuple[float, float]] = {
    "host_layer": (0.0, 20e-3),
    "host_experts": (0.0, 20e-3),
    "host_collective": (0.0, 20e-3),
    "host_counts": (0.0, 20e-3),
    "host_micro_batch": (0.0, 1.0),
    "host_softmax": (0.0, 20e-3),
    "host_piped": (0.0, 20e-3),
    "matrix_share": (0.1, 2.0),
    "memory_share": (0.1, 2.0),
    "network_share": (0.05, 2.0),
    "gradient_bytes": (1, 4),
    "main_gradient_bytes": (2, 4),
    "fp8_weight_bytes": (1.0, 2.0),
    "expert_passes": (1.0, 20.0),
    "logit_copies": (0.0, 32.0),
    "loss_bytes": (4.0, 40.0),
    "reserved": (1.0, 2.0),
    "whole_buffers": (1.0, 60.0),
    "outside_bytes": (0.0, 16e9),
    "straggling": (0.0, 0.5),
    "memory_error": (0.005, 0.5),
    "retries": (0.0, 20.0),
}
"""Fact of a training stack that is a number -> its least and its largest value, in the units of
`Software`. All other facts are true or false, but for `tensor_overlap`."""


def movable(gpu: str, software: Software | None = None) -> Mapping[str, tuple[float, float]]:
    """Return constant of a stack -> its bounds, of those that runs on a GPU can tell about.

    Shares are those of the rates of the GPU's file, so that their products stay inside the bounds
    of `CONSTANTS`.
    """
    chip = chip_of(gpu)
    is_old = chip == "a100"
    matrix = CONSTANTS.get(f"matrix {chip}")
    memory = CONSTANTS["memory a100" if is_old else "memory"]
    bounds = {
        "matrix_share": (0.5, 1.2)
        if matrix is None
        else (matrix.low / matrix.value, matrix.high / matrix.value),
        "memory_share": (memory.low / memory.value, memory.high / memory.value),
    }
    # Of another machine, such as a calibrated CPU, the calibration says what launches take.
    for field_name in ("host_layer", "host_experts") if chip else ():
        known = CONSTANTS[field_name]
        bounds[field_name] = (known.low, known.high)
    network = CONSTANTS["network"]
    bounds["network_share"] = (0.5, network.high / network.value)
    if software is not None and software.host_piped:
        for field_name in ("host_piped", "straggling"):
            known = CONSTANTS[field_name]
            bounds[field_name] = (max(known.low, 1e-4), known.high)
    return bounds


def save_software(software: Software, base: str, path: str | os.PathLike[str]) -> Path:
    """Write the constants of a calibrated stack to a file that `load_software` reads.

    Raises:
        ConfigError: that is none of the shipped stacks, so that the file could not be read; the
            file exists already with other content, or its folder does not.
    """
    target = Path(path)
    if base not in _ALL:
        raise _refused(target, f"'{base}' is none of the stacks {', '.join(_ALL)}")
    if not target.parent.is_dir():
        raise _refused(target, f"there is no folder '{target.parent}'; make it")
    facts = {name: getattr(software, name) for name in movable(software.gpu, software)}
    content = {"format": FORMAT, "base": base, "gpu": software.gpu, "facts": facts}
    text = json.dumps(content, indent=2) + "\n"
    if os.path.lexists(target) and _content(target) != text:
        raise _refused(target, "it exists already, and is not written over; give another name")
    target.write_text(text, encoding="utf-8")
    return target


def _content(path: Path) -> str | None:
    try:
        return read_text_file(path)
    except (OSError, UnicodeDecodeError):
        return None


def _from_file(path: Path) -> Software:
    try:
        content = read_json(path, MOST_CHARACTERS)
    except OSError as error:
        raise _refused(path, f"it cannot be read ({reason_of(error)})") from None
    except ValueError:
        raise _refused(path, "it is not JSON") from None
    if not isinstance(content, dict) or content.get("format") not in (1, FORMAT):
        raise _refused(path, f"it has no format {FORMAT}")
    gpu, base = content.get("gpu", ""), content.get("base")
    facts = content.get("facts" if content["format"] == FORMAT else "constants")
    if not (isinstance(gpu, str) and isinstance(base, str) and isinstance(facts, dict)):
        raise _refused(path, "base and gpu are names, and facts are a mapping")
    if base not in _ALL:
        raise _refused(path, f"base {shown(base)} is none of {', '.join(_ALL)}")
    for name, said in facts.items():
        _check_fact(path, name, said, movable(gpu, _ALL[base]).get(name) if gpu else None)
    return replace(_ALL[base], gpu=gpu, **facts)


def _check_fact(
    path: Path, name: str, said: object, calibrated: tuple[float, float] | None
) -> None:
    """Refuse a fact that no stack has, or a value that it cannot have.

    Args:
        calibrated: its bounds, where runs on a GPU adjusted it.
    """
    known = {each.name for each in fields(Software)} - {"name", "gpu"}
    if name not in known:
        raise _refused(path, unknown_name("Fact", name, known).problems[0].sentence.rstrip("."))
    if name in BOUNDS:
        low, high = calibrated or BOUNDS[name]
        if isinstance(said, bool) or not isinstance(said, int | float) or not low <= said <= high:
            least, most = f"{low:.3g}", f"{high:.3g}"
            raise _refused(path, f"{name} is {shown(said)}, outside its bounds {least} to {most}")
    elif name == "tensor_overlap":
        ways = get_args(TensorOverlap)
        if said not in ways:
            raise _refused(path, f"{name} is {shown(said)}; it is one of {', '.join(ways)}")
    elif not isinstance(said, bool):
        raise _refused(path, f"{name} is {shown(said)}; it is true or false")


def _refused(path: Path, why: str) -> ConfigError:
    sentence = f"Software file '{path}': {why}; docs/predictor.md lists the facts of a stack."
    return ConfigError([Problem("prediction", "software", str(path), sentence)])
