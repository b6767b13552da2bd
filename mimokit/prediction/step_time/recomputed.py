"""Parts of a layer that the backward pass computes again (Megatron's `recompute_modules`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mimokit.architecture.layer_work.products import (
    INNER,
    KEYS,
    NORMED_AGAIN,
    QUERIES,
    ROUTED,
    ROUTED_INNER,
)
from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes
from mimokit.architecture.transformer import MixtureOfExperts, Transformer
from mimokit.prediction.step_time.system import System
from mimokit.prediction.step_time.terms import Term, added

_PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "mla_up_proj": (QUERIES, KEYS),
    "mlp": (NORMED_AGAIN, INNER),
    "shared_experts": (NORMED_AGAIN, INNER),
    "moe": (ROUTED, ROUTED_INNER),
}
"""Module -> what its products multiply."""
_ONLY_DENSE, _ONLY_EXPERTS = frozenset({"mlp"}), frozenset({"shared_experts", "moe", "moe_act"})


def recomputed_terms(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    products: Sequence[Term],
    core: Term,
    system: System,
) -> Iterator[Term]:
    """Yield what the backward pass computes again, without layers that are recomputed whole."""
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
            moved = 2 * 2 * number * net.hidden / sizes.sequence_shards
        elif name == "moe_act" and moe is not None:
            moved = 3 * number * moe.top_k * moe.ffn / sizes.tensor
        piece = system.moved(tokens * moved)
        yield added("memory", f"{name}, computed again", (piece,), bytes=piece.amount)
