"""Seconds of matrix products: those of all tokens with one matrix, and those of experts.

| product | seconds |
|---|---|
| one matrix | operations / rate |
| experts | operations / rate + bytes / memory rate, + kernels of each expert |

Products of experts are short and many: each reads the weights of its expert once, and each has
kernels of its own for casts, copies and padding, unless one kernel has all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from mimokit.architecture.layer_work.products import layer_products
from mimokit.architecture.tensor_rows import ROUTED, ROUTED_INNER, ROUTER
from mimokit.config.sizes import Numbers
from mimokit.prediction.step_time.constants import value
from mimokit.prediction.step_time.layer_input import LayerInput
from mimokit.prediction.step_time.system import System
from mimokit.prediction.step_time.terms import Term, TimePiece, added

CASTS_PER_EXPERT: Mapping[str, float] = {"fp8": 1.5, "mxfp8": 3.0, "nvfp4": 3.0}
"""Kernels per expert that cast what a product multiplies: a cast, half of the times a copy; a cast
and two swizzles of scales (Transformer Engine). Backward, one cast of the gradient of an output
serves both products."""
CAPTURED_KERNEL = 0.5
"""Of the seconds of such a kernel what remains in a CUDA graph, without gaps between kernels."""
ProductKind = Literal["forward", "input", "weights"]
_OF_EXPERTS = (ROUTED, ROUTED_INNER)


def dense_terms(layer: LayerInput) -> Iterator[Term]:
    """Yield the products of one forward pass, without those of routed experts."""
    system = layer.system
    half_width = system.hardware.efficiency.half_width
    for product in layer_products(layer.net, layer.moe, layer.sizes):
        if product.of in _OF_EXPERTS:
            continue
        narrow = 1 + half_width / product.width if half_width else 1
        precision = system.half if product.of == ROUTER else None
        operations = 2 * layer.tokens * (product.weights + product.bias)
        work = system.operations(operations, precision)
        work = replace(work, each=work.each * narrow)
        yield added(
            "matrix", f"product with {product.of}", (work,), operations=operations, launches=1.0
        )


def expert_terms(layer: LayerInput, kind: ProductKind) -> Iterator[Term]:
    """Yield the products of experts; a dense layer has none.

    Args:
        kind: forward, input (the gradients of inputs) or weights (those of weights). Gradients of
            weights are read and written where they are added up.
    """
    if layer.moe is None:
        return
    system, experts = layer.system, layer.moe.experts / layer.sizes.expert
    number, kept = system.number_bytes, system.kept_bytes
    for product in layer_products(layer.net, layer.moe, layer.sizes):
        if product.of not in _OF_EXPERTS:
            continue
        rows = layer.tokens * product.rows
        operations = 2 * rows * product.inputs * product.outputs
        matrix = experts * product.inputs * product.outputs
        weights = matrix * (2 * system.main_gradient_bytes if kind == "weights" else kept)
        written = 0 if kind == "weights" else product.outputs
        read = product.inputs + (product.outputs if kind == "weights" else 0)
        moved = weights + rows * (kept * read + number * written)
        casts = 0.0 if kind == "weights" else CASTS_PER_EXPERT.get(system.precision, 0.0)
        work = system.operations(operations), system.moved(moved)
        pieces, launches = _with_kernels(work, experts, 1 + casts, system)
        yield added(
            "matrix", f"products of experts with {product.of} ({kind})", pieces,
            operations=operations, bytes=moved, launches=launches,
        )  # fmt: skip


def _with_kernels(
    work: tuple[TimePiece, ...], experts: Numbers, kernels: float, system: System
) -> tuple[tuple[TimePiece, ...], Numbers]:
    """Return the pieces of one product of all experts with their kernels, and how many these are.

    Products that are launched one by one take no less than a small one does each.
    """
    recipe = system.recipe
    if recipe.fused_experts:
        return work, 1.0 + 0 * experts
    if recipe.graphs == "none":
        least = value("expert product")
        small = np.less(sum((piece.seconds for piece in work), 0.0), experts * least)
        kept = tuple(replace(piece, each=np.where(small, 0.0, piece.each)) for piece in work)
        work = (*kept, TimePiece(experts, np.where(small, least, 0.0), "small products"))
    each = value("expert kernel") * (CAPTURED_KERNEL if recipe.graphs == "full" else 1.0)
    return (*work, TimePiece(experts * kernels, each, "kernels of experts")), experts * kernels
