"""The work of one layer on one rank, by network and parallel sizes: the one table of it.

Matrix products and scores, collectives, and activations that the backward pass needs. FLOPs, step
time, memory, traffic, health and CPU costs read it. Everything is per token of a micro-batch on a
rank, so that a reader multiplies by its own number of tokens.
"""

from mimokit.architecture.layer_work.collectives import (
    Collective,
    Way,
    end_collectives,
    layer_collectives,
    tensor_calls,
)
from mimokit.architecture.layer_work.products import (
    MatrixProduct,
    layer_products,
    score_work,
    token_weights,
    visible_tokens,
)
from mimokit.architecture.layer_work.saved import (
    SavedTensor,
    layer_activations,
    saved_tensors,
    whole_layer,
)

__all__ = [
    "Collective",
    "MatrixProduct",
    "SavedTensor",
    "Way",
    "end_collectives",
    "layer_activations",
    "layer_collectives",
    "layer_products",
    "saved_tensors",
    "score_work",
    "tensor_calls",
    "token_weights",
    "visible_tokens",
    "whole_layer",
]
