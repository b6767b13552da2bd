"""Bytes that one rank stores for one module, and how many micro-batches they are for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mimokit.architecture.layer_work.saved import HALF, layer_activations, whole_layer
from mimokit.architecture.modules import LanguageModel
from mimokit.architecture.parallel_sizes import RECOMPUTE_FULL, Numbers, ParallelSizes
from mimokit.architecture.parameters_on_rank import (
    Module,
    layers_of,
    net_of,
    rank_parameters,
)
from mimokit.prediction.memory.states import IN_HALF, Storage, state_bytes

LOGIT = HALF + 4
"""Bytes of a logit: 16 bits, and 32 of the cross entropy."""
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "strategy")


def micro_batches_in_flight(
    sizes: ParallelSizes, micro_batches: Numbers, stage: Numbers
) -> Numbers:
    """Return the number of micro-batches in flight in a stage; it may be a fraction.

    1F1B: min(m, p - i) on stage i. Interleaved: Megatron's warm-up of 2 (p - i - 1) + (v - 1) p
    chunks plus the current one, which is p (1 + (p - 1) / (p v)) on stage 0 (arXiv 2205.05198,
    sec. 4.2.3).
    """
    after = sizes.pipeline - stage
    chunks = 2 * (after - 1) + (sizes.virtual - 1) * sizes.pipeline + 1
    interleaved = np.minimum(micro_batches, chunks / sizes.virtual)
    plain = np.minimum(micro_batches, after)
    return np.where(np.greater(sizes.virtual, 1), interleaved, plain)


def micro_batches_through(sizes: ParallelSizes, micro_batches: Numbers) -> Numbers:
    """Return the number of micro-batches in flight between entry and exit of a whole pipeline.

    A module before the first chunk, such as an encoder, stores its activations for this long. 1F1B:
    p. Interleaved: 2 p, because p more micro-batches enter before the first p return.
    """
    groups = np.where(np.greater(sizes.virtual, 1), 2, 1)
    return np.minimum(micro_batches, groups * sizes.pipeline)


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
        module: a language model, or an encoder with its projector.
        seq: tokens per sample of the module (an encoder: patches).
        micro_batches: per optimizer step, m.
        stage: index of the stage, 0 first.
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
    net = net_of(module)
    count = sizes.micro_batch if samples is None else samples
    tokens = count * seq / sizes.context
    alive = micro_batches_in_flight(sizes, micro_batches, stage) if held_for is None else held_for
    layers = layers_of(module, sizes, stage)
    product_input = 0.0 if frozen else storage.product_input
    kept: Numbers = 0.0
    for moe, count in ((None, layers.dense), (net.moe, layers.expert)):
        if moe is not None or count is layers.dense:
            kept = kept + count * layer_activations(
                net, moe, sizes, tokens, seq, product_input=product_input
            )
    backward = 0.0 if frozen and not passes_gradient else 1.0
    held = rank_parameters(module, sizes, stage)
    parts = dict(state_bytes(held, sizes, frozen=frozen, storage=storage))
    parts["activations"] = backward * alive * kept
    parts["logits"] = _logits(module, sizes, tokens, stage)
    parts["buffers"] = _buffers(module, sizes, tokens, backward)
    return parts


def total_bytes(parts: Mapping[str, Numbers]) -> Numbers:
    """Return the sum of all parts."""
    return sum(parts.values())


def _logits(module: Module, sizes: ParallelSizes, tokens: Numbers, stage: Numbers) -> Numbers:
    """Return the bytes of the last stage's logits."""
    if not isinstance(module, LanguageModel):
        return 0.0 * tokens
    rows = module.padded_vocab(sizes.tensor) / sizes.tensor
    return np.equal(stage, sizes.pipeline - 1) * LOGIT * tokens * rows


def _buffers(module: Module, sizes: ParallelSizes, tokens: Numbers, backward: float) -> Numbers:
    """Return the bytes of temporary buffers inside one layer.

    Full recompute rebuilds one layer at a time. Sequence parallelism gathers the input of a layer.
    """
    net = net_of(module)
    rebuilt = np.equal(sizes.recompute, RECOMPUTE_FULL) * whole_layer(net, net.moe, sizes, tokens)
    gathered = np.where(np.greater(sizes.sequence_shards, 1), HALF * net.hidden * tokens, 0)
    return backward * (rebuilt + gathered)
