"""The core of attention: queries of a rank and keys of whole sequences, on context-parallel ranks.

It takes the place of Megatron's `DotProductAttention`, which has neither context parallelism nor
packed sequences.
"""

import contextlib
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from mimokit.config import ModuleArchitecture
from mimokit.engine import megatron
from mimokit.engine.inside_steps import Inside, inside
from mimokit.engine.models.dropout import AttentionDropout
from mimokit.engine.parallel.context import KeySpan, SequenceCut, spans_of_rank

ANY_WINDOW = -1
"""In place of the number of a window: the position attends to all, and all attend to it."""

HIDDEN = -2
"""In place of the number of a window: no position attends to it."""


def window_options(architecture: ModuleArchitecture) -> dict[str, Any]:
    """Return how many tokens before itself a token attends to, and in which layers it does.

    A window as long as a sequence is none. Encoders that are not causal change what it means.
    """
    if architecture.window_size is None or architecture.window_size >= architecture.seq_length:
        return {}
    return {
        "window_size": (architecture.window_size - 1, 0),
        "window_attn_skip_freq": [int(reach > 0) for reach in architecture.reaches],
    }


class SequenceAttention(megatron.MegatronModule):  # type: ignore[misc]
    """Scaled dot product attention by torch's kernels.

    Keys and values of all context-parallel ranks are gathered; backward their gradients are added
    and every rank keeps its part.

    Args:
        layer_number: in the whole module, from 1; decides whether it has the window of a config:
            how many positions before and after itself a position attends to, -1 for all.
        attn_mask_type: causal; otherwise a position attends to all that no mask hides.

    Attributes:
        attention_dropout: what drops attention probabilities, set by `set_dropout`.
    """

    def __init__(
        self,
        config: megatron.TransformerConfig,
        layer_number: int,
        attn_mask_type: megatron.AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        pg_collection: megatron.ProcessGroupCollection | None = None,
        **options: Any,
    ) -> None:
        super().__init__(config=config)
        assert pg_collection is not None
        self._cut = SequenceCut(
            config, pg_collection, attn_mask_type == megatron.AttnMaskType.causal
        )
        self._scale = softmax_scale
        self.attention_dropout: AttentionDropout | None = None
        self._before, self._after = -1, 0 if self._cut.causal else -1
        self._windowed = megatron.is_layer_window_attention(
            config.window_size, config.window_attn_skip_freq, layer_number
        )
        if self._windowed:
            self._before, self._after = config.window_size

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: megatron.AttnMaskType | None = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: megatron.PackedSeqParams | None = None,
    ) -> torch.Tensor:
        """Attend from the positions of this rank to whole sequences.

        Args:
            query: [positions of this rank, samples, heads, width]; without samples where they are
                in a row.
            key: likewise, of as many or fewer heads.
            value: likewise.
            attention_mask: [samples or 1, 1, 1, positions], True where a key is hidden, or the
                number of the window of each position (`ANY_WINDOW`, `HIDDEN`), which layers with
                a window read; not read if attention is causal.

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
        query, (first, last) = query[:, :, slice(*span.queries)], span.keys
        queries = range(span.position, span.position + query.shape[2])
        drops = self.training and self.attention_dropout is not None
        keys = range(last - first)
        if not drops:  # what drops counts keys from the first of a sequence
            keys = _within(keys, queries, self._before, self._after)
        key, value = (each[:, :, first + keys.start : first + keys.stop] for each in (key, value))
        kernel = self._cut.causal and not (self._windowed or drops or queries.start)
        seen = None if kernel else self._seen(queries, keys, hidden, query.device)
        if drops:
            return self._dropping(span, query, key, value, seen)
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=seen,
            is_causal=kernel,
            scale=self._scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )

    def _seen(
        self, queries: range, keys: range, mask: torch.Tensor | None, device: torch.device
    ) -> torch.Tensor | None:
        """Return [samples or 1, 1, queries, keys], True where a query attends; None: everywhere.

        Args:
            keys: likewise.
        """
        seen = None
        if self._before >= 0 or self._after >= 0:
            seen = _band(queries, keys, self._before, self._after, device)[None, None]
        if mask is not None:
            shown = ~self._hidden(mask, queries, keys)
            seen = shown if seen is None else seen & shown
        if self._windowed and not self._cut.causal and seen is not None:
            # Padding whose window has padding alone attends to all: a softmax needs a key.
            seen = seen | ~seen.any(-1, keepdim=True)
        return seen

    def _hidden(self, mask: torch.Tensor, queries: range, keys: range) -> torch.Tensor:
        """Return [samples or 1, 1, 1 or queries, keys] of a mask, see `forward`."""
        of_keys = mask[..., keys.start : keys.stop]
        if mask.dtype == torch.bool:
            return of_keys
        hidden = of_keys == HIDDEN
        if not self._windowed:
            return hidden
        of_queries = mask[..., queries.start : queries.stop].transpose(2, 3)
        apart = (of_queries != of_keys) & (of_queries >= 0) & (of_keys >= 0)
        return hidden | apart

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
        return megatron.tensor_parallel.get_cuda_rng_tracker().fork()  # type: ignore[no-any-return]


def _within(keys: range, queries: range, before: int, after: int) -> range:
    first = keys.start if before < 0 else max(keys.start, queries.start - before)
    stop = keys.stop if after < 0 else min(keys.stop, queries.stop + after)
    return range(first, stop)


def _band(
    queries: range, keys: range, before: int, after: int, device: torch.device
) -> torch.Tensor:
    """Return [queries, keys], True where a key is as far before or after a query as it may be."""
    seen = torch.ones(len(queries), len(keys), dtype=torch.bool, device=device)
    ahead = queries.start - keys.start
    seen = seen if before < 0 else seen.triu(ahead - before)
    return seen if after < 0 else seen.tril(ahead + after)


def lengths_of(params: megatron.PackedSeqParams) -> tuple[int, ...]:
    """Return the lengths of the samples in a row, from what Megatron's layers take of it."""
    known: Any = getattr(params, "lengths", None)
    if known is None:
        known = params.lengths = tuple(params.cu_seqlens_q.diff().tolist())
    return known  # type: ignore[no-any-return]
