"""Seconds of the matrix products of one layer."""

from __future__ import annotations

from mimokit.architecture.layer_work import layer_products
from mimokit.architecture.layer_work.products import ROUTER
from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes
from mimokit.architecture.transformer import MixtureOfExperts, Transformer
from mimokit.prediction.step_time.system import HALF, System


def product_seconds(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    system: System,
) -> Numbers:
    """Return the seconds of a layer's linear layers in one forward pass on one rank.

    A product reads a tile before it multiplies and writes the tile afterwards, and no other tile
    multiplies meanwhile. The seconds of reading and writing are therefore added. They matter for
    narrow experts, which have few operations per number, and hardly for wide layers.
    """
    products = layer_products(net, moe, sizes)
    half_width = system.hardware.efficiency.half_width
    operations: Numbers = 0
    for product in products:
        narrow = 1 + half_width / product.width if half_width else 1
        operations = operations + narrow * (product.weights + product.bias)
    read = sum({product.of: product.rows * product.inputs for product in products}.values())
    # The router's scores are counted with the elementwise operations on them.
    written = sum(product.rows * product.outputs for product in products if product.of != ROUTER)
    if net.mla is not None:  # every head of the keys gets the one rotary part
        written = written + net.heads * net.mla.rope_dim / sizes.tensor
    moved = system.kept_bytes * read + HALF * written
    return system.matrix_seconds(2 * tokens * operations) + system.memory_seconds(tokens * moved)
