"""Floating-point operations of the matrix products of a model's passes.

They are model FLOPs: without recomputation, and of causal attention the half that is not masked.
Each token takes two operations per number of every matrix that it passes, forward, and four more
backward (arXiv 2104.04473, appendix; without the embedding look-up).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mimokit.architecture.layer_work.products import (
    layer_weights,
    score_work,
    token_weights,
    visible_tokens,
)
from mimokit.architecture.modules import DecoderHead, EncoderBranch, LanguageModel, Module
from mimokit.config.sizes import ParallelSizes

TRAINED, PASSES_GRADIENT, FORWARD_ONLY = 3, 2, 1
"""Passes, in units of the forward pass: the backward pass computes two products for each of the
forward pass, or one where weights have no gradient."""


@dataclass(frozen=True)
class ForwardFlops:
    """Operations of a forward pass over all ranks.

    Attributes:
        first: before the layers: patches, convolutions, the projection of a decoder.
        core: scores and values of attention in the layers.
        last: behind the layers: what makes rows, projector, logits.
    """

    first: float
    layers: float
    core: float
    last: float

    @property
    def total(self) -> float:
        """All operations."""
        return self.first + self.layers + self.core + self.last


def forward_flops(
    module: Module, length: float, sequences: float, rows: float | None = None
) -> ForwardFlops:
    """Return the operations of a forward pass.

    Args:
        length: tokens of a sequence; of an encoder the positions of an image, window or text.
        rows: that an encoder hands to its projector per sequence. None: all positions, merged.
    """
    net, tokens = module.net, length * sequences
    scores = net.layers * score_work(net, ParallelSizes(), visible_tokens(net, length))
    if isinstance(module, LanguageModel):
        first, last = 0.0, float(module.vocab * net.hidden) + _further(module, length)
    elif isinstance(module, DecoderHead):
        first, last = float(module.inputs * net.hidden), float(module.vocab * net.hidden)
    else:
        first, last = module.encoder.work_before_layers, _behind_layers(module, length, rows)
    per_token = (first, token_weights(net), float(scores), last)
    return ForwardFlops(*(2.0 * numbers * tokens for numbers in per_token))


def _further(model: LanguageModel, length: float) -> float:
    """Return the numbers in what predicts tokens further on, per token, and the work of scores."""
    net = model.net
    outside = model.vocab * net.hidden + 2 * net.hidden**2
    scores = score_work(net, ParallelSizes(), visible_tokens(net, length))
    return float(model.next_token_layers * (outside + layer_weights(net, net.moe) + scores))


def passes(name: str, frozen: Collection[str], before: Iterable[str]) -> int:
    """Return the passes of a module in a training step, in units of its forward pass.

    Args:
        before: modules whose output reaches it. If one is trained, a gradient passes through.
    """
    if name not in frozen:
        return TRAINED
    return PASSES_GRADIENT if any(module not in frozen for module in before) else FORWARD_ONLY


def _behind_layers(branch: EncoderBranch, length: float, rows: float | None) -> float:
    head = branch.encoder.row_head
    if head is not None:
        each, once = head.work
        return each + (once + branch.projections) / length
    if rows is None:
        rows = length * branch.net.hidden / branch.projector.widths[0]
    return branch.projections * rows / length
