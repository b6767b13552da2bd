"""A weight plan as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mimokit.architecture.tensor_cut import Span
from mimokit.axes import Axis
from mimokit.planning.weights.slices import of_any_layer
from mimokit.planning.weights.types import PlannedParameter, RankWeights, WeightPlan
from mimokit.tables import html_table, rich_table
from mimokit.units import bytes_text, samples_text, span_text

if TYPE_CHECKING:
    from rich.table import Table


RANK_COLUMNS = (
    "rank", Axis.TENSOR.label, Axis.PIPELINE.label, "layers", "heads", "groups", "vocabulary",
    "held", "touched",
)  # fmt: skip
PARAMETER_COLUMNS = (
    "ranks", "parameter", "shape on a rank", "dtype", "cut", "tensors of the files"
)  # fmt: skip


def tables(plan: WeightPlan) -> Iterator[Table]:
    """Yield a table of the ranks and one of the parameters, layers of one kind together."""
    yield rich_table(_heading(plan), RANK_COLUMNS, _rank_rows(plan))
    yield rich_table("Parameters", PARAMETER_COLUMNS, _parameter_rows(plan))


def plan_html(plan: WeightPlan) -> str:
    """Return the same tables in HTML."""
    ranks = html_table(RANK_COLUMNS, list(_rank_rows(plan)), heading=_heading(plan))
    rows = list(_parameter_rows(plan))
    return ranks + html_table(PARAMETER_COLUMNS, rows, heading="Parameters")


def _heading(plan: WeightPlan) -> str:
    tp, pp = plan.tensor_parallel, plan.pipeline_parallel
    heading = f"Weights of {plan.model_type}, TP {tp}, PP {pp}"
    if plan.vocab_size is not None:
        heading += f", vocabulary {plan.vocab_size:,} padded to {plan.padded_vocab_size:,}"
    return heading


def _rank_rows(plan: WeightPlan) -> Iterator[list[str]]:
    return (_rank_row(number, rank) for number, rank in enumerate(plan.ranks))


def _rank_row(number: int, rank: RankWeights) -> list[str]:
    return [
        f"{number:,}",
        str(rank.tensor_rank),
        str(rank.pipeline_rank),
        _span(rank.layers),
        _span(rank.query_heads),
        _span(rank.query_groups),
        "" if rank.vocab is None else _span(rank.vocab),
        bytes_text(rank.bytes),
        bytes_text(rank.bytes_touched),
    ]


def _span(span: Span) -> str:
    return samples_text(span) if span[1] > span[0] else "none"


def _parameter_rows(plan: WeightPlan) -> Iterator[list[str]]:
    """Yield a row per parameter whose layers look alike; the ranks that have it."""
    held: dict[tuple[str, ...], set[int]] = {}
    for number, rank in enumerate(plan.ranks):
        for name, one in rank.parameters.items():
            held.setdefault(_looks(name, one, plan.tensor_parallel), set()).add(number)
    for row, ranks in held.items():
        yield [span_text(sorted(ranks)), *row]


def _looks(name: str, one: PlannedParameter, tensor_parallel: int) -> tuple[str, ...]:
    tensors = dict.fromkeys(of_any_layer(piece.tensor) for piece in one.pieces)
    shape = " x ".join(f"{length:,}" for length in one.shape)
    cut = one.cut.words if tensor_parallel > 1 else "whole"
    return of_any_layer(name), shape, one.dtype, cut, ", ".join(tensors) or "padding alone"
