"""The feed-forward part of a layer: dense, or a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mimokit.architecture.layer_work.saved_tensor import SavedTensor
from mimokit.architecture.tensor_rows import (
    INNER,
    NORMED_AGAIN,
    ROUTED,
    ROUTED_INNER,
    ROUTER,
    Place,
    Tensors,
    cut_inputs,
    cut_outputs,
    uncut,
)
from mimokit.config.sizes import Numbers, ParallelSizes

if TYPE_CHECKING:
    from mimokit.architecture.transformer import Transformer

_MLP, _EXPERTS = frozenset({"mlp"}), frozenset({"moe"})


def _matrices(
    net: Transformer, width: int, name: str, place: Place, of: tuple[str, str]
) -> Tensors:
    """Yield two matrices around an activation; of a gated layer the first is gate above up."""
    parts = 2 if net.gated else 1
    up, down = (parts * width, net.hidden), (net.hidden, width)
    bias = parts * width if net.ffn_bias else None
    yield from cut_outputs(f"{name}linear_fc1", place, up, bias, parts, of[0])
    yield from cut_inputs(f"{name}linear_fc2", place, down, net.ffn_bias, of[1])


def _activations(
    net: Transformer, inner: Numbers, again: frozenset[str], activated: frozenset[str] | None = None
) -> Iterator[SavedTensor]:
    """Yield the inputs of the activation function, two of SwiGLU, and its output.

    Args:
        again: modules whose recomputation makes all of them again.
        activated: the same of the output; None: likewise.
    """
    yield SavedTensor("feed-forward", (2 if net.gated else 1) * inner, again=again)
    output = again if activated is None else activated
    yield SavedTensor("feed-forward", inner, only_product=True, again=output)


@dataclass(frozen=True)
class DenseFeedForward:
    """Two matrices around an activation, three if it is gated."""

    tensor_meetings: int = 1

    def rows(
        self, net: Transformer, name: str, place: Place, experts: int | None = None
    ) -> Tensors:
        """Yield its matrices."""
        yield from _matrices(net, net.ffn, name, place, (NORMED_AGAIN, INNER))

    def saved(self, net: Transformer, sizes: ParallelSizes) -> Iterator[SavedTensor]:
        """Yield what the activation function takes and makes."""
        yield from _activations(net, net.ffn / sizes.tensor, _MLP)


DENSE = DenseFeedForward()


@dataclass(frozen=True)
class MixtureOfExperts:
    """Experts in place of the feed-forward layer.

    Attributes:
        shared_ffn: width inside the shared experts together; 0 for none.
        dense_layers: first layers that keep an ordinary feed-forward layer.
        router_bias: the router has one bias per expert (DeepSeek-V3's score correction).
        shared_gate: the shared expert has a separate gate (Qwen2-MoE).
        pre_softmax: the weights of a token's experts are shares of all experts, not of those that
            it visits.
    """

    experts: int
    top_k: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0
    router_bias: bool = False
    shared_gate: bool = False
    pre_softmax: bool = False

    @property
    def tensor_meetings(self) -> int:
        """Routed experts have none, because dispatch reaches them."""
        return int(self.shared_ffn > 0)

    def rows(
        self, net: Transformer, name: str, place: Place, experts: int | None = None
    ) -> Tensors:
        """Yield the router, so many experts (None: all), and the shared ones."""
        yield uncut(f"{name}router.weight", place, self.experts, net.hidden, of=ROUTER)
        if net.ffn_bias:
            yield uncut(f"{name}router.bias", place, self.experts)
        if self.router_bias:
            yield replace(uncut(f"{name}router.expert_bias", place, self.experts), trains=False)
        for expert in range(self.experts if experts is None else experts):
            prefix = f"{name}experts.local_experts.{expert}."
            for row in _matrices(net, self.ffn, prefix, place, (ROUTED, ROUTED_INNER)):
                yield replace(row, cut=replace(row.cut, expert=expert, experts=self.experts))
        if self.shared_ffn:
            shared = f"{name}shared_experts."
            yield from _matrices(net, self.shared_ffn, shared, place, (NORMED_AGAIN, INNER))
            if self.shared_gate:
                yield uncut(f"{shared}gate_weight", place, 1, net.hidden, of=ROUTER)

    def saved(self, net: Transformer, sizes: ParallelSizes) -> Iterator[SavedTensor]:
        """Yield what experts, their router and the shared ones keep.

        As in NVIDIA/Megatron-LM#6782, experts and dispatched tokens scale with top-k. Experts are
        not cut by tensor parallelism; instead a rank takes 1/t of the tokens.
        """
        each = self.top_k / sizes.tensor
        yield from _activations(net, each * self.ffn, _EXPERTS, _EXPERTS | {"moe_act"})
        shared = self.shared_ffn / sizes.tensor
        yield from _activations(net, shared, _EXPERTS | {"shared_experts"})
        dispatched = each * net.hidden
        yield SavedTensor("feed-forward", dispatched, only_product=True, again=_EXPERTS)
        yield SavedTensor("feed-forward", dispatched, again=_EXPERTS)
        scores = self.experts / sizes.tensor
        yield SavedTensor("feed-forward", scores, bytes=4, again=_EXPERTS)
