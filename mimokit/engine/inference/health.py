"""What a rank measures about its health, and what is compared between ranks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from mimokit.architecture.layer_work.collectives import (
    end_collectives,
    layer_collectives,
    tensor_calls,
)
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.engine.digests import digest
from mimokit.engine.inference.exchange import counted, size_of, summed
from mimokit.engine.inference.language import LanguageShard, PaddedTokens
from mimokit.planning.weights.running import OUTPUT

PROBE_TOKENS = 8
REPEATS = 20


@dataclass(frozen=True)
class RankHealth:
    """What one rank has found.

    Attributes:
        private_bytes: memory of its process, or of its GPU.
        digests: parameter or part of a forward pass -> digest of its bits and their places; ranks
            that share layers must have the same.
        not_finite: parameters with an entry that is not finite.
        random_state: digest of torch's generator.
        all_reduce_seconds: of 64 numbers, median.
        planned: collectives of a forward pass.
        counted: those that it had.
        waiting_seconds: of that forward pass in collectives.
        forward_seconds: of that forward pass.
    """

    private_bytes: int
    digests: dict[str, int]
    not_finite: tuple[str, ...]
    random_state: int
    all_reduce_seconds: float
    planned: int
    counted: int
    waiting_seconds: float
    forward_seconds: float


def rank_health(model: LanguageShard, alike: Iterable[str], private_bytes: int) -> RankHealth:
    """Return the health of this rank. Collective.

    Args:
        alike: parameters that every rank of the group has whole.
    """
    digests = {name: int(digest(model.parameters[name])) for name in alike}
    vocab = model.model.vocab
    ids = [number * 7919 % vocab for number in range(min(PROBE_TOKENS, _longest(model)))]

    def watch(name: str, output: torch.Tensor) -> None:
        if name != OUTPUT:  # every rank has other logits
            digests[f"output of {name}"] = int(digest(output))

    with counted() as traffic:
        began = time.perf_counter()
        model(PaddedTokens.of([ids], model.device), watch=watch)
        seconds = time.perf_counter() - began
    return RankHealth(
        private_bytes=private_bytes,
        digests=digests,
        not_finite=tuple(
            name
            for name, value in model.parameters.items()
            if not bool(torch.isfinite(value).all())
        ),
        random_state=int(digest(torch.get_rng_state())),
        all_reduce_seconds=_all_reduce_seconds(model),
        planned=planned_collectives(model),
        counted=traffic.calls,
        waiting_seconds=traffic.seconds,
        forward_seconds=seconds,
    )


def planned_collectives(model: LanguageShard) -> int:
    """Return the collectives of a forward pass: of the layers and of the embedding."""
    sizes, net = ParallelSizes(size_of(model.group), sequence_parallel=False), model.model.net
    layer = tensor_calls(layer_collectives(net, None, sizes, "forward"))
    embedding = end_collectives("embedding", net.hidden, sizes, "forward")
    return layer * net.layers + tensor_calls(embedding)


def _longest(model: LanguageShard) -> int:
    return model.functions.positions or PROBE_TOKENS


def _all_reduce_seconds(model: LanguageShard) -> float:
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        summed(torch.zeros(64, device=model.device), model.group)
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[REPEATS // 2]
