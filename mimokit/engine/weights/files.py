"""Blocks of tensors from safetensors files, and such files written tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from mimokit.architecture.tensor_cut import Span


class TensorSource(Protocol):
    """Where the tensors of a checkpoint are read from."""

    def block(self, tensor: str, rows: Span, columns: Span | None) -> torch.Tensor:
        """Return rows and columns of a tensor; None for all columns."""
        ...


class FileTensors:
    """The tensors of safetensors files. A block is a view of the memory map, not a copy."""

    def __init__(self, directory: Path, places: Mapping[str, str]) -> None:
        self._directory = directory
        self._places = places
        self._files: dict[str, Any] = {}

    def block(self, tensor: str, rows: Span, columns: Span | None) -> torch.Tensor:
        """Return rows and columns of a tensor; None for all columns."""
        name = self._places[tensor]
        if name not in self._files:
            self._files[name] = safe_open(self._directory / name, "pt")
        taken = self._files[name].get_slice(tensor)
        if not taken.get_shape():  # a single number has no rows
            single: torch.Tensor = self._files[name].get_tensor(tensor)
            return single
        block: torch.Tensor = (
            taken[slice(*rows)] if columns is None else taken[slice(*rows), slice(*columns)]
        )
        return block

    def close(self) -> None:
        """Give the memory maps back, once no block is in use."""
        self._files.clear()
