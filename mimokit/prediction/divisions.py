"""Sizes that no training stack can build: what they cut does not come out even.

The rules are Megatron-Core's (`TransformerConfig.__post_init__`, `initialize_model_parallel`). A
search drops such sizes by arrays, `mimokit.layout_search.rules`; here one layout is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.architecture.modules import LanguageModel, Model
from mimokit.architecture.parallel_sizes import RECOMPUTE_NAMES, ParallelSizes
from mimokit.architecture.parameters_on_rank import Module, net_of
from mimokit.architecture.transformer import Transformer
from mimokit.config.errors import Problem
from mimokit.prediction.layout import Layout
from mimokit.prediction.workload import Workload, branches_of, language_of

DIVISOR, OTHER = "choose a divisor", "one must divide the other"


def indivisible(model: Model, layout: Layout, workload: Workload) -> Iterator[Problem]:
    """Yield what of a layout does not come out even; its sizes are whole numbers of at least 1."""
    language = language_of(model)
    own = layout.modules[layout.language]
    named: list[tuple[str, Module]] = [(one.name, one) for one in branches_of(model)]
    for name, module in [*named, (layout.language, language)]:
        sizes = layout.modules[name]
        for field, what in _uneven(module, sizes):
            yield _problem(name, field, sizes, what)
    for field, what in _uneven_step(own, workload):
        yield _problem(layout.language, field, own, what)
    for name, _ in named:
        for field, what in _unmatched(layout, layout.modules[name], own):
            yield _problem(name, field, layout.modules[name], what)


def _uneven(module: Module, sizes: ParallelSizes) -> Iterator[tuple[str, str]]:
    net = net_of(module)
    yield from _uneven_widths(net, sizes)
    yield from _uneven_layers(module, net, sizes)
    yield from _uneven_experts(net, sizes)
    if sizes.replicas % sizes.instances:
        yield (
            "instances",
            f"does not divide its {sizes.replicas} data x context replicas; {DIVISOR}",
        )
    if sizes.recompute not in range(len(RECOMPUTE_NAMES)):
        known = ", ".join(f"{i} ({name})" for i, name in enumerate(RECOMPUTE_NAMES))
        yield "recompute", f"is none of {known}"


def _uneven_widths(net: Transformer, sizes: ParallelSizes) -> Iterator[tuple[str, str]]:
    tensor = sizes.tensor
    if net.heads % tensor:
        yield "tensor", f"does not divide its {net.heads} attention heads; {DIVISOR}"
    elif net.mla is None and net.kv_heads % tensor and tensor % net.kv_heads:
        yield (
            "tensor",
            f"and its {net.kv_heads} key and value heads do not divide each other; {OTHER}",
        )
    widths = [net.ffn] if net.dense_layers else []
    if net.moe is not None and net.moe.shared_ffn:
        widths.append(net.moe.shared_ffn)
    for width in widths:
        if width % tensor:
            yield "tensor", f"does not divide its feed-forward width {width}; {DIVISOR}"


def _uneven_layers(
    module: Module, net: Transformer, sizes: ParallelSizes
) -> Iterator[tuple[str, str]]:
    """Layers alone have to divide, or layers with embedding and loss counted as layers."""
    chunks = sizes.pipeline * sizes.virtual
    extra = module.next_token_layers if isinstance(module, LanguageModel) else 0
    ends = net.layers + 2 + extra
    if sizes.virtual > 1 and sizes.pipeline == 1:
        yield "virtual", "asks for several chunks per stage, but there is one stage; set it to 1"
    elif chunks > net.layers or (net.layers % chunks and ends % chunks):
        yield (
            "pipeline",
            f"and {sizes.virtual} chunks per stage cannot share its {net.layers} layers, nor "
            f"{ends} with embedding and loss counted as layers; choose a product that divides one",
        )


def _uneven_experts(net: Transformer, sizes: ParallelSizes) -> Iterator[tuple[str, str]]:
    stage = sizes.tensor * sizes.context * sizes.data
    if sizes.expert == 1:
        return
    if net.moe is None:
        yield "expert", "is for experts, and it has none; set it to 1"
    elif net.moe.experts % sizes.expert:
        yield "expert", f"does not divide its {net.moe.experts} experts; {DIVISOR}"
    elif stage % sizes.expert:
        yield "expert", f"does not divide the {stage} ranks of a stage; {DIVISOR}"


def _uneven_step(own: ParallelSizes, workload: Workload) -> Iterator[tuple[str, str]]:
    """Yield what of the language model's sizes does not divide the work of a step."""
    if workload.seq_length % own.context:
        yield "context", f"does not divide the {workload.seq_length} tokens of a sample; {DIVISOR}"
    if workload.global_batch_size % (own.data * own.micro_batch):
        yield (
            "data",
            f"times micro_batch {own.micro_batch} does not divide the {workload.global_batch_size} "
            "samples of a step; choose sizes whose product does",
        )


def _unmatched(
    layout: Layout, sizes: ParallelSizes, own: ParallelSizes
) -> Iterator[tuple[str, str]]:
    """Yield what of an encoder's sizes does not fit those of the language model."""
    if layout.mode == "colocated" and sizes.ranks != own.ranks:
        yield (
            "data",
            f"makes up {sizes.ranks} ranks, but it shares all {own.ranks} of '{layout.language}'; "
            "make them equal",
        )
    if layout.mode != "homogeneous" and max(sizes.data, own.data) % min(sizes.data, own.data):
        yield "data", f"and {own.data} of '{layout.language}' do not divide each other; {OTHER}"


def _problem(module: str, field: str, sizes: ParallelSizes, what: str) -> Problem:
    value = getattr(sizes, field)
    return Problem(module, field, value, f"Module '{module}': {field} {value} {what}.")
