"""The common interface of encoders: three parts that a pipeline can separate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from mimokit.axes import Axis
from mimokit.config import ModuleArchitecture
from mimokit.engine import megatron
from mimokit.engine.models.attention import HIDDEN
from mimokit.engine.models.experts import count_items
from mimokit.engine.models.patches import rows_alone
from mimokit.engine.models.projector import projector_spec
from mimokit.engine.models.rng import computing_lengths, computing_other_rows
from mimokit.engine.models.transformer import (
    WHOLE,
    ModuleBuild,
    StagePart,
    block_submodules,
    layer_spec,
)
from mimokit.engine.parallel.context import SequenceCut, with_padding
from mimokit.engine.parallel.sequence import SliceNorm
from mimokit.engine.rotary import RotaryPositions


@dataclass(frozen=True)
class OuterNorms:
    """The norms of an encoder outside its layers."""

    before: bool
    after: bool

    @classmethod
    def of(cls, architecture: ModuleArchitecture) -> OuterNorms:
        """Return those that an architecture describes."""
        return cls(architecture.norms > 1, architecture.norms > 0 and architecture.norm_after)


class SharedItems(ABC):
    """How the replicas of a pipeline stage share the items that they encode.

    A context is what a rank knows of a micro-batch; all stages have the same one.
    """

    @abstractmethod
    def dispatch(self, **inputs: torch.Tensor) -> tuple[dict[str, torch.Tensor], Any]:
        """Return the inputs of the items that this rank encodes, and the context. Collective."""

    @abstractmethod
    def follow(self, items: int, sizes: torch.Tensor | None) -> Any:
        """Return the context on a later stage, of the items of this rank's samples. Collective."""

    @abstractmethod
    def sizes(self, context: Any) -> torch.Tensor | None:
        """Return the sizes of the items that this rank encodes; None where all are equal."""

    @abstractmethod
    def computing(self, context: Any) -> AbstractContextManager[None]:
        """Run a block that computes the items that this rank encodes."""

    @abstractmethod
    def give_back(self, context: Any, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens of this rank's samples, of those that it has encoded. Collective."""


class Encoder(megatron.MegatronModule):  # type: ignore[misc]
    """An encoder of independent items (images, recordings): no item attends to another.

    A pipeline stage embeds if it is the first, runs its layers, and finishes if it is the last.
    Inputs are named as in `mimokit.engine.data.batch`.

    Attributes:
        shares_items: its replicas share their items, so each runs it for every batch, also without
            items; see `mimokit.engine.models.frame_parallel`.
        geometry: of its items, among them the `positions` of the largest.
        shared: how the replicas of its pipeline stage share items; None: they share none, or
            `forward` says how.
        runs_whole: it has no parts that a pipeline separates, only `forward`.
    """

    shares_items = False
    shares_layers = False
    shared: SharedItems | None = None
    runs_whole = False
    geometry: Any

    def __init__(self, config: megatron.TransformerConfig, part: StagePart) -> None:
        super().__init__(config=config)
        self.part = part

    def _vectors(self, number: int) -> torch.nn.Parameter:
        """Return learned vectors, [number, hidden], initialized as Megatron initializes weights."""
        vectors = torch.nn.Parameter(torch.empty(number, self.config.hidden_size))
        self.config.init_method(vectors)
        return vectors

    def _build_layers(
        self,
        layer_spec: megatron.ModuleSpec,
        outer_norms: OuterNorms,
        groups: megatron.ProcessGroupCollection,
    ) -> None:
        """Build the layers. Called last, as weights are drawn in the order of building."""
        if outer_norms.before and self.part.first:
            width, epsilon = self.config.hidden_size, self.config.layernorm_epsilon
            self.pre_layernorm = SliceNorm(self.config, width, eps=epsilon)
        mask_type = layer_spec.submodules.self_attention.params["attn_mask_type"]
        self._cut = SequenceCut(self.config, groups, mask_type == megatron.AttnMaskType.causal)
        self.decoder = megatron.TransformerBlock(
            config=self.config,
            spec=block_submodules(layer_spec, self.config, groups, self.part.chunk),
            post_layer_norm=outer_norms.after,
            pre_process=self.part.first,
            post_process=self.part.last,
            pg_collection=groups,
            vp_stage=self.part.chunk,
        )
        count_items(self.decoder, self._cut)
        self._inner: tuple[int, ...] = tuple((layer_spec.params or {}).get("inner", ()))
        if self._inner and self.part.last and outer_norms.after:
            _norm_first_part(self.decoder.final_layernorm, self.config.hidden_size)

    def forward(
        self, tokens_per_item: torch.Tensor | None = None, **inputs: torch.Tensor
    ) -> torch.Tensor:
        """Encode items on a rank that has the whole encoder.

        Args:
            tokens_per_item: [items], where items have different numbers of tokens.

        Returns:
            [tokens of all items, features], items in order.
        """
        hidden = self.run_layers(self.embed(**inputs), tokens_per_item)
        return self.features(hidden, tokens_per_item)

    def embed(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Items to [positions, items, hidden]; on the first stage."""
        raise NotImplementedError

    def run_layers(self, hidden: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """Run [positions, items, hidden] through the layers of this stage.

        Between stages they are the positions of this rank. Behind the hidden states of an item are
        those of its inner layers that have run, `width_between` in all.

        Args:
            sizes: sizes of the items, see `EncoderKind`; None where all are equal.
        """
        if not hidden.shape[1]:
            return self._without_items(hidden) if self.shares_layers else self._widened(hidden)
        lengths = self._lengths(sizes, hidden.shape[1]) if self._has_experts else None
        with computing_lengths(lengths):
            return self._run_items(hidden, sizes)

    def _run_items(self, hidden: torch.Tensor, sizes: torch.Tensor | None) -> torch.Tensor:
        hidden, inner = self._apart(hidden)
        if self.part.first:
            hidden = self._cut.on_rank(with_padding(hidden, self._padding, dimension=0))
            if hasattr(self, "pre_layernorm"):
                hidden = self.pre_layernorm(hidden)
        else:
            self.decoder.set_input_tensor(hidden)
        mask = self._hiding_padding(None if sizes is None else self._mask(sizes))
        output: torch.Tensor = self.decoder(
            hidden,
            attention_mask=self._with_windows(mask, sizes),
            context=inner,
            **self._rotary_on_rank(sizes),
        )
        if not self.part.last:
            return output
        return self._cut.whole(output, summed=True)[: self.geometry.positions]

    def width_between(self, *, before: bool) -> int:
        """Return the numbers of a position that this stage takes, or that it returns."""
        layers = self.decoder.layers
        ran = int(layers[0].number - 1 if before else layers[-1].number)
        parts: int = 1 + sum(layer <= ran for layer in self._inner)
        return int(self.config.hidden_size) * parts

    def _apart(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        width = self.config.hidden_size
        if hidden.shape[-1] == width:
            return hidden, None
        return hidden[..., :width].contiguous(), hidden[..., width:]

    def _widened(self, hidden: torch.Tensor) -> torch.Tensor:
        more = self.width_between(before=False) - hidden.shape[-1] if self._inner else 0
        return torch.nn.functional.pad(hidden, (0, more)) if more else hidden

    def _without_items(self, hidden: torch.Tensor) -> torch.Tensor:
        """Run the layers, in whose weights other ranks have shares, and return no items.

        Backward they then have gradients of zero, as has what embeds items: a reduction of
        gradients may wait for those of both. Experts of other ranks compute an item that counts
        nowhere.
        """
        trained = any(parameter.requires_grad for parameter in self.parameters())
        item = hidden.new_zeros(len(hidden), 1, hidden.shape[2], requires_grad=trained)
        with computing_other_rows(pairs=[(-1, 0)]), computing_lengths([0]):
            return self._run_items(item + hidden.sum(), None)[:, :0]

    @property
    def _has_experts(self) -> bool:
        return self.config.num_moe_experts is not None

    def _lengths(self, sizes: torch.Tensor | None, items: int) -> list[int]:
        return [int(self.geometry.positions)] * items

    def _rotary_on_rank(self, sizes: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return the angles of the positions that the attention of this rank has, if they rotate.

        Inside of attention tensor-parallel ranks have whole sequences.
        """
        angles = self._rotary(sizes)
        if angles is None:
            return {}
        padded = with_padding(angles, self._padding, dimension=0).transpose(0, 1)
        return {"rotary_pos_emb": self._cut.tokens_on_rank(padded).transpose(0, 1)}

    def _rotary(self, sizes: torch.Tensor | None) -> torch.Tensor | None:
        """Return the angles of positions, [positions, items or 1, 1, width of a head]."""
        return None

    def _rotary_in_row(self, rotary: RotaryPositions) -> torch.Tensor:
        """Return the angles of positions that follow each other: [positions, 1, 1, width]."""
        each = rotary.frequencies(self.config.kv_channels).to(next(self.parameters()).device)
        angles = torch.arange(self.geometry.positions, device=each.device)[:, None] * each
        return torch.cat([angles, angles], dim=-1)[:, None, None]

    def positions_between(self) -> int:
        """Return how many positions of an item a rank sends to the next stage."""
        return (int(self.geometry.positions) + self._padding) // self._cut.parts

    @property
    def _padding(self) -> int:
        return self._cut.padding_of(int(self.geometry.positions))

    def _hiding_padding(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        if not self._padding:
            return mask
        if mask is None:
            device = next(self.parameters()).device
            shape = (1, 1, 1, int(self.geometry.positions))
            mask = torch.zeros(shape, dtype=torch.bool, device=device)
        if mask.shape[2] > 1:
            mask = with_padding(mask, self._padding, dimension=2)
        return with_padding(mask, self._padding, dimension=3, value=True)

    def _with_windows(
        self, mask: torch.Tensor | None, sizes: torch.Tensor | None
    ) -> torch.Tensor | None:
        windows = self._windows(sizes)
        if windows is None:
            return mask
        windows = with_padding(windows, self._padding, dimension=1)[:, None, None]
        return windows if mask is None else windows.masked_fill(mask, HIDDEN)

    def _windows(self, sizes: torch.Tensor | None) -> torch.Tensor | None:
        """Return the number of the window of each position, [items or 1, positions], if any."""
        return None

    def no_items(self) -> dict[str, torch.Tensor]:
        """Return the inputs of 0 items."""
        raise NotImplementedError(f"{type(self).__name__} cannot run without items.")

    def features(self, hidden: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """Return what `finish` makes of the last layer, then of each inner one, side by side."""
        parts = torch.split(hidden, self.config.hidden_size, dim=-1)
        return torch.cat([self.finish(part, sizes) for part in parts], dim=-1)

    def finish(self, hidden: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """[positions, items, hidden] to [tokens of all items, features]; on the last stage."""
        raise NotImplementedError

    def token_grids(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return frames, rows and columns of every item in tokens, from its size: [items, 3].

        Items other than images have one frame and one row, of as many columns as tokens.
        """
        return rows_alone(sizes)

    def _mask(self, sizes: torch.Tensor) -> torch.Tensor | None:
        """[items, 1, 1, positions], True where attention is forbidden; None for no mask."""
        return None


def _with_inner(layer: megatron.ModuleSpec, network: ModuleArchitecture) -> megatron.ModuleSpec:
    layer.params["inner"] = network.inner_layers
    return layer


def _norm_first_part(norm: torch.nn.Module, width: int) -> None:
    forward = norm.forward

    def of_first(hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([forward(hidden[..., :width]), hidden[..., width:]], dim=-1)

    norm.forward = of_first


def places_in_row(architecture: ModuleArchitecture, positions: int) -> dict[str, Any]:
    """Return the rows of a table of learned positions, 0 if they are rotary, and how these turn."""
    learned = architecture.has_learned_positions(by_default=True)
    table = architecture.max_position_embeddings or positions
    return {"table": table if learned else 0, "rotary": RotaryPositions.of(architecture)}


@dataclass(frozen=True)
class EncoderKind:
    """The differences between kinds of encoders.

    Attributes:
        parameters: architecture -> the arguments of its class that other kinds do not have.
        merged: architecture -> number of positions per token.
        sizes: name of the input with the size of each item, [items, …] int64, which is sent with
            the hidden states to all stages; None where all items have the same size.
        sides: how many positions of a window are before a position, and after it, of how many are
            before it in Megatron's, which is causal; -1: the encoder numbers windows.
    """

    name: str
    encoder: type[Encoder]
    submodules: type[megatron.ModalitySubmodules]
    mask_type: megatron.AttnMaskType
    parameters: Callable[[ModuleArchitecture], Mapping[str, Any]]
    merged: Callable[[ModuleArchitecture], int]
    sizes: str | None = None
    size_shape: tuple[int, ...] = ()
    sides: Callable[[int], tuple[int, int]] = lambda before: (before, 0)

    def spec(self, build: ModuleBuild) -> megatron.ModuleSpec:
        """Return the spec of an encoder and its projector; the provider injects groups."""
        network, execution = build.architecture, build.execution
        slices = int(execution.sizes.sequence_shards)
        mask_type = self.mask_type
        shares = execution.size(Axis.CONTEXT) * slices
        if mask_type == megatron.AttnMaskType.no_mask and network.positions % shares:
            mask_type = megatron.AttnMaskType.padding
        config = build.config
        if config.window_size is not None:
            config.window_size = self.sides(config.window_size[0])
        encoder = megatron.ModuleSpec(
            module=self.encoder,
            params={
                "config": config,
                "layer_spec": _with_inner(layer_spec(build, mask_type), network),
                "outer_norms": OuterNorms.of(network),
                "part": WHOLE,
                "pg_collection": None,
                **self.parameters(network),
            },
        )
        features = network.hidden_size * self.merged(network)
        return megatron.ModuleSpec(
            module=self.submodules,
            params={},
            submodules={
                "encoders": {self.name: encoder},
                "input_projections": [projector_spec(build, features)],
            },
        )
