"""Compares what a layout computes with an oracle, part by part, on every rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from mimokit.architecture.huggingface.families import LANGUAGE
from mimokit.engine.inference.exchange import Group, rank_of
from mimokit.engine.inference.language import LanguageShard, PaddedTokens
from mimokit.engine.inference.layers import Watch
from mimokit.engine.inference.llava import LlavaShard, under
from mimokit.engine.inference.loading import Shard, load_shard
from mimokit.engine.inference.tower import TowerShard
from mimokit.planning.weights.running import ARITHMETIC, OUTPUT, CheckInput

Parts = Mapping[str, torch.Tensor]
"""Part of a network -> its output; tokens in front of a row's first are padding."""

Receive = Callable[[torch.Tensor], torch.Tensor]
"""Returns the hidden states of the stage before, of the shape of the one given."""

Send = Callable[[torch.Tensor], None]
"""Sends hidden states to the next stage."""


@dataclass(frozen=True)
class PartDifference:
    """What a rank found of one part.

    Attributes:
        scale: largest entry of the oracle's whole part.
    """

    largest: float
    scale: float


def images_of(given: CheckInput) -> torch.Tensor:
    """Return the seeded images of a check."""
    assert given.images is not None
    return torch.randn(given.images, generator=torch.Generator().manual_seed(given.seed))


def parts_on_rank(
    shard: Shard,
    given: CheckInput,
    receive: Receive | None = None,
    send: Send | None = None,
) -> dict[str, torch.Tensor]:
    """Return the outputs of the parts of this rank; of the last, this rank's logits. Collective.

    Args:
        receive: hidden states from the stage before; None on the first.
        send: hidden states to the next stage; None on the last.
    """
    found: dict[str, torch.Tensor] = {}
    watch: Watch = found.__setitem__
    if isinstance(shard, LlavaShard):
        if shard.tower is not None:
            shard.features(images_of(given), watch)
        shard, watch = shard.language, under(LANGUAGE, watch)
    hidden = None
    if receive is not None:
        hidden = receive(torch.empty(_hidden_shape(shard, given), dtype=shard.dtype))
    if isinstance(shard, LanguageShard):
        batch = PaddedTokens.of([list(row) for row in given.rows], shard.device)
        made = shard(batch, hidden=hidden, watch=watch)
    else:
        made = shard(images_of(given), hidden, watch)
    if send is not None:
        send(made)
    return found


def _hidden_shape(shard: LanguageShard | TowerShard, given: CheckInput) -> tuple[int, int, int]:
    width = shard.model.net.hidden
    if isinstance(shard, LanguageShard):
        return len(given.rows), max(map(len, given.rows)), width
    assert given.images is not None
    return given.images[0], shard.model.patches() + shard.model.class_token, width


def compared(
    shard: Shard, given: CheckInput, mine: Parts, oracle: Parts
) -> dict[str, PartDifference]:
    """Return how far the parts of this rank are from those of the oracle.

    Args:
        mine: as `parts_on_rank` returns them.
        oracle: likewise, of one process.
    """
    if isinstance(shard, LlavaShard):
        words = {name: one for name, one in mine.items() if name.startswith(LANGUAGE)}
        pixels = {name: one for name, one in mine.items() if name not in words}
        found = compared(shard.language, given, words, oracle)
        if shard.tower is not None:
            found = compared(shard.tower, replace(given, rows=()), pixels, oracle) | found
        return found
    found = {}
    for name, output in mine.items():
        wanted = oracle[name].to(output.device)
        real = _real(given, wanted)
        scale = float(wanted[real].abs().max())
        if name.endswith(OUTPUT) and isinstance(shard, LanguageShard):
            start = rank_of(shard.group) * output.shape[-1]
            wanted = wanted[..., start : start + output.shape[-1]]
            output = output[..., : wanted.shape[-1]]
        difference = (output.reshape(wanted.shape) - wanted)[real].abs()
        largest = float(difference.max()) if difference.numel() else 0.0
        found[name] = PartDifference(largest, scale)
    return found


def _real(given: CheckInput, part: torch.Tensor) -> torch.Tensor:
    """Return which tokens of a part are not padding."""
    if not given.rows:
        return torch.ones(part.shape[:1], dtype=torch.bool, device=part.device)
    padding = PaddedTokens.of([list(row) for row in given.rows], part.device).padding
    return torch.arange(part.shape[1], device=part.device) >= padding[:, None]


def one_process(
    directory: str | os.PathLike[str], given: CheckInput, dtype: str
) -> dict[str, torch.Tensor]:
    """Return what this process alone computes from the same files."""
    return parts_on_rank(checked_shard(directory, None, dtype), given)


def checked_shard(directory: str | os.PathLike[str], group: Group, dtype: str, **how: Any) -> Shard:
    """Return a shard that computes in the dtype of `ARITHMETIC`; arguments as of `load_shard`."""
    arithmetic = getattr(torch, ARITHMETIC[dtype])
    return load_shard(directory, group, dtype=dtype, arithmetic=arithmetic, **how)
