"""Hooks on the operations of a Megatron module, by their names in the whole module."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from mimokit.engine import megatron
from mimokit.engine.models.chunks import chunks_of
from mimokit.engine.models.encoder import Encoder
from mimokit.engine.models.rng import row_computed, rows_computed
from mimokit.engine.models.weights import modules_of_whole
from mimokit.engine.parallel.context import SequenceCut
from mimokit.engine.verify.seams.experts import MixtureHooks
from mimokit.engine.verify.seams.places import Columns, RowPlaces, places_of_layer, share_of_columns
from mimokit.engine.verify.seams.recorder import Recorder
from mimokit.planning.seams import LOSS, PROJECTOR, SeamPhase

Share = Callable[[torch.Tensor, dict[str, Any]], Columns]
"""Takes an input or output, and the named arguments of the call."""

NORMS = ("input_layernorm", "pre_mlp_layernorm", "final_layernorm")


def hook_module(recorder: Recorder, name: str, module: torch.nn.Module) -> None:
    """Record what the layers of a module compute, and what follows them.

    An encoder is recorded at its end alone, its rows, if it shares items with other ranks.
    """
    for chunk in chunks_of(module):
        for path, owner in chunk.named_modules():
            cut = _cut_of(owner)
            if cut is not None:
                positions = int(owner.geometry.positions) if isinstance(owner, Encoder) else None
                layers = _Layers(recorder, name, cut, positions)
                layers.hook(f"{path}." if path else "", owner)


def _cut_of(owner: torch.nn.Module) -> SequenceCut | None:
    if isinstance(owner, megatron.GPTModel):
        return SequenceCut(owner.config, owner.pg_collection, causal=True)
    if isinstance(owner, Encoder) and not owner.shares_items:
        return getattr(owner, "_cut", None)
    return None


@dataclass(frozen=True)
class _LayerRows:
    between: RowPlaces
    inside: RowPlaces
    batch: int

    def of(self, tensor: torch.Tensor) -> RowPlaces | None:
        for places in (self.between, self.inside):
            if len(tensor) * self.batch == len(places.rows):
                return places
        return None


@dataclass
class _Layers:
    """Records the layers of an owner and what follows them.

    Attributes:
        positions: of an item; None: of every sequence that arrives.
        held: samples -> the places of their hidden states, as the first layer has noted them.
    """

    recorder: Recorder
    name: str
    cut: SequenceCut
    positions: int | None
    held: dict[bytes, _LayerRows | None] = field(default_factory=dict)

    def hook(self, prefix: str, owner: torch.nn.Module) -> None:
        parts = modules_of_whole(owner)
        for path, part in parts.items():
            operation = f"{prefix}{path}"
            if isinstance(part, megatron.TransformerLayer):
                part.register_forward_pre_hook(partial(self._begin, operation), with_kwargs=True)
                part.register_forward_hook(partial(self._end, operation))
            elif path == "output_layer":
                self._watch(operation, part, _whole, _rows_of_weight(part), after=LOSS)
            elif path.endswith("final_layernorm") and isinstance(owner, Encoder):
                self._watch(operation, part, _whole, _whole, after=PROJECTOR)
            elif ".experts." in path:
                continue
            elif isinstance(part, megatron.ColumnParallelLinear):
                self._watch(operation, part, _whole, _rows_of_weight(part))
            elif isinstance(part, megatron.RowParallelLinear):
                self._watch(operation, part, _columns_of_weight(part), _whole)
            elif path.endswith(".core_attention"):
                after = parts[path.replace("core_attention", "linear_proj")]
                self._watch(operation, part, _queries_before(after), _columns_of_weight(after))
            elif isinstance(part, megatron.MoELayer) or path.endswith(NORMS):
                self._watch(operation, part, _whole, _whole)
            if isinstance(part, megatron.MoELayer):
                MixtureHooks(self.recorder, self.name, operation, part, self._between).hook()

    def _watch(
        self,
        operation: str,
        part: torch.nn.Module,
        taken: Share,
        given: Share,
        after: str | None = None,
    ) -> None:
        """Record the output of a part, and the gradient that it gives to its first input.

        Args:
            taken: which columns of the input a rank has.
            given: likewise, of the output.
            after: what takes the output alone, to record the gradient that it gives.
        """

        def before(module: Any, args: Any, named: Any) -> Any:
            held = self._now()
            if held is None or not args or not torch.is_grad_enabled():
                return None
            first, *rest = args
            if not isinstance(first, torch.Tensor) or not first.requires_grad:
                return None
            own = first.view_as(first)  # what others add to the gradient of the input is not here
            self._backward(operation, own, held, taken(own, named))
            return (own, *rest), named

        def behind(module: Any, args: Any, named: Any, output: Any) -> None:
            held, tensor = self._now(), _first(output)
            if held is None:
                return
            self.recorder.note_line(self.name, operation)
            columns = given(tensor, named)
            self._record(operation, SeamPhase.FORWARD, held, columns, tensor)
            if after is not None:
                self._backward(after, tensor, held, columns)

        part.register_forward_pre_hook(before, with_kwargs=True)
        part.register_forward_hook(behind, with_kwargs=True)

    def _begin(self, operation: str, layer: Any, args: Any, named: Any) -> None:
        hidden = named.get("hidden_states", args[0] if args else None)
        held = self._note(hidden, in_row=named.get("packed_seq_params") is not None)
        if held is not None:
            self.recorder.note_line(self.name, operation)
            self._record(f"{operation}.input", SeamPhase.FORWARD, held, None, hidden)
            self._backward(operation, hidden, held, None)

    def _end(self, operation: str, layer: Any, args: Any, output: Any) -> None:
        held, tensor, width = self._now(), _first(output), layer.config.hidden_size
        if held is None:
            return
        self._record(operation, SeamPhase.FORWARD, held, None, tensor[..., :width])
        # Inner layers of an encoder may be behind it.
        self._backward(f"{operation}.output", tensor, held, None, width)

    def _backward(
        self,
        operation: str,
        tensor: torch.Tensor,
        held: _LayerRows,
        columns: Columns,
        width: int | None = None,
    ) -> None:
        def hook(gradient: torch.Tensor) -> None:
            self._record(operation, SeamPhase.BACKWARD, held, columns, gradient[..., :width])

        if torch.is_grad_enabled() and tensor.requires_grad:
            tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    def _record(
        self,
        operation: str,
        phase: SeamPhase,
        held: _LayerRows,
        columns: Columns,
        tensor: torch.Tensor,
    ) -> None:
        places = held.of(tensor)
        if places is not None:
            self.recorder.tensor(self.name, operation, phase, tensor, places, columns)

    def _note(self, hidden: Any, *, in_row: bool) -> _LayerRows | None:
        """Note the places of hidden states [positions, batch, hidden]; None: not known."""
        computed, row = rows_computed(), row_computed()
        if computed is None:
            return None
        batch = len(computed.samples) if row is None else 1
        known = in_row == (row is not None) and batch and hidden.dim() == 3
        held = None
        if known and hidden.shape[1] == batch:
            places = places_of_layer(self.cut, computed, row, len(hidden), self.positions)
            if self.positions is None:
                lengths = self.recorder.lengths
                places = places[0].without_padding(lengths), places[1].without_padding(lengths)
            held = _LayerRows(*places, batch)
        self.held[_samples(computed)] = held
        return held

    def _between(self) -> RowPlaces | None:
        held = self._now()
        return None if held is None else held.between

    def _now(self) -> _LayerRows | None:
        computed = rows_computed()
        return None if computed is None else self.held.get(_samples(computed))


def _samples(computed: Any) -> bytes:
    return computed.samples.cpu().numpy().tobytes() + computed.items.cpu().numpy().tobytes()  # type: ignore[no-any-return]


def _first(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]


def _whole(tensor: torch.Tensor, named: dict[str, Any]) -> Columns:
    return None


def _rows_of_weight(part: Any) -> Share:
    return lambda tensor, named: share_of_columns(
        part.weight if named.get("weight") is None else named["weight"], 0
    )


def _columns_of_weight(part: Any) -> Share:
    return lambda tensor, named: share_of_columns(part.weight, 1)


def _queries_before(part: Any) -> Share:
    """Return the share of the queries whose values are the input of a matrix.

    The heads are the same; those of queries and of values may differ in width.
    """

    def columns(queries: torch.Tensor, named: dict[str, Any]) -> Columns:
        values = share_of_columns(part.weight, 1)
        if values is None:
            return None
        number, width = queries.shape[-2:]
        own = len(values) // number
        heads = values[::own] // own
        return (width * heads[:, None] + np.arange(width)).reshape(-1)

    return columns
