"""The core of attention: queries of a rank and keys of whole sequences, on context-parallel ranks.

It takes the place of Megatron's `DotProductAttention`, which has neither context parallelism nor
packed sequences.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from mimokit.engine.inside_steps import Inside, inside
from mimokit.engine.megatron import (
    AttnMaskType,
    MegatronModule,
    PackedSeqParams,
    ProcessGroupCollection,
    TransformerConfig,
    is_layer_window_attention,
    tensor_parallel,
)
from mimokit.engine.models.dropout import AttentionDropout
from mimokit.engine.parallel.context import KeySpan, SequenceCut, spans_of_rank


class SequenceAttention(MegatronModule):  # type: ignore[misc]
    """Scaled dot product attention by torch's kernels.

    Keys and values of all context-parallel ranks are gathered; backward their gradients are added
    and every rank keeps its part.

    Args:
        layer_number: in the whole module, from 1; decides whether it has the window of a config.
        attn_mask_type: causal; otherwise a position attends to all that no mask hides.
        options: others that Megatron passes, of which this has no use.

    Attributes:
        attention_dropout: what drops attention probabilities, set by `set_dropout`.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        **options: Any,
    ) -> None:
        super().__init__(config=config)
        assert pg_collection is not None
        self._cut = SequenceCut(config, pg_collection, attn_mask_type == AttnMaskType.causal)
        self._scale = softmax_scale
        self.attention_dropout: AttentionDropout | None = None
        self._before: int | None = None
        if is_layer_window_attention(
            config.window_size, config.window_attn_skip_freq, layer_number
        ):
            self._before, _ = config.window_size

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> torch.Tensor:
        """Attend from the positions of this rank to whole sequences.

        Args:
            query: [positions of this rank, samples, heads, width]; without samples where they are
                in a row.
            key: likewise, of as many or fewer heads.
            value: likewise.
            attention_mask: [samples or 1, 1, 1, positions], True where a key is hidden; not read
                if attention is causal.

        Returns:
            [positions of this rank, samples, heads * width], or without samples.
        """
        cut, in_row = self._cut, packed_seq_params is not None
        if packed_seq_params is not None:
            cut = replace(cut, lengths=lengths_of(packed_seq_params))
            query, key, value = (each.unsqueeze(1) for each in (query, key, value))
        if cut.context > 1:  # in one message
            widths = [key.shape[-1], value.shape[-1]]
            with inside(Inside.GATHER_KEYS):
                both = cut.of_all_contexts(torch.cat((key, value), dim=-1), summed=True)
            key, value = torch.split(both, widths, dim=-1)
        hidden = None if cut.causal else attention_mask
        query, key, value = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        lengths = cut.lengths or (key.shape[2],)
        spans = spans_of_rank(lengths, cut.context, cut.groups.cp.rank(), cut.causal)
        outputs = [self._attend(span, query, key, value, hidden) for span in spans]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
        output = output.permute(2, 0, 1, 3).flatten(2)
        return output.squeeze(1) if in_row else output

    def _attend(
        self,
        span: KeySpan,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        hidden: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the output of a span: [samples, heads, queries, width]."""
        query = query[:, :, slice(*span.queries)]
        first, last = span.keys
        if self._before is not None:
            first = max(first, last - query.shape[2] - self._before)
        key, value = (each[:, :, first:last] for each in (key, value))
        queries, keys = query.shape[2], key.shape[2]
        seen = None if hidden is None else ~hidden
        before = keys if self._before is None else self._before
        causal, drops = self._cut.causal, self.training and self.attention_dropout is not None
        if causal and (drops or queries < keys or before + 1 < keys):
            # The kernels' own causal mask begins at the first key, not at the last.
            seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
            seen = seen.tril(keys - queries).triu(keys - queries - before)
        if drops:
            return self._dropping(replace(span, keys=(first, last)), query, key, value, seen)
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=seen,
            is_causal=causal and seen is None,
            scale=self._scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )

    def _dropping(
        self,
        span: KeySpan,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        seen: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attend with probabilities of which some are dropped, which torch's kernels draw."""
        assert self.attention_dropout is not None
        sharing = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(sharing, 1) for each in (key, value))
        scale = query.shape[-1] ** -0.5 if self._scale is None else self._scale
        scores = query @ key.transpose(2, 3) * scale
        if seen is not None:
            scores = scores.masked_fill(~seen, float("-inf"))
        probabilities = scores.softmax(-1, torch.float32).to(query.dtype)
        with self._random_state():
            kept: torch.Tensor = self.attention_dropout(probabilities, span)
        return kept @ value

    def _random_state(self) -> contextlib.AbstractContextManager[None]:
        """Return Megatron's fork of random states, in which sequence parallel layers are anyway."""
        if self.config.sequence_parallel:
            return contextlib.nullcontext()
        return tensor_parallel.get_cuda_rng_tracker().fork()  # type: ignore[no-any-return]


def lengths_of(params: PackedSeqParams) -> tuple[int, ...]:
    """Return the lengths of the samples in a row, from what Megatron's layers take of it."""
    known: Any = getattr(params, "lengths", None)
    if known is None:
        known = params.lengths = tuple(params.cu_seqlens_q.diff().tolist())
    return known  # type: ignore[no-any-return]
