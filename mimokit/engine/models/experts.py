"""Mixtures of experts in place of feed-forward layers, which compute the same in every layout.

Megatron's layer has the router, the dispatcher and the experts. Here are the parts of which its own
depend on the layout: from which seed an expert is drawn, over which tokens a loss of the router is
a mean, and of which tokens an expert that has no room left drops some.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from mimokit.axes import MEGATRON_FIELDS, Axis
from mimokit.config import ModuleArchitecture
from mimokit.engine import megatron
from mimokit.engine.device import rank_device
from mimokit.engine.inside_steps import Inside, inside
from mimokit.engine.models.dispatch import RowsDispatcher
from mimokit.engine.models.rng import lengths_computed, row_computed, rows_computed, seed_weights
from mimokit.engine.models.routing import TokenPlaces, places_of_tokens
from mimokit.engine.parallel.context import SequenceCut
from mimokit.planning.execution import ModuleExecution

EXPERT_BIAS_UPDATE_RATE = 1e-3
"""Of Megatron's `TransformerConfig.moe_router_bias_update_rate`, and of DeepSeek-V3."""


_AXES = (Axis.EXPERT, Axis.EXPERT_TENSOR)


def expert_options(network: ModuleArchitecture, execution: ModuleExecution) -> dict[str, Any]:
    """Return what of Megatron's configuration concerns the experts of a module that has some."""
    if network.num_moe_experts is None:
        return {}
    return {
        "num_moe_experts": network.num_moe_experts,
        "moe_router_topk": network.top_k,
        "moe_ffn_hidden_size": network.expert_ffn,
        "moe_shared_expert_intermediate_size": network.moe_shared_expert_intermediate_size,
        "moe_shared_expert_gate": bool(network.moe_shared_expert_gate),
        "moe_router_dtype": "fp32",
        **_scores(network),
        "moe_router_load_balancing_type": network.moe_router_load_balancing_type or "aux_loss",
        "moe_aux_loss_coeff": network.moe_aux_loss_coeff or 0.0,
        "moe_z_loss_coeff": network.moe_z_loss_coeff or None,
        "moe_expert_capacity_factor": network.moe_expert_capacity_factor,
        "moe_token_dispatcher_type": execution.token_dispatcher,
        "moe_permute_fusion": False,
        **{MEGATRON_FIELDS[axis]: execution.size(axis) for axis in _AXES},
    }


def _scores(network: ModuleArchitecture) -> dict[str, Any]:
    if not network.moe_router_enable_expert_bias:
        return {"moe_router_pre_softmax": network.pre_softmax}
    rate = network.moe_router_bias_update_rate
    return {
        "moe_router_enable_expert_bias": True,
        "moe_router_score_function": "sigmoid",
        "moe_router_bias_update_rate": EXPERT_BIAS_UPDATE_RATE if rate is None else rate,
    }


def experts_spec(network: ModuleArchitecture) -> Any:
    """Return Megatron's spec of a mixture of experts in place of a feed-forward layer."""
    whole = megatron.get_gpt_layer_local_spec(num_experts=network.num_moe_experts)
    experts = copy.deepcopy(whole.submodules.mlp)
    parts = megatron.submodules_of(experts)
    parts.router = LayoutFreeRouter
    parts.experts = megatron.of_class(parts.experts, SeededExperts)
    return experts


def tell_of_crossings(feed_forward: torch.nn.Module) -> None:
    """Let traces show when tokens leave for their experts and return; Megatron asks for its own
    class of layers, so its methods are wrapped.
    """
    if isinstance(feed_forward, megatron.MoELayer):
        for name, kind in (("dispatch", Inside.DISPATCH), ("combine", Inside.COMBINE)):
            setattr(feed_forward, name, inside(kind)(getattr(feed_forward, name)))


class SeededExperts(megatron.SequentialMLP):  # type: ignore[misc]
    """Megatron's `SequentialMLP`, whose experts are drawn from separate seeds.

    An expert then has the same initial weights whichever rank holds it, and so has what is drawn
    after the experts. Its weights are marked as an expert's also where every rank has all of them:
    with other tensor parallel ranks than the layer around it, its replicas are others.
    """

    def __init__(
        self,
        num_local_experts: int,
        config: megatron.TransformerConfig,
        submodules: megatron.MLPSubmodules,
        pg_collection: megatron.ProcessGroupCollection,
        name: str | None = None,
    ) -> None:
        super().__init__(0, config, submodules, pg_collection=pg_collection)
        self.num_local_experts = num_local_experts
        self.first = num_local_experts * self.ep_group.rank()
        of_layer = torch.initial_seed()
        for number in range(self.first, self.first + num_local_experts):
            seed_weights(of_layer, f"expert {number}")
            expert = megatron.MLP(
                self.config,
                submodules,
                ffn_hidden_size=self.config.moe_ffn_hidden_size,
                is_expert=True,
                tp_group=self.tp_group,
            )
            if config.add_bias_linear:
                expert.linear_fc2.register_forward_hook(_copy_output)
            self.local_experts.append(expert)
        for parameter in self.parameters():
            parameter.allreduce = False
            parameter.sequence_parallel = False  # an expert has all positions of its tokens
        seed_weights(of_layer, "after the experts")


def _copy_output(
    layer: object, given: object, output: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Let Megatron's expert add its bias in place, which autograd forbids on the view of a sum."""
    values, bias = output
    return values.clone(), bias


_ITEM = 2**32
"""Between the numbers of the items of a sample, in choices that are compared."""
_NO_POSITION = torch.iinfo(torch.int64).max


class LayoutFreeRouter(megatron.TopKRouter):  # type: ignore[misc]
    """Megatron's `TopKRouter`, whose losses and dropped tokens do not depend on the layout.

    Losses are attached as sums over tokens, as the loss of a micro-batch is one; a step divides
    both by its tokens. An auxiliary loss is over the tokens of a micro-batch on all replicas, or
    over each sample (`seq_aux_loss`); Megatron's own counts the tokens of a replica, or of a rank.
    Where a stage says how long samples are, padding counts nowhere: a row of samples has less.

    An expert takes at most its capacity of tokens of a sample, those with the largest scores, where
    Megatron's own takes as many of all tokens of a rank.

    The bias of experts is a weight that nothing trains, so that checkpoints and comparisons have
    it. Megatron's own is a buffer, and the tokens that move it are those of its global groups.

    Attributes:
        load: how many tokens of this rank went to each expert since it was last set to zero.
        chosen: how many tokens of this rank chose each expert since the bias was last moved.
    """

    _tokens: _Tokens

    def __init__(
        self,
        config: megatron.TransformerConfig,
        pg_collection: megatron.ProcessGroupCollection,
        **options: Any,
    ) -> None:
        own = copy.copy(config)
        own.moe_expert_capacity_factor = None
        super().__init__(config=own, pg_collection=pg_collection, **options)
        self.capacity_factor = config.moe_expert_capacity_factor
        self.sequence_group = pg_collection.tp_cp
        self.cut = SequenceCut(config, pg_collection, causal=True)
        self.load = torch.zeros(config.num_moe_experts, dtype=torch.int64, device=rank_device())
        self.chosen = torch.zeros_like(self.load)
        bias: torch.Tensor | None = self._buffers.pop("expert_bias", None)
        if bias is not None:
            self.expert_bias = torch.nn.Parameter(bias, requires_grad=False)

    def apply_z_loss(
        self, logits: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attach the loss of large logits (ST-MoE, arXiv 2202.08906), summed over tokens."""
        coefficient = self.config.moe_z_loss_coeff
        if coefficient is None or not self._counts:
            return logits
        squares = torch.logsumexp(logits, dim=-1).square()
        loss = coefficient * (squares * self._tokens.count).sum()
        return megatron.MoEAuxLossAutoScaler.apply(logits, loss)  # type: ignore[no-any-return]

    def routing(
        self, logits: torch.Tensor, *args: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and choices, [tokens x samples, experts], of logits by token and sample."""
        self._tokens = self._tokens_of(logits)
        if self.router_replay is not None:
            self.router_replay.places = self._places(len(logits))
            self.router_replay.counts = self._counts
        scores, chosen = super().routing(logits, *args, **options)
        if self._counts:
            counted = chosen.detach() & self._tokens.count[:, None]
            self.chosen += counted.sum(0).to(self.chosen.device)
        if self.capacity_factor is not None:
            chosen = chosen & self._have_room(scores.detach())
            scores = scores * chosen
        if self._counts and bool(self._tokens.count.any()):
            self.load += chosen.detach().sum(0)
        return scores, chosen

    @torch.no_grad()
    def update_expert_bias(self) -> None:
        """Raise the bias of experts that fewer tokens chose than the mean, lower that of others.

        By Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing" (arXiv 2408.15664). Collective
        over the ranks with tokens of the module; nothing where its router has no bias or is frozen.
        """
        if self.expert_bias is None or not self.weight.requires_grad:
            return
        chosen = self.chosen.to(self.expert_bias.device)
        torch.distributed.all_reduce(chosen, group=self.tp_dp_cp_group)
        fewer = chosen.sum() - chosen * len(chosen)
        self.expert_bias.add_(self.config.moe_router_bias_update_rate * fewer.sign())
        self.chosen.zero_()

    @property
    def _counts(self) -> bool:
        """Whether this pass trains: none that evaluates, nor the first of a recomputation."""
        return bool(self.training and torch.is_grad_enabled())

    def _places(self, tokens: int) -> TokenPlaces | None:
        rows = rows_computed()
        if rows is None:
            return None
        samples, items = (each.to("cpu", torch.int64) for each in (rows.samples, rows.items))
        places = self._places_of(samples + items * _ITEM, tokens)
        if row_computed() is None:
            return places
        # The padding that a row keeps is not always that of one process: it is not compared.
        beyond = places.positions.masked_fill(~self._tokens.count.cpu(), _NO_POSITION)
        return replace(places, positions=beyond)

    def _places_of(self, samples: torch.Tensor, tokens: int) -> TokenPlaces:
        row = row_computed()
        cut = replace(self.cut, lengths=None if row is None else row.lengths)
        return places_of_tokens(samples, tokens, cut)

    def _tokens_of(self, logits: torch.Tensor) -> _Tokens:
        """Return the tokens of a pass; all count where no stage says how many of a sample do.

        In a pass without samples no token counts.
        """
        lengths, row = lengths_computed(), row_computed()
        number = logits.shape[1] if row is None else len(row.lengths)
        places = self._places_of(torch.arange(number), len(logits))
        samples = places.samples.to(logits.device)
        if not lengths:
            all_count = torch.full_like(samples, lengths is None, dtype=torch.bool)
            return _Tokens(samples, all_count, number)
        count = places.positions < torch.tensor(lengths)[places.samples]
        return _Tokens(samples, count.to(logits.device), number)

    def _apply_aux_loss(
        self, probs: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor, *_: Any, **__: Any
    ) -> torch.Tensor:
        """Attach the loss of a micro-batch on all replicas (Switch, arXiv 2101.03961)."""
        together = torch.zeros_like(self._tokens.samples)
        return self._balanced("aux_loss", self.tp_dp_cp_group, together, 1, probs, scores, chosen)

    def _apply_seq_aux_loss(
        self, probs: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor, *_: Any, **__: Any
    ) -> torch.Tensor:
        group, tokens = self.sequence_group, self._tokens
        of_samples = tokens.samples, tokens.number
        return self._balanced("seq_aux_loss", group, *of_samples, probs, scores, chosen)

    def _balanced(
        self,
        kind: str,
        group: torch.distributed.ProcessGroup,
        parts: torch.Tensor,
        number: int,
        probs: torch.Tensor,
        scores: torch.Tensor,
        chosen: torch.Tensor,
    ) -> torch.Tensor:
        """Attach this rank's share of a loss, times the tokens of which the whole is a mean.

        Args:
            parts: the part of the tokens that a token is balanced in, [tokens] int64.
            scores: [tokens, experts].
            chosen: likewise, by the scores alone.
        """
        coefficient = self.get_aux_loss_coeff(kind)
        if coefficient == 0:
            return probs
        if self.router_replay is not None:
            chosen = self.router_replay.chosen
        sums = scores.new_zeros(number, self.num_experts)
        counts = torch.zeros_like(sums).index_add(
            0, parts, (chosen & self._tokens.count[:, None]).to(sums.dtype)
        )
        torch.distributed.all_reduce(counts, group=group)
        sums = sums.index_add(0, parts, scores * self._tokens.count[:, None])
        tokens = (counts.sum(1) / self.topk).clamp(min=1)
        loss = ((sums * counts).sum(1) / tokens).sum() * self.num_experts / self.topk
        return megatron.MoEAuxLossAutoScaler.apply(probs, coefficient * loss)  # type: ignore[no-any-return]

    def _have_room(self, scores: torch.Tensor) -> torch.Tensor:
        """Return which tokens of a sample are among the best of an expert, [tokens, experts].

        Args:
            scores: [tokens of this rank, experts], 0 where an expert was not chosen.
        """
        group, own = self.sequence_group, self._tokens
        whole, samples, count = (
            megatron.tensor_parallel.gather_from_sequence_parallel_region(each, group=group)
            for each in (scores, own.samples, own.count.long())
        )
        room = torch.zeros_like(whole, dtype=torch.bool)
        border = whole.new_zeros(own.number, self.num_experts)
        for sample in range(own.number):
            held = ((samples == sample) & (count > 0)).nonzero().flatten()
            if not len(held):
                continue
            even = len(held) * self.topk / self.num_experts
            capacity = min(len(held), math.ceil(even * self.capacity_factor))
            best = whole[held].topk(capacity, dim=0)
            room[held] = torch.zeros_like(room[held]).scatter(0, best.indices, True)
            border[sample] = best.values.amin(0)
        of_rank = room.tensor_split(group.size())[group.rank()]
        if self.router_replay is None:
            return of_rank  # type: ignore[no-any-return]
        return self.router_replay.room(scores, of_rank, border[own.samples])  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Tokens:
    """The tokens of a pass, of all of its samples.

    Attributes:
        samples: index of the sample of every token, [tokens] int64.
        count: False for padding, [tokens] bool.
        number: of samples.
    """

    samples: torch.Tensor
    count: torch.Tensor
    number: int


def shares_experts(config: megatron.TransformerConfig) -> bool:
    """Whether tokens of a rank visit experts, or parts of them, on other ranks."""
    if config.num_moe_experts is None:
        return False
    return bool(config.expert_model_parallel_size * config.expert_tensor_parallel_size > 1)


def routers_of(module: torch.nn.Module) -> dict[int, LayoutFreeRouter]:
    """Return the routers of a module's part on this rank, by the number of their layer (from 1)."""
    routers = (part for part in module.modules() if isinstance(part, LayoutFreeRouter))
    return {router.layer_number: router for router in routers}


def count_items(layers: torch.nn.Module, cut: SequenceCut) -> None:
    """Let experts take the positions of items, of which each rank may have another number."""
    for part in layers.modules():
        if isinstance(part, LayoutFreeRouter):
            part.cut = cut
        elif isinstance(part, megatron.MoELayer) and isinstance(
            part.token_dispatcher, RowsDispatcher
        ):
            part.token_dispatcher.uneven = True


def layer_with(submodules: Any, feed_forward: megatron.ModuleSpec) -> Any:
    """Return the submodules of a layer with another feed-forward layer."""
    changed = copy.copy(submodules)
    changed.mlp = feed_forward
    return changed
