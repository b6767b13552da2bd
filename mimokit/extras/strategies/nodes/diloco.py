"""DiLoCo: local steps, then an outer optimizer step on what they changed on average.

Streaming DiLoCo exchanges fragments of the model one after another, while steps go on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mimokit.config.strategy import Codec, StrategyConfig
from mimokit.extras.strategies.exchanges import Exchange
from mimokit.extras.strategies.exchanges.rules import CODEC_BITS
from mimokit.extras.strategies.nodes.buckets import Bucket, common_dtype
from mimokit.extras.strategies.nodes.codecs import LowBitMean
from mimokit.extras.strategies.nodes.modules import (
    CommunicateOptimizeStrategy,
    Summed,
    SummedModule,
    under,
)
from mimokit.extras.strategies.nodes.optim import OptimSpec, ensure_optim_spec
from mimokit.extras.strategies.nodes.sparta import (
    Selected,
    SparseCommunicator,
    selector_of,
    sparse_arguments,
)

OUTER = OptimSpec(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
"""The outer optimizer of the paper (arXiv 2311.08105)."""


_STATE = "state/"
"""In front of a state of an outer optimizer."""


class OuterWeights:
    """The outer weights of some tensors, which every node holds, and their optimizer."""

    def __init__(
        self, inner: Sequence[Tensor], spec: OptimSpec, low_bits: LowBitMean | None = None
    ) -> None:
        kind = common_dtype(inner)
        self.inner = inner
        # They share no memory with those that train.
        self.outer = [nn.Parameter(weight.detach().to(kind, copy=True)) for weight in inner]
        self.optim = spec.build(self.outer) if self.outer else None
        self.bucket = Bucket(inner)
        self.low_bits = low_bits

    def kept_tensors(self) -> dict[str, Tensor]:
        """Return the weights, the states of their optimizer, and what rounding has lost."""
        kept = {f"weight/{number}": outer.detach() for number, outer in enumerate(self.outer)}
        if self.optim is not None:
            kept |= {
                f"{_STATE}{number}/{key}": value
                for number, outer in enumerate(self.outer)
                for key, value in self.optim.state.get(outer, {}).items()
                if torch.is_tensor(value)
            }
        if self.low_bits is not None:
            kept |= {"lost": self.low_bits.error, "lost of sums": self.low_bits.error_of_sum}
        return kept

    def begin_states(self, saved: Mapping[str, Tensor]) -> None:
        """Make room for what `kept_tensors` returned, on a node that has just begun."""
        for name in under(_STATE, saved):
            number, key = name.split("/")
            outer = self.outer[int(number)]
            assert self.optim is not None
            room = torch.zeros(()) if key == "step" else torch.zeros_like(outer)
            self.optim.state[outer][key] = room
        if self.low_bits is not None and "lost of sums" in saved:
            sums = self.low_bits.error_of_sum
            self.low_bits.error_of_sum = sums.new_zeros(saved["lost of sums"].numel())

    @torch.no_grad()
    def fill_with_change(self) -> None:
        """Put outer less inner weights into the bucket."""
        for view, outer, inner in zip(self.bucket.views, self.outer, self.inner, strict=True):
            torch.sub(outer, inner, out=view)

    def step(self) -> None:
        """Step the outer weights by the gradients in the bucket."""
        for outer, view in zip(self.outer, self.bucket.views, strict=True):
            outer.grad = view
        if self.optim is not None:
            self.optim.step()
            self.optim.zero_grad()

    @torch.no_grad()
    def write(self, mix: float = 0.0) -> None:
        """Copy the outer weights into those that train, of which the share `mix` stays."""
        for outer, inner in zip(self.outer, self.inner, strict=True):
            inner.copy_(mix * inner + (1 - mix) * outer if mix else outer)


class DiLoCoCommunicator(SummedModule):
    """Steps the outer weights, each rule of the plan its own part of them."""

    def __init__(self, outer_optim_spec: OptimSpec, rule: int | None = None) -> None:
        """Take the outer optimizer, and the place of its rule in the plan; None: all."""
        super().__init__(rule)
        self.outer_optim_spec = outer_optim_spec

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        super()._init_node(model, rank, num_nodes)
        self.parts = {}
        for rule in self.rules:
            # Of a shard, other nodes have the tensors that are missing here.
            inner = [self.parameters[name] for name in rule.tensors if name in self.parameters]
            low_bits = self._low_bits(inner)
            self.parts[rule.index] = OuterWeights(inner, self.outer_optim_spec, low_bits)

    def _low_bits(self, inner: Sequence[Tensor]) -> LowBitMean | None:
        codec = self.plan.config.codec
        if codec is None or not inner:
            return None
        entries = sum(weight.numel() for weight in inner)
        return LowBitMean(CODEC_BITS[codec], entries, inner[0].device)

    @torch.no_grad()
    def given(self, exchange: Exchange) -> Tensor:
        """Return the weights of a rule."""
        part = self.parts[exchange.rule.index]
        part.bucket.fill(part.inner)
        return part.bucket.flat

    @torch.no_grad()
    def begin(self, exchange: Exchange) -> Summed:
        """Sum weights, or average in low bits what the local steps changed."""
        part = self.parts[exchange.rule.index]
        if part.low_bits is None:
            return super().begin(exchange)
        part.fill_with_change()
        group, flat = exchange.group_of(self.rank), part.bucket.flat
        flat.copy_(part.low_bits.mean(flat, group, self.rank))
        return Summed(flat)

    def write(self, exchange: Exchange, flat: Tensor, members: int) -> None:
        """Step the outer weights, and go on from them."""
        part = self.parts[exchange.rule.index]
        part.bucket.flat.copy_(flat)
        if part.low_bits is None:
            part.bucket.flat.div_(members)
            for view, outer in zip(part.bucket.views, part.outer, strict=True):
                view.copy_(outer - view)
        part.step()
        part.write(self.plan.config.mix)

    def kept_tensors(self) -> dict[str, Tensor]:
        """Return the outer weights of every rule, the states of their optimizer, what was lost."""
        return {
            f"{rule}/{name}": tensor
            for rule, part in self.parts.items()
            for name, tensor in part.kept_tensors().items()
        }

    def keep(self, saved: Mapping[str, Tensor]) -> None:
        """Take what `kept_tensors` returned."""
        for rule, part in self.parts.items():
            part.begin_states(under(f"{rule}/", saved))
        super().keep(saved)


class DiLoCoStrategy(CommunicateOptimizeStrategy):
    """DiLoCo (arXiv 2311.08105) among all nodes, or among islands drawn again each time.

    Every node holds the outer weights and steps them, so that only the mean is exchanged.
    """

    def __init__(
        self,
        optim_spec: str | OptimSpec | None = None,
        outer_optim_spec: str | OptimSpec | None = None,
        H: int = 100,
        sync_offset: int = 0,
        island_size: int | None = None,
        codec: Codec | None = None,
        **kwargs: Any,
    ) -> None:
        module = DiLoCoCommunicator(ensure_optim_spec(outer_optim_spec, OUTER))
        super().__init__([module], optim_spec=optim_spec, **kwargs)
        self.config = StrategyConfig(
            name="diloco", H=H, sync_offset=sync_offset, island_size=island_size, codec=codec
        )


class StreamingDiLoCoStrategy(CommunicateOptimizeStrategy):
    """Streaming DiLoCo (arXiv 2501.18512); `plan.rules` has a rule per fragment."""

    def __init__(
        self,
        optim_spec: str | OptimSpec | None = None,
        outer_optim_spec: str | OptimSpec | None = None,
        H: int = 100,
        fragments: int = 4,
        overlap_steps: int = 0,
        mix: float = 0.0,
        codec: Codec | None = None,
        **kwargs: Any,
    ) -> None:
        """Take both optimizers, steps between exchanges of a fragment, and the fragments.

        A result is written `overlap_steps` after its values were taken; the share `mix` of the
        weights of that moment stays.
        """
        module = DiLoCoCommunicator(ensure_optim_spec(outer_optim_spec, OUTER))
        super().__init__([module], optim_spec=optim_spec, **kwargs)
        self.config = StrategyConfig(
            name="streaming_diloco", H=H, fragments=fragments, overlap_steps=overlap_steps,
            mix=mix, codec=codec,
        )  # fmt: skip


class SPARTADiLoCoStrategy(CommunicateOptimizeStrategy):
    """In one step first SPARTA, then DiLoCo."""

    def __init__(
        self,
        optim_spec: str | OptimSpec | None = None,
        outer_optim_spec: str | OptimSpec | None = None,
        p_sparta: float = 0.005,
        sparta_interval: int = 1,
        H: int = 100,
        sync_offset: int = 0,
        index_selector: Selected = None,
        **kwargs: Any,
    ) -> None:
        StrategyConfig(name="sparta", p_sparta=p_sparta)
        selector = selector_of(index_selector, p_sparta)
        outer = ensure_optim_spec(outer_optim_spec, OUTER)
        modules = [SparseCommunicator(selector, rule=0), DiLoCoCommunicator(outer, rule=1)]
        super().__init__(modules, optim_spec=optim_spec, **kwargs)
        self.config = StrategyConfig(
            name="sparta_diloco", H=H, sync_offset=sync_offset,
            **sparse_arguments(selector, sparta_interval),
        )  # fmt: skip
