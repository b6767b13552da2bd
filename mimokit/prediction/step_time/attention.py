"""Seconds of the attention core."""

import numpy as np

from mimokit.architecture.layer_work.products import score_work
from mimokit.architecture.transformer import Transformer
from mimokit.config.sizes import Numbers
from mimokit.prediction.step_time.constants import value
from mimokit.prediction.step_time.layer_input import LayerInput
from mimokit.prediction.step_time.system import HALF, System
from mimokit.prediction.step_time.terms import Term, TimePiece, added

SCORE_BYTES, SCORE_BYTES_BACKWARD = 13, 19
"""Bytes moved per score without fusion, in 16 bits. Forward: written, read and written by softmax
and by dropout with its mask, read by the product with the values. Backward: the gradient is
written, read and written by dropout with its mask and by softmax with its result, and read by two
products. A third product reads the output of dropout."""
NARROW_HEAD, FULL_HEAD = 0.6, 128
"""Share of the rate that heads of 64 reach, because exponentials bind (0.5 to 0.7 in SimuMax v1.2's
table), and the width from which on heads reach all of it."""
EIGHT_BITS = 1.4
"""Rate of an 8-bit core over that of 16 bits; an assumption, inside 1 to 2."""


def attention_terms(layer: LayerInput) -> tuple[Term, Term]:
    """Return the attention core, forward and backward.

    Without fusion, masked scores are computed as well.
    """
    net, visible, system = layer.net, layer.visible, layer.system
    flops = 2 * layer.tokens * score_work(net, layer.sizes, visible)
    if not system.software.fused_attention:
        return _unfused(layer, flops)
    rate = fused_rate(net, system)
    # A block of queries passes its keys one after the other: the last block all of them.
    keys = visible * (2 if net.causal else 1)
    seconds = value("attention key") * keys + flops / rate
    backward = value("attention backward") * seconds
    passes, slower = 2.5, value("attention backward")  # products
    each = value("attention key")
    work = (TimePiece(keys, each, "keys"), TimePiece(flops, 1 / rate, "operations"))
    back = (
        TimePiece(slower * keys, each, "keys"),
        TimePiece(passes * flops, slower / passes / rate, "operations"),
    )
    return (
        Term("attention", "attention core", seconds, flops, launches=1.0, pieces=work),
        Term("attention", "attention core", backward, passes * flops, launches=2.0, pieces=back),
    )


def fused_rate(net: Transformer, system: System) -> float:
    """Return the operations per second of a fused core, in long sequences."""
    hardware = system.hardware
    narrow = 1 - (1 - NARROW_HEAD) * np.clip((FULL_HEAD - net.qk_dim) / 64, 0, 1)
    eight = EIGHT_BITS if system.recipe.attention_8bit else 1.0
    peak = hardware.peak_flops[system.half]
    return float(peak * hardware.efficiency.attention * narrow * eight)


def _unfused(layer: LayerInput, flops: Numbers) -> tuple[Term, Term]:
    system, unmasked = layer.system, 2 if layer.net.causal else 1
    scores = layer.net.heads / layer.sizes.tensor * layer.tokens * layer.visible * unmasked

    def core(moved: int, products: int) -> Term:
        bytes_moved = _score_bytes(moved, system) * scores
        operations = products * flops * unmasked
        pieces = (system.operations(operations, system.half), system.moved(bytes_moved))
        return added(
            "attention", "attention core, unfused", pieces,
            operations=operations, bytes=bytes_moved, launches=5.0 * products,
        )  # fmt: skip

    return core(SCORE_BYTES, 1), core(SCORE_BYTES_BACKWARD, 2)


def _score_bytes(in_half: int, system: System) -> float:
    """Return the bytes moved per score; all but the mask of dropout grow with its width."""
    return 1 + (in_half - 1) * system.number_bytes / HALF
