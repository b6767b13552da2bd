"""The functions for weights that run on ranks, where torch is imported, and what they return."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mimokit import cluster

if TYPE_CHECKING:
    from mimokit.extras.generation.network.generate import GenerationRequest
    from mimokit.extras.generation.network.language import LanguageShard
    from mimokit.extras.generation.prompts import Rows


@dataclass(frozen=True)
class Generation:
    """Tokens that follow prompts.

    Attributes:
        tokens: new ids of every prompt alone, the stop token included.
        log_probs: of these tokens, by the softmax of the model's logits (natural logarithm).
        seconds: of generating, on the slowest rank.
        bytes_per_token: bytes that a rank gives to collectives per new token of its prompts, those
            for the prompts included; of the rank with the most.
    """

    tokens: list[list[int]]
    log_probs: list[list[float]]
    seconds: float
    bytes_per_token: float

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all prompts per second."""
        return sum(map(len, self.tokens)) / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "tokens": self.tokens,
            "tokens_per_second": self.tokens_per_second,
            "bytes_per_token": self.bytes_per_token,
        }


@dataclass(frozen=True)
class RankTokens:
    """What one replica has generated, and the bytes that its rank gave to collectives."""

    rows: tuple[int, ...]
    tokens: list[list[int]]
    log_probs: list[list[float]]
    seconds: float
    bytes: int


def joined(parts: list[RankTokens]) -> Generation:
    """Return what replicas have generated, in the order of the prompts."""
    tokens = {row: ids for part in parts for row, ids in zip(part.rows, part.tokens, strict=True)}
    probs = {
        row: values for part in parts for row, values in zip(part.rows, part.log_probs, strict=True)
    }
    return Generation(
        [tokens[row] for row in sorted(tokens)],
        [probs[row] for row in sorted(probs)],
        max(part.seconds for part in parts),
        max(part.bytes / max(1, sum(map(len, part.tokens))) for part in parts),
    )


def tensor_group(tensor_parallel: int) -> Any:
    """Return this rank's group of tensor parallel neighbours. Collective over the world."""
    import torch.distributed as dist

    from mimokit.engine.device import group_timeout

    world = dist.get_world_size()
    if tensor_parallel == 1:
        return None
    if tensor_parallel == world:
        return dist.group.WORLD
    made = [
        dist.new_group(range(first, first + tensor_parallel), timeout=group_timeout())
        for first in range(0, world, tensor_parallel)
    ]
    return made[dist.get_rank() // tensor_parallel]


@dataclass(frozen=True)
class ModelOnRanks:
    """Which model ranks keep.

    Attributes:
        name: no other model has it.
    """

    name: str
    directory: str
    tensor_parallel: int
    dtype: str | None


def loaded(model: ModelOnRanks) -> LanguageShard:
    """Return this rank's shard; it is loaded if this world has not done so. Collective."""
    from mimokit.engine.device import rank_device
    from mimokit.extras.generation.network.loading import load_language, resident

    def load() -> LanguageShard:
        group = tensor_group(model.tensor_parallel)
        return load_language(model.directory, group, dtype=model.dtype, device=rank_device())

    return resident(model.name, load)


def open_model(model: ModelOnRanks) -> None:
    """Load this rank's shard."""
    loaded(model)


def memory_on_rank(model: ModelOnRanks) -> int:
    """Return the bytes of this rank's process on a CPU, or those that its GPU has allocated."""
    from mimokit.engine.training import memory_meter

    loaded(model)
    meter = memory_meter()
    meter.start()
    return meter.read().allocated


def close_model(name: str) -> None:
    """Forget this rank's shard."""
    from mimokit.extras.generation.network.loading import forget_model

    forget_model(name)


def logits_on_rank(model: ModelOnRanks, rows: Rows) -> Any:
    """Return the logits of all rows in fp32, on rank 0; not a number behind the shorter rows."""
    import torch
    import torch.distributed as dist

    from mimokit.extras.generation.network.language import PaddedTokens

    shard = loaded(model)
    batch = PaddedTokens.of([list(row) for row in rows], shard.device)
    if dist.get_rank() >= model.tensor_parallel:
        return None  # replicas have the same
    made = shard.whole_logits(shard(batch)).float().cpu()
    if dist.get_rank():
        return None
    for number, padding in enumerate(batch.padding.tolist()):
        made[number] = made[number].roll(-padding, dims=0)
        made[number, len(rows[number]) :] = torch.nan
    return made.numpy()


def generate_on_rank(
    model: ModelOnRanks, requests: tuple[GenerationRequest, ...]
) -> RankTokens | None:
    """Generate what this rank's replica is asked for; the first rank of each returns it."""
    import torch.distributed as dist

    from mimokit.extras.generation.network.exchange import counting_traffic
    from mimokit.extras.generation.network.generate import generate

    shard = loaded(model)
    replica, tensor_rank = divmod(dist.get_rank(), model.tensor_parallel)
    if replica >= len(requests):
        return None

    def emit_tokens(tokens: dict[int, int]) -> None:
        cluster.emit({"tokens": tokens})

    request = requests[replica]
    began = time.perf_counter()
    with counting_traffic() as traffic:
        made = generate(shard, request, None if tensor_rank else emit_tokens, cluster.should_stop)
    if tensor_rank:
        return None
    seconds = time.perf_counter() - began
    return RankTokens(request.rows, made.tokens, made.log_probs, seconds, traffic.bytes)
