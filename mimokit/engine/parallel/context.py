"""Context parallelism: which positions of a sequence a rank computes, and how they meet again.

A causal sequence is cut into two chunks per rank. Rank r has chunk r and the r-th from the end, so
that all ranks attend to equally many keys (Megatron's and Transformer Engine's order). A sequence
in which every position attends to all is cut into one chunk per rank.

Several sequences in a row are cut one by one: a rank has chunks of each.

Outside of attention a rank computes its positions alone, as if they were a shorter sequence: its
part of a gradient is summed with data parallelism, over all ranks with the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from mimokit.engine.megatron import GPTModel, TransformerConfig, tensor_parallel
from mimokit.engine.parallel.chunks import chunks_of_rank
from mimokit.engine.parallel.sequence import all_slices, slice_of_rank, slices


@dataclass(frozen=True)
class KeySpan:
    """Neighbouring positions of a rank, and the keys that they attend to.

    Attributes:
        queries: [start, stop) among the positions of the rank.
        keys: [start, stop) in the row. If attention is causal, the last key is that of the last
            query.
    """

    queries: tuple[int, int]
    keys: tuple[int, int]
    sequence: int
    position: int


@lru_cache(maxsize=64)
def spans_of_rank(
    lengths: tuple[int, ...], ranks: int, rank: int, causal: bool
) -> tuple[KeySpan, ...]:
    """Return the spans of a rank in a row of sequences, none of which attends to another.

    Args:
        lengths: of the sequences; the chunks of all ranks divide each.
    """
    return tuple(_spans(lengths, ranks, rank, causal))


def _spans(lengths: tuple[int, ...], ranks: int, rank: int, causal: bool) -> Iterator[KeySpan]:
    chunks, held, begin = chunks_of_rank(ranks, rank, causal), 0, 0
    for sequence, length in enumerate(lengths):
        size = length // (ranks * len(chunks))
        for chunk in chunks:
            end = (chunk + 1) * size if causal else length
            keys = begin, begin + end
            yield KeySpan((held, held + size), keys, sequence, chunk * size)
            held += size
        begin += length


@lru_cache(maxsize=64)
def positions_of_rank(
    lengths: tuple[int, ...], ranks: int, rank: int, causal: bool
) -> torch.Tensor:
    """Return the places in a row of sequences that a rank computes, in its order: int64."""
    chosen, row = list(chunks_of_rank(ranks, rank, causal)), torch.arange(sum(lengths))
    chunks = [of.reshape(ranks * len(chosen), -1)[chosen] for of in torch.split(row, list(lengths))]
    return torch.cat([of.flatten() for of in chunks])


@lru_cache(maxsize=64)
def order_of_row(lengths: tuple[int, ...], ranks: int, causal: bool) -> torch.Tensor:
    """Return the indices that bring the positions of all ranks, rank by rank, into order."""
    parts = [positions_of_rank(lengths, ranks, rank, causal) for rank in range(ranks)]
    return torch.cat(parts).argsort()


@dataclass(frozen=True)
class SequenceCut:
    """How the ranks of a module share its sequences.

    Context-parallel ranks have positions of their own in all layers; with sequence parallelism
    tensor-parallel ranks share these again outside of matrices.

    Attributes:
        groups: Megatron's `ProcessGroupCollection` of the module on this rank.
        lengths: of the sequences in a row, if several are; positions are those of the row then.
    """

    config: TransformerConfig
    groups: Any
    causal: bool
    lengths: tuple[int, ...] | None = None

    @classmethod
    def of(cls, model: GPTModel, lengths: tuple[int, ...] | None = None) -> SequenceCut:
        """Return how the ranks of a causal model share the tokens of samples.

        Raises:
            ValueError: its attention is not built for context-parallel ranks.
        """
        cut = cls(model.config, model.pg_collection, causal=True, lengths=lengths)
        built = model.config.context_parallel_size
        if cut.context != built:
            raise ValueError(
                f"A {type(model).__name__} has {cut.context} context-parallel ranks, but the "
                f"context_parallel_size of its TransformerConfig is {built}; make them equal."
            )
        return cut

    @property
    def context(self) -> int:
        """Number of context-parallel ranks."""
        return int(self.groups.cp.size())

    @property
    def parts(self) -> int:
        """Into how many parts positions are cut between the layers."""
        return self.context * slices(self.config)

    @property
    def divisor(self) -> int:
        """What has to divide a sequence in a row, so that ranks can share it evenly."""
        return self.parts * len(chunks_of_rank(self.context, 0, self.causal))

    def padding_of(self, length: int) -> int:
        """Return how many positions a sequence lacks, so that ranks can share it evenly."""
        chunks = self.context * len(chunks_of_rank(self.context, 0, self.causal))
        return -length % math.lcm(chunks, self.parts)

    def padded(self, values: torch.Tensor, dimension: int) -> torch.Tensor:
        """Return values of the positions of a sequence, and zeros for those that it lacks."""
        return with_padding(values, self.padding_of(values.shape[dimension]), dimension)

    def on_rank(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the positions that this rank has between layers, of [positions, …].

        Raises:
            ValueError: the ranks cannot share the positions evenly.
        """
        if self.context > 1:
            hidden = hidden.index_select(0, self._positions(hidden, 0))
        return slice_of_rank(hidden, self.config, self.groups.tp)

    def tokens_on_rank(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values of the tokens whose logits this rank has, of [samples, tokens]."""
        if self.context == 1:
            return values
        return values.index_select(1, self._positions(values, 1))

    def whole(self, hidden: torch.Tensor, *, summed: bool) -> torch.Tensor:
        """Return the positions of all ranks, in order, of those of this rank.

        Args:
            summed: backward every context-parallel rank has a part of the gradient; False: each
                has all of it.
        """
        return self.of_all_contexts(all_slices(hidden, self.config, self.groups.tp), summed=summed)

    def of_all_contexts(self, hidden: torch.Tensor, *, summed: bool) -> torch.Tensor:
        """Return the positions of all context-parallel ranks, in order; see `whole`."""
        if self.context == 1:
            return hidden
        gathered = tensor_parallel.gather_from_sequence_parallel_region(
            hidden, tensor_parallel_output_grad=summed, group=self.groups.cp
        )
        if not self.causal:
            return gathered  # type: ignore[no-any-return]
        lengths = self.lengths or (len(gathered),)
        order = order_of_row(lengths, self.context, self.causal)
        return gathered.index_select(0, order.to(hidden.device))  # type: ignore[no-any-return]

    def _positions(self, tensor: torch.Tensor, dimension: int) -> torch.Tensor:
        lengths = self.lengths or (tensor.shape[dimension],)
        chunks = self.context * len(chunks_of_rank(self.context, 0, self.causal))
        for length in lengths:
            if length % chunks:
                raise ValueError(
                    f"A sequence has {length} positions, which {self.context} context-parallel "
                    f"ranks cannot share in {chunks} equal chunks; pad it to a multiple."
                )
        rank = self.groups.cp.rank()
        positions = positions_of_rank(lengths, self.context, rank, self.causal)
        return positions.to(tensor.device)


def with_padding(
    tensor: torch.Tensor, padding: int, dimension: int, value: float = 0
) -> torch.Tensor:
    """Return a tensor that is longer along a dimension."""
    sides = [0, 0] * (tensor.dim() - dimension - 1) + [0, padding]
    return torch.nn.functional.pad(tensor, sides, value=value) if padding else tensor


class _SumGradient(torch.autograd.Function):
    """Adds up also a gradient in strides.

    `copy_to_tensor_model_parallel_region` of megatron-core 0.16.1 loses its sum.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


def for_all_ranks(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return a tensor that every rank of a group has whole and uses a part of.

    Backward the parts of its gradient are summed, so that every rank has it whole.
    """
    if group.size() == 1:
        return tensor
    return _SumGradient.apply(tensor, group)  # type: ignore[no-any-return,no-untyped-call]


class _ShareGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, ranks: int) -> torch.Tensor:
        ctx.ranks = ranks
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient / ctx.ranks, None


def alike_on_contexts(rows: torch.Tensor, context_group: dist.ProcessGroup) -> torch.Tensor:
    """Return rows that all context-parallel ranks have computed alike, as has their gradient.

    Backward each takes an equal share: gradients of weights are summed over these ranks.
    """
    ranks = context_group.size()
    if ranks == 1:
        return rows
    return _ShareGradient.apply(rows, ranks)  # type: ignore[no-any-return,no-untyped-call]
