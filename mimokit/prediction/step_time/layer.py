"""Seconds of one layer for one micro-batch on one rank: its terms added up, or the host."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mimokit.architecture.layer_work.collectives import layer_collectives
from mimokit.architecture.tensor_rows import (
    INNER,
    KEYS,
    NORMED_AGAIN,
    QUERIES,
    ROUTED,
    ROUTED_INNER,
)
from mimokit.axes import Axis
from mimokit.config.sizes import Numbers
from mimokit.prediction.step_time.attention import attention_terms
from mimokit.prediction.step_time.collectives import (
    AxisTraffic,
    exchange_seconds,
    exposed_dispatch,
    tensor_backward,
    tensor_seconds,
)
from mimokit.prediction.step_time.host import launch_seconds
from mimokit.prediction.step_time.layer_input import LayerInput
from mimokit.prediction.step_time.products import dense_terms, expert_terms
from mimokit.prediction.step_time.system import System
from mimokit.prediction.step_time.terms import Term, TimedTerms, TimePiece, added, breakdown
from mimokit.prediction.step_time.traffic import backward_terms, gradient_terms, traffic_terms


@dataclass(frozen=True)
class LayerWork:
    """What one layer does in both passes, without recomputation.

    Attributes:
        backward: for the gradients of the input and, in training, of weights.
        weights: of the backward pass, what computes and adds up gradients of weights.
    """

    forward: TimedTerms
    backward: TimedTerms
    weights: TimedTerms

    @cached_property
    def cores(self) -> TimedTerms:
        """The attention core of the forward pass."""
        return TimedTerms.of(term for term in self.forward.terms if term.part == "attention")


def layer_work(layer: LayerInput, *, trained: bool = True) -> LayerWork:
    """Return the work of one layer."""
    core, core_back = attention_terms(layer)
    dense = tuple(dense_terms(layer))
    products = (*dense, *expert_terms(layer, "forward"))
    traffic = tuple(traffic_terms(layer))
    inputs = (*_named(dense, "gradient of inputs"), *expert_terms(layer, "input"))
    weights = (*_named(dense, "gradient of weights"), *expert_terms(layer, "weights"))
    traffic_back = (*backward_terms(layer), *recomputed_terms(layer, products, core))
    own, own_back = (core, *products, *traffic), (core_back, *inputs, *weights, *traffic_back)
    sent = _exchanges(layer, own, own_back)
    trains = (*weights, *gradient_terms(layer, _seconds(dense))) if trained else ()
    launch = launch_seconds(layer.net, layer.moe, layer.sizes, layer.system)
    return LayerWork(
        _launched((*own, *sent[0]), launch, layer.system),
        _launched((core_back, *inputs, *traffic_back, *sent[1], *trains), launch, layer.system),
        TimedTerms.of(trains),
    )


def _named(terms: Iterable[Term], what: str) -> tuple[Term, ...]:
    return tuple(replace(term, name=f"{term.name}: {what}") for term in terms)


def _launched(done: tuple[Term, ...], launch: Numbers, system: System) -> TimedTerms:
    """Return a pass with what its launches take longer than its terms take the GPU."""
    parts = breakdown(done)
    busy = parts.total if system.software.launches_ahead else parts.total - parts.tensor
    hidden = np.minimum(launch, busy)
    launches = TimePiece(1.0, launch, "launches of a pass by the host")
    name = "waits for launches by the host"
    host = Term("host", name, launch - hidden, hidden=hidden, pieces=(launches,))
    return TimedTerms((*done, host), replace(parts, host=host.seconds))


def _exchanges(
    layer: LayerInput, forward: Iterable[Term], backward: Iterable[Term]
) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    moe, sizes, system = layer.moe, layer.sizes, layer.system
    ahead, behind = breakdown(forward), breakdown(backward)
    collectives = layer_collectives(layer.net, moe, sizes, "forward")
    by_axis = exchange_seconds(collectives, moe, sizes, layer.tokens, system)
    tensor, ring, sent = (by_axis[axis] for axis in (Axis.TENSOR, Axis.CONTEXT, Axis.EXPERT))
    scattered = tensor_seconds(tensor.seconds, moe, sizes, ahead.matrix, system)
    kept = tensor_backward(sizes, system)
    return (
        (
            _exchanged("tensor", tensor, 1, scattered[0]),
            _exchanged("context", ring, 1, np.maximum(0.0, ring.seconds - ahead.attention)),
            _exchanged("expert", sent, 1, exposed_dispatch(sent.seconds, ahead.total, system)),
        ),
        (
            _exchanged("tensor", tensor, kept, scattered[1]),
            _exchanged("context", ring, 2, np.maximum(0.0, 2 * ring.seconds - behind.attention)),
            _exchanged("expert", sent, 1, exposed_dispatch(sent.seconds, behind.total, system)),
        ),
    )


_NAMES = {
    "tensor": "gathers and scatters of tensor parallelism",
    "context": "ring of keys and values",
    "expert": "dispatch to experts and back",
}


def _exchanged(part: str, moved: AxisTraffic, factor: Numbers, exposed: Numbers) -> Term:
    pieces = tuple(replace(piece, amount=piece.amount * factor) for piece in moved.pieces)
    return Term(
        part, _NAMES[part], exposed, bytes=moved.bytes * factor,
        launches=moved.launches * factor, hidden=moved.seconds * factor - exposed,
        ranks=moved.ranks, pieces=pieces,
    )  # fmt: skip


def _seconds(terms: Iterable[Term]) -> Numbers:
    return sum((term.seconds for term in terms), 0.0)


_PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "mla_up_proj": (QUERIES, KEYS),
    "mlp": (NORMED_AGAIN, INNER),
    "shared_experts": (NORMED_AGAIN, INNER),
    "moe": (ROUTED, ROUTED_INNER),
}
"""Module -> what its products multiply."""
_ONLY_DENSE, _ONLY_EXPERTS = frozenset({"mlp"}), frozenset({"shared_experts", "moe", "moe_act"})


def recomputed_terms(layer: LayerInput, products: Sequence[Term], core: Term) -> Iterator[Term]:
    """Yield what the backward pass computes again (Megatron's `recompute_modules`).

    Layers that are recomputed whole are not among it.
    """
    moe, sizes, system = layer.moe, layer.sizes, layer.system
    number = system.number_bytes
    absent = _ONLY_DENSE if moe is not None else _ONLY_EXPERTS
    for name in system.recipe.recompute_modules:
        if name in absent:
            continue
        if name == "core_attn":
            yield core
        for of in _PRODUCTS.get(name, ()):
            yield from (term for term in products if f"with {of}" in term.name)
        moved: Numbers = 0.0
        if name == "layernorm":
            moved = 2 * 2 * number * layer.net.hidden / sizes.sequence_shards
        elif name == "moe_act" and moe is not None:
            moved = 3 * number * moe.top_k * moe.ffn / sizes.tensor
        piece = system.moved(layer.tokens * moved)
        yield added("memory", f"{name}, computed again", (piece,), bytes=piece.amount)
