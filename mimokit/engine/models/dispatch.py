"""Tokens that all ranks gather for their experts, also where samples in a row give ranks others."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from mimokit.engine.megatron import MoEAllGatherTokenDispatcher, MoELayer, ProcessGroupCollection
from mimokit.engine.models.rng import row_computed


class RowsDispatcher(MoEAllGatherTokenDispatcher):  # type: ignore[misc]
    """Megatron's all-gather dispatcher, which takes equally many tokens of every rank.

    Ranks with fewer add tokens that choose no expert, and leave out what comes back of them.

    Attributes:
        uneven: ranks have other numbers of tokens also where samples are in no row.
    """

    uneven = False
    _held: int

    def dispatch_preprocess(
        self, hidden_states: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return [tokens, hidden] and [tokens, experts]; collective where ranks have others."""
        hidden, probs = super().dispatch_preprocess(hidden_states, routing_map, probs)
        self._held = len(hidden)
        if row_computed() is None and not self.uneven:
            return hidden, probs
        most = torch.tensor(len(hidden), device=hidden.device)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self.tp_ep_group)
        behind = (0, 0, 0, int(most) - len(hidden))
        self.routing_map = F.pad(routing_map, behind)
        return F.pad(hidden, behind), F.pad(probs, behind)

    def combine_postprocess(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the hidden states in the shape in which they came."""
        return super().combine_postprocess(hidden_states[: self._held])  # type: ignore[no-any-return]


def take_rows(feed_forward: torch.nn.Module, groups: ProcessGroupCollection) -> None:
    """Let experts that gather tokens take rows; Megatron asks for its own class of dispatchers."""
    if not isinstance(feed_forward, MoELayer):
        return
    layer: Any = feed_forward
    if isinstance(layer.token_dispatcher, MoEAllGatherTokenDispatcher):
        layer.token_dispatcher = RowsDispatcher(
            layer.num_local_experts, layer.local_expert_indices, layer.config, groups
        )
