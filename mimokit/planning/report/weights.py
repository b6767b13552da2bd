"""A weight plan as tables."""

from collections.abc import Iterator

from mimokit.architecture.tensor_cut import Span
from mimokit.axes import Axis
from mimokit.planning.weights.slices import of_any_layer
from mimokit.planning.weights.types import PlannedParameter, RankWeights, WeightPlan
from mimokit.tables import Section
from mimokit.units import bytes_text, samples_text, span_text

RANK_COLUMNS = (
    "rank", Axis.TENSOR.label, Axis.PIPELINE.label, "layers", "heads", "groups", "vocabulary",
    "held", "touched",
)  # fmt: skip
PARAMETER_COLUMNS = (
    "ranks", "parameter", "shape on a rank", "dtype", "cut", "tensors of the files"
)  # fmt: skip


def sections(plan: WeightPlan) -> tuple[Section, Section]:
    """Return a table of the ranks and one of the parameters, layers of one kind together."""
    ranks = [_rank_row(number, rank) for number, rank in enumerate(plan.ranks)]
    return (
        Section(_heading(plan), RANK_COLUMNS, ranks),
        Section("Parameters", PARAMETER_COLUMNS, list(_parameter_rows(plan))),
    )


def _heading(plan: WeightPlan) -> str:
    tp, pp = plan.tensor_parallel, plan.pipeline_parallel
    heading = f"Weights of {plan.model_type}, TP {tp}, PP {pp}"
    if plan.vocab_size is not None:
        heading += f", vocabulary {plan.vocab_size:,} padded to {plan.padded_vocab_size:,}"
    return heading


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
    ranks_of: dict[tuple[str, ...], set[int]] = {}
    for number, rank in enumerate(plan.ranks):
        for name, parameter in rank.parameters.items():
            looks = _looks(name, parameter, plan.tensor_parallel)
            ranks_of.setdefault(looks, set()).add(number)
    for row, ranks in ranks_of.items():
        yield [span_text(sorted(ranks)), *row]


def _looks(name: str, parameter: PlannedParameter, tensor_parallel: int) -> tuple[str, ...]:
    tensors = dict.fromkeys(of_any_layer(piece.tensor) for piece in parameter.pieces)
    shape = " x ".join(f"{length:,}" for length in parameter.shape)
    cut = parameter.cut.words if tensor_parallel > 1 else "whole"
    return of_any_layer(name), shape, parameter.dtype, cut, ", ".join(tensors) or "padding alone"
