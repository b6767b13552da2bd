"""A weight plan as data that a browser draws: ranks, tensors with their slices, and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mimokit.architecture.tensor_cut import Span
from mimokit.axes import Axis
from mimokit.charts._palette import SHARED, ink_on, place_colors
from mimokit.planning.weights import SlicedTensor, WeightDirectory, WeightPlan, sliced_tensors
from mimokit.planning.weights.slices import Slice, joined_spans, of_any_layer
from mimokit.planning.weights.types import Piece, RankWeights
from mimokit.units import bytes_text, counted, listed, samples_text, span_text

MOST_NAMED = 8
"""Slices of a tensor that its words name."""

Run = tuple[int, int, float, float, int]
"""Owner, file, start and stop as shares of the file, and 1 where columns of the rows are left
out."""
Owned = dict[tuple[int, str, bool], list[Span]]
"""Owner, file and whether columns are left out -> spans of bytes."""


def weight_picture(plan: WeightPlan, weights: WeightDirectory) -> tuple[dict[str, Any], bytes]:
    """Return what is drawn of a plan, and which parts of the files are whose.

    Returns:
        The picture, and rows of five 32-bit floats: the owner, which is a rank, or a tensor behind
        the ranks in the order of `tensors` and stages; the file; start and stop in it, 0 to 1; 1
        where a rank needs some columns of these rows alone.
    """
    tensors = sliced_tensors(plan)
    files = _file_sizes(weights)
    names = list(dict.fromkeys(tensor.name for tensor in tensors))
    rows: list[dict[str, Any]] = [{"name": name, "shape": "", "cells": []} for name in names]
    colors = place_colors(plan.tensor_parallel)
    for number, tensor in enumerate(tensors):
        row = rows[names.index(tensor.name)]
        row["shape"] = tensor.shape_text
        row["cells"].append(_cell(plan, tensor, len(plan.ranks) + number, colors))
    picture = {
        "stages": [
            {"stage": stage, "layers": _layers(plan.ranks[stage * plan.tensor_parallel])}
            for stage in range(plan.pipeline_parallel)
        ],
        "ranks": [_rank(plan, number, colors) for number in range(len(plan.ranks))],
        "tensors": rows,
        "files": [{"name": name, "bytes": bytes_text(size)} for name, size in files.items()],
        "words": in_words(plan, files),
        "shared": SHARED,
    }
    return picture, _runs(plan, weights, tensors, files)


def in_words(plan: WeightPlan, files: Mapping[str, int]) -> str:
    """Return the plan in a sentence."""
    sizes = [rank.bytes for rank in plan.ranks]
    most = max(sizes)
    even = bytes_text(most) if most == min(sizes) else f"at most {bytes_text(most)}"
    ranks = f"{len(sizes):,} ranks hold {even} each" if sizes[1:] else f"1 rank holds {even}"
    where = f"{len(files):,} files" if len(files) > 1 else next(iter(files))
    return f"{plan.model_type}: {ranks}, of {bytes_text(sum(files.values()))} in {where}."


def _file_sizes(weights: WeightDirectory) -> dict[str, int]:
    """Return file -> the byte behind its last tensor."""
    sizes: dict[str, int] = {}
    for tensor in weights.tensors.values():
        sizes[tensor.file] = max(sizes.get(tensor.file, 0), tensor.start + tensor.bytes)
    return sizes


def _layers(rank: RankWeights) -> str:
    return f"layers {samples_text(rank.layers)}"


def _rank(plan: WeightPlan, number: int, colors: Sequence[str]) -> dict[str, Any]:
    rank = plan.ranks[number]
    vocab = rank.vocab if rank.holds_vocabulary else None
    heads = [f"heads {samples_text(rank.query_heads)}", f"groups {samples_text(rank.query_groups)}"]
    lines = [*heads, "no vocab" if vocab is None else f"vocab {samples_text(vocab)}"]
    place = f"{Axis.TENSOR.label} {rank.tensor_rank}, {Axis.PIPELINE.label} {rank.pipeline_rank}"
    words = [f"Rank {number} ({place}): {_layers(rank)}, query {', query '.join(heads)}"]
    if vocab is not None:
        words.append(f", {_rows_of_vocabulary(vocab, plan.vocab_size or 0)}")
    words.append(
        f". It holds {bytes_text(rank.bytes)} in {counted(len(rank.parameters), 'parameter')} and "
        f"touches {bytes_text(rank.bytes_touched)} of the files."
    )
    return {
        "rank": number,
        "stage": rank.pipeline_rank,
        "color": colors[rank.tensor_rank],
        "lines": [*lines, bytes_text(rank.bytes)],
        "words": "".join(words),
    }


def _rows_of_vocabulary(span: Span, size: int) -> str:
    padding = max(0, span[1] - max(span[0], size))
    note = f" ({padding:,} of padding)" if padding else ""
    return f"rows {samples_text(span)} of the vocabulary{note}"


def _cell(
    plan: WeightPlan, tensor: SlicedTensor, owner: int, colors: Sequence[str]
) -> dict[str, Any]:
    bands = []
    for part in tensor.slices:
        across, down = tensor.place_of(part)
        color = colors[plan.ranks[part.ranks[0]].tensor_rank]
        bands.append(
            {
                "ranks": list(part.ranks),
                "box": [across[0], down[0], across[1] - across[0], down[1] - down[0]],
                "color": SHARED if len(part.ranks) > 1 else color,
                "ink": ink_on(color),
            }
        )
    return {
        "owner": owner,
        "stage": tensor.stage,
        "ranks": list(tensor.ranks),
        "vector": tensor.columns == 1,
        "bands": bands,
        "words": _tensor_words(tensor),
    }


def _tensor_words(tensor: SlicedTensor) -> str:
    others = len(tensor.files) - 1
    where = tensor.files[0] + (f" and {others} other files" if others > 1 else "")
    where = listed(tensor.files) if others == 1 else where
    layers = ""
    if tensor.layers:
        layers = f", layer{'s' if tensor.layers[1:] else ''} {span_text(tensor.layers)}"
    parts = [_slice_words(tensor, part) for part in tensor.slices[:MOST_NAMED]]
    more = len(tensor.slices) - len(parts)
    named = "; ".join(parts) + (f"; and {more} more slices" if more else "")
    return f"{tensor.name} ({tensor.shape_text}{layers}) in {where}: {named}."


def _slice_words(tensor: SlicedTensor, part: Slice) -> str:
    ranks = f"rank{'s' if part.ranks[1:] else ''} {span_text(part.ranks)}"
    noun = "entries" if tensor.columns == 1 else "rows"
    if part.rows == (0, tensor.rows) and part.columns is None:
        return f"{ranks} all"
    if part.columns is None:
        return f"{ranks} {noun} {samples_text(part.rows)}"
    return f"{ranks} columns {samples_text(part.columns)}"


def _runs(
    plan: WeightPlan,
    weights: WeightDirectory,
    tensors: Sequence[SlicedTensor],
    files: Mapping[str, int],
) -> bytes:
    kinds = {(tensor.stage, tensor.name): len(plan.ranks) + at for at, tensor in enumerate(tensors)}
    owned: Owned = {}
    for number, rank in enumerate(plan.ranks):
        for parameter in rank.parameters.values():
            for piece in parameter.pieces:
                stored = weights.tensors[piece.tensor]
                span = _bytes_of(piece, stored.start, stored.row_bytes)
                part = piece.columns is not None
                owned.setdefault((number, piece.file, part), []).append(span)
                kind = kinds[rank.pipeline_rank, of_any_layer(piece.tensor)]
                whole = stored.start, stored.start + stored.bytes
                owned.setdefault((kind, piece.file, False), []).append(whole)
    return np.array(list(_shares(owned, files)), dtype="<f4").tobytes()


def _bytes_of(piece: Piece, start: int, row_bytes: int) -> Span:
    return start + piece.rows[0] * row_bytes, start + piece.rows[1] * row_bytes


def _shares(owned: Owned, files: Mapping[str, int]) -> Iterator[Run]:
    order = {name: number for number, name in enumerate(files)}
    for (owner, file, part), spans in owned.items():
        for start, stop in joined_spans(spans):
            yield owner, order[file], start / files[file], stop / files[file], int(part)
