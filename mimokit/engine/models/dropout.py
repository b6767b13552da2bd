"""Dropout whose masks no layout changes: they are computed from step, layer, sample and position.

A generator would draw other numbers where ranks hold other samples, heads or tokens, and again
where the backward pass recomputes a layer in another order. Here every number of a mask is a hash
of where it is in the whole model and in the global batch, so that a rank computes its part alone.
The hash is the 32-bit finalizer "lowbias32" (Wellons 2018, "Prospecting for Hash Functions").
"""

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from mimokit.engine.megatron import AttnMaskType, ProcessGroupCollection, TransformerLayer
from mimokit.engine.models.rng import MaskRows, row_computed, rows_computed
from mimokit.engine.parallel.context import KeySpan, SequenceCut
from mimokit.engine.parallel.row import SampleRow

_LOWEST = -(2**31)
_RANGE = 2**32
_MULTIPLIERS = (0x7FEB352D, 0x846CA68B - _RANGE)
"""The second one as the negative int32 with these bits."""


def _scrambled(numbers: torch.Tensor) -> torch.Tensor:
    """Return the hash of every number; int32 wraps around."""
    first, second = _MULTIPLIERS
    hashed = numbers ^ _shifted(numbers, 16)
    hashed *= first
    hashed ^= _shifted(hashed, 15)
    hashed *= second
    hashed ^= _shifted(hashed, 16)
    return hashed


def _shifted(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift to the right and fill with zeros; torch fills with the sign."""
    return (numbers >> bits).bitwise_and_((1 << (32 - bits)) - 1)


def hashed(rows: torch.Tensor, *axes: torch.Tensor) -> torch.Tensor:
    """Return hashes of rows and of a place along each axis: [rows, length of each axis…] int32.

    Args:
        rows: [rows] int32.
        axes: of each axis the places that are computed here, [length] int32.
    """
    for axis in axes:
        rows = _joined(rows[..., None], axis)
    return rows


def _joined(numbers: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return _scrambled(numbers ^ _scrambled(places))


class _Site:
    """One place of a layer at which numbers are dropped."""

    def __init__(self, seed: str, probability: float) -> None:
        self._seed, self._probability = seed, probability

    def drop(
        self,
        values: torch.Tensor,
        dropped_of: Callable[[torch.Tensor, SampleRow | None], torch.Tensor],
    ) -> torch.Tensor:
        """Drop numbers and scale the others; with torch's generator where no schedule runs.

        Args:
            dropped_of: hashes of the samples, [samples], and the row in which they are, if they are
                in one -> hashes in the shape of the values.
        """
        rows = rows_computed()
        if rows is None:
            return torch.nn.functional.dropout(values, self._probability)
        limit = _LOWEST + round(self._probability * _RANGE)
        dropped = dropped_of(self._rows(rows), row_computed()) < limit
        return values.masked_fill(dropped, 0.0) / (1 - self._probability)

    def _rows(self, rows: MaskRows) -> torch.Tensor:
        start = zlib.crc32(f"{self._seed} {rows.step}".encode()) + _LOWEST
        return _joined(_scrambled(rows.samples ^ start), rows.items)


class AttentionDropout(torch.nn.Module):
    """Drops attention probabilities [samples, heads of this rank, queries, keys]."""

    def __init__(self, seed: str, probability: float, groups: ProcessGroupCollection) -> None:
        super().__init__()
        self._site, self._tensor_rank = _Site(seed, probability), groups.tp.rank()

    def forward(self, probabilities: torch.Tensor, span: KeySpan | None = None) -> torch.Tensor:
        """Drop while training.

        Args:
            span: that the queries are, where a rank has a part of the samples, or where samples are
                in a row; None: whole samples.
        """
        if not self.training:
            return probabilities
        _, heads, queries, keys = probabilities.shape
        axes = [
            _places(heads, probabilities.device, self._tensor_rank * heads),
            _places(queries, probabilities.device, 0 if span is None else span.position),
            _places(keys, probabilities.device),
        ]

        def hashes(samples: torch.Tensor, row: SampleRow | None) -> torch.Tensor:
            one_of_row = None if row is None or span is None else samples[span.sequence, None]
            return hashed(samples if one_of_row is None else one_of_row, *axes)

        return self._site.drop(probabilities, hashes)


class BiasDropoutAdd:
    """Adds a bias, drops, and adds the residual; in place of Megatron's `get_bias_dropout_add`."""

    def __init__(self, seed: str, probability: float, cut: SequenceCut) -> None:
        self._site, self._cut = _Site(seed, probability), cut

    def __call__(self, training: bool, fused: bool) -> Callable[..., torch.Tensor]:
        """Return the function of (values and bias, residual, probability)."""

        def add(
            values_and_bias: tuple[torch.Tensor, torch.Tensor | None],
            residual: torch.Tensor,
            probability: float,
        ) -> torch.Tensor:
            values, bias = values_and_bias
            values = values if bias is None else values + bias
            return residual + (self._drop(values) if training else values)

        return add

    def _drop(self, values: torch.Tensor) -> torch.Tensor:
        """Drop of [tokens of this rank, samples, hidden]; samples in a row are one."""
        tokens, _, width = values.shape
        places = _places(tokens * self._cut.parts, values.device)
        columns = _places(width, values.device)

        def hashes(samples: torch.Tensor, row: SampleRow | None) -> torch.Tensor:
            if row is None:
                return hashed(samples, self._cut.on_rank(places), columns).transpose(0, 1)
            here = replace(self._cut, lengths=row.lengths).on_rank(places).cpu()
            sample, position = (
                each[here].to(values.device) for each in (row.samples, row.positions)
            )
            return hashed(_joined(samples[sample], position.int()), columns)[:, None]

        return self._site.drop(values, hashes)


def _places(count: int, device: torch.device, first: int = 0) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.int32, device=device)


def set_dropout(layer: TransformerLayer, seed: int, groups: ProcessGroupCollection) -> None:
    """Replace what drops in a layer of Megatron, where its configuration has a probability."""
    config: Any = layer.config
    causal = layer.self_attention.attn_mask_type == AttnMaskType.causal
    cut = SequenceCut(config, groups, causal)
    attention = getattr(layer.self_attention, "core_attention", None)
    if config.attention_dropout and attention is not None:
        dropout = AttentionDropout(f"{seed} scores", config.attention_dropout, groups)
        attention.attention_dropout = dropout
    if config.hidden_dropout:
        for place in ("self_attn_bda", "mlp_bda"):
            seed_here, probability = f"{seed} {place}", config.hidden_dropout
            setattr(layer, place, BiasDropoutAdd(seed_here, probability, cut))
