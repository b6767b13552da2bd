"""A language model on the ranks of a tensor parallel group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mimokit.architecture.modules import LanguageModel
from mimokit.engine.rotary import RotaryPositions
from mimokit.extras.generation.network import layers
from mimokit.extras.generation.network.exchange import Group, all_gathered, rank_of, summed

TABLE = "embedding.word_embeddings.weight"
POSITIONS = "embedding.position_embeddings.weight"
FINAL_NORM = "decoder.final_layernorm"
HEAD = "output_layer.weight"


@dataclass(frozen=True)
class PaddedTokens:
    """Token ids [batch, tokens], padded with 0 on the left.

    Attributes:
        padding: [batch], the padded tokens in front of each row.
        padded: whether a row may have some.
    """

    ids: torch.Tensor
    padding: torch.Tensor
    padded: bool = True

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> PaddedTokens:
        """Return a batch of rows of any length."""
        longest = max(map(len, rows))
        padding = [longest - len(row) for row in rows]
        ids = [[0] * pad + list(row) for pad, row in zip(padding, rows, strict=True)]
        tensors = torch.tensor(ids, device=device), torch.tensor(padding, device=device)
        return cls(*tensors, any(padding))

    @property
    def places(self) -> torch.Tensor:
        """Place of each token in its row, negative in the padding: [batch, tokens]."""
        columns = torch.arange(self.ids.shape[1], device=self.ids.device)
        return columns - self.padding[:, None]

    def next(self, ids: torch.Tensor) -> PaddedTokens:
        """Return a batch of one new token for every row: [batch]."""
        return PaddedTokens(ids[:, None], self.padding, self.padded)


class LanguageShard:
    """The part of a language model that one rank has."""

    def __init__(self, parameters: layers.Parameters, model: LanguageModel, group: Group) -> None:
        self.parameters, self.model = parameters, model
        self.group, net, network = group, model.net, model.network
        self.layers = layers.Layers(parameters, net, network, group)
        self._reaches = network.reaches
        self._like = parameters[TABLE]
        self.device = self._like.device
        self._rotary = RotaryPositions(network.rope_theta, network.rope_scaling)
        self._frequencies = self._rotary.frequencies(net.head_dim).to(self.device)

    def new_cache(self, batch: int, tokens: int) -> layers.KeyValueCache:
        """Return an empty cache for a number of tokens per row."""
        net, groups = self.model.net, self.layers.cached_groups
        return layers.KeyValueCache((net.layers, batch, groups, tokens, net.head_dim), self._like)

    @torch.no_grad()
    def __call__(
        self,
        batch: PaddedTokens,
        cache: layers.KeyValueCache | None = None,
        *,
        last_only: bool = False,
    ) -> torch.Tensor:
        """Return this rank's logits: [batch, tokens, padded vocabulary / ranks]. Collective.

        Args:
            batch: the new tokens; those in the cache come before them.
            cache: gets the keys and values of the new tokens; None: no tokens come before them.
        """
        before = 0 if cache is None else cache.length
        new = batch.ids.shape[1]
        places = torch.arange(before, before + new, device=self.device)
        positions = (places - batch.padding[:, None]).clamp(min=0)
        learned = self.model.positions
        turned = (
            None
            if learned
            else layers.turns(positions, self._frequencies, self._like.dtype, self._rotary.growth)
        )
        sees_all, reaches = new == 1 and not batch.padded, self._reaches
        allowed = {
            reach: _allowed(places, batch.padding, before + new, reach)
            for reach in set(reaches)
            if reach or not sees_all
        }
        tokens = layers.Tokens([allowed.get(reach) for reach in reaches], turned)
        hidden = self.layers(self._embedded(batch.ids, positions), tokens, cache)
        if cache is not None:
            cache.advance(new)
        hidden = self.layers.norm(hidden[:, -1:] if last_only else hidden, FINAL_NORM)
        tied = HEAD not in self.parameters
        return F.linear(hidden, self.parameters[TABLE if tied else HEAD])

    def _embedded(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of tokens; each is on one rank, the others add zeros."""
        table = self.parameters[TABLE]
        local = ids - rank_of(self.group) * len(table)
        here = (local >= 0) & (local < len(table))
        hidden = summed(F.embedding(local.where(here, 0), table) * here[..., None], self.group)
        if self.model.positions:
            hidden = hidden + F.embedding(positions, self.parameters[POSITIONS])
        return hidden

    def whole_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of all ranks without padding: [batch, tokens, vocabulary]."""
        return all_gathered(logits, self.group).movedim(0, -2).flatten(-2)[..., : self.model.vocab]


def _allowed(places: torch.Tensor, padding: torch.Tensor, tokens: int, reach: int) -> torch.Tensor:
    """Return which tokens attend to which: [batch, 1, new tokens, all tokens].

    A token attends to as many as `reach`, itself the last; to all before it if that is 0.
    Padding attends to itself, since a softmax over nothing is not a number.
    """
    columns = torch.arange(tokens, device=places.device)
    earlier = columns <= places[:, None]
    if reach:
        earlier &= columns > places[:, None] - reach
    real = columns >= padding[:, None, None]
    return ((earlier & real) | (columns == places[:, None]))[:, None]
