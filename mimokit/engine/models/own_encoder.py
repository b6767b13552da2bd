"""An encoder that the user builds, behind the interface of mimokit's own.

What it must obey is in `docs/own_modules.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mimokit.architecture.tokens import tokens_per_item as tokens_of_architecture
from mimokit.config import ModuleArchitecture
from mimokit.config.user_code import OwnModule, is_spec
from mimokit.engine.data.batch import ITEM_TOKENS
from mimokit.engine.megatron import (
    ModuleSpec,
    ProcessGroupCollection,
    TransformerConfig,
    build_module,
)
from mimokit.engine.models.encoder import Encoder, EncoderKind
from mimokit.engine.models.patches import GRID, tokens_of_grid
from mimokit.engine.models.provider import inject_process_groups
from mimokit.engine.models.transformer import WHOLE, transformer_config
from mimokit.engine.parallel.marks import check_marks


@dataclass(frozen=True)
class _Sizes:
    """The parallel sizes of a module, from its process groups."""

    groups: ProcessGroupCollection

    @property
    def tensor_parallel(self) -> int:
        return int(self.groups.tp.size())

    @property
    def pipeline_parallel(self) -> int:
        return int(self.groups.pp.size())

    @property
    def context_parallel(self) -> int:
        return int(self.groups.cp.size())


def layer_config(
    architecture: ModuleArchitecture, groups: ProcessGroupCollection
) -> TransformerConfig:
    """Return Megatron's configuration for the layers of a module that the user builds."""
    return transformer_config(architecture, _Sizes(groups))


def built(
    name: str, own: OwnModule, architecture: ModuleArchitecture, groups: ProcessGroupCollection
) -> torch.nn.Module:
    """Build a module of the user's.

    Args:
        own: what builds it; the parameters `pg_collection` and `tp_group` of a spec are filled.

    Raises:
        ValueError: it builds something that is not a module, or a parameter is marked as cut
            without saying how.
    """
    if is_spec(own):
        module = build_module(inject_process_groups(own, groups))
    else:
        module = own(architecture, groups)
    if not isinstance(module, torch.nn.Module):
        raise ValueError(
            f"Module {name!r}: its builder returned a {type(module).__name__}; it must return a "
            "torch.nn.Module."
        )
    check_marks(name, dict(module.named_parameters()))
    return module


class OwnEncoder(Encoder):
    """The user's encoder on a rank that has all of it.

    Args:
        kind: which inputs it reads.
        initial_seed: of the module; the projector is drawn from it, however much the encoder draws.
    """

    runs_whole = True

    def __init__(
        self,
        name: str,
        own: OwnModule,
        architecture: ModuleArchitecture,
        kind: EncoderKind,
        initial_seed: int,
        pg_collection: ProcessGroupCollection,
    ) -> None:
        super().__init__(layer_config(architecture, pg_collection), WHOLE)
        self.module = built(name, own, architecture, pg_collection)
        torch.manual_seed(initial_seed + 1)
        self._name = name
        self._sizes = kind.sizes
        self._merge_size = architecture.merge_size
        self._tokens_per_item = tokens_of_architecture(architecture)
        self._features = architecture.hidden_size * kind.merged(architecture)

    def forward(
        self, tokens_per_item: torch.Tensor | None = None, **inputs: torch.Tensor
    ) -> torch.Tensor:
        """Encode items.

        Args:
            tokens_per_item: [items], tokens per item according to the batch, or None. The user's
                encoder gets it where items differ in size and no other input says so.
            inputs: of the batch, by name.

        Returns:
            [tokens of all items, features], items in order.

        Raises:
            ValueError: the user's encoder returned something else.
        """
        sizes = {ITEM_TOKENS: tokens_per_item} if self._sizes == ITEM_TOKENS else {}
        output = self.module(**inputs, **sizes)
        return self._checked(output, self._rows(tokens_per_item, inputs))

    def tokens_of(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return the number of tokens of every item, from its size: [items]."""
        return tokens_of_grid(sizes, self._merge_size) if self._sizes == GRID else sizes

    def _rows(self, tokens_per_item: torch.Tensor | None, inputs: dict[str, torch.Tensor]) -> int:
        """Return how many rows the batch asks for."""
        if GRID in inputs:
            return int(tokens_of_grid(inputs[GRID], self._merge_size).sum())
        if tokens_per_item is not None:
            return int(tokens_per_item.sum())
        return len(next(iter(inputs.values()))) * self._tokens_per_item

    def _checked(self, output: Any, rows: int) -> torch.Tensor:
        if not isinstance(output, torch.Tensor):
            raise ValueError(
                f"Module {self._name!r}: its {type(self.module).__name__} returned a "
                f"{type(output).__name__}; it must return a tensor {self._wanted(rows)}."
            )
        found = output.flatten(0, 1) if output.dim() == 3 else output
        if tuple(found.shape) != (rows, self._features):
            raise ValueError(
                f"Module {self._name!r}: its {type(self.module).__name__} returned a tensor of "
                f"{list(output.shape)}; it must be {self._wanted(rows)}."
            )
        return found

    def _wanted(self, rows: int) -> str:
        return (
            f"of [{rows}, {self._features}]: one row per token of every item in order, and the "
            "width of the network's output (hidden_size, times what merge_size merges)"
        )

    def embed(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Not called: the encoder runs as a whole."""
        raise NotImplementedError

    def finish(self, hidden: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """Not called: the encoder runs as a whole."""
        raise NotImplementedError


def own_encoder_spec(
    name: str,
    own: OwnModule,
    architecture: ModuleArchitecture,
    kind: EncoderKind,
    initial_seed: int,
) -> ModuleSpec:
    """Return the spec of an encoder that the user builds; the provider injects groups."""
    params = {
        "name": name,
        "own": own,
        "architecture": architecture,
        "kind": kind,
        "initial_seed": initial_seed,
        "pg_collection": None,
    }
    return ModuleSpec(module=OwnEncoder, params=params)
