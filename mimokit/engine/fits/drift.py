"""How far the weights of nodes are apart, from dot products."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mimokit.engine.fits.records import Drift
from mimokit.engine.strategies import communicate

BLOCK = 1 << 20
"""Entries that travel at once."""


def measure_drift(tensors: Sequence[Tensor], nodes: int, step: int) -> Drift:
    """Return correlation and distance of the weights of all nodes. Collective.

    Weights travel in blocks; what stays of a block are the dot products of each pair of nodes.

    Args:
        tensors: the weights of this node.
        nodes: how many nodes there are, at least 2.
        step: optimizer steps completed.
    """
    device = tensors[0].device
    flat = torch.cat([one.detach().reshape(-1).float() for one in tensors])
    sums = torch.zeros(nodes, dtype=torch.float64, device=device)
    products = torch.zeros(nodes, nodes, dtype=torch.float64, device=device)
    apart = torch.zeros_like(products)
    for block in torch.split(flat, BLOCK):
        found = [torch.empty_like(block) for _ in range(nodes)]
        with communicate.ledger.counting("evaluation"):
            communicate.all_gather(found, block)
        rows = torch.stack(found).double()
        sums += rows.sum(1)
        products += rows @ rows.T
        # Nodes are close to each other: less their mean, dot products lose no digits.
        rows -= rows.mean(0)
        apart += rows @ rows.T
    return drift_of(sums.cpu(), products.cpu(), apart.cpu(), flat.numel(), step)


def drift_of(sums: Tensor, products: Tensor, apart: Tensor, entries: int, step: int) -> Drift:
    """Return correlation and distance from sums and dot products.

    Args:
        sums: [nodes], of the weights.
        products: [nodes, nodes], of the weights.
        apart: likewise, of the weights less the mean of the nodes.
        entries: of a node's weights.
        step: optimizer steps completed.
    """
    covariance = products - torch.outer(sums, sums) / entries
    deviations = covariance.diagonal().clamp(min=0).sqrt()
    pairs = torch.triu_indices(len(sums), len(sums), offset=1)
    scale = (deviations[pairs[0]] * deviations[pairs[1]]).clamp(min=1e-300)
    correlations = covariance[pairs[0], pairs[1]] / scale
    lengths = apart.diagonal()
    squares = lengths[pairs[0]] + lengths[pairs[1]] - 2 * apart[pairs[0], pairs[1]]
    largest = math.sqrt(max(0.0, float(squares.max())))
    return Drift(step, float(correlations.clamp(-1, 1).mean()), largest)
