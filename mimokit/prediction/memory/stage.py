"""Bytes that one rank stores for one module, and the formula of each number."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mimokit.architecture.layer_work.saved_activations import joining_activations, layer_activations
from mimokit.architecture.layers_on_stage import layers_of
from mimokit.architecture.modules import EncoderBranch, Module
from mimokit.architecture.rank_parameters import RankParameters, output_rows, rank_parameters
from mimokit.architecture.transformer import Transformer, layer_parameters
from mimokit.config.runtime import GPIPE, ZERO_BUBBLE, PipelineOrder
from mimokit.config.sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_NAMES,
    RECOMPUTE_NONE,
    Numbers,
    ParallelSizes,
)
from mimokit.prediction.memo import remembered
from mimokit.prediction.memory.states import IN_HALF, Storage, state_bytes, update_bytes
from mimokit.units import bytes_text

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "strategy")


def micro_batches_in_flight(
    sizes: ParallelSizes,
    micro_batches: Numbers,
    stage: Numbers,
    order: PipelineOrder | None = None,
    ahead: Numbers = 0,
    behind: Numbers = 0,
) -> Numbers:
    """Return the number of micro-batches in flight in a stage; it may be a fraction.

    1F1B: min(m, p - i) on stage i. GPipe: all m. ZB-H1: min(m, p) on every stage, as gradients of
    weights come the later the more stages are ahead (arXiv 2401.10241, sec. 2.1). Interleaved:
    Megatron's warm-up of 2 (p - i - 1) + (v - 1) p chunks plus the current one, which is
    p (1 + (p - 1) / (p v)) on stage 0 (arXiv 2205.05198, sec. 4.2.3).

    Args:
        order: of the stages; None: 1F1B, and of stages with several chunks Megatron's.
        ahead: stages of other modules before the first one of this module, on the longest path.
        behind: micro-batches in flight in the modules behind this one, on the longest path.
    """
    if order == GPIPE:
        return np.where(np.greater(sizes.pipeline + ahead + behind, 1), micro_batches, 1)
    after = sizes.pipeline - stage
    chunks = 2 * (after - 1) + (sizes.virtual - 1) * sizes.pipeline + 1
    interleaved = np.minimum(micro_batches, chunks / sizes.virtual + behind)
    held = sizes.pipeline + ahead if order == ZERO_BUBBLE else after
    plain = np.minimum(micro_batches, held + behind)
    return np.where(np.greater(sizes.virtual, 1), interleaved, plain)[()]


def micro_batches_through(
    sizes: ParallelSizes, micro_batches: Numbers, order: PipelineOrder | None = None
) -> Numbers:
    """Return the number of micro-batches in flight between entry and exit of a whole pipeline.

    A module before the first chunk, such as an encoder, stores its activations for this long. 1F1B
    and ZB-H1: p. GPipe: all. Interleaved: 2 p, because p more micro-batches enter before the first
    p return.
    """
    if order == GPIPE:
        return micro_batches_in_flight(sizes, micro_batches, 0, order)
    groups = 1 + (sizes.virtual > 1)
    return np.minimum(micro_batches, groups * sizes.pipeline)


@remembered
def stage_memory(
    module: Module,
    sizes: ParallelSizes,
    seq: Numbers,
    micro_batches: Numbers,
    stage: Numbers,
    *,
    samples: Numbers | None = None,
    frozen: bool = False,
    passes_gradient: bool = False,
    held_for: Numbers | None = None,
    storage: Storage = IN_HALF,
) -> Mapping[str, Numbers]:
    """Return the bytes on a rank of one stage, by part.

    Args:
        seq: tokens per sample of the module (an encoder: patches).
        samples: sequences of `seq` tokens per micro-batch on a rank, by default
            `sizes.micro_batch`. An encoder may have several images per sample.
        frozen: the module is not trained: no gradients, no optimizer state, no activations.
        passes_gradient: a module before a frozen module is trained. The frozen module then stores
            what the gradient of its input needs, without the inputs of matrix products (Megatron's
            `LinearWithFrozenWeight`).
        held_for: micro-batches whose activations are stored at once. None takes those in flight in
            the pipeline. A colocated encoder stores all of a step.
        storage: bytes per number that depend on precision and training stack.
    """
    count = sizes.micro_batch if samples is None else samples
    tokens = count * seq / sizes.context
    alive = micro_batches_in_flight(sizes, micro_batches, stage) if held_for is None else held_for
    kept = _kept(module, sizes, tokens, seq, stage, storage, frozen=frozen)
    backward = 0.0 if frozen and not passes_gradient else 1.0
    parameters = rank_parameters(module, sizes, stage)
    parts = dict(state_bytes(parameters, sizes, frozen=frozen, storage=storage))
    parts["activations"] = backward * alive * kept
    parts["logits"] = _logits(module, sizes, tokens, stage, storage)
    buffers = _buffers(module, sizes, tokens, backward, storage, frozen=frozen)
    update = (not frozen) * update_bytes(parameters, sizes, storage=storage)
    gone = parts["activations"] + parts["logits"]
    parts["buffers"] = np.maximum(buffers, update - gone)
    return parts


@remembered
def _kept(
    module: Module,
    sizes: ParallelSizes,
    tokens: Numbers,
    seq: Numbers,
    stage: Numbers,
    storage: Storage,
    *,
    frozen: bool,
) -> Numbers:
    net, layers = module.net, layers_of(module, sizes, stage)
    whole = layers.first(storage.recompute_layers)
    inputs = storage.number * net.hidden * tokens / sizes.sequence_shards
    kept: Numbers = inputs * whole.total
    if storage.keeps_copies:
        copies = storage.number * tokens * (net.heads * net.v_dim + net.ffn) / sizes.tensor
        kept = kept + copies * (layers.dense - whole.dense)
    further = np.equal(stage, sizes.pipeline - 1) * module.next_token_layers
    product_input = 0.0 if frozen else storage.product_input
    if module.next_token_layers:
        joining = joining_activations(net, sizes, tokens, storage.number, product_input)
        kept = kept + further * joining
    each = {
        moe: layer_activations(
            net,
            moe,
            sizes,
            tokens,
            seq,
            flash=storage.fused_attention,
            number=storage.number,
            product_input=product_input,
            without=storage.recompute_modules,
        )
        for moe in {None, net.moe}
        if moe is not None or net.dense_layers
    }
    counts = [(None, layers.dense - whole.dense), (net.moe, layers.expert - whole.expert)]
    for moe, count in (*counts, (net.moe, further)):
        if moe in each:
            kept = kept + count * each[moe]
    return storage.reserved * kept


def total_bytes(parts: Mapping[str, Numbers]) -> Numbers:
    """Return the sum of all parts."""
    return sum(parts.values())


def _logits(
    module: Module, sizes: ParallelSizes, tokens: Numbers, stage: Numbers, storage: Storage
) -> Numbers:
    if isinstance(module, EncoderBranch):
        return 0.0 * tokens
    rows = output_rows(module, sizes) * (1 + module.next_token_layers)
    return (
        np.equal(stage, sizes.pipeline - 1)
        * (storage.number + storage.logit_copies)
        * tokens
        * rows
    )


@remembered
def _buffers(
    module: Module,
    sizes: ParallelSizes,
    tokens: Numbers,
    backward: float,
    storage: Storage,
    *,
    frozen: bool,
) -> Numbers:
    """Return the bytes of temporary buffers inside one layer's passes.

    Full recompute rebuilds one layer at a time, and that of modules theirs of one layer. Sequence
    parallelism gathers the input of a layer, and what it gathers and scatters may wait to be freed.
    """
    net = module.net
    number = storage.number
    once = replace(sizes, recompute=RECOMPUTE_NONE)
    whole_layer = partial(layer_activations, net, net.moe, once, tokens, 0.0, number=number)
    layer = whole_layer()
    again: Numbers = 0.0
    if storage.recompute_layers:
        again = layer
    elif storage.recompute_modules:
        again = layer - whole_layer(without=storage.recompute_modules)
    rebuilt = np.where(np.equal(sizes.recompute, RECOMPUTE_FULL), layer, again)
    whole = storage.whole_buffers * number * net.hidden * tokens
    gathered = np.where(np.greater(sizes.sequence_shards, 1), whole, 0)
    unused = storage.number * _largest_matrices(net, sizes) * storage.dummy_gradients
    return backward * (rebuilt + gathered + unused * (not frozen))


def _largest_matrices(net: Transformer, sizes: ParallelSizes) -> Numbers:
    """Return the numbers in one matrix of each shape on a rank: one layer's, and one expert's.

    Where gradients are added up in the product, Transformer Engine hands autograd an unused tensor
    instead, which it keeps for each shape (`get_dummy_wgrad`).
    """
    dense = layer_parameters(net, None).sharded / sizes.tensor if net.dense_layers else 0.0
    if net.moe is None:
        return dense
    layer = layer_parameters(net, net.moe)
    own = layer.sharded / sizes.tensor + layer.expert / net.moe.experts
    return np.maximum(dense, own)


SOURCES: Mapping[str, str] = {
    "weights": "Megatron-LM theoretical_memory_usage.py: bf16, fp16 or fp32; matrices of 8-bit "
    "training in 8 bits (Megatron-Bridge fp8_param_gather, disable_parameter_transpose_cache)",
    "gradients": "Megatron-LM theoretical_memory_usage.py; 2 B with grad_reduce_in_fp32=False",
    "optimizer": "Megatron-LM theoretical_memory_usage.py: fp32 weight beside one in fewer bits, "
    "and both moments of Adam (8 B) or what another optimizer keeps, cut over data x context ranks "
    "and repeated per optimizer instance (arXiv 2605.27678)",
    "activations": "Korthikanti et al., arXiv 2205.05198, table 2; in flight as the order of "
    "stages says",
    "logits": "the logits and fp32 of the cross entropy",
    "buffers": "one layer rebuilt by full recompute, one input gathered by sequence parallelism, "
    "Transformer Engine's unused gradient of each shape of a weight (2 B); or what the optimizer's "
    "step copies beyond the activations that are gone by then",
    "strategy": "fp32 outer weights and state of the outer optimizer of the strategy "
    "between replicas, not cut over data parallel ranks; fp32 weights where ranks have shards",
}


@dataclass(frozen=True)
class MemoryLine:
    """One number of a module's memory.

    Attributes:
        factors: name of each factor -> its value. Their product is `bytes`.
    """

    part: str
    bytes: float
    factors: Mapping[str, float]
    source: str

    @property
    def formula(self) -> str:
        """The formula in words."""
        return " × ".join(self.factors)

    @property
    def numbers(self) -> str:
        """The formula with numbers."""
        return " × ".join(_short(name, value) for name, value in self.factors.items())

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        shown = {"formula": self.formula, "numbers": self.numbers}
        return {**vars(self), "factors": dict(self.factors), **shown}


def memory_lines(
    module: Module,
    sizes: ParallelSizes,
    seq: float,
    micro_batches: float,
    stage: int,
    *,
    samples: float | None = None,
    frozen: bool = False,
    passes_gradient: bool = False,
    held_for: float | None = None,
    storage: Storage = IN_HALF,
) -> tuple[MemoryLine, ...]:
    """Return each number of `stage_memory` with its formula. The arguments are the same."""
    parts = stage_memory(
        module, sizes, seq, micro_batches, stage,
        samples=samples, frozen=frozen, passes_gradient=passes_gradient, held_for=held_for,
        storage=storage,
    )  # fmt: skip
    totals = {name: float(np.asarray(value)) for name, value in parts.items()}
    on_rank = rank_parameters(module, sizes, stage)
    parameters = float(np.asarray(on_rank.total))
    alive = micro_batches_in_flight(sizes, micro_batches, stage) if held_for is None else held_for
    layers = float(np.asarray(layers_of(module, sizes, stage).total))
    tokens = float((sizes.micro_batch if samples is None else samples) * seq / sizes.context)
    mode = ", ".join(
        [
            RECOMPUTE_NAMES[int(sizes.recompute)],
            *([f"{storage.recompute_layers} layers"] if storage.recompute_layers else []),
            *storage.recompute_modules,
        ]
    )
    factors = {
        "weights": _per_parameter(totals["weights"], _weight(on_rank, storage), parameters),
        "gradients": _per_parameter(totals["gradients"], storage.gradient, parameters),
        "optimizer": _per_parameter(totals["optimizer"], storage.optimizer, parameters),
        "activations": _completed(
            totals["activations"],
            {"layers": layers, "micro-batches in flight": float(alive)},
            f"bytes per layer and micro-batch (recompute {mode})",
        ),
        "logits": _logit_factors(totals["logits"], module, sizes, tokens, storage),
        "buffers": {"bytes": totals["buffers"]},
    }
    if "strategy" in totals:
        each = totals["strategy"] / parameters
        factors["strategy"] = {"bytes": each, "parameters on the rank": parameters}
    return tuple(
        MemoryLine(part, totals[part], factors[part], SOURCES[part])
        for part in totals
        if totals[part]
    )


def _per_parameter(total: float, each: float, parameters: float) -> dict[str, float]:
    factors = {"bytes": each, "parameters on the rank": parameters}
    product = math.prod(factors.values())
    share = total / product if product else 0.0
    return factors if math.isclose(share, 1) else {**factors, "share after sharding": share}


def _weight(on_rank: RankParameters, storage: Storage) -> float:
    share = float(np.asarray(on_rank.matrices / on_rank.total))
    return storage.weight - (storage.weight - storage.matrix_weight) * share


def _completed(total: float, factors: dict[str, float], rest: str) -> dict[str, float]:
    """Return factors with one more, so that their product is the total."""
    product = math.prod(factors.values())
    return {**factors, rest: total / product if product else 0.0}


def _logit_factors(
    total: float, module: Module, sizes: ParallelSizes, tokens: float, storage: Storage
) -> dict[str, float]:
    if isinstance(module, EncoderBranch):
        return {"bytes": total}
    rows = float(output_rows(module, sizes))
    factors = {
        "bytes": storage.number + storage.logit_copies,
        "tokens": tokens,
        "vocabulary on the rank": rows,
    }
    further = module.next_token_layers
    return {**factors, "tokens predicted at once": 1 + further} if further else factors


def _short(name: str, value: float) -> str:
    """Return a factor in as many digits as a reader needs: 2, 32,000, 181 M, 132 MB."""
    if value < 1e4:
        return f"{value:,.4g}"
    if name.startswith("bytes"):
        return bytes_text(round(value))
    if value < 1e6:
        return f"{value:,.0f}"
    return f"{value / 1e6:,.0f} M" if value >= 1e8 else f"{value / 1e6:.3g} M"
